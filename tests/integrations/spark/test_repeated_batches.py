"""A batch that is repeated under its number is skipped if its rows are the same, and is an error if they differ (hazard
30).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from l0gc.errors import (
    BatchMismatchError,
    CorruptObjectError,
    EpochRegressionError,
    ProtocolError,
    UnknownProducerError,
)
from l0gc.integrations.spark.sink import BatchRows, TaskCommit
from l0gc.keys import CONTROLLER_LOG, journal_log
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.ingest.result import UploadResult
from l0gc.streamlog.journal.handle import AppendResult, JournalHandle
from l0gc.streamlog.producers import begin_run
from l0gc.streamlog.topics import delete_topic
from tests.support.ingest import journal_of, stored_values, upload, write
from tests.support.memory_store import another_process, store_of, topic_in_memory
from tests.support.spark_source import Rows, commit, overtaken_by, staged, write_batch

REMEDY = "restore the newest checkpoint, or start the query with a new one .* l0gc help spark"


def message(
    cluster: ClusterHandles, batch: int, values: list[int], partitions: list[int | None], **options: str
) -> TaskCommit:
    """Return what a task with these rows reports."""
    rows: Rows = {"value": [b"%d" % v for v in values], "partition": partitions}
    return staged(cluster, rows, batch, topic="events", **options)


def land(cluster: ClusterHandles, batch: int, values: list[int], partitions: list[int | None]) -> UploadResult:
    """Commit a micro-batch of these rows by a new driver."""
    driver = another_process(cluster, 100 * batch + len(values))
    return commit(driver, [message(driver, batch, values, partitions)], batch)


def there(cluster: ClusterHandles, topic: str = "events") -> list[bytes]:
    return sorted(v for of_partition in stored_values(cluster, topic) for v in of_partition)


@pytest.mark.parametrize("partitions", [[3, 0, 1], [3, 3, 3], [0, 0, 0], [None, None, None]])
def test_repeated_rows_with_new_partitions_count_as_landed(
    partitions: list[int | None],
) -> None:
    """A column `partition` that is `rand()` does this; Kafka's sink would continue, too."""
    both: list[int | None] = [0, 1, 3]
    one: list[int | None] = [1, 1, 0]
    for first in (both, one):  # in both journals, or in one
        cluster = topic_in_memory(4, 2)
        land(cluster, 1, [1, 2, 3], first)
        assert land(cluster, 1, [1, 2, 3], partitions).skipped == 3
        assert land(cluster, 2, [4], [0]).records == 1
        assert there(cluster) == of(1, 2, 3, 4)


@pytest.mark.parametrize("partitions", [[3, 0], [0, 0], [3, 3]])
def test_a_partly_landed_batch_is_not_completed_in_other_journals(
    partitions: list[int | None],
) -> None:
    """One of the rows would land twice, or never."""
    cluster = topic_in_memory(4, 2)
    with pytest.raises(EOFError), dying_after(1):
        land(cluster, 0, [1, 2], [0, 3])
    with pytest.raises(BatchMismatchError, match=f"a part of batch 0 .* other journals of the topic.*{REMEDY}"):
        land(cluster, 0, [1, 2], partitions)
    assert len(there(cluster)) == 1
    land(cluster, 0, [1, 2], [1, 2])
    assert there(cluster) == of(1, 2)


def test_another_drivers_rows_in_other_journals_are_an_error() -> None:
    cluster = topic_in_memory(4, 2)
    slow, fast = another_process(cluster, 3), another_process(cluster, 4)
    mine, other = message(slow, 1, [1, 2], [0, 3]), message(fast, 1, [1, 2], [0, 0])
    with pytest.raises(BatchMismatchError, match="a part of batch 1"), overtaken_by(lambda: commit(fast, [other], 1)):
        commit(slow, [mine], 1)


def of(*values: int) -> list[bytes]:
    return sorted(b"%d" % v for v in values)


def test_a_repeated_batch_with_more_rows_lands_nothing() -> None:
    """If an older copy of the checkpoint is restored, or its newest files are removed, the number returns with a larger
    range.
    """
    cluster = topic_in_memory(4, 2)
    land(cluster, 0, [0, 1], [0, 3])
    landed = message(cluster, 1, [2, 3], [0, 3])
    commit(cluster, [landed], 1)
    more = message(cluster, 1, [2, 3, 4, 5], [0, 3, 0, 3])
    first, again = (BatchRows.of(m.objects) for m in (landed, more))
    assert (first.count, again.count) == (2, 4)
    assert first.digest != again.digest
    with pytest.raises(BatchMismatchError, match=REMEDY) as failed:
        commit(another_process(cluster), [more], 1)
    assert f"batch 1 of producer 'spark-q' landed in journal 0 with {first}, and comes again with {again}" in str(
        failed.value
    )
    assert there(cluster) == of(0, 1, 2, 3)


