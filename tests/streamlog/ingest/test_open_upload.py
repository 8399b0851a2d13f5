"""The start of an upload: the checks that precede its first write."""

from __future__ import annotations

import io
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from l0gc.errors import EpochRegressionError, NotFoundError, UsageError
from l0gc.operations import Upload
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.ingest.result import UploadResult
from l0gc.streamlog.ingest.uploader import open_upload
from tests.support.ingest import lines, round_robin, stored_values, write
from tests.support.memory_store import another_process, publish_m, store_of, topic_in_memory

PARTITIONS = 3


def run(cluster: ClusterHandles, *sources: Any, topic: str = "events", **options: Any) -> UploadResult:
    with ExitStack() as stack:
        uploader, inputs = open_upload(cluster, topic, sources, stack, Upload(**options))
        return uploader.run(inputs)


def test_records_go_round_robin_to_one_partition_or_by_a_field(tmp_path: Path) -> None:
    cluster = topic_in_memory(PARTITIONS)
    records = [b'{"k":%d}' % n for n in range(9)]
    path = write(tmp_path / "in", records)
    run(cluster, path)
    dealt, stored = round_robin(records, partitions=PARTITIONS), stored_values(cluster, "events")
    assert stored in [dealt[-first:] + dealt[:-first] for first in range(PARTITIONS)]
    run(cluster, str(path), partition=1)
    assert stored_values(cluster, "events")[1][3:] == records
    run(cluster, io.BytesIO(path.read_bytes()), key_field="k", producer="job")
    assert run(cluster, path, key_field="k", producer="job").skipped == 9  # recognised by its content
    assert sum(map(len, stored_values(cluster, "events"))) == 27


@pytest.mark.parametrize("inputs_each", [1, 40])
def test_short_inputs_without_keys_reach_all_partitions(inputs_each: int) -> None:
    cluster = topic_in_memory(PARTITIONS)
    for _ in range(40 // inputs_each):
        run(cluster, *[[b"x"] for _ in range(inputs_each)])
    assert min(map(len, stored_values(cluster, "events"))) > 5


def test_a_producers_input_is_spread_as_before() -> None:
    for process in range(8):
        cluster = topic_in_memory(PARTITIONS)
        cluster.runtime.random.seed(process)
        run(cluster, io.BytesIO(b"a\nb\n"), producer="job")
        assert stored_values(cluster, "events") == [[b"a"], [b"b"], []]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"partition": 0, "key_field": "k"}, UsageError, "exclude each other"),
        ({"partition": PARTITIONS}, UsageError, "out of range"),
        ({"topic": "event"}, NotFoundError, "did you mean 'events'"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    cluster = topic_in_memory(PARTITIONS)
    path = write(tmp_path / "in", lines(2))
    before = set(store_of(cluster).objects)
    with pytest.raises(error, match=message):
        run(cluster, path, producer="job", **options)
    assert set(store_of(cluster).objects) == before


def test_an_input_that_cannot_be_read_does_not_fence_the_run_before(tmp_path: Path) -> None:
    cluster = topic_in_memory(PARTITIONS)
    run(cluster, write(tmp_path / "in", lines(2)), producer="job")
    epoch = cluster.controller.snapshot().producers["job"].epoch
    with pytest.raises(UsageError, match="cannot read"):
        run(another_process(cluster), tmp_path / "in", tmp_path / "missing", producer="job")
    assert cluster.controller.snapshot().producers["job"].epoch == epoch


def test_an_upload_ticks_if_that_is_due(tmp_path: Path) -> None:
    cluster = topic_in_memory(PARTITIONS)
    path, epoch = write(tmp_path / "in", lines(2)), cluster.controller.snapshot().epoch
    assert {o.epoch for o in run(cluster, path).objects} == {epoch}
    store_of(cluster).clock.ms += 3_600_000
    assert {o.epoch for o in run(another_process(cluster), path).objects} == {epoch + 1}


def test_a_refused_upload_leaves_the_controllers_log_as_it_was(tmp_path: Path) -> None:
    """In a restored log, a tick and a producer's bump would take offsets that a later, better restore needs."""
    cluster = topic_in_memory(PARTITIONS)
    path = write(tmp_path / "in", lines(2))
    run(cluster, path, producer="job")
    epoch = cluster.controller.snapshot().epoch
    publish_m(cluster, epoch + 3, epoch + 5)
    store_of(cluster).clock.ms += 3_600_000  # a tick is due
    before = dict(store_of(cluster).objects)
    for options in ({}, {"producer": "job"}, {"producer": "another"}):
        with pytest.raises(EpochRegressionError):
            run(another_process(cluster), path, **options)
    assert store_of(cluster).objects == before


@pytest.mark.parametrize(("batch_bytes", "batches"), [(64 << 20, 2), (8 << 20, 4), (1 << 20, 32), (1, 32)])
def test_batches_that_wait_for_their_commit_have_32_mib(batch_bytes: int, batches: int) -> None:
    with ExitStack() as stack:
        uploader, _ = open_upload(topic_in_memory(), "events", [], stack, Upload(batch_bytes=batch_bytes))
        assert uploader._packed.qsize() == batches
