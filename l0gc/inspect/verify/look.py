"""Looking at a bucket: a partition by its log, an object by itself, reports by their most. Reads only.

An object that is asked for by its own key is found whatever a listing said of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq

from l0gc.errors import CorruptObjectError, ObjectNotFoundError, StoreError
from l0gc.inspect.verify.rules import PartitionLook, ReportTop
from l0gc.keys import PartitionId, partition_log
from l0gc.runtime import Runtime
from l0gc.storage.log import SharedLog
from l0gc.storage.objectstore import ListedPage, ObjectStore
from l0gc.storage.replica import Replica
from l0gc.streamlog.ingest import extents
from l0gc.streamlog.journal.entries import L1File, Unreconciled
from l0gc.streamlog.journal.state import PartitionMachine, PartitionState
from l0gc.streamlog.level_one.parquet import L1_SCHEMA
from l0gc.streamlog.reader import StoredFile
from l0gc.watermark.compute import PartitionReport

_ROWS = 4096


def look_at(store: ObjectStore, runtime: Runtime, p: PartitionId) -> PartitionLook:
    """The partition as its log has it now.

    Raises:
        CorruptObjectError: the log cannot be read.
    """
    replica: Replica[PartitionState] = Replica(
        SharedLog(store, partition_log(p), runtime), PartitionMachine(p), runtime
    )
    beyond = True
    for _ in range(2):  # a truncation may have taken the entry between the replay and the question for it
        replica.replay()
        beyond = replica.offset == replica.checkpoint_offset >= 0 and not _exists(
            store, replica.log.entry_key(replica.offset)
        )
        if not beyond:
            break
    return PartitionLook(p, replica.state, replica.offset, beyond)


def _exists(store: ObjectStore, key: str) -> bool:
    try:
        store.get(key)
    except ObjectNotFoundError:
        return False
    return True


def size_of(store: ObjectStore, key: str) -> int | None:
    """The size of an object; None if it is not there."""
    for page in store.scan(key):
        if key in page.keys:
            return page.sizes[page.keys.index(key)]
        break
    try:
        return len(store.get(key).body)
    except ObjectNotFoundError:
        return None


def scan_between(store: ObjectStore, prefix: str, start: str, stop: str) -> Iterator[ListedPage]:
    """The keys below `prefix` above `start` and up to `stop`, an empty one being no bound; neither is itself a key.

    A page out of order costs requests alone: the listing is then read to its end.
    """
    last, ordered = start, True
    for page in store.scan(prefix, start):
        ordered = ordered and page.keys[0] > last and all(a < b for a, b in pairwise(page.keys))
        last = page.keys[-1]
        inside = [i for i, k in enumerate(page.keys) if k > start and (not stop or k <= stop)]
        if inside:
            yield ListedPage(
                [page.keys[i] for i in inside],
                [page.sizes[i] for i in inside],
                [page.modified_ms[i] for i in inside],
            )
        if ordered and stop and last > stop:
            return


# -- contents -------------------------------------------------------------------------------------------------------------


def extent_faults(store: ObjectStore, key: str, refs: Sequence[Unreconciled]) -> list[tuple[Unreconciled, str]] | None:
    """Which extents of an L0 object do not hold what the log says, and how.

    None if the object is missing or too short: that is for whoever lists to find.
    """
    try:
        bodies = store.get_ranges(key, [(u.placeholder.start, u.placeholder.length) for u in refs])
    except ObjectNotFoundError:
        return None
    except StoreError:
        if _is_short(store, key, refs):
            return None
        raise
    faults = []
    for u, body in zip(refs, bodies, strict=True):
        try:
            extents.decode(body, u.placeholder)
        except CorruptObjectError as e:
            faults.append((u, str(e)))
    return None if faults and _is_short(store, key, refs) else faults


def _is_short(store: ObjectStore, key: str, refs: Sequence[Unreconciled]) -> bool:
    size = size_of(store, key)
    return size is None or size < max(u.placeholder.start + u.placeholder.length for u in refs)


def l1_fault(store: ObjectStore, f: L1File) -> str | None:
    """How an L1 object does not hold what the log says; empty if it does. Page checksums are checked where it has them.

    None if the object is missing or of another size: that is for whoever lists to find.
    """
    try:
        fault = _l1_content_fault(store, f)
    except (StoreError, ObjectNotFoundError):
        if size_of(store, f.key) != f.bytes:
            return None
        raise
    return None if fault and size_of(store, f.key) != f.bytes else fault


def _l1_content_fault(store: ObjectStore, f: L1File) -> str:
    at = f.base_offset
    try:
        parquet = pq.ParquetFile(StoredFile(store, f.key, f.bytes), pre_buffer=False, page_checksum_verification=True)
        if parquet.schema_arrow != L1_SCHEMA:
            return "its columns are not those of an L1 object"
        for batch in parquet.iter_batches(_ROWS):
            batch.validate(full=True)
            offsets = batch.column("offset").to_numpy()
            if len(offsets) and (offsets[0] != at or (offsets[1:] - offsets[:-1] != 1).any()):
                return f"record {at} is not where it should be"
            at += len(offsets)
    except (pa.ArrowException, OSError, ValueError) as e:
        return f"it cannot be read: {str(e).splitlines()[0]}"
    return "" if at == f.last_offset + 1 else f"it ends at record {at - 1}, not {f.last_offset}"


# -- reports --------------------------------------------------------------------------------------------------------------


def top_of(report: PartitionReport, key: str, known: ReportTop | None) -> ReportTop:
    """The most that `known` and the report in file `key` say."""
    if known is None:
        known = ReportTop(report.topic, report.revision, report.partition, -2, -1, -1, -2, -2, key)
    return ReportTop(
        report.topic,
        report.revision,
        report.partition,
        max(known.gc_epoch, report.gc_epoch),
        max(known.max_applied_epoch, report.max_applied_epoch),
        max(known.next_offset, report.next_offset),
        max(known.last_reconciled_offset, report.last_reconciled_offset),
        max(known.log_offset, report.log_offset),
        key if report.gc_epoch > known.gc_epoch else known.key,
    )
