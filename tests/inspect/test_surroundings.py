"""An error names each variable or folder that would stop Spark, before Java starts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from l0gc.errors import UsageError
from l0gc.inspect import doctor
from l0gc.inspect.surroundings import check_python, check_surroundings


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAVA_HOME", "SPARK_HOME", "SPARK_LOCAL_DIRS", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)


def spark_of(folder: Path, jar: str) -> str:
    """Create a folder like that of this Spark version; return its path."""
    for name in ("bin/spark-submit", f"jars/spark-core_2.13-{jar}.jar"):
        (folder / name).parent.mkdir()
        (folder / name).touch()
    return str(folder)


def a_file(folder: Path) -> str:
    (folder / "file").touch()
    return str(folder / "file")


WRONG: dict[str, tuple[str, Callable[[Path], str], str]] = {
    "java": ("JAVA_HOME", str, "has no bin/java: correct it, or unset it"),
    "spark missing": ("SPARK_HOME", lambda p: str(p / "none"), "has no bin/spark-submit: unset SPARK_HOME"),
    "spark empty": ("SPARK_HOME", lambda p: "", "is '', which has no bin/spark-submit"),
    "spark 3.5": ("SPARK_HOME", lambda p: spark_of(p, "3.5.1"), "of Spark 3.5.1, and the pyspark package is"),
    "dirs": ("SPARK_LOCAL_DIRS", lambda p: f"{p},{a_file(p)}/below", "where Spark cannot write"),
}


@pytest.mark.parametrize(("name", "value", "says"), WRONG.values(), ids=WRONG)
def test_what_stops_spark_is_named_by_sessions_and_doctor(
    name: str, value: Callable[[Path], str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value(tmp_path))
    with pytest.raises(UsageError, match=f"{name} .*{says}"):
        check_surroundings()
    (check,) = doctor.spark()
    assert (check.status, says in check.text) == (doctor.WARNING, True)


def test_a_deleted_working_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(UsageError, match="the working folder was deleted"):
        check_surroundings()
    monkeypatch.chdir(tmp_path)


def test_good_surroundings_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_surroundings()
    monkeypatch.setenv("SPARK_HOME", spark_of(tmp_path, version("pyspark")))
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path}/a/b,{tmp_path}")
    check_surroundings()
    check_python(sys.executable)


def test_a_python_without_l0gc_is_named(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')  # without site-packages
    python.chmod(0o700)
    with pytest.raises(UsageError, match=f"{python} .*cannot import l0gc .ModuleNotFoundError: No module named 'l0gc'"):
        check_python(str(python))
