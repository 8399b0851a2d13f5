"""Scan snapshots: read back as written, refused if changed, kept for a limited time, and never a reason for a run to
fail.
"""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l0gc.errors import AccessDeniedError, ClusterMismatchError, CorruptObjectError
from l0gc.keys import SCANS
from l0gc.runtime import Runtime
from l0gc.storage.parallel import Parallel
from l0gc.watermark import scans
from l0gc.watermark.scans import (
    KEEP_SCANS,
    ScanRow,
    ScanSnapshot,
    ScanTotals,
    encode_scan,
    keep_scan,
    list_scans,
    old_scans,
    read_scan,
    read_trend,
    write_scan,
)
from tests.support.memory_store import MemoryStore, failing, once

CLUSTER = "c"
DAY_MS = 86_400_000


def totals(taken_ms: int = 5, **changes: object) -> ScanTotals:
    plain = ScanTotals(
        cluster_id=CLUSTER, taken_ms=taken_ms, watermark=2, cluster_epoch=4,
        objects=3, bytes=30, eligible_objects=1, eligible_bytes=10, unparsable=1,
        unparsable_samples=["level_zero/data/README"],
    )  # fmt: skip
    return msgspec.structs.replace(plain, **changes)


def snapshot(taken_ms: int = 5, **changes: object) -> ScanSnapshot:
    rows = [ScanRow(1, 1, 10, 7), ScanRow(3, 1, 10, 8, "t/0", 2), ScanRow(None, 1, 10, 9)]
    return ScanSnapshot(totals(taken_ms, **changes), rows)


def decode_scan(body: bytes, key: str, cluster_id: str) -> ScanSnapshot:
    store = MemoryStore()
    store.put(key, body)
    return read_scan(store, key, cluster_id)


def runtime(seed: int = 0) -> Runtime:
    return Runtime(MemoryStore().clock, random.Random(seed))


numbers = st.integers(0, 2**62)
rows = st.builds(ScanRow, numbers, numbers, numbers, numbers, st.text(max_size=20), st.integers(0, 2**31))


@given(st.lists(rows, max_size=20), st.booleans())
@settings(max_examples=100)
def test_a_snapshot_is_read_back_as_it_was_written(found: list[ScanRow], foreign: bool) -> None:
    scan = ScanSnapshot(totals(), found + [ScanRow(None, 3, 4, 5)] * foreign)
    assert decode_scan(encode_scan("k", scan), "k", CLUSTER) == scan
    assert scan.epochs == found


def test_a_snapshot_lies_at_the_time_of_its_run() -> None:
    store, rt = MemoryStore(), runtime()
    keys = [write_scan(store, rt, snapshot(taken_ms)) for taken_ms in (10**12, 7, 99)]
    assert keys[1].startswith(f"{SCANS}000000000000007-")
    store.put(f"{SCANS}something-else", b"x")
    assert list_scans(store) == [keys[1], keys[2], keys[0]]
    assert read_scan(store, keys[0], CLUSTER) == snapshot(10**12)


