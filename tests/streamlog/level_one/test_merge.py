"""A merge changes no record and loses none, whichever other jobs run, wherever it is killed, and whatever is damaged."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from l0gc.errors import AppendOutcomeUnknownError, NotFoundError, StoreUnreachableError
from l0gc.storage.parallel import Parallel
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.journal.entries import Edit
from l0gc.streamlog.journal.handle import JournalHandle, LandedEdit
from l0gc.streamlog.journal.topic import L1File, l1_file, l1_key
from l0gc.streamlog.level_one import merge as runs
from l0gc.streamlog.level_one import parquet, rewrite, write
from l0gc.streamlog.level_one.hashes import Hashes
from l0gc.streamlog.level_one.merge import MergeResult, merge_due
from l0gc.streamlog.level_one.merge_plan import MergeRule
from l0gc.streamlog.level_one.parquet import L1_SCHEMA
from l0gc.streamlog.level_one.plan import windows_of
from l0gc.streamlog.reader import read_topic
from tests.support.ingest import CrashError
from tests.support.l1_files import l1_body
from tests.support.memory_store import (
    Call,
    MemoryStore,
    another_process,
    failing,
    lose_reply,
    memory_cluster,
    once,
    store_of,
    topic_in_memory,
)
from tests.support.merge import PARTITIONS, a_cluster, content, counts, dropped, fill, merge, name_of, stored
from tests.support.reconcile import files, named, partition_of, put, reconcile
from tests.support.tries import sampled

DATA = "level_one/data/"


def ok(result: MergeResult) -> MergeResult:
    assert not result.errors
    assert result.problem is None
    return result


def filled(times: int, *, journals: int = 2, partitions: int = PARTITIONS) -> ClusterHandles:
    """Create a cluster with `times` L1 objects in each partition."""
    a = a_cluster(journals)
    fill(a, times, partitions=partitions)
    return a


def merge_and_remove(a: ClusterHandles) -> None:
    """Merge in another process, and delete the dropped objects at once."""
    ok(merge(another_process(a)))
    gone = dropped(another_process(a, 2))
    store_of(a).delete([k for k in store_of(a).objects if name_of(k) in gone])


def keys_of(cluster: ClusterHandles, partition: int) -> list[str]:
    p = partition_of(cluster, "events", partition)
    return [l1_key(p, f) for f in files(cluster, "events", partition)]


def test_the_merged_object_holds_the_same_records_with_all_their_columns() -> None:
    a = filled(5)
    before = content(a)
    assert len({r["epoch"] for r in before[0]}) == 5
    assert {r["key"] for r in before[0]} == {b"0", None}
    sources = [f for p in range(PARTITIONS) for f in files(a, "events", p)]
    result = ok(merge(another_process(a)))
    assert (result.objects_before, result.objects_after, result.partitions) == (20, 4, 4)
    assert (result.records, result.lost) == (60, 0)
    assert result.bytes_read == sum(f.bytes for f in sources)
    assert result.bytes == sum(f.bytes for p in range(PARTITIONS) for f in files(a, "events", p))
    assert counts(a) == [1] * PARTITIONS
    assert content(another_process(a)) == before
    newest = {p: files(a, "events", p)[0].max_timestamp for p in range(PARTITIONS)}
    assert newest == {p: max(f.max_timestamp for f in sources if f.partition == p) for p in range(PARTITIONS)}


def test_replaced_objects_stay_until_the_journals_grace() -> None:
    a = filled(4)
    before = {name_of(k) for k in named(a, "events")}
    ok(merge(a))
    assert dropped(a) == before
    assert stored(a) == before | {name_of(k) for k in named(a, "events")}


def test_with_nothing_to_merge_nothing_is_written() -> None:
    a = filled(3)
    assert not merge_due(a)
    writes = {k: n for k, n in store_of(a).requests.items() if k.startswith("put")}
    assert merge(a).objects_before == 0
    assert {k: n for k, n in store_of(a).requests.items() if k.startswith("put")} == writes


def test_a_dry_run_changes_nothing_and_reports_what_the_run_then_does() -> None:
    a = filled(6)
    keys = set(store_of(a).objects)
    planned = merge(a, dry_run=True)
    assert merge_due(a)
    assert set(store_of(a).objects) == keys
    done = merge(a)
    for name in ("objects_before", "objects_after", "records", "partitions", "bytes_read", "lost", "errors"):
        assert getattr(planned, name) == getattr(done, name)
    assert planned.bytes == planned.bytes_read  # an upper bound, since the merged size is unknown before the write
    assert not merge_due(a)


def test_one_topic_at_a_time_and_one_that_exists() -> None:
    a = a_cluster()
    a.controller.create_topic("other", PARTITIONS)
    fill(a, 4)
    fill(a, 4, topic="other")
    assert ok(merge(a, "other")).objects_before == 16
    assert counts(a) == [4] * PARTITIONS
    assert counts(a, "other") == [1] * PARTITIONS
    with pytest.raises(NotFoundError, match="'othe'"):
        merge(a, "othe")


def test_small_objects_are_merged_up_to_the_target() -> None:
    a = filled(8)
    before = content(a)
    size = files(a, "events", 0)[0].bytes
    ok(merge(a, rule=MergeRule(target_bytes=3 * size + 50)))
    assert all(2 <= n <= 4 for n in counts(a))
    assert content(a) == before


def test_large_objects_are_read_in_pieces_and_go_through_the_local_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    a = filled(6)
    before = content(a)
    monkeypatch.setattr(rewrite, "WHOLE_BYTES", 0)
    monkeypatch.setattr(parquet, "_LEAST_TAIL", 8)
    monkeypatch.setattr(write, "_ROW_GROUP_BYTES", 100)
    monkeypatch.setattr(write, "FILE_BYTES", 100)
    ok(merge(a))
    assert counts(a) == [1] * PARTITIONS  # a reconcile would have begun a second object
    assert content(a) == before
    merged = pq.ParquetFile(pa.BufferReader(store_of(a).objects[keys_of(a, 0)[0]].body))
    assert merged.num_row_groups > 1


def test_each_round_is_stamped_with_the_epoch_of_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    a = filled(4, journals=1)
    monkeypatch.setattr(runs, "ROUND_OBJECTS", 4)
    newest = a.controller.epoch(at_least=0)
    store_of(a).fault = ticking(a)
    ok(merge(a))
    stamps = [files(a, "events", p)[0].epoch for p in range(PARTITIONS)]
    assert stamps == sorted(set(stamps))
    assert stamps[0] >= newest


def ticking(a: ClusterHandles) -> Callable[[Call], None]:
    """Return a fault by which another process advances the epoch after each commit of a merge."""
    b = another_process(a)

    def fault(call: Call) -> None:
        if call.when == "after" and call.kind == "put_if_absent" and "/journal/" in call.key:
            b.controller.advance()

    return fault


def test_a_journal_is_shared_by_several_workers_and_each_partition_merged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    a = filled(4, journals=1)
    before = content(a)
    monkeypatch.setattr(runs, "SHARE_OBJECTS", 1)
    shares: list[int] = []
    merge_share = runs._merge_share

    def counted(*args: object) -> MergeResult:
        result = merge_share(*args)  # type: ignore[arg-type]
        shares.append(result.partitions)
        return result

    monkeypatch.setattr(runs, "_merge_share", counted)
    result = ok(merge(a))
    assert (result.objects_before, result.objects_after, result.partitions) == (16, 4, 4)
    assert len(shares) == 4
    assert max(shares) < 4
    assert content(a) == before


def on_cores(a: ClusterHandles, threads: Parallel) -> ClusterHandles:
    """Open another process that runs on these threads."""
    b = another_process(a)
    b.parallel = threads
    return b


@pytest.mark.parametrize("large", [False, True])
def test_partitions_are_merged_on_all_cores_and_no_more_at_once(large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    a = filled(4, journals=1)
    before = content(a)
    if large:
        monkeypatch.setattr(rewrite, "FETCH_BYTES", 0)
        monkeypatch.setattr(rewrite, "WHOLE_BYTES", 1)

    def two_at_once(work: Callable[..., Any]) -> Callable[..., Any]:
        both, at_work = threading.Barrier(2, timeout=20), list[int]()

        def counted(*arguments: Any) -> Any:
            at_work.append(1)
            both.wait()
            assert len(at_work) <= 2
            done = work(*arguments)
            both.wait()
            at_work.pop()
            return done

        return counted

    for name in ("_copied", "_checked"):
        monkeypatch.setattr(rewrite, name, two_at_once(getattr(rewrite, name)))
    with Parallel(8, cores=2) as threads:
        ok(merge(on_cores(a, threads)))
    assert counts(a) == [1] * PARTITIONS
    assert content(a) == before


def test_an_object_is_read_back_while_others_are_still_to_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    a, calls = filled(4, journals=1), list[str]()

    def noted(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            calls.append(name)
            return work(*arguments)

        return called

    for name in ("_copied", "_checked"):
        monkeypatch.setattr(rewrite, name, noted(name, getattr(rewrite, name)))
    ok(merge(a))
    assert calls == ["_copied", "_checked"] * PARTITIONS


def test_many_small_sources_of_a_large_merge_are_opened_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a thread on another core would wait for one request after another."""
    a = filled(4, journals=1, partitions=1)
    before = content(a)
    monkeypatch.setattr(rewrite, "FETCHED", 2)
    opened, both, opens = parquet.open_l1, threading.Barrier(2, timeout=20), itertools.count()

    def at_once(*arguments: Any, **named: Any) -> Any:
        if next(opens) < 4:
            both.wait()
        return opened(*arguments, **named)

    monkeypatch.setattr(rewrite, "open_l1", at_once)
    with Parallel(4, cores=2) as threads:
        ok(merge(on_cores(a, threads)))
    assert both.n_waiting == 0
    assert not both.broken
    assert content(a) == before


