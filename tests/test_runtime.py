"""How a process of l0gc's own configures Python and the C library."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

from l0gc.runtime import _is_left

GIVING = (
    "import gc; usual = gc.get_threshold()[:2]; gc.set_threshold(10_000, 30); "
    "from l0gc.runtime import give_memory_back; give_memory_back(); print(*gc.get_threshold()[:2], *usual)"
)


def test_a_process_collects_cycles_as_often_as_python_does() -> None:
    """The store's replies leave some cycles: they took 40 MiB in a sweep of 300,000 keys."""
    done = subprocess.run([sys.executable, "-c", GIVING], check=True, capture_output=True, text=True)
    young, middle, usual_young, usual_middle = map(int, done.stdout.split())
    assert young <= usual_young
    assert middle <= usual_middle


AT_START = (
    "import gc; from l0gc.cli import entry; from l0gc.runtime import give_memory_back; gc.set_threshold(entry._AT_START); "
    "gc.callbacks.append(entry._look_more_often); {}; many = [[] for _ in range(250_000)]; "
    "print(*gc.get_threshold()[:2], len(gc.callbacks), gc.get_freeze_count() > 0)"
)


def test_a_command_that_makes_many_objects_looks_for_cycles_from_then_on() -> None:
    """A frequency that the command has set before stays, and Python does not search what was imported by then."""
    for said, expected in (("pass", "10000 30 0 False"), ("give_memory_back()", "700 10 0 True")):
        command = [sys.executable, "-c", AT_START.format(said)]
        assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() == expected


ARENAS = (
    "import ctypes, threading; from l0gc.runtime import use_one_arena; {}; made = []; "
    "threads = [threading.Thread(target=lambda: made.append(bytearray(100_000))) for _ in range(16)]; "
    "[t.start() for t in threads]; [t.join() for t in threads]; ctypes.CDLL(None).malloc_stats()"
)


def test_the_threads_of_a_command_share_one_arena() -> None:
    command = [sys.executable, "-c", ARENAS.format("use_one_arena()")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stderr.count("Arena ") == 1


def test_only_old_folders_of_ended_processes_are_removed(tmp_path: Path) -> None:
    """A new folder may not be locked yet."""
    number = os.open(tmp_path, os.O_RDONLY)
    try:
        for age_s, is_locked, left in ((0, False, False), (3600, True, False), (3600, False, True)):
            os.utime(tmp_path, (time.time() - age_s,) * 2)
            fcntl.flock(number, fcntl.LOCK_EX if is_locked else fcntl.LOCK_UN)
            assert _is_left(tmp_path) is left
    finally:
        os.close(number)
