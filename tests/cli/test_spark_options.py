"""The options of commands on Spark, as they reach the session."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from l0gc.cli.spark_options import pairs, spark_options
from l0gc.errors import L0gcError, UsageError
from l0gc.spark.master import MasterUnreachableError
from l0gc.storage.s3 import S3Store
from tests.support.cli import l0gc


def given(*args: str) -> dict[str, str]:
    """The settings that a command with these options asks for."""
    got: list[tuple[str, ...]] = []

    @click.command()
    @spark_options
    def command(master: str | None, conf: tuple[str, ...]) -> None:
        got.append(conf)

    CliRunner().invoke(command, list(args), catch_exceptions=False)
    return pairs(got[0])


def test_the_value_of_a_setting_may_have_an_equals_sign() -> None:
    assert given("--conf", "k=v=w") == {"k": "v=w"}


@pytest.mark.parametrize(("flag", "value"), [("--send-credentials", "true"), ("--no-send-credentials", "false")])
def test_the_wish_about_credentials_is_kept(flag: str, value: str) -> None:
    assert given(flag) == {"spark.l0gc.sendCredentials": value}
    assert given() == {}


@pytest.mark.weed
@pytest.mark.parametrize(
    ("given_options", "error", "said"),
    [
        (
            ["--master", "spark://127.0.0.1:1"],
            MasterUnreachableError,
            r"no Spark master takes connections at spark://127\.0\.0\.1:1 ",
        ),
        (["--conf", "spark.pyspark.python=/nowhere/python"], UsageError, "Python /nowhere/python is not here"),
    ],
)
def test_what_is_not_there_is_reported_before_spark_is_started(
    store: S3Store, given_options: list[str], error: type[L0gcError], said: str
) -> None:
    l0gc("init", "--create-bucket", "--shards", "4")
    with pytest.raises(error, match=said):
        l0gc("compute-watermark", "--engine", "spark", *given_options)