# -- concurrent processes -------------------------------------------------------------------------------------------------


def test_the_losing_merges_objects_are_left_to_vacuum() -> None:
    a = filled(4, journals=1)
    before = content(a)
    sources = stored(a)
    winner: list[MergeResult] = []
    store_of(a).fault = once(lambda: winner.append(merge(another_process(a))), "put_if_absent", "/journal/")
    loser = ok(merge(a))
    assert (winner[0].objects_before, winner[0].lost, winner[0].errors) == (16, 0, [])
    assert (loser.objects_before, loser.lost, loser.partitions) == (0, 4, 0)
    assert content(a) == before
    assert counts(a) == [1] * PARTITIONS
    assert dropped(a) == sources
    orphans = stored(a) - dropped(a) - {name_of(k) for k in named(a, "events")}
    assert len(orphans) == 4


def test_a_merge_of_vanished_sources_loses_without_reporting_damage() -> None:
    a = filled(4, journals=1)
    before = content(a)
    store_of(a).fault = once(lambda: merge_and_remove(a), "get", DATA)
    loser = ok(merge(a))
    assert (loser.objects_before, loser.lost) == (0, 4)
    assert content(a) == before


def test_a_reconcile_meanwhile_is_no_hindrance() -> None:
    a = filled(4, journals=1)
    store_of(a).fault = once(lambda: fill(another_process(a), 1, first=4), "put_if_absent", "/journal/")
    assert ok(merge(a)).objects_after == 4
    assert counts(a) == [2] * PARTITIONS
    assert [r["value"] for r in content(a)[1]][::3] == [b"1:%d" % n for n in range(5)]


