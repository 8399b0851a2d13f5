"""The processes of the search over L1's life, which are l0gc's own runs.

Only Parquet is replaced: a key gives the offsets of an object's records, and its body the number of their value schema,
if there is one.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, cast
from unittest import mock

import numpy as np
import pyarrow as pa

import l0gc.streamlog.level_one.give_up
import l0gc.streamlog.level_one.merge
import l0gc.streamlog.level_one.merge_plan
import l0gc.streamlog.level_one.parquet
import l0gc.streamlog.level_one.reconcile
import l0gc.streamlog.level_one.rewrite
import l0gc.streamlog.reader
from l0gc import columns
from l0gc.collect.vacuum import VacuumRun
from l0gc.errors import (
    CorruptObjectError,
    NotFoundError,
    ObjectNotFoundError,
    OffsetOutOfRangeError,
    PartitionClosedError,
    SafetyError,
    UnsupportedFormatError,
    UsageError,
)
from l0gc.operations import Read, Vacuum
from l0gc.runtime import Runtime
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.delete_records import delete_records
from l0gc.streamlog.garbage import JournalGarbage
from l0gc.streamlog.journal.rows import L1_ROW, Rows, is_hole, name_bytes
from l0gc.streamlog.journal.topic import STAMPED, Extent, TopicState, UnreconciledObject, l1_file, l1_key
from l0gc.streamlog.level_one.give_up import Remains, give_up
from l0gc.streamlog.level_one.merge import Share, _merge_share
from l0gc.streamlog.level_one.merge_plan import MergeGroup, MergeRule
from l0gc.streamlog.level_one.parquet import (
    L1_FILE,
    L1_SCHEMA,
    RECORD,
    SCHEMA_METADATA,
    L1Chunk,
    OpenL1File,
    RowGroup,
    WantedFile,
)
from l0gc.streamlog.level_one.plan import Window
from l0gc.streamlog.level_one.reconcile import Commit
from l0gc.streamlog.level_one.rewrite import RewriteResult, _check_columns
from l0gc.streamlog.offset_reader import OffsetReader, _holding
from l0gc.streamlog.reader import read_pieces, slices_of
from tests.exhaustive.l1_process import TOPIC, BrokenError, FakeCluster, Replica, View, topic_with

P: Final = TOPIC.id(0)
RULE: Final = MergeRule(1 << 30, 2)


class Local(NamedTuple):
    """A process between two steps; it has ended if `step` is ''. `plan` is what it continues with, `choice` its option."""

    step: str
    choice: int = 0
    plan: tuple[Any, ...] = ()


class Actor:
    """A process and its program; a `patient` one must find every object that the journal named, within the grace."""

    patient = True
    prepared = False
    """Whether its first step is done when the search begins."""
    options: tuple[int, ...] = ()
    """The options from which it chooses one when it begins."""

    def __init__(self, name: str) -> None:
        self.name = name

    def begin(self) -> Local:
        return Local("begin")

    def act(self, cluster: ClusterHandles, local: Local) -> Local:
        """Do one step; raises `BrokenError`."""
        raise NotImplementedError

    def run(self, view: View, local: Local) -> Local:
        fake = FakeCluster(view, random.Random(f"{self.name}/{local}"), patient=self.patient)
        return self.act(cast(ClusterHandles, fake), local)


def _window() -> Window:
    return Window(0, {TOPIC.revision: TOPIC})


def _row(store: Any, runtime: Runtime, base: int, last: int, size: int, epoch: int, schema: int) -> Rows:
    """Store a new L1 object, by the value schema of this number or by none, and return its row."""
    row = np.array([(0, base, last, size, 0, epoch, name_bytes(runtime.new_id()), 0)], L1_ROW)
    store.put(_key(row[0]), b"%d" % schema if schema else b"")
    return row


def _number(*topics: Topic) -> int:
    """Return the number of the topic's value schema; 0 without one or without the topic."""
    return max((t.value_schema.number for t in topics if t.value_schema is not None), default=0)


def _key(row: Any) -> str:
    return l1_key(P, l1_file(row))


def _lost(cluster: ClusterHandles) -> frozenset[str]:
    """Return the L0 objects that cannot be read."""
    return cast(frozenset[str], cast(Any, cluster.store)._view.logs.lost)


