"""Mutants of isolation: one bad object, or one deleter that dies, delays more than itself."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import l0gc.storage.answers
import l0gc.storage.objectstore
from l0gc.collect.dropped_l1 import GRACE_EPOCHS, DroppedSource, delete_batch
from l0gc.collect.run import DeletionQueue
from l0gc.errors import StoreError
from l0gc.storage.objectstore import VersionedKey, VersionsDeleted
from l0gc.storage.refusals import NOT_S3
from l0gc.streamlog.controller.state import ControllerState, Topic
from l0gc.streamlog.garbage import JournalGarbage
from tests.simulation.mutants.tools import everywhere, instead, mutant

_GARBAGE = "tests/streamlog/test_garbage.py"
_REFUSED = "tests/streamlog/level_one/test_refused_objects.py"
_EXPIRE = "tests/streamlog/level_one/test_expire.py"

_EPOCHS = 1000
_deleted_of = ControllerState.deleted_of
_read_deleted = l0gc.storage.answers.read_deleted
_dropped = JournalGarbage.dropped
_scanned = JournalGarbage.scanned


@instead(
    6,
    "l0gc/streamlog/controller/state.py::ControllerState.deleted_of",
    "a topic that was deleted 1,000 epochs ago is no longer closed in its journals",
    "tests/streamlog/controller/test_state.py::test_a_deleted_topic_must_be_closed_until_forgotten",
    "tests/streamlog/test_housekeep.py::test_a_topic_whose_deleter_died_is_closed_however_many_epochs_have_passed",
)
def deletion_forgotten(self: ControllerState) -> dict[int, list[Topic]]:
    """Close only recently deleted topics in housekeeping."""
    late = {d.topic.revision for d in self.deleted if d.deleted_epoch > self.epoch - _EPOCHS}
    return {j: [t for t in topics if t.revision in late] for j, topics in _deleted_of(self).items()}


@instead(
    46,
    "l0gc/collect/dropped_l1.py::delete_dropped",
    "an object that cannot be deleted holds back all objects that its journal dropped after it",
    "tests/collect/test_vacuum.py::test_what_could_not_be_deleted_keeps_no_later_lot_of_its_unit",
)
def held_ends_journal(source: DroppedSource, queue: DeletionQueue) -> None:
    """Delete the batches of a unit in their order, and stop after one with a failure."""
    plan = queue.plan
    before_ms = plan.started_ms - int(1000 * plan.options.l1_grace_s)
    for unit in source.units():
        for batch in source.dropped(unit, before_ms, plan.cluster_epoch - GRACE_EPOCHS):
            before = queue.counts.failed
            delete_batch(source, queue, unit, batch)
            if queue.counts.failed > before:
                break


@mutant(
    46,
    "l0gc/storage/objectstore.py::ask_of_one",
    "an object that the store refuses ends the run",
    f"{_REFUSED}::test_healthy_partitions_are_lifted_despite_a_refused_object",
    f"{_REFUSED}::test_every_view_goes_on_and_names_the_object",
    f"{_REFUSED}::test_a_merge_leaves_the_partition_as_it_is",
    simulated=False,
)
def refusal_ends_run() -> AbstractContextManager[Any]:
    return everywhere("l0gc.storage.objectstore", "ask_of_one", lambda store, read, key, *what: read(key, *what))


@mutant(
    46,
    "l0gc/storage/objectstore.py::ask_of_one",
    "a store that refuses everything counts as one that refuses single objects",
    f"{_REFUSED}::test_a_store_that_refuses_everything_ends_the_run_at_once",
    simulated=False,
)
def all_refusals_alone() -> AbstractContextManager[Any]:
    return everywhere("l0gc.storage.objectstore", "if_there", lambda read, *what: None)


@instead(
    41,
    "l0gc/storage/answers.py::document_fault",
    "the parsed document need not be the requested one",
    "tests/storage/test_answers.py::test_no_other_document_is_parsed",
    simulated=False,
)
def any_document_parsed(body: bytes, root: str) -> str:
    return "it is another" if root == "Error" else ""


@instead(
    41,
    "l0gc/storage/answers.py::read_deleted",
    "a key that the answer to a delete request does not name counts as deleted",
    "tests/storage/test_answers.py::test_only_a_key_that_the_answer_names_is_deleted",
    simulated=False,
)
def unnamed_is_deleted(body: bytes, objects: Sequence[VersionedKey], prefix: str) -> VersionsDeleted:
    done = _read_deleted(body, objects, prefix)
    return VersionsDeleted([f for f in done.failures if f.code != NOT_S3], done.markers)


@mutant(
    42,
    "l0gc/storage/objectstore.py::ask_of_one",
    "an object that the store does not serve for a while counts as refused",
    f"{_REFUSED}::test_giving_up_is_not_advised_for_what_may_come_back",
    "tests/cli/test_throttled.py::test_no_command_takes_throttling_for_a_refusal",
    simulated=False,
)
def throttled_is_refused() -> AbstractContextManager[Any]:
    return mock.patch.object(l0gc.storage.objectstore, "RequestRefusedError", StoreError)


@instead(
    26,
    "l0gc/streamlog/garbage.py::JournalGarbage.scanned",
    "objects of a topic that the controller never had are purged although they could not be deleted",
    f"{_GARBAGE}::test_an_unknown_topics_objects_under_legal_hold_are_not_purged",
    simulated=False,
)
def left_is_purged(self: JournalGarbage, fence: int, left: Collection[str] | None) -> None:
    _scanned(self, fence, [])
