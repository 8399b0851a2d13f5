"""The content of an L1 object; a reader rejects any other."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from l0gc.errors import CorruptObjectError, ObjectNotFoundError
from l0gc.keys import PartitionId
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.journal.rows import Rows
from l0gc.streamlog.journal.topic import L1File, l1_key
from l0gc.streamlog.level_one import parquet, read, write
from l0gc.streamlog.level_one.parquet import L1_SCHEMA, PARTITION
from tests.support.l1_files import footer_size, l1_body, sealed_again
from tests.support.memory_store import FakeClock, store_of, topic_in_memory
from tests.support.reconcile import files, l1_records, partition_of, put, reconcile

VALUES = [b'k%d:{"n":%d}' % (n % 3, n) for n in range(40)]


def an_object(*, row_groups: bool = False) -> tuple[ClusterHandles, PartitionId, L1File]:
    cluster = topic_in_memory(2)
    for at in range(0, 40, 8):
        put(cluster, "events", {0: [b"other"], 1: VALUES[at : at + 8]})
    with pytest.MonkeyPatch.context() as patch:
        if row_groups:
            patch.setattr(write, "_TOGETHER", 0)
            patch.setattr(read, "BATCH_BYTES", 1)
        reconcile(cluster)
    (file,) = files(cluster, "events", 1)
    return cluster, partition_of(cluster, "events", 1), file


def values(
    cluster: ClusterHandles, p: PartitionId, file: L1File, start: int = 0
) -> list[tuple[int, bytes | None, bytes]]:
    found = []
    for base, batch in l1_records(cluster.store, l1_key(p, file), file, start):
        rows = zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
        found += [(base + n, key, value) for n, (key, value) in enumerate(rows)]
    return found


EXPECTED = [(n, v.split(b":")[0], v) for n, v in enumerate(VALUES)]


@pytest.mark.parametrize("row_groups", [False, True])
def test_l1_holds_every_record_with_its_offset_time_key_and_epoch(row_groups: bool) -> None:
    cluster, p, file = an_object(row_groups=row_groups)
    assert l1_key(p, file) == (
        f"level_one/data/events-1/00001/{cluster.controller.epoch():018}/{0:020}-{39:020}-{file.name}.parquet"
    )
    body = cluster.store.get(l1_key(p, file)).body
    assert (file.base_offset, file.last_offset, file.bytes) == (0, 39, len(body))
    table = pq.read_table(pa.BufferReader(body))
    assert table.schema.equals(pa.schema([*L1_SCHEMA, PARTITION]))
    assert table["offset"].to_pylist() == list(range(40))
    assert (set(table["epoch"].to_pylist()), set(table["partition"].to_pylist())) == ({1}, {1})
    times = [t.timestamp() * 1000 for t in table["timestamp"].to_pylist()]
    assert times == sorted(times)
    assert FakeClock().ms <= times[0] <= times[-1] <= store_of(cluster).clock.ms
    assert values(cluster, p, file) == EXPECTED


def test_the_bytes_of_records_are_not_repeated_in_statistics() -> None:
    cluster, p, file = an_object()
    metadata = pq.ParquetFile(pa.BufferReader(cluster.store.get(l1_key(p, file)).body)).metadata
    of = {metadata.schema.column(n).name: metadata.row_group(0).column(n).is_stats_set for n in range(5)}
    assert of == {"offset": True, "timestamp": True, "key": False, "value": False, "epoch": True}


def test_reading_from_an_offset_leaves_out_row_groups_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_LEAST_TAIL", 8)
    monkeypatch.setattr(parquet, "CHUNK_BYTES", 1)
    cluster, p, file = an_object(row_groups=True)
    whole = store_of(cluster).requests["get"]
    assert values(cluster, p, file) == EXPECTED
    whole = store_of(cluster).requests["get"] - whole
    for start in (0, 1, 8, 15, 16, 39):
        before = store_of(cluster).requests["get"]
        found = values(cluster, p, file, start)
        assert found == EXPECTED[start // 8 * 8 :]
        assert store_of(cluster).requests["get"] - before <= whole
    assert store_of(cluster).requests["get"] - before < whole


@pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.thorough)])
def test_every_changed_bit_of_a_footer_is_noticed_before_arrow_reads_it(every: int) -> None:
    """Some changed bits make Arrow end the process; others make it believe wrong values, such as a row group's times."""
    cluster, p, file = an_object()
    key = l1_key(p, file)
    body = store_of(cluster).objects[key].body
    assert sealed_again(body) == body
    for bit in range(8 * (len(body) - footer_size(body) - 4), 8 * len(body), every):
        changed = bytearray(body)
        changed[bit // 8] ^= 1 << bit % 8
        store_of(cluster).objects[key].body = bytes(changed)
        with pytest.raises(
            CorruptObjectError, match=f"^{key} (has a footer whose checksum|does not end with a footer)"
        ):
            list(l1_records(cluster.store, key, file))


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "columns", "another name", "no name"])
def test_an_object_that_is_damaged_is_named(damage: str) -> None:
    cluster, p, file = an_object()
    key = l1_key(p, file)
    body = store_of(cluster).objects[key].body
    half, name = len(body) // 4, body.rindex(b"timestamp")  # the column's name in the row group's metadata
    other = l1_body(pa.table({"offset": list(range(40)), "value": [b"x"] * 40}))
    store_of(cluster).objects[key].body = {
        "flip": body[:half] + bytes([body[half] ^ 1]) + body[half + 1 :],
        "cut": body[:-100],
        "empty": b"",
        "columns": other,
        "another name": sealed_again(body[:name] + b"T" + body[name + 1 :]),
        "no name": sealed_again(body[:name] + b"\xf4" + body[name + 1 :]),
    }[damage]
    file = msgspec.structs.replace(file, bytes=len(store_of(cluster).objects[key].body))
    with pytest.raises(CorruptObjectError, match=f"^{key} "):
        list(l1_records(cluster.store, key, file))


