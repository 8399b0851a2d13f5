"""Verify's reading of logs and objects, and the faults that it finds in them."""

from __future__ import annotations

import io
from collections.abc import Callable

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from l0gc.errors import CorruptObjectError, StoreError
from l0gc.inspect.verify.findings import Kind, ReplayedJournal
from l0gc.inspect.verify.replay import (
    block_faults,
    controller_faults,
    l1_fault,
    read_copy,
    size_of,
    unknown_journals,
)
from l0gc.keys import CONTROLLER_LOG, journal_log
from l0gc.storage.entry import Entry, StoredEntry, encode_entry
from l0gc.storage.log import SharedLog
from l0gc.storage.replica import Replica
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.journal.checkpoint import JournalMachine
from l0gc.streamlog.journal.row_list import RowList
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.level_one.parquet import L1_SCHEMA, PARTITION
from tests.support.l1_files import l1_body
from tests.support.memory_store import Call, MemoryStore, another_process, store_of
from tests.support.verify import (
    RECORDS,
    events_of,
    handle_of,
    l1_of,
    loaded_cluster,
    object_of,
    put,
    state_of,
)

# -- logs ----------------------------------------------------------------------------------------------------------------


def copy_of(cluster: ClusterHandles, *, deep: bool = False) -> ReplayedJournal:
    return read_copy(cluster, 0, deep=deep)


def log_of(cluster: ClusterHandles) -> SharedLog:
    return handle_of(cluster).replica.log


def faults_of(cluster: ClusterHandles, *, deep: bool = False) -> list[str]:
    return [kind for kind, _ in copy_of(cluster, deep=deep).faults]


def test_an_impossible_checkpoint_state_is_a_log_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = loaded_cluster()
    assert faults_of(cluster) == []
    apply = JournalMachine.apply

    def losing(machine: JournalMachine, state: JournalState, entry: StoredEntry) -> None:
        apply(machine, state, entry)
        for topic in state.topics.values():
            topic.listed = RowList(topic.l1[1:])

    monkeypatch.setattr(JournalMachine, "apply", losing)
    ((kind, text),) = copy_of(cluster).faults
    assert kind == Kind.STATE_BROKEN
    assert "the L1 objects of revision 1 are not those of the records" in text


def test_a_journal_is_read_as_its_log_has_it() -> None:
    cluster = loaded_cluster()
    copy = copy_of(cluster)
    machine = handle_of(cluster).replica._machine
    assert machine.encode(copy.state) == machine.encode(state_of(cluster))
    assert (copy.end.offset, copy.faults) == (handle_of(cluster).replica.offset, [])


def test_a_journal_that_nobody_has_used_is_empty_and_well() -> None:
    cluster = loaded_cluster()
    copy = read_copy(cluster, 5)
    assert (copy.end.offset, copy.faults, copy.state.topics) == (-1, [], {})


def test_a_log_that_cannot_be_read_says_so() -> None:
    cluster = loaded_cluster()
    cluster.store.put(log_of(cluster).entry_key(1), b"{")
    with pytest.raises(CorruptObjectError, match="00001"):
        copy_of(cluster)


def grown(entries: int = 4, checkpoints: int = 2) -> ClusterHandles:
    """Create a journal with `checkpoints` checkpoints, `entries` entries before each, and one entry after the last."""
    cluster = loaded_cluster()
    for _ in range(checkpoints):
        for _ in range(entries):
            put(cluster, {0: 1})
        handle_of(cluster).replica.write_checkpoint()
    put(cluster, {0: 1})
    return cluster


def old_enough(cluster: ClusterHandles) -> None:
    store_of(cluster).clock.ms += 3_600_000


def test_checkpoints_hold_what_their_entries_give_before_and_after_a_truncation() -> None:
    cluster = grown()
    assert faults_of(cluster) == faults_of(cluster, deep=True) == []
    old_enough(cluster)
    again = another_process(cluster)
    assert handle_of(again).replica.truncate() > 0
    assert faults_of(cluster) == faults_of(cluster, deep=True) == []


