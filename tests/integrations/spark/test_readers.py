"""A batch of `format("l0gc")` reads each record once, whatever happens to the objects between the plan and the read."""

from __future__ import annotations

import gc
import random
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext
from pyspark.sql.types import StructType

from l0gc.errors import CorruptObjectError, OffsetOutOfRangeError, PartitionClosedError, RecordsLostError, UsageError
from l0gc.integrations.spark import options, plan
from l0gc.integrations.spark.plan import Slice
from l0gc.integrations.spark.source import SCHEMA
from l0gc.spark import handles
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.delete_records import delete_records
from l0gc.streamlog.level_one.give_up import give_up
from l0gc.streamlog.level_one.merge_plan import MergeRule
from l0gc.streamlog.level_one.parquet import L1_SCHEMA
from l0gc.streamlog.level_one.plan import has_work
from l0gc.streamlog.reader import read_topic
from l0gc.streamlog.topics import delete_topic
from tests.support.ingest import l0_objects
from tests.support.l1_files import l1_body
from tests.support.memory_store import another_process, store_of, topic_in_memory
from tests.support.merge import merge
from tests.support.processes import modules_after
from tests.support.reconcile import named, put, reconcile
from tests.support.spark_source import batch_reader, data_source, on, read, rows_of, table


def values(partition: int, first: int, end: int) -> list[bytes]:
    return [b"%d:%04d" % (partition, n) for n in range(first, end)]


