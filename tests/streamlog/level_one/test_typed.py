"""Typed columns in L1: they stand next to the bytes with the schema's number, and merges rebuild them."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from l0gc.inspect.verify.replay import l1_fault
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.decisions import NOT_GIVEN
from l0gc.streamlog.controller.value_schema import VALUE_ERROR
from l0gc.streamlog.journal.topic import l1_key
from l0gc.streamlog.level_one import merge as merges
from l0gc.streamlog.level_one import merge_plan, write
from l0gc.streamlog.level_one.merge_plan import MergeRule
from l0gc.streamlog.level_one.parquet import L1_SCHEMA, PARTITION, schema_number
from l0gc.streamlog.reader import read_topic
from l0gc.streamlog.topics import describe_topic, infer_schema
from l0gc.streamlog.values.schema_formats import columns_of
from tests.support.memory_store import another_process, memory_cluster, store_of
from tests.support.merge import merge
from tests.support.reconcile import begin, files, partition_of, put, reconcile

TWO = MergeRule(fan_in=2)
"""A rule that merges any two objects."""
FIRST = columns_of({"fields": [{"name": "id", "type": "int"}, {"name": "key", "type": "string"}]})
SECOND = columns_of(
    {
        "fields": [
            {"name": "id", "type": "long"}, {"name": "key", "type": "string"},
            {"name": "tags", "type": {"type": "list", "element": "string"}},
        ]
    }
)  # fmt: skip


def typed_cluster(columns: Any = FIRST) -> ClusterHandles:
    cluster = memory_cluster()
    cluster.controller.create_topic("events", 2, columns=columns)
    return cluster


def lift(cluster: ClusterHandles, *values: bytes, partition: int = 0) -> Any:
    put(cluster, "events", {partition: list(values)})
    cluster.controller.advance(None)
    result = reconcile(cluster, "events")
    assert not result.errors
    return result


def tables(cluster: ClusterHandles, partition: int = 0) -> list[tuple[int, pa.Table]]:
    """Return each L1 object's schema number and all its columns, as any Parquet reader finds them."""
    found = []
    for f in files(cluster, "events", partition):
        key = l1_key(partition_of(cluster, "events", partition), f)
        assert l1_fault(cluster.store, key, f.bytes) == ""
        with pq.ParquetFile(io.BytesIO(store_of(cluster).objects[key].body)) as parquet:
            found.append((schema_number(parquet.metadata), parquet.read()))
    return found


def values_of(cluster: ClusterHandles) -> list[bytes]:
    topic = cluster.controller.snapshot().topic("events")
    return [r.value for r in read_topic(cluster, topic)]


def test_reconcile_puts_typed_columns_next_to_the_bytes() -> None:
    cluster = typed_cluster()
    result = lift(cluster, b'{"id": 1, "key": "a"}', b"nonsense", b"", b'{"id": "2"}', b'{"id": 2147483647, "more": 1}')
    assert (result.records, result.misfits) == (5, 3)
    ((number, table),) = tables(cluster)
    assert number == 1
    assert table.column_names == [*L1_SCHEMA.names, PARTITION.name, "id", "value_key", VALUE_ERROR]
    assert table["id"].to_pylist() == [1, None, None, None, 2147483647]
    assert table["value_key"].to_pylist() == ["a", None, None, None, None]
    assert [e is None for e in table[VALUE_ERROR].to_pylist()] == [True, False, False, False, True]
    assert table["value"].to_pylist() == values_of(cluster)
    assert [int(table.schema.field(n).metadata[b"PARQUET:field_id"]) for n in ("id", "value_key", VALUE_ERROR)] == [
        *(10_001, 10_002, 10_000)
    ]


def misfits_of(cluster: ClusterHandles) -> int:
    """Return the topic's count of misfits, as another process reads it."""
    return describe_topic(another_process(cluster), "events").misfits


