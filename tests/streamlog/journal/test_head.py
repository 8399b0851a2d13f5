"""A reader of a journal's offsets skips the L1 rows of a large checkpoint, and decides the same without them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from fnmatch import fnmatchcase

import pytest

from l0gc.errors import CorruptObjectError, ProtocolError
from l0gc.keys import journal_log
from l0gc.storage.entry import Place
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.journal.checkpoint import JournalMachine
from l0gc.streamlog.journal.entries import EXPIRE, MERGE, Edit
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.journal.summary import summary_of
from tests.support.journal import edit, journal_of, key_of, l1_row, l1_rows, of_topic, reconciled, starts_of
from tests.support.memory_store import Call, another_process, store_of

MACHINE = JournalMachine(0)
CHECKPOINTS = f"{journal_log(0)}checkpoint/"


@pytest.fixture(autouse=True)
def first_part_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every checkpoint count as large."""
    monkeypatch.setattr("l0gc.storage.log.READ_AT_ONCE", 64)


class Lists:
    """A journal with L1 objects and a checkpoint; `another` opens it in another process."""

    def __init__(self) -> None:
        self.cluster, self.topic, self.handle = journal_of(4)
        self.number = 0
        self.lift(3)
        self.handle.replica.write_checkpoint()

    def land(self) -> None:
        self.number += 1
        epoch = self.cluster.controller.epoch()
        offered = of_topic(self.topic, epoch, dict.fromkeys(range(4), 5), key=key_of(epoch, self.number))
        assert self.handle.append([offered]).error is None

    def lift(self, times: int = 1) -> None:
        for _ in range(times):
            self.land()
            ends = {p: self.handle.state.topic(self.topic.revision).view(p).next_offset - 1 for p in range(4)}
            self.change(reconciled(self.handle.state, ends, revision=self.topic.revision, epoch=self.number))

    def merge(self, partition: int, name: int) -> None:
        rows = self.handle.state.topic(self.topic.revision).l1_of(partition)[:2]
        merged = l1_row(partition, int(rows["base"][0]), int(rows["last"][-1]), epoch=self.number, name=name)
        which = self.topic.revision, self.topic.topic_id
        self.change(edit(MERGE, self.number, *which, removed=rows, added=l1_rows(merged)))

    def expire(self, partition: int, start: int) -> None:
        which = self.topic.revision, self.topic.topic_id
        self.change(edit(EXPIRE, self.number, *which, starts=starts_of({partition: start})))

    def change(self, entry: Edit) -> None:
        assert self.handle.land(entry).refused == {}

    def another(self, seed: int = 1) -> JournalHandle:
        return another_process(self.cluster, seed).journal(0)


def lacks(handle: JournalHandle) -> bool:
    return MACHINE.lacks(handle.replica.peek())


def sums(state: JournalState, topic: Topic) -> tuple[object, ...]:
    """Return the values that a reader of the head must find equal to those of the whole state."""
    known, partition_range = state.topic(topic.revision), topic.partition_ranges()[0]
    views = tuple(known.view(p) for p in range(topic.partitions))
    return (
        known.totals(),
        views,
        state.dropped.tobytes(),
        summary_of(0, [(topic, partition_range)], state, Place(7, "id")),
    )


def reads(cluster: ClusterHandles, of: str = "get") -> Counter[str]:
    """Return a counter of the reads of checkpoints from now on; `of` selects the kind of request."""
    found = Counter[str]()

    def watch(call: Call) -> None:
        if call.when == "before" and call.kind == of and fnmatchcase(call.key, f"{CHECKPOINTS}*"):
            found[call.key] += 1

    store_of(cluster).fault = watch
    return found


def test_a_head_has_the_states_offsets_and_sums_without_rows() -> None:
    w = Lists()
    other = w.another()
    assert sums(other.head, w.topic) == sums(w.handle.state, w.topic)
    assert lacks(other)
    known = other.head.topic(w.topic.revision)
    reads_of: list[Callable[[], object]] = [lambda: known.l1, lambda: known.l1_of(0), lambda: known.files(0)]
    for read in reads_of:
        with pytest.raises(ProtocolError, match="were not read with their journal's state"):
            read()
    assert MACHINE.encode(other.state) == MACHINE.encode(w.handle.state)
    assert not lacks(other)


def test_a_head_follows_reconciles_and_merges_but_an_expiry_needs_rows() -> None:
    w = Lists()
    other = w.another()
    _ = other.head
    w.lift()
    w.merge(0, 900)
    assert sums(other.catch_up(whole=False), w.topic) == sums(w.handle.state, w.topic)
    assert lacks(other)
    w.expire(1, 7)
    assert sums(other.catch_up(whole=False), w.topic) == sums(w.handle.state, w.topic)
    assert not lacks(other)


