"""Give up lost records by name: their offsets become a hole, and the rest of the partition continues.

A hole is an L1 object without rows. Its footer records who gave up which records, when and why; before the footer lie the
bytes that were left. It is an ordinary L1 object to everything except readers: an edit lists it, retention drops it, and
vacuum deletes it.

Why it is safe (hazards 34 and 35): every block with any of the records is read several times, some seconds apart. If one
read succeeds, or if the store merely refuses a block, the request is refused unless the caller insists. The hole is read
back before its journal lists it. It covers whole extents right after the last reconciled offset; `fits` checks this where
the edit lands. So records that another process has lifted, deleted or given up by then are refused. Records in L1 cannot
be given up: a lost L1 object does not hold back M, readers can skip it, and it can still be restored later.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from l0gc.errors import (
    CorruptObjectError,
    NotFoundError,
    ObjectNotFoundError,
    RefusedObjectError,
    SafetyError,
    StoreError,
    UnansweredObjectError,
    UsageError,
)
from l0gc.formatting import Outcome
from l0gc.keys import level_one
from l0gc.limits import MAX_FOOTER_BYTES, MAX_HOLE_BYTES
from l0gc.storage.objectstore import ObjectStore, ask_of_one, if_there, read_again
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import Topic, by_journal
from l0gc.streamlog.ingest.extents import decode_block
from l0gc.streamlog.journal.entries import GIVE_UP
from l0gc.streamlog.journal.handle import LandedEdit
from l0gc.streamlog.journal.rows import L1_ROW, MAX_OFFSET, Rows, indices_in, name_bytes
from l0gc.streamlog.journal.topic import Extent, Hole, TopicState, l1_file
from l0gc.streamlog.level_one.edit import Editor
from l0gc.streamlog.level_one.parquet import (
    GIVEN_UP_METADATA,
    KEY_METADATA,
    L1_SCHEMA,
    PARTITION,
    read_footer,
    seal_footer,
)
from l0gc.watermark.publication import refuse_if_set_back

LOOKS: Final = 3
APART_S: Final = 2.0
"""Records count as lost if this many reads, this many seconds apart, fail, since a single read may hit a bad replica
(hazard 34).
"""
_MAGIC: Final = b"PAR1"
"""The first bytes of a Parquet file."""


class LostBlock(msgspec.Struct, frozen=True):
    """A block of an L0 object with lost records: why it could not be read, and where its remaining bytes are.

    They are the `bytes` bytes from byte `at` of the hole's object, with the CRC32C `crc32c`; if `bytes` is 0, nothing
    remained. Several partitions may share a block. The first partition's hole has its bytes, and `content_in` is the key
    of that hole.
    """

    key: str
    start: int
    why: str
    at: int = 0
    bytes: int = 0
    crc32c: int = 0
    content_in: str = ""


@dataclass(frozen=True, slots=True)
class Remains:
    """The bytes that were read of a block, and why they differ from the log; '' if they do not."""

    key: str
    start: int
    why: str
    content: bytes = b""


class GiveUpRecord(msgspec.Struct, frozen=True):
    """The content of a hole's footer: the records that were given up, by whom, when and why, and when the oldest one
    landed.
    """

    by: str
    at_ms: int
    topic: str
    revision: int
    partition: int
    first_offset: int
    last_offset: int
    blocks: list[LostBlock]
    oldest_ms: int


class _Oldest(msgspec.Struct, frozen=True):
    oldest_ms: int


@dataclass(slots=True)
class GiveUpResult(Outcome):
    """The records that were given up.

    Attributes:
        records: How many records were turned into holes.
        partitions: How many partitions they were in.
        holes: Each range: `topic`, `partition`, `first_offset`, `last_offset`, and the `key` of the L1 object without
            rows.
        errors: Ranges that were not given up, because another process changed them in the meantime. If there are any, the
            exit code is 3.
    """

    records: int = 0
    partitions: int = 0
    holes: list[Hole] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    unfinished: ClassVar[str] = "not all records were given up"


@dataclass(frozen=True, slots=True)
class _Lost:
    """The consecutive extents of a partition to give up."""

    topic: Topic
    partition: int
    extents: list[Extent]

    @property
    def name(self) -> str:
        return f"{self.topic.name}/{self.partition}"


def give_up(
    cluster: ClusterHandles,
    by: str,
    *,
    objects: Sequence[str] = (),
    topic: str = "",
    partition: int = -1,
    offsets: tuple[int, int] | None = None,
    force_readable: bool = False,
    confirm: Callable[[], object] | None = None,
) -> GiveUpResult:
    """Turn lost records into a permanent hole: all records of some L0 objects, or a range of a partition.

    Args:
        by: who gives the records up, for the footer.
        objects: the keys of L0 objects.
        offsets: the first and the last record of the range in the topic's partition.
        force_readable: give the records up even if some of them can be read.
        confirm: called once the records are chosen, before they are read; if it raises, nothing is given up. So a
            confirmation never covers a topic that was created later under the same name.

    Raises:
        NotFoundError: the topic or the records do not exist, or no journal needs such an object.
        UsageError: they cannot be given up, or other records must be lifted first.
        SafetyError: some of them can be read, or the store refuses their object.
        StoreError: the store does not answer, even for one object only, or has no room; nothing was given up.
        EpochRegressionError: a published epoch is above the cluster epoch (hazard 10).
    """
    refuse_if_set_back(cluster)
    if bool(objects) == (offsets is not None):
        raise UsageError("nothing to give up: name L0 objects, or a topic, its partition and offsets")
    state = cluster.controller.snapshot()
    if offsets is not None:
        lost = [_by_offsets(cluster, state.topic(topic), partition, *offsets)]
    else:
        lost = _by_objects(cluster, list(state.topics.values()), set(objects))
    if confirm is not None:
        confirm()
    blocks = _blocks(cluster, lost, force_readable)
    epoch = cluster.controller.snapshot().epoch
    with cluster.writing():
        rows = _write(cluster, by, lost, blocks, epoch)
        return _land(cluster, lost, rows, epoch)


# -- select ---------------------------------------------------------------------------------------------------------------


def _by_offsets(cluster: ClusterHandles, topic: Topic, partition: int, first: int, last: int) -> _Lost:
    """Select a partition's records from `first` to `last`. Raises as `give_up`."""
    if not 0 <= first <= last <= MAX_OFFSET:
        raise UsageError(f"{first}-{last} is not a range of offsets; use for example 20-29")
    states = cluster.journal(topic.journal_of(partition)).topics([topic])
    state = states[0] if states else TopicState(topic.revision, topic.topic_id)
    view, where = state.view(partition), f"the records {first} to {last} of partition {topic.name}/{partition}"
    if last >= view.next_offset:
        raise NotFoundError(f"{where} do not all exist: its next one will have offset {view.next_offset}")
    if first < view.log_start_offset:
        raise NotFoundError(f"{where} were deleted in part or whole: it begins at offset {view.log_start_offset}")
    if first <= view.last_reconciled_offset:
        raise UsageError(
            f"{where} are in L1 up to {view.last_reconciled_offset}, as records or as a hole, and records in L1 cannot be "
            "given up: restore their object, or delete older records with l0gc delete-records"
        )
    extents = [e for e in state.extents(partition) if e.base_offset <= last and e.last_offset >= first]
    for e in extents:
        begin = max(e.base_offset, view.log_start_offset)
        if begin < first or e.last_offset > last:
            raise UsageError(
                f"the records {begin} to {e.last_offset} of partition {topic.name}/{partition} lie together in {e.key}: "
                "give up all of them or none"
            )
    lost = _Lost(topic, partition, extents)
    _check_next(state, lost)
    return lost