def filled(partitions: int = 3, journals: int = 1, in_l1: int = 20, in_l0: int = 20) -> ClusterHandles:
    """Create a cluster whose partitions each have `in_l1` records in L1, and `in_l0` records after them."""
    cluster = topic_in_memory(partitions, journals)
    for first, end in [(0, in_l1 // 2), (in_l1 // 2, in_l1)]:
        if end > first:
            put(cluster, "events", {p: values(p, first, end) for p in range(partitions)})
            reconcile(cluster)
    for first in range(in_l1, in_l1 + in_l0, 5):
        put(cluster, "events", {p: values(p, first, min(first + 5, in_l1 + in_l0)) for p in range(partitions)})
    return cluster


def expected(partitions: int, first: int = 0, end: int = 40) -> list[tuple[int, int, bytes]]:
    return [(p, n, v) for p in range(partitions) for n, v in enumerate(values(p, first, end), first)]


layouts = pytest.mark.parametrize(
    ("partitions", "journals", "in_l1", "in_l0"), [(1, 1, 40, 0), (1, 1, 0, 40), (3, 1, 20, 20), (7, 3, 20, 20)]
)


@layouts
def test_a_batch_is_what_read_gives_record_by_record(partitions: int, journals: int, in_l1: int, in_l0: int) -> None:
    cluster = filled(partitions, journals, in_l1, in_l0)
    topic = cluster.controller.snapshot().topic("events")
    with on(cluster):
        reader = batch_reader(topic="events")
        found = table(reader, reader.partitions())
    columns = {name: found.column(name).to_pylist() for name in found.schema.names}
    times = [int(t.timestamp() * 1000) for t in columns["timestamp"]]
    rows = sorted(
        zip(columns["partition"], columns["offset"], times, columns["key"], columns["value"], strict=True),
        key=lambda r: r[:2],
    )
    assert rows == [(r.partition, r.offset, r.timestamp_ms, r.key, r.value) for r in read_topic(cluster, topic)]
    assert set(columns["topic"]) == {"events"}
    assert set(columns["epoch"]) == {cluster.controller.epoch()}
    assert sorted(read(cluster, topic="events")) == expected(partitions)


@pytest.mark.parametrize("lifted", [False, True])
def test_records_that_were_given_up_fail_a_batch_unless_loss_is_accepted(lifted: bool) -> None:
    cluster = filled(2, in_l1=20, in_l0=20)
    give_up(cluster, "ann", topic="events", partition=1, offsets=(20, 24), force_readable=True)
    while lifted and has_work(cluster):
        reconcile(cluster)
    with pytest.raises(RecordsLostError, match=r"records 20 to 24 of partition events/1 .*option failOnDataLoss=false"):
        read(cluster, topic="events")
    left = [row for row in expected(2) if row[0] != 1 or not 20 <= row[1] <= 24]
    assert sorted(read(cluster, topic="events", failOnDataLoss="false")) == left


def test_the_epoch_is_that_of_the_l0_object_also_in_l1() -> None:
    cluster = topic_in_memory(1)
    put(cluster, "events", {0: [b"a"]})
    first = cluster.controller.epoch()
    second = cluster.controller.advance()
    put(cluster, "events", {0: [b"b"]})
    for _ in range(2):
        with on(cluster):
            reader = batch_reader(topic="events")
            assert table(reader, reader.partitions()).column("epoch").to_pylist() == [first, second]
        reconcile(cluster)


def test_a_reader_reads_exactly_what_was_planned() -> None:
    cluster = filled()
    with on(cluster):
        reader = batch_reader(topic="events")
        planned = reader.partitions()
        put(cluster, "events", {p: values(p, 40, 50) for p in range(3)})
        assert sorted(rows_of(table(reader, planned))) == expected(3)
        reconcile(cluster)
        assert sorted(rows_of(table(reader, planned))) == expected(3)


def collect(cluster: ClusterHandles) -> None:
    """Reconcile and merge everything, and delete every object that no journal names."""
    reconcile(cluster)
    merge(cluster, None, MergeRule(fan_in=2))
    l1 = {k for k in store_of(cluster).objects if k.startswith("level_one/data/")}
    store_of(cluster).delete([*l0_objects(cluster), *(l1 - named(cluster, "events"))])


@pytest.mark.parametrize("yielded", [*range(8), None])
def test_a_task_continues_after_its_objects_are_merged_and_deleted(
    yielded: int | None,
) -> None:
    """The objects are replaced after this many batches, or after each batch."""
    cluster = filled()
    writer = another_process(cluster)
    with on(cluster):
        reader = batch_reader(topic="events")
        found = []
        for p in reader.partitions():
            for n, batch in enumerate(reader.read(p)):
                columns = (batch.column(name).to_pylist() for name in ("partition", "offset", "value"))
                found += list(zip(*columns, strict=True))
                if yielded is None:
                    put(writer, "events", {p: [b"more"] for p in range(3)})
                if n == yielded or yielded is None:
                    collect(writer)
    assert sorted(found) == expected(3)


def test_a_missing_object_that_a_journal_names_is_a_loss() -> None:
    cluster = filled(in_l1=0)
    store_of(cluster).delete(l0_objects(cluster)[:1])
    with pytest.raises(CorruptObjectError, match=r"does not exist, though topic 'events' needs it"):
        read(cluster, topic="events")


def test_a_damaged_block_and_a_damaged_l1_object_are_reported_by_name() -> None:
    cluster = filled()
    for kind in ("level_zero/", "level_one/data/"):
        key = next(k for k in store_of(cluster).objects if k.startswith(kind))
        o = store_of(cluster).objects[key]
        whole, middle = o.body, len(o.body) // 6  # in an L1 object, the middle is in a column that is read
        o.body = whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :]
        if kind == "level_zero/" and not any(key == k for k in _named(cluster)):
            o.body = whole
            continue
        with pytest.raises(CorruptObjectError, match=key.rpartition("/")[2]):
            read(cluster, topic="events")
        o.body = whole


def test_an_l1_object_with_unexpected_offsets_is_refused() -> None:
    cluster = filled(1, 1, 10, 0)
    key = next(k for k in store_of(cluster).objects if k.startswith("level_one/data/"))
    table = pq.read_table(pa.BufferReader(store_of(cluster).objects[key].body), columns=L1_SCHEMA.names)
    moved = table.set_column(0, L1_SCHEMA.field("offset"), pc.add(table.column("offset"), 1)).cast(L1_SCHEMA)
    body = l1_body(moved, key)
    store_of(cluster).objects[key].body = body
    topic = cluster.controller.snapshot().topic("events")
    cluster.journal(topic.journals[0]).state.topics[topic.revision].l1["bytes"][0] = len(body)
    with pytest.raises(CorruptObjectError, match="does not hold the records 0 to 4"):
        read(cluster, topic="events")


def _named(cluster: ClusterHandles) -> set[str]:
    topic = cluster.controller.snapshot().topic("events")
    return {o.key for o in cluster.journal(topic.journals[0]).catch_up().topics[topic.revision].objects}


def test_a_topic_that_is_deleted_after_the_plan_is_reported() -> None:
    cluster = filled()
    with on(cluster):
        reader = batch_reader(topic="events")
        planned = reader.partitions()
        delete_topic(cluster, "events")
        with pytest.raises(PartitionClosedError, match="was deleted while it was read"):
            table(reader, planned)


def test_an_empty_topic_has_no_rows_and_several_topics_are_read_together() -> None:
    cluster = filled()
    cluster.controller.create_topic("empty", 2)
    cluster.controller.create_topic("other", 2)
    put(cluster, "other", {1: [b"x"]})
    assert read(cluster, topic="empty") == []
    assert sorted(read(cluster, subscribe="events, other,empty")) == sorted([*expected(3), (1, 0, b"x")])


def test_only_the_columns_that_are_named_are_read() -> None:
    named = StructType([SCHEMA["value"], SCHEMA["partition"]])
    assert data_source(topic="events", columns="value, partition,value").schema() == named
    with on(filled()):
        for options in ({}, {"columns": "value,partition"}):
            reader = batch_reader(named, topic="events", **options)
            found = table(reader, reader.partitions())
            assert (found.schema.names, found.num_rows) == (["value", "partition"], 120)
        with pytest.raises(UsageError, match="a topic has no column value of type string"):
            batch_reader(StructType().add("value", "string"), topic="events")
        for columns in ("value,size", "Value", ","):
            with pytest.raises(UsageError, match=r"option columns is '.*': name some of key, value, topic"):
                data_source(topic="events", columns=columns).schema()


@pytest.mark.parametrize("plans", [True, False])
def test_a_spark_worker_freezes_loaded_objects_once(plans: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[str] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append("frozen"))
    handles.leave_out_of_collections.cache_clear()
    cluster = filled()
    read(cluster, topic="events")
    assert not frozen, "this process is not one of Spark's"
    if plans:
        monkeypatch.setenv(handles.CORES, "2")
    else:
        monkeypatch.setattr(TaskContext, "get", object)
    read(cluster, topic="events")
    read(cluster, topic="events")
    assert frozen == ["frozen"]


def test_a_spark_worker_resolves_the_bucket_once_per_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = mock.Mock(wraps=S3Store)
    monkeypatch.setattr(options, "S3Store", asked)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    for _ in range(3):
        source = data_source(topic="events")
        source.schema()
        assert source.reader(SCHEMA)._options.address.config.endpoint_url == "http://127.0.0.1:1"
    assert asked.call_count == 1
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:2")
    assert data_source(topic="events").reader(SCHEMA)._options.address.config.endpoint_url == "http://127.0.0.1:2"


def test_a_schema_only_worker_freezes_loaded_objects_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frozen: list[str] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append("frozen"))
    handles.leave_out_of_collections.cache_clear()
    data_source(topic="events").schema()
    assert not frozen, "this process is not one of Spark's"
    monkeypatch.setenv(handles.CORES, "2")
    data_source(topic="events").schema()
    data_source(topic="events").schema()
    assert frozen == ["frozen"]