def test_misfits_count_once_across_retries_and_merges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(merge_plan, "OBJECTS", 1)
    cluster = typed_cluster()
    put(cluster, "events", {0: [b'{"id": 1}', b"0"], 1: [b"1", b"2"]})
    first, second = begin(cluster), begin(another_process(cluster))
    for run, misfits in ((first, 3), (first, 3), (second, 0)):
        assert sum(c.misfits for c in run.commit()) == misfits
        assert misfits_of(cluster) == 3
    lift(cluster, b"3")
    assert misfits_of(cluster) == 4
    assert merge(cluster, rule=TWO).objects_after == 1
    assert misfits_of(cluster) == 4


def test_a_topic_without_a_schema_has_the_same_objects_as_before() -> None:
    cluster = typed_cluster(())
    assert lift(cluster, b'{"id": 1}').misfits == 0
    ((number, table),) = tables(cluster)
    assert (number, table.column_names) == (0, [*L1_SCHEMA.names, PARTITION.name])


def test_a_merge_brings_old_objects_to_the_newest_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_plan, "OBJECTS", 1)
    cluster = typed_cluster(())
    lift(cluster, b'{"id": 1}', b"0")
    cluster.controller.alter_topic("events", NOT_GIVEN, FIRST)
    lift(cluster, b'{"id": 2, "tags": ["a"]}')
    cluster.controller.alter_topic("events", NOT_GIVEN, SECOND)
    lift(cluster, b'{"id": 3000000000, "tags": [null, "b"]}')
    assert [number for number, _ in tables(cluster)] == [0, 1, 2]
    before = values_of(cluster)
    result = merge(cluster, rule=TWO)
    assert (result.errors, result.objects_after) == ([], 1)
    ((number, table),) = tables(cluster)
    assert number == 2
    assert table["id"].to_pylist() == [1, None, 2, 3_000_000_000]
    assert table["tags"].to_pylist() == [None, None, ["a"], [None, "b"]]
    assert values_of(cluster) == before


