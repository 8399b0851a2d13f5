"""M, compared with a model of each partition's needs: no stale view ever gives a watermark that is too high."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l0gc.epoch import NO_WATERMARK
from l0gc.errors import ClusterMismatchError, EpochRegressionError
from l0gc.storage.entry import Place
from l0gc.streamlog.controller.state import PartitionRange, Topic
from l0gc.streamlog.journal.entries import Advance, Barrier, Closed, ClosedTopic
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.journal.summary import TopicPartitions, summary_of
from l0gc.watermark.compute import check_cluster_id, check_epochs, compute, holders_of
from l0gc.watermark.source import HELD_BACK_SHOWN, IDLE, REPORTED, UNREADABLE, Holder, UnitSummary
from tests.support.journal import Journal, extents_of, gc_epoch_of, name_of
from tests.support.tries import tries


def unit(*gc_epochs: int, topic: str = "t", first: int = 0, highest: int = NO_WATERMARK) -> UnitSummary:
    """Return a unit whose partitions have these M(p), numbered from `first` on."""
    held = [Holder(topic, first + i, e, REPORTED, "says so") for i, e in enumerate(gc_epochs)]
    held.sort(key=lambda h: (h.gc_epoch, h.partition))
    counts = {e: gc_epochs.count(e) for e in gc_epochs}
    lowest = held[:HELD_BACK_SHOWN]
    return UnitSummary(unit="u", gc_epochs=counts, lowest=lowest, highest_epoch=highest, highest_in="unit u")


def test_m_is_the_lowest_gc_epoch_of_the_partitions() -> None:
    w = compute(20, [unit(7, 5), unit(6, first=2)])
    assert (w.watermark, w.cluster_epoch, w.partitions) == (5, 20, 3)
    assert [(h.partition, h.gc_epoch) for h in w.held_back_by] == [(1, 5)]


def test_m_is_never_above_the_epoch_of_its_snapshot() -> None:
    """Hazard 5: a journal may be newer than the snapshot, and a topic may have been created between the two."""
    w = compute(6, [unit(9)])
    assert w.watermark == 6
    assert w.held_back_by == []


def test_nothing_holds_m_back_where_it_is_the_epoch() -> None:
    assert compute(6, [unit(6, 6)]).held_back_by == []


def test_without_partitions_m_is_the_cluster_epoch() -> None:
    """Hazard 6: no object stays for ever once every topic is deleted."""
    assert compute(20, []).watermark == compute(20, [unit()]).watermark == 20


def test_an_unreadable_unit_without_partitions_holds_m_where_it_says() -> None:
    """Hazard 6: a journal without known partitions may still need objects."""
    broken = UnitSummary(unit="j", gc_epochs={}, lowest=[Holder("", -1, 4, UNREADABLE, "damaged")], error="damaged")
    w = compute(20, [unit(9), broken])
    assert (w.watermark, [h.reason for h in w.held_back_by], w.partitions) == (4, ["damaged"], 1)


def test_the_lowest_partitions_are_named_up_to_a_limit() -> None:
    w = compute(20, [unit(*[3] * 30, first=1), unit(3, 8, topic="s", first=5), unit(3, first=0)])
    assert w.partitions == 33
    assert [(h.topic, h.partition) for h in w.held_back_by] == [("s", 5), *[("t", p) for p in range(9)]]


@given(st.lists(st.lists(st.integers(-1, 12), max_size=15), max_size=5), st.integers(0, 12))
def test_holders_count_the_partitions_that_may_still_need_an_epoch(units: list[list[int]], epoch: int) -> None:
    holders = holders_of([unit(*e, topic=f"t{i}") for i, e in enumerate(units)])
    below = sorted((e, f"t{i}", p) for i, u in enumerate(units) for p, e in enumerate(u) if e < epoch)
    assert holders(epoch) == ((f"{below[0][1]}/{below[0][2]}", len(below)) if below else ("", 0))


@pytest.mark.parametrize(("cluster_epoch", "known", "refused"), [(5, 5, False), (5, 4, False), (5, 6, True)])
def test_an_epoch_that_the_cluster_has_not_reached_is_refused(cluster_epoch: int, known: int, refused: bool) -> None:
    """Hazard 10: the controller log was restored from an old backup."""
    if not refused:
        return check_epochs(cluster_epoch, known, "object k")
    with pytest.raises(EpochRegressionError, match=r"object k is at epoch 6, above the cluster epoch 5: .*old backup"):
        check_epochs(cluster_epoch, known, "object k")
    return None


def test_another_clusters_data_is_refused() -> None:
    """Hazard 11: two clusters may share a bucket by mistake."""
    check_cluster_id("c", "c", "x")
    with pytest.raises(ClusterMismatchError, match="x belongs to cluster d, this bucket to c; nothing was"):
        check_cluster_id("c", "d", "x")


# -- comparison with a model --------------------------------------------------------------------------------------------

JOURNALS = 2


@dataclass(frozen=True)
class ATopic:
    """A topic; `ranges` maps each of its journals to the first partition and the number of partitions there."""

    name: str
    revision: int
    ranges: dict[int, tuple[int, int]]

    def partitions_in(self, journal: int) -> TopicPartitions:
        partition_range = PartitionRange(journal, *self.ranges[journal])
        return Topic(self.name, self.revision, partition_range.end, (journal,), ""), partition_range


@dataclass
class Model:
    """A whole cluster in memory: its epoch, its real journals, and all its past snapshots."""

    rng: random.Random
    epoch: int = 0
    topics: list[ATopic] = field(default_factory=list)
    journals: list[Journal] = field(default_factory=lambda: [Journal() for _ in range(JOURNALS)])
    copies: list[list[JournalState]] = field(default_factory=list)
    snapshots: list[tuple[int, list[ATopic]]] = field(default_factory=list)
    objects: int = 0

    def __post_init__(self) -> None:
        self.copies = [[copy.deepcopy(j.state)] for j in self.journals]
        self.snapshots = [(0, [])]

    def needed(self) -> int:
        """Return the lowest epoch that an object of a living topic has or may still get."""
        lowest = self.epoch + 1  # the lowest epoch that a future topic admits
        for topic in self.topics:
            for j in topic.ranges:
                state = self.journals[j].state
                kept = state.topics.get(topic.revision)
                lowest = min(lowest, max(topic.revision, state.previous_applied_epoch))
                lowest = min([lowest, *(o.epoch for o in kept.objects)] if kept is not None else [lowest])
        return lowest

    def step(self) -> None:
        rng = self.rng
        topic = rng.choice(self.topics) if self.topics else None
        j = rng.choice(list(topic.ranges)) if topic is not None else rng.randrange(JOURNALS)
        journal = self.journals[j]
        match rng.randrange(10):
            case 0:
                self.epoch += 1
            case 1 if len(self.topics) < 4:
                self.create()
            case 2 if topic is not None and rng.random() < 0.3:
                self.epoch += 1
                self.topics.remove(topic)
                for of in topic.ranges if rng.random() < 0.7 else ():  # otherwise the deleter crashes
                    self.journals[of].apply(Closed([ClosedTopic(topic.revision)]))
            case 3 | 4 | 5 if topic is not None:
                self.upload(topic, j)
            case 6 if topic is not None and topic.revision in journal.state.topics:
                self.reconcile(topic, j)
            case 7:
                closes = rng.random() < 0.5 and self.epoch >= journal.state.max_applied_epoch
                journal.apply(Barrier(self.epoch) if closes else Advance(self.epoch))
            case 8:
                self.copies[j].append(copy.deepcopy(journal.state))
            case _:
                self.snapshots.append((self.epoch, list(self.topics)))

    def create(self) -> None:
        self.epoch += 1
        first = self.rng.randrange(1, 4)
        both = {0: (0, first), 1: (first, self.rng.randrange(1, 4))}
        ranges = both if self.rng.random() < 0.4 else {self.rng.randrange(JOURNALS): (0, first)}
        self.topics.append(ATopic(f"t{self.epoch}", self.epoch, ranges))

    def upload(self, topic: ATopic, j: int) -> None:
        state, (first, count) = self.journals[j].state, topic.ranges[j]
        lowest = max(state.previous_applied_epoch, topic.revision)
        if lowest > self.epoch:
            return
        epoch = self.rng.randint(lowest, self.epoch)
        self.objects += 1
        partitions = self.rng.sample(range(first, first + count), self.rng.randint(1, count))
        records = dict.fromkeys(partitions, 2)
        self.journals[j].land(
            extents_of(epoch, records, key=name_of(self.objects), revision=topic.revision, topic_id=topic.name)
        )

    def reconcile(self, topic: ATopic, j: int) -> None:
        journal = self.journals[j]
        ends = {}
        for p in range(topic.ranges[j][0], sum(topic.ranges[j])):
            extents = journal.state.topic(topic.revision).extents(p)
            if extents:
                ends[p] = self.rng.choice(extents).last_offset
        if ends:
            some = dict(self.rng.sample(sorted(ends.items()), self.rng.randint(1, len(ends))))
            journal.reconcile(some, revision=topic.revision, epoch=self.epoch)

    def units(self, topics: list[ATopic], states: list[JournalState]) -> list[UnitSummary]:
        return [
            summary_of(j, [t.partitions_in(j) for t in topics if j in t.ranges], s, Place(0))
            for j, s in enumerate(states)
        ]

    @property
    def states(self) -> list[JournalState]:
        return [j.state for j in self.journals]


@given(st.randoms(use_true_random=False), st.integers(1, 60))
@tries(40)
def test_no_stale_view_yields_a_watermark_that_reaches_a_live_object(rng: random.Random, steps: int) -> None:
    """Hazards 1, 5 and 6: any old snapshot is safe with any copies of the journals."""
    model = Model(rng)
    for _ in range(steps):
        model.step()
        epoch, topics = rng.choice(model.snapshots)
        states = [rng.choice([*copies, now]) for copies, now in zip(model.copies, model.states, strict=True)]
        assert compute(epoch, model.units(topics, states)).watermark < model.needed()


@given(st.randoms(use_true_random=False), st.integers(1, 60))
@settings(max_examples=40)
def test_m_never_goes_down_as_journals_go_on(rng: random.Random, steps: int) -> None:
    model = Model(rng)
    previous = -1
    for _ in range(steps):
        model.step()
        watermark = compute(model.epoch, model.units(model.topics, model.states)).watermark
        assert watermark >= previous
        previous = watermark


@given(st.randoms(use_true_random=False), st.integers(1, 60))
@settings(max_examples=40)
def test_a_journals_summary_is_that_of_all_its_partitions(rng: random.Random, steps: int) -> None:
    """M is never above any M(p), and the summary names the lowest partitions with the reasons that hold them."""
    model = Model(rng)
    for _ in range(steps):
        model.step()
    for j, summary in enumerate(model.units(model.topics, model.states)):
        state = model.states[j]
        every = sorted(
            (gc_epoch_of(state, t.revision, p), t.name, p)
            for t in model.topics
            for p in range(t.ranges.get(j, (0, 0))[0], sum(t.ranges.get(j, (0, 0))))
        )
        assert sorted((e, n) for e, n in summary.gc_epochs.items()) == sorted(
            {e: sum(x == e for x, _, _ in every) for e, _, _ in every}.items()
        )
        assert [(h.gc_epoch, h.topic, h.partition) for h in summary.lowest] == every[:HELD_BACK_SHOWN]
        assert compute(model.epoch, [summary]).watermark <= min([model.epoch, *(e for e, _, _ in every)])
        for h in summary.lowest:
            assert (h.kind == IDLE) == (h.key == "")