OFFSETS = StructType().add("partition", "integer", False).add("offset", "long", False)


@pytest.mark.parametrize("seed", range(8))
def test_offsets_alone_come_from_the_journal_and_are_those_that_reading_gives(seed: int) -> None:
    """The history has uploads (p), reconciles (r), merges (m), deletions (d) and give-ups (g), before and after the
    plan.
    """
    chance = random.Random(seed)
    history = [(chance.choice("ppprrmdg"), chance.randrange(3), chance.randint(1, 9)) for _ in range(12)]
    cluster = topic_in_memory(3, 2)
    put(cluster, "events", {p: values(p, 0, 4 + p) for p in range(3)})
    touched = []
    with on(cluster):
        count, full = (batch_reader(s, topic="events", failOnDataLoss="false") for s in (OFFSETS, SCHEMA))
        planned = full.partitions()
        for number, step in enumerate(history):
            change(cluster, *step)
            if number == 3 + seed:
                planned = full.partitions()
        found = table(full, planned)
        store_of(cluster).fault = lambda call: touched.append(call.key) if "/data/" in call.key else None
        offsets = table(count, planned)
    wanted = found.select(OFFSETS.names).to_pylist()
    assert sorted(offsets.to_pylist(), key=lambda r: (*r.values(),)) == sorted(wanted, key=lambda r: (*r.values(),))
    assert touched == []