def rewrite(cluster: ClusterHandles, number: int, change: Callable[[JournalState], object]) -> None:
    """Replace the journal's checkpoint `number` by one with a changed state."""
    log, machine = log_of(cluster), handle_of(cluster).replica._machine
    offset = log.list_folder().checkpoints[number]
    key = log.checkpoint_key(offset)
    log_now: Replica[JournalState] = Replica(log, machine, cluster.runtime)
    kept = log_now.log.get_checkpoint(offset)
    state = machine.decode(kept.payload, key)
    change(state)
    cluster.store.delete([key])
    log.write_checkpoint(offset, machine.encode(state), kept.time_ms)


def test_a_checkpoint_that_says_something_else_than_its_entries_is_found() -> None:
    def more_reconciled(state: JournalState) -> None:
        state.topics[1].log_start[0] = 5

    for number, deep, found in ((-1, False, True), (0, False, False), (0, True, True)):
        cluster = grown()
        rewrite(cluster, number, more_reconciled)
        if number == 0:  # the newest checkpoint is checked against the previous one, so both get the same change
            rewrite(cluster, -1, more_reconciled)
        assert faults_of(cluster, deep=deep) == ([Kind.CHECKPOINT_DIFFERS] if found else [])


def test_a_checkpoint_with_another_time_than_its_entries_is_found() -> None:
    cluster = grown()
    log, replica = log_of(cluster), handle_of(cluster).replica
    offset = log.list_folder().checkpoints[-1]
    state = log.get_checkpoint(offset).payload
    cluster.store.delete([log.checkpoint_key(offset)])
    log.write_checkpoint(offset, state, replica.time_ms + 1)
    assert faults_of(cluster) == [Kind.CHECKPOINT_DIFFERS]


def test_an_unreadable_entry_below_a_checkpoint_is_found() -> None:
    cluster = grown()
    log = log_of(cluster)
    cluster.store.put(log.entry_key(log.list_folder().checkpoints[-1] - 1), b"{")
    assert faults_of(cluster) == [Kind.CHECKPOINT_DIFFERS]


def test_an_entry_created_again_below_the_boundary_is_not_a_fault() -> None:
    cluster = grown(entries=2)
    log = log_of(cluster)
    payload = log.get(log.list_folder().checkpoints[-1]).payload
    old_enough(cluster)
    assert handle_of(another_process(cluster)).replica.truncate() > 0
    key = log.entry_key(log.list_folder().checkpoints[-1] - 1)
    assert key not in store_of(cluster).objects
    cluster.store.put(key, encode_entry(key, Entry("stale", 0, payload)))
    assert faults_of(cluster) == faults_of(cluster, deep=True) == []


def test_a_log_that_ends_before_its_checkpoint_has_a_gap() -> None:
    cluster = loaded_cluster()
    at = handle_of(cluster).replica.write_checkpoint()
    assert faults_of(cluster) == []
    cluster.store.delete([log_of(cluster).entry_key(at)])
    ((kind, text),) = copy_of(cluster).faults
    assert kind == Kind.LOG_GAP
    assert f"entry {at} is missing, between the boundary 0 and the newest checkpoint {at}" in text


def test_only_a_gap_that_truncation_cannot_explain_is_found() -> None:
    cluster = grown()
    log = log_of(cluster)
    newest = log.list_folder().checkpoints[-1]
    log.boundary.lift(newest - 2)
    cluster.store.delete([log.entry_key(o) for o in range(newest - 2)])
    assert faults_of(cluster) == []
    cluster.store.delete([log.entry_key(newest - 1)])
    assert faults_of(cluster) == [Kind.LOG_GAP]


def test_a_truncation_while_the_log_is_read_is_no_gap() -> None:
    happened = 0
    for moment in range(40):
        cluster = grown()
        other, left = another_process(cluster), [moment]

        def at_the_moment(
            call: Call, cluster: ClusterHandles = cluster, other: ClusterHandles = other, left: list[int] = left
        ) -> None:
            left[0] -= 1
            if left[0] < 0:
                store_of(cluster).fault = lambda call: None
                put(other, {0: 1})
                handle_of(other).replica.write_checkpoint()
                old_enough(other)
                handle_of(other).replica.truncate()

        store_of(cluster).fault = at_the_moment
        assert faults_of(cluster, deep=True) == [], moment
        happened += left[0] < 0
    assert happened >= 2


