"""Mutants of code that concerns the whole cluster: the controller, its topics, and the watermark."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import msgspec

import l0gc.streamlog.controller.state
import l0gc.streamlog.housekeep
import l0gc.streamlog.journal.summary
import l0gc.streamlog.reader
import l0gc.watermark.compute
import l0gc.watermark.external_files
import l0gc.watermark.external_rows
import l0gc.watermark.publication
from l0gc.collect.orphans import Fact
from l0gc.errors import L0gcError
from l0gc.keys import PUBLISHED_WATERMARK
from l0gc.streamlog.controller.entries import Tick
from l0gc.streamlog.controller.handle import Controller
from l0gc.streamlog.controller.state import ControllerState
from l0gc.streamlog.garbage_facts import JournalNames
from l0gc.streamlog.journal.rows import Rows
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.journal.summary import JournalTask
from l0gc.watermark.compute import Watermark, check_epochs
from l0gc.watermark.external_rows import ExternalSummary
from l0gc.watermark.publication import (
    LogCheck,
    PublishedWatermark,
    encode_published,
    read_published,
    watermark_of,
)
from l0gc.watermark.source import ClusterIdentity, ClusterView, UnitSummary
from tests.simulation.mutants.tools import everywhere, instead, method, mutant

_TEST_COMPUTE = "tests/watermark/test_compute.py"
_TEST_GARBAGE = "tests/streamlog/test_garbage.py"
_TEST_HOUSEKEEP = "tests/streamlog/test_housekeep.py"
_TEST_PIPELINE = "tests/watermark/test_pipeline.py"
_TEST_PUBLICATION = "tests/watermark/test_publication.py"
_TEST_SOURCE = "tests/streamlog/test_epoch_source.py"

_COMPUTE = "l0gc.watermark.compute"
_PUBLICATION = "l0gc.watermark.publication"
_SOURCE = "l0gc.streamlog.journal.summary"
_compute = l0gc.watermark.compute.compute
_snapshot = Controller.snapshot
_bounds = JournalState.bounds
_tasks_of = l0gc.streamlog.journal.summary.tasks_of
_propose = Controller._propose
_find_files = l0gc.watermark.external_files._FileSet.__init__
_add_up = l0gc.watermark.external_rows.add_up
_refuse_if_set_back = l0gc.watermark.publication.refuse_if_set_back
_BETWEEN_S = 60.0
"""How many seconds a mutant waits between two steps that the guard joins, so that others can act between them."""


@instead(
    5,
    "l0gc/watermark/compute.py::compute",
    "M is the lowest M(p) alone",
    f"{_TEST_COMPUTE}::test_m_is_never_above_the_epoch_of_its_snapshot",
    simulated=False,
)
def not_capped(cluster_epoch: int, units: Sequence[UnitSummary]) -> Watermark:
    w = _compute(1 << 50 if any(u.partitions for u in units) else cluster_epoch, units)
    return msgspec.structs.replace(w, cluster_epoch=cluster_epoch)


@instead(
    5,
    "l0gc/streamlog/controller/handle.py::Controller.snapshot",
    "the epoch is read after the topics",
    "tests/streamlog/controller/test_handle.py::test_a_snapshot_knows_every_topic_up_to_its_epoch",
    simulated=False,
)
def epoch_read_apart(self: Controller) -> ControllerState:
    state = _snapshot(self)
    self._runtime.clock.sleep(_BETWEEN_S)
    state.epoch = _snapshot(self).epoch
    return state


@instead(
    6,
    "l0gc/streamlog/journal/summary.py::unreadable",
    "a journal that cannot be read does not count",
    f"{_TEST_SOURCE}::test_an_unreadable_journal_holds_m_below_its_oldest_topic",
)
def unreadable_left_out(task: JournalTask, error: L0gcError) -> UnitSummary:
    return UnitSummary(unit=f"journal {task.journal}", gc_epochs={}, lowest=[], error=str(error))


@instead(
    6,
    "l0gc/streamlog/journal/state.py::JournalState.bounds",
    "a topic in which nothing has landed does not count",
    f"{_TEST_SOURCE}::test_a_topic_that_nothing_has_landed_in_holds_m_below_its_revision",
)
def untouched_left_out(self: JournalState, revision: int, first: int, count: int) -> Rows:
    """Put a topic that a journal does not know at the journal's newest epoch."""
    found = _bounds(self, revision, first, count)
    if revision not in self.topics:
        found[:] = 1 << 50
    return found


