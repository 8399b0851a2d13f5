"""Lost records given up by name: what is refused, what is kept of them, and how everything else goes on."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase

import msgspec
import pytest

from l0gc.errors import (
    AccessDeniedError,
    L0gcError,
    NotFoundError,
    RecordsLostError,
    SafetyError,
    StoreError,
    UsageError,
)
from l0gc.keys import QUARANTINE
from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.delete_records import delete_records
from l0gc.streamlog.give_up import READABLE, GiveUpRecord, GiveUpResult, give_up
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.level_one.merge_plan import MergeRule
from l0gc.streamlog.level_one.reconcile import reconcile as reconcile_run
from l0gc.streamlog.level_one.waiting import has_work
from l0gc.streamlog.reader import Record, read_topic
from l0gc.streamlog.topics import delete_topic, describe_topic
from tests.support.memory_store import Call, another_process, failing, store_of, topic_in_memory
from tests.support.merge import merge
from tests.support.reconcile import begin, files, put, reconcile, spill_early, unreconciled
from tests.support.vacuum import vacuum_later

RECORDS = 3
"""How many records of each partition an object has."""


def value(partition: int, offset: int) -> bytes:
    return b"%03d/%04d" % (partition, offset)


def uploaded(objects: int = 4, partitions: int = 2) -> tuple[Handles, list[str]]:
    """A topic in memory with so many L0 objects, and their keys."""
    cluster = topic_in_memory(partitions)
    keys = []
    for n in range(objects):
        span = range(n * RECORDS, (n + 1) * RECORDS)
        keys += put(cluster, "events", {p: [value(p, o) for o in span] for p in range(partitions)})
    return cluster, keys


def damage(cluster: Handles, key: str) -> bytes:
    """Change a byte; returns what is left."""
    body = store_of(cluster).objects[key].body
    store_of(cluster).objects[key].body = changed = bytes([body[0] ^ 1]) + body[1:]
    return changed


def lost(cluster: Handles, partition: int = 0, offsets: tuple[int, int] = (3, 5), **how: bool) -> GiveUpResult:
    return give_up(another_process(cluster), "events", partition, offsets, "ann@host", **how)


def read(cluster: Handles, partition: int = 0, **how: bool) -> list[Record]:
    topic = cluster.controller.snapshot().topic("events")
    return list(read_topic(another_process(cluster), topic, [partition], **how))


def offsets_of(records: list[Record]) -> list[int]:
    assert [r.value for r in records] == [value(r.partition, r.offset) for r in records]
    return [r.offset for r in records]


ALL = range(4 * RECORDS)
LEFT = [o for o in ALL if not 3 <= o <= 5]


# -- the partition goes on ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reconciled_before", [True, False])
def test_a_partition_goes_on_behind_a_lost_object(reconciled_before: bool) -> None:
    cluster, keys = uploaded()
    cluster.store.delete([keys[1]])
    if reconciled_before:
        assert len(reconcile_run(cluster).errors) == 1
        assert unreconciled(cluster, "events", 0) == 9
    for p in (0, 1):
        result = lost(cluster, p)
        assert (result.records, result.quarantined) == (3, [])
    while has_work(cluster):
        reconcile(cluster)
    assert unreconciled(cluster, "events", 0) == 0
    assert [(f.base_offset, f.is_hole) for f in files(cluster, "events", 0)] == [(0, False), (3, True), (6, False)]
    assert offsets_of(read(cluster, skip_holes=True)) == LEFT
    totals = describe_topic(cluster, "events").totals
    assert (totals.l1_objects, totals.holes, totals.lost_records) == (4, 2, 6)


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


def test_what_was_lifted_before_a_hole_is_committed_and_what_covers_it_is_not() -> None:
    cluster, keys = uploaded(partitions=1)
    begun = begin(another_process(cluster))
    damage(cluster, keys[1])
    lost(cluster)
    (committed,) = begun.commit()
    assert (committed.records, committed.lost) == (0, 1)
    while has_work(cluster):
        reconcile(cluster)
    assert offsets_of(read(cluster, skip_holes=True)) == LEFT


# -- readers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lifted", [0, 1, 2])
def test_a_reader_gives_what_is_before_a_hole_and_names_it(lifted: int) -> None:
    """The hole waits above L1, is at its end, or is in the middle of it."""
    cluster, keys = uploaded()
    cluster.store.delete([keys[1]])
    if lifted == 1:
        reconcile_run(cluster)
    lost(cluster)
    for _ in range(2 if lifted == 2 else 0):
        reconcile_run(cluster)
    topic = cluster.controller.snapshot().topic("events")
    records = read_topic(cluster, topic, [0])
    assert offsets_of([next(records) for _ in range(3)]) == [0, 1, 2]
    with pytest.raises(RecordsLostError, match=r"records 3 to 5 of partition events/0 were given up.*--skip-holes"):
        next(records)
    assert offsets_of(read(cluster, skip_holes=True)) == LEFT
    assert offsets_of(list(read_topic(cluster, topic, [0], start=6))) == list(ALL)[6:]
    with pytest.raises(RecordsLostError, match="records 4 to 5 "):
        list(read_topic(cluster, topic, [0], start=4))


def test_a_reader_leaves_out_a_hole_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    cluster, keys = uploaded()
    cluster.store.delete([keys[3]])
    lost(cluster, 0, (9, 11))
    assert offsets_of(read(cluster, skip_holes=True)) == list(range(9))
    assert [r.message for r in caplog.records if "given up" in r.message] == [
        "the records 9 to 11 of partition events/0 were given up; they are left out"
    ]


# -- what else meets a hole -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state_rows", [64, 2])
def test_merge_retention_and_vacuum_pass_a_hole(state_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    spill_early(monkeypatch, state_rows, 1)
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
    assert describe_topic(cluster, "events").totals.holes == 0
    assert not [k for k in store_of(cluster).objects if k.startswith("level_one/data")]


def test_a_topic_with_holes_is_deleted_with_all_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    spill_early(monkeypatch, 1, 1)
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


# -- what is kept -----------------------------------------------------------------------------------------------------------


def test_damaged_bytes_are_kept_with_a_record_before_anything_is_given_up() -> None:
    cluster, keys = uploaded()
    body = damage(cluster, keys[1])
    result = lost(cluster)
    assert result.quarantined == [f"{QUARANTINE}{keys[1]}"]
    assert cluster.store.get(result.quarantined[0]).body == body
    (record,) = [k for k in store_of(cluster).objects if k.startswith(QUARANTINE) and k.endswith(".json")]
    kept = msgspec.json.decode(cluster.store.get(record).body, type=GiveUpRecord)
    assert (kept.by, kept.topic, kept.partition, kept.first_offset, kept.last_offset) == ("ann@host", "events", 0, 3, 5)
    assert "checksum" in kept.objects[keys[1]]


@pytest.mark.parametrize("at", ["*.json", "*level_zero*"])
@pytest.mark.parametrize("error", [StoreError("the store is full"), AccessDeniedError("no")])
def test_a_store_that_keeps_nothing_of_it_ends_it_with_nothing_given_up(at: str, error: L0gcError) -> None:
    cluster, keys = uploaded()
    damage(cluster, keys[1])
    before = cluster.journal(0).replica.offset

    def fault(call: Call) -> None:
        is_put = call.kind == "put" and call.when == "before" and call.key.startswith(QUARANTINE)
        if is_put and fnmatchcase(call.key, at):
            raise error

    store_of(cluster).fault = fault
    with pytest.raises(type(error), match="nothing was given up"):
        lost(cluster)
    store_of(cluster).fault = lambda call: None
    cluster.journal(0).catch_up()
    assert cluster.journal(0).replica.offset == before
    assert lost(cluster).records == 3


# -- what is refused ----------------------------------------------------------------------------------------------------


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
        ("events", 0, (6, 8), UsageError, "6 to 8 were given up already"),
        ("events", 0, (9, 11), SafetyError, "9 to 11 can be read in level_zero.*--force-readable"),
        ("events", 0, (3, 11), UsageError, "6 to 8 were given up already"),
    ],
)
def test_what_cannot_be_given_up_is_refused_in_one_sentence(
    topic: str, partition: int, offsets: tuple[int, int], error: type[L0gcError], why: str
) -> None:
    cluster, keys = uploaded()
    cluster.store.delete(keys[1:3])
    reconcile_run(cluster)
    lost(cluster, 0, (6, 8))
    delete_records(cluster, "events", 1, before_offset=2)
    before = dict(store_of(cluster).objects)
    with pytest.raises(error, match=why):
        give_up(another_process(cluster), topic, partition, offsets, "ann")
    assert store_of(cluster).objects == before


def test_nothing_of_a_topic_without_records_can_be_given_up() -> None:
    cluster = topic_in_memory(1)
    with pytest.raises(NotFoundError, match="nothing has ever landed"):
        give_up(cluster, "events", 0, (0, 0), "ann")


def test_what_can_be_read_is_given_up_only_if_that_is_said() -> None:
    cluster, keys = uploaded()
    cluster.store.delete([keys[1]])
    with pytest.raises(SafetyError, match=r"records 3 to 8 .* are not all lost: 6 to 8 can be read"):
        lost(cluster, 0, (3, 8))
    result = lost(cluster, 0, (3, 8), force_readable=True)
    assert result.quarantined == [f"{QUARANTINE}{keys[2]}"]
    assert offsets_of(read(cluster, skip_holes=True)) == [0, 1, 2, 9, 10, 11]
    record = cluster.store.get(f"{QUARANTINE}events-1/00000/{3:020}-{8:020}.json").body
    assert msgspec.json.decode(record, type=GiveUpRecord).objects[keys[2]] == READABLE


def test_an_object_that_the_store_does_not_hand_out_is_not_lost() -> None:
    cluster, keys = uploaded()
    store_of(cluster).fault = failing(AccessDeniedError("it is archived"), "get*", keys[1])
    with pytest.raises(AccessDeniedError, match="archived"):
        lost(cluster)


@pytest.mark.parametrize("what", ["reconciled", "given up", "deleted"])
def test_what_changes_until_it_lands_is_decided_where_it_lands(what: str) -> None:
    """Another process lifts, gives up or deletes the records after they were found lost."""
    cluster, keys = uploaded(partitions=1)
    body = store_of(cluster).objects[keys[1]].body
    cluster.store.delete([keys[1]])
    doings: dict[str, Callable[[], object]] = {
        "reconciled": lambda: reconcile(another_process(cluster, 7)),
        "given up": lambda: give_up(another_process(cluster, 7), "events", 0, (3, 5), "bob"),
        "deleted": lambda: delete_records(another_process(cluster, 7), "events", 0, before_offset=4),
    }

    def fault(call: Call) -> None:
        if call.kind == "put" and call.key.startswith(QUARANTINE) and call.when == "after":
            store_of(cluster).fault = lambda call: None
            if what == "reconciled":  # it was put back
                store_of(cluster).put(keys[1], body)
            doings[what]()

    store_of(cluster).fault = fault
    with pytest.raises(
        L0gcError, match={"reconciled": "are in L1", "given up": "already", "deleted": "begins at"}[what]
    ):
        lost(cluster)
    if what == "deleted":
        lost(cluster, 0, (4, 5))
    assert len(offsets_of(read(cluster, skip_holes=True))) == {"reconciled": 12, "given up": 9, "deleted": 6}.get(what)
