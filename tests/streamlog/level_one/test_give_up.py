"""Lost records given up by name: the refusals, the kept bytes, and the operations that continue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from crc32c import crc32c

from l0gc.errors import (
    AccessDeniedError,
    L0gcError,
    NotFoundError,
    ObjectNotFoundError,
    RecordsLostError,
    SafetyError,
    StoreError,
    UsageError,
)
from l0gc.operations import Read
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.delete_records import delete_records
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.ingest.headers_and_times import Record
from l0gc.streamlog.journal.topic import TopicState
from l0gc.streamlog.level_one.give_up import GiveUpRecord, GiveUpResult, LostBlock, give_up
from l0gc.streamlog.level_one.merge_plan import MergeRule
from l0gc.streamlog.level_one.parquet import GIVEN_UP_METADATA, read_footer
from l0gc.streamlog.level_one.plan import has_work
from l0gc.streamlog.level_one.reconcile import reconcile as reconcile_run
from l0gc.streamlog.reader import read_topic
from l0gc.streamlog.topics import delete_topic, describe_topic
from tests.support.memory_store import Call, another_process, failing, store_of, topic_in_memory
from tests.support.merge import merge
from tests.support.misread import WAYS, misread
from tests.support.reconcile import begin, files, put, reconcile, unreconciled
from tests.support.vacuum import vacuum_later

RECORDS = 3
"""Records of each partition in an object."""


def value(partition: int, offset: int) -> bytes:
    return b"%03d/%04d" % (partition, offset)


def uploaded(objects: int = 4, partitions: int = 2) -> tuple[ClusterHandles, list[str]]:
    """Create a topic in memory with `objects` L0 objects; return the cluster and their keys."""
    cluster = topic_in_memory(partitions)
    keys = []
    for n in range(objects):
        span = range(n * RECORDS, (n + 1) * RECORDS)
        keys += put(cluster, "events", {p: [value(p, o) for o in span] for p in range(partitions)})
    return cluster, keys


def damage(cluster: ClusterHandles, key: str) -> bytes:
    """Change a byte of the object; return the changed body."""
    body = store_of(cluster).objects[key].body
    store_of(cluster).objects[key].body = changed = bytes([body[0] ^ 1]) + body[1:]
    return changed


def lost(
    cluster: ClusterHandles, partition: int = 0, offsets: tuple[int, int] = (3, 5), *, force_readable: bool = False
) -> GiveUpResult:
    where: dict[str, Any] = {"topic": "events", "partition": partition, "offsets": offsets}
    return give_up(another_process(cluster), "ann@host", force_readable=force_readable, **where)


def record_of(cluster: ClusterHandles, key: str) -> GiveUpRecord:
    """Return the record in a hole's footer, whose object has no rows."""
    metadata, _ = read_footer(cluster.store, key, len(store_of(cluster).objects[key].body))
    assert metadata.num_rows == 0
    return msgspec.json.decode(metadata.metadata[GIVEN_UP_METADATA.encode()], type=GiveUpRecord)


def state_of(cluster: ClusterHandles) -> TopicState:
    topic = cluster.controller.snapshot().topic("events")
    return another_process(cluster).journal(0).catch_up().topics[topic.revision]


def remains_of(cluster: ClusterHandles, key: str, block: LostBlock) -> bytes:
    """Return the bytes that a hole keeps of a block, after a check of their checksum."""
    found = store_of(cluster).objects[key].body[block.at : block.at + block.bytes]
    assert found
    assert crc32c(found) == block.crc32c
    return found


def read(cluster: ClusterHandles, partition: int = 0, **how: Any) -> list[Record]:
    topic = cluster.controller.snapshot().topic("events")
    return list(read_topic(another_process(cluster), topic, Read(partition=partition, **how)))


def offsets_of(records: list[Record]) -> list[int]:
    assert [r.value for r in records] == [value(r.partition, r.offset) for r in records]
    return [r.offset for r in records]


