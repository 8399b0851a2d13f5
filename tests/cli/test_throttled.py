"""Hazard 42: an object that a store does not serve for a while is not refused, whatever the command, and is never given
up.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from l0gc.errors import StoreError, StoreTimeoutError, ThrottledError
from l0gc.keys import journal_log
from tests.support.cli import ended_here, opens
from tests.support.memory_store import another_process, copy_of, failing, publish_m, store_of, topic_in_memory
from tests.support.reconcile import put
from tests.support.tries import sampled

ERRORS = (
    ThrottledError("the store asks to slow down"),
    StoreTimeoutError("no answer within 30 s"),
    StoreError("500 InternalError"),
)
COMMANDS = [
    ["upload", "events", "FILE"], ["read", "events"], ["reconcile", "--engine", "local"], ["merge", "--engine", "local"],
    ["housekeep"], ["expire"], ["delete-records", "events", "--all-partitions", "--before-offset", "1", "--yes"],
    ["compute-watermark", "--no-scan"], ["sweep", "--engine", "local"], ["vacuum", "--engine", "local"], ["gc"],
    ["status"], ["explain", "KEY"], ["explain", "events/0"], ["verify", "--engine", "local"],
    ["verify", "--deep", "--engine", "local"], ["give-up", "--object", "KEY", "--yes"], ["topic", "describe", "events"],
    ["pin", "create", "p"], ["topic", "delete", "events", "--yes"],
]  # fmt: skip


@pytest.mark.parametrize(
    ("command", "what"),
    sampled(
        [(command, what) for command in COMMANDS for what in ("journal", "object")],
        [(command, ("journal", "object")[n % 2]) for n, command in enumerate(COMMANDS)],
    ),
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_no_command_takes_throttling_for_a_refusal(
    command: list[str], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lines").write_text("a\n")
    for error in ERRORS:
        cluster = topic_in_memory(2)
        (key, _) = put(cluster, "events", {0: [b"a"]}, {1: [b"b"]})
        publish_m(cluster, 0)
        entries = sorted(copy_of(store_of(cluster), journal_log(0)))
        opens(cluster, monkeypatch)
        assert ended_here("topic", "alter", "events", "--retention", "1d").code == 0
        opens(another_process(cluster), monkeypatch)
        store_of(cluster).fault = failing(error, "[gh]e[ta]*", entries[-1] if what == "journal" else key)
        words = {"FILE": str(tmp_path / "lines"), "KEY": key}
        ended = ended_here(*(words.get(word, word) for word in command))
        said = ended.stdout.decode() + ended.stderr
        assert ended.code != 4, said
        assert "unexpected" not in said
        assert "--force-readable" not in said
        if command[0] != "give-up":
            assert "give-up" not in said
        if what == "journal" and command[0] not in ("status", "explain", "topic", "compute-watermark"):
            assert ended.code in (1, 3), said
            assert str(error) in said
