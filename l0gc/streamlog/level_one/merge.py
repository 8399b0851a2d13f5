"""Run a merge: drain shared L1 objects, and join small consecutive L1 objects of a partition into one.

Why it is safe: nothing is deleted here. A merged object is durable, and checked against the objects that it replaces
(`rewrite.py`), before an entry lists it in their place. The entry lands only if the journal still lists every replaced
object at that offset (hazard 24). A killed run leaves at most objects that no journal lists. Replaced objects stay in the
bucket, for readers that replayed the journal earlier, until vacuum deletes them.

A worker does its share of a journal in rounds, each with a fresh stamp of the cluster epoch, so that a long run never
falls below the L1 fence. The journal refuses partitions that have changed by the offset where the entry lands. Its state
is read again before that, so that a missing object that another merge replaced does not count as damage.
"""

from __future__ import annotations

import functools
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec

from l0gc.errors import L0gcError
from l0gc.formatting import Outcome, count
from l0gc.storage.parallel import grouped
from l0gc.storage.workers import LOCAL, Workers
from l0gc.streamlog.cluster import Begin, ClusterHandles, committing
from l0gc.streamlog.controller.state import ControllerState
from l0gc.streamlog.journal.entries import MERGE
from l0gc.streamlog.journal.rows import Rows
from l0gc.streamlog.journal.topic import TopicState
from l0gc.streamlog.level_one.edit import Editor
from l0gc.streamlog.level_one.merge_plan import (
    Drain,
    MergeGroup,
    MergeRule,
    drains_of,
    merges_of,
    outdated_rows,
    rewrites_of,
    within_limit,
    without_merged,
)
from l0gc.streamlog.level_one.plan import Window, checked_windows, few_at_once, windows_of, writers_of
from l0gc.watermark.publication import refuse_if_set_back

if TYPE_CHECKING:
    from l0gc.streamlog.level_one.rewrite import RewriteResult

ROUND_BYTES: Final = 1 << 30
ROUND_OBJECTS: Final = 16_384
"""About how many bytes, and how many objects, a round rewrites before it commits: some minutes of work, which a kill can
lose.
"""
SHARE_BYTES: Final = 256 << 20
SHARE_OBJECTS: Final = 4_096
"""About how many bytes, and how many objects, of a journal a worker gets: fewer are not worth another task."""
LOCAL_SLOTS: Final = 4
"""The fewest shares that this process merges at once; with more cores, it merges one for each. A share that is merged
alone uses all cores (`rewrite.py`). Each merge holds up to about 100 MiB while it is copied.
"""


DEFAULT_RULE: Final = MergeRule()
MAX_BYTES: Final = 4 << 30
"""The bytes of L1 that a run rewrites for newer value schemas: some minutes of work."""
_MERGED: Final = ("objects_before", "objects_after", "records", "bytes", "bytes_read", "partitions", "drained")
_COUNTED: Final = (*_MERGED, "lost", "errors")
"""The fields that are added up over journals and workers."""


class MergeResult(msgspec.Struct, Outcome):
    """The result of a merge, or of its dry run.

    Attributes:
        merged: `objects_before`: the L1 objects that merges replaced. `objects_after`: the new objects. `records`: how
            many these hold. `bytes`: their size; a dry run gives the size of the replaced objects, its upper limit.
            `bytes_read`: the size of the replaced objects. `partitions`: the number of partitions. `drained`: how many of
            the records came from shared objects.
        lost: How many merges were abandoned, because another merge, an expiry or the deletion of the topic had changed the
            objects. This is not an error. No journal names the written objects; [vacuum](#l0gc-vacuum) removes them.
        errors: The journals that cannot be read, and the L1 objects that are missing or damaged, each with its partition
            and the reason. They are left as they are. If there are any, the exit code is 3.
        engine: `local` or `spark`. If there is nothing to merge, it is `local`, since Spark is not started.
        engine_reason: Why this engine was used.
        dry_run: Whether it was a dry run.
        seconds: How long it took, without Spark's start.
    """

    objects_before: int = 0
    objects_after: int = 0
    records: int = 0
    bytes: int = 0
    bytes_read: int = 0
    partitions: int = 0
    drained: int = 0
    lost: int = 0
    errors: list[str] = []
    engine: str = LOCAL
    engine_reason: str = ""
    dry_run: bool = False
    seconds: float = 0.0
    unfinished: ClassVar[str] = "not everything could be merged"
    hidden: ClassVar[frozenset[str]] = frozenset(_MERGED)
    derived: ClassVar[tuple[str, ...]] = ("merged",)

    @property
    def merged(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in _MERGED}


