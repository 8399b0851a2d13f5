"""`read_arrow`: records as Arrow batches for pandas, Polars and DuckDB, with typed columns and little memory."""

from __future__ import annotations

import asyncio
import gc
import random
import re
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import duckdb
import polars
import pyarrow as pa
import pytest

import l0gc
from l0gc.errors import NotFoundError, UsageError
from l0gc.streamlog import reader
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.offset_reader import OffsetReader, Piece
from l0gc.streamlog.reader import read_batches, read_topic, schema_of
from l0gc.streamlog.values.parse import ValueParser, parser_of
from tests.support.memory_store import store_of, topic_in_memory
from tests.support.reconcile import put
from tests.support.tries import sampled
from tests.test_api import over

ALL = ["offset", "timestamp", "key", "value", "epoch", "partition", "create_time", "headers"]
SCHEMA = {"properties": {"n": {"type": "integer"}, "name": {"type": "string"}, "value": {"type": "number"}}}
RECORDS = [
    l0gc.Record(b'{"n": 1, "name": "a", "value": 0.5}', b"k", (("h", b"x"),), 1_700_000_000_000, partition=0),
    l0gc.Record(b'{"n": "one"}', partition=1),
    l0gc.Record(b"\n\x00", partition=1),
]


WHERE = ["L0", "L1", "both"]


@pytest.fixture(params=WHERE)
def cluster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[l0gc.Cluster]:
    """Open a cluster with the same records in a topic without a schema and in one with a schema."""
    handles = topic_in_memory(2)
    with over(handles, monkeypatch) as opened:
        opened.topics.create("typed", partitions=2, value_schema=SCHEMA)
        for topic in ("events", "typed"):
            opened.upload(topic, RECORDS[:2])
        if request.param != "L0":
            opened.reconcile()
        store_of(handles).clock.ms += 1000
        for topic in ("events", "typed"):
            opened.upload(topic, RECORDS[2:])
        if request.param == "L1":
            opened.reconcile()
        yield opened


def test_the_batches_hold_what_the_records_are(cluster: l0gc.Cluster) -> None:
    read, expected = cluster.read_arrow("events"), list(cluster.read("events"))
    assert isinstance(read, pa.RecordBatchReader)
    table = read.read_all()
    assert table.schema == read.schema == schema_of(cluster.handles().controller.snapshot().topic("events"))
    assert table.column_names == ALL
    of_arrow = {n: table[n].to_pylist() for n in ("partition", "offset", "key", "value")}
    assert of_arrow == {n: [getattr(r, n) for r in expected] for n in of_arrow}
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [r.timestamp_ms for r in expected]
    assert table["create_time"].cast(pa.int64()).to_pylist() == [r.create_time_ms for r in expected]
    headers = [tuple((h["key"], h["value"]) for h in of_record or ()) for of_record in table["headers"].to_pylist()]
    assert headers == [r.headers for r in expected]


def test_a_topic_with_a_schema_has_its_columns_wherever_the_records_are(cluster: l0gc.Cluster) -> None:
    table = cluster.read_arrow("typed").read_all()
    assert table.column_names == [*ALL, "n", "name", "value_value", "value_error"]
    assert table.schema.types[-4:] == [pa.int64(), pa.string(), pa.float64(), pa.string()]
    assert table.select(["n", "name", "value_value"]).to_pylist()[0] == {"n": 1, "name": "a", "value_value": 0.5}
    errors = table["value_error"].to_pylist()
    assert errors[0] is None
    assert "$.n" in errors[1]
    assert errors[2] is not None
    assert table["value"].to_pylist() == [r.value for r in RECORDS]
    only = cluster.read_arrow("typed", columns=["n", "partition"]).read_all()
    assert only.to_pydict() == {"n": [1, None, None], "partition": [0, 1, 1]}