ALL = range(4 * RECORDS)
LEFT = [o for o in ALL if not 3 <= o <= 5]


# -- the partition continues --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_object", [True, False])
def test_partitions_go_on_behind_a_lost_object(by_object: bool) -> None:
    cluster, keys = uploaded()
    cluster.store.delete([keys[1]])
    assert len(reconcile_run(cluster).errors) == 1
    assert unreconciled(cluster, "events", 0) == 9
    if by_object:
        result = give_up(another_process(cluster), "ann", objects=[keys[1]])
        assert (result.records, result.partitions, result.errors) == (6, 2, [])
        assert [(h.partition, h.first_offset, h.last_offset) for h in result.holes] == [(0, 3, 5), (1, 3, 5)]
    for p in () if by_object else (0, 1):
        assert lost(cluster, p).records == 3
    while has_work(cluster):
        reconcile(cluster)
    assert unreconciled(cluster, "events", 0) == 0
    assert [(f.base_offset, f.is_hole) for f in files(cluster, "events", 0)] == [(0, False), (3, True), (6, False)]
    assert offsets_of(read(cluster, skip_holes=True)) == LEFT
    totals = describe_topic(cluster, "events")
    assert (totals.l1_objects, totals.holes, totals.lost_records) == (6, 2, 6)


def test_several_objects_are_given_up_at_once_over_all_topics_and_journals() -> None:
    cluster, keys = uploaded()
    cluster.controller.create_topic("others", 2, 1)
    other = put(cluster, "others", {0: [b"x"], 1: [b"x"]})
    cluster.store.delete([keys[1], keys[2], *other])
    reconcile_run(cluster)
    result = give_up(another_process(cluster), "ann", objects=[keys[1], keys[2], *other])
    assert [(h.topic, h.partition, h.first_offset, h.last_offset) for h in result.holes] == [
        ("events", 0, 3, 8), ("events", 1, 3, 8), ("others", 0, 0, 0), ("others", 1, 0, 0),
    ]  # fmt: skip
    assert (result.records, result.partitions) == (14, 4)
    reconcile(cluster)
    assert offsets_of(read(cluster, skip_holes=True)) == [0, 1, 2, 9, 10, 11]


def test_what_comes_before_a_lost_record_is_lifted_first() -> None:
    cluster, keys = uploaded()
    cluster.store.delete([keys[1], keys[3]])
    with pytest.raises(
        UsageError, match=f"0 to 2 of partition events/0 come before.*l0gc reconcile.*--object {keys[0]}"
    ):
        give_up(cluster, "ann", objects=[keys[1]])
    with pytest.raises(UsageError, match="0 to 2 of partition events/0 come before"):
        lost(cluster)
    reconcile_run(cluster)
    with pytest.raises(UsageError, match=f"6 to 8 of partition events/0 come before.*--object {keys[2]}"):
        give_up(cluster, "ann", objects=[keys[1], keys[3]])
    with pytest.raises(NotFoundError, match=f"no journal needs {keys[0]}"):
        give_up(cluster, "ann", objects=[keys[0], keys[1]])
    give_up(cluster, "ann", objects=[keys[1]])
    reconcile_run(cluster)
    give_up(cluster, "ann", objects=[keys[3]])
    assert not has_work(cluster)


def test_m_passes_a_lost_object_once_it_is_given_up() -> None:
    cluster, keys = uploaded(partitions=1)
    revision = cluster.controller.snapshot().topic("events").revision
    cluster.store.delete([keys[1]])
    reconcile_run(cluster)
    housekeep(cluster, barrier=True)
    epoch = cluster.controller.snapshot().epoch
    assert cluster.journal(0).catch_up().bounds(revision, 0, 1)[0] < epoch
    lost(cluster)
    reconcile(cluster)
    assert cluster.journal(0).catch_up().bounds(revision, 0, 1)[0] == epoch