class Share(msgspec.Struct, frozen=True):
    """A worker's part of a journal: number `number` of `of` sets of partitions. `rules` are by revision, and `tables` are
    the revisions of topics with a table; `now_ms` is the time of the plan. Up to `max_bytes` of objects with older value
    schemas are rewritten.
    """

    window: Window
    rules: dict[int, MergeRule]
    tables: frozenset[int] = frozenset()
    now_ms: int = 0
    max_bytes: int = MAX_BYTES
    number: int = 0
    of: int = 1

    def has(self, revision: int, partitions: Rows) -> Rows:
        is_written_here: Rows = writers_of(revision, partitions, self.of) == self.number
        return is_written_here


class MergePlan(msgspec.Struct, frozen=True):
    """The planned merges, as sums for each journal, and the drains before them, by journal. `total` is the sum of all, and
    its `bytes` are the bytes to read.
    """

    journals: list[tuple[Share, MergeResult]]
    drains: dict[int, list[Drain]] = {}
    total: MergeResult = msgspec.field(default_factory=MergeResult)


def merge_due(cluster: ClusterHandles, rule: MergeRule = DEFAULT_RULE) -> bool:
    """Return whether there is anything to merge, or a journal that cannot be read. Only the journals are read, a few at a
    time, and they are not kept.
    """
    shares = _whole_journals(cluster, cluster.controller.snapshot(), None, rule)
    return any(few_at_once(cluster, lambda share: _ShareMerge(cluster, share).is_due(), shares))


def merge_fingerprint(cluster: ClusterHandles, rule: MergeRule = DEFAULT_RULE) -> int | None:
    """Return a hash of the facts that decide whether there is anything to merge, as of the journals' last reading, without
    their L1 rows; None if a journal cannot be read. It changes if L1 objects are added or removed, or if the rule changes.
    """
    facts: list[tuple[object, ...]] = []
    with suppress(L0gcError):
        for share in _whole_journals(cluster, cluster.controller.replica.state, None, rule):
            topics = cluster.journal(share.window.journal).head.topics
            for revision, of_topic in sorted(share.rules.items()):
                if (topic_state := topics.get(revision)) is not None:
                    sums = topic_state.listed.sums, int(topic_state.reconciled.sum())
                    drains = any(drains_of(topic_state, share.now_ms, has_table=revision in share.tables))
                    schema_epoch = share.window.topics[revision].schema_epoch
                    facts.append((revision, msgspec.structs.astuple(of_topic), *sums, drains, schema_epoch))
        return zlib.crc32(msgspec.msgpack.encode(facts))
    return None


def _whole_journals(
    cluster: ClusterHandles, state: ControllerState, topic: str | None, rule: MergeRule, max_bytes: int = MAX_BYTES
) -> list[Share]:
    """Return one share for each journal, with all its partitions; journals with typed topics share the limit. Raises
    `NotFoundError`.
    """
    now_ms = cluster.controller.replica.as_of_ms or 0
    rules = {t.revision: rule.within(state.retention(t)) for t in state.topics.values()}
    tables = frozenset(table.revision for table in state.tables.values())
    windows = windows_of(state, topic)
    typed = sum(any(t.value_schema is not None for t in w.topics.values()) for w in windows)
    each = max_bytes // max(typed, 1)
    return [Share(w, {revision: rules[revision] for revision in w.topics}, tables, now_ms, each) for w in windows]