def test_the_end_of_a_topic_drops_each_row_also_of_a_head() -> None:
    w = Lists()
    other = w.another()
    _ = other.head
    assert other.close(w.topic.revision, w.topic.topic_id)
    assert len(other.head.dropped) == len(w.handle.catch_up().dropped) == 12
    assert MACHINE.encode(other.head) == MACHINE.encode(w.handle.state)


def test_an_append_an_advance_and_a_fence_read_no_rows() -> None:
    w = Lists()
    other = w.another()
    epoch = w.cluster.controller.advance()
    offered = of_topic(w.topic, epoch, {0: 3}, key=key_of(epoch, 77))
    assert other.append([offered]).error is None
    assert other.advance(w.cluster.controller.advance())
    assert other.fence_l1(2) == 2
    assert lacks(other)


def test_an_edit_is_checked_by_the_rows_and_not_by_a_head() -> None:
    """Hazard 24: the edit is checked against the rows, which a head lacks."""
    w = Lists()
    other = w.another()
    _ = other.head
    rows = w.handle.state.topic(w.topic.revision).l1_of(0)[:2].copy()
    rows["bytes"][0] += 1
    merged = l1_row(0, int(rows["base"][0]), int(rows["last"][-1]), epoch=9, name=900)
    which = w.topic.revision, w.topic.topic_id
    refused = other.land(edit(MERGE, 9, *which, removed=rows, added=l1_rows(merged))).refused
    assert list(refused) == [(w.topic.revision, 0)]


def test_a_checkpoint_is_written_of_the_whole_state() -> None:
    """Hazard 18: a checkpoint written from a head would lose the rows."""
    w = Lists()
    other = w.another()
    w.lift()
    other.catch_up(whole=False)
    assert lacks(other)
    at = other.replica.write_checkpoint()
    kept = other.replica.log.get_checkpoint(at)
    assert kept.payload == MACHINE.encode(w.handle.state)


def test_a_head_whose_checkpoint_is_gone_replays_the_log() -> None:
    w = Lists()
    other = w.another()
    _ = other.head
    (old,) = [k for k in store_of(w.cluster).objects if k.startswith(CHECKPOINTS)]
    w.lift()
    w.handle.replica.write_checkpoint()
    store_of(w.cluster).delete([old])
    assert MACHINE.encode(other.state) == MACHINE.encode(w.handle.state)


def test_a_checkpoint_that_goes_while_entries_are_read_applies_none_twice() -> None:
    w = Lists()
    other = w.another()
    _ = other.head
    (old,) = [k for k in store_of(w.cluster).objects if k.startswith(CHECKPOINTS)]
    w.expire(1, 7)
    w.lift()
    w.handle.replica.write_checkpoint()
    store_of(w.cluster).delete([old])
    w.lift()
    assert sums(other.catch_up(whole=False), w.topic) == sums(w.handle.state, w.topic)
    assert MACHINE.encode(other.state) == MACHINE.encode(w.handle.state)


def test_a_second_part_that_was_damaged_stops_only_who_reads_it() -> None:
    w = Lists()
    (key,) = [k for k in store_of(w.cluster).objects if k.startswith(CHECKPOINTS)]
    o = store_of(w.cluster).objects[key]
    o.body = o.body[:-1] + bytes([o.body[-1] ^ 1])
    other = w.another()
    assert sums(other.head, w.topic) == sums(w.handle.state, w.topic)
    with pytest.raises(CorruptObjectError, match="does not match its checksum"):
        _ = other.state


def test_a_small_checkpoint_is_read_whole_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("l0gc.storage.log.READ_AT_ONCE", 1 << 18)
    w = Lists()
    other, found = w.another(), reads(w.cluster)
    _ = other.head
    assert not lacks(other)
    assert found.total() == 1


@pytest.mark.parametrize("seed", range(6))
def test_after_any_history_a_completed_head_equals_a_full_replay(seed: int) -> None:
    chance, w = random.Random(seed), Lists()
    other = w.another(seed + 10)
    for n in range(25):
        known = w.handle.state.topic(w.topic.revision)
        p, roll = chance.randrange(4), chance.random()
        view = known.view(p)
        if roll < 0.3:
            w.lift()
        elif roll < 0.6 and len(known.l1_of(p)) > 2:
            w.merge(p, 1000 + n)
        elif roll < 0.7 and view.next_offset > view.log_start_offset:
            w.expire(p, chance.randrange(view.log_start_offset + 1, view.next_offset + 1))
        elif roll < 0.8 and len(w.handle.state.dropped):
            w.handle.purge([bytes(w.handle.state.dropped["name"][0])])
        elif roll < 0.9:
            w.handle.replica.write_checkpoint()
            other = w.another(seed + 100 + n)
        assert sums(other.catch_up(whole=False), w.topic) == sums(w.handle.catch_up(), w.topic)
        if chance.random() < 0.1:
            assert MACHINE.encode(other.state) == MACHINE.encode(w.handle.state)
