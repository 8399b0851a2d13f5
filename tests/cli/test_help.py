"""`l0gc help COMMAND` is `l0gc COMMAND --help`."""

from __future__ import annotations

import os
import subprocess
import sys

import click
import pytest

import l0gc as library
from l0gc.cli.main import COMMANDS, load
from l0gc.cli.main import GROUPS as GROUPS_OF_HELP
from l0gc.errors import UsageError
from tests.support.cli import ended_here, l0gc

GROUPS = ["", *(name for name in COMMANDS if isinstance(load(name), click.Group))]


def test_help_says_what_the_option_says() -> None:
    for name in ("", "sweep", "topic", "topic create"):
        said, expected = (ended_here(*words).stdout for words in (("help", *name.split()), (*name.split(), "--help")))
        assert said.decode().splitlines() == expected.decode().splitlines()
    for name in ("sweep", "topic", "topic create"):
        assert l0gc("help", *name.split())["command"] == name


def test_help_of_what_is_no_command_gets_a_sentence() -> None:
    with pytest.raises(click.UsageError, match="did you mean 'sweep'"):
        l0gc("help", "swep")
    with pytest.raises(click.UsageError) as caught:
        l0gc("help", "topic", "crate")
    assert "create" in caught.value.format_message()
    with pytest.raises(UsageError, match="sweep has no subcommands, so none called 'fast'"):
        l0gc("help", "sweep", "fast")


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_alone_prints_its_help(group: str) -> None:
    alone, asked = ended_here(*group.split()), ended_here(*group.split(), "--help")
    assert (alone.code, alone.stdout, alone.stderr) == (0, asked.stdout, "")
    assert (b"\nCommands:\n" if group else b"\nRecords:\n") in alone.stdout


def test_the_first_thing_that_is_typed_in_a_terminal_prints_the_help() -> None:
    import pty

    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-m", "l0gc"])
    said = b""
    try:
        while piece := os.read(terminal, 65536):
            said += piece
    except OSError:
        pass  # the terminal is closed
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    lines = said.decode().splitlines()
    assert os.waitstatus_to_exitcode(status) == 0
    assert lines[0] == "Usage: l0gc [OPTIONS] COMMAND [ARGS]..."
    assert "Records:" in lines
    assert "\\n" not in said.decode()


def test_each_command_is_in_one_group_of_the_help() -> None:
    assert {c.group for c in COMMANDS.values()} == set(GROUPS_OF_HELP)
    shown = ended_here("--help").stdout.decode().splitlines()
    assert [line.split()[0] for line in shown if line.startswith("  ") and line.split()[0] in COMMANDS] == [
        name for group in GROUPS_OF_HELP for name, c in COMMANDS.items() if c.group == group
    ]


def test_the_module_is_the_command() -> None:
    said = subprocess.run([sys.executable, "-m", "l0gc", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout == f"l0gc, version {library.__version__}\n"


def test_the_library_shows_what_it_has() -> None:
    assert {"open", "Cluster", "errors", "__version__"} <= set(dir(library))
    with library.open("s3://bucket/some") as cluster:
        assert repr(cluster) == "<l0gc.Cluster s3://bucket/some/>"
