"""The settings file takes every setting by either spelling, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from l0gc.errors import UsageError
from l0gc.settings import FileSettings, Settings, check_variables, default_file, load_settings, variables

if TYPE_CHECKING:
    from pathlib import Path

CONTEXTS = """
region = "r-1"
context = "dev"
[contexts.dev]
url = "s3://dev/p"
[contexts.prod]
url = "s3://prod/p"
region = "r-2"
endpoint-url = "https://store"
"""


def _file(folder: Path, text: str | bytes) -> str:
    path = folder / "l0gc.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_a_file_may_spell_settings_like_the_options(tmp_path: Path) -> None:
    path = _file(tmp_path, 'url = "s3://b/p"\nendpoint-url = "http://h"\nepoch_interval = "5s"\njson = true\n')
    assert load_settings(path).values == {
        "url": "s3://b/p",
        "endpoint_url": "http://h",
        "epoch_interval": 5.0,
        "json": True,
    }


@pytest.mark.parametrize("name", Settings.__struct_fields__)
def test_a_file_may_hold_every_setting(tmp_path: Path, name: str) -> None:
    value = {bool: "true", int: "1", float: '"30s"'}.get(type(getattr(Settings(), name)), '"text"')
    assert load_settings(_file(tmp_path, f"{name.replace('_', '-')} = {value}")).values.keys() == {name}


@pytest.mark.parametrize(
    "text",
    ["url = 5", 'epoch-interval = "abc"', "epoch-interval = -1", 'json = "no"', 'verbose = "x"', "profile = [1]"],
)
def test_a_value_of_another_type_is_refused_by_name(tmp_path: Path, text: str) -> None:
    name = text.partition(" ")[0].replace("-", "_")
    with pytest.raises(UsageError, match=rf"l0gc\.toml has {name} = .*(: Expected |; use a duration)"):
        load_settings(_file(tmp_path, text))


def test_a_duration_without_a_unit_is_refused_in_a_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match='has epoch_interval = 60; use a duration such as "10m"'):
        load_settings(_file(tmp_path, "epoch-interval = 60"))


@pytest.mark.parametrize("name", ["GC_SWEEP_GRACE", "SWEEP_GRAC", "SWEEP_MIN_AGES", "GRACE", "ENDPOINT"])
def test_a_variable_that_only_looks_like_an_option_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=rf"L0GC_{name} is not an option, .*; did you mean 'L0GC_[A-Z_]+'\?"):
        check_variables({f"L0GC_{name}": "1d"})


@pytest.mark.parametrize("name", ["PORT", "SERVICE_HOST", "SWEEP_PORT_80_TCP_ADDR", "SWEEP_SERVICE_PORT_S3"])
def test_variables_of_services_and_other_programs_are_left_alone(name: str) -> None:
    check_variables({f"L0GC_{name}": "tcp://10.0.0.1:80", "L0GC_TEST_PASSWORD": "x", "SWEEP_GRACE": "1d"})
    check_variables(f"L0GC_{known}" for known in variables())


def test_an_unknown_setting_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"l0gc\.toml has an unknown setting 'endpiont_url'; known are .*endpoint_url"):
        load_settings(_file(tmp_path, 'endpiont-url = "x"'))


def test_a_file_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the config file .*none\.toml: No such file"):
        load_settings(str(tmp_path / "none.toml"))


@pytest.mark.parametrize("text", ["url = ", "\x00", b'url = "\xff"'], ids=["syntax", "control", "not-utf8"])
def test_a_file_that_is_not_toml_is_a_usage_error(tmp_path: Path, text: str | bytes) -> None:
    with pytest.raises(UsageError, match="is not TOML"):
        load_settings(_file(tmp_path, text))


def test_a_context_comes_before_what_is_said_for_all_of_them(tmp_path: Path) -> None:
    path = _file(tmp_path, CONTEXTS)
    dev, prod = load_settings(path), load_settings(path, "prod")
    assert (dev.context, dev.values) == ("dev", {"region": "r-1", "url": "s3://dev/p"})
    assert prod.values == {"region": "r-2", "url": "s3://prod/p", "endpoint_url": "https://store"}
    assert sorted(prod.of_context) == ["endpoint_url", "region", "url"]
    assert prod.contexts == ("dev", "prod")
    assert load_settings(_file(tmp_path, CONTEXTS.replace('context = "dev"', ""))).values == {"region": "r-1"}


def test_a_contexts_options_of_an_operation_win_one_by_one(tmp_path: Path) -> None:
    text = "[sweep]\nmin-age = '1h'\ngrace = '1d'\n[contexts.prod.sweep]\ngrace = '2d'\n[contexts.dev]\n"
    path = _file(tmp_path, text)
    assert load_settings(path, "prod").sections == {"sweep": {"min-age": "1h", "grace": "2d"}}
    assert load_settings(path, "dev").sections == {"sweep": {"min-age": "1h", "grace": "1d"}}


@pytest.mark.parametrize(
    ("text", "context", "said"),
    [
        (CONTEXTS, "prd", r"has no context 'prd'; did you mean 'prod'"),
        ("", "prod", r"has no context 'prod'; it has none"),
        ('context = "x"\n[contexts.y]\n', None, r"has no context 'x'"),
        ("[contexts.a]\nurll = 1\n", None, r"unknown setting 'urll' in contexts\.a; known are"),
        ("[contexts.a]\nurl = 1\n", "a", r"has url = 1 in contexts\.a: Expected"),
        ("contexts = 5\n", None, r"write \[contexts\.NAME\]"),
        ("[contexts]\na = 5\n", None, r"write \[contexts\.NAME\]"),
    ],
)
def test_a_context_that_is_not_there_or_is_wrong_is_named(
    tmp_path: Path, text: str, context: str | None, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        load_settings(_file(tmp_path, text), context)


def test_the_default_file_is_read_if_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/x")
    assert default_file().as_posix() == "/x/l0gc/config.toml"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert default_file().as_posix().endswith("/.config/l0gc/config.toml")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert load_settings(None) == FileSettings()
    with pytest.raises(
        UsageError, match=r"no settings file has a context 'prod': write \[contexts\.prod\] into .*config\.toml"
    ):
        load_settings(None, "prod")
    default_file().parent.mkdir()
    default_file().write_text(CONTEXTS)
    assert load_settings(None, "prod").values["url"] == "s3://prod/p"
    assert load_settings(_file(tmp_path, 'url = "s3://other"')).values == {"url": "s3://other"}
