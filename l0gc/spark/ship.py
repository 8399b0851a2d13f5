"""Prepare a cluster's executors for l0gc: send the package to them, and check that they have its requirements.

The package is sent as a zip of its source, which is first on the path of each Python worker, so executors always run
the driver's version. Libraries with machine code cannot be sent in this way. A small job checks the first workers, and
one sentence names missing packages before any work begins.
"""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import os
import re
import sys
import threading
import zipfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import l0gc
from l0gc.errors import L0gcError
from l0gc.events import event
from l0gc.spark.executors import asked_and_offered
from l0gc.spark.gateway import PYTHON, own_folder, without_zips
from l0gc.spark.handles import for_executors
from l0gc.spark.jobs import JOB_ERRORS, Jobs
from l0gc.spark.master import is_local
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store

_log: Final = logging.getLogger(__name__)

MODULES: Final = {
    "arro3-core": "arro3.core",
    "boto3": "boto3",
    "botocore": "botocore",
    "crc32c": "crc32c",
    "msgspec": "msgspec",
    "numpy": "numpy",
    "obstore": "obstore",
    "pandas": "pandas",
    "pyarrow": "pyarrow",
    "zstandard": "zstandard",
}
"""The packages that executors need, except pyspark, which Spark provides, and the module of each package."""

PATIENCE_S: Final = 300.0
"""How long a cluster may take to start the first task."""
SILENCE_S: Final = 20.0
"""How long there may be no executor before a warning explains the wait."""

_ENTRY_POINTS: Final = ("l0gc.spark.workers", "l0gc.streamlog.level_one.reconcile", "l0gc.collect.sweep")
_ZIP_TIME: Final = (1980, 1, 1, 0, 0, 0)
_REMEDY: Final = (
    "install l0gc's requirements there, or name a Python that has them with --conf spark.pyspark.python=PATH"
)
_VERSIONS: Final = re.compile(r"different version: (\d+\.\d+) than that in driver: (\d+\.\d+)")
_NO_MODULE: Final = re.compile(r"No module named '([\w.]+)'")
_NO_PROGRAM: Final = re.compile(r'Cannot run program "([^"]+)"')
_REASON: Final = re.compile(r"(?:[\w.]+\.)?\w+(?:Error|Exception): .+")


class WorkerCheck(NamedTuple):
    """The packages of one Python worker, with their versions or None, and the error of importing l0gc."""

    versions: Mapping[str, str | None]
    problem: str = ""


def make_ready(spark: SparkSession, config: StoreConfig, send_credentials: bool | None) -> None:
    """Send the package and credentials to the executors, and check that they can do l0gc's work.

    With a local master, nothing is sent, since its workers use this interpreter, unless another one was chosen.

    Args:
        config: the configuration with the profile whose credentials are sent.
        send_credentials: see `for_executors`.

    Raises:
        L0gcError: the executors cannot do the work; the message gives the reason.
        AccessDeniedError, StoreError: see `for_executors`.
    """
    context = spark.sparkContext
    if is_local(context.master or ""):
        if "PYSPARK_PYTHON" not in os.environ and context.getConf().get(PYTHON) is None:
            context.pythonExec = without_zips()
        return
    context.environment.update(for_executors(S3Store(config), send_credentials))
    package = package_zip()
    if package is not None:
        context.addPyFile(str(package))
    driver = {name: importlib.metadata.version(name) for name in MODULES}
    problem = unfit(driver, _looks(spark))
    if problem:
        raise L0gcError(problem)


@functools.cache
def package_zip() -> Path | None:
    """Return the installed l0gc as a zip, which is removed when this process ends. The zip is identical for identical
    sources.

    It is always the same file, since Spark refuses a different one with that name in the same session. Return None if
    l0gc itself was imported from a zip, which `spark-submit --py-files` has already sent.
    """
    root = Path(l0gc.__file__).parent
    if not root.is_dir():
        return None
    path = own_folder("package") / f"l0gc-{l0gc.__version__}.zip"
    with zipfile.ZipFile(path, "w") as package:
        for file in sorted(root.rglob("*.py")):
            entry = zipfile.ZipInfo(file.relative_to(root.parent).as_posix(), _ZIP_TIME)
            package.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)
    return path