def _readable(topic: TopicState, lost: frozenset[str]) -> list[Extent]:
    """Return the unreconciled extents before the first that is lost, or given up."""
    found: list[Extent] = []
    for e in topic.extents(0):
        if e.key in lost or (found and e.base_offset > found[-1].last_offset + 1):
            break
        found.append(e)
    return found


class Reconciler(Actor):
    """Lifts the unreconciled records, an object for each extent, stamped with the epoch that it has looked up first.

    Args:
        again: whether it commits a second time, as Spark repeats a task whose answer was lost.
        prepared: whether it has written its objects, but not committed them, when the search begins.
    """

    def __init__(self, name: str, *, again: bool = False, prepared: bool = False) -> None:
        super().__init__(name)
        self._again = again
        self.prepared = prepared

    def act(self, cluster: ClusterHandles, local: Local) -> Local:
        if local.step == "begin":
            state = cluster.controller.snapshot()
            epoch, number = state.epoch, _number(*state.topics.values())
            extents = _readable(cluster.journal(0).catch_up().topic(TOPIC.revision), _lost(cluster))
            at = cluster.store, cluster.runtime
            rows = [_row(*at, e.base_offset, e.last_offset, 1, epoch, number) for e in extents]
            plan = (epoch, extents[-1].log_offset, np.concatenate(rows).tobytes()) if extents else ()
            return Local("commit" if extents else "", plan=plan)
        epoch, cut, packed, *before = local.plan
        window = Window(0, _window().topics, upto=cut)
        commit = Commit(cluster, window, epoch)
        files = np.frombuffer(packed, L1_ROW)
        done = commit.run({TOPIC.revision: files})
        if any("fenced off" not in e for e in done.errors) or (done.errors and any(before)):
            raise BrokenError(str(done.errors))
        named = cluster.journal(0).state.has_named(TOPIC.revision, files).any()
        if any(before) and done.records != before[0] and (done.records or named):
            raise BrokenError(f"{before[0]} records landed, and its second try counts {done.records}")
        again = self._again and local.step == "commit"
        return local._replace(step="again" if again else "", plan=(*local.plan, done.records) if again else local.plan)


class Merger(Actor):
    """Merges what is due, by one round of a real merge.

    Args:
        looks: whether it looks the topic's value schema up first, because that may change.
    """

    def __init__(self, name: str, *, looks: bool = False) -> None:
        super().__init__(name)
        self._looks = looks

    def act(self, cluster: ClusterHandles, local: Local) -> Local:
        if self._looks and local.step == "begin":
            topic = cluster.controller.snapshot().topics[TOPIC.name]
            return Local("merge", plan=(_number(topic), topic.schema_epoch))
        share = Share(Window(0, {TOPIC.revision: topic_with(*local.plan or (0, 0))}), {TOPIC.revision: RULE})
        result = _merge_share(threading.Event, cluster, share)
        if any(all(why not in e for why in ("fenced off", "no longer", "merge again")) for e in result.errors):
            raise BrokenError(str(result.errors))
        return Local("")


class Alterer(Actor):
    """Gives the topic its next value schema."""

    def act(self, cluster: ClusterHandles, local: Local) -> Local:
        cast(Any, cluster.controller)._view.ask("alter-topic")
        return Local("")


class Giver(Actor):
    """Gives up one record."""

    def __init__(self, name: str, *offsets: int) -> None:
        super().__init__(name)
        self.options = offsets

    def act(self, cluster: ClusterHandles, local: Local) -> Local:
        try:
            give_up(cluster, self.name, topic=TOPIC.name, partition=0, offsets=(local.choice, local.choice))
        except CorruptObjectError as e:
            if "does not hold the bytes that were written" not in str(e):  # a vacuum took the hole before it was named
                raise
        except SafetyError as e:
            if any(e.last_offset == local.choice for e in _extents(cluster) if e.key in _lost(cluster)):
                raise BrokenError(f"what is lost was called readable: {e}") from e
        except (UsageError, NotFoundError):  # it is in L1, deleted, a hole by now, or not next
            topic = cast(Replica, cluster.journal(0).replica).peek().topic(TOPIC.revision)
            following = max(topic.view(0).last_reconciled_offset + 1, topic.view(0).log_start_offset)
            if following == local.choice < topic.view(0).next_offset and cluster.controller.snapshot().topics:
                raise BrokenError(f"record {local.choice} is lost, and cannot be given up") from None
        return Local("")


