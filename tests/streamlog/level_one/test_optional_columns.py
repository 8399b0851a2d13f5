"""Create times and headers in L1: an object has these columns if one of its records needs them, however it is written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from l0gc.inspect.verify.replay import l1_fault
from l0gc.operations import Read
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.ingest.headers_and_times import NO_TIME, Headers, Record
from l0gc.streamlog.journal.topic import l1_key
from l0gc.streamlog.level_one import read, rewrite, write
from l0gc.streamlog.level_one.hashes import Hashes
from l0gc.streamlog.level_one.parquet import FIELD_IDS, L1_COLUMNS, L1_FILE, L1_SCHEMA, PARTITION
from l0gc.streamlog.reader import read_topic
from tests.support.l1_files import l1_body
from tests.support.memory_store import topic_in_memory
from tests.support.merge import merge
from tests.support.reconcile import Written, create_time_of, files, headers_of_value, partition_of, put, reconcile

PLAIN = [b"k:plain %d" % n for n in range(4)]
TIMED = [Written(b"t@%d" % n) for n in range(4)]
HEADED = [Written(b"h#%d" % n) for n in range(4)]
BOTH = [Written(b"b@7#both")]


def expected(values: Sequence[bytes]) -> list[tuple[bytes, int | None, Headers]]:
    times = [create_time_of(v) for v in values]
    return [(bytes(v), None if t == NO_TIME else t, headers_of_value(v)) for v, t in zip(values, times, strict=True)]


def content(cluster: ClusterHandles, partition: int = 0) -> list[tuple[bytes, int | None, Headers]]:
    topic = cluster.controller.snapshot().topic("events")
    return [(r.value, r.create_time_ms, r.headers) for r in read_topic(cluster, topic, Read(partition=partition))]


def l1_files(cluster: ClusterHandles, partition: int = 0) -> list[bytes]:
    p = partition_of(cluster, "events", partition)
    return [cluster.store.get(l1_key(p, f)).body for f in files(cluster, "events", partition)]


def columns_of(cluster: ClusterHandles, partition: int = 0) -> list[list[str]]:
    return [pq.read_schema(pa.BufferReader(body)).names[6:] for body in l1_files(cluster, partition)]


def verified(cluster: ClusterHandles) -> None:
    p = partition_of(cluster, "events", 0)
    for f in files(cluster, "events", 0):
        assert l1_fault(cluster.store, l1_key(p, f), f.bytes) == ""


SETS: dict[str, list[Sequence[bytes]]] = {
    "none": [PLAIN, PLAIN],
    "times": [PLAIN, TIMED],
    "headers": [HEADED, PLAIN],
    "both": [TIMED, PLAIN, HEADED, PLAIN, BOTH],
}
COLUMNS = {"none": [], "times": ["create_time"], "headers": ["headers"], "both": ["create_time", "headers"]}


@pytest.mark.parametrize("what", SETS)
@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("held_bytes", [write.HELD_BYTES, 0])
def test_an_l1_object_has_the_columns_of_which_it_has_any(what: str, small: bool, held_bytes: int) -> None:
    """The rule holds if the first row groups lack the column, or if batches with and without it wait on disk."""
    cluster = topic_in_memory(1)
    for values in SETS[what]:
        put(cluster, "events", {0: values})
    before = [v for values in SETS[what] for v in values]
    assert content(cluster) == expected(before)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write.write_l1, "__defaults__", (held_bytes,))
        if not small:
            patch.setattr(write, "_ROW_GROUP_BYTES", 1)
            patch.setattr(read, "BATCH_BYTES", 1)
        reconcile(cluster)
    assert columns_of(cluster) == [COLUMNS[what]]
    assert content(cluster) == expected(before)
    put(cluster, "events", {0: PLAIN})
    assert content(cluster) == expected([*before, *PLAIN])
    verified(cluster)


def test_a_partition_without_headers_has_no_header_column() -> None:
    cluster = topic_in_memory(2)
    put(cluster, "events", {0: HEADED, 1: PLAIN})
    reconcile(cluster)
    assert columns_of(cluster, 0) == [["headers"]]
    assert columns_of(cluster, 1) == [[]]


@pytest.mark.parametrize("what", SETS)
@pytest.mark.parametrize("small", [True, False])
def test_a_merge_of_objects_with_and_without_keeps_them(what: str, small: bool) -> None:
    cluster = topic_in_memory(1)
    of_objects: list[Sequence[bytes]] = [*SETS[what], PLAIN, PLAIN]
    for values in of_objects:
        put(cluster, "events", {0: values})
        reconcile(cluster)
    before = content(cluster)
    with pytest.MonkeyPatch.context() as patch:
        if not small:
            patch.setattr(write, "_ROW_GROUP_BYTES", 1)
        result = merge(cluster)
    assert not result.errors
    assert columns_of(cluster) == [COLUMNS[what]]
    assert content(cluster) == before == expected([v for values in of_objects for v in values])
    verified(cluster)


def test_a_merge_leaves_objects_with_unknown_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A schema without headers stands for an older l0gc, whose merge would lose the column."""
    cluster = topic_in_memory(2)
    for values in (PLAIN, HEADED, PLAIN, PLAIN, PLAIN):
        put(cluster, "events", {0: values, 1: PLAIN})
        reconcile(cluster)
    before, bodies = content(cluster), l1_files(cluster)
    with monkeypatch.context() as patch:
        patch.setattr(rewrite, "L1_FILE", pa.schema([f for f in L1_FILE if f.name != "headers"]))
        [error] = merge(cluster).errors
    assert re.fullmatch(
        r"partition events/0: level_one/\S+ has a column 'headers', which this l0gc \(\S+\) does not support and a "
        r"merge would lose: merge with the l0gc that wrote it, or a newer one; its L1 objects stay as they are",
        error,
    )
    assert l1_files(cluster) == bodies
    assert len(l1_files(cluster, 1)) == 1
    assert not merge(cluster).errors
    assert len(l1_files(cluster)) == 1
    assert content(cluster) == before