def _by_objects(cluster: ClusterHandles, topics: Sequence[Topic], keys: set[str]) -> list[_Lost]:
    """Select all unreconciled records that lie in some objects. Raises as `give_up`."""

    by_revision = {topic.revision: topic for topic in topics}

    def look(part: tuple[int, list[Topic]]) -> list[_Lost]:
        states = cluster.journal(part[0]).topics(part[1])
        return [lost for state in states for lost in _of_topic(state, by_revision[state.revision], keys)]

    by_object = cluster.parallel.map(look, by_journal(topics).items())
    lost = [one for lost_here in by_object for one in lost_here]
    for key in sorted(keys - {e.key for one in lost for e in one.extents}):
        raise NotFoundError(f"no journal needs {key}: none of its records is unreconciled; nothing was given up")
    return lost


def _of_topic(state: TopicState, topic: Topic, keys: set[str]) -> Iterator[_Lost]:
    by_object = [o.extents["partition"] for o in state.objects if o.key in keys]
    if not by_object:
        return
    partitions = np.unique(np.concatenate(by_object))
    extents: dict[int, list[Extent]] = {p: [] for p in partitions.tolist()}
    for o in state.objects:
        for row in o.extents[indices_in(partitions, o.extents["partition"])[1]]:
            extents[int(row["partition"])].append(o.extent(row))
    for partition, of_partition in extents.items():
        ends = [n for n, e in enumerate(of_partition) if e.key in keys]
        lost = _Lost(topic, partition, of_partition[ends[0] : ends[-1] + 1])
        for e in lost.extents:
            if e.key not in keys:
                raise _not_next(lost, e)
        _check_next(state, lost)
        yield lost


