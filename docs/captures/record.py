"""Types the README's first session, the one of is-it-safe.md, and every command at two widths, and keeps what is shown.

    python docs/captures/record.py                  # rewrite the sessions and this folder (make captures)
    python docs/captures/record.py --check          # exit 1 if a session says something else than the commands now do
    python docs/captures/record.py --check --fresh  # the same, in a copy of what git knows, without variables and Java

The session is the README's own text: the lines behind `$`, in two terminals. Without `--fresh` those that install are left
out, and the l0gc that runs this is used. What the first terminal prints is typed into the second where the README says so.
Ids, times and sizes of compressed data differ from run to run. A line in which nothing else changed is kept as it was, so
that the diff of a refresh shows only real changes.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

import click  # noqa: E402 - after the path on which the others are found

from docs.captures.scenes import BELOW_THE_LADDER, FORMS, SCENES, examples  # noqa: E402
from docs.captures.terminal import Terminal, screen, shown  # noqa: E402
from l0gc.cli.main import cli  # noqa: E402

README = ROOT / "README.md"
LADDER = ROOT / "docs/first-hour/is-it-safe.md"
HEADING = "## From an empty machine to the first sweep"
INSTALLS = re.compile(r"(git|cd|python3 -m venv|source|pip) ")
CONSOLE = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXPORT = re.compile(r"export (\w+)=(.*)")
SERVES = "Ctrl-C here ends it"
"""With this `l0gc server` has said everything."""
FLIGHTS = "/tmp/flights"
WIDTHS = (80, 140)
FIRST_SWEEP = "l0gc sweep"
GOAL_SECONDS = 90
"""How long a newcomer may wait for the first sweep, once l0gc is installed. The time by the clock is printed. The limit
applies to the processor time after the installation, which another program on the machine does not change."""
JAVA = ("java", "javac")
VARIES = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"  # ids
    r"|\b[0-9a-f]{20}(?:[0-9a-f]{20})?\b"  # keys of a server that is gone
    r"|\d{8}T\d{6}Z-[0-9a-f]{8}"  # runs
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ?"
    r"|\d+(?:\.\d+)? (?:s|min)\b"
    r"|[\d.]+ [KMG]iB"
    r"|\d checkpoints?"  # due by weight, which ids change
    r"|http://127\.0\.0\.1:\d+"
)


def blocks(text: str) -> list[tuple[int, int]]:
    """Where the console blocks of the README's section begin and end."""
    start = text.index(HEADING)
    end = text.index("\n## ", start + 1)
    return [m.span(1) for m in CONSOLE.finditer(text) if start < m.start() < end]


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

    def parts(text: str) -> list[str]:
        return re.split(r"^(?=\$ )", text, flags=re.MULTILINE)

    known = {compared(part): part for part in parts(old)}
    return "".join(known.get(compared(part), part) for part in parts(new))


class Session:
    """The README's two terminals."""

    def __init__(self, folder: Path, env: Mapping[str, str], scratch: Path, *, fresh: bool) -> None:
        self._folder, self._env, self._fresh = folder, env, fresh
        self._scratch = str(scratch / "flights")
        self._exports: dict[str, str] = {}
        self._installed = time.monotonic()
        self.installing_s = 0.0
        """Seconds of a processor that the installation took."""
        self.first_sweep_s: float | None = None
        """When the first sweep had ended, from when l0gc was installed."""

    def play(self, first: str, second: str) -> tuple[str, str]:
        """What the two blocks say if they are typed."""
        with Terminal(80, self._env, self._folder) as server:
            above = self._install_and_serve(server, first)
            with Terminal(80, self._env, self._folder) as terminal:
                below = self._work(terminal, second)
            server.interrupt()
        return above, below

    def _install_and_serve(self, terminal: Terminal, block: str) -> str:
        lines: list[str] = []
        for command, apart in commands(block):
            lines += [""] * (apart and bool(lines)) + [f"$ {command}"]
            if command == "l0gc server":
                terminal.type(command)
                lines.append(shown(terminal.wait_for(SERVES)))
                self._exports = dict(EXPORT.findall(lines[-1]))
            elif self._fresh or not INSTALLS.match(command):
                lines += filter(None, [shown(terminal.run(command))])
                self._installed, self.installing_s = time.monotonic(), terminal.used_s()
        return "\n".join(lines) + "\n"

    def _work(self, terminal: Terminal, block: str) -> str:
        lines: list[str] = []
        for command, apart in commands(block):
            typed = command
            if (export := EXPORT.fullmatch(command)) and export[1] in self._exports:
                typed = f"export {export[1]}={self._exports[export[1]]}"
            lines += [""] * (apart and bool(lines)) + [f"$ {typed}"]
            if self._fresh or not INSTALLS.match(command):
                said = shown(terminal.run(typed.replace(FLIGHTS, self._scratch))).replace(self._scratch, FLIGHTS)
                lines += filter(None, [said])
            if command == FIRST_SWEEP and self.first_sweep_s is None:
                self.first_sweep_s = time.monotonic() - self._installed
        return "\n".join(lines) + "\n"


