"""A merge run: small consecutive L1 objects of a partition become one.

What makes it safe: nothing is deleted here. A merged object is durable, and checked against what it replaces
(`rewrite.py`), before an entry names it in their place; that entry lands only if the journal names every one of them where
it lands (hazard 24). So a reader sees the old objects or the new one, two merges of the same objects end with one of them,
and a run that is killed leaves at most objects that no journal names, which are vacuum's. Replaced objects stay in the
bucket, for readers that have replayed the journal before, until vacuum takes them.

Workers read journals, plan and rewrite: Spark's executors, or threads of this process, by the same functions. A worker
does its share of a journal in rounds. Each is stamped with the cluster epoch anew, before its first object is written, and
committed before the next one, so that a long run never falls below the L1 fence. Only sums of a run are kept here.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from l0gc.errors import CorruptObjectError
from l0gc.formatting import count
from l0gc.keys import PartitionId
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.workers import LOCAL, Workers
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.controller.state import ControllerState
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.l1 import NO_L1_ROWS
from l0gc.streamlog.journal.rows import Rows
from l0gc.streamlog.level_one.index import read_index
from l0gc.streamlog.level_one.merge_commit import DAMAGE, MergeResult, MergeRound, in_journal, in_partition, topics_of
from l0gc.streamlog.level_one.merge_plan import Merge, MergeRule, is_due, merges_of
from l0gc.streamlog.level_one.plan import Window, writers_of
from l0gc.streamlog.level_one.reconcile import few_at_once, judged, windows_of
from l0gc.streamlog.level_one.rewrite import rewrite
from l0gc.watermark.publication import refuse_if_set_back

ROUND_BYTES: Final = 1 << 30
ROUND_OBJECTS: Final = 16_384
"""A round rewrites about so much, and so many objects, before it commits: some minutes, which is what a kill can lose."""
SHARE_BYTES: Final = 256 << 20
SHARE_OBJECTS: Final = 4_096
"""A worker gets about so much of a journal, and so many objects: less is not worth another task."""
LOCAL_SLOTS: Final = 4
"""Workers in this process at once; each holds up to about 100 MiB."""

DEFAULT_RULE: Final = MergeRule()


@dataclass(frozen=True, slots=True)
class Share:
    """A worker's part of a journal: the partitions that fall to number `number` of `of`. `rules` are by revision."""

    window: Window
    rules: dict[int, MergeRule]
    number: int = 0
    of: int = 1

    def has(self, revision: int, partitions: Rows) -> Rows:
        """Which of the partitions it has."""
        mine: Rows = writers_of(revision, partitions, self.of) == self.number
        return mine


@dataclass(frozen=True, slots=True)
class MergePlan:
    """What there is to merge, as sums for each journal; `total` adds them up, its `bytes` being those to read."""

    journals: list[tuple[Share, MergeResult]]
    total: MergeResult = field(default_factory=MergeResult)


def merge_due(cluster: Cluster, topic: str | None = None, rule: MergeRule = DEFAULT_RULE) -> bool:
    """Whether there is anything to merge, or a journal that cannot be read. Raises `TopicNotFoundError`.

    The journals are read here, a few at a time, and forgotten; nothing else is.
    """
    shares = _whole_journals(cluster.controller.snapshot(), topic, rule)

    def look(share: Share) -> bool:
        window = share.window
        try:
            return any(
                is_due(t, share.rules[t.revision]) for t in topics_of(cluster.passing_journal(window.journal), window)
            )
        except CorruptObjectError:
            return True

    return any(few_at_once(cluster, look, shares))


def _whole_journals(state: ControllerState, topic: str | None, rule: MergeRule) -> list[Share]:
    """All that there is, a share for each journal. Raises `TopicNotFoundError`."""
    rules = {t.revision: rule.within(state.retention(t)) for t in state.topics.values()}
    return [Share(w, {revision: rules[revision] for revision in w.topics}) for w in windows_of(state, topic)]


def plan_merge(cluster: Cluster, topic: str | None = None, rule: MergeRule = DEFAULT_RULE) -> MergePlan:
    """What there is to merge now, of one topic or of all.

    Raises:
        TopicNotFoundError: there is no such topic.
        StoreError: the store does not answer, or does not let us.
        EpochRegressionError: what is published is above the cluster epoch (hazard 10).
    """
    began = cluster.runtime.clock.monotonic()
    unread = refuse_if_set_back(cluster, keep=False).unread
    shares = _whole_journals(cluster.controller.snapshot(), topic, rule)
    shares = [s for s in shares if judged([s.window], unread)]
    found = cluster.parallel.map(functools.partial(_plan_share, cluster), shares)
    plan = MergePlan(list(zip(shares, found, strict=True)))
    plan.total.errors += unread.values()
    for result in found:
        plan.total.add(result)
    plan.total.seconds = cluster.runtime.clock.monotonic() - began
    return plan