def plan_merge(
    cluster: ClusterHandles, topic: str | None = None, rule: MergeRule = DEFAULT_RULE, max_bytes: int = MAX_BYTES
) -> MergePlan:
    """Return the plan of a merge of one topic, or of all, that begins now.

    Args:
        max_bytes: the bytes of L1 to rewrite for newer value schemas.

    Raises:
        NotFoundError: the topic does not exist.
        StoreError: the store does not answer, or refuses access.
        EpochRegressionError: a published epoch is above the cluster epoch (hazard 10).
    """
    began = cluster.runtime.clock.monotonic()
    unread = refuse_if_set_back(cluster, keep=False).unread
    shares = _whole_journals(cluster, cluster.controller.snapshot(), topic, rule, max_bytes)
    shares = [s for s in shares if checked_windows([s.window], unread)]
    planned = cluster.parallel.map(lambda share: _ShareMerge(cluster, share).plan(), shares)
    plan = MergePlan([(share, result) for share, (result, _) in zip(shares, planned, strict=True)])
    plan.total.errors += unread.values()
    for share, (result, drains) in zip(shares, planned, strict=True):
        plan.total.add(result, *_COUNTED)
        plan.drains.update({share.window.journal: drains} if drains else {})
        for d in drains:
            known = MergeResult(d.objects, d.partitions, d.records, d.bytes, d.bytes, d.partitions, d.records)
            plan.total.add(known, *_MERGED)
    plan.total.seconds = cluster.runtime.clock.monotonic() - began
    return plan


def run_merge(cluster: ClusterHandles, plan: MergePlan, workers: Workers[ClusterHandles]) -> MergeResult:
    """Carry out the planned merges whose objects still exist. Raises `StoreError`; finished merges stay committed."""
    began = cluster.runtime.clock.monotonic()
    result = MergeResult(errors=list(plan.total.errors), engine=workers.engine, engine_reason=workers.reason)
    try:
        _merge_planned(cluster, plan, workers, result)
    except KeyboardInterrupt:  # Spark's tasks are ended
        workers.say("", objects=result.objects_before, unnamed=workers.engine != LOCAL)
        raise
    result.errors = list(dict.fromkeys(result.errors))  # the plan has found the same damage, too
    result.seconds = plan.total.seconds + cluster.runtime.clock.monotonic() - began
    return result


def _merge_planned(
    cluster: ClusterHandles, plan: MergePlan, workers: Workers[ClusterHandles], result: MergeResult
) -> None:
    if plan.drains:
        from l0gc.streamlog.level_one.drain import drain

        workers.say("draining shared L1 objects", done=0, total=plan.total.bytes_read)
        for drained in drain(cluster, plan.drains, workers):
            result.add(drained, *_COUNTED)
    slots = max(LOCAL_SLOTS, cluster.parallel.cores) if workers.engine == LOCAL else workers.slots
    shares = [share for whole, planned in plan.journals for share in _cut(whole, planned, slots)]
    for at in range(0, len(shares), slots):
        text = f"{count(result.objects_before, 'L1 object')} merged into {result.objects_after:,}"
        workers.say(text, done=result.bytes_read, total=plan.total.bytes_read, objects=result.objects_before)
        with committing(cluster, workers) as begin:
            begin()  # in this thread, which gets the signals
            for done in workers.map(functools.partial(_merge_share, begin), shares[at : at + slots]):
                result.add(done, *_COUNTED)


