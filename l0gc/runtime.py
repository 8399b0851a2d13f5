"""Clock and randomness, passed in wherever they are used, so that a run can be replayed from a seed.

Nothing here decides anything about deletion: the age of an object and the time of a log entry come from the store's
clock (hazard 16). The local clock only bounds waits and caches, where a wrong value costs time and not data.
"""

from __future__ import annotations

import ctypes
import getpass
import random
import socket
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

_M_ARENA_MAX, _M_MMAP_THRESHOLD = -8, -3
_MMAP_BYTES: Final = 128 << 10


class Clock(Protocol):
    """What l0gc asks of a clock."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970 (UTC); for the timestamps of records, and to be compared with the store's."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@dataclass(frozen=True, slots=True)
class Runtime:
    """The clock and the source of randomness of one process (or of one simulated actor)."""

    clock: Clock = field(default_factory=SystemClock)
    random: random.Random = field(default_factory=random.SystemRandom)

    def new_id(self) -> str:
        """A random UUID (version 4) in its canonical text form."""
        return str(uuid.UUID(int=self.random.getrandbits(128), version=4))

    def jitter(self, seconds: float) -> float:
        """A random share of `seconds`, between none and all of it ("full jitter"): retries never march in step."""
        return self.random.random() * seconds


def user_at_host() -> str:
    """The user and the host of this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without a name for its user
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def give_memory_back() -> None:
    """Have glibc's malloc keep less than it would: an arena for each of a dozen threads, and what pages came in.

    Its threshold for separate mappings grows with each large block that is freed, unless it is set. It is for a process of
    l0gc's own: it holds for all that the process does.
    """
    with suppress(OSError, AttributeError):  # another C library has no such call
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_ARENA_MAX, 1)
        libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