def run_merge(cluster: Cluster, plan: MergePlan, workers: Workers[Cluster]) -> MergeResult:
    """Merge what was planned, and is still there.

    Raises:
        StoreError: the store does not answer, or does not let us. What was merged before stays merged.
    """
    began = cluster.runtime.clock.monotonic()
    result = MergeResult(errors=list(plan.total.errors), engine=workers.engine)
    slots = min(workers.slots, LOCAL_SLOTS) if workers.engine == LOCAL else workers.slots
    shares = [share for whole, planned in plan.journals for share in _cut(whole, planned, slots)]
    for at in range(0, len(shares), slots):
        text = f"{count(result.objects_before, 'L1 object')} merged into {result.objects_after:,}"
        workers.say(text, done=result.bytes_read, total=plan.total.bytes_read, objects=result.objects_before)
        for done in workers.map(_merge_share, shares[at : at + slots]):
            result.add(done)
    result.errors = list(dict.fromkeys(result.errors))  # what is damaged was found when it was planned, too
    result.seconds = plan.total.seconds + cluster.runtime.clock.monotonic() - began
    return result


def _cut(whole: Share, planned: MergeResult, slots: int) -> Iterator[Share]:
    """A journal's work, cut up for as many workers as are worth it."""
    worth = max(-(-planned.bytes_read // SHARE_BYTES), -(-planned.objects_before // SHARE_OBJECTS))
    of = min(worth, planned.partitions, slots)
    return (replace(whole, number=number, of=of) for number in range(of))


# -- what a worker does -------------------------------------------------------------------------------------------------


def _plan_share(cluster: Cluster, share: Share) -> MergeResult:
    """What there is to merge in a share; what is wrong there is among the errors."""
    result = MergeResult()
    partitions: set[tuple[int, int]] = set()
    try:
        handle = cluster.passing_journal(share.window.journal)
        for m in _merges(cluster.store, handle, share, result.errors):
            result.count(m, m.bytes)
            partitions.add((m.revision, m.partition))
    except DAMAGE as e:
        result.errors.append(in_journal(share.window, e))
    result.partitions = len(partitions)
    return result


def _merge_share(cluster: Cluster, share: Share) -> MergeResult:
    """Merge a share, round by round."""
    handle = cluster.passing_journal(share.window.journal)
    result = MergeResult()
    topics = {revision: wanted.name for revision, wanted in share.window.topics.items()}
    merged: set[tuple[int, int]] = set()
    try:
        for merges in _rounds(_merges(cluster.store, handle, share, result.errors)):
            epoch = cluster.controller.snapshot().epoch
            written = rewrite(cluster.store, merges, topics, epoch, cluster.runtime, cluster.parallel)
            MergeRound(cluster, handle, share.window, epoch, result, merged).commit(written)
    except DAMAGE as e:
        result.errors.append(in_journal(share.window, e))
    result.partitions = len(merged)
    return result


def _merges(store: ObjectStore, handle: JournalHandle, share: Share, errors: list[str]) -> Iterator[Merge]:
    """What there is to merge of a share now; an index object that cannot be read is among the errors."""
    for topic in topics_of(handle, share.window):
        name, revision = share.window.topics[topic.revision].name, topic.revision

        def read(partition: int, index: Rows, name: str = name, revision: int = revision) -> Rows:
            p = PartitionId(name, revision, partition)
            try:
                return read_index(store, p, index)
            except DAMAGE as e:
                errors.append(in_partition(p, e))
                return NO_L1_ROWS

        yield from merges_of(topic, share.rules[revision], functools.partial(share.has, revision), read)


def _rounds(merges: Iterable[Merge]) -> Iterator[list[Merge]]:
    """The merges, as many together as are committed at once."""
    together: list[Merge] = []
    size = objects = 0
    for m in merges:
        if together and (size + m.bytes > ROUND_BYTES or objects + len(m.sources) > ROUND_OBJECTS):
            yield together
            together, size, objects = [], 0, 0
        together.append(m)
        size, objects = size + m.bytes, objects + len(m.sources)
    if together:
        yield together
