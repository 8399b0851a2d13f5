"""Records as Python objects: a reader gets them back as they were given, in any form."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import l0gc
from l0gc.errors import UsageError
from l0gc.operations import EARLY_MS
from l0gc.streamlog.ingest.headers_and_times import HEADERS, MAX_TIME_MS, Headers
from l0gc.streamlog.reader import read_topic
from tests.support.memory_store import memory_cluster
from tests.support.tries import sampled
from tests.test_api import over

PARTITIONS: Final = 3
SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("create_time", pa.timestamp("ms", tz="UTC")),
        ("partition", pa.int32()),
    ]
)
BYTES: Final = st.binary(max_size=6) | st.just(b"\n") | st.just(b"a\nb\n") | st.just(b"\0")
HEADER: Final = st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), st.none() | BYTES)
RECORD: Final = st.builds(
    l0gc.Record,
    BYTES,
    st.none() | BYTES,
    st.lists(HEADER, max_size=2).map(tuple),
    st.none() | st.just(0) | st.integers(EARLY_MS, MAX_TIME_MS),
    st.integers(-1, PARTITIONS - 1),
)


def table(records: list[l0gc.Record]) -> pa.Table:
    rows = [
        {
            "key": r.key,
            "value": r.value,
            "headers": [{"key": k, "value": v} for k, v in r.headers] or None,
            "create_time": r.create_time_ms,
            "partition": None if r.partition < 0 else r.partition,
        }
        for r in records
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


def as_dict(r: l0gc.Record) -> dict[str, Any]:
    return {
        "value": r.value,
        "key": r.key,
        "headers": dict(r.headers) if len(dict(r.headers)) == len(r.headers) else r.headers,
        "create_time_ms": r.create_time_ms,
        "partition": r.partition,
    }


FORMS: Final[dict[str, Callable[[list[l0gc.Record]], Any]]] = {
    "records": lambda records: records,
    "generator": iter,
    "dicts": lambda records: map(as_dict, records),
    "table": table,
    "batches": lambda records: table(records).to_batches(max_chunksize=2),
    "reader": lambda records: table(records).to_reader(max_chunksize=3),
    "polars": lambda records: pl.from_arrow(table(records)),
    "pandas": lambda records: table(records).to_pandas(types_mapper=pd.ArrowDtype),
    "parquet": lambda records: file_of(records, "parquet"),
    "arrow": lambda records: file_of(records, "arrow"),
}


def file_of(records: list[l0gc.Record], form: str) -> io.BytesIO:
    out = io.BytesIO()
    if form == "parquet":
        pq.write_table(table(records), out, row_group_size=2)
    else:
        with pa.ipc.new_stream(out, SCHEMA) as writer:
            writer.write_table(table(records), 2)
    out.seek(0)
    return out


def expected(records: list[l0gc.Record], first: int) -> list[tuple[Any, ...]]:
    """Return the records by partition, if round-robin begins at partition `first`."""
    placed = [
        r.partition if r.partition >= 0 else n % PARTITIONS if r.key is None else zlib.crc32(r.key) % PARTITIONS
        for n, r in enumerate(records, first)
    ]
    return [
        (p, r.value, r.key, r.headers, r.create_time_ms)
        for p in range(PARTITIONS)
        for r, at in zip(records, placed, strict=True)
        if at == p
    ]


def fields(r: l0gc.Record) -> tuple[int, bytes, bytes | None, Headers, int | None]:
    return r.partition, r.value, r.key, r.headers, r.create_time_ms


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    form=st.sampled_from([*FORMS]), records=st.lists(RECORD, max_size=7), batch_bytes=st.sampled_from([1, 40, 1 << 20])
)
def test_what_is_uploaded_in_any_form_is_read_back_equal(
    form: str, records: list[l0gc.Record], batch_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles = memory_cluster()
    topic, _ = handles.controller.create_topic("events", PARTITIONS)
    kind: Any = form if form in ("parquet", "arrow") else "auto"
    with over(handles, monkeypatch) as cluster:
        cluster.upload("events", FORMS[form](records), batch_bytes=batch_bytes, format=kind)
        landed = [fields(r) for r in read_topic(handles, topic)]
        assert landed in [expected(records, first) for first in range(PARTITIONS)]
        cluster.reconcile()
        assert [fields(r) for r in cluster.read("events")] == landed


@pytest.mark.parametrize("form", sampled(FORMS, ["records", "dicts", "reader", "parquet"]))
def test_an_upload_with_a_producer_is_resumed_also_from_another_form(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [
        l0gc.Record(b"%d\n" % n, None if n % 3 else b"k%d" % n, (("h", b"x"),), create_time_ms=EARLY_MS + n)
        for n in range(60)
    ]
    handles = memory_cluster()
    handles.controller.create_topic("events", PARTITIONS)
    kind: Any = form if form in ("parquet", "arrow") else "auto"

    def cut_off(text: str, *, done: float | None = None, total: float | None = None, **counts: Any) -> None:
        if (done or 0) > 10:
            raise KeyError

    with over(handles, monkeypatch) as cluster:
        with pytest.raises(KeyError):
            cluster.upload("events", records, producer="p", batch_bytes=1, progress=cut_off)
        landed = len([*cluster.read("events")])
        first = cluster.upload("events", FORMS[form](records), producer="p", batch_bytes=1, format=kind)
        again = cluster.upload("events", records, producer="p")
        assert 0 < landed < 60
        assert (first.records, first.skipped, again.records, again.skipped) == (60 - landed, landed, 0, 60)
        assert sorted(r.value for r in cluster.read("events")) == sorted(r.value for r in records)


def test_values_behind_their_length_hold_any_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [b"", b"\n", bytes(range(256)) * 5000, b"last"]
    path = tmp_path / "in.bin"
    path.write_bytes(b"".join(len(v).to_bytes(4, "big") + v for v in values))
    handles = memory_cluster()
    handles.controller.create_topic("events", 1)
    with over(handles, monkeypatch) as cluster:
        for _ in range(2):
            cluster.upload("events", path, format="length-prefixed", producer="p")
        cluster.upload("events", path, format="raw", producer="p")  # the same bytes, divided into other records
        assert [r.value for r in cluster.read("events")] == values + path.read_bytes().split(b"\n")
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(UsageError, match=r"in.bin ends within record 4"):
            cluster.upload("events", path, format="length-prefixed")


def test_records_that_were_read_are_copied_to_another_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    handles = memory_cluster()
    for name in ("events", "copy"):
        handles.controller.create_topic(name, PARTITIONS)
    with over(handles, monkeypatch) as cluster:
        cluster.upload("events", [(b"k", b"v", [("h", None)], datetime(2026, 1, 1, tzinfo=UTC)), b"x\n", (None, b"y")])
        cluster.upload("copy", cluster.read("events"))
        copied = [*map(fields, cluster.read("copy"))]
        assert copied == [*map(fields, cluster.read("events"))]
        assert (0 <= copied[0][0] < PARTITIONS, {f[1] for f in copied}) == (True, {b"v", b"x\n", b"y"})
        cluster.upload("copy", [l0gc.Record(b"all", b"k", partition=2)], partition=0)
        assert [r.key for r in cluster.read("copy", 0) if r.value == b"all"] == [b"k"]


REFUSED: Final[dict[str, Any]] = {
    "record 1 is of type str": ["text"],
    "record 2 has a value of type str, but it must be bytes": [b"fine", (b"k", "text")],
    "record 1 has a key of type int": [(5, b"v")],
    "record 1 has a field 'sensor', and a record has the fields value, key": [{"value": b"v", "sensor": 1}],
    "record 1 has no value": [{"key": b"k"}],
    "record 1 has headers .*: give pairs of a text and bytes": [l0gc.Record(b"v", headers=((b"k", b"v"),))],  # type: ignore[arg-type]
    "record 1 has a create time of type str": [(b"k", b"v", (), "today")],
    "record 1 has a create time that cannot be stored: -5 is not in": [(b"k", b"v", (), -5)],
    "record 1 has a create time that cannot be stored: 1700000000 milliseconds are 1970-01-20": [
        l0gc.Record(b"v", create_time_ms=1_700_000_000)
    ],
    "a row of the table has a time that cannot be stored: 1700000000 milliseconds are": pa.table(
        {"value": [b"v"], "create_time": [1_700_000_000]}
    ),
    "a row of the table has a time that cannot be stored: 9223372036854775807 is not in": pa.table(
        {"value": [b"v"], "create_time": [(1 << 63) - 1]}
    ),
    "record 1 names partition 9: the topic has partitions 0 to 2": [l0gc.Record(b"v", partition=9)],
    "record 1 is longer than 16777216 bytes": [bytes((16 << 20) + 1)],
    "the table has a column 'n', and records are taken from": pa.table({"value": [b"v"], "n": [1]}),
    "the table has no column value": pa.table({"key": [b"v"]}),
    "the table has a row without a value": pa.table({"value": [b"v", None]}),
    "cannot upload 5: give a path": 5,
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_cannot_be_stored_is_one_sentence_that_names_it(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    handles = memory_cluster()
    handles.controller.create_topic("events", PARTITIONS)
    with over(handles, monkeypatch) as cluster, pytest.raises(UsageError, match=said):
        cluster.upload("events", REFUSED[said], batch_bytes=1)


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_file_of_another_kind_is_refused_before_anything_is_sent(
    form: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fine, wrong = tmp_path / "fine", tmp_path / "wrong"
    fine.write_bytes(file_of([l0gc.Record(b"v")], form).getvalue())
    wrong.write_bytes(b'{"n": 1}\n' * 20)
    handles = memory_cluster()
    handles.controller.create_topic("events", 1)
    with over(handles, monkeypatch) as cluster:
        with pytest.raises(UsageError, match=f"wrong cannot be read as --format {form}: "):
            cluster.upload("events", fine, wrong, format=form)
        assert [*cluster.read("events")] == []


def test_a_named_unit_applies_to_integers_and_lifts_the_objects_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handles = memory_cluster()
    topic, _ = handles.controller.create_topic("events", PARTITIONS)
    early = l0gc.Record(b"early", create_time_ms=5)
    with over(handles, monkeypatch) as cluster:
        cluster.upload("events", pa.table({"value": [b"s"], "create_time": [1_700_000_000]}), timestamp_unit="s")
        cluster.upload("events", pa.table({"value": [b"ms"], "create_time_ms": [7]}), timestamp_unit="s")
        cluster.upload("events", [early], timestamp_unit="ms")
        cluster.upload("events", [r for r in cluster.read("events") if r.value == b"early"])
    found = sorted((r.value, r.create_time_ms) for r in read_topic(handles, topic))
    assert found == [(b"early", 5), (b"early", 5), (b"ms", 7), (b"s", 1_700_000_000_000)]