def environment() -> dict[str, str]:
    """Nothing of the user's but the way to the programs; this Python's own l0gc comes first."""
    return {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": os.environ.get("HOME", "/")}


def copy_of_the_tree(folder: Path) -> Path:
    """What a clone would hold, with what is not committed yet."""
    named = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in named.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def programs_without_java(folder: Path) -> Path:
    """A folder with the programs of a machine that has no Java."""
    folder.mkdir()
    for place in ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"):
        for program in Path(place).glob("*"):
            if program.name not in JAVA and not (folder / program.name).is_symlink():
                (folder / program.name).symlink_to(program)
    return folder


def play(text: str, *, fresh: bool) -> tuple[str, str]:
    """What the two blocks of the README's session say now."""
    (a, b), (c, d) = blocks(text)
    with tempfile.TemporaryDirectory(prefix="l0gc-session-") as scratch:
        env = environment()
        folder = ROOT
        if fresh:
            home = Path(scratch) / "home"
            home.mkdir()
            env = {"PATH": str(programs_without_java(Path(scratch) / "bin")), "HOME": str(home)}
            folder = copy_of_the_tree(Path(scratch) / "l0gc")
        session = Session(folder, env, Path(scratch), fresh=fresh)
        first, second = session.play(text[a:b], text[c:d])
    if fresh:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        busy = used.ru_utime + used.ru_stime - session.installing_s
        reached = f"{session.first_sweep_s:.0f} s" if session.first_sweep_s is not None else "never"
        sys.stderr.write(
            f"first sweep, by the clock, after the installation: {reached} (goal: {GOAL_SECONDS} s); "
            f"the session took {busy:.0f} s of a processor, and the installation {session.installing_s:.0f} s\n"
        )
        if busy > GOAL_SECONDS:
            raise SystemExit(f"that is more than {GOAL_SECONDS} s of a processor")
    first, second = kept(text[a:b], first), kept(text[c:d], second)
    for name, value in EXPORT.findall(first):
        second = re.sub(rf"^(\$ export {name}=).*", rf"\g<1>{value}", second, flags=re.MULTILINE)
    return first, second


def replaced(text: str, session: tuple[str, str]) -> str:
    """The README with another session in it."""
    (a, b), (c, d) = blocks(text)
    return text[:a] + session[0] + text[b:c] + session[1] + text[d:]


def look() -> dict[str, str]:
    """The captures by file name: every command at each width, and some in other forms."""
    found: dict[str, str] = {}
    for columns in WIDTHS:
        with tempfile.TemporaryDirectory(prefix="l0gc-captures-") as scratch:
            found |= _looked(columns, Path(scratch))
    return found


def _looked(columns: int, scratch: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    lines: list[str] = []
    with Terminal(columns, environment(), scratch) as server, Terminal(columns, environment(), scratch) as terminal:
        _serve(server, terminal)
        for scene in [*SCENES, *examples()]:
            if not exists(scene.command):
                continue
            if scene.silent:
                terminal.run(scene.command)
                continue
            lines += [f"$ {scene.command}", shown(terminal.run(scene.command, code=None)), ""]
            if columns == WIDTHS[0] and scene.command in FORMS:
                found |= _forms(FORMS[scene.command], scene.command, terminal)
        server.interrupt()
    return found | {f"commands-{columns}.txt": "\n".join(lines)}


def _serve(server: Terminal, terminal: Terminal) -> None:
    """Have a server run in one terminal, and the other one know where."""
    server.type("l0gc server")
    for name, value in EXPORT.findall(shown(server.wait_for(SERVES))):
        terminal.run(f"export {name}={value}")


def climbed(text: str) -> str:
    """The document with the ladder, its one session typed on a server anew."""
    ((a, b),) = [m.span(1) for m in CONSOLE.finditer(text)]
    lines: list[str] = []
    with tempfile.TemporaryDirectory(prefix="l0gc-ladder-") as scratch:
        env, folder = environment(), Path(scratch)
        with Terminal(WIDTHS[0], env, folder) as server, Terminal(WIDTHS[0], env, folder) as terminal:
            _serve(server, terminal)
            for command in BELOW_THE_LADDER:
                terminal.run(command)
            for command, apart in commands(text[a:b]):
                said = shown(terminal.run(command, code=None))
                lines += [""] * (apart and bool(lines)) + [f"$ {command}", *filter(None, [said])]
            server.interrupt()
    return text[:a] + kept(text[a:b], "\n".join(lines) + "\n") + text[b:]


def exists(line: str) -> bool:
    """Whether l0gc has the command that a line begins with, if it begins with one."""
    words = [w for w in line.split() if not w.startswith("-")]
    if words[0] != "l0gc" or len(words) == 1:
        return True
    command = cli.get_command(click.Context(cli), words[1])
    if not isinstance(command, click.Group):
        return command is not None
    return words[2] in command.commands


def _forms(name: str, command: str, terminal: Terminal) -> dict[str, str]:
    """A command's output with its colours, on a terminal that can do nothing, and in a pipe."""
    sent = terminal.run(command, code=None)
    found = {f"{name}.ansi": screen(sent) + "\n"} if "\x1b[" in screen(sent) else {}
    found[f"{name}-dumb.txt"] = shown(terminal.run(f"TERM=dumb {command}", code=None)) + "\n"
    found[f"{name}-piped.txt"] = shown(terminal.run(f"{command} | cat", code=None)) + "\n"
    return found


def main() -> int:
    """Do what the arguments say."""
    arguments = argparse.ArgumentParser(description="Record the README's first session, and the captures.")
    arguments.add_argument("--check", action="store_true", help="write nothing; exit 1 if a session is not true")
    arguments.add_argument("--fresh", action="store_true", help="install, too, as on an empty machine")
    arguments.add_argument("--readme-only", action="store_true", help="leave the captures of this folder as they are")
    options = arguments.parse_args()
    text = README.read_text()
    session = play(text, fresh=options.fresh)
    if options.check:
        ladder = LADDER.read_text()
        played = {README.name: (text, replaced(text, session)), LADDER.name: (ladder, climbed(ladder))}
        untrue = [name for name, (before, now) in played.items() if flat(before) != flat(now)]
        for name in untrue:
            sys.stderr.write(f"{name}: run `make captures`. Its session now is:\n")
            sys.stderr.writelines(played[name][1][m.start() : m.end()] for m in CONSOLE.finditer(played[name][1]))
        return 1 if untrue else 0
    README.write_text(replaced(README.read_text(), session))  # read again: it may have been edited since
    LADDER.write_text(climbed(LADDER.read_text()))
    if options.readme_only:
        return 0
    captures = look()
    for name, capture in captures.items():
        file = HERE / name
        file.write_text(kept(file.read_text(), capture) if file.exists() else capture)
    for stale in set(HERE.glob("*.txt")) | set(HERE.glob("*.ansi")):
        if stale.name not in captures:
            stale.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
