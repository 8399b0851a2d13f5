"""`l0gc config show` shows the origin of each setting, but no secret."""

from __future__ import annotations

import json
from pathlib import Path

import click
import msgspec
import pytest

from l0gc.cli.main import COMMANDS, cli, load
from l0gc.cli.options import library
from l0gc.cli.output import taking_results
from l0gc.settings import Settings, variables
from tests.support.cli import ended_here, l0gc

DEFAULTS = {f.name: f.default for f in msgspec.structs.fields(Settings)}
VARIABLES = {
    "L0GC_URL": ("url", "s3://b/p"),
    "L0GC_ENDPOINT_URL": ("endpoint_url", "http://one:1"),
    "AWS_ENDPOINT_URL_S3": ("endpoint_url", "http://two:2"),
    "AWS_ENDPOINT_URL": ("endpoint_url", "http://three:3"),
    "L0GC_REGION": ("region", "eu-central-1"),
    "AWS_REGION": ("region", "eu-west-1"),
    "AWS_DEFAULT_REGION": ("region", "us-west-2"),
    "L0GC_PROFILE": ("profile", "sweeper"),
    "AWS_PROFILE": ("profile", "other"),
    "L0GC_CLUSTER_ID": ("cluster_id", "c"),
    "L0GC_EPOCH_INTERVAL": ("epoch_interval", "30s"),
    "L0GC_STORE_TIMEOUT": ("store_timeout", "45s"),
    "L0GC_IDLE_TIMEOUT": ("idle_timeout", "20s"),
    "L0GC_JSON": ("json", "1"),
    "L0GC_LOG_FORMAT": ("log_format", "json"),
}


def shown(*args: str) -> dict[str, tuple[object, str]]:
    return {s["name"]: (s["value"], s["source"]) for s in l0gc("config", "show", *args)["settings"]}


def test_every_setting_is_shown_and_is_a_default_where_nobody_said_anything() -> None:
    assert shown() == {name: (value, "default") for name, value in DEFAULTS.items()}


@pytest.mark.parametrize("variable", VARIABLES)
def test_the_variable_that_a_value_comes_from_is_named(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, text = VARIABLES[variable]
    monkeypatch.setenv(variable, text)
    value = {"epoch_interval": 30.0, "store_timeout": 45.0, "idle_timeout": 20.0, "json": True}.get(name, text)
    settings = shown()
    assert settings.pop(name) == (value, variable)
    assert settings == {n: (v, "default") for n, v in DEFAULTS.items() if n != name}


def test_the_variables_that_are_known_are_those_of_the_options() -> None:
    def names(command: click.Command) -> set[str]:
        below = command.commands.values() if isinstance(command, click.Group) else ()
        own = [p.envvar or () for p in command.params]
        return {n for e in own for n in ([e] if isinstance(e, str) else e)}.union(*map(names, below))

    read = set().union(*(names(load(name)) for name in COMMANDS))
    assert {f"L0GC_{name}" for name in variables()} == {name for name in read if name.startswith("L0GC_")}


def test_a_misspelt_variable_stops_each_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("L0GC_GC_SWEEP_GRACE", "1d")
    for command in ("sweep", "status", "config show"):
        ended = ended_here(*command.split())
        assert (ended.code, "did you mean 'L0GC_SWEEP_GRACE'" in ended.stderr) == (2, True)


def test_of_two_variables_the_one_that_counts_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://three:3")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://two:2")
    assert shown()["endpoint_url"] == ("http://two:2", "AWS_ENDPOINT_URL_S3")
    monkeypatch.setenv("L0GC_ENDPOINT_URL", "")
    assert shown()["endpoint_url"] == ("http://two:2", "AWS_ENDPOINT_URL_S3")


def test_an_option_comes_before_the_environment_and_that_before_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "l0gc.toml"
    file.write_text('url = "s3://file/p"\nregion = "file-1"\nepoch-interval = "60s"\n')
    monkeypatch.setenv("L0GC_URL", "s3://environment/p")
    monkeypatch.setenv("L0GC_REGION", "environment-1")
    settings = shown("--url", "s3://option/p", "--config", str(file), "-v")
    assert settings["url"] == ("s3://option/p", "option")
    assert settings["region"] == ("environment-1", "L0GC_REGION")
    assert settings["epoch_interval"] == (60, str(file))
    assert settings["verbose"] == (1, "option")
    assert settings["profile"] == (None, "default")


def test_a_file_that_the_environment_names_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "l0gc.toml"
    file.write_text('profile = "sweeper"\n')
    monkeypatch.setenv("L0GC_CONFIG", str(file))
    assert shown()["profile"] == ("sweeper", str(file))


def test_no_secret_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "hush-hush")
    monkeypatch.setenv("L0GC_ENDPOINT_URL", "http://ann:hush-hush@gateway:9000/s3")
    with taking_results() as results:
        cli.main(["config", "show"], prog_name="l0gc", standalone_mode=False)
    assert "hush-hush" not in json.dumps(results[-1].data) + "\n".join(results[-1].text)
    assert "endpoint_url    http://***@gateway:9000/s3  (L0GC_ENDPOINT_URL)" in results[-1].text
    assert results[-1].text[0].startswith("settings file: none (")


