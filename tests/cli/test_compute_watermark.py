"""What compute-watermark prints of a scan, without a run."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

from l0gc.api.engine import Engine
from l0gc.cli.compute_watermark import run_compute_watermark
from l0gc.cli.output import Output, Result, taking_results
from l0gc.collect.record import read_attempts
from l0gc.errors import SafetyError, UsageError
from l0gc.settings import Settings
from l0gc.storage.parallel import Parallel
from l0gc.watermark.external_files import ExternalFiles
from l0gc.watermark.pipeline import Unreadable, WatermarkResult
from l0gc.watermark.scans import ScanReport, ScanRow, ScanSnapshot, ScanTotals
from l0gc.watermark.source import IDLE, PINNED, UNREADABLE, Holder
from tests.support.cli import l0gc
from tests.support.memory_store import memory_cluster
from tests.test_api import over

DAY_MS = 86_400_000
SCAN = ScanSnapshot(
    ScanTotals(
        cluster_id="c", taken_ms=9 * DAY_MS, watermark=3, cluster_epoch=8,
        objects=25, bytes=2500, eligible_objects=10, eligible_bytes=1000, unparsable=2,
        unparsable_samples=["data/README", "data/x"],
        oldest_eligible_ms=2 * DAY_MS, oldest_held_ms=9 * DAY_MS - 90_000,
    ),
    [
        ScanRow(3, 10, 1000, 2 * DAY_MS),
        ScanRow(4, 1, 100, 9 * DAY_MS - 90_000, "events/0", 1),
        ScanRow(6, 2, 200, 9 * DAY_MS - 80_000, "events/0", 4),
        ScanRow(7, 5, 500, 9 * DAY_MS - 30_000, "events/0", 4),
        ScanRow(9, 5, 500, 9 * DAY_MS),
        ScanRow(None, 2, 200, 1),
    ],
)  # fmt: skip


def printed(seen: ScanSnapshot | None = SCAN, **changes: Any) -> Result:
    listing = None if seen is None else ScanReport.of(seen)
    result = WatermarkResult(3, 2, 8, 4, [], [], listing, True)
    with taking_results() as results:
        run_compute_watermark(Output(Settings()), lambda progress: msgspec.structs.replace(result, **changes))
    return results[0]


def test_the_text_shows_what_is_held_by_whom_the_most_first() -> None:
    text = printed().text
    assert text[1:] == [
        "L0 holds 25 objects (2.4 KiB); eligible now: 10 (1000 B, oldest 7 d)",
        "held by events/0 and 3 more: 7 objects (700 B, oldest 80 s)",
        "held until the next run (newer than the snapshot): 5 objects (500 B, oldest 0 s)",
        "held by events/0: 1 object (100 B, oldest 90 s)",
        "2 unrecognized keys, never deleted, for example:",
        "  data/README",
        "  data/x",
    ]
    assert all(len(line) <= 80 for line in text)


def test_what_only_a_pin_holds_is_not_called_newer_than_the_snapshot() -> None:
    held = Holder("", -1, 3, PINNED, "pin 'backup' until 2026-01-31 (l0gc pin delete)")
    text = printed(cluster_epoch=9, held_back_by=[held]).text
    assert "held by pin 'backup' until 2026-01-31 (l0gc pin delete): 5 objects (500 B, oldest 0 s)" in text
    both = printed(cluster_epoch=9, held_back_by=[held, held]).text
    assert "held by pins (l0gc pin list): 5 objects (500 B, oldest 0 s)" in both


@pytest.mark.parametrize(("holding", "others"), [(3, "and 2 more at 3"), (10, "and at least 9 more at 3")])
def test_text_counts_the_partitions_that_hold_m_back(holding: int, others: str) -> None:
    held = [Holder("events", n, 3, IDLE, "it is idle") for n in range(holding)]
    result = printed(None, held_back_by=held)
    assert result.text[-1] == f"held back by events/0 {others}: it is idle"
    first = {"topic": "events", "partition": 0, "gc_epoch": 3, "reason": "it is idle"}
    assert result.data["held_back_by"][0].items() >= first.items()


def test_what_cannot_be_read_is_named_beside_the_result(caplog: pytest.LogCaptureFixture) -> None:
    held = [Holder("", -1, 3, UNREADABLE, "journal 5 cannot be read: damaged")]
    with caplog.at_level(logging.INFO, "l0gc"):
        result = printed(None, held_back_by=held, unreadable=[Unreadable("journal 5", "damaged")])
    assert result.data["unreadable"] == [{"unit": "journal 5", "error": "damaged"}]
    assert result.text[-1] == "held back by a journal at 3: journal 5 cannot be read: damaged"
    assert caplog.messages == ["journal 5 cannot be read, so M does not pass it: damaged"]


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*anything: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(Engine, "session", never)
    monkeypatch.setattr(ExternalFiles, "find", never)


@pytest.mark.usefixtures("no_spark")
def test_a_small_bucket_needs_no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = memory_cluster()
    topic, _ = cluster.controller.create_topic("events", 3)
    key = cluster.controller.layout().format(0, 0, cluster.runtime.new_id())
    cluster.store.put(key, b"x" * 10)
    with over(cluster, monkeypatch) as library, Engine() as engine:
        for dry_run in (True, False):
            data = library.compute_watermark(engine, dry_run=dry_run).to_json()
            assert (data["watermark"], data["partitions"], data["published"]) == (topic.revision - 1, 3, not dry_run)
            listing = {"objects": 1, "bytes": 10, "eligible_objects": 1, "eligible_bytes": 10, "unparsable": 0}
            assert data["listing"].items() >= listing.items()
    assert read_attempts(cluster.store, Parallel()).known["compute-watermark"].ok


@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize("external", [True, False])
def test_a_cluster_of_the_other_kind_is_refused_before_spark_starts(
    external: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = memory_cluster(bootstrap=False)
    cluster.controller.bootstrap(shards=4, external_log=not external)
    files = ExternalFiles("r.csv", "p.csv") if external else None
    refused = pytest.raises(SafetyError, match="own controller log" if external else "another system")
    with over(cluster, monkeypatch) as library, Engine("spark") as engine, refused:
        library.compute_watermark(engine, external=files)


def test_ages_are_by_the_stores_clock_and_each_epoch_names_its_holder() -> None:
    data = printed(scan="the/key").data
    listing = data["listing"]
    assert (listing["oldest_eligible_age_s"], listing["oldest_held_age_s"]) == (7 * 86_400.0, 90.0)
    assert listing["unparsable_samples"] == ["data/README", "data/x"]
    assert [r["epoch"] for r in listing["epochs"]] == [3, 4, 6, 7, 9]
    assert (listing["epochs"][1]["held_by"], listing["epochs"][1]["holders"]) == ("events/0", 1)
    assert data["scan"] == "the/key"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--snapshot-age", "1h"], "--snapshot-age needs --reports and --partitions"),
        (["--cluster-epoch", "9"], "--cluster-epoch needs --reports and --partitions"),
        (["--expect-partitions", "0"], "--expect-partitions needs --reports and --partitions"),
        (["--allow-no-partitions"], "--allow-no-partitions needs --reports and --partitions"),
        (["--allow-unlisted-reports"], "--allow-unlisted-reports needs --reports and --partitions"),
        (["--reports", "r.csv"], "--reports and --partitions need each other"),
    ],
)
def test_an_option_that_would_have_no_effect_is_refused(args: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        l0gc("compute-watermark", "--url", "s3://bucket", *args)
