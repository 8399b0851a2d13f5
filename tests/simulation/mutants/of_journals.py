"""Mutants of the decisions of a journal, its fence and its producers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import msgspec
import numpy as np

import l0gc.streamlog.journal.apply
import l0gc.streamlog.journal.producers
import l0gc.streamlog.journal.state
import l0gc.streamlog.journal.topic
from l0gc.errors import InvalidProducerEpochError, ProtocolError, StaleClusterEpochError, UsageError
from l0gc.storage.entry import StoredEntry
from l0gc.streamlog.controller.state import RUN_LIMIT_MS
from l0gc.streamlog.journal.admission import Admission, EpochWindow
from l0gc.streamlog.journal.checkpoint import JournalMachine
from l0gc.streamlog.journal.entries import RECONCILE, JournalEntry, ObjectExtents, Objects
from l0gc.streamlog.journal.fence import EpochFence
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.producers import LandedSequence, Overlay, ProducerBatch, ProducerState
from l0gc.streamlog.journal.rows import Rows
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.journal.topic import TopicState
from tests.simulation.mutants.of_l1 import fits_anyhow
from tests.simulation.mutants.tools import everywhere, instead, method, mutant, together

_HANDLE = "tests/streamlog/journal/test_handle.py"
_INTERRUPTED = "tests/streamlog/journal/test_interrupted.py"
_FENCE = "tests/streamlog/journal/test_fence.py"
_TEST_STATE = "tests/streamlog/journal/test_state.py"
_TEST_PRODUCERS = "tests/streamlog/journal/test_producers.py"
_RESUME = "tests/streamlog/ingest/test_resume.py"

_STATE = "l0gc.streamlog.journal.state"
_ADMISSION = "l0gc.streamlog.journal.admission"
_PRODUCERS = "l0gc.streamlog.journal.producers"
_admit = l0gc.streamlog.journal.producers.admit
_admit_object = Admission.admit
_bounds = JournalState.bounds


@instead(
    1,
    "l0gc/streamlog/journal/state.py::JournalState.bounds",
    "the bound is the newest epoch",
    f"{_TEST_STATE}::test_the_bound_follows_the_previous_epoch_and_not_the_newest",
)
def bound_follows_max(self: JournalState, revision: int, first: int, count: int) -> Rows:
    return _bounds(msgspec.structs.replace(self, previous_applied_epoch=self.max_applied_epoch), revision, first, count)


@mutant(
    1,
    "l0gc/streamlog/journal/topic.py::TopicState.lowest_epochs",
    "unreconciled epochs do not hold the bound",
    f"{_TEST_STATE}::test_the_lowest_unreconciled_epoch_holds_the_bound",
)
def bound_forgets_data() -> AbstractContextManager[Any]:
    return method(TopicState, "lowest_epochs", lambda self, first, count, ceiling: np.full(count, ceiling, np.int64))


def _admitting(stale_after_all: Callable[[Admission, ObjectExtents], bool]) -> AbstractContextManager[Any]:
    """Admit a stale object if `stale_after_all` returns true for it."""

    def admit(self: Admission, o: ObjectExtents) -> LandedSequence | None:
        try:
            return _admit_object(self, o)
        except StaleClusterEpochError:
            if not stale_after_all(self, o):
                raise
            if o.producer is not None:
                self._producers.record(o.producer)
            return None

    return method(Admission, "admit", admit)


@mutant(
    2,
    "l0gc/streamlog/journal/admission.py::Admission.admit",
    "the window is not checked where an object lands",
    f"{_HANDLE}::test_a_fenced_object_below_a_moved_window_does_not_land",
)
def fence_alone() -> AbstractContextManager[Any]:
    return _admitting(lambda self, o: True)


@mutant(
    21,
    "l0gc/streamlog/journal/admission.py::Admission.admit",
    "a topic takes objects that are older than itself",
    f"{_TEST_STATE}::test_a_topic_needs_nothing_below_its_revision_though_its_journal_stands_lower",
)
def revision_not_checked() -> AbstractContextManager[Any]:
    return _admitting(lambda self, o: o.epoch >= self._window.oldest)


@mutant(
    3,
    "l0gc/streamlog/journal/fence.py::EpochFence.forget",
    "a lost append leaves the seen window as it is",
    f"{_HANDLE}::test_the_epoch_of_a_failed_append_shuts_nobody_out",
)
def seen_window_kept() -> AbstractContextManager[Any]:
    return method(EpochFence, "forget", lambda self: None)


@mutant(
    3,
    "l0gc/streamlog/journal/handle.py::JournalHandle.append",
    "a repeated object that is answered leaves the seen window",
    f"{_HANDLE}::test_a_repeated_batch_at_a_newer_epoch_shuts_nobody_out",
)
def answer_keeps_window() -> AbstractContextManager[Any]:
    answered: list[bool] = []
    forget = EpochFence.forget

    def admit(self: Admission, o: ObjectExtents) -> LandedSequence | None:
        landed = _admit_object(self, o)
        answered[:] = [landed is not None]
        return landed

    def forget_otherwise(self: EpochFence) -> None:
        if answered == [True]:
            answered.clear()
            return
        forget(self)

    return together(method(Admission, "admit", admit), method(EpochFence, "forget", forget_otherwise))


@instead(
    4,
    "l0gc/streamlog/journal/fence.py::EpochFence.window",
    "the log's window counts only if no window was seen",
    f"{_FENCE}::test_a_seen_window_ends_when_another_writer_moves_the_log_past_it",
    f"{_FENCE}::test_a_seen_window_that_another_writer_has_overtaken_shuts_nobody_out",
    place="l0gc/streamlog/journal/fence.py::EpochFence._window",
)
def seen_window_rules(self: EpochFence) -> EpochWindow:
    return self._applied() if self._seen is None else self._seen


@mutant(
    9,
    "l0gc/streamlog/journal/edits.py::fits",
    "a range need not follow the last one",
    f"{_TEST_STATE}::test_a_partition_that_moved_on_is_refused_and_the_others_land",
)
def any_range() -> AbstractContextManager[Any]:
    return fits_anyhow(RECONCILE)


@mutant(
    14,
    "l0gc/streamlog/journal/admission.py::check_not_poisoned",
    "any epoch may be offered",
    f"{_HANDLE}::test_an_epoch_above_the_clusters_moves_no_window",
)
def poison_taken() -> AbstractContextManager[Any]:
    return everywhere(_ADMISSION, "check_not_poisoned", lambda journal, epoch, cluster_epoch: None)


@mutant(
    14,
    "l0gc/streamlog/journal/admission.py::check_object",
    "an entry that `apply` refuses is appended",
    f"{_HANDLE}::test_none_lands_behind_one_that_was_refused",
)
def refused_too_late() -> AbstractContextManager[Any]:
    """Append what `apply` refuses, without a check before the append."""
    check = l0gc.streamlog.journal.admission.check_object
    applying: list[bool] = []
    apply = JournalMachine.apply

    def checked(o: ObjectExtents) -> Any:
        if applying:
            return check(o)
        try:
            return check(o)
        except UsageError:
            return None

    def applied(self: JournalMachine, state: JournalState, entry: StoredEntry) -> None:
        applying.append(True)
        try:
            apply(self, state, entry)
        finally:
            applying.pop()

    return together(
        everywhere("l0gc.streamlog.journal.admission", "check_object", checked),
        method(JournalMachine, "apply", applied),
    )


# -- producers -----------------------------------------------------------------------------------------------------------

Producers = Mapping[int, ProducerState]


@mutant(
    17,
    "l0gc/streamlog/journal/producers.py::needs_controller_check",
    "an unknown producer may begin",
    f"{_HANDLE}::test_a_zombie_that_the_journal_never_knew_cannot_begin",
)
def controller_not_asked() -> AbstractContextManager[Any]:
    return everywhere(_PRODUCERS, "needs_controller_check", lambda producers, batch: False)


@instead(
    20,
    "l0gc/streamlog/journal/producers.py::admit",
    "the progress of an input is ignored",
    f"{_TEST_PRODUCERS}::test_an_input_moved_by_another_run_lands_exactly_once",
    simulated=False,
)
def positions_ignored(producers: Producers, batch: ProducerBatch) -> LandedSequence | None:
    return _admit(producers, msgspec.structs.replace(batch, inputs=[]))


@mutant(
    20,
    "l0gc/streamlog/controller/state.py::PRODUCER_EXPIRY_MS",
    "a journal forgets how far an input got before the controller forgets the producer's name",
    f"{_TEST_PRODUCERS}::test_a_runs_early_landings_are_remembered_with_its_producer",
)
def inputs_forgotten() -> AbstractContextManager[Any]:
    """Let a journal forget a producer and its inputs as soon as a run may no longer begin."""
    return mock.patch.object(l0gc.streamlog.journal.apply, "PRODUCER_EXPIRY_MS", RUN_LIMIT_MS)


@mutant(
    20,
    "l0gc/streamlog/journal/producers.py::admit",
    "every object of every run may land",
    f"{_TEST_PRODUCERS}::test_an_older_epoch_is_refused_at_any_sequence",
)
def any_run() -> AbstractContextManager[Any]:
    return everywhere(_PRODUCERS, "admit", lambda producers, batch: None)


@instead(
    20,
    "l0gc/streamlog/journal/producers.py::admit",
    "a run that a restored controller gave the same epoch continues another run",
    f"{_TEST_PRODUCERS}::test_the_same_epoch_of_another_run_is_refused",
    simulated=False,
)
def run_not_compared(producers: Producers, batch: ProducerBatch) -> LandedSequence | None:
    known = producers.get(batch.producer_id)
    return _admit(producers, batch if known is None else msgspec.structs.replace(batch, run=known.run))


@instead(
    22,
    "l0gc/streamlog/journal/producers.py::Overlay",
    "the objects of an entry are admitted against the state before it",
    f"{_TEST_PRODUCERS}::test_an_entrys_batches_are_admitted_in_order_without_side_effects",
    place="l0gc/streamlog/journal/producers.py::Overlay.admit",
)
def state_before(self: Overlay, batch: ProducerBatch) -> LandedSequence | None:
    """Admit each object of an entry against the state before the entry, and tolerate the gap that results."""
    known = self._base.get(batch.producer_id)
    try:
        return _admit({} if known is None else {batch.producer_id: known}, batch)
    except InvalidProducerEpochError:
        raise
    except ProtocolError:
        if batch.producer_id not in self._changed:
            raise
        return None


@mutant(
    23,
    "l0gc/streamlog/journal/apply.py::apply",
    "readers take the objects of an entry in different orders",
    "tests/simulation/test_agreement.py::test_every_reader_assigns_the_same_offsets",
)
def own_order() -> AbstractContextManager[Any]:
    """Let readers whose entry has an odd millisecond take its objects in reverse order."""
    apply, decoder = JournalMachine.apply, msgspec.msgpack.Decoder(JournalEntry)

    def applied(self: JournalMachine, state: JournalState, entry: StoredEntry) -> None:
        if entry.date_ms % 2:
            e = decoder.decode(entry.payload)
            if isinstance(e, Objects) and all(o.producer is None for o in e.objects):
                entry = msgspec.structs.replace(entry, payload=msgspec.msgpack.encode(Objects(e.objects[::-1])))
        apply(self, state, entry)

    return method(JournalMachine, "apply", applied)


@instead(
    29,
    "l0gc/streamlog/journal/handle.py::JournalHandle._append_until_done",
    "objects that an interrupted thread had offered are offered again, although they may have landed",
    f"{_INTERRUPTED}::test_an_interrupted_threads_group_append_lands_at_most_once",
    simulated=False,
)
def offered_again(self: JournalHandle, request: Any) -> None:
    try:
        self._queue.append(request)
        with self._appending:
            while not request.done:
                request.offered = False
                self._append_queued()
    finally:
        self._queue.remove(request)


@instead(
    29,
    "l0gc/streamlog/journal/fence.py::EpochFence.enter",
    "a new epoch waits for the holders of the fence without a limit",
    f"{_INTERRUPTED}::test_an_abandoned_fence_delays_a_new_epoch_once",
    simulated=False,
    place="l0gc/streamlog/journal/fence.py::_is_given_back",
)
def held_for_ever(hold: threading.Lock) -> bool:
    with hold:
        return True
