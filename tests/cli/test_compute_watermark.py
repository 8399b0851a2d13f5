"""What compute-watermark tells of a scan, without a run."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest

from l0gc.cli.compute_watermark import _inventory, print_result
from l0gc.cli.output import Output, Result, taking_results
from l0gc.errors import CorruptObjectError, UsageError
from l0gc.settings import Settings
from l0gc.spark.inventory import _at_hand
from l0gc.storage.config import StoreConfig
from l0gc.watermark.compute import HeldBackBy, Watermark
from l0gc.watermark.inventory import InventoryFile
from l0gc.watermark.job import WatermarkResult
from l0gc.watermark.scans import KeptScan, ScanRow, ScanSnapshot, ScanTotals
from tests.support.cli import l0gc

DAY_MS = 86_400_000
SCAN = ScanSnapshot(
    ScanTotals(
        cluster_id="c", run_ms=9 * DAY_MS, taken_ms=9 * DAY_MS, watermark=3, cluster_epoch=8, source="listing",
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


def printed(kept: KeptScan | None = None, scan: ScanSnapshot = SCAN) -> Result:
    with taking_results() as results:
        result = WatermarkResult(Watermark(3, 8, 4, []), 2, scan, True, kept=kept)
        print_result(Output(Settings()), result)
    return results[0]


def test_the_text_tells_what_is_held_by_whom_the_most_first() -> None:
    text = printed().text
    assert text[1:] == [
        "L0 holds 25 objects (2.4 KiB); eligible now: 10 (1000 B, oldest 7 d)",
        "held by events/0 and 3 more: 7 objects (700 B, oldest 80 s)",
        "held until the next run: newer than its snapshot: 5 objects (500 B, oldest 0 s)",
        "held by events/0: 1 object (100 B, oldest 90 s)",
        "2 keys are no L0 keys and are never deleted, e.g.",
        "  data/README",
        "  data/x",
    ]
    assert all(len(line) <= 80 for line in text)


@pytest.mark.parametrize(("holding", "told"), [(3, "and 2 more at 3"), (10, "and at least 9 more at 3")])
def test_the_text_counts_those_that_hold_m_back_as_far_as_they_are_known(holding: int, told: str) -> None:
    held = [HeldBackBy("events", n, 3, "it is idle") for n in range(holding)]
    with taking_results() as results:
        print_result(Output(Settings()), WatermarkResult(Watermark(3, 8, 100, held), 2, None, True))
    assert results[0].text[-1] == f"held back by events/0 {told}: it is idle"


def test_the_text_tells_that_an_inventory_was_read_and_how_old_it_is() -> None:
    def told(age_ms: int) -> list[str]:
        t = msgspec.structs.replace(
            SCAN.totals, source="inventory", run_ms=9 * DAY_MS + age_ms, noncurrent_objects=1, noncurrent_bytes=1000
        )
        return printed(scan=ScanSnapshot(t, SCAN.rows)).text

    assert told(3 * DAY_MS)[:-2] == printed().text
    assert told(3 * DAY_MS)[-2:] == [
        "not counted above, but paid for: 1 noncurrent version (1000 B)",
        "that is by an inventory made 3 d ago, and not of now",
    ]
    assert told(0)[-1] == "that is by an inventory of an unknown time, and not of now"


def test_an_inventory_that_this_machine_cannot_read_is_told_in_a_sentence(tmp_path: Path) -> None:
    name = tmp_path / "manifest.json"
    name.symlink_to("/proc/self/mem")  # which root may open, and not read
    with pytest.raises(CorruptObjectError, match=r"manifest\.json cannot be read: Input/output error"):
        _inventory(StoreConfig("bucket"), str(name))
    with (
        pytest.raises(CorruptObjectError, match=r"manifest\.json cannot be read: Input/output error"),
        _at_hand(StoreConfig("bucket"), InventoryFile(str(name))),
    ):
        pass


def test_no_age_is_told_of_objects_of_which_an_inventory_tells_no_time() -> None:
    t = msgspec.structs.replace(SCAN.totals, source="inventory", oldest_eligible_ms=None, oldest_held_ms=None)
    rows = [msgspec.structs.replace(r, oldest_ms=0) for r in SCAN.rows]
    assert not [line for line in printed(scan=ScanSnapshot(t, rows)).text if "oldest" in line]


def test_ages_are_by_the_stores_clock_and_each_epoch_names_its_holder() -> None:
    data = printed(KeptScan("the/key")).data
    listing = data["listing"]
    assert (listing["oldest_eligible_age_s"], listing["oldest_held_age_s"]) == (7 * 86_400.0, 90.0)
    assert listing["unparsable_samples"] == ["data/README", "data/x"]
    assert [r["epoch"] for r in listing["epochs"]] == [3, 4, 6, 7, 9]
    assert (listing["epochs"][1]["held_by"], listing["epochs"][1]["holders"]) == ("events/0", 1)
    assert data["scan"] == "the/key"


def test_a_snapshot_that_was_not_kept_is_told_and_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "l0gc"):
        assert printed(KeptScan(error="the store refused access")).data["scan"] is None
    assert caplog.messages == [
        "M is published, but the scan snapshots are not as they should be: the store refused access"
    ]


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--snapshot-age", "1h"], "belong to --reports and --partitions"),
        (["--cluster-epoch", "9"], "belong to --reports and --partitions"),
        (["--allow-no-partitions"], "belong to --reports and --partitions"),
        (["--reports", "r.csv"], "--reports and --partitions belong together"),
        (["--reports", "r.csv", "--partitions", "p.csv", "--refresh"], "reads l0gc's own logs"),
        (["--inventory", "manifest.json", "--no-scan"], "give one of the two"),
    ],
)
def test_an_option_that_would_have_no_effect_is_refused(args: list[str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        l0gc("compute-watermark", "--url", "s3://bucket", *args)
