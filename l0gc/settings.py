"""Read the settings of l0gc, and record where each value came from: flag, then environment, then file, then default.

A settings file may hold named contexts, one for each cluster. The values of a context chosen by a flag take precedence
over the environment, so that a leftover variable cannot make `--context prod` reach another cluster.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

import msgspec

from l0gc.errors import UsageError, suggestion
from l0gc.formatting import seconds_of
from l0gc.operations import OPERATIONS, types_of, written

TIMEOUT_S: Final = 120.0
"""How long a run waits in total for a silent store; see `storage/patience`."""
IDLE_S: Final = 45.0
"""How long a connection may be idle before it is closed; common NATs forget one after a minute or later."""
NotNegative = Annotated[float, msgspec.Meta(ge=0)]


class Settings(msgspec.Struct, frozen=True):
    """Settings that every command takes."""

    url: str | None = None
    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    sse: str | None = None
    sse_kms_key_id: str | None = None
    store_timeout: NotNegative = TIMEOUT_S
    idle_timeout: NotNegative = IDLE_S
    cluster_id: str | None = None
    epoch_interval: NotNegative = 600.0
    json: bool = False
    json_file: str | None = None
    quiet: bool = False
    verbose: int = 0
    log_format: str = "text"


_PREFIX: Final = "L0GC_"
_OF_SERVICE: Final = re.compile(
    r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)?)\Z"
)
_CONTEXT: Final = "context"
_CONTEXTS: Final = "contexts"


class FileSettings(msgspec.Struct, frozen=True):
    """The contents of a settings file.

    Attributes:
        path: empty without a file.
        values: the settings of the whole file and of the chosen context, which takes precedence.
        context: the chosen context, or None.
        of_context: the names of the values that it sets.
        contexts: the names of all contexts.
        sections: the options of operations, by the operation's name, with their names on the command line; those of the
            chosen context take precedence.
    """

    path: str = ""
    values: dict[str, Any] = {}
    context: str | None = None
    of_context: frozenset[str] = frozenset()
    contexts: tuple[str, ...] = ()
    sections: dict[str, dict[str, Any]] = {}


def variables() -> set[str]:
    """Return the environment variables that commands read, without their prefix."""
    names = {*get_type_hints(Settings)} - {"verbose"} | {"config", "context", "master", "pushgateway"}
    names |= {f"{command}_{written(kind, name)}" for command, kind in OPERATIONS.items() for name in types_of(kind)}
    return {name.replace("-", "_").upper() for name in names}


def check_variables(environment: Iterable[str]) -> None:
    """Refuse a variable that looks like an option but is not one: a misspelt `L0GC_SWEEP_GRACE` would mean no grace.

    Kubernetes sets variables for each Service, such as `L0GC_PORT` for one with the name `l0gc`; these are ignored.

    Raises:
        UsageError: there is such a variable.
    """
    given = sorted(n.removeprefix(_PREFIX) for n in environment if n.startswith(_PREFIX))
    valid = variables() if given else set()
    for name in given:
        if name in valid or _OF_SERVICE.search(f"_{name}"):
            continue
        hint = suggestion(name, valid, "")
        if hint or name.startswith(tuple(f"{command.replace('-', '_').upper()}_" for command in OPERATIONS)):
            hint = hint.replace("mean '", f"mean '{_PREFIX}") or "l0gc help commands lists the variables"
            raise UsageError(
                f"the environment variable {_PREFIX}{name} is not an option, so it would do nothing; {hint}"
            )


def default_file() -> Path:
    """Return the path of the default settings file: `~/.config/l0gc/config.toml`."""
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(os.path.expanduser(folder)) / "l0gc" / "config.toml"  # noqa: PTH111 - a user may have no home


def has_default_file() -> bool:
    """Return whether the default file exists and can be read. A command that was not given a file does not fail if the
    default file is unreadable.
    """
    return os.access(default_file(), os.R_OK)


def load_settings(path: str | None, context: str | None = None) -> FileSettings:
    """Return the settings of a TOML file, or of the default file if it exists, with the names of the options.

    Args:
        context: the context to use; by default the one that the file names as `context`.

    Raises:
        UsageError: the file cannot be read, names an unknown setting or context, or has an invalid value.
    """
    path = path or (str(default_file()) if has_default_file() else "")
    if not path:
        if context is not None:
            raise UsageError(
                f"no settings file has a context {context!r}: write [contexts.{context}] into {default_file()}"
            )
        return FileSettings()
    values = _read(path)
    contexts = values.pop(_CONTEXTS, {})
    if not isinstance(contexts, dict) or not all(isinstance(c, dict) for c in contexts.values()):
        raise UsageError(
            f"the config file {path} has contexts that are not tables; write [contexts.NAME] above a context's settings"
        )
    chosen = context if context is not None else values.pop(_CONTEXT, None)
    values.pop(_CONTEXT, None)
    sections = _sections(path, values, "")
    general = _checked(path, values, "")
    of_contexts = {name: _sections(path, said, f"contexts.{name}.") for name, said in contexts.items()}
    each = {name: _checked(path, said, f" in contexts.{name}") for name, said in contexts.items()}
    if chosen is None:
        return FileSettings(path, general, contexts=tuple(each), sections=sections)
    if chosen not in each:
        hint = suggestion(str(chosen), each, f"it has {', '.join(sorted(each)) or 'none'}")
        raise UsageError(f"the config file {path} has no context {chosen!r}; {hint}")
    for name, options in of_contexts[chosen].items():
        sections[name] = sections.get(name, {}) | options
    return FileSettings(path, general | each[chosen], chosen, frozenset(each[chosen]), tuple(each), sections)


def _read(path: str) -> dict[str, Any]:
    import tomllib  # takes 2 ms, which commands without a file save

    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as e:
        raise UsageError(f"cannot read the config file {path}: {e.strerror}") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise UsageError(f"the config file {path} is not TOML: {e}") from e


def _sections(path: str, values: dict[str, Any], where: str) -> dict[str, dict[str, Any]]:
    """Extract the operations' sections from the contents of a file; each may name only options of its operation."""
    sections = {name: values.pop(name) for name in OPERATIONS if isinstance(values.get(name), dict)}
    for name, given in sections.items():
        options = {written(OPERATIONS[name], option) for option in types_of(OPERATIONS[name])}
        sections[name] = {key.replace("_", "-"): value for key, value in given.items()}
        for key in sections[name]:
            if key not in options:
                hint = suggestion(key, options, f"l0gc {name} --help lists them")
                raise UsageError(f"the config file {path} has an unknown option {key!r} in [{where}{name}]; {hint}")
    return sections


def _checked(path: str, values: dict[str, Any], where: str) -> dict[str, Any]:
    types = get_type_hints(Settings, include_extras=True)
    named = {k.replace("-", "_"): v for k, v in values.items()}
    for key in named.keys() & {"epoch_interval", "store_timeout", "idle_timeout"}:
        seconds = seconds_of(str(named[key]))
        if seconds is None:
            raise UsageError(f'the config file {path} has {key} = {named[key]!r}{where}; use a duration such as "10m"')
        named[key] = seconds
    for key in named:
        if key not in types:
            raise UsageError(
                f"the config file {path} has an unknown setting {key!r}{where}; known are {', '.join(sorted(types))}"
            )
    for key, value in named.items():
        try:
            msgspec.convert(value, types[key])
        except msgspec.ValidationError as e:
            raise UsageError(f"the config file {path} has {key} = {value!r}{where}: {e}") from e
    return named
