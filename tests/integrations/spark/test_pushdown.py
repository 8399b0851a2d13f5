"""What a query does not need is not fetched: the bytes of L0 and L1 objects that are requested, counted at the store."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, LessThan

from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.level_one import write
from tests.support.memory_store import MemoryStore, store_of, topic_in_memory
from tests.support.reconcile import put, reconcile
from tests.support.spark_source import batch_reader, on, read, table

ROOM = 1.02
"""By how much more may be fetched than is needed."""


class CountingStore(MemoryStore):
    """Counts the bytes of L0 and L1 objects that it gives."""

    given = 0

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        found = super().get_ranges(key, ranges)
        if key.startswith("level_"):
            self.given += sum(map(len, found))
        return found


def counting(partitions: int) -> tuple[Handles, CountingStore]:
    store = CountingStore()
    cluster = topic_in_memory(partitions, store=store)
    return cluster, store


def records(seed: int, count: int, size: int) -> list[bytes]:
    """Records that do not compress."""
    chance = random.Random(seed)
    return [chance.randbytes(size) for _ in range(count)]


@pytest.mark.parametrize("options", [{"topic": "events"}, {"assign": '{"events":[517]}'}])
def test_one_partition_of_1024_fetches_its_l1_objects_and_its_l0_blocks(options: dict[str, str]) -> None:
    cluster, store = counting(1024)
    for n in range(2):
        put(cluster, "events", {p: records(p + n, 6, 500) for p in range(1024)})
        if n == 0:
            reconcile(cluster)
    topic = cluster.controller.snapshot().topic("events")
    state = cluster.journal(topic.journals[0]).catch_up()
    needed = sum(f.bytes for f in state.topic(topic.revision).files(517))
    needed += sum(e.block.length for e in state.topic(topic.revision).extents(517))
    store.given = 0
    filters: list[Filter] = [] if "assign" in options else [EqualTo(("partition",), 517)]
    assert len(read(cluster, filters, **options)) == 12
    assert needed <= store.given <= ROOM * needed
    assert store.given < sum(len(o.body) for k, o in store.objects.items() if k.startswith("level_")) / 10


YEAR = datetime(2025, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def year(monkeypatch: pytest.MonkeyPatch, per_day: int) -> tuple[Handles, CountingStore]:
    """A partition with so many records of 8 KiB for each day of 2025, in L1 objects of eight row groups each."""
    monkeypatch.setattr(write, "FILE_BYTES", 32 << 20)
    cluster, store = counting(1)
    for day in range(365):
        store.clock.ms = int((YEAR + day * DAY).timestamp() * 1000) + 1
        put(cluster, "events", {0: records(day, per_day, 8192)})
    reconcile(cluster)
    return cluster, store


def needed_for(store: CountingStore, first: datetime, end: datetime) -> int:
    """The bytes of the row groups with a record in this time."""
    needed = 0
    for key, o in store.objects.items():
        if not key.startswith("level_one/data/"):
            continue
        parquet = pq.ParquetFile(pa.BufferReader(o.body))
        for n in range(parquet.num_row_groups):
            times = parquet.read_row_group(n, ["timestamp"]).column(0).to_pylist()
            if any(first <= t < end for t in times):
                group = parquet.metadata.row_group(n)
                needed += sum(group.column(i).total_compressed_size for i in range(group.num_columns))
    return needed


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["filter", "options"])
def test_a_day_of_a_year_fetches_its_row_groups(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, store = year(monkeypatch, 32)
    first, end = YEAR + 200 * DAY, YEAR + 201 * DAY
    needed = needed_for(store, first, end)
    store.given = 0
    if how == "options":
        found = read(cluster, topic="events", startingTimestamp=_ms(first), endingTimestamp=_ms(end))
        assert [o for _, o, _ in found] == list(range(200 * 32, 201 * 32))
    else:
        with on(cluster):
            filters: list[Filter] = [GreaterThanOrEqual(("timestamp",), first), LessThan(("timestamp",), end)]
            reader = batch_reader(filters, topic="events")
            times = table(reader, reader.partitions()).column("timestamp").to_pylist()
        assert sum(first <= t < end for t in times) == 32  # Spark leaves out the others
    assert needed <= store.given <= ROOM * needed


def _ms(time: datetime) -> str:
    return str(int(time.timestamp() * 1000))


def test_l1_objects_that_are_wholly_older_than_a_filter_are_not_even_opened() -> None:
    cluster = topic_in_memory(1)
    clock = store_of(cluster).clock
    for n in range(4):
        put(cluster, "events", {0: [b"%d" % n]})
        reconcile(cluster)
        clock.ms += 1000
    since = datetime.fromtimestamp(
        clock.ms / 1000 - 2.5, UTC
    )  # the last one landed at the time of the last look at the log
    requested = []
    store_of(cluster).fault = lambda call: requested.append(call.key) if call.when == "before" else None
    with on(cluster):
        reader = batch_reader([GreaterThanOrEqual(("timestamp",), since)], topic="events")
        assert table(reader, reader.partitions()).column("value").to_pylist() == [b"3"]
    assert len({k for k in requested if k.startswith("level_one/data/")}) == 1