def unfit(driver: Mapping[str, str], looks: Iterable[WorkerCheck]) -> str:
    """Return a sentence about the difference that keeps these workers from doing the driver's work; empty if they can
    do it.
    """
    for look in looks:
        missing = sorted(name for name in driver if look.versions.get(name) is None)
        if missing:
            return f"the Spark executors' Python lacks {', '.join(missing)}: {_REMEDY}"
        other = sorted(n for n in driver if _major(driver[n]) != _major(look.versions[n] or ""))
        if other:
            others = ", ".join(f"{n} {look.versions[n]} (here {driver[n]})" for n in other)
            return f"the Spark executors' Python has {others}: {_REMEDY}"
        if look.problem:
            return f"the Spark executors cannot import l0gc ({look.problem}): {_REMEDY}"
    return ""


def _major(version: str) -> str:
    return version.partition(".")[0]


def _looks(spark: SparkSession) -> list[WorkerCheck]:
    """Return the packages of the workers that take a few tasks; usually, all executors of a cluster have the same
    Python.
    """
    sc = spark.sparkContext
    slots = sc.defaultParallelism
    jobs, ended, late = Jobs(sc), threading.Event(), threading.Event()

    def has_begun() -> bool:
        return any(s.numActiveTasks or s.numCompletedTasks for s in jobs.active_stages())

    def watch() -> None:
        """Warn if there is no executor, and give up later."""
        with suppress(*JOB_ERRORS, AttributeError):  # if Java has gone, the job reports it
            if ended.wait(SILENCE_S) or has_begun():
                return
            text = f"the Spark cluster {sc.master} has given no executor for {SILENCE_S:g} s: {asked_and_offered(sc)}"
            _log.warning("%s", text, extra=event("no_executor", seconds=SILENCE_S))
            if ended.wait(PATIENCE_S - SILENCE_S) or has_begun():
                return
            late.set()
            jobs.cancel()

    thread = threading.Thread(target=watch, name="l0gc-executors", daemon=True)
    thread.start()
    try:
        # This runs like the jobs, so that these workers are warm for them.
        with jobs.tagged():
            looks = sc.parallelize(range(slots), slots).map(_versions_reader()).collect()
    except (PySparkException, Py4JJavaError) as e:  # errors in Python, or before Python started
        if late.is_set():
            raise L0gcError(
                f"the Spark cluster {sc.master} gave no executor within {PATIENCE_S:g} s: {asked_and_offered(sc)}"
            ) from e
        said = e.java_exception.getMessage() if isinstance(e, Py4JJavaError) else e
        raise L0gcError(why(str(said))) from e
    finally:
        ended.set()
    return [WorkerCheck(*look) for look in looks]


def _versions_reader() -> Callable[[int], tuple[Mapping[str, str | None], str]]:
    """Return a function that is pickled by value, since the worker may be unable to import this module."""
    modules, entry_points = dict(MODULES), _ENTRY_POINTS

    def look(_: int) -> tuple[Mapping[str, str | None], str]:
        import importlib
        import importlib.metadata

        versions: dict[str, str | None] = {}
        for name, module in modules.items():
            try:
                importlib.import_module(module)
                versions[name] = importlib.metadata.version(name)
            except ImportError:
                versions[name] = None
        try:
            for entry in entry_points if None not in versions.values() else ():
                importlib.import_module(entry)
        except ImportError as e:
            return versions, str(e)
        return versions, ""

    return look


def why(message: str) -> str:
    """Return why workers cannot start, as one sentence, from Spark's message."""
    if m := _VERSIONS.search(message):
        return f"the Spark executors run Python {m[1]} and the driver {m[2]}, which must be the same: {_REMEDY}"
    if m := _NO_PROGRAM.search(message):
        return (
            f"the Spark executors cannot run the Python {m[1]} (the driver's is {sys.executable}): name one that is on "
            "each of them with --conf spark.pyspark.python=PATH"
        )
    if m := _NO_MODULE.search(message):
        return f"the Spark executors' Python lacks {m[1]}: {_REMEDY}"
    reasons = _REASON.findall(message)
    reason = reasons[-1].strip() if reasons else message.splitlines()[0] if message else "Spark gave no reason"
    return f"the Spark executors cannot run Python ({reason}): {_REMEDY}"