def test_records_before_a_hole_are_committed() -> None:
    cluster, keys = uploaded(partitions=1)
    begun = begin(another_process(cluster, 7))
    damage(cluster, keys[1])
    reconcile_run(cluster)
    lost(cluster)
    (committed,) = begun.commit()
    assert (committed.records, committed.lost) == (0, 1)
    while has_work(cluster):
        reconcile(cluster)
    assert offsets_of(read(cluster, skip_holes=True)) == LEFT


# -- readers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lifted", [False, True])
def test_a_reader_gives_what_is_before_a_hole_and_names_it(lifted: bool) -> None:
    """The hole is at the end of L1, or in the middle of it."""
    cluster, keys = uploaded()
    cluster.store.delete([keys[1]])
    reconcile_run(cluster)
    lost(cluster)
    if lifted:
        reconcile_run(cluster)
    topic = cluster.controller.snapshot().topic("events")
    records = read_topic(cluster, topic, Read(partition=0))
    assert offsets_of([next(records) for _ in range(3)]) == [0, 1, 2]
    with pytest.raises(RecordsLostError, match=r"records 3 to 5 of partition events/0 were given up.*--skip-holes"):
        next(records)
    assert offsets_of(read(cluster, skip_holes=True)) == LEFT
    assert offsets_of(read(cluster, start=6)) == list(ALL)[6:]
    with pytest.raises(RecordsLostError, match="records 4 to 5 "):
        read(cluster, start=4)


def uploaded_hourly() -> tuple[ClusterHandles, list[int]]:
    """Upload four L0 objects an hour apart, and give up the second and third together; return when each landed."""
    cluster, times = topic_in_memory(1), []
    for n in range(4):
        store_of(cluster).clock.ms += 3_600_000
        keys = put(cluster, "events", {0: [value(0, o) for o in range(n * RECORDS, (n + 1) * RECORDS)]})
        times.append(state_of(cluster).objects[-1].time_ms)
        if n in (1, 2):
            cluster.store.delete(keys)
    reconcile_run(cluster)
    assert lost(cluster, 0, (3, 8)).records == 6
    return cluster, times


@pytest.mark.parametrize("lifted", [False, True])
def test_reading_from_a_time_names_the_hole_before_its_first_record(lifted: bool) -> None:
    cluster, times = uploaded_hourly()
    if lifted:
        reconcile_run(cluster)
    for since in (times[0] + 1, times[1], times[2]):
        with pytest.raises(RecordsLostError, match="records 3 to 8 "):
            read(cluster, from_time_ms=since)
        assert offsets_of(read(cluster, from_time_ms=since, skip_holes=True)) == [9, 10, 11]
    for since in (times[2] + 1, times[3]):
        assert offsets_of(read(cluster, from_time_ms=since)) == [9, 10, 11]
    assert read(cluster, from_time_ms=times[3] + 1) == []


def test_reading_up_to_a_time_names_the_hole_that_has_older_records() -> None:
    cluster, times = uploaded_hourly()
    for before in (times[0] + 1, times[1]):
        assert offsets_of(read(cluster, before_time_ms=before)) == [0, 1, 2]
    for before in (times[1] + 1, times[2], times[3]):
        with pytest.raises(RecordsLostError, match="records 3 to 8 "):
            read(cluster, before_time_ms=before)
        assert offsets_of(read(cluster, before_time_ms=before, skip_holes=True)) == [0, 1, 2]


def test_deleting_before_a_time_keeps_a_hole_with_newer_records() -> None:
    cluster, times = uploaded_hourly()
    delete_records(another_process(cluster), "events", before_time_ms=times[2])
    assert state_of(cluster).view(0).log_start_offset == 3
    delete_records(another_process(cluster), "events", before_time_ms=times[2] + 1)
    assert state_of(cluster).view(0).log_start_offset == 9


