"""The doctor's checks of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from l0gc.inspect.doctor import checkup
from l0gc.inspect.doctor.checkup import OK, WARNING


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.2" 2022-01-18', 17),
        ('java version "1.8.0_292"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("no such thing", None),
    ],
)
def test_javas_version_is_read_in_its_old_and_new_forms(text: str, version: int | None) -> None:
    assert checkup.java_version(text) == version


def a_java(folder: Path, text: str) -> None:
    (folder / "bin").mkdir()
    java = folder / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    java.chmod(0o755)


@pytest.mark.parametrize(
    ("text", "status"), [('openjdk version "17.0.2"', OK), ('java version "1.8.0"', WARNING), ("nonsense", WARNING)]
)
def test_an_old_java_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, status: str) -> None:
    a_java(tmp_path, text)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (check,) = checkup.java()
    assert check.status == status


def test_without_java_the_commands_that_need_it_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (check,) = checkup.java()
    assert check.status == WARNING
    assert "reconcile" in check.text
    assert "JAVA_HOME" in check.remedy


def test_spark_and_the_versions_are_reported() -> None:
    (spark,) = checkup.spark()
    (versions,) = checkup.versions()
    assert spark.status == versions.status == OK
    assert versions.text.startswith("l0gc ")
