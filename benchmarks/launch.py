"""Run a program and write down what it used: wall time, CPU time and peak memory, as the kernel counted them.

Run as a script: `python -I -S launch.py RESULT_FILE TIMEOUT_SECONDS PROGRAM [ARGUMENT...]`.

It is a separate, small process for two reasons. The kernel counts a parent's peak memory as the child's, so a large
parent would hide the peak of a small program. And Spark's JVM and its Python workers outlive the program that started
them: this process adopts them (on Linux), waits for them and counts their CPU time, too.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
LINGER_SECONDS = 20.0
"""How many seconds the processes that a program leaves running get to end before they are killed."""


def main() -> int:
    """Run the program; return its exit code, or 124 if it took too long."""
    result, timeout, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    started = time.monotonic()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    late = threading.Event()

    def end() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(float(timeout), end)
    timer.start()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - started
    timer.cancel()
    process.returncode = code = 124 if late.is_set() else os.waitstatus_to_exitcode(status)
    cpu = usage.ru_utime + usage.ru_stime + _reap_orphans()
    unit = 1 if sys.platform == "darwin" else 1024
    Path(result).write_text(json.dumps({"wall": wall, "cpu": cpu, "rss": usage.ru_maxrss * unit, "code": code}))
    return code if code >= 0 else 128 - code


def _reap_orphans() -> float:
    """Wait for the processes that the program left running; return their CPU time."""
    cpu = 0.0
    deadline = time.monotonic() + LINGER_SECONDS
    while True:
        try:
            pid, _, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return cpu
        if pid:
            cpu += usage.ru_utime + usage.ru_stime
        elif time.monotonic() > deadline:
            _kill_children()
        else:
            time.sleep(0.02)


def _kill_children() -> None:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if parent == os.getpid():
            os.kill(int(stat.parent.name), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