def test_a_boundary_above_the_newest_checkpoint_or_unreadable_is_found() -> None:
    cluster = grown()
    log = log_of(cluster)
    log.boundary.lift(log.list_folder().checkpoints[-1] + 1)
    assert faults_of(cluster) == [Kind.BOUNDARY_BROKEN]
    cluster.store.put(log.boundary.key, b"{")
    assert faults_of(cluster) == [Kind.BOUNDARY_BROKEN]


def test_the_controller_log_is_checked_alike() -> None:
    cluster = loaded_cluster()
    assert controller_faults(cluster) == []
    replica = cluster.controller.replica
    at = replica.write_checkpoint()
    cluster.store.delete([f"{CONTROLLER_LOG}log/{at:020}"])
    assert [kind for kind, _ in controller_faults(cluster)] == [Kind.LOG_GAP]


def test_an_unknown_journal_is_found_with_one_request() -> None:
    cluster = loaded_cluster()
    cluster.store.put(f"{journal_log(1)}log/{0:020}", b"")
    before = store_of(cluster).requests["scan"]
    assert unknown_journals(cluster.store, 2) == []
    assert unknown_journals(cluster.store, 1) == [journal_log(1)]
    assert store_of(cluster).requests["scan"] == before + 2


# -- objects -------------------------------------------------------------------------------------------------------------


def test_an_unlisted_object_is_found_by_its_key() -> None:
    store = MemoryStore()
    store.put("a/bc", b"12345")
    store.put("a/bcd", b"1")
    store.order = lambda keys: []  # type: ignore[method-assign]
    assert size_of(store, "a/bc") == 5
    assert size_of(store, "a/b") is None


# -- contents ------------------------------------------------------------------------------------------------------------


def test_a_damaged_block_is_found_by_its_first_extent() -> None:
    cluster = loaded_cluster()
    put(cluster, {0: 3000, 1: 9000, 2: 3000})
    o = object_of(cluster, 1)
    assert len(o.blocks) > 2
    assert block_faults(cluster.store, o) == []
    body = store_of(cluster).objects[o.key].body
    for n in range(len(o.blocks)):
        block = o.block(n)
        at = block.start + block.length // 2
        cluster.store.put(o.key, body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :])
        faults = block_faults(cluster.store, o)
        assert faults is not None
        ((extent, text),) = faults
        first = o.extents[o.extents["block"] == n][0]
        assert (extent.partition, extent.base_offset) == (first["partition"], first["base"])
        assert "checksum" in text


@pytest.mark.parametrize(("row", "records"), [(0, 11), (0, 9), (1, 7), (1, 5)])
def test_a_block_with_other_records_than_the_journal_says_is_found(row: int, records: int) -> None:
    o = object_of(cluster := loaded_cluster())
    extents = o.extents.copy()
    extents["records"][row] = records
    faults = block_faults(cluster.store, msgspec.structs.replace(o, extents=extents))
    assert faults is not None
    assert "holds 16 records that are not those" in faults[0][1]


def test_what_is_left_of_a_block_may_have_gaps() -> None:
    cluster = loaded_cluster()
    put(cluster, {0: 3, 1: 4, 2: 5})
    o = object_of(cluster, 1)
    assert block_faults(cluster.store, msgspec.structs.replace(o, extents=o.extents[[0, 2]])) == []
    assert block_faults(cluster.store, msgspec.structs.replace(o, extents=o.extents[[1]])) == []


def test_only_blocks_that_are_needed_are_read() -> None:
    cluster = loaded_cluster()
    put(cluster, {0: 9000, 1: 9000})
    o = object_of(cluster, 1)
    second = o.block(1)
    needed = msgspec.structs.replace(o, extents=o.extents[o.extents["block"] == 0])
    store_of(cluster).put(o.key, store_of(cluster).objects[o.key].body[: second.start])
    assert block_faults(cluster.store, needed) == []
    assert block_faults(cluster.store, o) is None


def test_a_missing_or_short_l0_object_is_not_checked_by_content() -> None:
    cluster = loaded_cluster()
    o = object_of(cluster)
    store_of(cluster).put(o.key, store_of(cluster).objects[o.key].body[:-1])
    assert block_faults(cluster.store, o) is None
    cluster.store.delete([o.key])
    assert block_faults(cluster.store, o) is None


def fail(call: Call) -> None:
    if call.kind == "get":
        raise StoreError("no")