FILE = """
context = "dev"
[contexts.dev]
url = "s3://dev/p"
[contexts.prod]
url = "s3://prod/p"
profile = "sweeper"
"""


@pytest.fixture
def contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = tmp_path / "l0gc" / "config.toml"
    file.parent.mkdir()
    file.write_text(FILE)
    return str(file)


def of(*args: str) -> tuple[object, str]:
    with taking_results() as results:
        cli.main([*args], prog_name="l0gc", standalone_mode=False)
    url = next(s for s in results[-1].data["settings"] if s["name"] == "url")
    return url["value"], url["source"]


def test_json_is_taken_from_either_side_of_the_command(contexts: str, capsys: pytest.CaptureFixture[str]) -> None:
    for line in (["--json", "config", "show"], ["config", "show", "--json"]):
        cli.main(line, prog_name="l0gc", standalone_mode=False)
        assert "settings" in json.loads(capsys.readouterr().out), line


def test_a_context_is_taken_from_either_side_of_the_command(contexts: str) -> None:
    assert of("config", "show") == ("s3://dev/p", f"context dev in {contexts}")
    prod = ("s3://prod/p", f"context prod in {contexts}")
    assert of("--context", "prod", "config", "show") == prod
    assert of("config", "show", "--context", "prod") == prod
    assert of("--context", "dev", "config", "show", "--context", "prod") == prod
    data = l0gc("config", "show", "--context", "prod")
    assert (data["file"], data["context"], data["contexts"]) == (contexts, "prod", ["dev", "prod"])


def test_a_flagged_context_precedes_the_environment(contexts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("L0GC_URL", "s3://left-over/p")
    assert of("config", "show") == ("s3://left-over/p", "L0GC_URL")
    monkeypatch.setenv("L0GC_CONTEXT", "prod")
    assert of("config", "show") == ("s3://left-over/p", "L0GC_URL")
    monkeypatch.delenv("L0GC_URL")
    assert of("config", "show") == ("s3://prod/p", f"context prod in {contexts}")
    monkeypatch.setenv("L0GC_URL", "s3://left-over/p")
    for args in (["--context", "dev", "config", "show"], ["config", "show", "--context", "dev"]):
        assert of(*args) == ("s3://dev/p", f"context dev in {contexts}")
    assert of("--context", "dev", "config", "show", "--url", "s3://said/p") == ("s3://said/p", "option")


def test_boto3_resolves_the_aws_endpoint_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://three:3")
    for given, explicit in (("http://three:3", None), ("http://one:1", "http://one:1")):
        with library(Settings("s3://b/p", given)) as cluster:
            assert cluster.store.config.endpoint_url == explicit