NESTED: Final[Any] = {
    "properties": {
        "n": {"type": "integer"},
        "at": {"type": "string", "format": "date-time"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "place": {"type": "object", "properties": {"x": {"type": "number"}, "in": {"type": "string"}}},
    }
}
VALUES: Final = (
    b'{"n": 1, "at": "2026-01-31T12:00:00.25Z", "tags": ["a", null], "place": {"x": 0.5, "in": "b"}}',
    b'{"n": "one", "place": {"x": 1}}',
    b'{"tags": [], "more": 7}',
    b"no JSON",
)


def test_values_are_parsed_only_if_l1_lacks_the_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records in L1 with an older schema, in L1 with the current schema, and in L0 get the same columns."""
    parsed = list[int]()
    parse = ValueParser.parse

    def counting(self: ValueParser, values: pa.Array) -> list[pa.Array]:
        parsed.append(len(values))
        return parse(self, values)

    handles = topic_in_memory(2)
    with over(handles, monkeypatch) as cluster:
        cluster.topics.create("typed", partitions=1, value_schema={"properties": {"n": {"type": "integer"}}})
        for step in (lambda: cluster.topics.alter("typed", value_schema=NESTED), lambda: None, lambda: None):
            cluster.upload("typed", VALUES)
            cluster.reconcile()
            step()
        cluster.upload("typed", VALUES)
        expected = ValueParser.parse(
            parser_of(handles.controller.snapshot().topic("typed").value_schema), pa.array([*VALUES] * 4, pa.binary())
        )
        monkeypatch.setattr(ValueParser, "parse", counting)
        names = ["n", "at", "tags", "place", "value_error"]
        table = cluster.read_arrow("typed", columns=names).read_all()
        assert [*map(pa.chunked_array, ([c] for c in expected))] == table.columns
        assert sum(parsed) == 8  # four of the older schema, and four in L0
        assert (
            cluster.read_arrow("typed", columns=["value", "tags", "value"][:2]).read_all()["value"].to_pylist()
            == [*VALUES] * 4
        )


def test_a_typed_column_alone_leaves_the_values_unfetched(monkeypatch: pytest.MonkeyPatch) -> None:
    handles, fetched = topic_in_memory(1), list[int]()
    with over(handles, monkeypatch) as cluster:
        cluster.topics.create("typed", partitions=1, value_schema={"properties": {"n": {"type": "integer"}}})
        chosen = random.Random(1)
        cluster.upload(
            "typed", [b'{"n": %d, "more": "%s"}' % (n, chosen.randbytes(500).hex().encode()) for n in range(400)]
        )
        cluster.reconcile()
        store = store_of(handles)
        get_ranges = store.get_ranges

        def counting(key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
            bodies = get_ranges(key, ranges)
            fetched.extend(map(len, bodies))
            return bodies

        monkeypatch.setattr(store, "get_ranges", counting)
        assert cluster.read_arrow("typed", columns=["n"]).read_all()["n"].to_pylist() == [*range(400)]
    assert 0 < sum(fetched) < 100_000


def test_it_takes_what_read_takes(cluster: l0gc.Cluster) -> None:
    def offsets(**how: Any) -> list[int]:
        return [*map(int, cluster.read_arrow("events", **how).read_all()["offset"].to_pylist())]

    at = [r.timestamp_ms for r in cluster.read("events", 1)]
    assert offsets() == [0, 0, 1]
    assert cluster.read_arrow("events", 1, 1).read_all()["offset"].to_pylist() == [1]
    assert offsets(before_offset=1) == offsets(before_time_ms=at[1], pin=True) == [0, 0]
    assert offsets(from_time_ms=at[1]) == [1]
    assert offsets(partition=0, skip_holes=True) == [0]
    assert cluster.pins.list() == []
    with pytest.raises(NotFoundError):
        cluster.read_arrow("event")
    for columns, odd in ((["offset", "n"], "'n'"), ([], "''")):
        with pytest.raises(
            UsageError, match=f"topic 'events' has no column {odd}: name some of offset, timestamp, key, v"
        ):
            cluster.read_arrow("events", columns=columns)


@pytest.mark.parametrize("cluster", sampled(WHERE, ["both"]), indirect=True)
def test_a_reader_that_is_left_ends_its_pin(cluster: l0gc.Cluster) -> None:
    read = cluster.read_arrow("events", pin=True)
    read.read_next_batch()
    assert len(cluster.pins.list()) == 1
    del read
    gc.collect()
    assert cluster.pins.list() == []


def test_polars_and_duckdb_take_it_and_it_can_be_uploaded(cluster: l0gc.Cluster) -> None:
    frame = polars.from_arrow(cluster.read_arrow("typed"))
    assert isinstance(frame, polars.DataFrame)
    assert (frame.height, frame["n"].sum()) == (3, 1)
    typed = cluster.read_arrow("typed")
    assert duckdb.sql("SELECT count(*), sum(n), min(name), count(value_error) FROM typed").fetchall() == [
        (3, 1, "a", 2)
    ]
    del typed
    cluster.topics.create("copy", 2)
    cluster.upload("copy", cluster.read_arrow("events"))
    fields = ("partition", "key", "value", "headers", "create_time_ms")
    copied, original = ([[getattr(r, f) for f in fields] for r in cluster.read(t)] for t in ("copy", "events"))
    assert copied == original
    cluster.topics.create("typed_copy", 2)
    cluster.upload("typed_copy", cluster.read_arrow("typed"))
    assert [r.value for r in cluster.read("typed_copy")] == [r.value for r in cluster.read("typed")]


def test_the_documents_blocks_run(cluster: l0gc.Cluster) -> None:
    section = (
        (Path(__file__).parents[2] / "docs/work/library.md")
        .read_text()
        .partition("## Records as Arrow\n")[2]
        .partition("\n## ")[0]
    )
    names: dict[str, Any] = {"cluster": cluster}
    imports = "import asyncio, duckdb, polars\nfrom datetime import UTC, datetime, timedelta\n"
    (first, of_rows, of_asyncio) = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    exec(
        imports
        + first.replace("readings", "events")
        .replace("datetime.now(UTC)", "datetime.fromtimestamp(0, UTC)")
        .replace(" - timedelta(hours=1)", ""),
        names,
    )
    assert (names["frame"].shape, sorted(names["by_key"]["n"]), len(names["pandas_frame"])) == ((3, 2), [1, 2], 1)
    fields = [{"name": n, "type": t} for n, t in (("carrier", "string"), ("delay", "int"), ("at", "timestamptz"))]
    for topic in ("flights", "flights_copy"):
        cluster.topics.create(topic, 2, value_schema={"fields": fields})
    exec(of_rows, names)
    copy = polars.from_arrow(cluster.read_arrow("flights_copy", columns=["carrier", "delay", "at"]))
    assert isinstance(copy, polars.DataFrame)
    assert copy.sort("carrier").rows() == names["flights"].sort("carrier").rows()
    exec(of_asyncio, names)

    async def rows() -> int:
        return sum([batch.num_rows async for batch in names["batches"](cluster.read_arrow("events"))])

    assert asyncio.run(rows()) == 3


def large(partitions: int = 1) -> ClusterHandles:
    """Create a topic of 24 L0 objects."""
    handles, chosen = topic_in_memory(partitions), random.Random(1)
    for _ in range(24):
        put(handles, "events", {p: [chosen.randbytes(500).hex().encode() for _ in range(4)] for p in range(partitions)})
    return handles


def test_a_partition_is_never_held_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """However large the partition is, at most two of its batches are in memory."""
    held, most, came = list["weakref.ref[Any]"](), 0, 0
    read = OffsetReader.read

    def watched(self: OffsetReader) -> Iterator[Piece]:
        for piece in read(self):
            held.append(weakref.ref(piece.batch))
            yield piece
            del piece

    monkeypatch.setattr(OffsetReader, "read", watched)
    handles = large()
    topic = handles.controller.snapshot().topic("events")
    schema = schema_of(topic)
    batches = pa.RecordBatchReader.from_batches(schema, read_batches(handles, topic, schema=schema))
    for batch in batches:
        came += batch.num_rows
        del batch
        most = max(most, sum(r() is not None for r in held))
    assert (came, len(held)) == (96, 24)
    assert most <= 2


def test_many_partitions_are_held_together_up_to_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "WINDOW_BYTES", 1_000_000)
    handles = large(8)
    topic = handles.controller.snapshot().topic("events")
    schema = schema_of(topic)
    batches = [*read_batches(handles, topic, schema=schema)]
    assert max(b.nbytes for b in batches) < 1_000_000
    assert 2 <= len(batches) <= 4
    together = pa.Table.from_batches(batches)
    assert together["value"].to_pylist() == [r.value for r in read_topic(handles, topic)]


def test_only_offsets_are_read_without_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    handles = large(2)
    with over(handles, monkeypatch) as cluster:
        cluster.epoch  # noqa: B018 - the logs are read
        list(cluster.read_arrow("events", columns=["offset"]))
        before = store_of(handles).requests["get"]
        assert cluster.read_arrow("events", columns=["partition", "offset"]).read_all().num_rows == 192
        assert store_of(handles).requests["get"] - before <= 2
