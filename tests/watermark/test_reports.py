"""Reports: what is written is read back, and what is no report is refused by name."""

from __future__ import annotations

import random

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from l0gc.errors import CorruptObjectError
from l0gc.keys import REPORTS, PartitionId
from l0gc.runtime import Runtime
from l0gc.storage.log import Landed
from l0gc.streamlog.journal.entries import Placeholder, Placeholders
from l0gc.streamlog.journal.state import PartitionMachine, PartitionState
from l0gc.watermark.compute import PartitionReport
from l0gc.watermark.reports import SCHEMA, publish_reports, read_report_file, report_of
from tests.support.memory_store import MemoryStore

P = PartitionId("t", 5, 2)


def _runtime(store: MemoryStore) -> Runtime:
    return Runtime(store.clock, random.Random(0))


def _file(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def _row(**changes: object) -> dict[str, object]:
    return msgspec.structs.asdict(report_of("c", P, PartitionState.new(5), -1)) | changes


def test_a_report_is_the_state_as_of_its_log_offset() -> None:
    state = PartitionState.new(5)
    entry = Placeholders(7, [Placeholder("k", 0, 10, 3, 0, 0)])
    PartitionMachine(P).apply(state, Landed(0, 1234, msgspec.json.encode(entry), 1234))
    assert report_of("c", P, state, 0) == PartitionReport("c", "t", 5, 2, 4, 7, 5, 3, -1, 7, 0, 1234)
    assert report_of("c", P, state, 0).id == P


def test_reports_are_read_back_as_they_were_written() -> None:
    store = MemoryStore()
    reports = [report_of("c", PartitionId("é", 5, i), PartitionState.new(5), i - 1) for i in range(3)]
    reports.append(msgspec.structs.replace(reports[0], lowest_unreconciled_epoch=6, gc_epoch=2**62))
    key = publish_reports(store, _runtime(store), "upload", reports)
    assert key is not None
    assert key.startswith(f"{REPORTS}upload/")
    table = read_report_file(store.get(key).body, key)
    assert [msgspec.convert(r, PartitionReport) for r in table.to_pylist()] == reports


def test_without_rows_nothing_is_written() -> None:
    store = MemoryStore()
    assert publish_reports(store, _runtime(store), "upload", []) is None
    assert store.objects == {}


def test_each_report_is_a_file_of_its_own() -> None:
    store = MemoryStore()
    runtime = _runtime(store)
    reports = [report_of("c", P, PartitionState.new(5), -1)]
    assert publish_reports(store, runtime, "upload", reports) != publish_reports(store, runtime, "upload", reports)


@pytest.mark.parametrize("body", [b"", b"PAR1", b"x" * 100], ids=["empty", "magic", "garbage"])
def test_what_is_no_parquet_is_refused_by_name(body: bytes) -> None:
    with pytest.raises(CorruptObjectError, match="the/key"):
        read_report_file(body, "the/key")


def test_a_report_that_was_cut_off_is_refused_by_name() -> None:
    body = _file(pa.Table.from_pylist([_row()], SCHEMA))
    for size in range(0, len(body), 97):
        with pytest.raises(CorruptObjectError, match="the/key"):
            read_report_file(body[:size], "the/key")


def test_a_report_of_a_newer_version_is_refused() -> None:
    newer = SCHEMA.with_metadata({"l0gc.reports": "2"})
    with pytest.raises(CorruptObjectError, match=r"the/key is .* of version 2, .* up to 1: run a newer l0gc"):
        read_report_file(_file(pa.Table.from_pylist([_row()], newer)), "the/key")


def test_a_foreign_parquet_file_is_refused() -> None:
    with pytest.raises(CorruptObjectError, match="the/key"):
        read_report_file(_file(pa.table({"a": [1]})), "the/key")


@pytest.mark.parametrize(
    "changes",
    [{"gc_epoch": "many"}, {"gc_epoch": None}, {"gc_epoch": 1.5}, {"partition": 2**40}, {"topic": None}],
    ids=["text", "null", "fraction", "overflow", "no-topic"],
)
def test_a_report_with_values_that_cannot_be_is_refused(changes: dict[str, object]) -> None:
    table = pa.Table.from_pylist([_row(**changes)]).select(SCHEMA.names).replace_schema_metadata(SCHEMA.metadata)
    with pytest.raises(CorruptObjectError, match="the/key"):
        read_report_file(_file(table), "the/key")


def test_a_report_that_was_changed_into_another_valid_one_is_refused() -> None:
    store = MemoryStore()
    key = publish_reports(store, _runtime(store), "upload", [report_of("c", P, PartitionState.new(5), -1)])
    assert key is not None
    table = pq.read_table(pa.BufferReader(store.get(key).body))
    higher = table.set_column(4, SCHEMA.field(4), pa.array([5], pa.int64()))
    assert higher.schema.metadata == table.schema.metadata
    with pytest.raises(CorruptObjectError, match=rf"{key} does not match its checksum"):
        read_report_file(_file(higher), key)


def test_a_report_without_a_checksum_is_refused() -> None:
    with pytest.raises(CorruptObjectError, match="the/key does not match its checksum"):
        read_report_file(_file(pa.Table.from_pylist([_row()], SCHEMA)), "the/key")


def test_a_version_that_is_no_text_is_refused_by_name() -> None:
    foreign = SCHEMA.with_metadata({b"l0gc.reports": b"\xff"})
    with pytest.raises(CorruptObjectError, match="the/key"):
        read_report_file(_file(pa.Table.from_pylist([_row()], foreign)), "the/key")