def _extents(cluster: ClusterHandles) -> list[Extent]:
    return cast(Replica, cluster.journal(0).replica).peek().topic(TOPIC.revision).extents(0)


class Expirer(Actor):
    """Lets the partition begin at some record."""

    def __init__(self, name: str, *starts: int, partition: int = 0) -> None:
        super().__init__(name)
        self.options = starts
        self._partition = partition

    def act(self, cluster: ClusterHandles, local: Local) -> Local:
        result = delete_records(cluster, TOPIC.name, self._partition, before_offset=local.choice)
        if result.errors and not all("fenced off" in e for e in result.errors):
            raise BrokenError(str(result.errors))
        return Local("")


class Deleter(Actor):
    """Deletes the topic: first in the controller's log, then in the journal."""

    def act(self, cluster: ClusterHandles, local: Local) -> Local:
        if local.step == "begin":
            cast(Any, cluster.controller)._view.ask("delete-topic")
            return Local("close")
        cluster.journal(0).close(TOPIC.revision, TOPIC.topic_id)
        return Local("")


class Vacuumer(Actor):
    """Runs a whole vacuum, without grace by the clock: only the epochs of grace hold it back."""

    patient = False

    def act(self, cluster: ClusterHandles, local: Local) -> Local:
        options = Vacuum(l1_grace_s=0, orphan_age_s=0, record=False)
        vacuum(cluster, options)
        return Local("")


def vacuum(cluster: ClusterHandles, options: Vacuum) -> None:
    done = VacuumRun(cluster, options).run(JournalGarbage(cluster))
    if done.problem is not None:
        raise BrokenError(str(done.problem))


class Reader(Actor):
    """Reads the topic object by object, by the real reader: each record once and in order, and never a loss."""

    def act(self, cluster: ClusterHandles, local: Local) -> Local:
        replica = cast(Replica, cluster.journal(0).replica)
        following = -1
        try:
            pieces = read_pieces(cluster, TOPIC, Read(partition=0, skip_holes=True), names=RECORD)
            for _, base, batch in slices_of(pieces, RECORD):
                topic = replica.peek().topic(TOPIC.revision)
                start = topic.view(0).log_start_offset
                while following in topic.l1[is_hole(topic.l1)]["base"]:
                    following += 1
                if (
                    following not in (-1, base)
                    or base < self._first(replica)
                    or (following < 0 and base > max(start, 0))
                ):
                    raise BrokenError(f"record {base} came where {following} was next; the log starts at {start}")
                following = base + batch.num_rows
        except OffsetOutOfRangeError:
            if replica.peek().topic(TOPIC.revision).view(0).log_start_offset <= max(following, 0):
                raise BrokenError("records that are there were called deleted") from None
            return Local("")
        except PartitionClosedError:
            return Local("")
        except CorruptObjectError as e:
            if not _lost(cluster):
                raise BrokenError(f"a reader reports a loss: {e}") from e
            return Local("")
        end = replica.peek() if following < 0 else cast(Any, replica)._view.logs.state(replica.first)
        wanted = end.topic(TOPIC.revision).view(0).next_offset
        topic = replica.peek().topic(TOPIC.revision)
        while following in topic.l1[is_hole(topic.l1)]["base"]:
            following += 1
        if following >= 0 and following != wanted:
            raise BrokenError(f"it was read up to {following}, and had {wanted} records")
        return Local("")

    @staticmethod
    def _first(replica: Replica) -> int:
        state = cast(Any, replica)._view.logs.state(replica.first)
        return cast(int, state.topic(TOPIC.revision).view(0).log_start_offset)


# -- replacements of Parquet --------------------------------------------------------------------------------------------


