"""Runs the README's first session for real, and keeps what the terminal shows: in the README and in this folder.

    python docs/captures/record.py            # rewrite (make captures)
    python docs/captures/record.py --check    # exit 1 if the README says something else than the commands now do

The commands are those that stand in the README behind `$`, run in order by bash on a fresh SeaweedFS, on a pseudo-terminal
of 80 columns. What is bound to differ from run to run, ids, times, sizes of what is compressed, is taken from the README as
it is where nothing else on the line changed, so that a refresh shows in the diff only what is news.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from pathlib import Path

from l0gc.embedded.seaweedfs import SeaweedFS

ROOT = Path(__file__).parents[2]
HERE = ROOT / "docs" / "captures"
README = ROOT / "README.md"
HEADING = "## A first session"
VARIES = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"  # ids
    r"|\d{8}T\d{6}Z-[0-9a-f]{8}"  # runs
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ?"
    r"|\d+(?:\.\d+)? s\b"
    r"|[\d.]+ [KMG]iB"
    r"|http://127\.0\.0\.1:\d+"
)
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
LOOKS = {"status": "l0gc status", "doctor": "l0gc doctor", "sweep-dry-run": "l0gc sweep --dry-run"}
"""What is kept in this folder, as it is before the session's own `l0gc sweep`."""


def on_terminal(command: str, columns: int, env: dict[str, str]) -> str:
    """What a terminal of so many columns is sent, stdout and stderr."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(
        ["/bin/bash", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=its,
        stderr=its,
        env=env,
        cwd=ROOT,
        close_fds=True,
    )
    os.close(its)
    parts = []
    with contextlib.suppress(OSError), open(ours, "rb", buffering=0) as terminal:  # noqa: PTH123 - a file descriptor
        while part := terminal.read(65536):
            parts.append(part)
    if process.wait() != 0:
        raise SystemExit(f"{command} failed:\n{b''.join(parts).decode()}")
    return b"".join(parts).decode().replace("\r\n", "\n")


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


def session(text: str) -> tuple[int, int]:
    """Where the README's block begins and ends."""
    begin = text.index("```console\n", text.index(HEADING)) + len("```console\n")
    return begin, text.index("```", begin)


def commands(block: str) -> Iterator[tuple[str, bool]]:
    """Each command, and whether an empty line stands before it."""
    before = ""
    for line in block.splitlines():
        if line.startswith("$ "):
            yield line[2:], before == ""
        before = line


def flat(text: str) -> str:
    """A text without what varies, and as one line: an id or a time may be where it is folded."""
    return VARIES.sub("~", " ".join(text.split()))


def kept(old: str, new: str) -> str:
    """`new`, with a command's old output where nothing but ids, times and sizes changed in it."""

    def compared(text: str) -> str:
        return VARIES.sub("~", text.strip())

    def blocks(text: str) -> list[str]:
        return re.split(r"^(?=\$ )", text, flags=re.MULTILINE)

    known = {compared(block): block for block in blocks(old)}
    return "".join(known.get(compared(block), block) for block in blocks(new))


def record(block: str, *, looking: bool) -> tuple[str, dict[str, str]]:
    """Run the session; its text, and, if asked for, the captures by file name."""
    lines: list[str] = []
    captures: dict[str, str] = {}
    with SeaweedFS() as server, tempfile.TemporaryDirectory(prefix="l0gc-captures-") as scratch:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "L0GC_", "COLUMNS", "LINES"))}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        env = {**inherited, **server.environment(), "TERM": "xterm-256color", "PATH": path}
        for number, (command, apart) in enumerate(commands(block)):
            if number and apart:
                lines.append("")
            lines.append(f"$ {command}")
            if command.startswith("export "):
                name, _, value = command.removeprefix("export ").partition("=")
                env[name] = value
                continue
            if looking and command == "l0gc sweep":
                captures = look(env)
            output = shown(on_terminal(command.replace("/tmp/flights", scratch), 80, env))  # noqa: S108 - replaced
            if output and not command.startswith("python "):  # the names of its files say nothing
                lines.append(output)
    return "\n".join(lines) + "\n", captures


def look(env: dict[str, str]) -> dict[str, str]:
    """The captures of this moment."""
    found = {}
    for name, command in LOOKS.items():
        for columns in (80, 140):
            sent = on_terminal(command, columns, env)
            found[f"{name}-{columns}.txt"] = shown(sent) + "\n"
            if columns == 80 and "\x1b[" in screen(sent):
                found[f"{name}-{columns}.ansi"] = screen(sent) + "\n"
        dumb = on_terminal(command, 80, {**env, "TERM": "dumb"})
        found[f"{name}-dumb.txt"] = shown(dumb) + "\n"
        piped = subprocess.run(
            ["/bin/bash", "-c", command], env=env, cwd=ROOT, capture_output=True, text=True, check=True
        )
        found[f"{name}-piped.txt"] = piped.stdout
    return found


def main() -> int:
    """Do what the arguments say."""
    arguments = argparse.ArgumentParser(description="Record the README's first session, and the captures.")
    arguments.add_argument("--check", action="store_true", help="write nothing; exit 1 if the README is not true")
    check = arguments.parse_args().check
    text = README.read_text()
    begin, end = session(text)
    new, captures = record(text[begin:end], looking=not check)
    if check:
        if flat(new) == flat(text[begin:end]):
            return 0
        sys.stderr.write(f"README.md, {HEADING}: run `make captures`. The commands now say:\n{new}")
        return 1
    README.write_text(text[:begin] + kept(text[begin:end], new) + text[end:])
    for name, capture in captures.items():
        file = HERE / name
        file.write_text(kept(file.read_text(), capture) if file.exists() else capture)
    for stale in set(HERE.glob("*.txt")) | set(HERE.glob("*.ansi")):
        if stale.name not in captures:
            stale.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