def _cut(whole: Share, planned: MergeResult, slots: int) -> Iterator[Share]:
    """Divide a journal's work among as many workers as are worthwhile."""
    worth = max(-(-planned.bytes_read // SHARE_BYTES), -(-planned.objects_before // SHARE_OBJECTS))
    of = min(worth, planned.partitions, slots)
    return (
        msgspec.structs.replace(whole, max_bytes=whole.max_bytes // of, number=number, of=of) for number in range(of)
    )


# -- what a worker does -------------------------------------------------------------------------------------------------


def _merge_share(begin: Begin, cluster: ClusterHandles, share: Share) -> MergeResult:
    """Merge a share, or as much as is done when the block that `begin` has begun ends early."""
    return _ShareMerge(cluster, share).run(begin())


class _ShareMerge(Editor):
    """Merges one share, and adds failures to the result's errors."""

    def __init__(self, cluster: ClusterHandles, share: Share) -> None:
        self._cluster, self._share, self._result = cluster, share, MergeResult()
        super().__init__(cluster.passing_journal(share.window.journal), share.window.topics, self._result.errors)
        self._partitions: set[tuple[int, int]] = set()

    def run(self, stop: threading.Event) -> MergeResult:
        """Carry out the merges of the share, round by round, until `stop` is set."""
        with self.recording_errors():
            self._merge_all(stop)
        self._result.partitions = len(self._partitions)
        return self._result

    def plan(self) -> tuple[MergeResult, list[Drain]]:
        """Count the merges of the share, and return its drains."""
        drains: list[Drain] = []
        with self.recording_errors():
            states = self.states()
            drains += self._drains(states)
            for m in self._merges(states):
                self._count(m, m.bytes)
        self._result.partitions = len(self._partitions)
        return self._result, drains

    def is_due(self) -> bool:
        is_due = False
        with self.recording_errors():
            states = self.states()
            is_due = any(True for _ in chain(self._drains(states), self._merges(states)))
        return is_due or bool(self.errors)

    def _drains(self, states: Mapping[int, TopicState]) -> Iterator[Drain]:
        for revision, topic in states.items():
            yield from drains_of(topic, self._share.now_ms, has_table=revision in self._share.tables)

    def _merge_all(self, stop: threading.Event) -> None:
        # This imports Arrow, which the check whether a merge is due does not need.
        from l0gc.streamlog.level_one.rewrite import rewrite

        c = self._cluster
        groups = self._merges(self.states())
        for merges in grouped(groups, (lambda m: m.bytes, ROUND_BYTES), (lambda m: len(m.sources), ROUND_OBJECTS)):
            if stop.is_set():
                break
            epoch = self._stamp(c.controller.snapshot())
            written = rewrite(c.store, merges, self.topics, epoch, c.runtime, c.parallel, stop)
            self._commit(epoch, written)

    def _stamp(self, state: ControllerState) -> int:
        """Return the epoch to stamp on new objects: it is below that of any value schema that has landed since the plan."""
        planned = {t.revision: t.value_schema for t in self.topics.values()}
        newer = (t for t in state.topics.values() if planned.get(t.revision, t.value_schema) != t.value_schema)
        return min([state.epoch, *(t.schema_epoch - 1 for t in newer)])

    def _count(self, m: MergeGroup, written: int) -> None:
        self._partitions.add((m.revision, m.partition))
        self._result.objects_before += len(m.sources)
        self._result.objects_after += 1
        self._result.records += m.records
        self._result.bytes += written
        self._result.bytes_read += m.bytes

    def _merges(self, states: Mapping[int, TopicState]) -> Iterator[MergeGroup]:
        """Yield the merges by size, and the rewrites for a newer value schema."""
        room = self._share.max_bytes
        for revision, topic in states.items():
            is_in_share, rule = functools.partial(self._share.has, revision), self._share.rules[revision]
            outdated = outdated_rows(topic.l1, self.topics[revision].schema_epoch)
            if not len(outdated):
                yield from merges_of(topic, rule, is_in_share)
                continue
            merges = [*merges_of(topic, rule, is_in_share)]
            yield from merges
            rows = within_limit(without_merged(outdated[is_in_share(outdated["partition"])], merges), room)
            room -= int(rows["bytes"].sum())
            yield from rewrites_of(revision, rows, rule)

    # -- the commit of a round ----------------------------------------------------------------------------------------

    def _commit(self, epoch: int, written: Sequence[RewriteResult]) -> None:
        """Commit the objects that are durable and checked. Report the others, unless they no longer need a merge."""
        states = self.states()
        merges: list[RewriteResult] = []
        for r in written:
            m = r.merge
            topic = states.get(m.revision)
            if topic is None or not topic.l1_list.has(m.sources).all():
                self._result.lost += 1
            elif r.error is not None:
                p = self.topics[m.revision].id(m.partition)
                self.errors.append(f"partition {p}: {r.error}; its L1 objects stay as they are")
            else:
                merges.append(r)
        merges.sort(key=lambda r: (r.merge.revision, r.merge.partition, int(r.row["base"][0])))
        changes = ((r.merge.revision, {"added": r.row, "removed": r.merge.sources}) for r in merges)
        refused = self.land(MERGE, epoch, changes).refused
        for r in merges:
            if (r.merge.revision, r.merge.partition) in refused:
                self._result.lost += 1
            else:
                self._count(r.merge, int(r.row["bytes"][0]))
