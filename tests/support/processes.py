"""Examines processes of this machine (Linux): what a command started and left behind, its children, and who holds a
connection.

A command's descendants inherit a mark in their environment, whatever else they change.
"""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

MARK: Final = "L0GC_TEST_MARK"
_PATIENCE_S: Final = 120.0


def new_mark() -> dict[str, str]:
    """Return the environment that marks a command and all its descendants."""
    return {MARK: uuid.uuid4().hex}


def marked(mark: dict[str, str]) -> list[str]:
    """Return the command lines of the running processes with this mark; an ended process has none (Linux)."""
    found = []
    sought = f"{MARK}={mark[MARK]}".encode()
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and sought in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:  # it has ended, or belongs to another user
            continue
    return [line for line in found if line]


def left_of(mark: dict[str, str]) -> list[str]:
    """Return the marked processes that still run after some time, since the children of a killed process need a moment
    to end.
    """
    until = time.monotonic() + _PATIENCE_S
    while (found := marked(mark)) and time.monotonic() < until:
        time.sleep(0.05)
    return found


def parents() -> dict[int, int]:
    """Return the parent of each running process."""
    found = {}
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit():
                found[int(folder.name)] = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
    return found


def family(pid: int) -> list[int]:
    """Return a process and all its descendants, parents first."""
    found = [pid]
    known = parents()
    for one in found:
        found += [child for child, parent in known.items() if parent == one]
    return found


def holder_of(port: int, server: int) -> int:
    """Return the process that holds the connection from one port of 127.0.0.1 to another."""
    ends = [f"0100007F:{number:04X}" for number in (port, server)]
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    (inode,) = (row[9] for row in rows if row[1:3] == ends)
    for pid in parents():
        with suppress(OSError):
            if any(str(fd.readlink()) == f"socket:[{inode}]" for fd in Path(f"/proc/{pid}/fd").iterdir()):
                return pid
    raise AssertionError(f"nobody holds the connection from port {port} to port {server}")


def modules_after(code: str) -> set[str]:
    """Return the modules that a new Python has imported once it has run `code`, which must not fail."""
    command = [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"]
    root = Path(__file__).parents[2]
    return set(subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.split())