def test_a_reader_leaves_out_a_hole_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    cluster, keys = uploaded()
    cluster.store.delete([keys[3]])
    reconcile_run(cluster)
    lost(cluster, 0, (9, 11))
    assert offsets_of(read(cluster, skip_holes=True)) == list(range(9))
    assert [r.message for r in caplog.records if "given up" in r.message] == [
        "the records 9 to 11 of partition events/0 were given up; they are left out"
    ]


# -- other operations on a hole -------------------------------------------------------------------------------------------


def test_merge_retention_and_vacuum_pass_a_hole() -> None:
    cluster, keys = uploaded(8, 1)
    cluster.store.delete([keys[3]])
    reconcile_run(cluster, round_bytes=1)
    lost(cluster, 0, (9, 11))
    reconcile(cluster, round_bytes=1)
    merge(cluster, rule=MergeRule(1 << 30, 64))
    left = [(f.base_offset, f.last_offset, f.is_hole) for f in files(cluster, "events", 0)]
    assert (9, 11, True) in left
    assert len(left) < 8
    here = [o for o in range(24) if not 9 <= o <= 11]
    assert offsets_of(read(cluster, skip_holes=True)) == here
    vacuum_later(cluster)
    for start in (10, 12, 24):
        assert not delete_records(cluster, "events", before_offset=start).errors
        vacuum_later(cluster)
        assert offsets_of(read(cluster, skip_holes=True)) == [o for o in here if o >= start]
    assert describe_topic(cluster, "events").holes == 0
    assert not [k for k in store_of(cluster).objects if k.startswith("level_one/data")]


def test_a_topic_with_holes_is_deleted_with_all_that_it_has() -> None:
    cluster, keys = uploaded(6, 1)
    cluster.store.delete([keys[1]])
    reconcile_run(cluster, round_bytes=1)
    lost(cluster)
    reconcile(cluster, round_bytes=1)
    delete_topic(cluster, "events")
    vacuum_later(cluster)
    vacuum_later(cluster)
    assert not [k for k in store_of(cluster).objects if k.startswith("level_one/")]
    assert not len(cluster.journal(0).catch_up().dropped)


# -- kept bytes -------------------------------------------------------------------------------------------------------------


def test_a_holes_footer_has_author_reason_and_damaged_bytes() -> None:
    cluster, keys = uploaded()
    body = damage(cluster, keys[1])
    reconcile_run(cluster)
    result = give_up(cluster, "ann@host", objects=[keys[1]])
    first, second = (record_of(cluster, h.key) for h in result.holes)
    assert (first.by, first.topic, first.partition, first.first_offset, first.last_offset) == (
        "ann@host",
        "events",
        0,
        3,
        5,
    )
    (block,) = first.blocks
    assert "checksum" in block.why
    assert body[block.start :].startswith(remains_of(cluster, result.holes[0].key, block))
    (shared,) = second.blocks  # both partitions share one block of the object
    assert (shared.content_in, shared.at, shared.bytes) == (result.holes[0].key, block.at, block.bytes)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("after", range(3))
def test_of_damaged_bytes_those_are_kept_that_most_readings_gave(way: str, after: int) -> None:
    cluster, keys = uploaded()
    body = damage(cluster, keys[1])
    reconcile_run(cluster)
    with misread(cluster, keys[1], WAYS[way], 1, after=after) as bad:
        result = give_up(cluster, "ann", objects=[keys[1]])
    assert bad.keys == [keys[1]]
    (block,) = record_of(cluster, result.holes[0].key).blocks
    assert body[block.start :].startswith(remains_of(cluster, result.holes[0].key, block))


def test_a_read_that_ends_in_a_hole_names_no_later_record() -> None:
    cluster, keys = uploaded()
    cluster.store.delete([keys[1]])
    reconcile_run(cluster)
    lost(cluster)
    with pytest.raises(RecordsLostError, match="the records 3 to 4 of partition events/0 were given up"):
        read(cluster, before_offset=5)


