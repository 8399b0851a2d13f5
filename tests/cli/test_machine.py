"""Unusual machines: a user without a name or a home, and a stdout of another encoding."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from l0gc.cli.main import main
from l0gc.cli.topic import _schema_text
from l0gc.errors import L0gcError, UsageError
from l0gc.settings import FileSettings, default_file, load_settings
from l0gc.spark.master import has_user
from l0gc.spark.session import get_session
from l0gc.storage.access import _descriptions
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from tests.support.cli import BIN, founded, l0gc

NOBODY = 54321
"""A user who is not in /etc/passwd, as OpenShift chooses them."""
as_nobody = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="only root can become another user"
)


def nameless(
    *args: str, caps: str = "+dac_override,+dac_read_search", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command as a user without a name or a home, who may read what root may."""
    change = ["setpriv", f"--reuid={NOBODY}", "--clear-groups", f"--inh-caps={caps}", f"--ambient-caps={caps}"]
    kept = {k: v for k, v in os.environ.items() if k not in {"HOME", "XDG_CONFIG_HOME", "USER", "LOGNAME"}}
    return subprocess.run(
        [*change, *args], env=kept | environment, capture_output=True, text=True, check=False, timeout=120
    )


@as_nobody
@pytest.mark.weed
@pytest.mark.thorough
@pytest.mark.slow
def test_a_user_without_a_name_and_a_home_runs_commands(store: S3Store, tmp_path: Path) -> None:
    founded()
    (tmp_path / "records").write_text("one\n")
    for command in (
        ["upload", "events", str(tmp_path / "records")],
        ["gc", "--housekeep-barrier", "--engine", "local"],
        ["pause", "--why", "a test"],
        ["resume"],
        ["config", "show"],
        ["doctor"],
    ):
        ended = nameless(*BIN, *command)
        assert (ended.returncode, "unexpected" in ended.stderr) == (0, False), ended.stderr
    spark = nameless(*BIN, "verify", "--engine", "spark")
    assert (spark.returncode, spark.stderr.count("\n")) == (1, 1)
    assert f"Spark needs a name for the user {NOBODY}, but /etc/passwd has none" in spark.stderr


@as_nobody
@pytest.mark.weed
@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("threads", [8, 3])
def test_a_user_who_may_start_few_threads_runs_commands(store: S3Store, tmp_path: Path, threads: int) -> None:
    founded()
    (tmp_path / "records").write_text("one\n")
    for command in (
        ["upload", "events", str(tmp_path / "records")],
        ["gc", "--housekeep-barrier", "--engine", "local"],
        ["read", "events"],
        ["verify", "--engine", "local"],
        ["doctor"],
    ):
        ended = nameless("prlimit", f"--nproc={threads}", *BIN, *command, RUST_BACKTRACE="0")
        assert (ended.returncode, "unexpected" in ended.stderr) == (0, False), ended.stderr


def test_spark_is_not_started_for_a_user_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_user()
    monkeypatch.setattr("os.geteuid", lambda: NOBODY)
    assert not has_user()
    with pytest.raises(L0gcError, match="--engine local does the work"):
        get_session("x")


@as_nobody
def test_an_unreadable_default_settings_file_is_ignored(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    (secret / "l0gc").mkdir(parents=True)
    (secret / "l0gc/config.toml").write_text("nonsense")
    secret.chmod(0o700)
    child = os.fork()  # everything is imported by then, since only root may be able to read the interpreter
    if child == 0:
        code = 1
        try:
            os.environ["XDG_CONFIG_HOME"] = str(secret)
            os.setuid(NOBODY)
            code = 0 if load_settings(None) == FileSettings() and "secret" in str(default_file()) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@as_nobody
def test_a_home_that_the_user_may_not_enter_is_ignored(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    S3Store(StoreConfig("warm-up", region="eu-west-1")).client  # imports what the child needs  # noqa: B018
    home.chmod(0o700)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.environ["HOME"] = str(home)
            os.setuid(NOBODY)
            _descriptions.cache_clear()
            code = 0 if S3Store(StoreConfig("bucket", region="eu-west-1")).client.meta.region_name == "eu-west-1" else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_variable_that_nothing_reads_stops_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SSH_KEY", "-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----\n")
    assert StoreConfig.from_url("s3://bucket").bucket == "bucket"
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token\n")
    with pytest.raises(UsageError, match="AWS_SESSION_TOKEN ends with a newline"):
        StoreConfig.from_url("s3://bucket")


def test_a_byte_order_mark_is_not_part_of_a_text(tmp_path: Path) -> None:
    settings, schema = tmp_path / "l0gc.toml", tmp_path / "schema.json"
    settings.write_text('url = "s3://bucket/p"\n', encoding="utf-8-sig")
    assert load_settings(str(settings)).values == {"url": "s3://bucket/p"}
    schema.write_text("{}", encoding="utf-8-sig")
    with schema.open("rb") as file:
        assert _schema_text(file) == "{}"


def printed(encoding: str, *args: str) -> tuple[int, str]:
    """Run a command here, with a stdout of that encoding."""
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    with mock.patch.object(sys, "argv", ["l0gc", *args]), contextlib.redirect_stdout(out):
        with pytest.raises(SystemExit) as ended:
            main()
        out.flush()
    return int(ended.value.code or 0), out.buffer.getvalue().decode(encoding)


@pytest.mark.weed
@pytest.mark.parametrize("encoding", ["latin-1", "cp1251"])
def test_what_stdout_cannot_encode_is_replaced_and_ends_nothing(store: S3Store, encoding: str) -> None:
    founded()
    why = "résumé 20 € 😀"
    l0gc("pause", "--why", why)
    code, status = printed(encoding, "status", "--json")
    assert (code, json.loads(status)["paused"]["why"]) == (0, why)
    code, resumed = printed(encoding, "resume")
    assert (code, "\\ud83d\\ude00" in resumed) == (0, True)
    assert l0gc("status")["paused"] is None