def test_a_merge_that_began_under_an_older_schema_leaves_what_is_newer(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = typed_cluster()
    lift(cluster, b'{"id": 1}')
    plan = merges.plan_merge
    other = another_process(cluster)

    def planned(*args: Any, **named: Any) -> Any:
        lift(other, b'{"id": 2}')
        found = plan(*args, **named)
        other.controller.alter_topic("events", NOT_GIVEN, SECOND)
        lift(other, b'{"id": 3000000000}')
        return found

    monkeypatch.setattr(merge_plan, "OBJECTS", 1)
    monkeypatch.setattr("tests.support.merge.plan_merge", planned)
    result = merge(cluster, rule=TWO)
    assert result.objects_after == 0
    assert "has the columns of value schema 2, and this run began with number 1: merge again" in result.errors[0]
    assert [number for number, _ in tables(cluster)] == [1, 1, 2]
    monkeypatch.setattr("tests.support.merge.plan_merge", plan)
    assert merge(cluster, rule=TWO).errors == []
    assert [(n, t["id"].to_pylist()) for n, t in tables(cluster)] == [(2, [1, 2, 3_000_000_000])]


def test_a_merge_rewrites_outdated_objects_oldest_first_within_its_limit() -> None:
    cluster = typed_cluster(())
    for n in range(3):
        lift(cluster, b'{"id": %d}' % n, b"x" * (n == 1))
    before = values_of(cluster)
    assert merge(cluster).objects_before == 0
    assert describe_topic(cluster, "events").outdated_records == 0
    cluster.controller.alter_topic("events", NOT_GIVEN, FIRST)
    lift(cluster, b'{"id": 3}', partition=1)
    left = [describe_topic(cluster, "events").outdated_records]
    for n in range(3):
        assert [number for number, _ in tables(cluster)] == [1] * n + [0] * (3 - n)
        result = merge(cluster, max_bytes=1)
        assert (result.errors, result.objects_before, result.objects_after) == ([], 1, 1)
        left.append(describe_topic(cluster, "events").outdated_records)
    assert left == [6, 4, 2, 0]
    assert describe_topic(cluster, "events").outdated_bytes == 0
    assert merge(cluster).objects_before == 0
    assert [(number, t["id"].to_pylist()) for number, t in tables(cluster)] == [
        (1, [0, None]), (1, [1, None]), (1, [2, None]),
    ]  # fmt: skip
    assert values_of(cluster) == [*before, b'{"id": 3}']


def test_outdated_objects_are_joined_once_and_make_a_merge_due() -> None:
    cluster = typed_cluster(())
    for n in range(3):
        lift(cluster, b'{"id": %d}' % n)
    assert not merges.merge_due(cluster)
    basis = merges.merge_fingerprint(cluster)
    cluster.controller.alter_topic("events", NOT_GIVEN, FIRST)
    assert merges.merge_fingerprint(cluster) != basis, "gc would find nothing to merge"
    assert merges.merge_due(cluster)
    result = merge(cluster)
    assert (result.errors, result.objects_before, result.objects_after) == ([], 3, 1)
    assert [(number, t["id"].to_pylist()) for number, t in tables(cluster)] == [(1, [0, 1, 2])]
    assert not merges.merge_due(cluster)


def test_what_an_older_schema_wrote_during_an_alteration_is_rewritten_later(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = typed_cluster(())
    lift(cluster, b'{"id": 1}')
    cluster.controller.alter_topic("events", NOT_GIVEN, FIRST)
    plan, other = merges.plan_merge, another_process(cluster)

    def planned(*args: Any, **named: Any) -> Any:
        found = plan(*args, **named)
        other.controller.alter_topic("events", NOT_GIVEN, SECOND)
        return found

    monkeypatch.setattr("tests.support.merge.plan_merge", planned)
    assert merge(cluster).objects_after == 1
    assert [number for number, _ in tables(cluster)] == [1]
    monkeypatch.setattr("tests.support.merge.plan_merge", plan)
    assert merge(cluster).objects_after == 1
    assert [number for number, _ in tables(cluster)] == [2]


def test_a_reconcile_that_began_under_an_older_schema_lands(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = typed_cluster()
    put(cluster, "events", {0: [b'{"id": 1, "tags": ["a"]}']})
    finish = write.L1Writer.finish

    def altered(self: write.L1Writer) -> None:
        another_process(cluster).controller.alter_topic("events", NOT_GIVEN, SECOND)
        finish(self)

    monkeypatch.setattr(write.L1Writer, "finish", altered)
    assert reconcile(cluster, "events").records == 1
    assert [(n, t["id"].to_pylist()) for n, t in tables(cluster)] == [(1, [1])]
    assert values_of(cluster) == [b'{"id": 1, "tags": ["a"]}']


def test_a_restarted_file_keeps_its_typed_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(write, "_ROW_GROUP_BYTES", 64)
    cluster = typed_cluster(SECOND)
    values = [b'{"id": %d, "tags": ["%d"]}' % (i, i) if i % 3 else b"[%d]" % i for i in range(60)]
    assert lift(cluster, *values).misfits == 20
    ((_, table),) = tables(cluster)
    assert table["id"].to_pylist() == [i if i % 3 else None for i in range(60)]
    assert table["value"].to_pylist() == values


def test_a_schema_is_inferred_from_the_records_of_a_topic() -> None:
    cluster = typed_cluster(())
    lift(cluster, b'{"id": 1, "at": "2024-01-31T10:00:00Z"}')
    put(cluster, "events", {1: [b'{"id": 2, "x": 1.5}', b"nonsense"]})
    found = infer_schema(cluster, "events", 1000)
    assert [(f["name"], f["type"]) for f in found.fields] == [("id", "long"), ("at", "timestamptz"), ("x", "double")]
    altered, _ = cluster.controller.alter_topic("events", NOT_GIVEN, columns_of(found.to_json()))
    assert altered.value_schema is not None
