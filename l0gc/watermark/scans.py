"""Scan snapshots: the bucket's objects as compute-watermark counted them, stored per run, with a row for each epoch.

They show operators which objects are eligible, which partitions hold the others, and how that has changed. No deletion
and no computation of M reads a snapshot: an object's own key and the published M decide whether it may be deleted
(`collect/plan.py`). A lost, old or wrong snapshot thus costs a number, not data. Snapshots are packed and sealed like
log entries, since a wrong number would mislead operators.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import ClassVar, Final

import msgspec

from l0gc.decoding import UNDECODABLE, decoded
from l0gc.errors import (
    ClusterMismatchError,
    CorruptObjectError,
    NotFoundError,
    ObjectNotFoundError,
    StoreError,
    fault_of,
)
from l0gc.events import event
from l0gc.formatting import Outcome
from l0gc.keys import SCANS
from l0gc.limits import ENTRY_LIMIT
from l0gc.runtime import Runtime
from l0gc.storage.entry import pack_sealed, unpack_sealed
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.parallel import Parallel
from l0gc.watermark.compute import Watermark, check_cluster_id
from l0gc.watermark.histogram import Histogram

_log: Final = logging.getLogger(__name__)

FORMAT_VERSION: Final = 1
"""The version of the format, which increases if a field is added or changes its meaning; see docs/reference/format.md.
"""
KEEP_SCANS: Final = 1000
"""The largest number of snapshots that are kept."""
KEEP_DAYS: Final = 90
_DAY_MS: Final = 86_400_000
_KEY: Final = re.compile(re.escape(SCANS) + r"[0-9]{15}-[0-9a-f-]{36}")
MAX_ROWS: Final = 100_000
"""The largest number of rows. If there are more epochs, the oldest ones share a row, so that a snapshot stays around a
megabyte.
"""


class ScanRow(msgspec.Struct, frozen=True):
    """The objects of the bucket at one epoch.

    Attributes:
        epoch: The epoch; null for keys that are not L0 keys.
        objects: The number of objects at that epoch.
        bytes: Their size.
        oldest_ms: When the oldest of the objects was written, by the store's clock.
        held_by: The partition with the lowest M(p), as `topic/partition`, if it may still need the epoch; otherwise
            empty.
        holders: The number of partitions that may still need the epoch. If it is 0, the epoch is eligible, or newer
            than the run's snapshot.
    """

    epoch: int | None
    objects: int
    bytes: int
    oldest_ms: int
    held_by: str = ""
    holders: int = 0


class ScanTotals(msgspec.Struct, frozen=True, kw_only=True):
    """The totals of a scan.

    Attributes:
        cluster_id: The cluster.
        taken_ms: When the run had finished reading the bucket, by the store's clock; the snapshot's key begins with it.
        watermark: The M that the run computed; L0 objects at or below it are eligible.
        cluster_epoch: The epoch of the run's snapshot.
        objects: The number of objects below the L0 prefix.
        bytes: Their size.
        eligible_objects: The number of eligible objects.
        eligible_bytes: Their size.
        unparsable: The number of keys that are not L0 keys; `objects` includes them.
        unparsable_bytes: The size of their objects.
        unparsable_samples: Up to five of these keys.
        oldest_eligible_ms: When the oldest eligible object was written; null if none is eligible.
        oldest_held_ms: When the oldest L0 object that is not eligible was written; null if there is none.
        merged_epochs: The number of epochs that the first row sums up; 0 if each has its own row.
    """

    cluster_id: str
    taken_ms: int
    watermark: int
    cluster_epoch: int
    objects: int
    bytes: int
    eligible_objects: int
    eligible_bytes: int
    unparsable: int
    unparsable_bytes: int = 0
    unparsable_samples: list[str] = []
    oldest_eligible_ms: int | None = None
    oldest_held_ms: int | None = None
    merged_epochs: int = 0


class ScanSnapshot(msgspec.Struct, frozen=True):
    """The result of a scan. `rows` are in order of epoch. If there are keys that are not L0 keys, their row comes last."""

    totals: ScanTotals
    rows: list[ScanRow]

    @property
    def epochs(self) -> list[ScanRow]:
        """Return the rows of L0 objects."""
        return [r for r in self.rows if r.epoch is not None]


class ScanReport(ScanTotals, Outcome, frozen=True, kw_only=True):
    """The form in which compute-watermark reports a scan: the totals, the rows of L0 objects, and ages by the store's
    clock.

    Its JSON omits fields that are printed elsewhere or as ages.
    """

    hidden: ClassVar[frozenset[str]] = frozenset(
        {"cluster_id", "watermark", "cluster_epoch"}
        | {"unparsable_bytes", "oldest_eligible_ms", "oldest_held_ms", "merged_epochs"}
    )

    oldest_eligible_age_s: float | None
    oldest_held_age_s: float | None
    epochs: list[ScanRow]

    @classmethod
    def of(cls, scan: ScanSnapshot) -> ScanReport:
        totals = scan.totals
        eligible_s, held_s = (
            None if written_ms is None else max(0, totals.taken_ms - written_ms) / 1000
            for written_ms in (totals.oldest_eligible_ms, totals.oldest_held_ms)
        )
        return cls(
            **msgspec.structs.asdict(totals),
            oldest_eligible_age_s=eligible_s,
            oldest_held_age_s=held_s,
            epochs=scan.epochs,
        )


def snapshot_of(
    histogram: Histogram,
    watermark: Watermark,
    holders: Callable[[int], tuple[str, int]],
    cluster_id: str,
    taken_ms: int,
) -> ScanSnapshot:
    """Return the snapshot of a scan: its totals under M, and which partitions hold the objects that are not eligible."""
    l0 = [
        ScanRow(epoch, row.objects, row.bytes, row.oldest_ms, *holders(epoch))
        for epoch, row in sorted((e, r) for e, r in histogram.rows.items() if e is not None)
    ]
    unparsable = [ScanRow(None, r.objects, r.bytes, r.oldest_ms) for e, r in histogram.rows.items() if e is None]
    rows = l0 + unparsable
    eligible = [r for r in l0 if r.epoch is not None and r.epoch <= watermark.watermark]
    totals = ScanTotals(
        cluster_id=cluster_id,
        taken_ms=taken_ms,
        watermark=watermark.watermark,
        cluster_epoch=watermark.cluster_epoch,
        objects=sum(r.objects for r in rows),
        bytes=sum(r.bytes for r in rows),
        eligible_objects=sum(r.objects for r in eligible),
        eligible_bytes=sum(r.bytes for r in eligible),
        unparsable=sum(r.objects for r in unparsable),
        unparsable_bytes=sum(r.bytes for r in unparsable),
        unparsable_samples=histogram.samples if unparsable else [],
        oldest_eligible_ms=oldest_ms(eligible),
        oldest_held_ms=oldest_ms(l0[len(eligible) :]),
    )
    return ScanSnapshot(totals, rows)


def oldest_ms(rows: Sequence[ScanRow]) -> int | None:
    return min((r.oldest_ms for r in rows), default=None)


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    """The stored form of a snapshot; its rows are decoded only if they are needed."""

    version: int
    totals: msgspec.Raw
    rows: msgspec.Raw


_KEPT: Final = msgspec.msgpack.Decoder(_Kept)
_TOTALS: Final = msgspec.msgpack.Decoder(ScanTotals)
_ROWS: Final = msgspec.msgpack.Decoder(list[ScanRow])


def scan_key(taken_ms: int, new_id: str) -> str:
    """Return the key of a run's snapshot. Keys sort by time."""
    return f"{SCANS}{taken_ms:015}-{new_id}"


