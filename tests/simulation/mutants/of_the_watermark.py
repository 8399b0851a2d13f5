"""Mutants of what concerns the whole cluster: the controller, its reports and the watermark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import msgspec

import l0gc.streamlog.ingest.inputs
import l0gc.streamlog.reader
import l0gc.watermark.compute
import l0gc.watermark.lowest
from l0gc.keys import PUBLISHED_WATERMARK, PartitionId
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.controller.handle import Controller
from l0gc.streamlog.controller.state import ControllerState, Tick
from l0gc.watermark.compute import PartitionReport, Watermark
from l0gc.watermark.publication import PublishedWatermark, encode_published, read_published, watermark_of
from tests.simulation.mutants.tools import Mutant, everywhere, method

_COMPUTE = "l0gc.watermark.compute"
_PUBLICATION = "l0gc.watermark.publication"
_compute = l0gc.watermark.compute.compute
_snapshot = Controller.snapshot
_partitions = ControllerState.partitions
Reports = Mapping[PartitionId, PartitionReport]


def _not_capped() -> AbstractContextManager[Any]:
    def compute(cluster_epoch: int, partitions: Iterable[PartitionId], reports: Reports, *rest: Any) -> Watermark:
        ids = list(partitions)
        w = _compute(1 << 50 if ids else cluster_epoch, ids, reports)
        return msgspec.structs.replace(w, cluster_epoch=cluster_epoch)

    return everywhere(_COMPUTE, "compute", compute)


def _epoch_read_apart() -> AbstractContextManager[Any]:
    def snapshot(self: Controller) -> ControllerState:
        state = _snapshot(self)
        state.epoch = _snapshot(self).epoch
        return state

    return method(Controller, "snapshot", snapshot)


def _silent_left_out() -> AbstractContextManager[Any]:
    def compute(cluster_epoch: int, partitions: Iterable[PartitionId], reports: Reports, *rest: Any) -> Watermark:
        return _compute(cluster_epoch, [p for p in partitions if p in reports], reports)

    return everywhere(_COMPUTE, "compute", compute)


def _revision_ignored() -> AbstractContextManager[Any]:
    return mock.patch.object(l0gc.watermark.lowest, "KEY", ["topic", "partition"])


def _deleted_hold_back() -> AbstractContextManager[Any]:
    def partitions(self: ControllerState) -> list[PartitionId]:
        return _partitions(self) + [p for d in self.deleted for p in d.topic.ids()]

    return method(ControllerState, "partitions", partitions)


def _no_topics_no_watermark() -> AbstractContextManager[Any]:
    def compute(cluster_epoch: int, partitions: Iterable[PartitionId], reports: Reports, *rest: Any) -> Watermark:
        ids = list(partitions)
        w = _compute(cluster_epoch, ids, reports)
        return w if ids else msgspec.structs.replace(w, watermark=-1)

    return everywhere(_COMPUTE, "compute", compute)


def _epochs_not_compared() -> AbstractContextManager[Any]:
    return everywhere(_COMPUTE, "check_epochs", lambda cluster_epoch, highest_known, source, *rest: None)


def _behind_is_fine() -> AbstractContextManager[Any]:
    def refuse(cluster: Cluster) -> tuple[ControllerState, PublishedWatermark | None]:
        state = cluster.controller.snapshot()
        return state, read_published(cluster.store, state.cluster_id)[0]

    return everywhere(_PUBLICATION, "refuse_if_behind", refuse)


def _unknown_topics_are_fine() -> AbstractContextManager[Any]:
    return method(ControllerState, "knows", lambda self, name, revision: True)


def _any_cluster_id() -> AbstractContextManager[Any]:
    return everywhere(_COMPUTE, "check_cluster_id", lambda cluster_id, found, source: None)


def _any_cluster() -> AbstractContextManager[Any]:
    return everywhere("l0gc.streamlog.controller.state", "check_cluster", lambda state, expected: None)


def _blind_publication() -> AbstractContextManager[Any]:
    def publish(store: Any, runtime: Any, new: PublishedWatermark, **options: Any) -> PublishedWatermark | None:
        current, _ = read_published(store, new.cluster_id)
        store.put(PUBLISHED_WATERMARK, encode_published(new))
        return current

    return everywhere(_PUBLICATION, "publish", publish)


def _publication_without_swap() -> AbstractContextManager[Any]:
    def publish(store: Any, runtime: Any, new: PublishedWatermark, **options: Any) -> PublishedWatermark | None:
        current, _ = read_published(store, new.cluster_id)
        if watermark_of(current) <= new.watermark:
            store.put(PUBLISHED_WATERMARK, encode_published(new))
        return current

    return everywhere(_PUBLICATION, "publish", publish)


def _tick_by_the_local_clock() -> AbstractContextManager[Any]:
    def tick_if_due(self: Controller) -> int:
        def decide(state: ControllerState) -> Tick | None:
            due = self._runtime.clock.now_ms() - state.time_ms >= self._epoch_interval_ms
            return Tick() if due else None

        self._propose(decide)
        return self.replica.state.epoch

    return method(Controller, "tick_if_due", tick_if_due)


_TEST_COMPUTE = "tests/watermark/test_compute.py"
_TEST_PUBLICATION = "tests/watermark/test_publication.py"


MUTANTS = [
    Mutant(
        5,
        "not-capped",
        "l0gc/watermark/compute.py::compute",
        "M is the lowest M(p) alone",
        _not_capped,
        (f"{_TEST_COMPUTE}::test_m_is_never_above_the_epoch_of_its_snapshot",),
    ),
    Mutant(
        5,
        "epoch-read-apart",
        "l0gc/controller/handle.py::Controller.snapshot",
        "the epoch is read behind the partitions",
        _epoch_read_apart,
        ("tests/controller/test_handle.py::test_a_snapshot_knows_every_topic_up_to_its_epoch",),
        simulated=False,
    ),
    Mutant(
        6,
        "silent-left-out",
        "l0gc/watermark/compute.py::compute",
        "a partition without a report does not count",
        _silent_left_out,
        (f"{_TEST_COMPUTE}::test_a_partition_that_never_reported_still_needs_its_topics_revision",),
    ),
    Mutant(
        6,
        "revision-ignored",
        "l0gc/watermark/lowest.py::lowest",
        "a report counts for every topic of that name",
        _revision_ignored,
        ("tests/watermark/test_lowest.py::test_a_report_of_a_former_incarnation_says_nothing_about_a_partition",),
    ),
    Mutant(
        6,
        "deleted-hold-back",
        "l0gc/controller/state.py::ControllerState.partitions",
        "deleted topics hold M",
        _deleted_hold_back,
        ("tests/watermark/test_job.py::test_a_report_of_a_deleted_topic_holds_nothing_back",),
    ),
    Mutant(
        6,
        "nothing-without-topics",
        "l0gc/watermark/compute.py::compute",
        "without topics there is no M",
        _no_topics_no_watermark,
        (f"{_TEST_COMPUTE}::test_without_topics_m_is_the_cluster_epoch",),
    ),
    Mutant(
        10,
        "epochs-not-compared",
        "l0gc/watermark/compute.py::check_epochs",
        "what is above the cluster epoch is no sign",
        _epochs_not_compared,
        (
            f"{_TEST_COMPUTE}::test_an_epoch_that_the_cluster_has_not_reached_is_refused",
            f"{_TEST_PUBLICATION}::test_a_published_watermark_above_the_cluster_epoch_is_refused",
        ),
    ),
    Mutant(
        10,
        "behind-is-fine",
        "l0gc/watermark/publication.py::refuse_if_behind",
        "M above the epoch stops nobody",
        _behind_is_fine,
        (
            "tests/sweep/test_local.py::test_a_watermark_above_the_cluster_epoch_is_refused",
            f"{_TEST_PUBLICATION}::test_a_restored_controller_takes_no_topic_and_no_data_below_what_is_published",
        ),
    ),
    Mutant(
        10,
        "unknown-topics",
        "l0gc/watermark/job.py::run",
        "reports of unknown topics are ignored",
        _unknown_topics_are_fine,
        ("tests/watermark/test_job.py::test_a_report_of_a_topic_that_the_controller_never_knew_stops_everything",),
    ),
    Mutant(
        11,
        "any-cluster-id",
        "l0gc/watermark/compute.py::check_cluster_id",
        "another cluster's M and reports count",
        _any_cluster_id,
        (
            f"{_TEST_COMPUTE}::test_another_clusters_data_is_refused",
            f"{_TEST_PUBLICATION}::test_another_clusters_watermark_is_neither_read_nor_replaced",
        ),
    ),
    Mutant(
        11,
        "any-cluster",
        "l0gc/controller/state.py::check_cluster",
        "a process takes any bucket",
        _any_cluster,
        ("tests/controller/test_state.py::test_a_bucket_of_another_cluster_is_refused",),
    ),
    Mutant(
        15,
        "blind-publication",
        "l0gc/watermark/publication.py::publish",
        "M is written over what is there",
        _blind_publication,
        (f"{_TEST_PUBLICATION}::test_a_lower_watermark_is_refused",),
    ),
    Mutant(
        15,
        "publication-without-swap",
        "l0gc/watermark/publication.py::publish",
        "M is compared, then written without a condition",
        _publication_without_swap,
        (f"{_TEST_PUBLICATION}::test_a_slower_run_does_not_lower_what_a_faster_one_published_meanwhile",),
    ),
    Mutant(
        16,
        "tick-by-local-clock",
        "l0gc/controller/handle.py::Controller.tick_if_due",
        "ticks go by the process's clock",
        _tick_by_the_local_clock,
        ("tests/controller/test_handle.py::test_a_tick_is_due_by_the_stores_clock",),
    ),
]
