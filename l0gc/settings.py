"""What l0gc can be told, and where each value came from: flag, then environment, then file, then default."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec

from l0gc.errors import UsageError

NotNegative = Annotated[float, msgspec.Meta(ge=0)]


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings that every command takes."""

    url: str | None = None
    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    cluster_id: str | None = None
    epoch_interval: NotNegative = 600.0
    epoch_cache: NotNegative = 10.0
    json: bool = False
    verbose: int = 0
    log_format: str = "text"


def load_file(path: str) -> dict[str, Any]:
    """A TOML file's settings, with the names of the options (`endpoint-url` or `endpoint_url`).

    Raises:
        UsageError: the file cannot be read, names a setting that does not exist, or gives one what it cannot be.
    """
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as e:
        raise UsageError(f"cannot read the config file {path}: {e.strerror}") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise UsageError(f"the config file {path} is not TOML: {e}") from e
    known = get_type_hints(Settings, include_extras=True)
    named = {k.replace("-", "_"): v for k, v in values.items()}
    for key in named:
        if key not in known:
            raise UsageError(
                f"the config file {path} has an unknown setting {key!r}; known are {', '.join(sorted(known))}"
            )
    for key, value in named.items():
        try:
            msgspec.convert(value, known[key])
        except msgspec.ValidationError as e:
            raise UsageError(f"the config file {path} has {key} = {value!r}: {e}") from e
    return named