@pytest.mark.parametrize(
    ("values", "partitions"),
    [
        ([2, 9], [0, 3]),  # the same number of rows, one of them different
        ([2], [0]),
        ([4, 5], [3, 3]),
        ([], []),
    ],
)
def test_other_rows_under_a_landed_number_are_refused(values: list[int], partitions: list[int | None]) -> None:
    cluster = topic_in_memory(4, 2)
    land(cluster, 1, [2, 3], [0, 3])
    with pytest.raises(BatchMismatchError, match="comes again with"):
        land(cluster, 1, values, partitions)
    assert there(cluster) == of(2, 3)


@pytest.mark.parametrize(("first", "then"), [(0, 3), (3, 0)])
def test_other_rows_for_other_journals_are_refused(first: int, then: int) -> None:
    cluster = topic_in_memory(4, 2)
    land(cluster, 1, [2], [first])
    with pytest.raises(BatchMismatchError, match="comes again with"):
        land(cluster, 1, [2, 3], [then, then])
    assert there(cluster) == of(2)


def test_a_batch_older_than_the_newest_is_refused() -> None:
    """The rows that it repeats may have landed with later batches, in other journals."""
    cluster = topic_in_memory(4, 2)
    for batch in range(4):
        land(cluster, batch, [batch], [0])
    for partition in (0, 3):
        with pytest.raises(
            BatchMismatchError, match=r"batch 2 .* is older than batch 3, which landed in journal 0"
        ) as failed:
            land(cluster, 2, [2, 3, 4], [partition] * 3)
        assert "with 3 rows (digest" in str(failed.value)
        assert "with 1 row (digest" in str(failed.value)
    assert there(cluster) == of(0, 1, 2, 3)


def test_only_its_replay_completes_a_partly_landed_batch() -> None:
    """Its driver died before its part for the other journal landed."""
    cluster = topic_in_memory(4, 2)
    rows = message(cluster, 0, [1, 2], [0, 3])
    (whole,) = rows.objects
    with pytest.raises(EOFError), dying_after(1):
        commit(cluster, [rows], 0)
    assert len(there(cluster)) == 1
    with pytest.raises(BatchMismatchError):
        land(cluster, 0, [1, 2, 3], [0, 3, 3])
    result = land(cluster, 0, [2, 1], [3, 0])
    assert (result.records, result.skipped) == (1, 1)
    assert there(cluster) == of(1, 2)
    assert set(whole.left) == {0, 1}


@contextmanager
def dying_after(appends: int) -> Iterator[None]:
    """Let drivers die after this number of appends."""
    append, left = JournalHandle.append, [appends]

    def counted(handle: JournalHandle, objects: object) -> object:
        if not left[0]:
            raise EOFError
        left[0] -= 1
        return append(handle, objects)  # type: ignore[arg-type]  # what it was called with

    with mock.patch.object(JournalHandle, "append", counted):
        yield


def test_concurrent_rows_of_another_driver_are_compared_where_they_land() -> None:
    """The driver has passed every check when the other one lands the batch with other rows."""
    cluster = topic_in_memory(2)
    land(cluster, 0, [0], [0])
    slow, fast = another_process(cluster, 3), another_process(cluster, 4)
    mine, other = message(slow, 1, [1, 2], [0, 1]), message(fast, 1, [1], [0])
    with (
        pytest.raises(BatchMismatchError, match=r"with 1 row .* with 2 rows"),
        overtaken_by(lambda: commit(fast, [other], 1)),
    ):
        commit(slow, [mine], 1)
    assert there(cluster) == of(0, 1)


def test_rows_that_name_topics_are_compared_in_every_named_topic() -> None:
    cluster = topic_in_memory(2)
    cluster.controller.create_topic("other", 2)
    both: Rows = {"value": [b"1"], "topic": ["events"]}
    first = staged(cluster, both, 3)
    commit(cluster, [first], 3, topic="")
    for names in (["other"], []):
        driver = another_process(cluster)
        replay = staged(driver, {"value": [b"2"] * len(names), "topic": names}, 3)
        with pytest.raises(BatchMismatchError):
            commit(driver, [replay], 3, topic="")
    assert [stored_values(cluster, name) for name in ("events", "other")] == [[[b"1"], []], [[], []]]


