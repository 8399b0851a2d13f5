"""Why an object is kept or may go, why an epoch is held, and what holds a partition: down to the placeholder.

Read from the partitions' own logs as they are now, which may know more than the reports that M was computed from. Changes
nothing. Each explanation ends with the command that moves what is held.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import msgspec

from l0gc.errors import CorruptObjectError, ExternalLogError, NotFoundError, UsageError
from l0gc.inspect.causes import BARRIER, COMPUTE, RECONCILE, SWEEP, THEIR_COMPUTE
from l0gc.keys import KeyLayout, PartitionId
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.journal.entries import Unreconciled
from l0gc.streamlog.journal.state import PartitionState
from l0gc.watermark.publication import read_published, watermark_of

_PARTITION: Final = re.compile(r"(.+)/([0-9]{1,6})")
SHOWN: Final = 10


class Holder(msgspec.Struct, frozen=True):
    """A partition that may still need an epoch. `placeholder` is the L0 key that holds it, empty if its window does."""

    topic: str
    partition: int
    gc_epoch: int
    window: tuple[int, int]
    unreconciled_records: int
    placeholder: str
    base_offset: int
    next_step: str


@dataclass(slots=True)
class Explanation:
    """`verdict` is for scripts, `sentences` are for people; `holders` are the lowest few, `held_by` counts them."""

    subject: str
    verdict: str
    sentences: list[str]
    next_step: str
    epoch: int | None = None
    watermark: int = -1
    cluster_epoch: int = -1
    holders: list[Holder] = field(default_factory=list)
    held_by: int = 0
    broken: list[str] = field(default_factory=list)


HOUSEKEEP_AT_TICK: Final = "l0gc housekeep, when the next tick is due"


def holder_of(p: PartitionId, state: PartitionState) -> Holder:
    """What a partition holds: its lowest unreconciled placeholder, or its window."""
    lowest = min(state.placeholders, key=lambda u: (u.epoch, u.log_offset), default=None)
    by_data = lowest is not None and lowest.epoch <= state.min_epoch_lower_bound
    return Holder(
        p.topic,
        p.partition,
        state.gc_epoch,
        (state.previous_applied_epoch, state.max_applied_epoch),
        state.unreconciled_records,
        lowest.placeholder.key if lowest is not None and by_data else "",
        lowest.placeholder.base_offset if lowest is not None and by_data else -1,
        RECONCILE if by_data else HOUSEKEEP_AT_TICK,
    )


class _Look:
    """Every partition's state, read once.

    `epoch` is the cluster's; of another system's log the one that it told last, -1 if it told none.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.snapshot = cluster.controller.snapshot()
        self.layout = KeyLayout(self.snapshot.key_template, self.snapshot.shards)
        published, _ = read_published(cluster.store, self.snapshot.cluster_id)
        self.watermark = watermark_of(published)
        self.epoch = self.snapshot.epoch
        if self.snapshot.external_log:
            self.epoch = published.cluster_epoch if published is not None else -1
        self.broken: list[str] = []
        ids = self.snapshot.partitions()
        states = cluster.parallel.map(lambda p: self._state(cluster, p), ids)
        self.states = {p: s for p, s in zip(ids, states, strict=True) if s is not None}

    def _state(self, cluster: Cluster, p: PartitionId) -> PartitionState | None:
        try:
            return cluster.partition(p).catch_up()
        except CorruptObjectError as e:
            self.broken.append(str(e))
            return None

    def explanation(self, subject: str, epoch: int | None = None) -> Explanation:
        return Explanation(subject, "", [], "", epoch, self.watermark, self.epoch, broken=sorted(self.broken))

    def naming(self, key: str) -> list[tuple[PartitionId, Unreconciled]]:
        """The partitions whose logs need the L0 object `key`, with the placeholders that do."""
        return [(p, u) for p, s in self.states.items() for u in s.placeholders if u.placeholder.key == key]

    def holders(self, epoch: int) -> list[Holder]:
        """The partitions that may still need `epoch`, the lowest first."""
        held = [holder_of(p, s) for p, s in self.states.items() if s.gc_epoch < epoch]
        return sorted(held, key=lambda h: (h.gc_epoch, h.topic, h.partition))


def explain_key(cluster: Cluster, key: str) -> Explanation:
    """Why the object `key` (relative to the URL) is kept, or that it may go."""
    look = _Look(cluster)
    parsed = look.layout.parse(key)
    there = any(key in page.keys for page in islice(cluster.store.scan(key), 1))  # before all keys that go on behind it
    if parsed is None:
        return _foreign(look, key, there=there)
    e = look.explanation(key, parsed.epoch)
    if not there:
        e.sentences.append("There is no such object: it was deleted, or never written.")
    naming = look.naming(key)
    if naming and not there:  # perhaps reconciled since the logs were read, and then swept
        for p, _ in naming:
            look.states[p] = cluster.partition(p).catch_up()
        naming = look.naming(key)
    if naming:
        e.sentences += [_names(p, u) for p, u in naming[:SHOWN]]
        e.verdict = "needed" if there else "missing"
        e.next_step = (
            RECONCILE if there else "restore it from a version or a backup; l0gc verify shows what else is wrong"
        )
        e.holders, e.held_by = [holder_of(p, look.states[p]) for p, _ in naming[:SHOWN]], len(naming)
        return e
    _of_epoch(e, look, parsed.epoch)
    if not there:
        e.verdict, e.next_step = "gone", "nothing"
    elif e.verdict == "held" and not look.broken and not look.snapshot.external_log:
        e.sentences.insert(0, "No partition's log refers to it any more; it goes when M reaches its epoch.")
    return e