def _check_next(state: TopicState, lost: _Lost) -> None:
    """Raise `UsageError` if records before the lost ones are not in L1."""
    for e in state.extents(lost.partition):
        if e.base_offset < lost.extents[0].base_offset:
            raise _not_next(lost, e)


def _not_next(lost: _Lost, before: Extent) -> UsageError:
    return UsageError(
        f"the records {before.base_offset} to {before.last_offset} of partition {lost.name} come before and are not in L1; "
        f"nothing was given up. Lift them first with l0gc reconcile, or give them up, too: --object {before.key}"
    )


def _blocks(cluster: ClusterHandles, lost: Sequence[_Lost], force_readable: bool) -> dict[tuple[str, int], Remains]:
    """Return the remains of each block that holds some of the records, by key and start. Raises as `give_up`.

    Damaged bytes match no checksum, so the hole keeps those that most readings returned (hazard 34).
    """
    extents: dict[str, list[tuple[_Lost, Extent]]] = {}
    for one in lost:
        for e in one.extents:
            extents.setdefault(e.key, []).append((one, e))

    def look(key: str) -> list[Remains]:
        try:
            return read_back(cluster, key, [e for _, e in extents[key]])
        except (RefusedObjectError, UnansweredObjectError) as e:
            if force_readable:
                cause = str(e)
                return [Remains(key, extent.block.start, cause) for _, extent in extents[key]]
            if isinstance(e, UnansweredObjectError):
                raise StoreError(f"{e}; its records may be whole, so nothing was given up") from e
            raise SafetyError(
                f"{e}; it is not known whether its records are lost, so nothing was given up. Insist with --force-readable"
            ) from e

    read: dict[tuple[str, int], list[Remains]] = {}
    for n in range(LOOKS):
        if n:
            cluster.runtime.clock.sleep(APART_S)
        for key, remains in zip(extents, cluster.parallel.map(look, extents), strict=True):
            for (one, e), block in zip(extents[key], remains, strict=True):
                if not block.why and not force_readable:
                    raise SafetyError(
                        f"not everything is lost: the records {e.base_offset} to {e.last_offset} of partition {one.name} "
                        f"can be read in {key}; nothing was given up. Lift them with l0gc reconcile, or insist with "
                        "--force-readable"
                    )
                read.setdefault((key, block.start), []).append(block)
    return {block: _most_often(copies) for block, copies in read.items()}


def _most_often(read: Sequence[Remains]) -> Remains:
    """Return the reading of a block to keep: one that succeeded, or else the most frequent one."""
    times = Counter(r.content for r in read)
    return max(read, key=lambda r: (not r.why, bool(r.content), times[r.content]))


def read_back(cluster: ClusterHandles, key: str, extents: Sequence[Extent]) -> list[Remains]:
    """Try to read some extents of an object; return the block of each, with the reason why it is lost, or '' if it can be
    read.

    Raises `RefusedObjectError`, `UnansweredObjectError` or `StoreError` if that cannot be determined.
    """
    try:
        body, why = ask_of_one(cluster.store, cluster.store.get, key).body, ""
    except ObjectNotFoundError as error:
        body, why = b"", str(error)
    tried: dict[tuple[int, int], Remains] = {}
    for e in extents:
        at_least = e.row + e.records
        if (e.block.start, at_least) not in tried:
            content, fault = body[e.block.start : e.block.start + e.block.length], why
            if not fault:
                try:
                    decode_block(content, key, e.block, at_least)
                except CorruptObjectError as damage:
                    fault = str(damage)
            tried[e.block.start, at_least] = Remains(key, e.block.start, fault, content)
    return [tried[e.block.start, e.row + e.records] for e in extents]


# -- write and land ---------------------------------------------------------------------------------------------------------


