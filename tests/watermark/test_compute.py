"""M, against a model that knows what every partition may still need: no stale view ever yields too high a watermark."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l0gc.errors import ClusterMismatchError, EpochRegressionError
from l0gc.keys import PartitionId
from l0gc.storage.log import Landed
from l0gc.streamlog.journal.entries import (
    Advance,
    Barrier,
    L1File,
    PartitionEntry,
    Placeholder,
    Placeholders,
    Reconciled,
)
from l0gc.streamlog.journal.state import PartitionMachine, PartitionState
from l0gc.watermark.compute import (
    HELD_BACK_SHOWN,
    PartitionReport,
    check_cluster_id,
    check_epochs,
    compute,
)
from l0gc.watermark.reports import report_of
from tests.support.reports import best_reports


def a_report(p: PartitionId, gc_epoch: int, **changes: object) -> PartitionReport:
    report = PartitionReport(
        "c", p.topic, p.revision, p.partition, gc_epoch, gc_epoch + 1, gc_epoch + 1, 0, -1, None, 0, 0
    )
    return msgspec.structs.replace(report, **changes)


A, B = PartitionId("t", 3, 0), PartitionId("t", 3, 1)


def test_m_is_the_lowest_gc_epoch_of_the_partitions() -> None:
    w = compute(20, [A, B], {A: a_report(A, 7), B: a_report(B, 5)})
    assert (w.watermark, w.cluster_epoch, w.partitions) == (5, 20, 2)
    assert [(h.partition, h.gc_epoch) for h in w.held_back_by] == [(1, 5)]


def test_m_is_never_above_the_epoch_of_its_snapshot() -> None:
    """Hazard 5: a report may be newer than the snapshot, and a topic may have been created between the two."""
    w = compute(6, [A], {A: a_report(A, 9)})
    assert w.watermark == 6
    assert w.held_back_by == []


def test_a_partition_that_never_reported_still_needs_its_topics_revision() -> None:
    """Hazard 6."""
    w = compute(20, [A, B], {A: a_report(A, 9)})
    assert w.watermark == 2
    assert w.held_back_by[0].reason == "no report yet: run l0gc housekeep"


def test_without_topics_m_is_the_cluster_epoch() -> None:
    """Hazard 6: nothing is stranded when every topic was deleted."""
    assert compute(20, [], {A: a_report(A, 4)}).watermark == 20


def test_a_report_of_a_topics_former_incarnation_says_nothing_about_it() -> None:
    """Hazard 6: re-created under its old name."""
    again = PartitionId("t", 11, 0)
    assert compute(20, [again], {A: a_report(A, 9)}).watermark == 10
    assert compute(20, [again], {A: a_report(A, 4)}).watermark == 10


def test_a_report_of_a_deleted_topic_holds_nothing_back() -> None:
    assert compute(20, [A], {A: a_report(A, 9), B: a_report(B, 4)}).watermark == 9


def test_only_so_many_partitions_are_named_and_none_that_m_is_past() -> None:
    many = [PartitionId("t", 3, i) for i in range(30)]
    w = compute(20, many, {})
    assert w.partitions == 30
    assert [h.partition for h in w.held_back_by] == list(range(HELD_BACK_SHOWN))


def test_what_holds_m_back_is_said_with_its_remedy() -> None:
    behind = a_report(A, 5, next_offset=5_004, last_reconciled_offset=3, lowest_unreconciled_epoch=6)
    idle = a_report(B, 5, previous_applied_epoch=6, max_applied_epoch=8)
    reasons = [h.reason for h in compute(20, [A, B], {A: behind, B: idle}).held_back_by]
    assert reasons[0] == "5,000 unreconciled records from epoch 6 on: run l0gc reconcile"
    assert reasons[1].startswith("window [6, 8] may still take epoch 6; it moves with the next tick")


@pytest.mark.parametrize(("cluster_epoch", "known", "refused"), [(5, 5, False), (5, 4, False), (5, 6, True)])
def test_an_epoch_that_the_cluster_has_not_reached_is_refused(cluster_epoch: int, known: int, refused: bool) -> None:
    """Hazard 10: the controller log was restored from an old backup."""
    if not refused:
        return check_epochs(cluster_epoch, known, "object k")
    with pytest.raises(EpochRegressionError, match=r"object k is at epoch 6, above the cluster epoch 5: .*old backup"):
        check_epochs(cluster_epoch, known, "object k")
    return None


def test_another_clusters_data_is_refused() -> None:
    """Hazard 11."""
    check_cluster_id("c", "c", "x")
    with pytest.raises(ClusterMismatchError, match="x belongs to cluster d, this bucket to c; nothing was"):
        check_cluster_id("c", "d", "x")


# -- against a model ----------------------------------------------------------------------------------------------------


@dataclass
class Model:
    """A whole cluster in memory: its epoch, its partitions' real states, all reports and snapshots that ever were."""

    epoch: int = 0
    partitions: dict[PartitionId, PartitionState] = field(default_factory=dict)
    offsets: dict[PartitionId, int] = field(default_factory=dict)
    reports: list[PartitionReport] = field(default_factory=list)
    snapshots: list[tuple[int, list[PartitionId]]] = field(default_factory=list)

    def apply(self, p: PartitionId, entry: PartitionEntry) -> None:
        PartitionMachine(p).apply(self.partitions[p], Landed(self.offsets[p], 0, msgspec.json.encode(entry), 0))
        self.offsets[p] += 1

    def needed(self) -> int:
        """The lowest epoch that some object of a living topic has, or may still be given."""
        lowest = self.epoch + 1  # what a topic of the future admits
        for state in self.partitions.values():
            live = [u.epoch for u in state.placeholders]
            lowest = min([lowest, state.previous_applied_epoch, *live])
        return lowest

    def step(self, rng: random.Random) -> None:
        living = list(self.partitions)
        p = rng.choice(living) if living else None
        match rng.randrange(9):
            case 0:
                self.epoch += 1
            case 1 if len(living) < 4:
                self.epoch += 1
                p = PartitionId(rng.choice("ab"), self.epoch, rng.randrange(2))
                if not any((q.topic, q.partition) == (p.topic, p.partition) for q in living):
                    self.partitions[p] = PartitionState.new(p.revision)
                    self.offsets[p] = 0
            case 2 if p is not None and rng.random() < 0.3:
                self.epoch += 1
                del self.partitions[p]
            case 3 | 4 if p is not None:
                state = self.partitions[p]
                epoch = rng.randint(state.previous_applied_epoch, self.epoch)
                self.apply(p, Placeholders(epoch, [Placeholder("k", 0, 1, 2, 0, state.next_offset)]))
            case 5 if p is not None and self.partitions[p].placeholders:
                state = self.partitions[p]
                last = rng.choice(state.placeholders)
                base, end = state.last_reconciled_offset + 1, last.placeholder.last_offset
                self.apply(p, Reconciled(base, end, last.log_offset, [L1File("f", base, end, 1)]))
            case 6 if p is not None:
                self.apply(p, Advance(self.epoch) if rng.random() < 0.5 else Barrier(self.epoch))
            case 7 if p is not None:
                self.reports.append(report_of("c", p, self.partitions[p], self.offsets[p] - 1))
            case _:
                self.snapshots.append((self.epoch, list(self.partitions)))


