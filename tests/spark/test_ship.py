"""The package that executors are sent, and the errors of unfit executors."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from pyspark.errors import PySparkRuntimeError

from l0gc.spark.ship import MODULES, WorkerCheck, package_zip, unfit, why

ROOT = Path(__file__).parents[2]
HERE = {"boto3": "1.44.5", "obstore": "0.12.1", "pyarrow": "24.0.0"}
FIT = WorkerCheck(dict(HERE))
DRIVER_ONLY = {"click", "jinja2", "prometheus-client", "pyspark", "rich"}


def test_the_package_is_the_same_bytes_each_time_and_nothing_but_source() -> None:
    first, again = package_zip(), package_zip()
    assert again == first  # a changed one would be sent to a session again
    package_zip.cache_clear()
    second = package_zip()
    assert first is not None
    assert second is not None
    assert first != second
    assert (first.name, first.read_bytes()) == (second.name, second.read_bytes())
    names = zipfile.ZipFile(first).namelist()
    assert set(names) == {p.relative_to(ROOT).as_posix() for p in (ROOT / "l0gc").rglob("*.py")}


def test_the_package_can_be_imported_and_does_not_pack_itself_again(tmp_path: Path) -> None:
    package = package_zip()
    assert package is not None
    code = (
        f"import sys; sys.path[:] = [{str(package)!r}] + [p for p in sys.path if 'site-packages' in p or 'python3' in p]\n"
        "from l0gc.spark import ship, workers\n"
        f"assert ship.__file__.startswith({str(package)!r}), ship.__file__\n"
        "assert ship.package_zip() is None"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env={}, check=True)


def test_the_zip_goes_with_its_process() -> None:
    code = "from l0gc.spark.ship import package_zip; print(package_zip())"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    path = Path(ended.stdout.strip())
    assert path.name.startswith("l0gc-")
    assert not path.parent.exists()


def test_all_that_l0gc_requires_is_checked_but_what_the_driver_alone_needs() -> None:
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert set(MODULES) == {re.split(r"[<>=]", r)[0] for r in required} - DRIVER_ONLY


def test_workers_like_the_driver_are_fit_also_with_other_minor_versions() -> None:
    assert unfit(HERE, [FIT, WorkerCheck(HERE | {"boto3": "1.40.0"})]) == ""


@pytest.mark.parametrize(
    ("worker", "reason"),
    [
        (WorkerCheck(HERE | {"pyarrow": None, "boto3": None}), "lacks boto3, pyarrow: install"),
        (WorkerCheck(HERE | {"pyarrow": "21.0.0"}), "has pyarrow 21.0.0 (here 24.0.0): install"),
        (WorkerCheck(dict(HERE), "No module named 'l0gc'"), "cannot import l0gc (No module named 'l0gc'): install"),
    ],
)
def test_one_unfit_worker_is_enough_to_say_so(worker: WorkerCheck, reason: str) -> None:
    said = unfit(HERE, [FIT, worker])
    assert reason in said
    assert "spark.pyspark.python" in said


def test_another_python_is_reported_in_a_sentence() -> None:
    error = PySparkRuntimeError(
        errorClass="PYTHON_VERSION_MISMATCH", messageParameters={"worker_version": "3.13", "driver_version": "3.11"}
    )
    message = (
        f"Job aborted due to stage failure\nTraceback:\n  File x\npyspark.errors.PySparkRuntimeError: {error}\n\n\tat"
    )
    assert why(message).startswith("the Spark executors run Python 3.13 and the driver 3.11, which must be the same: ")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("ModuleNotFoundError: No module named 'pyarrow'\n\tat org.apache", "lacks pyarrow: "),
        ("x\nOSError: libfoo.so: no such file\n\tat org.apache", "(OSError: libfoo.so: no such file)"),
        (
            'Job aborted: Lost task 0.3 (TID 6): java.io.IOException: Cannot run program "./env/bin/python": error=2, No\n'
            "\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1143)",
            "cannot run the Python ./env/bin/python ",
        ),
        ("Job cancelled", "(Job cancelled)"),
        ("", "(Spark gave no reason)"),
    ],
)
def test_other_failures_give_their_reason(message: str, reason: str) -> None:
    assert reason in why(message)
    assert "\n" not in why(message)
