"""`import l0gc.spark` is cheap: a program that only registers the format must not wait for unused modules."""

from __future__ import annotations

import subprocess
import sys
from unittest import mock

import pytest

import l0gc.spark
from l0gc.api.engine import Engine
from l0gc.errors import UsageError


def test_importing_l0gc_spark_imports_nothing_heavy() -> None:
    code = "import sys, l0gc.spark; print([m for m in ('pyspark', 'numpy', 'pyarrow', 'boto3') if m in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"
    assert l0gc.spark.__all__ == ["own_errors", "pinned", "register"]


def test_a_client_of_spark_connect_registers_the_format_and_sends_nothing() -> None:
    kind = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session", "dataSource": mock.Mock()})
    spark = kind()
    for wanted in ({"send_credentials": True}, {"profile": "p"}):
        with pytest.raises(UsageError, match="Spark Connect cannot send credentials"):
            l0gc.spark.register(spark, **wanted)
    assert not spark.dataSource.register.called
    l0gc.spark.register(spark)
    assert [c.args[0].name() for c in spark.dataSource.register.call_args_list] == ["l0gc"]


def test_l0gcs_own_jobs_refuse_a_client_of_spark_connect() -> None:
    kind = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})
    with pytest.raises(
        UsageError, match=r"^a Spark Connect server cannot run l0gc's jobs: pass a session of a master, or"
    ):
        Engine.of(kind())
