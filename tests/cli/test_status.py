"""`l0gc status` without `--json`: 80 columns, no colour if none is wanted, and costs that can be checked by hand."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time

import pytest

from l0gc.cli.output import Output
from l0gc.cli.status import folded, lines_of
from l0gc.formatting import GB, STANDARD_PRICE
from l0gc.inspect.laggards import Laggards
from l0gc.inspect.overview import DatedHolder, Overview
from l0gc.inspect.overview_reader import garbage_of, read_overview
from l0gc.settings import Settings
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.values.schema_formats import columns_of
from l0gc.watermark.scans import ScanRow, ScanSnapshot
from l0gc.watermark.source import IDLE, UNRECONCILED
from tests.inspect.report.support import run_entry, totals
from tests.support.cli import BIN, l0gc
from tests.support.memory_store import memory_cluster
from tests.support.reconcile import put, reconcile
from tests.support.tries import sampled
from tests.support.verify import loaded_cluster

URL = "s3://my-bucket/a/rather/long/prefix/of/my-cluster/"


@pytest.fixture
def held() -> Overview:
    """Return an overview in which a missing object holds M."""
    cluster = loaded_cluster()
    for _ in range(4):
        cluster.controller.advance()
        housekeep(cluster)
    for page in list(cluster.store.scan("level_zero/")):
        cluster.store.delete(page.keys)
    return read_overview(cluster)


def text(s: Overview) -> str:
    return "\n".join(folded(lines_of(s, URL), coloured=False))


@pytest.mark.parametrize("columns", ["80", "140", "30"])
def test_no_line_is_wider_than_the_terminal_and_keys_stay_whole(
    held: Overview, columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    lines = text(held).splitlines()
    key = held.causes[0].detail.split()[4].rstrip(":")
    assert key.startswith("level_zero/data/")
    assert any(key in line for line in lines)
    assert max(map(len, lines)) <= max(len(key) + 1, int(columns))
    assert any(line.startswith("next ") for line in lines[-5:]) or int(columns) < 80


def test_colours_are_added_and_change_no_word(held: Overview) -> None:
    coloured = "\n".join(folded(lines_of(held, URL), coloured=True))
    assert "\x1b[" in coloured
    import click

    assert click.unstyle(coloured) == text(held)


def test_the_garbage_is_priced_and_the_price_is_named() -> None:
    o = read_overview(memory_cluster())
    assert "garbage    unknown: the bucket has not been listed yet" in text(o)
    scan = ScanSnapshot(totals(o.as_of_ms - 600_000), [ScanRow(2, 10, 200 * GB, 1)])
    o.garbage = garbage_of(scan, 2, [], STANDARD_PRICE)
    assert o.garbage.dollars_month == pytest.approx(4.60)
    assert "10 objects (200.0 GiB) as of 10 min ago, $4.60 a month at $0.023 a" in text(o)
    assert "(S3 standard)" in text(o)
    o.garbage, o.price_gb_month = garbage_of(scan, 2, [run_entry(o.as_of_ms, 5)], 0.01), 0.01
    assert "as of 10 min ago; since then 5 (50 B) deleted, what is left of it $2.00" in " ".join(text(o).split())
    assert "S3 standard" not in text(o)
    o.garbage = garbage_of(scan, 2, [run_entry(o.as_of_ms, 10)], 0.01)
    assert "none: 10 objects (200.0 GiB) of 10 min ago were deleted by the last sweeps" in " ".join(text(o).split())
    scan = ScanSnapshot(totals(o.as_of_ms - 600_000), [ScanRow(2, 1, GB, 1)])
    o.garbage = garbage_of(scan, 2, [run_entry(o.as_of_ms, 1)], 0.01)
    assert "none: 1 object (1.0 GiB) of 10 min ago was deleted by the last sweeps" in " ".join(text(o).split())


def test_jobs_that_an_external_log_excludes_are_not_listed() -> None:
    cluster = memory_cluster(bootstrap=False)
    cluster.controller.bootstrap(shards=4, external_log=True)
    (jobs,) = [line.text for line in lines_of(read_overview(cluster), "s3://b/") if line.label == "jobs"]
    assert jobs.replace("\xa0", " ") == "compute-watermark never, sweep never, vacuum never"


def unreconciled(partitions: int) -> list[DatedHolder]:
    return [DatedHolder("t", p, 4, UNRECONCILED, "2 unreconciled records", 2, "key") for p in range(partitions)]


def test_a_line_says_who_lags_and_there_is_none_where_nobody_does() -> None:
    s = read_overview(memory_cluster())
    assert s.laggards == Laggards()
    assert "lagging" not in text(s)
    names = " and ".join(f"{n} partitions of a-topic-{n:040}" for n in (12, 7))
    sentence = f"{names} have lagged for 30 d and keep 9.1 GiB: l0gc reconcile && l0gc compute-watermark"
    s.laggards = Laggards(partitions=19, sentence=sentence)
    lines = text(s).splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("lagging "))
    assert max(map(len, lines)) <= 80
    assert sentence in " ".join(" ".join(lines[at:]).split())
    s.laggards = None
    assert "lagging" not in text(s)


def test_each_reason_has_a_line_of_its_own() -> None:
    s = read_overview(memory_cluster())
    s.held_back_by = [*unreconciled(2), DatedHolder("t", 7, 4, IDLE, "its window may still take epoch 5")]
    s.held_partitions = 3
    assert "held by    t/0 and 1 more at 4: 4 unreconciled records from epoch 5" in text(s)
    assert "           t/7 at 4: its window may still take epoch 5\n" in text(s)
    s.held_partitions = 40
    assert "t/0 and at least 1 more at 4: at least 4 unreconciled records from" in text(s)


def test_misfits_have_a_line_that_says_how_to_find_them() -> None:
    cluster = memory_cluster()
    cluster.controller.create_topic("events", 2, columns=columns_of({"properties": {"id": {"type": "integer"}}}))
    put(cluster, "events", {0: [b'{"id": 1}'], 1: [b'{"id": 2}']})
    reconcile(cluster)
    assert "misfits" not in text(read_overview(cluster))
    put(cluster, "events", {0: [b"0"], 1: [b"1"]})
    reconcile(cluster)
    s = read_overview(cluster)
    assert s.to_json()["misfits"] == 2
    found = "find them in the topic's table with WHERE value_error IS NOT NULL"
    assert f"misfits    2 records did not fit the value schema; {found}" in " ".join(text(s).split("\n" + " " * 11))


def test_watching_prints_one_result_below_the_other_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for json, expected in ((False, "one\n\ntwo\n"), (True, '{"n":1}\n{"n":2}\n')):
        with Output(Settings(json=json)).watching() as show:
            show({"n": 1}, ["one"])
            show({"n": 2}, ["two"])
        assert capsys.readouterr().out == expected


def test_a_live_status_is_cut_to_a_low_terminal() -> None:
    from l0gc.cli.output import _fitting

    assert _fitting(list("abcdefghij"), 10) == list("abcdefghij")
    assert _fitting(list("abcdefghij"), 6) == ["a", "b", "...", "h", "i", "j"]


@pytest.mark.weed
@pytest.mark.parametrize("term", sampled(["xterm-256color", "dumb"], ["xterm-256color"]))
def test_a_live_status_ends_with_ctrl_c(store: S3Store, term: str) -> None:
    l0gc("init", "--create-bucket", "--shards", "4")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*BIN, "status", "--watch", "1s"], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE,
        env={**os.environ, "TERM": term, "COLUMNS": "80", "LINES": "40"}, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    deadline = time.monotonic() + 200
    while shown.count(b"cluster ") < 3 and time.monotonic() < deadline:
        if select.select([ours], [], [], 1.0)[0]:
            shown += os.read(ours, 65536)
    process.send_signal(signal.SIGINT)
    while select.select([ours], [], [], 0.5)[0]:
        try:
            shown += os.read(ours, 65536)
        except OSError:
            break
    assert process.stderr is not None
    assert (process.wait(120), process.stderr.read()) == (130, b"")
    os.close(ours)
    assert (b"\x1b[" in shown) == (term != "dumb")
    assert shown.count(b"cluster ") >= 3
