"""Start Spark's Java so that it ends with l0gc, however l0gc ends.

Java ends when its stdin is closed, and only this process has the other end of that pipe. Therefore even SIGKILL, which
cannot be handled, also ends Java. pyspark's own start breaks this in three ways, so this module starts Java as pyspark
does, but without these faults:

- If Ctrl-C arrives during the start, pyspark loses track of the process and removes the folder in which Java reports
  its port. Java fails before it reads its stdin, and its other threads keep it running for ever. This module knows the
  process from the start, and ends it.
- Ctrl-C reaches all processes in a terminal's foreground group, including the scripts that start Java. In this module,
  they have a separate session, and only l0gc decides.
- Java inherits l0gc's outputs, so a pipe does not end before Java does. In this module, it gets at most stderr, with
  `-vv`.

On a normal exit Java has time to remove its temporary folders.

Java starts Python with this interpreter, which imports the installed pyspark. Spark puts a zip of pyspark first on the
path of every Python that it starts: three to look up, create and plan data sources, and one for the work. A zip
contains no compiled code, so each of them would compile pyspark again, which takes half a second of CPU time.
"""

from __future__ import annotations

import atexit
import functools
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pyspark
from pyspark import SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

from l0gc.errors import UsageError
from l0gc.runtime import temporary_folder

GRACE_S: Final = 5.0
"""How long Java may take to end on its own before it is killed; less than a command that a signal stops may take."""

PYTHON: Final = "spark.pyspark.python"
_WORKERS_S: Final = 4.0
"""How long Java's Python workers may take to end once they are killed."""
_LOOK_EVERY_S: Final = 0.05
_LAST_LINES: Final = 3
_LAST_CHARACTERS: Final = 500
_PORT, _SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"
_SIGNALS: Final = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
_SCRIPT: Final = """\
#!/bin/sh
rest=
IFS=:
set -f
for entry in $PYTHONPATH; do
  case $entry in
    {home}/*.zip) ;;
    *) rest=${{rest:+$rest:}}$entry ;;
  esac
done
PYTHONPATH=$rest exec {python} "$@"
"""
_java: list[subprocess.Popen[bytes]] = []
_folders: Final = ExitStack()
"""The folders to remove when this process ends."""
atexit.register(_folders.close)


def own_folder(purpose: str) -> Path:
    """Return a new folder, removed at exit, to which only this user can write, so that other users cannot choose what
    Spark runs.
    """
    return _folders.enter_context(temporary_folder(purpose))


@functools.cache
def without_zips() -> str:
    """Return a program that replaces this interpreter and skips the zips inside the installed pyspark.

    The code stays the same. The program is removed when this process ends. If pyspark itself is in a zip, or programs
    in the temporary folder may not run, return this interpreter.
    """
    home = Path(pyspark.__file__).parent
    if not home.is_dir() or os.statvfs(tempfile.gettempdir()).f_flag & os.ST_NOEXEC:
        return sys.executable
    script = own_folder("python") / "python"
    script.write_text(_SCRIPT.format(home=shlex.quote(str(home)), python=shlex.quote(sys.executable)))
    script.chmod(0o700)
    return str(script)


def start_java(settings: Mapping[str, str], python: str, *, verbose: bool) -> None:
    """Start Java for this process, unless another session or spark-submit has started it.

    l0gc does not end the Java of spark-submit.

    Args:
        python: the interpreter that plans data sources.

    Raises:
        UsageError: Java ended at once.
        OSError: Java could not be started, or a folder for it could not be created.
    """
    if SparkContext._gateway is not None or _PORT in os.environ:
        return
    folder = own_folder("java")
    connection, work = folder / "connection", folder / "work"
    work.mkdir()
    words = folder / "words"
    with words.open("wb") as file, signals_later():
        out = sys.stderr.fileno() if verbose else file.fileno()
        process = subprocess.Popen(
            [
                str(Path(_find_spark_home()) / "bin" / "spark-submit"),
                *(option for key, value in settings.items() for option in ("--conf", f"{key}={value}")),
                *shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")),
            ],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
            env={
                **os.environ,
                "PYSPARK_PYTHON": python,
                "SPARK_CONNECT_MODE": "0",
                "_PYSPARK_DRIVER_CONN_INFO_PATH": str(connection),
                "TMPDIR": str(work),  # the place of the workers' files, which killed workers cannot remove
            },
            start_new_session=True,
        )
        if not _java:
            atexit.register(end_java)
        _java.append(process)
    try:
        _connect(process, connection, words)
    except BaseException:
        end_java()
        raise


def _connect(process: subprocess.Popen[bytes], connection: Path, words: Path) -> None:
    """Wait until Java reports its port, and connect pyspark to it, as under spark-submit. `words` is the file with
    Java's output.
    """
    while not connection.is_file():
        if process.poll() is not None:
            lines = [" ".join(line.split()) for line in words.read_text(errors="replace").splitlines() if line.strip()]
            causes = [line for line in lines if not line.startswith(("at ", "..."))]
            last = "; ".join(causes[-_LAST_LINES:]) or "it wrote nothing"
            raise UsageError(f"Spark could not be started: its Java ended at once: {last[:_LAST_CHARACTERS]}")
        time.sleep(_LOOK_EVERY_S)
    with connection.open("rb") as said:
        os.environ[_PORT] = str(int.from_bytes(said.read(4)))
        os.environ[_SECRET] = said.read(int.from_bytes(said.read(4))).decode()
    try:
        SparkContext._ensure_initialized()
    finally:
        del os.environ[_PORT], os.environ[_SECRET]


def end_java() -> None:
    """End the Java that this process started, if any, with all its children. Running work is interrupted."""
    if not _java:
        return
    context, process = SparkContext._active_spark_context, _java[0]
    if context is not None and context._accumulatorServer is not None:
        # It would print each broken connection, although Java's end is expected.
        context._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
    for number in (signal.SIGTERM, signal.SIGKILL):  # Java's scripts ignore the end of their stdin
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
            break
    _end_workers(process.pid)
    _java.clear()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None


def end_java_at_once() -> None:
    """Kill Java with its workers, and remove its folders, even while another thread is working."""
    for process in _java:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        _end_workers(process.pid)
    _folders.close()


def _end_workers(session: int) -> None:
    """Kill the Python workers of a Java that has ended, since they may detect that late. Without /proc, this does
    nothing.
    """
    until, left = time.monotonic() + _WORKERS_S, True
    while left and time.monotonic() < until:
        left = False
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                state, _, _, of = stat.read_bytes().rpartition(b")")[2].split()[:4]
                if int(of) == session and state != b"Z":
                    left = True
                    os.kill(int(stat.parent.name), signal.SIGKILL)
        time.sleep(_LOOK_EVERY_S if left else 0)


@contextmanager
def signals_later() -> Iterator[None]:
    """Postpone signals until the block has ended. A second signal kills this process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python handles signals only in the main thread
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
