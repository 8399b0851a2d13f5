"""Provide the Spark session in which the jobs run: an existing one, that of spark-submit, one on a cluster, or a quiet
local one.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pyspark
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import SparkSession

from l0gc.errors import L0gcError, UsageError
from l0gc.events import event
from l0gc.inspect.surroundings import check_python, check_surroundings
from l0gc.spark.gateway import PYTHON, start_java, without_zips
from l0gc.spark.master import (
    CONNECT_CANNOT,
    STANDALONE,
    check_master,
    has_java,
    has_user,
    is_local,
)

_log: Final = logging.getLogger(__name__)

_SHORT_JOBS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The Java options of a driver that lasts a few seconds on a few cores. Less compilation saves a third of the CPU time.
Executors of a cluster are not affected; with a local master, `--conf` overrides the options for long jobs.
"""

_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_OF_CLUSTERS: Final = {
    "spark.eventLog.enabled": "false",  # its folder may not exist on this machine
    "spark.kryo.registrationRequired": "false",  # the classes of l0gc's jobs are not registered
    "spark.task.cpus": "1",  # a task that needs more cores than there are would not start
}
"""Settings of a job on a local master. The settings in spark-defaults.conf are for a cluster, and would break the job.
"""


def get_session(
    app: str, *, master: str | None = None, conf: Mapping[str, str] | None = None, verbose: bool = False
) -> SparkSession:
    """Return a session for `app`.

    Args:
        master: the cluster; by default, that of spark-submit, or else all local cores.
        conf: further Spark settings.
        verbose: let Spark log warnings to stderr.

    Raises:
        L0gcError: Java 17 or newer was not found, this process's user has no name, or the standalone master does not
            answer.
        UsageError: the session cannot be started with these settings, or on this machine.
    """
    if not has_java():
        raise L0gcError(
            "Spark needs Java 17 or newer, but found none: install it (apt-get install openjdk-17-jre-headless) "
            "or set JAVA_HOME; --engine local does the work in this process, without Java"
        )
    if not has_user():
        raise L0gcError(
            f"Spark needs a name for the user {os.geteuid()}, but /etc/passwd has none: add a line there (for example "
            f"l0gc:x:{os.geteuid()}:0::/tmp:/bin/sh); --engine local does the work in this process, without it"
        )
    check_surroundings()
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"l0gc {app}")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.log.level": "WARN" if verbose else "OFF",
        **_submitted(),
        **(conf or {}),
    }
    if master is not None:
        settings["spark.master"] = master
    settings.setdefault("spark.master", "local[*]")
    check_master(settings.pop("spark.remote", settings["spark.master"]))
    local = is_local(settings["spark.master"])
    chosen = settings.get(PYTHON) or os.environ.get("PYSPARK_PYTHON")
    python = chosen or (without_zips() if local else sys.executable)
    if shutil.which(python) is None:
        raise UsageError(
            f"the executors' Python {python} does not exist on this machine, where Spark plans with it: put one at "
            f"that path, too"
        )
    if local and chosen and chosen != sys.executable:
        check_python(chosen)
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings = {**_OF_CLUSTERS, **settings}
        settings[_JAVA_OPTIONS] = f"{_SHORT_JOBS} {settings.get(_JAVA_OPTIONS, '')}".strip()
    try:
        with _own_ctrl_c(), _no_word_of_javas_end(), _without_connect(settings["spark.master"], said=master is None):
            is_new = SparkContext._active_spark_context is None
            start_java(settings, python, verbose=verbose)
            for key, value in settings.items():
                builder = builder.config(key, value)
            spark = builder.getOrCreate()
            if is_new:
                spark.sparkContext.pythonExec = python
            return spark
    except Py4JJavaError as e:
        said = str(e.java_exception.getMessage()).partition("\n")[0]
        if settings["spark.master"].startswith(STANDALONE):  # Spark has tried to connect for a minute
            raise L0gcError(
                f"no master of Spark {pyspark.__version__} answers at {settings['spark.master']} ({said}); "
                "run it with -vv for Java's output"
            ) from e
        raise UsageError(f"Spark could not be started: {said} (run it with -vv for Java's output)") from e
    except (PySparkException, PySparkRuntimeError, OSError) as e:
        raise UsageError(f"Spark could not be started: {e} (run it with -vv for Java's output)") from e


def stop(spark: SparkSession) -> None:
    """Stop the session. If its Java has ended, do nothing."""
    if SparkContext._gateway is None:
        return
    with suppress(Py4JError, ConnectionError), _no_word_of_javas_end():
        spark.stop()


def _submitted() -> dict[str, str]:
    """Return the settings passed to spark-submit, which take precedence over l0gc's own."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    SparkContext._ensure_initialized()  # connects to the Java that spark-submit started, which has the settings
    given = dict(SparkConf().getAll())
    if given.get("spark.app.name") == Path(sys.argv[0]).name:  # Spark's default, which the user has not chosen
        del given["spark.app.name"]
    return given


@contextmanager
def _no_word_of_javas_end() -> Iterator[None]:
    """Suppress pyspark's warning when it stops a session whose Java has ended, or when a signal ends Java during its
    start.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Unable to cleanly shutdown Spark JVM", RuntimeWarning)
        yield


@contextmanager
def _without_connect(master: str, *, said: bool) -> Iterator[None]:
    """Hide from pyspark and Java that the user's own programs use Spark Connect. Log a warning if `said`."""
    hidden = {name: os.environ.pop(name) for name in ("SPARK_REMOTE", "SPARK_API_MODE") if name in os.environ}
    if "SPARK_REMOTE" in hidden and said:
        _log.warning(
            "%s, so SPARK_REMOTE is ignored and they run on %s", CONNECT_CANNOT, master, extra=event("no_connect")
        )
    try:
        yield
    finally:
        os.environ.update(hidden)


@contextmanager
def _own_ctrl_c() -> Iterator[None]:
    """Restore Ctrl-C's handler afterwards, since Spark's handler sends requests to Java in the middle of an answer."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, heard)