@instead(
    6,
    "l0gc/watermark/external_files.py::ExternalFiles",
    "a list of another system's partitions is read before its writer has finished it",
    "tests/watermark/test_external_files.py::test_a_folder_that_is_not_finished_is_refused",
    place="l0gc/watermark/external_files.py::_FileSet.__init__",
)
def unfinished_list(*args: Any, finished: bool) -> None:
    _find_files(*args, finished=False)


@instead(
    6,
    "l0gc/watermark/external_log.py::ExternalLog.of",
    "rows that name no snapshot count as rows of the others' snapshot",
    "tests/watermark/test_external_files.py::test_a_list_of_which_a_part_names_no_snapshot_is_refused",
    simulated=False,
    place="l0gc/watermark/external_rows.py::add_up",
)
def snapshots_not_compared(*args: Any) -> ExternalSummary:
    return msgspec.structs.replace(_add_up(*args), filled={})


@instead(
    6,
    "l0gc/streamlog/journal/summary.py::tasks_of",
    "deleted topics hold M",
    f"{_TEST_SOURCE}::test_a_deleted_topic_holds_nothing_and_neither_do_all_of_them",
    simulated=False,
)
def deleted_hold_back(state: ControllerState, floor: int, *rest: Any, **more: Any) -> list[JournalTask]:
    state = state.copy()
    for d in state.deleted:
        state.topics[f"{d.topic.name} {d.topic.revision}"] = d.topic
    return _tasks_of(state, floor, *rest, **more)


@instead(
    6,
    "l0gc/watermark/compute.py::compute",
    "M does not exist if there are no topics",
    f"{_TEST_COMPUTE}::test_without_partitions_m_is_the_cluster_epoch",
)
def nothing_without_topics(cluster_epoch: int, units: Sequence[UnitSummary]) -> Watermark:
    w = _compute(cluster_epoch, units)
    return w if any(u.partitions for u in units) else msgspec.structs.replace(w, watermark=-1)


@mutant(
    10,
    "l0gc/watermark/compute.py::check_epochs",
    "an epoch above the cluster epoch is ignored",
    f"{_TEST_COMPUTE}::test_an_epoch_that_the_cluster_has_not_reached_is_refused",
    f"{_TEST_PIPELINE}::test_an_object_above_the_cluster_epoch_stops_everything",
    simulated=False,
)
def epochs_not_compared() -> AbstractContextManager[Any]:
    return everywhere(_COMPUTE, "check_epochs", lambda cluster_epoch, highest_known, source, *rest: None)


@instead(
    10,
    "l0gc/watermark/publication.py::_refuse_if_behind",
    "a published epoch above the cluster epoch stops no command",
    "tests/collect/test_sweep_local.py::test_a_watermark_above_the_cluster_epoch_is_refused",
    f"{_TEST_PUBLICATION}::test_a_restored_controller_admits_nothing_and_stays_unchanged",
)
def behind_is_fine(
    cluster: ClusterView, published: PublishedWatermark | None
) -> tuple[ClusterIdentity, PublishedWatermark | None]:
    return cluster.identity(), published


@instead(
    10,
    "l0gc/watermark/publication.py::check_published",
    "M alone is compared with the epoch, not the published epoch",
    f"{_TEST_PUBLICATION}::test_a_restored_controller_admits_nothing_and_stays_unchanged",
)
def published_epoch_ignored(cluster_epoch: int, published: PublishedWatermark | None, *rest: str) -> None:
    if published is not None:
        check_epochs(cluster_epoch, published.watermark, "the watermark")


@instead(
    10,
    "l0gc/streamlog/controller/handle.py::Controller._propose",
    "an entry is appended without a check of the published epochs",
    f"{_TEST_PUBLICATION}::test_a_restored_controller_admits_nothing_and_stays_unchanged",
)
def written_unchecked(self: Controller, decide: Any, **options: Any) -> bool:
    return _propose(self, decide, **{**options, "guarded": False})


