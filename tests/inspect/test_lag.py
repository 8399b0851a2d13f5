"""The lag of a query: offsets, counts and ages from its checkpoint and the journals, or a sentence that explains why
not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import l0gc
from l0gc.api import QueryPosition
from l0gc.errors import (
    L0gcError,
    NotFoundError,
    OffsetOutOfRangeError,
    UnsupportedFormatError,
    UsageError,
)
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.reader import read_topic
from tests.support.cli import opens
from tests.support.memory_store import memory_cluster, store_of, topic_in_memory
from tests.support.reconcile import put, reconcile
from tests.support.spark_source import on, stream_reader

KAFKA = '{"clicks":{"0":23}}'


def wrote(
    checkpoint: Path, batch_id: int, *sources: str | Mapping[str, Any], ended: bool = True, version: str = "v1"
) -> None:
    """Write a checkpoint's files as Spark does, with checksums next to them."""
    for folder in ("offsets", "commits") if ended else ("offsets",):
        (checkpoint / folder).mkdir(parents=True, exist_ok=True)
        (checkpoint / folder / f".{batch_id}.crc").write_bytes(b"crc")
    lines = [s if isinstance(s, str) else json.dumps(s) for s in sources]
    (checkpoint / "offsets" / str(batch_id)).write_text("\n".join([version, '{"batchWatermarkMs":0}', *lines]))
    if ended:
        (checkpoint / "commits" / str(batch_id)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def position(cluster: ClusterHandles, **options: str) -> dict[str, Any]:
    """Return the position of a stream that has read everything."""
    with on(cluster):
        return stream_reader(**{"topic": "events", **options}).reportLatestOffset()


def lag(cluster: ClusterHandles, checkpoint: Path | str, monkeypatch: pytest.MonkeyPatch) -> l0gc.api.QueryLag:
    opens(cluster, monkeypatch)
    with l0gc.open("s3://bucket/prefix") as opened:
        return opened.lag(checkpoint)


def rows(found: l0gc.api.QueryLag) -> list[tuple[int, int, int, int, int]]:
    return [
        (p.partition, p.committed_offset, p.latest_offset, p.records_behind, p.records_deleted)
        for p in found.partitions
    ]


def test_each_partition_has_its_offsets_and_the_age_of_what_is_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unread records count in L1, too, and from the middle of an object on."""
    cluster = topic_in_memory(3, 2)
    put(cluster, "events", {0: [b"a"], 1: [b"b", b"c"]})
    at = position(cluster)
    wrote(tmp_path, 9, at)
    assert lag(cluster, tmp_path, monkeypatch).records_behind == 0
    at["events"]["1"] = 1  # the second record is unread
    wrote(tmp_path, 10, at)
    wrote(tmp_path, 11, position(cluster), ended=False)
    for records in ({0: [b"d"]}, {0: [b"e"], 2: [b"f"]}, {2: [b"g"]}):
        store_of(cluster).clock.ms += 60_000
        put(cluster, "events", records)
    landed = {
        (r.partition, r.offset): r.timestamp_ms
        for r in read_topic(cluster, cluster.controller.snapshot().topic("events"))
    }
    assert len(set(landed.values())) == 4
    for _ in range(2):
        found = lag(cluster, tmp_path.as_uri(), monkeypatch)
        assert rows(found) == [(0, 1, 3, 2, 0), (1, 1, 2, 1, 0), (2, 0, 2, 2, 0)]
        ages = [found.as_of_ms - landed[p.partition, p.committed_offset] for p in found.partitions]
        assert [p.oldest_unread_ms for p in found.partitions] == ages
        assert (found.batch_id, found.records_behind) == (10, 5)
        assert found.to_json()["partitions"][0] | {"oldest_unread_ms": 0} == {
            "source": 0, "topic": "events", "partition": 0, "committed_offset": 1, "latest_offset": 3,
            "records_behind": 2, "records_deleted": 0, "oldest_unread_ms": 0,
        }  # fmt: skip
        reconcile(cluster)


def test_what_was_deleted_before_it_was_read_is_not_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = topic_in_memory(1)
    wrote(tmp_path, 0, position(cluster))
    put(cluster, "events", {0: [b"%d" % n for n in range(5)]})
    opens(cluster, monkeypatch)
    with l0gc.open("s3://bucket/prefix") as opened:
        opened.delete_records("events", 0, before_offset=3)
    assert rows(lag(cluster, tmp_path, monkeypatch)) == [(0, 0, 5, 2, 3)]
    with l0gc.open("s3://bucket/prefix") as opened:
        opened.delete_records("events", 0, before_offset=-1)
    found = lag(cluster, tmp_path, monkeypatch)
    assert rows(found) == [(0, 0, 5, 0, 5)]
    assert found.partitions[0].oldest_unread_ms is None


def test_partitions_that_are_not_read_are_not_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = topic_in_memory(3)
    wrote(tmp_path, 0, position(cluster, topic="", assign='{"events":[1]}'))
    put(cluster, "events", {0: [b"a"], 1: [b"b"], 2: [b"c"]})
    assert rows(lag(cluster, tmp_path, monkeypatch)) == [(1, 0, 1, 1, 0)]


def test_each_source_of_a_query_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = topic_in_memory(1)
    cluster.controller.create_topic("views", 1)
    both = position(cluster, topic="", subscribe="events,views")
    wrote(tmp_path, 0, KAFKA, both, "-", '{"logOffset":3}', "5", "{}", {"views": both["views"]})
    put(cluster, "views", {0: [b"a"]})
    found = lag(cluster, tmp_path, monkeypatch).partitions
    assert [(p.source, p.topic, p.records_behind) for p in found] == [
        (1, "events", 0),
        (1, "views", 1),
        (6, "views", 1),
    ]
    assert isinstance(found[0], QueryPosition)


def test_anything_else_gets_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = topic_in_memory(2)
    at = position(cluster)

    def check(kind: type[L0gcError], message: str, place: Path | str = tmp_path) -> None:
        with pytest.raises(kind, match=message) as raised:
            lag(cluster, place, monkeypatch)
        assert type(raised.value) is kind
        assert "\n" not in str(raised.value)

    check(NotFoundError, r"no/where is not the checkpoint of a query .* no file in commits/", "no/where")
    check(UsageError, r"checkpoint hdfs://host/x cannot be read here: name a folder", "hdfs://host/x")
    wrote(tmp_path, 0, at, ended=False)
    check(NotFoundError, "is not the checkpoint of a query that has ended a micro-batch")
    wrote(tmp_path, 0, KAFKA)
    check(NotFoundError, "reads no topic of l0gc")
    wrote(tmp_path, 1, at, version="v3")
    check(UnsupportedFormatError, "offsets/1 has version 'v3', but l0gc reads only v1, which Spark writes unless")
    wrote(tmp_path, 2, {"events": at["events"] | {"0": 7}})
    check(OffsetOutOfRangeError, "at record 7 of partition events/0, which ends at 0: its journal looks restored")
    wrote(tmp_path, 3, {"events": at["events"] | {"2": 0}})
    check(NotFoundError, "partition events/2, which does not exist")
    wrote(tmp_path, 4, at)
    cluster.controller.delete_topic("events")
    check(NotFoundError, r"at revision \d+ of topic 'events': that topic was deleted, or the query reads another")
    cluster.controller.create_topic("events", 2)
    check(NotFoundError, r"of topic 'events', whose revision is \d+: that topic was deleted")
    cluster = memory_cluster()
    check(NotFoundError, "or the query reads another cluster")
