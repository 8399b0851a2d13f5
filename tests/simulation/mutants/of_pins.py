"""Mutants of pins: what a computation, a vacuum, a truncation and a clock must not do while a pin lives."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from copy import copy
from typing import Any
from unittest import mock

import numpy as np

import l0gc.watermark.publication
from l0gc.storage.log import Folder
from l0gc.storage.replica import Replica
from l0gc.storage.store_time import StoreTime
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.entries import RenewPin
from l0gc.streamlog.controller.state import ALL_TOPICS, ControllerState
from l0gc.streamlog.epoch_source import JournalTotals, journal_totals
from l0gc.streamlog.journal.summary import JournalTask, tasks_of
from l0gc.watermark.source import LogEnd, PinnedUnits
from tests.simulation.mutants.tools import everywhere, instead, method, mutant

_TEST = "tests/streamlog/test_pins.py"
_publish = l0gc.watermark.publication.publish
_truncate = Replica.truncate
_needed_from = Folder.needed_from
_journal_totals = journal_totals
_tasks_of = tasks_of


@mutant(
    36,
    "l0gc/watermark/publication.py::publish",
    "a computation that read the pins before one was created publishes M",
    f"{_TEST}::test_a_computation_that_did_not_see_the_pin_computes_again",
    simulated=False,
)
def pin_unseen() -> AbstractContextManager[Any]:
    def publish(*args: Any, **kwargs: Any) -> Any:
        return _publish(*args, **kwargs | {"pins_as_of": 1 << 62})

    return everywhere("l0gc.watermark.publication", "publish", publish)


@mutant(
    36,
    "l0gc/streamlog/epoch_source.py::pins_of",
    "M does not depend on pins",
    f"{_TEST}::test_m_stays_at_the_pin_until_it_ends",
)
def pin_ignored() -> AbstractContextManager[Any]:
    return everywhere("l0gc.streamlog.epoch_source", "pins_of", lambda state, published: PinnedUnits(state.epoch))


@instead(
    36,
    "l0gc/streamlog/epoch_source.py::journal_totals",
    "gc decides whether M could move as if there were no pins",
    f"{_TEST}::test_whether_m_could_move_counts_what_pins_hold",
    simulated=False,
)
def pins_not_counted(cluster: ClusterHandles) -> JournalTotals:
    unpinned = copy(cluster.controller.snapshot())
    unpinned.pins = {}
    with mock.patch.object(cluster.controller, "snapshot", return_value=unpinned):
        return _journal_totals(cluster)


@mutant(
    36,
    "l0gc/streamlog/garbage.py::unpinned",
    "a vacuum deletes objects that were dropped after a pin was created",
    f"{_TEST}::test_what_is_dropped_under_a_pin_stays_until_it_ends",
    f"{_TEST}::test_a_deleted_topics_l1_stays_under_a_pin",
)
def pinned_purged() -> AbstractContextManager[Any]:
    return everywhere("l0gc.streamlog.garbage", "unpinned", lambda cluster, epoch, topics: np.full(len(topics), epoch))


@mutant(
    36,
    "l0gc/streamlog/controller/state.py::ControllerState.pinned_from",
    "a vacuum takes a pin of one topic for a pin of another topic",
    f"{_TEST}::test_a_topics_pin_keeps_only_that_topics_dropped_objects",
    simulated=False,
)
def pin_of_another_topic() -> AbstractContextManager[Any]:
    def pinned_from(self: ControllerState, topic: int) -> int | None:
        return min((p.revision for p in self.pins.values() if p.topic != topic), default=None)

    return method(ControllerState, "pinned_from", pinned_from)


@mutant(
    36,
    "l0gc/streamlog/journal/summary.py::tasks_of",
    "the M that a pin of one topic holds follows from the partitions of other topics",
    f"{_TEST}::test_a_topics_pin_holds_m_only_for_that_topic",
    simulated=False,
)
def pin_of_the_others() -> AbstractContextManager[Any]:
    def tasks_of(
        state: ControllerState, floor: int, only: int = ALL_TOPICS, noted: Mapping[str, LogEnd] = {}
    ) -> list[JournalTask]:
        if only != ALL_TOPICS:
            topics, state = state.topics, copy(state)
            state.topics = {name: t for name, t in topics.items() if t.revision != only}
        return _tasks_of(state, floor, noted=noted)

    return everywhere("l0gc.streamlog.journal.summary", "tasks_of", tasks_of)


@mutant(
    36,
    "l0gc/streamlog/pins.py::reach",
    "a pin takes effect while dropped objects may still be recorded with an older epoch",
    f"{_TEST}::test_objects_dropped_at_an_old_epoch_count_from_the_pin",
    simulated=False,
)
def pin_without_windows() -> AbstractContextManager[Any]:
    return everywhere("l0gc.streamlog.pins", "reach", lambda cluster, journals, epoch: None)


@mutant(
    36,
    "l0gc/storage/replica.py::Replica.truncate",
    "logs are truncated even if a replay as of a pin needs their entries",
    f"{_TEST}::test_logs_stay_replayable_until_the_pin_ends",
)
def pinned_truncated() -> AbstractContextManager[Any]:
    return method(Replica, "truncate", lambda self, pinned_at=tuple: _truncate(self))


@mutant(
    36,
    "l0gc/streamlog/housekeep.py::housekeep",
    "a truncation uses pins that were read before its listing",
    f"{_TEST}::test_a_truncation_asks_for_pins_after_its_listing",
    simulated=False,
)
def pins_read_too_early() -> AbstractContextManager[Any]:
    def truncate(self: Any, pinned_at: Any = lambda: None) -> int:
        early = pinned_at()
        self.replay()
        return _truncate(self, lambda: early)

    return method(Replica, "truncate", truncate)


@mutant(
    36,
    "l0gc/storage/store_time.py::StoreTime.settle",
    "a date that no other reply confirms ends a pin",
    f"{_TEST}::test_a_date_that_jumps_ends_no_pin",
    simulated=False,
)
def pin_ended_early() -> AbstractContextManager[Any]:
    return method(StoreTime, "settle", lambda self, date_ms: date_ms)


@instead(
    36,
    "l0gc/streamlog/controller/entries.py::RenewPin.check",
    "a renewal applies to a pin that has ended, or to another pin of the same name",
    f"{_TEST}::test_an_ended_pin_and_its_namesake_are_not_renewed",
    simulated=False,
)
def renewed_by_name(self: RenewPin, state: ControllerState) -> None:
    pass


@instead(
    36,
    "l0gc/streamlog/controller/state.py::ControllerState.deleted_of",
    "a pin omits the journals in which only deleted topics are",
    f"{_TEST}::test_a_pin_holds_also_the_journals_that_deleted_topics_alone_are_in",
    simulated=False,
)
def deleted_unpinned(self: ControllerState) -> dict[int, list[Any]]:
    return {}


@instead(
    36,
    "l0gc/storage/log.py::Folder.needed_from",
    "a replay as of a pin may begin with a checkpoint that is one entry too new",
    "tests/storage/test_replica.py::test_a_replay_as_of_an_entry_takes_no_checkpoint_after_it",
    simulated=False,
)
def checkpoint_after_pin(self: Folder, as_of: int | None) -> int:
    return _needed_from(self, None if as_of is None else as_of + 1)
