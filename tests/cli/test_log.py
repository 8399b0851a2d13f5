"""`l0gc log show` prints one JSON object a line, or one object with `--json`; exit code 4 if a line is an error."""

from __future__ import annotations

import json

import pytest

from l0gc.errors import UsageError
from l0gc.keys import CONTROLLER_LOG
from l0gc.storage.s3 import S3Store
from tests.support.cli import ended_here, founded, l0gc

pytestmark = pytest.mark.weed


def test_log_show_prints_one_line_per_entry_and_exits_4_on_damage(store: S3Store) -> None:
    founded(3)
    l0gc("housekeep", "--barrier")
    ended = ended_here("log", "show")
    assert ended.code == 0, ended.stderr
    entries = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [e["entry"] for e in entries] == ["bootstrap", "create_topic", "tick"]
    of_controller = {"log": "controller", "journal": None, "lines": entries, "count": 3, "damaged": 0}
    assert ended_here("log", "show", "--json").data == of_controller
    empty = {"log": "journal", "journal": 1, "lines": [], "count": 0, "damaged": 0}
    assert ended_here("log", "show", "--journal", "1", "--json").data == empty
    ended = ended_here("log", "show", "--journal", "0")
    assert [(r["entry"], r["epoch"]) for r in map(json.loads, ended.stdout.splitlines())] == [("barrier", 2)]
    ended = ended_here("log", "show", "--journal", "1")
    assert (ended.code, ended.stdout, ended.stderr) == (0, b"", "l0gc: journal 1 holds nothing\n")
    store.put(f"{CONTROLLER_LOG}log/{1:020}", b"nonsense")
    ended = ended_here("log", "show")
    rows = [json.loads(line) for line in ended.stdout.splitlines()]
    assert (ended.code, ["error" in r for r in rows]) == (4, [False, True, False])
    assert "1 line of the controller's log cannot be read" in ended.stderr
    ended = ended_here("log", "show", "--json")
    assert (ended.code, ended.data["lines"], ended.data["damaged"]) == (4, rows, 1)


def test_one_log_is_shown_at_a_time() -> None:
    with pytest.raises(UsageError, match="--controller and --journal exclude each other"):
        l0gc("log", "show", "--url", "s3://bucket", "--controller", "--journal", "1")