def test_a_footer_that_names_bytes_outside_of_its_object_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_LEAST_TAIL", 8)
    cluster, p, file = an_object()
    key = l1_key(p, file)
    opened = parquet.open_l1(cluster.store, parquet.WantedFile(key, file, 0, 40), whole_bytes=0)
    opened.wanted = parquet.WantedFile(key, msgspec.structs.replace(file, bytes=100), 0, 40)
    (chunk,) = parquet.chunks(opened, opened.groups)
    with pytest.raises(CorruptObjectError, match=f"^{key} has a footer that names bytes outside of it"):
        parquet.fetch_chunk(cluster.store, chunk, ("offset", "value"))


@pytest.mark.parametrize(("base", "last"), [(0, 38), (0, 40), (1, 39), (1, 40), (100, 139)])
def test_an_object_with_other_offsets_than_the_journal_says_is_named(base: int, last: int) -> None:
    cluster, p, file = an_object()
    wrong = msgspec.structs.replace(file, base_offset=base, last_offset=last)
    with pytest.raises(CorruptObjectError, match=f"^{l1_key(p, file)} "):
        list(l1_records(cluster.store, l1_key(p, file), wrong))


def test_a_missing_object_is_distinguished_from_a_damaged_one() -> None:
    cluster, p, file = an_object()
    del store_of(cluster).objects[l1_key(p, file)]
    with pytest.raises(ObjectNotFoundError, match=file.name):
        list(l1_records(cluster.store, l1_key(p, file), file))


def test_records_at_other_offsets_than_thought_are_refused_where_they_are_written() -> None:
    """`L1Writer.finish` checks the records last, before they become an L1 object."""
    pieces_of = write.pieces_of

    def shifted(batch: pa.RecordBatch, number: int) -> Rows:
        pieces = pieces_of(batch, number)
        pieces["base"] += 1
        return pieces

    cluster = topic_in_memory(1)
    put(cluster, "events", {0: [b"a", b"b"]}, {0: [b"c"]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write, "pieces_of", shifted)
        with pytest.raises(CorruptObjectError, match=r"partition events/0: records 0 to 2 came instead of 1"):
            reconcile(cluster)
    assert not [k for k in store_of(cluster).objects if k.startswith("level_one/")]


def test_an_object_that_lies_at_another_ones_place_is_not_believed() -> None:
    """Two partitions may have objects with the same offsets and even the same size."""
    cluster = topic_in_memory(2)
    put(cluster, "events", {0: [b"a", b"b"], 1: [b"c", b"d"]})
    reconcile(cluster)
    keys = []
    for p in (0, 1):
        (file,) = files(cluster, "events", p)
        keys.append((l1_key(partition_of(cluster, "events", p), file), file))
    (first, file), (second, _) = keys
    cluster.store.put(first, cluster.store.get(second).body)
    with pytest.raises(CorruptObjectError, match="holds another object"):
        list(l1_records(cluster.store, first, file))
