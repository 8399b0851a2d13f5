"""Stderr is quiet by default, has an event a line as JSON on request, and never contains a secret."""

from __future__ import annotations

import json
import logging
import os
from typing import Any

import pytest

from l0gc.cli import logs
from l0gc.cli.main import COMMANDS
from l0gc.cli.options import common_options
from l0gc.errors import UsageError
from l0gc.events import NOTE, event
from l0gc.keys import CONTROLLER_LOG
from l0gc.redaction import without_secrets
from l0gc.settings import Settings
from l0gc.storage.s3 import S3Store
from tests.support.cli import Ended, ended_here, l0gc
from tests.support.memory_store import lose_reply, memory_cluster, store_of

FIELDS = {"ts", "level", "run_id", "command", "event", "message"}


def events(ended: Ended) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in ended.stderr.splitlines()]
    assert all(row.keys() >= FIELDS for row in rows)
    return rows


@pytest.mark.weed
def test_a_command_is_quiet_by_default(store: S3Store) -> None:
    ended = ended_here("init", "--create-bucket", "--json")
    assert (ended.code, ended.stderr) == (0, "")
    ended = ended_here("status", "-v", "--json")
    assert [line.split(" ")[:2] for line in ended.stderr.splitlines()] == [["l0gc:", "status"]] * 2
    assert len(ended_here("status", "-vv").stderr.splitlines()) > 2


@pytest.mark.weed
def test_json_log_has_one_event_per_line_without_secrets(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("L0GC_LOG_FORMAT", "json")
    l0gc("init", "--create-bucket")
    ended = ended_here("sweep", "-vv", "--json")
    rows = events(ended)
    assert (rows[0]["event"], rows[-1]["event"]) == ("command_began", "command_ended")
    assert (rows[-1]["level"], rows[-1]["exit_code"]) == ("info", 0)
    assert {row["run"] for row in rows if row["event"] == "result"} == {ended.data["run_id"]}
    assert len({row["run_id"] for row in rows}) == 1
    assert {row["command"] for row in rows} == {"sweep"}
    requests = [row for row in rows if row["event"] == "request"]
    assert requests
    assert {row["level"] for row in requests} == {"debug"}
    secret = os.environ["AWS_SECRET_ACCESS_KEY"]
    assert secret not in ended.stderr + ended.stdout.decode()
    assert "authorization" not in ended.stderr.lower()


@pytest.mark.weed
def test_the_last_error_is_an_event_with_the_exit_code(store: S3Store) -> None:
    store.create_bucket()
    ended = ended_here("status", "--log-format", "json")
    (row,) = events(ended)
    assert (row["level"], row["event"], row["command"], row["exit_code"]) == ("error", "error", "status", 5)
    assert (ended.code, ended.stdout) == (5, b"")
    assert row["message"].startswith("no l0gc cluster exists")
    (row, *_) = [r for r in events(ended_here("status", "-v", "--log-format=json")) if r["event"] == "error"]
    assert "NotInitialisedError" in row["traceback"]


def test_wrong_arguments_are_an_event_too_if_events_are_requested() -> None:
    ended = ended_here("sweep", "--no-such-option", "--log-format", "json")
    (row,) = events(ended)
    assert (ended.code, row["exit_code"], "--no-such-option" in row["message"]) == (2, 2, True)
    assert "Usage:" in ended_here("sweep", "--no-such-option").stderr


def test_credentials_in_a_url_are_hidden_in_every_event() -> None:
    ended = ended_here("status", "--url", "s3://b/p", "--endpoint-url", "http://ann:hush@127.0.0.1:1", "-vv")
    assert ended.code == 2
    assert "Traceback" in ended.stderr
    assert "hush" not in ended.stderr
    handler = logs.LogHandler()
    handler.format_name = logs.JSON
    record = logging.makeLogRecord(
        {"name": "l0gc", "msg": "to http://ann:hush@host/x?y=z@q", **event("e", url="https://t:hush@h")}
    )
    line = handler._json(record)
    assert line.count("***@") == 2
    assert "hush" not in line
    assert without_secrets("to http://ann:hu@sh@host/x") == "to http://***@host/x"


def test_an_event_stays_whole_between_a_url_and_an_at_sign(capsys: pytest.CaptureFixture[str]) -> None:
    handler = logs.LogHandler()
    handler.format_name = logs.JSON
    row = {"name": "l0gc", "msg": "founded at s3://b", **event("e", by="ann@ops1", n=[1, None, 0.5])}
    handler.emit(logging.makeLogRecord(row))
    parsed = json.loads(capsys.readouterr().err)
    assert (parsed["message"], parsed["by"], parsed["n"]) == ("founded at s3://b", "ann@ops1", [1, None, 0.5])


def test_a_closed_log_reader_does_not_end_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*args: object, **kwargs: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("click.echo", gone)
    logs.HANDLER.emit(logging.makeLogRecord({"name": "l0gc", "msg": "still here"}))


@pytest.mark.parametrize(("verbose", "levels"), [(0, ["note", "error"]), (1, ["info", "note", "error"])])
def test_v_chooses_the_levels(verbose: int, levels: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up(logs.JSON, verbose, "c", "r")
    log = logging.getLogger("l0gc.some.part")
    log.debug("never", extra=event("d"))
    log.info("%d", 1, extra=event("i", a=1))
    log.log(NOTE, "%d", 2)
    logs.error("sentence", 3)
    rows = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [row["level"] for row in rows] == levels
    assert rows[-1]["exit_code"] == 3
    assert rows[-2]["event"] == "part"
    assert rows[0].get("a") == (1 if verbose else None)


def test_other_libraries_stay_as_they_are_at_every_v() -> None:
    logs.set_up(logs.TEXT, 5, "c", "r")
    for name in ("botocore", "boto3", "urllib3", "py4j"):
        assert not logging.getLogger(name).isEnabledFor(logging.DEBUG)


def test_a_format_that_there_is_not_is_refused() -> None:
    with pytest.raises(UsageError, match="xml"):
        logs.set_up("xml", 0, "c", "r")


def test_every_command_takes_a_log_format() -> None:
    assert COMMANDS
    assert any("--log-format" in p.opts for p in getattr(common_options(lambda s: s), "__click_params__"))  # noqa: B009
    assert Settings().log_format == logs.TEXT


# -- the library ------------------------------------------------------------------------------------------------------------


def test_the_library_is_silent_where_nobody_listens() -> None:
    assert any(isinstance(h, logging.NullHandler) for h in logging.getLogger("l0gc").handlers)


def test_an_append_whose_reply_was_lost_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    cluster = memory_cluster()
    before = set(store_of(cluster).objects)
    store_of(cluster).fault = lose_reply(CONTROLLER_LOG)
    with caplog.at_level(logging.DEBUG, "l0gc"):
        cluster.controller.advance()
    (record,) = [r for r in caplog.records if getattr(r, "event", "") == "append_settled"]
    assert {record.__dict__["fields"]["key"]} == set(store_of(cluster).objects) - before


def test_a_step_names_the_command_that_runs_it() -> None:
    for command, named in (("gc", "gc"), ("reconcile", "reconcile"), ("", "reconcile")):
        logs.set_up(logs.TEXT, 0, command, "")
        assert logs.running("reconcile") == named