@instead(
    10,
    "l0gc/watermark/publication.py::refuse_if_set_back",
    "a topic may get a revision that a journal has seen",
    "tests/streamlog/test_topics.py::test_no_revision_of_a_topic_with_records_is_reissued",
    simulated=False,
)
def revisions_given_twice(
    cluster: ClusterView, units: Collection[int] | None = None, *, names: bool = False, **options: bool
) -> LogCheck:
    return _refuse_if_set_back(cluster, units, **options)


@mutant(
    10,
    "l0gc/streamlog/controller/state.py::ControllerState.has_created",
    "topics that the controller never had are ignored",
    f"{_TEST_SOURCE}::test_a_topic_that_the_controller_never_knew_stops_everything",
    simulated=False,
)
def unknown_topics() -> AbstractContextManager[Any]:
    return method(ControllerState, "has_created", lambda self, revision, topic_id: True)


@mutant(
    10,
    "l0gc/streamlog/garbage_facts.py::JournalNames",
    "an object in the folder of an unknown topic is an orphan",
    f"{_TEST_GARBAGE}::test_an_unknown_topics_folder_is_named_and_left",
    f"{_TEST_GARBAGE}::test_a_topic_lost_with_controller_and_journal_keeps_its_l1",
    simulated=False,
)
def unknown_folders_go() -> AbstractContextManager[Any]:
    return method(JournalNames, "_of_unlisted", lambda self, k: Fact(k.epoch, self._lowest, needed=False))


@mutant(
    11,
    "l0gc/watermark/compute.py::check_cluster_id",
    "another cluster's M counts",
    f"{_TEST_COMPUTE}::test_another_clusters_data_is_refused",
    f"{_TEST_PUBLICATION}::test_another_clusters_watermark_is_neither_read_nor_replaced",
    simulated=False,
)
def any_cluster_id() -> AbstractContextManager[Any]:
    return everywhere(_COMPUTE, "check_cluster_id", lambda cluster_id, found, source: None)


@mutant(
    11,
    "l0gc/streamlog/controller/decisions.py::check_cluster",
    "a process takes any bucket",
    "tests/streamlog/controller/test_decisions.py::test_a_bucket_of_another_cluster_is_refused",
)
def any_cluster() -> AbstractContextManager[Any]:
    return everywhere("l0gc.streamlog.controller.decisions", "check_cluster", lambda state, expected: None)


@instead(
    15,
    "l0gc/watermark/publication.py::publish",
    "M is written over the published one",
    f"{_TEST_PUBLICATION}::test_a_lower_watermark_is_refused",
)
def blind_publication(store: Any, runtime: Any, new: PublishedWatermark, **options: Any) -> PublishedWatermark | None:
    current, _ = read_published(store, new.cluster_id)
    store.put(PUBLISHED_WATERMARK, encode_published(new))
    return current


@instead(
    15,
    "l0gc/watermark/publication.py::publish",
    "M is compared, then written without a condition",
    f"{_TEST_PUBLICATION}::test_a_slower_run_does_not_lower_what_a_faster_one_published_meanwhile",
    simulated=False,
)
def publication_without_swap(
    store: Any, runtime: Any, new: PublishedWatermark, **options: Any
) -> PublishedWatermark | None:
    current, _ = read_published(store, new.cluster_id)
    if watermark_of(current) <= new.watermark:
        runtime.clock.sleep(_BETWEEN_S)
        store.put(PUBLISHED_WATERMARK, encode_published(new))
    return current


@instead(
    16,
    "l0gc/streamlog/controller/handle.py::Controller.tick_if_due",
    "ticks use the process's clock",
    "tests/streamlog/controller/test_handle.py::test_a_tick_is_due_by_the_stores_clock",
)
def tick_by_local_clock(self: Controller) -> int:
    def decide(state: ControllerState) -> Tick | None:
        due = self._runtime.clock.now_ms() - state.time_ms >= self._epoch_interval_ms
        return Tick() if due else None

    self._propose(decide)
    return self.replica.state.epoch


@mutant(
    46,
    "l0gc/streamlog/housekeep.py::housekeep",
    "a failure at one log ends the whole run",
    f"{_TEST_HOUSEKEEP}::test_a_refused_journal_is_named_and_housekeeping_continues",
    f"{_TEST_HOUSEKEEP}::test_an_unclosable_topic_does_not_stop_housekeeping",
)
def one_log_ends_all() -> AbstractContextManager[Any]:
    return mock.patch.object(l0gc.streamlog.housekeep, "_OF_ONE_LOG", ())
