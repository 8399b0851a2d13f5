"""Looking at logs, objects and reports."""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

from l0gc.errors import CorruptObjectError, StoreError
from l0gc.inspect.verify.look import extent_faults, l1_fault, look_at, scan_between, size_of, top_of
from l0gc.keys import PartitionId, level_one
from l0gc.streamlog.journal.entries import L1File
from l0gc.streamlog.level_one.parquet import L1_SCHEMA
from l0gc.streamlog.reader import read_partition
from l0gc.watermark.compute import PartitionReport
from tests.support.memory_store import Call, MemoryStore
from tests.support.verify import another_process, handle_of, loaded_cluster, state_of, store_of

FOLDER = "l0gc/partition/events-1/00000/"


def test_a_partition_is_seen_as_its_log_has_it(tmp_path: Path) -> None:
    cluster = loaded_cluster(tmp_path)
    look = look_at(cluster.store, cluster.runtime, handle_of(cluster).partition)
    assert look.state == state_of(cluster)
    assert look.log_offset == handle_of(cluster).replica.offset
    assert not look.beyond


def test_a_log_that_ends_before_its_checkpoint_is_noticed(tmp_path: Path) -> None:
    cluster = loaded_cluster(tmp_path)
    at = handle_of(cluster).replica.write_checkpoint()
    assert not look_at(cluster.store, cluster.runtime, handle_of(cluster).partition).beyond
    cluster.store.delete([f"{FOLDER}log/{at:020}.json"])
    assert look_at(cluster.store, cluster.runtime, handle_of(cluster).partition).beyond


def test_a_truncation_between_the_replay_and_the_question_is_no_short_log(tmp_path: Path) -> None:
    cluster = loaded_cluster(tmp_path)
    at = handle_of(cluster).replica.write_checkpoint()
    entry, other = f"{FOLDER}log/{at:020}.json", another_process(cluster)

    def truncate(call: Call) -> None:
        if (call.kind, call.key, call.when) == ("get", entry, "before"):
            store_of(cluster).fault = lambda call: None
            handle_of(other).advance(other.controller.advance())
            handle_of(other).replica.write_checkpoint()
            other.store.delete([entry])

    store_of(cluster).fault = truncate
    assert not look_at(cluster.store, cluster.runtime, handle_of(cluster).partition).beyond
    assert size_of(cluster.store, entry) is None


def test_an_object_is_found_by_its_own_key_also_where_the_listing_lacks_it() -> None:
    store = MemoryStore()
    store.put("a/bc", b"12345")
    store.put("a/bcd", b"1")
    assert size_of(store, "a/bc") == 5
    assert size_of(store, "a/b") is None
    store.order = lambda keys: []  # type: ignore[method-assign]
    assert size_of(store, "a/bc") == 5


@pytest.mark.parametrize("ordered", [True, False])
def test_ranges_give_each_key_once_whatever_the_order(ordered: bool) -> None:
    store = MemoryStore()
    store.page_size = 3
    keys = [f"f/{n:02}" for n in range(20)]
    for k in keys:
        store.put(k, b"")
    if not ordered:
        store.order = lambda keys: sorted(keys, key=lambda k: k[::-1])  # type: ignore[method-assign]
        store.page_size = 100
    cuts = ["", "f/04~", "f/11~", ""]
    found = [[k for page in scan_between(store, "f/", a, b) for k in page.keys] for a, b in pairwise(cuts)]
    assert [sorted(f) for f in found] == [keys[:5], keys[5:12], keys[12:]]


# -- contents -------------------------------------------------------------------------------------------------------------


def test_an_extent_that_is_not_what_the_log_says_is_found_by_itself(tmp_path: Path) -> None:
    cluster = loaded_cluster(tmp_path)
    u = state_of(cluster).placeholders[0]
    more = msgspec.structs.replace(u, placeholder=msgspec.structs.replace(u.placeholder, records=4))
    assert extent_faults(cluster.store, u.placeholder.key, [u]) == []
    faults = extent_faults(cluster.store, u.placeholder.key, [u, more])
    assert faults is not None
    assert [f[0] for f in faults] == [more]
    body = store_of(cluster).objects[u.placeholder.key].body
    for at in range(0, len(body), 7):
        store_of(cluster).put(u.placeholder.key, body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :])
        assert extent_faults(cluster.store, u.placeholder.key, [u])


def test_an_l0_object_that_is_missing_or_short_has_no_content_to_judge(tmp_path: Path) -> None:
    cluster = loaded_cluster(tmp_path)
    u = state_of(cluster).placeholders[0]
    key, body = u.placeholder.key, store_of(cluster).objects[u.placeholder.key].body
    store_of(cluster).put(key, body[:-1])
    assert extent_faults(cluster.store, key, [u]) is None
    cluster.store.delete([key])
    assert extent_faults(cluster.store, key, [u]) is None


def fail(call: Call) -> None:
    if call.kind == "get":
        raise StoreError("no")


def test_a_store_that_fails_is_no_finding(tmp_path: Path) -> None:
    cluster = loaded_cluster(tmp_path)
    state = state_of(cluster)
    store_of(cluster).fault = fail
    with pytest.raises(StoreError):
        extent_faults(cluster.store, state.placeholders[0].placeholder.key, state.placeholders)
    with pytest.raises(StoreError):
        l1_fault(cluster.store, state.l1[0])


