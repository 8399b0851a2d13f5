"""`l0gc help COMMAND` prints the same as `l0gc COMMAND --help`."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

import l0gc as library
from l0gc.cli.help import pages
from l0gc.cli.main import COMMANDS, cli, load
from l0gc.cli.main import GROUPS as GROUPS_OF_HELP
from l0gc.errors import UsageError
from tests.cli.test_docs import LEAVES
from tests.support.cli import ended_here, l0gc

ROOT = Path(__file__).parents[2]
GROUPS = ["", *(name for name in COMMANDS if isinstance(load(name), click.Group))]


def test_help_says_what_the_option_says() -> None:
    for name in ("", "sweep", "topic", "topic create"):
        said, expected = (ended_here(*words).stdout for words in (("help", *name.split()), (*name.split(), "--help")))
        assert said.decode().splitlines() == expected.decode().splitlines()
    for name in ("sweep", "topic", "topic create"):
        assert l0gc("help", *name.split())["command"] == name


def test_a_page_of_the_documents_is_shown_by_its_name() -> None:
    for name, path in pages().items():
        assert name not in COMMANDS
        assert l0gc("help", name)["help"] == path.read_text()
    assert "operations" in pages()
    assert b"# " in ended_here("help", "operations").stdout
    with pytest.raises(click.UsageError, match="neither a command nor a page; did you mean 'operations'"):
        l0gc("help", "operation")
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert (wheel["only-include"], wheel["sources"]) == (["l0gc", "docs"], {"docs": "l0gc/docs"})


def test_help_of_what_is_no_command_gets_a_sentence() -> None:
    with pytest.raises(click.UsageError, match="did you mean 'sweep'"):
        l0gc("help", "swep")
    with pytest.raises(click.UsageError) as caught:
        l0gc("help", "topic", "crate")
    assert "create" in caught.value.format_message()
    with pytest.raises(UsageError, match="sweep has no subcommand 'fast'; l0gc sweep --help lists its options"):
        l0gc("help", "sweep", "fast")


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_alone_prints_its_help(group: str) -> None:
    alone, asked = ended_here(*group.split()), ended_here(*group.split(), "--help")
    assert (alone.code, alone.stdout, alone.stderr) == (0, asked.stdout, "")
    assert (b"\nCommands:\n" if group else b"\nEvery day:\n") in alone.stdout


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
    assert "Every day:" in lines
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


@pytest.mark.parametrize(("name", "command"), [("", cli), *LEAVES.items()])
def test_help_fits_80_columns_and_has_the_global_options_last(name: str, command: click.Command) -> None:
    context = click.Context(command, info_name=f"l0gc {name}".rstrip(), terminal_width=80)
    lines = command.get_help(context).splitlines()
    assert [line for line in lines if len(line) > 80] == []
    ours = lines.index("Global options:")
    assert [line.split()[0] for line in lines[ours:] if line.startswith("  -")][:2] == ["--url", "--endpoint-url"]
    assert "  --url" not in "\n".join(lines[:ours])
    assert ("  --epoch-interval" in "\n".join(lines)) == (
        name in {"upload", "housekeep", "gc", "status", "explain", "report", "doctor", "config show"}
    )


def test_gcs_help_has_the_everyday_options_and_gc_takes_the_others_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shown = ended_here("gc", "--help").stdout.decode()
    own = shown[: shown.index("Global options:")]
    assert own.count("\n  --") <= 16
    assert "--sweep-grace" in own
    assert "  --merge-fan-in" not in own
    assert ended_here("gc", "--merge-fan-in", "1").stderr.endswith("1 is not in the range x>=2.\n")
    (tmp_path / "l0gc.toml").write_text("[merge]\nfan-in = 1\n")
    assert "fan-in = 1 in [merge]" in ended_here("gc", "--config", str(tmp_path / "l0gc.toml")).stderr


def test_global_options_after_the_command_override_those_before_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "l0gc.toml").write_text('region = "file-1"\n[contexts.prod]\nurl = "s3://prod/p"\nprofile = "prod"\n')
    monkeypatch.setenv("L0GC_URL", "s3://environment/p")
    file = ["--config", str(tmp_path / "l0gc.toml")]

    def shown(*words: str) -> dict[str, object]:
        return {s["name"]: s["value"] for s in l0gc(*words)["settings"]}

    before = shown(
        "-v", *file, "--url", "s3://before/p", "--profile", "before", "config", "show", "--profile", "behind"
    )
    assert [before[n] for n in ("url", "profile", "region", "verbose")] == ["s3://before/p", "behind", "file-1", 1]
    assert shown(*file, "config", "show")["url"] == "s3://environment/p"
    for words in (["--context", "prod", "config", "show", *file], [*file, "config", "show", "--context", "prod"]):
        assert shown(*words)["url"] == "s3://prod/p"
    assert shown(*file, "--context", "prod", "--url", "s3://before/p", "config", "show")["url"] == "s3://before/p"
    assert {s["source"] for s in l0gc("--region", "r", "config", "show")["settings"] if s["name"] == "region"} == {
        "option"
    }


def test_the_version_is_a_command_too() -> None:
    assert l0gc("version") == {"version": library.__version__}
    assert ended_here("version").stdout == ended_here("--version").stdout
