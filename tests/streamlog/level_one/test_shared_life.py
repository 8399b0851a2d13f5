"""Records in shared L1 objects: read by time, expired, given up, pinned, typed and committed again."""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from l0gc.errors import RecordsLostError
from l0gc.operations import Read
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.decisions import RetentionSettings
from l0gc.streamlog.controller.value_schema import VALUE_ERROR
from l0gc.streamlog.journal.entries import RECONCILE, Edit, EditedTopic
from l0gc.streamlog.journal.rows import RANGE
from l0gc.streamlog.journal.topic import l1_key, shared_key
from l0gc.streamlog.level_one.expire import expire
from l0gc.streamlog.level_one.give_up import give_up
from l0gc.streamlog.level_one.share import shared_object
from l0gc.streamlog.offset_reader import OffsetReader
from l0gc.streamlog.pins import create_pin
from l0gc.streamlog.reader import read_topic
from l0gc.streamlog.values.schema_formats import columns_of
from tests.support.memory_store import another_process, memory_cluster, store_of
from tests.support.reconcile import begin, files, partition_of, put, reconcile, reconcile_but
from tests.support.sharing import Values, drain, loaded, share, state_of, values
from tests.support.vacuum import tick, vacuum

HOUR_MS = 3_600_000
PARTITIONS = 100


def read(cluster: ClusterHandles, options: Read) -> Values:
    found: Values = {}
    for r in read_topic(cluster, cluster.controller.snapshot().topic("events"), options):
        found.setdefault(r.partition, []).append(r.value)
    return found


def shared_keys(cluster: ClusterHandles) -> set[str]:
    """Return the keys of the shared objects in the bucket."""
    return {key for key in store_of(cluster).objects if "/j0000/" in key and key.startswith("level_one/")}


# -- times and retention ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("later", [lambda cluster: None, drain])
def test_a_read_from_a_time_begins_in_the_right_shared_object(later: Callable[[ClusterHandles], object]) -> None:
    cluster, _, _ = loaded(2)
    store_of(cluster).clock.ms += HOUR_MS
    since_ms = store_of(cluster).clock.ms
    cluster.controller.advance()
    wanted = share(cluster, 2)
    late = {p: [b"in its own object"] for p in range(3)}
    put(cluster, "events", late)
    reconcile(cluster)
    later(cluster)
    assert read(cluster, Read(from_time_ms=since_ms)) == {p: some + late.get(p, []) for p, some in wanted.items()}
    assert read(cluster, Read(before_time_ms=since_ms, partition=5)) == {5: [b"5-0-0", b"5-0-1", b"5-1-0", b"5-1-1"]}


def test_a_read_from_a_time_opens_no_shared_object_that_is_older() -> None:
    cluster, _, _ = loaded(3)
    old = shared_keys(cluster)
    store_of(cluster).clock.ms += HOUR_MS
    cluster.controller.advance()
    wanted = share(cluster, 3)
    for key in old:
        store_of(cluster).objects.pop(key)
    assert read(cluster, Read(from_time_ms=store_of(cluster).clock.ms - 1000)) == wanted


