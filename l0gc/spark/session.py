"""The Spark session that the jobs run in: an existing one, or a quiet local one."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import SparkSession

from l0gc.errors import StoreUnfitError, UsageError
from l0gc.spark.interpreter import without_zips

_SHORT_JOBS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a driver that lives a few seconds on a few cores, compiling less is worth more than compiling well: a third of
the CPU. Executors of a cluster are not touched; with a local master, `--conf` overrides it for long jobs."""

_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_LOG4J: Final = """\
rootLogger.level = off
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
"""


class JavaMissingError(StoreUnfitError):
    """Spark's Java is not there."""

    exit_code = 1


def get_session(
    app: str, *, master: str | None = None, conf: Mapping[str, str] | None = None, verbose: bool = False
) -> SparkSession:
    """A session for `app`.

    Args:
        master: the cluster; by default what spark-submit says, else all local cores.
        conf: further Spark settings.
        verbose: let Spark log warnings to stderr.

    Raises:
        JavaMissingError: there is no Java 17 or newer.
        UsageError: the session cannot be started with these settings.
    """
    _check_java()
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"l0gc {app}")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        "spark.sql.execution.pyspark.udf.faulthandler.enabled": "false",
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 2)),
        "spark.sql.adaptive.enabled": "true",
        "spark.driver.memory": "1g",
        "spark.log.level": "WARN" if verbose else "OFF",
        **(conf or {}),
    }
    if master is not None:
        settings["spark.master"] = master
    elif "PYSPARK_GATEWAY_PORT" not in os.environ:  # which spark-submit sets; it names the master, too
        settings.setdefault("spark.master", "local[*]")
    java = [f"-Dlog4j2.configurationFile={_log4j(verbose)}", settings.get(_JAVA_OPTIONS, "")]
    local = settings.get("spark.master", "").startswith("local")
    if os.environ.get("PYSPARK_PYTHON", without_zips()) == without_zips():  # nobody else has said
        os.environ["PYSPARK_PYTHON"] = without_zips() if local else sys.executable
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        java.insert(0, _SHORT_JOBS)
    settings[_JAVA_OPTIONS] = " ".join(java).strip()
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        with _quiet_stderr(verbose):
            return builder.getOrCreate()
    except (PySparkException, PySparkRuntimeError, OSError) as e:
        raise UsageError(f"Spark could not be started: {e} (run it with -vv for what Java says)") from e


@contextmanager
def _quiet_stderr(verbose: bool) -> Iterator[None]:
    """Start the JVM with its stderr closed off: what it prints at start is no news. Errors reach us as exceptions."""
    if verbose:
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _log4j(verbose: bool) -> str:
    path = Path(tempfile.gettempdir()) / f"l0gc-log4j2-{os.getuid()}-{'warn' if verbose else 'off'}.properties"
    text = _LOG4J.replace("= off", "= warn") if verbose else _LOG4J
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    return path.as_uri()


def _check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if (home and (Path(home) / "bin" / "java").exists()) or shutil.which("java"):
        return
    raise JavaMissingError(
        "Spark needs Java 17 or newer, and there is none: install one (apt-get install openjdk-17-jre-headless) "
        "or set JAVA_HOME"
    )