def test_damaged_bytes_are_kept_though_most_readings_gave_none() -> None:
    cluster, keys = uploaded()
    body = damage(cluster, keys[1])
    reconcile_run(cluster)
    gone = ObjectNotFoundError(f"{keys[1]} does not exist")
    store_of(cluster).fault = failing(gone, "get", keys[1], times=2)
    result = give_up(cluster, "ann", objects=[keys[1]])
    (block,) = record_of(cluster, result.holes[0].key).blocks
    assert body[block.start :].startswith(remains_of(cluster, result.holes[0].key, block))


def test_records_left_of_an_extent_by_a_log_start_are_given_up() -> None:
    cluster, keys = uploaded()
    damage(cluster, keys[1])
    reconcile_run(cluster)
    delete_records(cluster, "events", 0, before_offset=4)
    assert lost(cluster, offsets=(4, 5)).records == 3  # the whole extent is given up
    assert offsets_of(read(cluster, skip_holes=True)) == list(range(6, 12))


def test_a_hole_that_is_read_back_badly_once_is_read_again() -> None:
    cluster, keys = uploaded()
    damage(cluster, keys[1])
    reconcile_run(cluster)
    with misread(cluster, "level_one/", WAYS["zeros"], 1) as bad:
        assert lost(cluster).records == 3
    assert len(bad.keys) == 1


@pytest.mark.parametrize("error", [StoreError("the store is full"), AccessDeniedError("no")])
def test_a_store_that_takes_no_hole_ends_it_with_nothing_given_up(error: L0gcError) -> None:
    cluster, keys = uploaded()
    damage(cluster, keys[1])
    reconcile_run(cluster)
    before = cluster.journal(0).replica.offset
    store_of(cluster).fault = failing(error, "put", "level_one/")
    with pytest.raises(type(error)):
        lost(cluster)
    store_of(cluster).fault = lambda call: None
    cluster.journal(0).catch_up()
    assert cluster.journal(0).replica.offset == before
    assert lost(cluster).records == 3


# -- refusals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "partition", "offsets", "error", "why"),
    [
        ("evnts", 0, (3, 5), NotFoundError, "evnts"),
        ("events", 2, (3, 5), L0gcError, "partition"),
        ("events", 0, (5, 3), UsageError, "5-3 is not a range"),
        ("events", 0, (-1, 3), UsageError, "-1-3 is not a range"),
        ("events", 0, (3, 2**63), UsageError, "is not a range"),
        ("events", 0, (3, 12), NotFoundError, "do not all exist: its next one will have offset 12"),
        ("events", 0, (3, 4), UsageError, "give up all of them or none"),
        ("events", 0, (0, 2), UsageError, "are in L1 up to 2"),
        ("events", 1, (0, 2), NotFoundError, "it begins at offset 2"),
        ("events", 0, (6, 8), UsageError, "3 to 5 of partition events/0 come before"),
        ("events", 0, (3, 11), SafetyError, "9 to 11 of .* can be read in level_zero.*--force-readable"),
        ("events", 0, (0, 5), UsageError, "are in L1 up to 2"),
    ],
)
def test_what_cannot_be_given_up_is_refused_in_one_sentence(
    topic: str, partition: int, offsets: tuple[int, int], error: type[L0gcError], why: str
) -> None:
    cluster, keys = uploaded()
    cluster.store.delete(keys[1:3])
    reconcile_run(cluster)
    delete_records(cluster, "events", 1, before_offset=2)
    before = dict(store_of(cluster).objects)
    with pytest.raises(error, match=why):
        give_up(another_process(cluster), "ann", topic=topic, partition=partition, offsets=offsets)
    assert store_of(cluster).objects == before


