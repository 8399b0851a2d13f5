"""A terminal that a script types into: bash on a pseudo-terminal of so many columns, and what stays on its screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
PROMPT = re.compile(r"\x01(\d+)\x02.*\Z", re.DOTALL)
_PROMPT = {"PS1": "", "PS2": "", "PROMPT_COMMAND": r"printf '\1%s\2' $?", "VIRTUAL_ENV_DISABLE_PROMPT": "1"}
PATIENCE_SECONDS = 600.0
"""A first `pip install` is the slowest that is typed here."""


class Terminal:
    """Bash, typed into line by line. Its prompt is a mark with the exit code of the command before it."""

    def __init__(self, columns: int, env: Mapping[str, str], folder: Path) -> None:
        self._ours, its = pty.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        modes = termios.tcgetattr(its)
        modes[3] &= ~termios.ECHO
        termios.tcsetattr(its, termios.TCSANOW, modes)
        self._bash = subprocess.Popen(
            ["/bin/bash", "--norc", "--noprofile", "--noediting", "-i"],
            stdin=its,
            stdout=its,
            stderr=its,
            env={"TERM": "xterm-256color", **env, **_PROMPT},
            cwd=folder,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - one system call, and no lock
        )
        os.close(its)
        self._read(PROMPT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._ours)  # a hang-up, for whatever still runs here
        try:
            self._bash.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._bash.pid, signal.SIGKILL)
            self._bash.wait()

    def used_s(self) -> float:
        """Seconds of a processor that the commands which have ended took."""
        fields = Path(f"/proc/{self._bash.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")

    def type(self, line: str) -> None:
        """Type a line and Enter."""
        os.write(self._ours, line.encode() + b"\n")

    def interrupt(self) -> str:
        """Ctrl-C, and what is shown until the next prompt."""
        os.write(self._ours, b"\x03")
        return PROMPT.sub("", self._read(PROMPT))

    def run(self, line: str, *, code: int | None = 0) -> str:
        """Type a line; everything that the terminal is sent until the next prompt. `code` is None where any will do."""
        self.type(line)
        sent = self._read(PROMPT)
        found = PROMPT.search(sent)
        assert found is not None
        if code is not None and int(found[1]) != code:
            raise SystemExit(f"{line} ended with {found[1]} and not {code}:\n{sent}")
        return sent[: found.start()]

    def wait_for(self, text: str) -> str:
        """What a command that runs on has printed, once a line of it ends with `text`."""
        return self._read(re.compile(re.escape(text) + "\n"))

    def _read(self, until: re.Pattern[str]) -> str:
        sent, deadline = b"", time.monotonic() + PATIENCE_SECONDS
        while True:
            text = sent.decode(errors="replace").replace("\r\n", "\n")
            if until.search(text):
                return text
            ready, _, _ = select.select([self._ours], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                raise SystemExit(f"nothing more came within {PATIENCE_SECONDS:g} s of:\n{text}")
            sent += os.read(self._ours, 65536)


def screen(output: str) -> str:
    """What stays on the screen, with its colours: what a progress line wrote and took back is gone."""
    lines: list[list[str]] = [[]]
    row, column, colour = 0, 0, ""
    for piece in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[\s\S]", output):
        if piece == "\n":
            row, column = row + 1, 0
            if row == len(lines):
                lines.append([])
        elif piece == "\r":
            column = 0
        elif piece.startswith("\x1b["):
            if piece.endswith("m"):
                colour += piece
            elif piece.endswith("A"):
                row = max(0, row - int(piece[2:-1] or 1))
            elif piece.endswith("K"):
                lines[row], colour = [], ""
        else:
            lines[row] += [" "] * (column + 1 - len(lines[row]))
            lines[row][column] = colour + piece
            column, colour = column + 1, ""
    return "\n".join("".join(line).rstrip() for line in lines).strip("\n")


def shown(output: str) -> str:
    """The same without colours."""
    return ESCAPES.sub("", screen(output))