def test_a_changed_moved_or_cut_snapshot_is_refused_by_name() -> None:
    body = encode_scan("the/key", snapshot())
    other = encode_scan("the/key", msgspec.structs.replace(snapshot(), rows=snapshot().rows[:1]))
    assert decode_scan(other, "the/key", CLUSTER).rows == snapshot().rows[:1]
    flipped = [body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :] for at in range(len(body))]
    for bad in (b"", b"PAR1", body[: len(body) // 2], *flipped):
        with pytest.raises(CorruptObjectError, match="the/key"):
            decode_scan(bad, "the/key", CLUSTER)
    with pytest.raises(CorruptObjectError, match="another/key"):
        decode_scan(body, "another/key", CLUSTER)


def test_a_newer_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "FORMAT_VERSION", 2)
    body = encode_scan("the/key", snapshot())
    monkeypatch.setattr(scans, "FORMAT_VERSION", 1)
    with pytest.raises(CorruptObjectError, match=r"the/key .* of version 2, .* up to 1"):
        decode_scan(body, "the/key", CLUSTER)


def test_another_clusters_snapshot_is_refused() -> None:
    with pytest.raises(ClusterMismatchError, match="the/key belongs to cluster c"):
        decode_scan(encode_scan("the/key", snapshot()), "the/key", "d")


def test_the_trend_is_the_newest_scans_without_those_that_cannot_be_read() -> None:
    store, rt = MemoryStore(), runtime()
    for taken_ms in range(5):
        write_scan(store, rt, snapshot(taken_ms))
    write_scan(store, rt, snapshot(5, cluster_id="another"))
    store.put(write_scan(store, rt, snapshot(6)), b"damaged")
    scans, skipped = read_trend(store, Parallel(), CLUSTER, last=4)
    assert ([t.taken_ms for t in scans], skipped) == ([3, 4], 2)
    assert len(read_trend(store, Parallel(), CLUSTER)[0]) == 5
    assert read_trend(store, Parallel(), CLUSTER, last=0)[0] == []


def test_a_trend_does_not_end_at_a_scan_that_expires_meanwhile() -> None:
    store = MemoryStore()
    gone = write_scan(store, runtime(), snapshot(1))
    write_scan(store, runtime(1), snapshot(2))
    store.fault = once(lambda: store.objects.pop(gone), "get", gone)
    scans, skipped = read_trend(store, Parallel(), CLUSTER)
    assert ([t.taken_ms for t in scans], skipped) == ([2], 0)


def test_too_old_and_too_many_snapshots_are_old_and_nothing_else() -> None:
    store, rt = MemoryStore(), runtime()
    keys = [write_scan(store, rt, snapshot(taken_ms)) for taken_ms in range(10)]
    store.put(f"{SCANS}notes", b"x")
    now_ms, there = 90 * DAY_MS + 3, list(store.objects)
    assert old_scans(there, now_ms, keep=100) == keys[:3]
    assert old_scans(there, now_ms, keep=2) == keys[:8]


def test_a_thousand_snapshots_of_ninety_days_are_kept() -> None:
    store, rt = MemoryStore(), runtime()
    now = 200 * DAY_MS
    old = write_scan(store, rt, snapshot(now - 90 * DAY_MS - 1))
    young = write_scan(store, rt, snapshot(now - 90 * DAY_MS))
    kept = keep_scan(store, rt, snapshot(now))
    assert kept is not None
    assert old_scans(list_scans(store), now) == [old]
    body = store.objects[young].body
    for i in range(KEEP_SCANS):
        store.put(f"{SCANS}{now - i:015}-{rt.new_id()}", body)
    assert len(list_scans(store)) - len(old_scans(list_scans(store), now)) == KEEP_SCANS


def test_a_snapshot_that_cannot_be_written_is_reported_and_not_raised(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    write_scan(store, runtime(), snapshot(0))
    store.fault = failing(AccessDeniedError("the store refused access"), "put")
    assert keep_scan(store, runtime(1), snapshot(100 * DAY_MS)) is None
    assert caplog.messages == ["M is published, but the scan snapshot could not be written: the store refused access"]


def test_oldest_epochs_above_the_limit_share_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "MAX_ROWS", 3)
    few = [ScanRow(e, 10 + e, 100 + e, 50 - e, "t/0" if e > 3 else "", max(0, e - 3)) for e in range(1, 6)]
    scan = ScanSnapshot(totals(objects=70), [*few, ScanRow(None, 1, 1, 1)])
    read = decode_scan(encode_scan("k", scan), "k", CLUSTER)
    assert read.rows == [ScanRow(3, 11 + 12 + 13, 101 + 102 + 103, 47), *few[3:], ScanRow(None, 1, 1, 1)]
    assert read.totals == totals(objects=70, merged_epochs=3)
