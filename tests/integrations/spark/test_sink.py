"""Writes: rows become L0 objects in tasks, and a batch lands once and whole, whatever commits it, and however often."""

from __future__ import annotations

import itertools
import threading

import pytest
from pyspark.sql.types import StructType

from l0gc.errors import (
    AppendOutcomeUnknownError,
    EpochRegressionError,
    NotFoundError,
    PartitionClosedError,
    StoreError,
    UsageError,
)
from l0gc.integrations.spark import sink
from l0gc.integrations.spark.sink import TaskCommit
from l0gc.streamlog.topics import delete_topic
from tests.support.ingest import Countdown, CrashError, journal_of, l0_objects, objects_in_entries, slide, stored_values
from tests.support.journal import lowest_of
from tests.support.memory_store import another_process, failing, lose_reply, publish_m, store_of, topic_in_memory
from tests.support.reconcile import reconcile
from tests.support.spark_source import Rows, commit, data_source, on, overtaken_by, read, staged, write_batch


def rows(prefix: str, count: int, partitions: int = 2) -> Rows:
    """Return values in the order that each partition must have."""
    return {
        "value": [b"%s%04d" % (prefix.encode(), n) for n in range(count)],
        "partition": [n % partitions for n in range(count)],
    }


def of(prefix: str, count: int, partitions: int = 2) -> list[list[bytes]]:
    """Return the values that each partition holds of these rows."""
    values = [b"%s%04d" % (prefix.encode(), n) for n in range(count)]
    return [values[p::partitions] for p in range(partitions)]


def joined(*parts: list[list[bytes]]) -> list[list[bytes]]:
    return [list(itertools.chain.from_iterable(of_partition)) for of_partition in zip(*parts, strict=True)]


# -- rows to records ------------------------------------------------------------------------------------------------------


def test_a_batch_is_in_the_topic_in_the_order_of_its_tasks() -> None:
    cluster = topic_in_memory(2)
    write_batch(cluster, rows("a", 60), rows("b", 60), topic="events", objectBytes="1024")
    assert stored_values(cluster, "events") == joined(of("a", 60), of("b", 60))
    assert len(l0_objects(cluster)) == 2 * 2  # 60 records of 5 + 16 bytes, 1,024 at a time


def test_a_key_chooses_the_partition_and_the_column_partition_goes_before_it() -> None:
    cluster = topic_in_memory(8)
    keys = [b"k%d" % (n % 5) for n in range(40)]
    partitions = [7 if n % 4 == 0 else None for n in range(40)]
    write_batch(cluster, {"value": keys, "key": keys, "partition": partitions}, topic="events")
    found = read(cluster, topic="events")
    assert [p for p, _, _ in found].count(7) >= 10
    places = {v: {p for p, _, value in found if value == v and p != 7} for v in keys}
    assert all(len(p) <= 1 for p in places.values())
    write_batch(cluster, {"value": keys, "key": keys}, topic="events")
    again = {v: {p for p, o, value in read(cluster, topic="events") if value == v and p != 7} for v in keys}
    assert all(places[v] <= again[v] and len(again[v]) <= 1 for v in keys)


def test_rows_without_partition_and_key_go_to_the_partitions_round_robin() -> None:
    cluster = topic_in_memory(4)
    write_batch(cluster, {"value": [b"%d" % n for n in range(40)]}, topic="events")
    assert [len(values) for values in stored_values(cluster, "events")] == [10] * 4