def test_no_flipped_byte_of_an_l1_object_changes_a_record_unnoticed(tmp_path: Path) -> None:
    cluster = loaded_cluster(tmp_path)
    (f,) = state_of(cluster).l1
    body = store_of(cluster).objects[f.key].body
    records = pq.read_table(io.BytesIO(body))
    assert l1_fault(cluster.store, f) == ""
    noticed = 0
    for at in range(len(body)):
        changed = body[:at] + bytes([body[at] ^ 0x10]) + body[at + 1 :]
        store_of(cluster).put(f.key, changed)
        if l1_fault(cluster.store, f):
            noticed += 1
        else:
            assert pq.read_table(io.BytesIO(changed)).equals(records), at
    assert noticed > len(body) / 4


def test_no_flipped_byte_of_an_l1_object_is_read_as_another_record(tmp_path: Path) -> None:
    cluster = loaded_cluster(tmp_path)
    (f,) = state_of(cluster).l1
    body, records = store_of(cluster).objects[f.key].body, list(read_partition(cluster.store, handle_of(cluster)))
    refused = 0
    for at in range(len(body)):
        store_of(cluster).put(f.key, body[:at] + bytes([body[at] ^ 0x10]) + body[at + 1 :])
        try:
            assert list(read_partition(cluster.store, handle_of(cluster))) == records, at
        except CorruptObjectError:
            refused += 1
    assert refused > len(body) / 4


def rewritten(cluster_body: bytes, **changes: object) -> bytes:
    table = pq.read_table(io.BytesIO(cluster_body))
    for name, values in changes.items():
        index = table.schema.get_field_index(name)
        column = table.column(name).take(values) if isinstance(values, list) else values
        table = table.set_column(index, L1_SCHEMA.field(name), column)
    sink = io.BytesIO()
    pq.write_table(table, sink, write_page_checksum=False)
    return sink.getvalue()


def test_an_l1_object_without_page_checksums_is_read_as_well(tmp_path: Path) -> None:
    cluster = loaded_cluster(tmp_path)
    (f,) = state_of(cluster).l1
    body = rewritten(store_of(cluster).objects[f.key].body)
    store_of(cluster).put(f.key, body)
    assert l1_fault(cluster.store, msgspec.structs.replace(f, bytes=len(body))) == ""


@pytest.mark.parametrize("order", [[0, 2, 1, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 5, 6, 7, 8, 9, 9], [0] * 10])
def test_offsets_out_of_order_are_found(tmp_path: Path, order: list[int]) -> None:
    cluster = loaded_cluster(tmp_path)
    (f,) = state_of(cluster).l1
    body = rewritten(store_of(cluster).objects[f.key].body, offset=order)
    store_of(cluster).put(f.key, body)
    assert "not where it should be" in (l1_fault(cluster.store, msgspec.structs.replace(f, bytes=len(body))) or "")


def test_an_l1_object_with_other_records_or_no_parquet_is_found(tmp_path: Path) -> None:
    cluster = loaded_cluster(tmp_path)
    (f,) = state_of(cluster).l1
    assert "ends at record 9" in (l1_fault(cluster.store, msgspec.structs.replace(f, last_offset=10)) or "")
    store_of(cluster).put(f.key, b"x" * f.bytes)
    assert "cannot be read" in (l1_fault(cluster.store, f) or "")
    sink = io.BytesIO()
    pq.write_table(pq.read_table(io.BytesIO(_original(tmp_path))).drop_columns(["epoch"]), sink)
    store_of(cluster).put(f.key, sink.getvalue())
    assert "columns" in (l1_fault(cluster.store, msgspec.structs.replace(f, bytes=len(sink.getvalue()))) or "")


def _original(tmp_path: Path) -> bytes:
    cluster = loaded_cluster(tmp_path)
    return cluster.store.get(state_of(cluster).l1[0].key).body


def test_an_l1_object_that_is_missing_or_of_another_size_has_no_content_to_judge(tmp_path: Path) -> None:
    cluster = loaded_cluster(tmp_path)
    (f,) = state_of(cluster).l1
    store_of(cluster).put(f.key, store_of(cluster).objects[f.key].body[:-9])
    assert l1_fault(cluster.store, f) is None
    assert l1_fault(cluster.store, L1File(level_one(PartitionId("x", 1, 0), 0, 1, "y"), 0, 1, 9)) is None


def test_a_log_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    cluster = loaded_cluster(tmp_path)
    cluster.store.put(f"{FOLDER}log/{1:020}.json", b"{")
    with pytest.raises(CorruptObjectError, match="00001"):
        look_at(cluster.store, cluster.runtime, handle_of(cluster).partition)


def test_the_most_of_several_reports_is_taken_field_by_field() -> None:
    one = PartitionReport("c", "events", 3, 0, 4, 6, 5, 20, 9, 5, 3, 0)
    two = msgspec.structs.replace(one, gc_epoch=5, next_offset=19, log_offset=9)
    for first, second in ((one, two), (two, one)):
        keys = {one: "one", two: "two"}
        top = top_of(second, keys[second], top_of(first, keys[first], None))
        assert (top.gc_epoch, top.next_offset, top.log_offset, top.key) == (5, 20, 9, "two")