def test_an_unreadable_foreign_journal_does_not_stop_a_query(caplog: pytest.LogCaptureFixture) -> None:
    cluster = topic_in_memory(1, 1)
    cluster.controller.create_topic("other", 1)
    (other,) = cluster.controller.snapshot().topic("other").journals
    assert other not in cluster.controller.snapshot().topic("events").journals
    cluster.store.put(f"{journal_log(other)}log/{0:020}", b"damaged")
    replay = staged(cluster, {"value": [b"1"], "topic": ["events"]}, 0)
    commit(another_process(cluster), [replay], 0, topic="")
    assert there(cluster) == of(1)
    assert f"journal {other}" in caplog.text
    with pytest.raises(CorruptObjectError):
        commit(another_process(cluster), [staged(cluster, {"value": [b"1"], "topic": ["other"]}, 0)], 0, topic="other")


def test_a_restarted_query_writes_to_the_recreated_topic() -> None:
    cluster = topic_in_memory(2)
    for batch in range(3):
        land(cluster, batch, [batch], [0])
    delete_topic(cluster, "events")
    cluster.controller.create_topic("events", 2)
    assert land(cluster, 0, [0, 1], [0, 1]).records == 2
    assert there(cluster) == of(0, 1)


def test_a_batch_with_an_id_of_its_own_follows_the_same_rule() -> None:
    cluster = topic_in_memory(2)
    one: Rows = {"value": [b"1"]}
    two: Rows = {"value": [b"1", b"2"]}
    nothing: Rows = {"value": []}

    def write(rows: Rows, batch_id: str) -> None:
        write_batch(another_process(cluster), rows, topic="events", producerName="nightly", batchId=batch_id)

    for _ in range(2):
        write(one, "7")
    for rows in (two, nothing):
        with pytest.raises(BatchMismatchError, match=r"batch 7 of producer 'nightly' landed .* comes again"):
            write(rows, "7")
    with pytest.raises(BatchMismatchError, match=r"batch 6 of producer 'nightly', with 1 row .* is older than batch 7"):
        write(one, "6")
    assert there(cluster) == of(1)
    for _ in range(2):
        write_batch(cluster, two, topic="events")  # neither write has an id
    write({"value": [b"8"]}, "8")
    assert there(cluster) == of(1, 1, 2, 1, 2, 8)


def test_writes_of_one_id_into_several_topics_are_batches_of_their_own() -> None:
    """A function for foreachBatch is allowed to do this."""
    cluster = topic_in_memory(2)
    cluster.controller.create_topic("other", 2)
    for _ in range(2):
        for topic, value in (("events", b"1"), ("other", b"2")):
            write_batch(cluster, {"value": [value]}, topic=topic, producerName="each", batchId="4")
    assert [there(cluster, name) for name in ("events", "other")] == [of(1), of(2)]


def test_a_query_stopped_beyond_its_names_retention_repeats_nothing() -> None:
    """By that time the controller gives the name another id, but journals remember for another week what landed."""
    cluster = topic_in_memory(2)
    for batch in range(2):
        land(cluster, batch, [batch], [0])
        before = cluster.controller.snapshot().producers["spark-q"].producer_id
        store_of(cluster).clock.ms += (1 + 18 * batch) * 24 * 3_600_000
    cluster.controller.advance()
    assert land(cluster, 1, [1], [0]).skipped == 1
    assert land(cluster, 2, [2], [0]).records == 1
    assert cluster.controller.snapshot().producers["spark-q"].producer_id != before
    with pytest.raises(BatchMismatchError):
        land(cluster, 2, [2, 3], [0, 0])
    assert there(cluster) == of(0, 1, 2)


def test_an_uploads_inputs_have_no_batch(tmp_path: Path) -> None:
    cluster = topic_in_memory(1)
    upload(cluster, "events", [write(tmp_path / "f", [b"a"])], session=begin_run(cluster, "job"))
    (known,) = journal_of(cluster).catch_up().producers.values()
    assert [(p.landed, p.rows, p.digest) for p in known.inputs.values()] == [(1, 0, "")]


# -- restored controller logs ---------------------------------------------------------------------------------------------


def controller_log(cluster: ClusterHandles) -> dict[str, bytes]:
    return {k: o.body for k, o in store_of(cluster).objects.items() if k.startswith(CONTROLLER_LOG)}