@lru_cache
def _batch(base: int, rows: int) -> pa.RecordBatch:
    nothing = columns.binary([b""] * rows)
    arrays = [
        columns.numbers(np.arange(base, base + rows)),
        columns.repeated(0, rows, L1_SCHEMA.field("timestamp").type),
        nothing,
        nothing,
    ]
    return pa.RecordBatch.from_arrays(arrays, names=["offset", *RECORD])


def _open_l1(store: Any, wanted: WantedFile) -> OpenL1File:
    store.get(wanted.key)
    return OpenL1File(wanted, None, b"all of it")


def _chunks(opened: OpenL1File, groups: Sequence[RowGroup]) -> list[L1Chunk]:
    f = opened.wanted.file
    return [] if f.is_hole else [L1Chunk(opened, [RowGroup(0, f.base_offset, f.last_offset - f.base_offset + 1)])]


def _fetch_chunk(store: Any, chunk: L1Chunk, names: Sequence[str]) -> L1Chunk:
    return chunk


def _decode(chunk: L1Chunk, names: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
    f = chunk.opened.wanted.file
    yield f.base_offset, _batch(f.base_offset, f.last_offset - f.base_offset + 1)


def _fetched(reader: OffsetReader, wanted: UnreconciledObject) -> tuple[UnreconciledObject, list[bytes]]:
    if wanted.time_ms == STAMPED:  # a shared L1 object
        with _holding(0, int(wanted.extents["base"][0])):
            reader._cluster.store.get(wanted.key)
    if wanted.key in _lost(reader._cluster):
        with _holding(0, int(wanted.extents["base"][0])):
            raise ObjectNotFoundError(wanted.key)
    return wanted, []


def _read_back(cluster: Any, key: str, extents: Sequence[Extent]) -> list[Remains]:
    why = "it is gone" if key in _lost(cluster) else ""
    return [Remains(key, e.block.start, why) for e in extents]


def _decoded(
    reader: OffsetReader, fetched: tuple[UnreconciledObject, list[bytes]]
) -> tuple[UnreconciledObject, int, pa.RecordBatch]:
    wanted, _ = fetched
    ((_, _, _, records, base),) = wanted.extents.tolist()
    return wanted, 0, _batch(base, records)


_NOTHING: Final = WantedFile("", l1_file(np.zeros(1, L1_ROW)[0]), 0, 0)
_COLUMNS: Final = SimpleNamespace(to_arrow_schema=lambda: L1_FILE)


def _rewrite(
    store: Any, merges: Sequence[MergeGroup], topics: Any, epoch: int, runtime: Runtime, parallel: Any, stop: Any
) -> list[RewriteResult]:
    done = []
    for m in merges:
        try:
            number = _number(topics[m.revision])
            for body in store.read([_key(source) for source in m.sources]):
                written = {SCHEMA_METADATA.encode(): body} if body else {}
                _check_columns(OpenL1File(_NOTHING, SimpleNamespace(metadata=written, schema=_COLUMNS), None), number)
        except (ObjectNotFoundError, UnsupportedFormatError) as e:
            done.append(RewriteResult(m, error=e))
            continue
        span = int(m.sources["base"][0]), int(m.sources["last"][-1])
        done.append(RewriteResult(m, _row(store, runtime, *span, m.bytes, epoch, number)))
    return done


@contextmanager
def small() -> Iterator[None]:
    """Let merges be due for two objects, and replace Parquet in L1, until the block ends."""
    level_one = l0gc.streamlog.level_one
    patches = [
        (level_one.merge_plan, "OBJECTS", 1),
        (level_one.rewrite, "rewrite", _rewrite),
        (l0gc.streamlog.reader, "WINDOW_BYTES", 1),
        (level_one.give_up, "read_back", _read_back),
        (level_one.give_up, "hole_body", lambda key, record, remains: b""),
        (level_one.parquet, "open_l1", _open_l1),
        (level_one.parquet, "chunks", _chunks),
        (level_one.parquet, "fetch_chunk", _fetch_chunk),
        (level_one.parquet, "decode", _decode),
        (OffsetReader, "_fetched", _fetched),
        (OffsetReader, "_decoded", _decoded),
    ]
    with ExitStack() as stack:
        for module, name, value in patches:
            stack.enter_context(mock.patch.object(module, name, value))
        yield