def change(cluster: ClusterHandles, what: str, partition: int, n: int) -> None:
    """Change the records, or their place, in one of these ways."""
    topic = cluster.controller.snapshot().topic("events")
    state = cluster.journal(topic.journal_of(partition)).catch_up().topic(topic.revision)
    view, extents = state.view(partition), state.extents(partition)
    if what == "p":
        put(cluster, "events", {p: values(p, 0, n) for p in range(partition + 1)})
    elif what == "r":
        while has_work(cluster):
            reconcile(cluster)
    elif what == "m":
        merge(cluster, None, MergeRule(fan_in=2))
    elif what == "d":
        delete_records(cluster, "events", partition, before_offset=min(view.log_start_offset + n, view.next_offset))
    elif extents:
        lost = (max(extents[0].base_offset, view.log_start_offset), extents[0].last_offset)
        give_up(cluster, "ann", topic="events", partition=partition, offsets=lost, force_readable=True)


def test_offsets_alone_keep_the_error_about_what_was_given_up_or_deleted() -> None:
    cluster = filled(1)
    change(cluster, "g", 0, 3)
    with on(cluster):
        reader = batch_reader(OFFSETS, topic="events")
        planned = reader.partitions()
        with pytest.raises(RecordsLostError, match="records 20 to 24 of partition events/0 were given up"):
            table(reader, planned)
        change(cluster, "d", 0, 5)
        with pytest.raises(OffsetOutOfRangeError, match="records 0 to 4 of partition events/0 were deleted"):
            table(reader, planned)