def test_the_merge_of_a_topic_that_is_deleted_meanwhile_is_given_up() -> None:
    a = filled(4, journals=1)
    b = another_process(a)

    def delete() -> None:
        topic = b.controller.delete_topic("events")
        for journal in topic.journals:
            b.journal(journal).close(topic.revision, topic.topic_id)

    store_of(a).fault = once(delete, "put", DATA)
    result = ok(merge(a))
    assert (result.objects_before, result.lost) == (0, 4)


def test_a_merge_below_the_l1_fence_is_left_to_the_next_run() -> None:
    a = filled(4, journals=1)
    before = content(a)
    b = another_process(a)
    store_of(a).fault = once(lambda: b.journal(0).fence_l1(b.controller.advance()), "put_if_absent", "/journal/")
    result = merge(a)
    assert result.errors == []
    assert (result.objects_before, result.lost, counts(a)) == (0, PARTITIONS, [4] * PARTITIONS)
    assert ok(merge(a)).objects_before == 16
    assert content(a) == before


def test_a_topic_confused_by_a_restored_controller_is_not_merged() -> None:
    a = filled(4, journals=1)
    topic = a.controller.snapshot().topic("events")
    windows = windows_of(a.controller.snapshot(), None)
    another = msgspec.structs.replace(topic, topic_id="another")
    windows[0].topics[topic.revision] = another  # type: ignore[index]
    share = runs.Share(windows[0], {topic.revision: MergeRule()})
    assert runs._merge_share(threading.Event, a, share).objects_before == 0


