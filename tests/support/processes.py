"""Which processes a command has started, and left: they inherit a mark in its environment, whatever else they change."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Final

MARK: Final = "L0GC_TEST_MARK"
_PATIENCE_S: Final = 120.0


def new_mark() -> dict[str, str]:
    """The environment that marks a command, and all that it starts."""
    return {MARK: uuid.uuid4().hex}


def marked(mark: dict[str, str]) -> list[str]:
    """The command lines of the processes with this mark that run now; a process that has ended has none (Linux)."""
    found = []
    sought = f"{MARK}={mark[MARK]}".encode()
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and sought in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:  # it has ended meanwhile, or is not ours
            continue
    return [line for line in found if line]


def left_of(mark: dict[str, str]) -> list[str]:
    """What runs of it still after a while: what a kill set free needs a moment to end."""
    until = time.monotonic() + _PATIENCE_S
    while (found := marked(mark)) and time.monotonic() < until:
        time.sleep(0.05)
    return found