def set_back(cluster: ClusterHandles, copy: dict[str, bytes]) -> None:
    """Restore the controller log, without any process noticing it."""
    objects = store_of(cluster).objects
    for key in [k for k in objects if k.startswith(CONTROLLER_LOG) and k not in copy]:
        del objects[key]
    for key, body in copy.items():
        cluster.store.put(key, body)


def advanced_after(cluster: ClusterHandles, copy: dict[str, bytes]) -> ClusterHandles:
    """Set the log back and advance it to where it had been, in the operator's process, which is returned."""
    epoch = cluster.controller.snapshot().epoch
    set_back(cluster, copy)
    operator = another_process(cluster, 7)
    operator.controller.advance_above(epoch)
    return operator


def test_a_query_continues_after_the_controller_forgot_its_runs() -> None:
    cluster = topic_in_memory(2)
    land(cluster, 0, [0], [0])
    copy = controller_log(cluster)
    for batch in range(1, 5):  # one run a day
        store_of(cluster).clock.ms += 25 * 3_600_000
        land(cluster, batch, [batch], [0])
    operator = advanced_after(cluster, copy)
    before = operator.controller.snapshot().epoch
    assert land(cluster, 4, [4], [0]).skipped == 1
    assert land(cluster, 5, [5], [0]).records == 1
    assert land(cluster, 6, [6], [0]).records == 1
    assert operator.controller.snapshot().epoch <= before + 2  # the run has expired by then, and one more is above it
    assert there(another_process(cluster, 8)) == of(*range(7))


def test_a_query_with_a_reissued_run_continues_with_a_new_one() -> None:
    cluster = topic_in_memory(2)
    land(cluster, 0, [0], [0])
    copy = controller_log(cluster)
    store_of(cluster).clock.ms += 25 * 3_600_000
    land(cluster, 1, [1], [0])
    operator = advanced_after(cluster, copy)
    operator.controller.init_producer("spark-q")  # the same epoch, but another run
    assert land(cluster, 1, [1], [0]).skipped == 1
    assert land(cluster, 2, [2], [0]).records == 1
    assert there(another_process(cluster, 8)) == of(0, 1, 2)


def test_a_query_unknown_to_a_restored_controller_repeats_nothing() -> None:
    cluster = topic_in_memory(2)
    copy = controller_log(cluster)
    land(cluster, 0, [0], [0])
    advanced_after(cluster, copy)
    with pytest.raises(BatchMismatchError):
        land(cluster, 0, [0, 1], [0, 0])
    assert land(cluster, 0, [0], [0]).skipped == 1
    assert land(cluster, 1, [1], [0]).records == 1
    assert land(cluster, 1, [1], [0]).skipped == 1
    assert there(another_process(cluster, 8)) == of(0, 1)


def test_a_controller_log_behind_a_journal_is_named() -> None:
    """No epoch was advanced, nothing is published, and the window alone does not show it."""
    cluster = topic_in_memory(2)
    land(cluster, 0, [0], [0])
    copy = controller_log(cluster)
    for _ in range(8):
        cluster.controller.init_producer("spark-q")
    land(cluster, 1, [1], [0])
    set_back(cluster, copy)
    with pytest.raises(EpochRegressionError, match="restored from an old backup"):
        land(cluster, 2, [2], [0])
    assert there(another_process(cluster, 8)) == of(0, 1)


def test_a_batch_that_is_refused_every_time_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = topic_in_memory(2)
    land(cluster, 0, [0], [0])
    rows = message(cluster, 1, [1], [0])
    refused = AppendResult(error=UnknownProducerError("it rains"))
    monkeypatch.setattr(JournalHandle, "append", lambda handle, objects: refused)
    with pytest.raises(ProtocolError, match="refused by journal 0 50 times, each time stamped anew: it rains"):
        commit(another_process(cluster), [rows], 1)


def test_journals_refuse_other_rows_before_taking_any_part() -> None:
    """The driver has read the journals before the other batch landed in one of them, and offers the other journals
    first.
    """
    cluster = topic_in_memory(4, 2)
    late = another_process(cluster, 7)
    rows = message(late, 1, [7, 8], [0, 3])
    for journal in cluster.controller.snapshot().topic("events").journals:
        late.journal(journal).catch_up()
    land(cluster, 1, [1], [3])
    with pytest.raises(BatchMismatchError):
        commit(late, [rows], 1)
    assert there(cluster) == [b"1"]
