"""The settings file: every setting by either spelling, and nothing else."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import pytest

from l0gc.errors import UsageError
from l0gc.settings import Settings, load_file

if TYPE_CHECKING:
    from pathlib import Path


def _file(folder: Path, text: str | bytes) -> str:
    path = folder / "l0gc.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_a_file_may_spell_settings_like_the_options(tmp_path: Path) -> None:
    path = _file(tmp_path, 'url = "s3://b/p"\nendpoint-url = "http://h"\nepoch_interval = 5.0\njson = true\n')
    assert load_file(path) == {"url": "s3://b/p", "endpoint_url": "http://h", "epoch_interval": 5.0, "json": True}


@pytest.mark.parametrize("name", [f.name for f in fields(Settings)])
def test_a_file_may_hold_every_setting(tmp_path: Path, name: str) -> None:
    value = {bool: "true", int: "1", float: "0.5"}.get(type(getattr(Settings(), name)), '"text"')
    assert load_file(_file(tmp_path, f"{name.replace('_', '-')} = {value}")).keys() == {name}


@pytest.mark.parametrize(
    "text",
    ["url = 5", 'epoch-interval = "abc"', "epoch-interval = -1", 'json = "no"', 'verbose = "x"', "profile = [1]"],
)
def test_a_value_of_another_type_is_refused_by_name(tmp_path: Path, text: str) -> None:
    name = text.partition(" ")[0].replace("-", "_")
    with pytest.raises(UsageError, match=rf"l0gc\.toml has {name} = .*: Expected "):
        load_file(_file(tmp_path, text))


def test_an_unknown_setting_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"l0gc\.toml has an unknown setting 'endpiont_url'; known are .*endpoint_url"):
        load_file(_file(tmp_path, 'endpiont-url = "x"'))


def test_a_file_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the config file .*none\.toml: No such file"):
        load_file(str(tmp_path / "none.toml"))


@pytest.mark.parametrize("text", ["url = ", "\x00", b'url = "\xff"'], ids=["syntax", "control", "not-utf8"])
def test_a_file_that_is_not_toml_is_a_usage_error(tmp_path: Path, text: str | bytes) -> None:
    with pytest.raises(UsageError, match="is not TOML"):
        load_file(_file(tmp_path, text))