def test_a_store_that_fails_is_no_finding() -> None:
    cluster = loaded_cluster()
    o, (key, file) = object_of(cluster), l1_of(cluster)
    store_of(cluster).fault = fail
    with pytest.raises(StoreError):
        block_faults(cluster.store, o)
    with pytest.raises(StoreError):
        l1_fault(cluster.store, key, file.bytes)


def test_no_flipped_byte_of_an_l1_object_changes_a_record_unnoticed() -> None:
    cluster = loaded_cluster()
    key, file = l1_of(cluster)
    body = store_of(cluster).objects[key].body
    records = pq.read_table(io.BytesIO(body))
    assert l1_fault(cluster.store, key, file.bytes) == ""
    noticed = 0
    for at in range(len(body)):
        changed = body[:at] + bytes([body[at] ^ 0x10]) + body[at + 1 :]
        store_of(cluster).put(key, changed)
        if l1_fault(cluster.store, key, file.bytes):
            noticed += 1
        else:
            assert pq.read_table(io.BytesIO(changed)).equals(records), at
    assert noticed > len(body) / 4


def rewritten(cluster: ClusterHandles, **changes: object) -> tuple[str, int]:
    """Rewrite the L1 object with other columns and without page checksums; return its key and size."""
    key, _ = l1_of(cluster)
    table = pq.read_table(io.BytesIO(store_of(cluster).objects[key].body))
    for name, values in changes.items():
        index = table.schema.get_field_index(name)
        column = table.column(name).take(values) if isinstance(values, list) else values
        table = table.set_column(index, L1_SCHEMA.field(name), column)
    body = l1_body(table, key, write_page_checksum=False)
    store_of(cluster).put(key, body)
    return key, len(body)


def test_an_l1_object_without_page_checksums_is_read_as_well() -> None:
    cluster = loaded_cluster()
    assert l1_fault(cluster.store, *rewritten(cluster)) == ""


@pytest.mark.parametrize("order", [[0, 2, 1, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 5, 6, 7, 8, 9, 9], [0] * 10])
def test_offsets_out_of_order_are_found(order: list[int]) -> None:
    cluster = loaded_cluster()
    assert "not where it should be" in (l1_fault(cluster.store, *rewritten(cluster, offset=order)) or "")


def test_a_partition_that_is_not_that_of_the_key_is_found() -> None:
    cluster = loaded_cluster()
    key, _ = l1_of(cluster)
    table = pq.read_table(io.BytesIO(store_of(cluster).objects[key].body))
    for last, found in ((0, ""), (1, "its column partition names another partition than its key")):
        body = l1_body(table.append_column(PARTITION, pa.array([0] * 9 + [last], PARTITION.type)), key)
        store_of(cluster).put(key, body)
        assert l1_fault(cluster.store, key, len(body)) == found


def test_an_l1_object_with_other_records_or_no_parquet_is_found() -> None:
    cluster = loaded_cluster()
    key, file = l1_of(cluster)
    body = store_of(cluster).objects[key].body
    other = key.replace("0000009-", "0000008-")
    cluster.store.put(other, body)
    assert "holds another object" in (l1_fault(cluster.store, other, file.bytes) or "")
    cluster.store.put(other, l1_body(pq.read_table(io.BytesIO(body)), other))
    assert "ends at record 9" in (l1_fault(cluster.store, other, size_of(cluster.store, other) or 0) or "")
    store_of(cluster).put(key, b"x" * file.bytes)
    assert "cannot be read" in (l1_fault(cluster.store, key, file.bytes) or "")
    fewer = l1_body(pq.read_table(io.BytesIO(body)).drop_columns(["epoch"]), key)
    store_of(cluster).put(key, fewer)
    assert "columns" in (l1_fault(cluster.store, key, len(fewer)) or "")


def test_a_missing_or_resized_l1_object_is_not_checked_by_content() -> None:
    cluster = loaded_cluster()
    key, file = l1_of(cluster)
    store_of(cluster).put(key, store_of(cluster).objects[key].body[:-9])
    assert l1_fault(cluster.store, key, file.bytes) is None
    cluster.store.delete([key])
    assert l1_fault(cluster.store, key, file.bytes) is None


def test_what_is_loaded_is_what_the_other_tests_take_it_for() -> None:
    cluster = loaded_cluster()
    assert {p: events_of(cluster).view(p).unreconciled_records for p in RECORDS} == RECORDS
