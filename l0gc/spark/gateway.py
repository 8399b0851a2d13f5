"""Spark's Java, on a leash: nothing that l0gc starts may outlive it, whatever ends it.

Java ends when its stdin does, and the other end of that pipe is this process's alone; so even SIGKILL, which nobody can
answer, takes Java along. pyspark's own start breaks that leash, which is why it is done here, the way pyspark does it:

- It forgets the process that it starts if Ctrl-C arrives just then, and removes the folder in which Java says where it
  listens. Java fails at that before it looks at its stdin, and its other threads keep it for ever. Here the process is
  known from its first moment, and ended.
- Ctrl-C reaches all of a terminal's foreground group, the scripts that start Java among them. Here they have a session of
  their own, and only l0gc decides.
- Java inherits what l0gc prints to, and a pipe does not end before Java does. Here it gets stderr at most, with `-vv`.

An end in good order leaves Java time to remove its temporary folders.
"""

from __future__ import annotations

import atexit
import os
import shlex
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

from l0gc.spark.interpreter import own_folder

GRACE_S: Final = 10.0
"""How long Java may take to end on its own before it is killed."""

_WORKERS_S: Final = 2.0
"""So long Java's Python workers may take to end after it."""
_LOOK_EVERY_S: Final = 0.05
_SAID: Final = struct.Struct(">ii")
"""How the file begins in which Java says where it listens: the port, and how long the secret is that follows."""
_PORT, _SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"
_SIGNALS: Final = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
_java: list[subprocess.Popen[bytes]] = []


def start_java(settings: Mapping[str, str], *, verbose: bool) -> None:
    """Start Java for this process, unless there is one: another session's, or spark-submit's, which is not ours to end.

    Raises:
        PySparkRuntimeError: it ended at once.
        OSError: it, or a folder for it, could not be begun.
    """
    if SparkContext._gateway is not None or _PORT in os.environ:
        return
    folder = own_folder("java")
    place, work = folder / "connection", folder / "work"
    work.mkdir()
    out = sys.stderr.fileno() if verbose else subprocess.DEVNULL
    with signals_later():
        process = subprocess.Popen(
            [*_command(settings)],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
            env={
                **os.environ,
                "SPARK_CONNECT_MODE": "0",
                "_PYSPARK_DRIVER_CONN_INFO_PATH": str(place),
                "TMPDIR": str(work),  # where the workers' files are; they are killed, and cannot remove them
            },
            start_new_session=True,
        )
        if not _java:
            atexit.register(end_java)
        _java.append(process)
    try:
        _connect(process, place)
    except BaseException:
        _terminate()  # it may not be so far that it heeds its stdin
        raise


def _command(settings: Mapping[str, str]) -> Iterator[str]:
    yield str(Path(_find_spark_home()) / "bin" / "spark-submit")
    for key, value in settings.items():
        yield from ("--conf", f"{key}={value}")
    yield from shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))


def _connect(process: subprocess.Popen[bytes], place: Path) -> None:
    """Wait until Java says where it listens, and have pyspark talk to it, as it does below spark-submit."""
    while not place.is_file():
        if process.poll() is not None:
            raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})
        time.sleep(_LOOK_EVERY_S)
    said = place.read_bytes()
    port, length = _SAID.unpack_from(said)
    os.environ[_PORT], os.environ[_SECRET] = str(port), said[_SAID.size :][:length].decode()
    try:
        SparkContext._ensure_initialized()
    finally:
        del os.environ[_PORT], os.environ[_SECRET]


def end_java() -> None:
    """End the Java that this process started, if there is one, with all that it started; what ran there is cut off."""
    if not _java:
        return
    context = SparkContext._active_spark_context
    if context is not None and context._accumulatorServer is not None:
        context._accumulatorServer.handle_error = _heed_nothing  # type: ignore[method-assign]
    stdin = _java[0].stdin
    if stdin is not None:
        with suppress(OSError):
            stdin.close()
    _wait()


def _heed_nothing(request: Any, client_address: Any) -> None:
    """How pyspark's server of accumulators handles a connection that breaks: Java's end is expected."""


def _terminate() -> None:
    """End Java, or the scripts that are about to start it."""
    if _java:
        with suppress(ProcessLookupError):
            os.killpg(_java[0].pid, signal.SIGTERM)
        _wait()


def _wait() -> None:
    process = _java[0]
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    _end_workers(process.pid)
    _java.clear()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None


def _end_workers(session: int) -> None:
    """Wait for the Python workers of a Java that has ended, and kill those that do not notice soon."""
    until = time.monotonic() + _WORKERS_S
    while pids := _members(session):
        late = time.monotonic() - until
        if late > _WORKERS_S:
            return
        for pid in pids if late > 0 else ():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_LOOK_EVERY_S)


def _members(session: int) -> list[int]:
    """The processes of a session; none where there is no /proc to say so."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, of = stat.read_bytes().rpartition(b")")[2].split()[:4]
            if int(of) == session and state != b"Z":
                found.append(int(stat.parent.name))
    return found


@contextmanager
def signals_later() -> Iterator[None]:
    """What a signal is answered with waits until the block has ended; a second one kills this process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python answers signals in the main thread only
        return
    heard: list[int] = []

    def hear(number: int, frame: Any) -> None:
        if heard:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        heard.append(number)

    before = {n: signal.signal(n, hear) for n in _SIGNALS if callable(signal.getsignal(n))}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if heard:
            signal.raise_signal(heard[0])