def test_a_reader_continues_after_its_next_object_is_merged_away() -> None:
    """Hazard 19: the merge's sources are deleted between the reader's look at the journal and its read."""
    a = filled(4)
    reader = another_process(a, 3)
    store_of(a).fault = once(lambda: merge_and_remove(a), "get", DATA)
    found = list(read_topic(reader, reader.controller.snapshot().topic("events")))
    assert [(r.partition, r.offset) for r in found] == [(p, o) for p in range(PARTITIONS) for o in range(12)]
    assert [r.value for r in found[:12:3]] == [b"0:%d" % n for n in range(4)]


# -- killed merges --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("when", "every"), sampled([("before", 3), ("before", 1), ("after", 1)], [("before", 3)]))
def test_the_next_merge_completes_a_killed_one(when: str, every: int) -> None:
    whole = filled(4, journals=1, partitions=2)
    before = content(whole, partitions=2)
    at = 0
    while True:
        store = MemoryStore(store_of(whole).clock)
        store.objects = dict(store_of(whole).objects)
        made = [0]

        def fault(call: Call, made: list[int] = made, at: int = at) -> None:
            made[0] += call.when == when
            if call.when == when and made[0] == at + 1:
                raise CrashError

        killed, reader, later = (memory_cluster(store, seed=seed, bootstrap=False) for seed in (7, 8, 9))
        store.fault = fault
        with suppress(CrashError):
            merge(killed)
        store.fault = lambda call: None
        assert content(reader, partitions=2) == before
        assert merge(later).errors == []
        assert counts(reader, partitions=2) == [1, 1]
        assert content(reader, partitions=2) == before
        if made[0] <= at:
            break
        at += every
    assert at > 20


def test_a_commit_whose_reply_is_lost_counts_once() -> None:
    a = filled(4, journals=1)
    store_of(a).fault = lose_reply("/journal/")
    result = ok(merge(a))
    assert (result.objects_before, result.lost) == (16, 0)
    assert counts(a) == [1] * PARTITIONS


def test_an_unknown_merge_commit_is_reported_and_others_continue() -> None:
    a = filled(4, journals=2)
    before = content(a)
    land = JournalHandle.land

    def unknown(self: JournalHandle, entry: Edit, *, dry_run: bool) -> LandedEdit:
        landed = land(self, entry, dry_run=dry_run)
        if self.journal == 0:
            raise AppendOutcomeUnknownError("nobody knows")
        return landed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JournalHandle, "land", unknown)
        result = merge(a)
    assert result.errors == ["journal 0: nobody knows"]
    assert (result.objects_before, result.objects_after) == (8, 2)
    assert content(another_process(a)) == before
    assert merge(a).errors == []
    assert counts(a) == [1] * PARTITIONS


def test_a_silent_store_ends_the_merge_and_keeps_finished_work() -> None:
    a = filled(4, journals=2)
    first, second = (a.controller.snapshot().topic("events").id(p).path for p in (0, 2))
    store_of(a).fault = failing(StoreUnreachableError("the store is gone"), "put", second)
    with pytest.raises(StoreUnreachableError, match="the store is gone"):
        merge(a)
    store_of(a).fault = lambda call: None
    assert sorted(counts(a)) == [1, 1, 4, 4]
    assert first != second


# -- damage ---------------------------------------------------------------------------------------------------------------


def corrupted(store: MemoryStore, key: str, kind: str) -> None:
    body = store.objects[key].body
    if kind == "gone":
        del store.objects[key]
    elif kind == "cut":
        store.objects[key].body = body[:-1]
    else:
        at = len(body) // 4
        store.objects[key].body = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]


@pytest.mark.parametrize("kind", ["gone", "cut", "flipped"])
def test_a_damaged_source_is_reported_and_all_else_is_merged(kind: str) -> None:
    a = filled(4)
    key = keys_of(a, 1)[2]
    before = set(keys_of(a, 1))
    corrupted(store_of(a), key, kind)
    result = merge(a)
    [error] = result.errors
    assert error.startswith("partition events/1: ")
    assert key in error
    assert error.endswith("; its L1 objects stay as they are")
    assert counts(a) == [1, 4, 1, 1]
    assert set(keys_of(a, 1)) == before
    assert (result.partitions, result.lost) == (3, 0)