def list_scans(store: ObjectStore) -> list[str]:
    return sorted(k for k in store.list(SCANS).modified_ms if _KEY.fullmatch(k))


def old_scans(keys: Sequence[str], now_ms: int, keep: int = KEEP_SCANS) -> list[str]:
    """Return the keys of snapshots that are older than `KEEP_DAYS`, or not among the `keep` newest."""
    snapshots = sorted(k for k in keys if _KEY.fullmatch(k))
    before = scan_key(max(0, now_ms - KEEP_DAYS * _DAY_MS), "")
    return [k for i, k in enumerate(snapshots) if i < len(snapshots) - keep or k < before]


def keep_scan(store: ObjectStore, runtime: Runtime, scan: ScanSnapshot) -> str | None:
    """Write a snapshot and return its key. M is already published, so an error is only logged, and None returned."""
    try:
        return write_scan(store, runtime, scan)
    except (StoreError, NotFoundError) as e:
        _log.warning("M is published, but the scan snapshot could not be written: %s", e, extra=event("scan_not_kept"))
        return None


def write_scan(store: ObjectStore, runtime: Runtime, scan: ScanSnapshot) -> str:
    key = scan_key(scan.totals.taken_ms, runtime.new_id())
    store.put(key, encode_scan(key, scan))
    return key