def test_rows_name_their_topic_unless_the_option_names_one() -> None:
    cluster = topic_in_memory(2)
    cluster.controller.create_topic("other", 3, 2)
    found: Rows = {"value": [b"0", b"1", b"2"], "topic": ["other", "events", "other"], "partition": [2, 0, 0]}
    write_batch(cluster, found)
    assert stored_values(cluster, "events") == [[b"1"], []]
    assert stored_values(cluster, "other") == [[b"2"], [], [b"0"]]
    write_batch(cluster, {**found, "topic": ["events", None, "no such topic"]}, topic="other")
    assert stored_values(cluster, "events") == [[b"1"], []]
    assert stored_values(cluster, "other") == [[b"2", b"1", b"2"], [], [b"0", b"0"]]


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        ({"value": [b"a"], "partition": [2]}, UsageError, "partition 2 .* has the partitions 0 to 1"),
        ({"value": [b"a"], "partition": [-1]}, UsageError, "partition -1"),
        ({"value": [b"a"], "topic": ["evenst"]}, NotFoundError, "did you mean 'events'"),
    ],
)
def test_rows_that_cannot_be_placed_stop_their_task_and_nothing_lands(
    bad: Rows, error: type[Exception], message: str
) -> None:
    cluster = topic_in_memory(2)
    with pytest.raises(error, match=message):
        write_batch(cluster, bad, topic="" if "topic" in bad else "events")
    assert stored_values(cluster, "events") == [[], []]


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        (StructType().add("key", "binary"), {}, "column value is missing"),
        (StructType().add("value", "integer"), {}, "'value' is of type int and must be binary or string"),
        (
            StructType().add("value", "binary").add("headers", "string"),
            {},
            "'headers' is of type string and must be array<",
        ),
        (StructType().add("value", "binary").add("TIMESTAMP", "long"), {}, "'TIMESTAMP' is of type bigint and must be"),
        (StructType().add("value", "binary"), {"topic": ""}, "name the topic"),
        (StructType().add("value", "binary"), {"producerName": "x"}, "go together"),
        (StructType().add("value", "binary"), {"batchId": "1"}, "go together"),
        (
            StructType().add("value", "binary"),
            {"producerName": "x", "batchId": str(2**38)},
            "batchId must be a whole number from 0 to 274877906943, not",
        ),
    ],
)
def test_a_write_that_cannot_be_meant_is_refused_before_any_task(
    schema: StructType, options: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        data_source(**{"topic": "events", **options}).writer(schema, False)


# -- landing a batch once -------------------------------------------------------------------------------------------------


def test_a_replayed_micro_batch_is_recognised_whatever_tasks_it_has_now() -> None:
    cluster = topic_in_memory(4, 2)
    for batch in range(3):
        messages = [staged(cluster, rows(f"{batch}.", 40, 4), batch, topic="events", objectBytes="1024")]
        assert commit(cluster, messages, batch).records == 40
    whole = rows("2.", 40, 4)
    halves: list[Rows] = [{name: values[at::2] for name, values in whole.items()} for at in range(2)]
    driver = another_process(cluster)
    again = [staged(driver, half, 2, topic="events") for half in halves]
    result = commit(driver, again, 2)
    assert (result.records, result.skipped) == (0, 40)
    assert stored_values(cluster, "events") == joined(*(of(f"{n}.", 40, 4) for n in range(3)))


def test_an_empty_part_of_a_micro_batch_does_not_delay_the_next() -> None:
    cluster = topic_in_memory(4, 2)
    for batch, partition in enumerate([0, 3, 3, 0]):
        values: Rows = {"value": [b"%d" % batch], "partition": [partition]}
        assert commit(cluster, [staged(cluster, values, batch, topic="events"), None], batch).records == 1
    assert stored_values(cluster, "events") == [[b"0", b"3"], [], [], [b"1", b"2"]]


def test_unkeyed_rows_of_a_micro_batch_share_one_journal() -> None:
    """Otherwise a batch would lose and repeat rows if only one journal has its part and its replay cuts it differently."""
    cluster = topic_in_memory(6, 3)
    used = []
    for batch in range(6):
        for rows_of_task in (10, 3):
            message = staged(cluster, {"value": [b"x"] * rows_of_task}, batch, topic="events")
            used.append({journal for o in message.objects for journal in o.left})
    assert all(len(journals) == 1 for journals in used)
    assert used[::2] == used[1::2]
    assert len(set.union(*used)) == 3


def test_what_a_batch_has_for_a_journal_lands_with_one_entry() -> None:
    """Exactly-once rests on this rule: a driver dies between entries, never within one."""
    cluster = topic_in_memory(2)
    messages = [staged(cluster, rows(f"{t}.", 200), 0, topic="events", objectBytes="1024") for t in range(3)]
    assert sum(len(m.objects) for m in messages) > 9
    commit(cluster, messages, 0)
    assert objects_in_entries(cluster) == [sum(len(m.objects) for m in messages)]


def test_objects_split_by_a_tick_land_in_one_entry() -> None:
    cluster = topic_in_memory(2)
    messages = []
    for t in range(3):
        messages.append(staged(cluster, rows(f"{t}.", 20), 0, topic="events"))
        cluster.controller.advance()
    assert len({o.object.epoch for m in messages for o in m.objects}) == 3
    assert commit(cluster, messages, 0).retries == 2
    assert objects_in_entries(cluster) == [3]
    assert stored_values(cluster, "events") == joined(*(of(f"{t}.", 20) for t in range(3)))


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_next_driver_lands_a_dead_drivers_batch(when: str) -> None:
    expected = joined(of("0.", 12, 4), of("1.", 12, 4), of("2.", 12, 4))
    for at in itertools.count(1):
        cluster = topic_in_memory(4, 2)
        commit(cluster, [staged(cluster, rows("0.", 12, 4), 0, topic="events")], 0)
        driver = another_process(cluster, 5)
        message = staged(driver, rows("1.", 12, 4), 1, topic="events")
        slide(cluster, 2 if at % 2 else 0)
        store_of(cluster).fault = fault = Countdown(at, when)
        try:
            commit(driver, [message], 1)
        except (CrashError, AppendOutcomeUnknownError):
            pass
        finally:
            store_of(cluster).fault = lambda call: None
        survived = fault.left > 0
        again = another_process(cluster, 6)
        for batch in (1, 2):
            commit(again, [staged(again, rows(f"{batch}.", 12, 4), batch, topic="events")], batch)
        assert stored_values(again, "events") == expected, at
        if survived:
            assert at > 6
            return


def test_two_drivers_of_one_query_land_a_batch_once() -> None:
    """A driver that was presumed dead commits at the same time, with other objects of the same rows."""
    cluster = topic_in_memory(2)
    for batch in range(6):
        drivers = [another_process(cluster, 10 * batch + n) for n in (1, 2)]
        sizes = ["1024", "4096"]
        messages = [
            staged(d, rows(f"{batch}.", 100), batch, topic="events", objectBytes=size)
            for d, size in zip(drivers, sizes, strict=True)
        ]
        threads = [
            threading.Thread(target=commit, args=(d, [m], batch)) for d, m in zip(drivers, messages, strict=True)
        ]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert stored_values(cluster, "events") == joined(*(of(f"{n}.", 100) for n in range(6)))


def test_a_driver_that_slept_through_another_landing_lands_nothing() -> None:
    """It has more objects than the other driver had, so that some have sequences that are still unused."""
    cluster = topic_in_memory(2)
    commit(cluster, [staged(cluster, rows("0.", 10), 0, topic="events")], 0)
    slow, fast = another_process(cluster, 3), another_process(cluster, 4)
    many = staged(slow, rows("1.", 200), 1, topic="events", objectBytes="1024")
    few = staged(fast, rows("1.", 200), 1, topic="events")
    assert len(many.objects) > 2 > len(few.objects)
    with overtaken_by(lambda: commit(fast, [few], 1)):
        commit(slow, [many], 1)
    assert stored_values(cluster, "events") == joined(of("0.", 10), of("1.", 200))


def test_a_lost_reply_to_the_append_lands_nothing_twice() -> None:
    cluster = topic_in_memory(2)
    message = staged(cluster, rows("0.", 10), 0, topic="events")
    store_of(cluster).fault = lose_reply("l0gc/journal/")
    commit(cluster, [message], 0)
    assert stored_values(cluster, "events") == of("0.", 10)


def test_queries_of_one_producer_name_do_not_hide_each_others_batches() -> None:
    cluster = topic_in_memory(2)
    for query in ("q1", "q2"):
        for batch in range(2):
            message = staged(cluster, rows(f"{query}{batch}.", 10), batch, query, topic="events", producerName="same")
            assert commit(another_process(cluster), [message], batch, producerName="same").records == 10
    assert [len(v) for v in stored_values(cluster, "events")] == [20, 20]


def test_an_overtaken_query_of_the_same_producer_still_lands() -> None:
    """Both have the next sequence; the journal answers the second one as if its objects had landed before."""
    cluster = topic_in_memory(2)
    slow, fast = another_process(cluster, 3), another_process(cluster, 4)
    for query in ("q1", "q2"):
        commit(slow, [staged(slow, rows(query, 4), 0, query, topic="events")], 0, producerName="same")
    mine = staged(slow, rows("mine", 10), 1, "q1", topic="events")
    other = staged(fast, rows("other", 10), 1, "q2", topic="events")
    with overtaken_by(lambda: commit(fast, [other], 1, producerName="same")):
        commit(slow, [mine], 1, producerName="same")
    values = [v for of_partition in stored_values(cluster, "events") for v in of_partition]
    assert len(values) == len(set(values)) == 4 + 4 + 10 + 10


def test_a_query_with_a_new_checkpoint_begins_anew() -> None:
    cluster = topic_in_memory(2)
    for query in ("first", "second"):
        assert commit(cluster, [staged(cluster, rows("a", 10), 0, query, topic="events")], 0).records == 10


def test_micro_batches_cost_the_controller_no_entries() -> None:
    """Each entry would be an epoch for all writers, and make their objects late."""
    cluster = topic_in_memory(2)
    commit(cluster, [staged(cluster, rows("0.", 4), 0, topic="events")], 0)
    epoch = cluster.controller.snapshot().epoch
    for batch in range(1, 20):
        driver = another_process(cluster, batch)
        commit(driver, [staged(driver, rows(f"{batch}.", 4), batch, topic="events")], batch)
    assert cluster.controller.snapshot().epoch == epoch


def test_a_query_outlives_its_producer_runs_admission_week() -> None:
    cluster = topic_in_memory(4, 2)
    for batch in range(40):
        partition = 3 if batch in (20, 21) else 0  # it reaches the other journal after ten days
        message = staged(cluster, {"value": [b"%d" % batch], "partition": [partition]}, batch, topic="events")
        commit(another_process(cluster, batch), [message], batch)
        assert commit(another_process(cluster, batch), [message], batch).skipped == 1
        store_of(cluster).clock.ms += 12 * 3_600_000
    assert sum(map(len, stored_values(cluster, "events"))) == 40


# -- waiting objects ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("idempotent", [False, True])
def test_objects_that_came_too_late_are_stamped_anew_and_land(idempotent: bool) -> None:
    cluster = topic_in_memory(2)
    old = staged(cluster, rows("a", 10), 0, topic="events")
    slide(cluster, 4)
    new = staged(cluster, rows("b", 10), 0, topic="events")
    if idempotent:
        commit(cluster, [old, new], 0)
    else:
        sink.commit(cluster, [*old.objects, *new.objects])
    assert stored_values(cluster, "events") == joined(of("a", 10), of("b", 10))
    topic = cluster.controller.snapshot().topic("events")
    state = journal_of(cluster).catch_up()
    assert min(o.epoch for o in state.topics[topic.revision].objects) >= state.previous_applied_epoch


def test_a_swept_staged_object_fails_the_batch_until_replay() -> None:
    cluster = topic_in_memory(2)
    old = staged(cluster, rows("a", 10), 0, topic="events", objectBytes="1024")
    slide(cluster, 4)
    store_of(cluster).delete([old.objects[0].object.key])
    with pytest.raises(NotFoundError, match="swept before its batch was committed"):
        commit(cluster, [old], 0)
    assert stored_values(cluster, "events") == [[], []]
    commit(cluster, [staged(cluster, rows("a", 10), 0, topic="events")], 0)
    assert stored_values(cluster, "events") == of("a", 10)


def test_a_failed_tasks_staged_object_never_holds_m() -> None:
    cluster = topic_in_memory(2)
    lost = staged(cluster, rows("lost", 10), 0, topic="events")
    commit(cluster, [staged(cluster, rows("a", 10), 0, topic="events")], 0)
    assert stored_values(cluster, "events") == of("a", 10)
    slide(cluster, 2)
    reconcile(cluster)
    state = journal_of(cluster).catch_up()
    assert lowest_of(state) > max(o.object.epoch for o in lost.objects)


def test_nothing_is_written_where_what_is_published_is_above_the_cluster_epoch() -> None:
    cluster = topic_in_memory(2)
    message = staged(cluster, rows("a", 10), 0, topic="events")
    publish_m(cluster, 99, 99)
    with pytest.raises(EpochRegressionError):
        commit(another_process(cluster), [message], 0)
    with pytest.raises(EpochRegressionError):
        sink.commit(another_process(cluster), message.objects)
    assert journal_of(cluster).catch_up().topics == {}


def test_a_recreated_topic_gets_nothing_of_the_old_batch() -> None:
    cluster = topic_in_memory(2)
    message = staged(cluster, rows("a", 10), 0, topic="events")
    delete_topic(cluster, "events")
    cluster.controller.create_topic("events", 2)
    with pytest.raises(PartitionClosedError, match="was deleted while records were written"):
        commit(cluster, [message], 0)
    assert stored_values(cluster, "events") == [[], []]


def test_a_batch_too_large_for_an_entry_is_refused_before_sending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = topic_in_memory(2)
    message = staged(cluster, rows("a", 100), 0, topic="events", objectBytes="1024")
    monkeypatch.setattr(sink, "ENTRY_LIMIT", 1000)
    with pytest.raises(UsageError, match="too large to be committed with one entry"):
        commit(cluster, [message], 0)
    assert stored_values(cluster, "events") == [[], []]


def test_a_batch_has_at_most_the_records_of_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = topic_in_memory(2)
    monkeypatch.setattr(sink, "RECORDS_LIMIT", 10)
    first, second = (staged(cluster, rows("a", n), 0, topic="events") for n in (10, 11))
    assert commit(cluster, [first], 0).records == 10
    with pytest.raises(UsageError, match="too large to be committed with one entry"):
        commit(cluster, [second], 1)


def test_a_landed_batch_does_not_fail_for_a_tick() -> None:
    cluster = topic_in_memory(2)
    message = staged(cluster, rows("a", 10), 0, topic="events")
    store_of(cluster).clock.sleep(3600)
    store_of(cluster).fault = failing(StoreError("503"), "put_if_absent", "controller/log")
    assert sink.commit(cluster, message.objects).records == 10


def test_a_task_without_rows_and_a_batch_without_tasks_commit_nothing() -> None:
    cluster = topic_in_memory(2)
    nothing = staged(cluster, {"value": [], "partition": []}, 0, topic="events")
    assert commit(cluster, [nothing, None], 0).objects == []
    with on(cluster), pytest.raises(UsageError, match="did not name the tasks' query"):
        commit(cluster, [TaskCommit(staged(cluster, rows("a", 1), 0, topic="events").objects)], 0)
