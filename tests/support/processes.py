"""Processes of this machine (Linux): what a command has started, and left; who started whom; who holds a connection.

What a command starts inherits a mark in its environment, whatever else it changes.
"""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
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


def parents() -> dict[int, int]:
    """The parent of each process that runs now."""
    found = {}
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit():
                found[int(folder.name)] = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
    return found


def family(pid: int) -> list[int]:
    """A process and all that it has started, parents first."""
    found = [pid]
    known = parents()
    for one in found:
        found += [child for child, parent in known.items() if parent == one]
    return found


def holder_of(port: int, server: int) -> int:
    """The process that holds the connection from one port of 127.0.0.1 to another."""
    ends = [f"0100007F:{number:04X}" for number in (port, server)]
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    (inode,) = (row[9] for row in rows if row[1:3] == ends)
    for pid in parents():
        with suppress(OSError):
            if any(str(fd.readlink()) == f"socket:[{inode}]" for fd in Path(f"/proc/{pid}/fd").iterdir()):
                return pid
    raise AssertionError(f"nobody holds the connection from port {port} to port {server}")
