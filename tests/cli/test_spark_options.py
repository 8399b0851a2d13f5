"""The options of commands on Spark, as they reach the session."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import click
import pytest
from click.testing import CliRunner

from l0gc.cli.options import engine_options
from l0gc.errors import L0gcError, UsageError
from l0gc.settings import Settings
from l0gc.storage.s3 import S3Store
from tests.support.cli import l0gc


def given(monkeypatch: pytest.MonkeyPatch, *args: str) -> dict[str, Any]:
    """Return the settings of the engine for a command with these options."""
    made: list[dict[str, Any]] = []

    def engine(wanted: str, **options: Any) -> AbstractContextManager[None]:
        made.append(options | {"wanted": wanted})
        return nullcontext()

    monkeypatch.setattr("l0gc.cli.options.Engine", engine)

    @click.command()
    @click.pass_obj
    @engine_options()
    def command(settings: Settings, engine: object) -> None:
        pass

    CliRunner().invoke(command, list(args), obj=Settings(verbose=2), catch_exceptions=False)
    return made[0]


def test_the_value_of_a_setting_may_have_an_equals_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    assert given(monkeypatch, "--conf", "k=v=w", "--conf", "l=")["conf"] == {"k": "v=w", "l": ""}
    with pytest.raises(UsageError, match="--conf 'k' must look like KEY=VALUE"):
        given(monkeypatch, "--conf", "k")


@pytest.mark.parametrize(
    ("args", "send"), [(["--send-credentials"], True), (["--no-send-credentials"], False), ([], None)]
)
def test_the_wish_about_credentials_is_kept(
    args: list[str], send: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert given(monkeypatch, *args) == {
        "wanted": "auto", "master": None, "conf": {}, "send_credentials": send, "app": "command", "verbose": True,
    }  # fmt: skip


@pytest.mark.weed
@pytest.mark.parametrize(
    ("given_options", "error", "said"),
    [
        (
            ["--master", "spark://127.0.0.1:1"],
            L0gcError,
            r"no Spark master takes connections at spark://127\.0\.0\.1:1 ",
        ),
        (
            ["--master", "sc://host/;token=secret"],
            UsageError,
            r"^a Spark Connect server cannot run l0gc's jobs \(--master sc://…\): name the cluster itself, or use --engine",
        ),
        (["--conf", "spark.remote=sc://host"], UsageError, "^a Spark Connect server cannot run l0gc's jobs"),
        (
            ["--conf", "spark.pyspark.python=/nowhere/python"],
            UsageError,
            "Python /nowhere/python does not exist on this machine",
        ),
    ],
)
def test_what_is_not_there_is_reported_before_spark_is_started(
    store: S3Store, given_options: list[str], error: type[L0gcError], said: str
) -> None:
    l0gc("init", "--create-bucket", "--shards", "4")
    with pytest.raises(error, match=said):
        l0gc("compute-watermark", "--engine", "spark", *given_options)