def test_nothing_of_a_topic_without_records_can_be_given_up() -> None:
    cluster = topic_in_memory(1)
    with pytest.raises(NotFoundError, match="its next one will have offset 0"):
        give_up(cluster, "ann", topic="events", partition=0, offsets=(0, 0))


def test_what_can_be_read_is_given_up_only_if_that_is_said() -> None:
    cluster, keys = uploaded()
    cluster.store.delete([keys[1]])
    reconcile_run(cluster)
    with pytest.raises(SafetyError, match=r"not everything is lost: the records 6 to 8 .* can be read"):
        lost(cluster, 0, (3, 8))
    result = lost(cluster, 0, (3, 8), force_readable=True)
    assert offsets_of(read(cluster, skip_holes=True)) == [0, 1, 2, 9, 10, 11]
    gone, readable = record_of(cluster, result.holes[0].key).blocks
    assert (gone.key, readable.key, readable.why, gone.bytes) == (keys[1], keys[2], "", 0)
    assert remains_of(cluster, result.holes[0].key, readable) in store_of(cluster).objects[keys[2]].body


@pytest.mark.parametrize("what", ["reconciled", "given up", "deleted"])
def test_what_changes_until_it_lands_is_decided_where_it_lands(what: str) -> None:
    """Another process lifts, gives up or deletes the records after they are found lost and before the hole lands."""
    cluster, keys = uploaded(partitions=1)
    body = store_of(cluster).objects[keys[1]].body
    cluster.store.delete([keys[1]])
    reconcile_run(cluster)
    doings: dict[str, Callable[[], object]] = {
        "reconciled": lambda: reconcile(another_process(cluster, 7)),
        "given up": lambda: give_up(another_process(cluster, 7), "bob", topic="events", partition=0, offsets=(3, 5)),
        "deleted": lambda: delete_records(another_process(cluster, 7), "events", 0, before_offset=4),
    }

    def fault(call: Call) -> None:
        if call.kind == "put" and call.key.startswith("level_one/") and call.when == "after":
            store_of(cluster).fault = lambda call: None
            if what == "reconciled":  # the object was restored
                store_of(cluster).put(keys[1], body)
            doings[what]()

    store_of(cluster).fault = fault
    result = lost(cluster)
    if what == "deleted":  # the log start offset lies inside the extent, which the hole covers whole
        assert (result.errors, result.records) == ([], 3)
    else:
        assert result.records == 0
        assert "records 3 to 5 of partition events/0 were not given up" in result.errors[0]
        assert "are already reconciled" in result.errors[0]
    reconcile_run(cluster)
    assert len(offsets_of(read(cluster, skip_holes=True))) == {"reconciled": 12, "given up": 9, "deleted": 6}.get(what)


def test_a_confirmation_does_not_cover_a_topic_created_since() -> None:
    cluster, _ = uploaded(1, 1)
    others = another_process(cluster, 2)

    def create_again() -> None:
        delete_topic(others, "events", others.controller.snapshot().topic("events").revision)
        others.controller.create_topic("events", 1)
        put(others, "events", {0: [value(0, o) for o in range(RECORDS)]})

    where: dict[str, Any] = {"topic": "events", "partition": 0, "offsets": (0, RECORDS - 1)}
    result = give_up(another_process(cluster), "ann@host", force_readable=True, confirm=create_again, **where)
    assert (result.records, len(result.errors)) == (0, 1)
    topic = others.controller.snapshot().topic("events")
    assert [r.value for r in read_topic(others, topic)] == [value(0, o) for o in range(RECORDS)]


def test_nothing_is_given_up_without_the_confirmation() -> None:
    cluster, keys = uploaded(1, 1)
    store_of(cluster).objects.pop(keys[0])

    def refuse() -> None:
        raise UsageError("not confirmed")

    with pytest.raises(UsageError, match="not confirmed"):
        give_up(another_process(cluster), "ann@host", objects=keys, confirm=refuse)
    assert unreconciled(cluster, "events", 0) == RECORDS