# -- first and last offsets -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"startingOffsets": '{"events":{"0":30,"1":-2}}', "endingOffsets": '{"events":{"0":35,"1":0}}'},
         [*expected(1, 30, 35), *[r for r in expected(3) if r[0] == 2]]),
        ({"startingOffsets": '{"events":{"0":15,"1":40,"2":-2}}', "endingOffsets": '{"events":{"0":25,"1":-1,"2":3}}'},
         [*expected(1, 15, 25), *[r for r in expected(3, 0, 3) if r[0] == 2]]),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, expected(3)),
    ],
)  # fmt: skip
def test_offsets_say_where_a_batch_begins_and_ends(
    options: dict[str, str], wanted: list[tuple[int, int, bytes]]
) -> None:
    assert sorted(read(filled(), topic="events", **options)) == wanted


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"startingOffsets": '{"events":{"0":41}}'},
            OffsetOutOfRangeError,
            "asks for record 41 .* whose next one will be 40",
        ),
        ({"endingOffsets": '{"events":{"0":41}}'}, OffsetOutOfRangeError, "endingOffsets asks for record 41"),
        ({"startingOffsets": '{"events":{"3":1}}'}, UsageError, "names partition 3 of topic 'events', which has 3"),
        ({"startingOffsets": '{"other":{"0":1}}'}, UsageError, "topic 'other', which is not read"),
        ({"startingOffsets": "latest"}, UsageError, "cannot be latest"),
        ({"endingOffsets": "earliest"}, UsageError, "cannot be earliest"),
        ({"startingOffsets": "23"}, UsageError, "must be earliest, latest, or JSON"),
        ({"topic": "", "assign": '{"events":[3]}'}, UsageError, "option assign names partition 3 of topic 'events'"),
        ({"topic": "", "assign": '["events"]'}, UsageError, "must be JSON like"),
        ({"subscribe": "other"}, UsageError, "one of the options topic, subscribe"),
        ({"topic": "events,other"}, UsageError, "name several topics with option subscribe"),
        ({"minPartitions": "none"}, UsageError, "minPartitions must be a whole number from 1 to "),
        ({"failOnDataLoss": "maybe"}, UsageError, "failOnDataLoss must be true or false"),
    ],
)
def test_options_that_cannot_be_meant_are_refused_before_anything_is_read(
    options: dict[str, str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        read(filled(), **{"topic": "events", **options})


@pytest.mark.parametrize("in_l1", [False, True])
def test_timestamps_say_where_a_batch_begins_and_ends(in_l1: bool) -> None:
    cluster = topic_in_memory(2)
    clock = store_of(cluster).clock
    times = []
    for n in range(8):
        times.append(clock.ms)
        put(cluster, "events", {p: values(p, 5 * n, 5 * n + 5) for p in range(2) if (n + p) % 3})
        clock.ms += 1000
        if in_l1 and n in (2, 5):
            reconcile(cluster)
    everything = sorted(read(cluster, topic="events"))
    at = {r.value: r.timestamp_ms for r in read_topic(cluster, cluster.controller.snapshot().topic("events"))}
    for first in (times[0], times[3] - 1, times[3], times[6] + 1, clock.ms):
        for end in (times[0], times[4], times[4] + 1, clock.ms):
            wanted = [r for r in everything if first <= at[r[2]] < end]
            options = {"startingTimestamp": str(first), "endingTimestamp": str(end)}
            if first > end:
                with pytest.raises(UsageError, match=f"startingTimestamp is {first}, after endingTimestamp at {end}"):
                    read(cluster, topic="events", **options)
                continue
            found = read(cluster, topic="events", startingOffsetsByTimestampStrategy="latest", **options)
            assert sorted(found) == wanted, (first, end)


@pytest.mark.parametrize("in_l1", [False, True])
def test_a_time_that_falls_into_a_hole_names_the_hole(in_l1: bool) -> None:
    cluster = topic_in_memory(1)
    for n in range(3):
        store_of(cluster).clock.ms += 3_600_000
        put(cluster, "events", {0: values(0, 5 * n, 5 * n + 5)})
    begins = [r.timestamp_ms for r in read_topic(cluster, cluster.controller.snapshot().topic("events"))][::5]
    give_up(cluster, "ann", topic="events", partition=0, offsets=(0, 9), force_readable=True)
    if in_l1:
        reconcile(cluster)
    for option in ({"startingTimestamp": str(begins[1])}, {"endingTimestamp": str(begins[1])}):
        with pytest.raises(RecordsLostError, match="were given up"):
            read(cluster, topic="events", **option)
    rest = read(cluster, topic="events", failOnDataLoss="false", startingTimestamp=str(begins[1]))
    assert rest == read(cluster, topic="events", startingTimestamp=str(begins[2])) == expected(1, 10, 15)


def test_only_the_partitions_that_are_assigned_are_read() -> None:
    cluster = filled(7, 3)
    wanted = [r for r in expected(7, 5) if r[0] in {1, 6}]
    found = read(cluster, assign='{"events":[6,1]}', startingOffsets='{"events":{"1":5,"6":5}}')
    assert sorted(found) == wanted


# -- tasks ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tasks", [1, 2, 5, 30])
def test_more_tasks_read_the_same(tasks: int) -> None:
    cluster = filled(7, 3)
    with on(cluster):
        reader = batch_reader(topic="events", minPartitions=str(tasks))
        planned = reader.partitions()
        assert len(planned) >= min(tasks, 20)
        assert sorted(rows_of(table(reader, planned))) == expected(7)


def test_the_tasks_of_a_partition_stand_in_the_order_of_its_offsets() -> None:
    cluster = filled(1, 1, 40, 40)
    with on(cluster):
        reader = batch_reader(topic="events", minPartitions="8")
        planned = reader.partitions()
        assert len(planned) > 4
        assert rows_of(table(reader, planned)) == expected(1, 0, 80)


@pytest.mark.parametrize(("cores", "least", "tasks"), [("1", 1, 1), ("2", 1, 2), ("3", 1, 3), ("8", 1 << 20, 1)])
def test_tasks_default_to_cores_but_tiny_reads_need_one(
    monkeypatch: pytest.MonkeyPatch, cores: str, least: int, tasks: int
) -> None:
    monkeypatch.setattr(plan, "LEAST_SLICE_BYTES", least)
    monkeypatch.setenv(handles.CORES, cores)
    cluster = filled(6, 1, 40, 0)
    with on(cluster):
        reader = batch_reader(topic="events")
        planned = reader.partitions()
        assert tasks <= len(planned) <= tasks + (least == 1)  # the partitions' weights differ
        assert sorted(rows_of(table(reader, planned))) == expected(6)


def test_a_plan_is_small_whatever_the_topic() -> None:
    cluster = filled(7, 3)
    with on(cluster):
        planned = batch_reader(topic="events").partitions()
    assert [type(p) for p in planned] == [Slice] * 3  # one slice for each journal
    assert sum(len(p.rows) for p in planned if isinstance(p, Slice)) == 7 * 20


WITHOUT_PANDAS = """
from tests.support.memory_store import topic_in_memory
from tests.support.reconcile import put, reconcile
from tests.support.spark_source import batch_reader, on
cluster = topic_in_memory(1)
put(cluster, "events", {0: [b"one"]})
reconcile(cluster)
with on(cluster):
    reader = batch_reader(topic="events")
    assert sum(b.num_rows for p in reader.partitions() for b in reader.read(p)) == 1
"""


def test_a_worker_reads_l1_without_pandas_which_takes_long_to_import() -> None:
    assert "pandas" not in modules_after(WITHOUT_PANDAS)
