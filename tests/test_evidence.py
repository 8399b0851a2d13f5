"""What a failed test leaves behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import evidence
from tests.support.cli import ended_here
from tests.support.memory_store import MemoryStore


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[evidence.Command]:
    monkeypatch.setattr(evidence, "commands", [])
    return evidence.commands


def outcomes(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "commands.ndjson").read_text().splitlines()]


def test_a_failed_test_leaves_its_bucket_and_its_reason(tmp_path: Path) -> None:
    store = MemoryStore()
    store.put("l0gc/controller/log/00000000000000000000", b"entry")
    store.put("level_zero/data/000/x", b"records")
    folder = evidence.keep(store, "tests/flows/test_loop.py::test_x[all]", "assert 0 > 0", tmp_path)
    assert (folder / "failure.txt").read_text() == "assert 0 > 0"
    for key, body in (("l0gc/controller/log/00000000000000000000", b"entry"), ("level_zero/data/000/x", b"records")):
        assert (folder / "bucket" / key).read_bytes() == body
        assert f"{key}\t{len(body)}\t" in (folder / "listing.tsv").read_text()


def test_a_large_bucket_is_listed_whole_and_its_logs_are_copied_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "_MOST_BYTES", 10)
    store = MemoryStore()
    for key in ("a", "b", "l0gc/log"):
        store.put(key, b"12345678")
    folder = evidence.keep(store, "test", "", tmp_path)
    assert [p.name for p in (folder / "bucket").rglob("*") if p.is_file()] == ["log"]
    assert len((folder / "listing.tsv").read_text().splitlines()) == 3


def test_commands_are_kept_with_what_they_printed_and_how_they_ended(
    tmp_path: Path, commands: list[evidence.Command]
) -> None:
    ended_here("topic", "create")
    program = "import sys; sys.stderr.write('it broke'); sys.exit(3)"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    commands.append(evidence.Command(("upload",), process))
    process.wait()
    here, there = outcomes(evidence.keep(MemoryStore(), "test", "", tmp_path))
    assert here["args"] == ["topic", "create"]
    assert "code=2" in here["ended"]
    assert (there["exit_code"], there["stderr"], there["stdout"]) == (3, "it broke", "")


def test_a_command_that_still_runs_keeps_nothing_waiting(tmp_path: Path, commands: list[evidence.Command]) -> None:
    with subprocess.Popen(["sleep", "600"], stdout=subprocess.PIPE) as process:
        commands.append(evidence.Command(("upload",), process))
        (one,) = outcomes(evidence.keep(MemoryStore(), "test", "", tmp_path))
        process.kill()
    assert one["exit_code"] is None