def _names(p: PartitionId, u: Unreconciled) -> str:
    last = u.placeholder.last_offset
    return (
        f"Partition {p} needs it: log entry {u.log_offset} refers to it for the records {u.placeholder.base_offset} to "
        f"{last}, which are not in L1 yet."
    )


def _foreign(look: _Look, key: str, *, there: bool) -> Explanation:
    e = look.explanation(key)
    if not there:
        raise NotFoundError(
            f"there is no object {key!r}, and that is no L0 key of this cluster ({look.layout.template})"
        )
    e.verdict, e.next_step = "foreign", "nothing: remove it by hand if it is of no use"
    what = "It is no L0 key of this cluster, so no sweep ever deletes it."
    if key.startswith(("l0gc/", "level_one/")):
        what = "It is not an L0 object: no sweep ever looks there."
    e.sentences.append(what)
    return e


def explain_epoch(cluster: Cluster, epoch: int) -> Explanation:
    """What holds the objects of an epoch."""
    look = _Look(cluster)
    e = look.explanation(f"epoch {epoch}", epoch)
    _of_epoch(e, look, epoch)
    return e


def _of_epoch(e: Explanation, look: _Look, epoch: int) -> None:
    if epoch > look.epoch and not look.snapshot.external_log:
        e.verdict, e.next_step = "above the cluster epoch", "see docs/operations.md: the controller log looks old"
        e.sentences.append(
            f"Epoch {epoch} is above the cluster epoch {look.epoch}: nothing is published or deleted while such an object "
            "is there."
        )
        return
    if epoch <= look.watermark:
        e.verdict, e.next_step = "eligible", SWEEP
        e.sentences.append(f"M = {look.watermark} is published, so the next sweep deletes what is at epoch {epoch}.")
        return
    if look.snapshot.external_log:
        e.verdict, e.next_step = "held", THEIR_COMPUTE
        e.sentences.append("The log is another system's, so who still needs it is not known here: its reports tell.")
        return
    held = look.holders(epoch)
    e.holders, e.held_by = held[:SHOWN], len(held)
    if look.broken:
        e.verdict, e.next_step = "held", "restore the object that is named from a version or a backup"
        e.sentences += look.broken
    elif held:
        e.verdict, e.next_step = "held", held[0].next_step
    else:
        e.verdict, e.next_step = "releasable", f"l0gc housekeep, which reports, then {COMPUTE}"
        e.sentences.append(f"No partition needs epoch {epoch} any more; M = {look.watermark} was computed before that.")
    e.sentences += [_why(h) for h in e.holders]
    if e.held_by > len(e.holders):
        e.sentences.append(f"So do {e.held_by - len(e.holders):,} more partitions.")


def _why(h: Holder) -> str:
    where = f"Partition {h.topic}/{h.partition}"
    if h.placeholder:
        return (
            f"{where} still needs epoch {h.gc_epoch + 1}: {h.unreconciled_records:,} records are not in L1 yet, the first "
            f"at offset {h.base_offset} in {h.placeholder}."
        )
    return f"{where} may still take epoch {h.gc_epoch + 1}: its window is [{h.window[0]}, {h.window[1]}]."


def explain_partition(cluster: Cluster, name: str) -> Explanation:
    """What a partition (`TOPIC/NUMBER`) holds.

    Raises:
        UsageError: the name is of another form.
        NotFoundError: there is no such topic or partition.
        ExternalLogError: partitions are another system's.
        CorruptObjectError: its log cannot be read.
    """
    m = _PARTITION.fullmatch(name)
    if m is None:
        raise UsageError(f"{name!r} is no partition; write TOPIC/NUMBER, e.g. events/0")
    snapshot = cluster.controller.snapshot()
    if snapshot.external_log:
        raise ExternalLogError(
            f"partition {name} is another system's, whose log l0gc cannot read: its reports tell what it holds"
        )
    topic = snapshot.topic(m[1])
    if int(m[2]) >= topic.partitions:
        raise NotFoundError(f"topic {m[1]!r} has the partitions 0 to {topic.partitions - 1}, not {int(m[2])}")
    p = PartitionId(m[1], topic.revision, int(m[2]))
    state = cluster.partition(p).catch_up()
    look = _Look(cluster)
    h = holder_of(p, state)
    e = look.explanation(f"partition {p}", h.gc_epoch)
    e.holders, e.held_by = [h], 1
    e.verdict, e.next_step = "holds", h.next_step
    lowest = min((s.gc_epoch for s in look.states.values()), default=h.gc_epoch)
    e.sentences.append(_why(h))
    if h.gc_epoch > lowest:
        e.verdict = "does not hold M"
        e.sentences.append(f"It does not hold M back: others are at {lowest}, it is at {h.gc_epoch}.")
    if h.window[0] < h.window[1] and not h.placeholder:
        e.sentences.append(f"To close its window at once, when uploads are quiet: {BARRIER}.")
    return e