@given(st.randoms(use_true_random=False), st.integers(1, 60))
@settings(max_examples=150, deadline=None)
def test_no_stale_view_yields_a_watermark_that_reaches_a_live_object(rng: random.Random, steps: int) -> None:
    """Hazards 1, 5 and 6: any snapshot of the past with any choice of reports is safe now, and for all that may come."""
    model = Model()
    model.snapshots.append((0, []))
    for _ in range(steps):
        model.step(rng)
        epoch, partitions = rng.choice(model.snapshots)
        seen = rng.sample(model.reports, rng.randint(0, len(model.reports)))
        assert compute(epoch, partitions, best_reports(seen)).watermark < model.needed()


@given(st.randoms(use_true_random=False), st.integers(1, 60))
@settings(max_examples=150, deadline=None)
def test_m_never_goes_down_as_snapshots_and_reports_come_in(rng: random.Random, steps: int) -> None:
    model = Model()
    previous = -1
    for _ in range(steps):
        model.step(rng)
        watermark = compute(model.epoch, model.partitions, best_reports(model.reports)).watermark
        assert watermark >= previous
        previous = watermark


@given(st.randoms(use_true_random=False), st.integers(1, 60))
@settings(max_examples=100, deadline=None)
def test_m_reaches_everything_that_is_done_with_once_all_have_reported(rng: random.Random, steps: int) -> None:
    model = Model()
    for _ in range(steps):
        model.step(rng)
    for p, state in model.partitions.items():
        if state.placeholders:
            end = state.placeholders[-1].placeholder.last_offset
            base = state.last_reconciled_offset + 1
            log_offset = state.placeholders[-1].log_offset
            model.apply(p, Reconciled(base, end, log_offset, [L1File("f", base, end, 1)]))
        model.apply(p, Barrier(model.epoch))
        model.reports.append(report_of("c", p, state, model.offsets[p] - 1))
    assert compute(model.epoch, model.partitions, best_reports(model.reports)).watermark >= model.epoch - 1