def test_retention_by_time_ends_rows_of_shared_objects_with_their_object() -> None:
    cluster, _, _ = loaded(2)
    store_of(cluster).clock.ms += HOUR_MS
    cluster.controller.advance()
    wanted = share(cluster, 2)
    cluster.controller.alter_topic("events", RetentionSettings(ms=HOUR_MS // 2))
    done = expire(cluster)
    assert (done.partitions, done.records, done.l1_objects) == (PARTITIONS, 4 * PARTITIONS, 2)
    assert read(cluster, Read()) == wanted
    assert [len(o.partitions) for o in state_of(cluster).shared] == [PARTITIONS]


def test_retention_by_size_counts_a_partitions_share_of_an_object() -> None:
    cluster, _, _ = loaded(4)
    size = sum(o.bytes for o in state_of(cluster).shared)
    cluster.controller.alter_topic("events", RetentionSettings(bytes=size // PARTITIONS // 2 - 1))
    assert expire(cluster).records == 4 * PARTITIONS
    assert len(state_of(cluster).shared) == 2
    cluster.controller.alter_topic("events", RetentionSettings(bytes=size // PARTITIONS))
    assert expire(cluster).records == 0


# -- objects that are read once -------------------------------------------------------------------------------------------


def fetched(cluster: ClusterHandles) -> list[str]:
    """Return the keys of the L1 and L0 objects that a read of the whole topic fetches, one for each request."""
    keys = list[str]()
    store_of(cluster).fault = lambda call: keys.append(call.key) if call.when == "before" else None
    values(cluster)
    store_of(cluster).fault = lambda call: None
    return sorted(key for key in keys if key.startswith("level_"))


def test_a_shared_object_waits_for_own_objects_and_is_opened_once() -> None:
    cluster, _, wanted = loaded(1)
    for n in (1, 2):
        own = {p: [b"own"] for p in range(7, 7 + n)}
        put(cluster, "events", own)
        reconcile(cluster)
        for lifted in (own, share(cluster, n)):
            wanted = {p: [*some, *lifted.get(p, [])] for p, some in wanted.items()}
    put(cluster, "events", {p: [b"own"] for p in range(9)})
    reconcile_but(cluster, range(1, 9))
    put(cluster, "events", {p: [b"in L0"] for p in range(PARTITIONS)})
    wanted = {p: [*some, *[b"own"] * (p < 9), b"in L0"] for p, some in wanted.items()}
    assert values(cluster) == wanted
    keys = fetched(cluster)
    assert len(set(keys)) == 3 + 4 + 2
    assert sorted(set(keys)) == keys


def test_shared_objects_that_wait_for_one_another_are_read() -> None:
    """A repeated commit adds the rows that were refused at first; they follow the other object's rows."""
    cluster, topic, _ = loaded(0, 2)
    put(cluster, "events", {0: [b"0"], 1: [b"0"]})
    put(cluster, "events", {0: [b"1"], 1: [b"1"]})
    handle = cluster.journal(0)
    edits = []
    for name, offsets in ((uuid.UUID(int=1), [0, 1]), (uuid.UUID(int=2), [1, 0])):
        records = pa.record_batch(
            {
                "key": pa.array([None, None], pa.binary()),
                "value": pa.array([b"%d" % o for o in offsets], pa.binary()),
                "timestamp": pa.array([1, 1], pa.timestamp("ms", "UTC")),
                "epoch": pa.array([1, 1], pa.int64()),
            }
        )
        o, body = shared_object(records, np.arange(2), np.array(offsets), np.ones(2, np.int64), 9, str(name))
        cluster.store.put(shared_key("events", topic.revision, 0, o), body)
        edits.append(Edit(RECONCILE, 9, [EditedTopic.of(topic.revision, topic.topic_id, [o])]))
    for e in (edits[0], edits[1], edits[0]):
        handle.land(e)
    assert [o.partitions.tolist() for o in state_of(cluster).shared] == [[0, 1], [0, 1]]
    ranges = np.array([(0, 0, 1), (1, 0, 1)], RANGE)
    reader = OffsetReader(
        cluster, handle, topic, ranges, lambda *place, **_: None, names=["value"], parallel=cluster.parallel
    )
    pieces = [zip(np.broadcast_to(p, b.num_rows), b["value"].to_pylist(), strict=True) for p, b in reader.read()]
    assert sorted(value for piece in pieces for value in piece) == [(0, b"0"), (0, b"1"), (1, b"0"), (1, b"1")]


# -- lost records -------------------------------------------------------------------------------------------------------


def test_a_hole_between_shared_rows_is_named_and_drained_around() -> None:
    cluster, _, _ = loaded(1)
    (lost,) = put(cluster, "events", {7: [b"lost"]})
    store_of(cluster).objects.pop(lost)
    assert give_up(cluster, "ann@host", objects=[lost]).records == 1
    share(cluster, 1)
    (hole,) = files(cluster, "events", 7)
    for _ in range(2):
        with pytest.raises(RecordsLostError, match="2"):
            read(cluster, Read(partition=7))
        assert read(cluster, Read(partition=7, skip_holes=True)) == {7: [b"7-0-0", b"7-0-1", b"7-1-0", b"7-1-1"]}
        drain(cluster)
    rows = state_of(cluster).l1_of(7)
    assert rows["base"].tolist() == [0, 2, 3]
    assert files(cluster, "events", 7)[1] == hole


# -- pins ---------------------------------------------------------------------------------------------------------------


def test_a_drained_object_stays_while_a_pin_of_level_one_lives() -> None:
    cluster, _, wanted = loaded(2)
    keys = shared_keys(cluster)
    as_of_the_pin = another_process(cluster)
    pin = create_pin(cluster, "backup", 10 * 24 * HOUR_MS, level_one=True)
    as_of_the_pin.journal(0).catch_up()
    drain(cluster)
    for _ in range(2):
        tick(cluster, 3)
        assert vacuum(cluster).problem is None
    assert shared_keys(cluster) == keys
    state = as_of_the_pin.journal(0).state.topic(cluster.controller.snapshot().topic("events").revision)
    assert {o.key for o in state.shared_objects("events", 0)} == keys
    cluster.controller.delete_pin("backup", pin.revision)
    tick(cluster, 3)
    assert vacuum(cluster).problem is None
    assert shared_keys(cluster) == set()
    assert values(cluster) == wanted


# -- value schemas ------------------------------------------------------------------------------------------------------


def test_a_drain_adds_typed_columns_and_counts_no_misfit_twice() -> None:
    columns = columns_of({"fields": [{"name": "id", "type": "int"}]})
    cluster, _, _ = loaded(0, columns=columns)
    batch = {p: [b'{"id": %d}' % p, b"nonsense"] for p in range(PARTITIONS)}
    put(cluster, "events", batch)
    result = reconcile(cluster)
    assert (result.l1_objects, result.misfits, state_of(cluster).misfits) == (1, PARTITIONS, PARTITIONS)
    assert not drain(cluster).errors
    (file,) = files(cluster, "events", 42)
    body = store_of(cluster).objects[l1_key(partition_of(cluster, "events", 42), file)].body
    table = pq.read_table(io.BytesIO(body))
    assert table["id"].to_pylist() == [42, None]
    assert [error is None for error in table[VALUE_ERROR].to_pylist()] == [True, False]
    assert state_of(cluster).misfits == PARTITIONS
    assert values(cluster) == batch


# -- repeated commits ---------------------------------------------------------------------------------------------------


def test_a_repeated_commit_compares_each_partition_of_a_shared_object() -> None:
    """Another reconciler was first for some partitions. The other partitions' rows land once, even if they have left
    since.
    """
    cluster = memory_cluster()
    cluster.controller.create_topic("events", PARTITIONS, 1)
    batch = {p: [b"%d" % p] for p in range(PARTITIONS)}
    put(cluster, "events", batch)
    begun = begin(cluster)
    reconcile_but(another_process(cluster), range(10, PARTITIONS))
    for _ in range(2):
        (done,) = begun.commit()
        assert (done.lost, done.records, done.partitions) == (10, 90, 90)
        assert state_of(cluster).shared[0].partitions.tolist() == list(range(10, PARTITIONS))
        assert values(cluster) == batch
    assert drain(cluster).drained == 90
    rows = state_of(cluster).all_rows()
    (done,) = begun.commit()
    assert (done.lost, done.records) == (PARTITIONS, 0)  # the object's landing is forgotten with it
    assert state_of(cluster).all_rows().tolist() == rows.tolist()
    assert values(cluster) == batch