def test_an_unreadable_journal_is_reported_and_the_others_are_merged() -> None:
    a = filled(4, journals=2)
    key = max(k for k in store_of(a).objects if "journal/0001/log" in k)
    store_of(a).objects[key].body = b"?"
    b = another_process(a)
    assert merge_due(b)
    result = merge(b)
    [error] = result.errors
    assert error.startswith("journal 1: ")
    assert result.objects_before == 8
    assert merge_due(b)  # the next run that is due reports the damage


class Altering(MemoryStore):
    """A store that keeps other bytes of merged objects than it was sent."""

    def __init__(self, alter: Callable[[pa.Table], pa.Table]) -> None:
        super().__init__()
        self.alter = alter
        self.altering = False

    def put_bulk(self, key: str, body: bytes) -> None:
        if self.altering and key.startswith(DATA):
            body = l1_body(self.alter(pq.read_table(pa.BufferReader(body))), key)
        super().put_bulk(key, body)


def replaced(table: pa.Table, name: str, value: object) -> pa.Table:
    """Return the table with another value in its second row's column `name`."""
    at = table.schema.get_field_index(name)
    values = table.column(name).to_pylist()
    values[1] = value
    return table.set_column(at, table.schema.field(at), pa.array(values, table.schema.field(at).type))


ALTERED: dict[str, Callable[[pa.Table], pa.Table]] = {
    "a value": lambda t: replaced(t, "value", b"another"),
    "a key": lambda t: replaced(t, "key", b"another"),
    "no key": lambda t: replaced(t, "key", b""),
    "an epoch": lambda t: replaced(t, "epoch", 0),
    "a timestamp": lambda t: replaced(t, "timestamp", t.column("timestamp")[1].as_py().replace(year=2001)),
    "records that changed places": lambda t: t.set_column(
        3, t.schema.field(3), pa.array(t.column("value").to_pylist()[::-1], pa.binary())
    ),
}


@pytest.mark.parametrize("what", sorted(ALTERED))
def test_an_object_that_does_not_hold_what_was_read_is_not_committed(what: str) -> None:
    store = Altering(ALTERED[what])
    a = topic_in_memory(PARTITIONS, store=store)
    fill(a, 4)
    before, keys = content(a), named(a, "events")
    store.altering = True
    sizes = l1_file

    def of_its_size(row: object) -> L1File:
        """Record the size that the store has, since a wrong size would be refused first."""
        file = sizes(row)
        key = next((k for k in store.objects if file.name in k), None)
        return file if key is None else msgspec.structs.replace(file, bytes=len(store.objects[key].body))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewrite, "l1_file", of_its_size)
        result = merge(a)
    assert len(result.errors) == PARTITIONS
    assert all("does not hold the records of the 4 L1 objects that it should replace" in e for e in result.errors)
    assert named(a, "events") == keys
    assert content(a) == before


def test_the_hashes_do_not_depend_on_how_rows_are_cut_into_batches() -> None:
    schema = L1_SCHEMA

    def batch(keys: list[bytes | None], values: list[bytes]) -> pa.RecordBatch:
        n = len(keys)
        columns = [list(range(n)), [0] * n, keys, values, [1] * n]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def digest(*batches: pa.RecordBatch) -> dict[str, bytes]:
        hashes = Hashes()
        for b in batches:
            hashes.add(b)
        return hashes.digest()

    whole = batch([None, b"", b"a", None], [b"", b"bc", b"", b"d"])
    assert digest(whole) == digest(whole.slice(0, 1), whole.slice(1, 2), whole.slice(3))
    assert digest(whole) != digest(batch([b"", b"", b"a", None], [b"", b"bc", b"", b"d"]))
    assert digest(whole) != digest(batch([None, b"", b"a", None], [b"b", b"c", b"", b"d"]))


def test_nothing_is_deleted_by_a_merge() -> None:
    a = filled(8)
    deletes = store_of(a).requests["delete"]
    ok(merge(a))
    assert store_of(a).requests["delete"] == deletes


def test_a_restored_source_is_merged_later() -> None:
    a = filled(4)
    key = keys_of(a, 0)[0]
    kept = store_of(a).objects[key]
    del store_of(a).objects[key]
    problem = merge(a).problem
    assert problem is not None
    assert problem.exit_code == 3
    store_of(a).objects[key] = kept
    assert ok(merge(a)).objects_before == 4


def test_uploads_meanwhile_and_l0_are_not_touched() -> None:
    a = filled(4)
    put(a, "events", {0: [b"in L0"]})
    ok(merge(a))
    assert reconcile(a).records == 1
    assert content(a)[0][-1]["value"] == b"in L0"
