"""Clock and randomness, which are passed in wherever they are used, so that a run can be replayed from a seed; memory
settings and temporary folders.

The local clock does not affect deletion: the age of an object and the time of a log entry come from the store's clock
(hazard 16). The local clock only bounds waits and caches; a wrong value costs time, not data.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import gc
import getpass
import os
import random
import shutil
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

import msgspec

_M_ARENA_MAX, _M_MMAP_THRESHOLD = -8, -3
_MMAP_BYTES: Final = 128 << 10
_GC_THRESHOLDS: Final = (700, 10, 10)
"""The thresholds of Python up to 3.12."""
SLICE_S: Final = 0.25
"""The length of the slices into which waits are cut, so that a stop takes effect."""
_NEW_S: Final = 60.0
_STEADY: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux's clock that counts suspended time; the monotonic clock of macOS counts it already."""


class Clock(Protocol):
    """The clock that l0gc uses."""

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary start, including suspended time. The value never decreases."""

    def now_ms(self) -> int:
        """Return the wall-clock time in milliseconds since 1970 (UTC), for record timestamps and for comparison with
        the store's clock.
        """

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        return time.clock_gettime(_STEADY)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Runtime(msgspec.Struct, frozen=True):
    """The clock and the source of randomness of one process (or of one simulated actor)."""

    clock: Clock = msgspec.field(default_factory=SystemClock)
    random: random.Random = msgspec.field(default_factory=random.SystemRandom)

    def new_id(self) -> str:
        """Return a random UUID (version 4) in its canonical text form."""
        return str(uuid.UUID(int=self.random.getrandbits(128), version=4))

    def pause(self, seconds: float, stop: threading.Event) -> None:
        """Wait this long, or until `stop` is set."""
        due = self.clock.monotonic() + seconds
        while not stop.is_set() and (left := due - self.clock.monotonic()) > 0:
            self.clock.sleep(min(left, SLICE_S))

    def jitter(self, seconds: float) -> float:
        """Return a random part of `seconds`, from zero to all of it ("full jitter"), so that clients do not retry in
        step.
        """
        return self.random.random() * seconds


def user_at_host() -> str:
    """Return the user and the host of this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without a name for its user
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def use_one_arena() -> None:
    """Make glibc's malloc keep freed memory in one arena instead of one for each thread, which saves 130 MiB in a read
    of 220 MiB.

    Call this before other threads begin, and only in a process that belongs to l0gc, since the setting holds for the
    whole process.
    """
    _set_malloc(_M_ARENA_MAX, 1)


def give_memory_back() -> None:
    """Make Python and glibc's malloc keep hardly any memory, which slows down a process that uses large blocks.

    Commands rarely collect cycles while they start, although the store's replies leave a tenth of a MiB of cycles for a
    thousand keys. By default, malloc raises its threshold for separate mappings each time a large block is freed. Call
    this only in a process that belongs to l0gc, since the settings hold for the whole process.
    """
    if not gc.get_freeze_count():  # once: imported modules stay, and scanning them took 20 ms
        gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    _set_malloc(_M_MMAP_THRESHOLD, _MMAP_BYTES)


def _set_malloc(setting: int, value: int) -> None:
    with suppress(OSError, AttributeError):  # other C libraries lack this call
        ctypes.CDLL(None).mallopt(setting, value)


@contextmanager
def temporary_folder(purpose: str) -> Iterator[Path]:
    """Create a folder that only this user can write to, and remove it after the block.

    The first call in a process also removes folders left by killed processes. Each folder has a lock, which ends with
    its process and thus shows whether the process is alive.
    """
    prefix = f"l0gc-{purpose}-"
    _remove_left(prefix)
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as name:
        number = os.open(name, os.O_RDONLY)
        try:
            with suppress(OSError):  # a file system without locks, on which no other process gets one either
                fcntl.flock(number, fcntl.LOCK_EX)
            yield Path(name)
        finally:
            os.close(number)


@functools.cache
def _remove_left(prefix: str) -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        if _is_left(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_left(folder: Path) -> bool:
    """Return whether the process that created this folder is gone. A new folder may not be locked yet."""
    try:
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        stat = os.fstat(number)
        if stat.st_uid != os.getuid() or stat.st_mtime > time.time() - _NEW_S:
            return False
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(number)
