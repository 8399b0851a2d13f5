"""Commands print time and cluster before changes, one line for a quiet gc, and nothing with --quiet."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path

import pytest

from l0gc.cli.terminal import fitted
from l0gc.collect.record import write_summary
from l0gc.streamlog.cluster import ClusterHandles
from tests.inspect.report.support import summary
from tests.support.cli import ended_here, opens
from tests.support.memory_store import topic_in_memory
from tests.support.reconcile import put

HEAD = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ s3://bucket"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> ClusterHandles:
    return opens(topic_in_memory(2), monkeypatch)


def said(*words: str) -> str:
    ended = ended_here(*words)
    assert (ended.code, ended.stderr) == (0, "")
    return ended.stdout.decode()


def test_what_changes_something_begins_with_time_and_cluster(cluster: ClusterHandles) -> None:
    assert re.fullmatch(f"{HEAD}: epoch 1: 1 window .*\n", said("housekeep"))
    assert re.fullmatch(f"{HEAD}: sweeps are paused: .*\n", said("pause", "--why", "a test"))
    assert re.fullmatch(f"{HEAD}\nM = none: 0 objects .*\n(.*\n)+", said("sweep", "--dry-run"))
    assert said("topic", "list") == "events  revision 1, 2 partitions in journal 0\n"


def test_a_quiet_gc_is_one_line(cluster: ClusterHandles) -> None:
    first = said("gc")
    assert re.match(f"{HEAD}\nhousekeep  +epoch 1: ", first)
    assert first.splitlines()[-1].split()[:2] == ["not", "due"]
    assert re.fullmatch(f"{HEAD}: epoch 1: nothing was due; M = .* cannot move yet\n", said("gc"))


def test_quiet_prints_nothing_unless_a_person_is_needed(
    cluster: ClusterHandles, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in (
        ["gc"],
        ["housekeep"],
        ["verify", "--engine", "local"],
        ["topic", "create", "more", "--partitions", "1"],
    ):
        assert said(*words, "--quiet") == ""
    assert said("--quiet", "topic", "list").startswith("events ")
    assert said("housekeep", "--quiet", "--json").startswith("{")
    ended = ended_here("sweep", "--quiet", "--up-to", "99")
    assert (ended.code, ended.stdout) == (4, b"")
    assert ended.stderr.startswith("l0gc: --up-to 99 ")
    said("pause", "--why", "a test", "--quiet")
    assert "paused" in said("status", "--quiet")


def test_quiet_prints_a_result_that_is_a_problem(cluster: ClusterHandles) -> None:
    cluster.store.delete(put(cluster, "events", {0: [b"a"]}))
    ended = ended_here("verify", "--quiet", "--engine", "local")
    assert (ended.code, ended.stderr[:6]) == (4, "l0gc: ")
    assert b"l0_missing events/0" in ended.stdout


def test_runs_that_a_list_leaves_out_are_counted(cluster: ClusterHandles) -> None:
    assert said("runs", "list") == "no run is on record: none has deleted anything, or the records have expired\n"
    for n in range(3):
        write_summary(cluster.store, summary(1_700_000_000_000 + 10_000 * n, 7))
    *runs, more = said("runs", "list", "--last", "2").splitlines()
    assert [line.count("7 deleted") for line in runs] == [1, 1]
    assert more == "1 older run not shown (--last)"


def test_lines_are_cut_between_words_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    text = ["l0gc: " + "word " * 20 + "a-long-key-" * 5]
    stream = StringIO()
    assert fitted(text, 2, stream) == text
    monkeypatch.setattr(stream, "isatty", lambda: True)
    lines = fitted(text, 2, stream)
    assert " ".join(line.strip() for line in lines) == text[0]
    assert [line for line in lines if len(line) > 40] == ["  " + "a-long-key-" * 5]


def test_a_json_file_has_the_result_next_to_what_is_printed(cluster: ClusterHandles, tmp_path: Path) -> None:
    file = tmp_path / ("r" * 255)  # a name may have this length at most
    assert said("topic", "list", "--json-file", str(file)) == said("topic", "list")
    assert json.loads(file.read_bytes()) == json.loads(said("topic", "list", "--json"))
    assert said("gc", "--quiet", "--json-file", str(file)) == ""
    assert "sweep" in json.loads(file.read_bytes())
    before = file.read_bytes()
    assert ended_here("topic", "describe", "evenst", "--json-file", str(file)).code == 5
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["topic", "list", "--json-file", "-"], "--json-file needs a file name; --json prints to stdout"),
        (["housekeep", "--json-file", "/nowhere/file"], "--json-file /nowhere/file cannot be written: "),
        (
            ["read", "events", "--json-file", "{}"],
            "--json-file needs a single result, and this command prints as it runs: ",
        ),
        (
            ["log", "show", "--json-file", "{}"],
            "--json-file needs a single result, and this command prints as it runs: ",
        ),
    ],
)
def test_a_json_file_that_cannot_be_is_refused_before_the_work(
    words: list[str], error: str, cluster: ClusterHandles, tmp_path: Path
) -> None:
    ended = ended_here(*(word.format(tmp_path / "file") for word in words))
    assert (ended.code, ended.stdout) == (2, b"")
    assert ended.stderr.startswith(f"l0gc: {error}")
    assert list(tmp_path.iterdir()) == []
