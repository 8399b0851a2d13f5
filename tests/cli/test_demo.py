"""`l0gc demo` shows M computed on Spark, and fails if Spark's answer is not that of one process."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from l0gc.cli.demo import _Demo
from l0gc.errors import L0gcError
from l0gc.storage.s3 import S3Store
from tests.support.cli import documented_fields, founded, l0gc, l0gc_process


@pytest.mark.weed
@pytest.mark.spark
def test_m_and_the_histogram_of_spark_are_those_of_one_process(
    store: S3Store, one_spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    founded()
    (tmp_path / "records").write_text("one\ntwo\n")
    for _ in range(2):
        l0gc("upload", "events", str(tmp_path / "records"))
        l0gc("epoch", "advance")
    here = l0gc("compute-watermark", "--engine", "local")
    ran = _Demo(quiet=False).compute_on_spark(here)
    assert ran is not None
    assert ran["version"] == one_spark.version
    assert ran["tasks"] >= 2
    out = capsys.readouterr().out
    assert f"Spark {one_spark.version}, local[2" in out
    assert "the same objects and bytes at each of 2 epochs" in out

    with pytest.raises(L0gcError, match=f"M is {here['watermark']} as computed on Spark, and 7 as"):
        _Demo(quiet=True).compute_on_spark(here | {"watermark": 7})
    other = copy.deepcopy(here)
    other["listing"]["epochs"][0]["bytes"] += 1
    with pytest.raises(L0gcError, match=r"what the bucket holds is .* as computed on Spark"):
        _Demo(quiet=True).compute_on_spark(other)


def test_without_java_one_sentence_says_how_spark_would(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert _Demo(quiet=False).compute_on_spark({}) is None
    (line,) = capsys.readouterr().out.split("\n")[1:-1]
    assert line.startswith(
        "Spark would compute the same M (l0gc compute-watermark --engine spark), but Java 17 or newer"
    )
    monkeypatch.setattr("l0gc.inspect.doctor.java", lambda: iter([_found()]))
    monkeypatch.setattr("l0gc.spark.master.has_user", lambda: False)
    assert _Demo(quiet=False).compute_on_spark({}) is None
    assert "this process's user has no name" in capsys.readouterr().out


def _found() -> object:
    from l0gc.inspect.doctor import ok

    return ok("java", "17")


@pytest.mark.weed
@pytest.mark.spark
@pytest.mark.thorough
def test_the_demo_runs_to_its_end_with_a_spark_of_its_own() -> None:
    ended = l0gc_process("demo", "--files", "2", "--limit", "500", "--json")
    assert ended.code == 0, ended.stderr
    assert set(ended.data) == documented_fields()["demo"]
    assert ended.data["spark"]["master"] == "local[2]"
    assert ended.data["spark"]["tasks"] >= 2
