"""Shell completion, through the protocol that shells use and in a real bash; and what is suggested for a misspelt word."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from l0gc.cli.main import COMMANDS, cli
from tests.support.cli import BIN, l0gc, l0gc_process


def completed(line: str) -> list[str]:
    """What bash is offered at the end of `line`."""
    asked = {
        "_L0GC_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    ended = subprocess.run(BIN, env={**os.environ, **asked}, capture_output=True, text=True, check=True)
    assert ended.stderr == ""
    return ended.stdout.split()


def test_commands_are_completed_with_or_without_a_beginning() -> None:
    assert completed("l0gc ") == [f"plain,{name}" for name in COMMANDS]
    assert completed("l0gc co") == ["plain,compute-watermark", "plain,config", "plain,completion"]
    assert completed("l0gc topic cr") == ["plain,create"]
    assert completed("l0gc no-such-command --") == ["plain,--version", "plain,--help"]


def test_options_and_their_values_are_completed() -> None:
    assert completed("l0gc sweep --max-") == ["plain,--max-objects", "plain,--max-rate", "plain,--max-delete-ratio"]
    assert completed("l0gc topic create events --part") == ["plain,--partitions"]
    assert completed("l0gc sweep --engine l") == ["plain,local"]
    assert completed("l0gc completion z") == ["plain,zsh"]


def test_file_names_are_left_to_the_shell() -> None:
    assert completed("l0gc upload events da") == ["file,da"]
    assert completed("l0gc status --config /etc/l") == ["file,/etc/l"]


def test_completing_a_command_imports_no_other() -> None:
    code = (
        "import sys; from l0gc.cli.main import cli; from click.shell_completion import BashComplete as B\n"
        "B(cli, {}, 'l0gc', '_L0GC_COMPLETE').get_completions([], '')\n"
        "print([m for m in sys.modules if m.startswith('l0gc.cli.')])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "['l0gc.cli.exit_codes', 'l0gc.cli.logs', 'l0gc.cli.main']"


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_the_script_works_in_a_real_bash(tmp_path: Path) -> None:
    program = tmp_path / "l0gc"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(BIN)} "$@"\n')
    program.chmod(0o755)
    script = (
        "source <(l0gc completion bash); complete -p l0gc\n"
        "COMP_WORDS=(l0gc swe); COMP_CWORD=1; _l0gc_completion l0gc; echo ${COMPREPLY[@]}"
    )
    path = f"{tmp_path}:{os.environ['PATH']}"
    ended = subprocess.run(
        ["bash", "-c", script], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=True
    )
    assert ended.stderr == ""
    assert ended.stdout.splitlines()[0].endswith("_l0gc_completion l0gc")
    assert ended.stdout.splitlines()[1] == "sweep"


@pytest.mark.parametrize(
    ("shell", "begins"), [("bash", "_l0gc_completion"), ("zsh", "#compdef l0gc"), ("fish", "func")]
)
def test_each_shell_has_its_script(shell: str, begins: str) -> None:
    printed = l0gc("completion", shell)
    assert printed["shell"] == shell
    assert printed["script"].startswith(begins)


def test_a_misspelt_command_option_or_choice_is_answered_with_the_nearest() -> None:
    for args, hint in (
        (["swep"], "did you mean 'sweep'?"),
        (["sweep", "--dryrun"], "Did you mean '--dry-run'?"),
        (["sweep", "--max-object", "3"], "--max-objects"),
        (["topic", "crate"], "create"),
        (["completion", "bsh"], "'bash'"),
    ):
        with pytest.raises(click.UsageError) as caught:
            cli.main(args, prog_name="l0gc", standalone_mode=False)
        assert hint in caught.value.format_message()


def test_the_version_is_told() -> None:
    assert l0gc_process("--version").stdout.startswith(b"l0gc, version ")
