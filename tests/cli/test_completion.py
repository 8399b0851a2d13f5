"""Shell completion, through the protocol that shells use and in a real bash; and suggestions for a misspelt word."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete

from l0gc.cli import options
from l0gc.cli.main import COMMANDS, cli
from l0gc.collect.record import write_summary
from l0gc.operations import Sweep, written
from l0gc.storage.s3 import S3Store
from tests.inspect.report.support import summary
from tests.support.cli import BIN, l0gc


def completed(line: str) -> list[str]:
    """Return what bash is offered at the end of `line`."""
    request = {
        "_L0GC_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    ended = subprocess.run(BIN, env={**os.environ, **request}, capture_output=True, text=True, check=True)
    assert ended.stderr == ""
    return ended.stdout.split()


def test_commands_are_completed_with_or_without_a_beginning() -> None:
    assert completed("l0gc ") == [f"plain,{name}" for name in COMMANDS]
    assert completed("l0gc co") == ["plain,compute-watermark", "plain,config", "plain,completion"]
    assert completed("l0gc topic cr") == ["plain,create"]
    assert completed("l0gc no-such-command --con") == ["plain,--config", "plain,--context"]
    assert completed("l0gc no-such-command --ve") == ["plain,--verbose", "plain,--version"]


def test_options_and_their_values_are_completed() -> None:
    limits = [written(Sweep, name) for name in Sweep.__struct_fields__ if name.startswith("max_")]
    assert completed("l0gc sweep --max-") == [f"plain,--{name}" for name in limits]
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
        "print(*(m for m in sys.modules if m.startswith('l0gc.cli.') or m in ('boto3', 'pyarrow', 'numpy', 'rich')))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    shared = {"globals", "logs", "main", "signals", "terminal", "units"}
    assert set(ended.stdout.split()) <= {f"l0gc.cli.{name}" for name in shared}


@pytest.mark.weed
def test_names_in_the_bucket_are_completed(store: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test completes in its own process, with a deadline that a slow machine also meets."""
    monkeypatch.setattr(options, "_DEADLINE_S", 120.0)

    def offered(line: str) -> list[str]:
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        return BashComplete(cli, {}, "l0gc", "_L0GC_COMPLETE").complete().split()

    l0gc("init", "--create-bucket", "--shards", "4")
    for name in ("events", "orders", "orders-old"):
        l0gc("topic", "create", name, "--partitions", "1")
    lines = tmp_path / "in"
    lines.write_text("1\n")
    l0gc("upload", "events", str(lines), "--producer", "nightly")
    run = summary(1_700_000_000_000, 1)
    write_summary(store, run)
    assert offered("l0gc upload or") == ["plain,orders", "plain,orders-old"]
    for line in ("topic describe ", "topic delete ", "read ", "reconcile "):
        assert offered(f"l0gc {line}ev") == ["plain,events"], line
    assert offered("l0gc runs show 2") == offered("l0gc undelete --run 2") == [f"plain,{run.run_id}"]
    assert offered("l0gc producer describe ") == offered("l0gc upload events x --producer ") == ["plain,nightly"]
    url = os.environ["L0GC_URL"]
    monkeypatch.delenv("L0GC_URL")
    assert offered("l0gc topic describe o") == []
    assert offered(f"l0gc topic describe --url {url} o") == ["plain,orders", "plain,orders-old"]
    file = tmp_path / "config.toml"
    file.write_text(f'[contexts.here]\nurl = "{url}"\n')
    assert offered(f"l0gc --context here topic describe --config {file} o") == ["plain,orders", "plain,orders-old"]
    assert offered(f"l0gc topic describe --config {file} --context h") == ["plain,here"]


def test_a_bucket_that_does_not_answer_completes_nothing_and_says_nothing() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        started = f"l0gc topic describe --url s3://b/p --endpoint-url {endpoint} "
        assert completed(started) == []
    assert completed("l0gc topic describe --url nonsense ") == []


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