def encode_scan(key: str, scan: ScanSnapshot) -> bytes:
    scan = _bounded(scan)
    return pack_sealed(key, msgspec.msgpack.encode((FORMAT_VERSION, scan.totals, scan.rows)), ENTRY_LIMIT)


def _bounded(scan: ScanSnapshot) -> ScanSnapshot:
    """Return the scan; if it has too many epochs, the oldest ones are merged into one row. The totals stay exact.

    The lowest epochs become eligible first, and the next sweep deletes eligible objects. The row has the highest of its
    epochs, and that epoch's holders, which include the holders of the others.
    """
    epochs = scan.epochs
    surplus = len(epochs) - MAX_ROWS
    if surplus <= 0:
        return scan
    old, last = epochs[: surplus + 1], epochs[surplus]
    merged = msgspec.structs.replace(
        last,
        objects=sum(r.objects for r in old),
        bytes=sum(r.bytes for r in old),
        oldest_ms=min(r.oldest_ms for r in old),
    )
    totals = msgspec.structs.replace(scan.totals, merged_epochs=len(old))
    return ScanSnapshot(totals, [merged, *scan.rows[surplus + 1 :]])


def read_scan(store: ObjectStore, key: str, cluster_id: str) -> ScanSnapshot:
    """Return the snapshot at `key`.

    Raises:
        CorruptObjectError: the snapshot cannot be read, has a newer version, or has changed since it was written.
        ClusterMismatchError: the snapshot belongs to another cluster.
        ObjectNotFoundError: the snapshot has expired.
    """
    totals, rows = _opened(store.get(key).body, key, cluster_id)
    return ScanSnapshot(totals, decoded(_ROWS, rows, f"{key} cannot be read as a scan snapshot"))


def _opened(body: bytes, key: str, cluster_id: str) -> tuple[ScanTotals, msgspec.Raw]:
    """Return the totals, and the rows in their stored form."""
    try:
        kept = unpack_sealed(key, body, _KEPT, ENTRY_LIMIT)
        if kept.version != FORMAT_VERSION:
            raise CorruptObjectError(
                f"it is of version {kept.version}, and this l0gc reads versions up to {FORMAT_VERSION}"
            )
        totals = _TOTALS.decode(kept.totals)
    except (CorruptObjectError, *UNDECODABLE) as e:
        raise CorruptObjectError(
            f"{key} cannot be read as a scan snapshot ({fault_of(e, key)}); nothing depends on it, and l0gc "
            "compute-watermark writes a newer one"
        ) from e
    check_cluster_id(cluster_id, totals.cluster_id, key)
    return totals, kept.rows


def read_trend(
    store: ObjectStore, parallel: Parallel, cluster_id: str, last: int = 100
) -> tuple[list[ScanTotals], int]:
    """Return the totals of the `last` newest snapshots, oldest first, and how many of these snapshots are unreadable or
    belong to another cluster.
    """

    def read(key: str) -> list[ScanTotals] | None:
        try:
            return [_opened(store.get(key).body, key, cluster_id)[0]]
        except ObjectNotFoundError:
            return []  # the snapshot has expired since it was listed
        except (CorruptObjectError, ClusterMismatchError):
            return None

    each = parallel.map(read, list_scans(store)[-last:] if last > 0 else [])
    return [totals for scan in each for totals in scan or ()], each.count(None)
