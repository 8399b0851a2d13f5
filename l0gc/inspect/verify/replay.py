"""Read a log with its checkpoints, or an object by its key. Nothing is written.

An object that is read by its key is found even if a listing does not show it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from l0gc.errors import CorruptObjectError, ObjectNotFoundError, RefusedObjectError, UnansweredObjectError, fault_of
from l0gc.inspect.verify.findings import Kind, ReplayedJournal
from l0gc.keys import CONTROLLER_LOG, JOURNALS, JUMP, L1Key, journal_log, parse_level_one
from l0gc.storage.log import Folder, SharedLog
from l0gc.storage.objectstore import ObjectStore, ask_of_one, if_there
from l0gc.storage.replica import Replica, StateMachine
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.entries import ControllerMachine
from l0gc.streamlog.ingest.extents import decode_block, fetch, fetch_blocks
from l0gc.streamlog.journal.checkpoint import JournalMachine
from l0gc.streamlog.journal.rows import Rows, distinct
from l0gc.streamlog.journal.summary import is_rewritten, unit_name
from l0gc.streamlog.journal.topic import Block, Extent, UnreconciledObject
from l0gc.streamlog.level_one.parquet import GIVEN_UP_METADATA, PARTITION, RangedFile, has_l1_columns, read_footer
from l0gc.watermark.publication import PublishedWatermark, ends_of

S = TypeVar("S")

_ROWS: Final = 4096
_AT_ONCE: Final = 64
"""How many entries are read before any of them is applied."""

# -- logs ----------------------------------------------------------------------------------------------------------------


def read_copy(
    cluster: ClusterHandles, journal: int, published: PublishedWatermark | None = None, *, deep: bool = False
) -> ReplayedJournal:
    """Return the journal according to the current log.

    Args:
        published: the M that was published before the call.
        deep: compare every checkpoint with its entries, if they exist, and not only the newest one.

    Raises:
        CorruptObjectError: the log cannot be read.
    """
    replica, faults = _read_log(cluster, journal_log(journal), JournalMachine(journal), deep=deep)
    rewritten = is_rewritten(ends_of(published).get(unit_name(journal)), replica.state, replica)
    return ReplayedJournal(journal, replica.state, replica.end, faults, rewritten)


def controller_faults(cluster: ClusterHandles, *, deep: bool = False) -> list[tuple[Kind, str]]:
    """Return the faults of the controller log that a replay does not detect. Raises the errors of `read_copy`."""
    return _read_log(cluster, CONTROLLER_LOG, ControllerMachine(), deep=deep)[1]


def unknown_journals(store: ObjectStore, journals: int) -> list[str]:
    """Return the first journal in the bucket that the cluster does not have, if any. This takes one request."""
    after = f"{journal_log(journals - 1).rstrip('/')}{JUMP}"
    page = next(iter(store.scan(JOURNALS, after)), None)
    keys = [] if page is None else [k for k in page.keys if k > after]
    return ["/".join(keys[0].split("/")[:3]) + "/"] if keys else []


def _read_log(
    cluster: ClusterHandles, log_folder: str, machine: StateMachine[S], *, deep: bool
) -> tuple[Replica[S], list[tuple[Kind, str]]]:
    log = SharedLog(cluster.store, log_folder, cluster.runtime, parallel=cluster.parallel)
    replica = Replica(log, machine, cluster.runtime)
    folder = replica.replay()
    faults = [*_gaps(cluster.store, log, folder), *_checkpoint_faults(cluster, log, machine, folder, deep=deep)]
    try:
        machine.decode(machine.encode(replica.state), f"what {log.entry_key(replica.offset)} leads to")
    except CorruptObjectError as e:
        faults.append((Kind.STATE_BROKEN, fault_of(e)))
    return replica, faults


def _gaps(store: ObjectStore, log: SharedLog, folder: Folder) -> Iterator[tuple[Kind, str]]:
    """Yield the missing entries that no truncation can have deleted.

    A truncation deletes only entries below the boundary, which it raises first, so the boundary is read after the
    listing. It keeps the entry of the newest checkpoint; if that entry is missing, the log has lost its end.
    """
    try:
        boundary = log.boundary.read()[0]
    except UnansweredObjectError:
        raise
    except CorruptObjectError as e:
        yield Kind.BOUNDARY_BROKEN, fault_of(e)
        return
    newest = _newest(folder)
    # A truncation may have followed the listing, so the checkpoints are listed again before this counts.
    if boundary > max(newest, 0) and boundary > max(again := _newest(log.list_folder()), 0):
        yield Kind.BOUNDARY_BROKEN, f"the boundary {boundary} is above the newest checkpoint {again}"
        return
    for offset in range(boundary, newest + 1):
        if offset in folder.entries or size_of(store, log.entry_key(offset)) is not None:
            continue
        if log.boundary.read()[0] <= offset:  # else it was truncated a moment ago
            text = f"entry {offset} is missing, between the boundary {boundary} and the newest checkpoint {newest}"
            yield Kind.LOG_GAP, text
        return


def _checkpoint_faults(
    cluster: ClusterHandles, log: SharedLog, machine: StateMachine[S], folder: Folder, *, deep: bool
) -> Iterator[tuple[Kind, str]]:
    """Yield the checkpoints that differ from the state after the entries before them, if these exist.

    An entry below the boundary may have been created again by a stale writer (hazard 7), so it proves nothing.
    """
    checkpoints, first = folder.checkpoints, _newest(folder)
    if first not in folder.entries:
        return
    try:
        boundary = log.boundary.read()[0]
    except UnansweredObjectError:
        raise
    except CorruptObjectError:
        return  # `_gaps` reports it
    while first - 1 in folder.entries and first > boundary:
        first -= 1
    starts = [c for c in ([-1] if first == 0 else []) + checkpoints[:-1] if c >= first - 1]
    if not starts:
        return
    start = starts[0] if deep else starts[-1]
    try:
        state, time_ms = machine.initial(), 0
        if start >= 0:
            kept = log.get_checkpoint(start)
            state, time_ms = machine.decode(kept.payload, log.checkpoint_key(start)), kept.time_ms
        for checkpoint in [c for c in checkpoints if c > start]:
            for at in range(start + 1, checkpoint + 1, _AT_ONCE):
                for entry in cluster.parallel.map(log.get, range(at, min(at + _AT_ONCE, checkpoint + 1))):
                    machine.apply(state, entry)
                    time_ms = max(time_ms, entry.time_ms)
            kept = log.get_checkpoint(checkpoint)
            same = machine.encode(machine.decode(kept.payload, log.checkpoint_key(checkpoint)))
            if (time_ms, machine.encode(state)) != (kept.time_ms, same):
                behind = "the beginning" if start < 0 else f"checkpoint {start}"
                text = f"checkpoint {checkpoint} differs from the state that the entries from {behind} on give"
                yield Kind.CHECKPOINT_DIFFERS, text
                return
            start = checkpoint
    except ObjectNotFoundError:
        return  # truncated in the meantime
    except UnansweredObjectError:
        raise
    except CorruptObjectError as e:
        yield Kind.CHECKPOINT_DIFFERS, f"what a checkpoint covers cannot be read: {fault_of(e)}"


def _newest(folder: Folder) -> int:
    return folder.checkpoints[-1] if folder.checkpoints else -1


# -- objects -------------------------------------------------------------------------------------------------------------


def size_of(store: ObjectStore, key: str) -> int | None:
    """Return the size of an object; None if it does not exist. Raises the errors of `ask_of_one`."""
    head = ask_of_one(store, partial(if_there, store.head), key)
    return None if head is None else head.size


# -- contents ------------------------------------------------------------------------------------------------------------


def block_faults(store: ObjectStore, o: UnreconciledObject) -> list[tuple[Extent, str]] | None:
    """Return the needed blocks that differ from the journal: the first extent of each block, and the difference.

    Return None if the object is missing or too short, which its size shows. Raises `UnansweredObjectError`.
    """
    blocks = {int(n): o.block(int(n)) for n in distinct(o.extents["block"])}
    end = max(b.start + b.length for b in blocks.values())
    try:
        bodies = fetch_blocks(store, o.key, [*blocks.values()])
    except UnansweredObjectError:
        raise
    except RefusedObjectError as e:
        return [(o.extent(o.extents[0]), fault_of(e))]
    except (ObjectNotFoundError, CorruptObjectError):
        return None
    faults = []
    for (number, block), body in zip(blocks.items(), bodies, strict=True):
        extents = o.extents[o.extents["block"] == number]
        whole = len(extents) == o.blocks["extents"][number]
        if fault := _block_fault(body, o.key, block, extents, whole=whole):
            faults.append((o.extent(extents[0]), fault))
    return None if faults and (size_of(store, o.key) or 0) < end else faults


def _block_fault(body: bytes, key: str, block: Block, extents: Rows, *, whole: bool) -> str:
    try:
        records = decode_block(body, key, block).num_rows
    except CorruptObjectError as e:
        return fault_of(e)
    # Extents lie one after another in a block. Between the remaining ones, there may be some that are in L1.
    ends = extents["row"] + extents["records"]
    begins = np.append(extents["row"][1:], records)
    if (ends > begins).any() or (whole and (extents["row"][0] or (ends != begins).any())):
        return f"the block at byte {block.start} holds {records} records that are not those in the journal"
    return ""


def l1_fault(store: ObjectStore, key: str, size: int) -> str | None:
    """Return how an L1 object differs from its key; empty if it does not differ. Page checksums are checked if they
    exist.

    Return None if the object is missing or has another size, which the first check shows. Raises
    `UnansweredObjectError`.
    """
    parsed = parse_level_one(key)
    if parsed is None:
        return "its key is not an L1 object's"
    fault = ""
    try:
        fault = _l1_content_fault(store, key, size, parsed)
        return None if fault and size_of(store, key) != size else fault
    except ObjectNotFoundError:
        return None
    except RefusedObjectError as e:
        return fault or fault_of(e)


def _l1_content_fault(store: ObjectStore, key: str, size: int, said: L1Key) -> str:
    at = said.base
    try:
        file = RangedFile(size, lambda start, length: fetch(store, key, [(start, length)])[0])
        metadata, _ = read_footer(store, key, size)
        parquet = pq.ParquetFile(file, metadata=metadata, pre_buffer=False, page_checksum_verification=True)
        if not has_l1_columns(parquet.schema_arrow, only=True):
            return "its columns are not those of an L1 object"
        for batch in parquet.iter_batches(_ROWS, use_threads=False):
            batch.validate(full=True)
            offsets = batch.column("offset").to_numpy()
            if len(offsets) and (offsets[0] != at or (offsets[1:] - offsets[:-1] != 1).any()):
                return f"record {at} is not where it should be"
            named = PARTITION.name in batch.schema.names
            if named and (batch.column(PARTITION.name).to_numpy() != said.partition).any():
                return f"its column {PARTITION.name} names another partition than its key"
            at += len(offsets)
    except UnansweredObjectError:
        raise
    except (CorruptObjectError, pa.ArrowException, OSError, ValueError) as e:
        return f"it cannot be read: {fault_of(e, key).splitlines()[0]}"
    if at == said.base and GIVEN_UP_METADATA.encode() in (metadata.metadata or {}):
        return ""  # a hole
    return "" if at == said.last + 1 else f"it ends at record {at - 1}, not {said.last}"