def test_an_optional_column_leaves_other_objects_bytes_unchanged() -> None:
    """Another partition of the same batch has records that need the column."""
    clusters = [topic_in_memory(2) for _ in range(2)]
    others: list[list[bytes]] = [[*HEADED, *TIMED], [*PLAIN, *PLAIN]]
    for cluster, other in zip(clusters, others, strict=True):
        put(cluster, "events", {0: PLAIN, 1: other})
        reconcile(cluster)
    first, second = (l1_files(c)[0] for c in clusters)
    assert len(first) == len(second)
    assert pq.read_table(pa.BufferReader(first)).schema == pa.schema([*L1_SCHEMA, PARTITION])


def test_each_column_has_its_field_id_also_within_headers() -> None:
    cluster = topic_in_memory(1)
    put(cluster, "events", {0: [*PLAIN, *BOTH]})
    reconcile(cluster)
    schema = pq.read_schema(pa.BufferReader(l1_files(cluster)[0]))

    def ids(prefix: str, fields: Any) -> dict[str, int]:
        found = {}
        for f in fields:
            found[prefix + f.name] = int(f.metadata[b"PARQUET:field_id"])
            if pa.types.is_list(f.type):
                found |= ids(f"{prefix}{f.name}.", [f.type.value_field])
            if pa.types.is_struct(f.type):
                found |= ids(f"{prefix}{f.name}.", list(f.type))
        return found

    assert ids("", schema) == FIELD_IDS
    assert list(FIELD_IDS.values()) == list(range(1, 12))


