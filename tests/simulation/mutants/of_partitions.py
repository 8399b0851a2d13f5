"""Mutants of what a partition, its fence and its producers decide."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import msgspec

import l0gc.streamlog.journal.producers
import l0gc.streamlog.journal.state
from l0gc.errors import StaleClusterEpochError
from l0gc.keys import PartitionId
from l0gc.streamlog.journal.entries import LandedBatch, Placeholder, Placeholders, ProducerBatch, ProducerState
from l0gc.streamlog.journal.fence import EpochFence
from l0gc.streamlog.journal.state import PartitionState
from l0gc.streamlog.journal.window import EpochWindow
from tests.simulation.mutants.tools import Mutant, everywhere, method

_STATE = "l0gc.streamlog.journal.state"
_PRODUCERS = "l0gc.streamlog.journal.producers"
_decide_placeholder = l0gc.streamlog.journal.state.decide_placeholder
_admit = l0gc.streamlog.journal.producers.admit


def _bound_follows_max() -> AbstractContextManager[Any]:
    def raise_bound(state: PartitionState) -> None:
        lowest = state.lowest_unreconciled_epoch
        bound = state.max_applied_epoch if lowest is None else min(state.max_applied_epoch, lowest)
        state.min_epoch_lower_bound = max(state.min_epoch_lower_bound, bound)

    return everywhere(_STATE, "_raise_bound", raise_bound)


def _bound_forgets_placeholders() -> AbstractContextManager[Any]:
    def raise_bound(state: PartitionState) -> None:
        state.min_epoch_lower_bound = max(state.min_epoch_lower_bound, state.previous_applied_epoch)

    return everywhere(_STATE, "_raise_bound", raise_bound)


def _fence_alone() -> AbstractContextManager[Any]:
    def decide(
        state: PartitionState, partition: PartitionId, extent: Placeholder, epoch: int, cluster_epoch: int
    ) -> Placeholders | LandedBatch:
        try:
            return _decide_placeholder(state, partition, extent, epoch, cluster_epoch)
        except StaleClusterEpochError:
            return Placeholders(epoch, [msgspec.structs.replace(extent, base_offset=state.next_offset)])

    return everywhere(_STATE, "decide_placeholder", decide)


def _seen_window_kept() -> AbstractContextManager[Any]:
    return method(EpochFence, "forget", lambda self: None)


def _answer_keeps_seen_window() -> AbstractContextManager[Any]:
    answered: list[bool] = []
    original = EpochFence.forget

    def decide(
        state: PartitionState, partition: PartitionId, extent: Placeholder, epoch: int, cluster_epoch: int
    ) -> Placeholders | LandedBatch:
        decision = _decide_placeholder(state, partition, extent, epoch, cluster_epoch)
        answered[:] = [isinstance(decision, LandedBatch)]
        return decision

    def forget(self: EpochFence) -> None:
        if answered == [True]:
            answered.clear()
            return
        original(self)

    @contextmanager
    def off() -> Iterator[None]:
        with everywhere(_STATE, "decide_placeholder", decide), method(EpochFence, "forget", forget):
            yield

    return off()


def _seen_window_rules() -> AbstractContextManager[Any]:
    def window(self: EpochFence) -> EpochWindow:
        return self._applied() if self._seen is None else self._seen

    return method(EpochFence, "_window", window)


def _any_range_reconciled() -> AbstractContextManager[Any]:
    return everywhere(_STATE, "decide_reconciled", lambda state, partition, e: e)


def _poison_taken() -> AbstractContextManager[Any]:
    return everywhere(_STATE, "check_not_poisoned", lambda partition, epoch, cluster_epoch: None)


def _controller_not_asked() -> AbstractContextManager[Any]:
    return everywhere(_PRODUCERS, "needs_controller_check", lambda producers, batch: False)


def _positions_ignored() -> AbstractContextManager[Any]:
    def admit(producers: dict[int, ProducerState], batch: ProducerBatch) -> LandedBatch | None:
        return _admit(producers, msgspec.structs.replace(batch, inputs=[]))

    return everywhere(_PRODUCERS, "admit", admit)


def _older_run_taken() -> AbstractContextManager[Any]:
    def admit(producers: dict[int, ProducerState], batch: ProducerBatch) -> LandedBatch | None:
        return None

    return everywhere(_PRODUCERS, "admit", admit)


_HANDLE = "tests/partition/test_handle.py"
_FENCE = "tests/partition/test_fence.py"


MUTANTS = [
    Mutant(
        1,
        "bound-follows-max",
        "l0gc/partition/state.py::_raise_bound",
        "the bound is the newest epoch",
        _bound_follows_max,
        ("tests/partition/test_state.py::test_the_bound_follows_the_previous_epoch_and_not_the_newest",),
    ),
    Mutant(
        1,
        "bound-forgets-data",
        "l0gc/partition/state.py::_raise_bound",
        "unreconciled epochs do not hold the bound",
        _bound_forgets_placeholders,
        ("tests/partition/test_state.py::test_the_lowest_unreconciled_epoch_holds_the_bound",),
    ),
    Mutant(
        2,
        "fence-alone",
        "l0gc/partition/state.py::decide_placeholder",
        "the window is not checked at the landing",
        _fence_alone,
        (f"{_HANDLE}::test_what_the_fence_admitted_does_not_land_below_a_window_that_slid_meanwhile",),
    ),
    Mutant(
        3,
        "seen-window-kept",
        "l0gc/partition/fence.py::EpochFence.forget",
        "a lost append leaves the seen window as it is",
        _seen_window_kept,
        (f"{_HANDLE}::test_whatever_an_append_dies_of_its_epoch_shuts_nobody_out",),
    ),
    Mutant(
        3,
        "answer-keeps-window",
        "l0gc/partition/handle.py::PartitionHandle.append_placeholder",
        "a repeated batch, answered, leaves the seen window",
        _answer_keeps_seen_window,
        (f"{_HANDLE}::test_a_repeated_batch_at_a_newer_epoch_shuts_nobody_out",),
    ),
    Mutant(
        4,
        "seen-window-rules",
        "l0gc/partition/fence.py::EpochFence.window",
        "the log's window counts only where none was seen",
        _seen_window_rules,
        (
            f"{_FENCE}::test_a_seen_window_ends_when_another_writer_moves_the_log_past_it",
            f"{_FENCE}::test_a_seen_window_that_another_writer_has_overtaken_shuts_nobody_out",
        ),
        simulated=False,
    ),
    Mutant(
        9,
        "any-range",
        "l0gc/partition/state.py::decide_reconciled",
        "a range need not continue the last one",
        _any_range_reconciled,
        ("tests/reconcile/test_commit.py::test_a_zombie_reconciler_loses_and_only_its_own_objects_go",),
    ),
    Mutant(
        14,
        "poison-taken",
        "l0gc/partition/state.py::check_not_poisoned",
        "any epoch may be offered",
        _poison_taken,
        (
            "tests/partition/test_state.py::test_an_epoch_that_the_cluster_has_not_reached_is_refused",
            f"{_HANDLE}::test_an_epoch_above_the_clusters_moves_no_window",
        ),
    ),
    Mutant(
        17,
        "controller-not-asked",
        "l0gc/partition/producers.py::needs_controller_check",
        "an unknown producer may begin",
        _controller_not_asked,
        (f"{_HANDLE}::test_a_zombie_whose_state_was_lost_cannot_write",),
    ),
    Mutant(
        20,
        "positions-ignored",
        "l0gc/partition/producers.py::admit",
        "how far an input got is not looked at",
        _positions_ignored,
        ("tests/ingest/test_uploader.py::test_a_second_run_finds_out_at_the_landing_what_the_first_landed_meanwhile",),
    ),
    Mutant(
        20,
        "any-run",
        "l0gc/partition/producers.py::admit",
        "every batch of every run may land",
        _older_run_taken,
        ("tests/partition/test_producers.py::test_an_older_epoch_is_refused_at_any_sequence",),
    ),
]