def _write(
    cluster: ClusterHandles, by: str, lost: Sequence[_Lost], blocks: dict[tuple[str, int], Remains], epoch: int
) -> list[Rows]:
    """Write the hole of each partition durably; return their rows of `L1_ROW`. Raises as `give_up`."""
    at_ms = cluster.now_ms()
    holes: list[tuple[str, bytes, Rows]] = []
    kept: dict[tuple[str, int], LostBlock] = {}
    for one in lost:
        p, name = one.topic.id(one.partition), cluster.runtime.new_id()
        first, last = one.extents[0].base_offset, one.extents[-1].last_offset
        key = level_one(p, epoch, first, last, name)
        of_hole, remains = list[LostBlock](), list[bytes]()
        for source in dict.fromkeys((e.key, e.block.start) for e in one.extents):
            if source in kept:
                of_hole.append(kept[source])
                continue
            read = blocks[source]
            at = len(_MAGIC) + sum(map(len, remains))
            block = LostBlock(read.key, read.start, read.why, at, len(read.content), crc32c(read.content))
            of_hole.append(block)
            if read.content:
                remains.append(read.content)
                kept[source] = msgspec.structs.replace(block, content_in=key)
        times = [e.block.time_ms for e in one.extents]
        record = GiveUpRecord(by, at_ms, one.topic.name, p.revision, one.partition, first, last, of_hole, min(times))
        body = hole_body(key, record, remains)
        row = np.array([(one.partition, first, last, 0, max(times), epoch, name_bytes(name), 1)], L1_ROW)
        row["bytes"] = len(body)
        holes.append((key, body, row))

    def put(hole: tuple[str, bytes, Rows]) -> Rows:
        key, body, row = hole
        cluster.store.put(key, body)

        def check() -> None:
            stored = if_there(cluster.store.get, key)  # None if a vacuum has deleted it: this run has been fenced off
            if stored is None or stored.body != body:
                raise CorruptObjectError(
                    f"{key} does not hold the bytes that were written to it; nothing was given up: run it again"
                )

        read_again(check)
        return row

    return cluster.parallel.map(put, holes)


def oldest_in_hole(store: ObjectStore, key: str, size: int) -> int:
    """Return the time when the oldest record of a hole landed. Raises `CorruptObjectError`, `ObjectNotFoundError`."""
    metadata, _ = read_footer(store, key, size)
    try:
        record = (metadata.metadata or {})[GIVEN_UP_METADATA.encode()]
        return msgspec.json.decode(record, type=_Oldest).oldest_ms
    except (KeyError, msgspec.MsgspecError) as e:
        raise CorruptObjectError(f"{key} is not a hole that l0gc wrote; restore that object from a version") from e


def hole_body(key: str, record: GiveUpRecord, remains: Sequence[bytes] = ()) -> bytes:
    """Return the bytes of a hole: Parquet's magic bytes, the remains, and a footer without row groups.

    Raises `UsageError` if the remains, or the footer, are more than readers accept (hazard 39).
    """
    said, size = msgspec.json.encode(record), sum(map(len, remains))
    for text, number, most in (("remains", size, MAX_HOLE_BYTES), ("notes", len(said), MAX_FOOTER_BYTES // 2)):
        if number > most:
            raise UsageError(
                f"the records {record.first_offset} to {record.last_offset} of partition {record.topic}/{record.partition} "
                f"have {text} of {number:,} bytes, more than the {most:,} that a hole may keep; nothing was given up: give "
                "up fewer at once, with --offsets"
            )
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, pa.schema([*L1_SCHEMA, PARTITION]), store_schema=False) as writer:
        writer.add_key_value_metadata({KEY_METADATA: key, GIVEN_UP_METADATA: said})
    file = io.BytesIO(sink.getvalue())
    seal_footer(file)
    body = file.getvalue()
    assert body.startswith(_MAGIC)
    return b"".join([_MAGIC, *remains, body[len(_MAGIC) :]])


def _land(cluster: ClusterHandles, lost: Sequence[_Lost], rows: Sequence[Rows], epoch: int) -> GiveUpResult:
    result = GiveUpResult()
    of_journal: dict[int, list[tuple[_Lost, Rows]]] = {}
    for one, row in zip(lost, rows, strict=True):
        of_journal.setdefault(one.topic.journal_of(one.partition), []).append((one, row))
    for journal, holes in sorted(of_journal.items()):
        editor = Editor(cluster.journal(journal), {one.topic.revision: one.topic for one, _ in holes}, [])
        landed = LandedEdit()
        with editor.recording_errors():
            landed = editor.land(GIVE_UP, epoch, ((one.topic.revision, {"added": row}) for one, row in holes))
        for one, row in holes:
            hole = Hole.of(one.topic.id(one.partition), l1_file(row[0]))
            why = "; ".join(editor.errors) or landed.refused.get((one.topic.revision, one.partition))
            if why:
                records = f"the records {hole.first_offset} to {hole.last_offset} of partition {one.name}"
                result.errors.append(f"{records} were not given up: {why}")
                continue
            result.records += hole.records
            result.partitions += 1
            result.holes.append(hole)
    return result