@pytest.mark.parametrize("small", [True, False])
def test_a_merge_adds_the_partition_column_to_older_objects(small: bool) -> None:
    cluster = topic_in_memory(2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write, "L1_FILE", L1_COLUMNS)
        for values in SETS["both"]:
            put(cluster, "events", {1: values})
            reconcile(cluster)
    old = [pq.read_schema(pa.BufferReader(body)).names for body in l1_files(cluster, 1)]
    assert (len(old), PARTITION.name in {name for names in old for name in names}) == (5, False)
    before = content(cluster, 1)
    with pytest.MonkeyPatch.context() as patch:
        if not small:
            patch.setattr(write, "_ROW_GROUP_BYTES", 1)
        assert not merge(cluster).errors
    (body,) = l1_files(cluster, 1)
    table = pq.read_table(pa.BufferReader(body))
    assert table.schema.names == [*L1_SCHEMA.names, PARTITION.name, "create_time", "headers"]
    assert set(table[PARTITION.name].to_pylist()) == {1}
    assert content(cluster, 1) == before


@pytest.mark.parametrize("kind", [pa.int64(), pa.list_(pa.string())])
@pytest.mark.parametrize("name", ["partition", "create_time", "headers"])
def test_an_optional_column_of_another_type_is_corrupt(name: str, kind: pa.DataType) -> None:
    cluster = topic_in_memory(1)
    put(cluster, "events", {0: BOTH})
    reconcile(cluster)
    (file,), p = files(cluster, "events", 0), partition_of(cluster, "events", 0)
    key = l1_key(p, file)
    table = pq.read_table(pa.BufferReader(l1_files(cluster)[0]))
    other = table.set_column(table.column_names.index(name), name, pa.nulls(1, kind))
    body = l1_body(other.replace_schema_metadata(None), key)
    cluster.store.put(key, body)
    fault = l1_fault(cluster.store, key, len(body))
    assert fault is not None
    assert "does not have the columns of an L1 object" in fault


def test_merge_hashes_see_headers_and_treat_absent_as_null() -> None:
    def batch(times: list[int | None], headers: list[Any], *, absent: bool = False) -> pa.RecordBatch:
        n = len(times)
        of = [list(range(n)), [0] * n, [None] * n, [b"v"] * n, [1] * n, times, headers]
        fields = L1_SCHEMA if absent else L1_COLUMNS
        arrays = [pa.array(c, f.type) for c, f in zip(of, fields, strict=False)]
        return pa.RecordBatch.from_arrays(arrays, schema=fields)

    def digest(*batches: pa.RecordBatch) -> dict[str, bytes]:
        hashes = Hashes()
        for b in batches:
            hashes.add(b)
        return hashes.digest()

    def header(key: str, value: bytes | None) -> dict[str, Any]:
        return {"key": key, "value": value}

    none = batch([None] * 3, [None] * 3)
    assert digest(none) == digest(batch([None] * 3, [None] * 3, absent=True))
    some = [None, [header("a", b"1"), header("b", None)], [header("ab", b"")]]
    whole = batch([3, None, 4], some)
    assert digest(whole) == digest(whole.slice(0, 1), whole.slice(1, 2)) == digest(whole.slice(0, 2), whole.slice(2))
    others = [
        batch([3, 4, None], some),
        batch([3, None, 5], some),
        batch([3, None, 4], [None, [header("a", b"1"), header("b", b"")], [header("ab", b"")]]),
        batch([3, None, 4], [None, [header("a", b"1")], [header("b", None), header("ab", b"")]]),
        batch([3, None, 4], [[header("a", b"1"), header("b", None)], None, [header("ab", b"")]]),
        batch([3, None, 4], [None, [header("a1", b""), header("b", None)], [header("ab", b"")]]),
        none,
    ]
    assert len({tuple(sorted(digest(b).items())) for b in (whole, *others)}) == len(others) + 1


def test_a_record_without_them_is_as_it_was() -> None:
    cluster = topic_in_memory(1)
    put(cluster, "events", {0: [b"k:v"]})
    (record,) = read_topic(cluster, cluster.controller.snapshot().topic("events"))
    assert record == Record(b"k:v", b"k", partition=0, offset=0, timestamp_ms=record.timestamp_ms)
