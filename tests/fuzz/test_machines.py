"""Payloads and checkpoints of any bytes, with a checksum that fits, are refused without any change, or give a state
that works.
"""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.errors import CorruptObjectError, L0gcError
from l0gc.storage.entry import StoredEntry, join_state, split_state
from l0gc.storage.replica import StateMachine
from l0gc.streamlog.controller.entries import (
    AlterDefaults,
    AlterTopic,
    Bootstrap,
    ControllerMachine,
    CreateTopic,
    DeleteTopic,
    ForgetTopics,
    InitProducer,
    Tick,
)
from l0gc.streamlog.controller.value_schema import evolved
from l0gc.streamlog.journal.admission import Admission
from l0gc.streamlog.journal.checkpoint import JournalMachine
from l0gc.streamlog.journal.entries import (
    EXPIRE,
    MERGE,
    RECONCILE,
    Advance,
    Barrier,
    Closed,
    ClosedTopic,
    FenceL1,
    JournalEntry,
    ObjectExtents,
    Objects,
    Purged,
    SetBack,
)
from l0gc.streamlog.journal.producers import InputSpan
from l0gc.streamlog.journal.rows import pack
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.values.schema_formats import columns_of
from tests.fuzz.mutations import MSGPACK, fuzzing, hostile, other_msgpack, refusal
from tests.support.journal import (
    REVISION,
    batch,
    bound_of,
    edit,
    extents_of,
    gc_epoch_of,
    give_up,
    l1_row,
    l1_rows,
    landed,
    reconciled,
    starts_of,
)

S = TypeVar("S")
OTHER = REVISION + 2
PARTITIONS = 4


def an_object(epoch: int, records: dict[int, int], sequence: int, revision: int = REVISION) -> ObjectExtents:
    span = InputSpan("in", sequence * 10, sequence * 10 + 10, 25, "0664c673bc62e0b6")
    producer = batch(sequence, producer_id=revision, inputs=[span])
    return extents_of(epoch, records, revision=revision, topic_id=f"id-{revision}", producer=producer)


def history() -> list[StoredEntry]:
    """Return entries of every kind, each of which follows those before it."""
    machine, state = JournalMachine(0), JournalState()
    entries: list[StoredEntry] = []

    def land(entry: JournalEntry) -> None:
        entries.append(landed(len(entries), entry, time_ms=1000 + len(entries)))
        machine.apply(state, entries[-1])

    land(Objects([an_object(4, {0: 2, 1: 3, 3: 1}, 0), an_object(4, {1: 5}, 1)]))
    land(Advance(5))
    land(Objects([an_object(6, {0: 1, 2: 7}, 0, OTHER), an_object(5, {0: 4}, 2)]))
    commit = reconciled(state, {0: 1, 1: 7})
    added, topic_id = commit.topics[0].change.added, commit.topics[0].topic_id
    land(edit(RECONCILE, 0, REVISION, topic_id, added=added))
    land(Barrier(8))
    land(Advance(9))
    land(Objects([extents_of(8, {2: 1}, revision=OTHER, topic_id=f"id-{OTHER}")]))
    land(Objects([extents_of(8, {0: 3}, revision=REVISION, topic_id=f"id-{REVISION}")]))
    land(reconciled(state, {0: 5}, epoch=8))
    land(reconciled(state, {0: 8}, epoch=8))
    replaced = state.topics[REVISION].l1_of(0)[1:]
    merged = l1_rows(l1_row(0, 2, 8, epoch=8, name=77))
    land(edit(MERGE, 8, REVISION, topic_id, removed=replaced, added=merged))
    land(edit(EXPIRE, 8, REVISION, topic_id, starts=starts_of({0: 2, 1: 8})))
    land(give_up({2: (0, 6)}, 8, OTHER, f"id-{OTHER}"))
    land(give_up({3: (0, 0)}, 8, REVISION, f"id-{REVISION}"))
    land(FenceL1(2))
    land(Purged(pack(state.dropped["name"][:2])))
    land(Closed([ClosedTopic(REVISION)]))
    land(SetBack(9, 1))
    return entries


JOURNAL = history()
CONTROLLER = [
    msgspec.msgpack.encode(e)
    for e in (
        Bootstrap("c", 4, journals=3),
        CreateTopic("a", 2, 2, "id-a"),
        Tick(1, "me"),
        InitProducer("p", 4, 0, -1, "run-0"),
        CreateTopic("b", 1, 1, "id-b"),
        DeleteTopic("a", 1),
        InitProducer("p", 4, 1, 0, "run-1"),
        AlterTopic("b", 4, 1000, -1),
        AlterTopic("b", 4, 1000, -1, evolved(None, columns_of('{"fields": [{"name": "a", "type": "int"}]}'))),
        AlterDefaults(-1, 5000),
        ForgetTopics([1]),
    )
]


def state_after(machine: StateMachine[S], entries: list[StoredEntry]) -> S:
    state = machine.initial()
    for e in entries:
        machine.apply(state, e)
    return state


def controller_entry(offset: int, payload: bytes) -> StoredEntry:
    return StoredEntry(offset, 1000 + offset, payload, 0)


def use(state: JournalState) -> None:
    """Use a state as the rest of l0gc does once it is accepted. Every refusal is an error of l0gc's."""
    for revision in (REVISION, OTHER, *state.topics):
        low = state.lowest(revision, 0, PARTITIONS, 2)
        assert [x.gc_epoch for x in low] == sorted(x.gc_epoch for x in low)
        assert state.topic(revision).totals().unreconciled_records >= 0
        for p in range(PARTITIONS):
            topic = state.topic(revision)
            view, extents, files = topic.view(p), topic.extents(p), topic.files(p)
            assert all(e.epoch > gc_epoch_of(state, revision, p) for e in extents)
            assert all(a.last_offset < b.base_offset for a, b in pairwise(extents))
            assert all(e.last_offset < view.next_offset for e in extents)
            assert all(a.last_offset + 1 == b.base_offset for a, b in pairwise(files))
    after = copy.deepcopy(state)
    admission = Admission(state.window, state.topics, state.producers, state.closed)
    for o in (an_object(9, {0: 1}, 3), extents_of(9, {1: 1, 2: 2}, revision=OTHER, topic_id=f"id-{OTHER}")):
        try:
            admission.admit(o)
            JournalMachine(0).apply(after, landed(50, Objects([o])))
        except L0gcError:
            continue
    for revision, topic in state.topics.items():
        rows, which = topic.l1_of(0), (revision, topic.topic_id)
        merged = l1_rows(l1_row(0, int(rows["base"][0]), int(rows["last"][-1]), epoch=9)) if len(rows) else rows
        entries: list[JournalEntry] = [
            *([reconciled(state, {0: 3}, revision=revision)] if topic.view(0).last_reconciled_offset < 3 else []),
            *([edit(MERGE, 9, *which, removed=rows, added=merged)] if len(rows) else []),
            edit(EXPIRE, 9, *which, starts=starts_of({0: 3, 1: 9})),
            give_up({0: (3, 8)}, 0, revision, topic.topic_id),
            Closed([ClosedTopic(revision)]),
        ]
        for entry in entries:
            try:
                JournalMachine(0).apply(copy.deepcopy(state), landed(50, entry))
            except L0gcError:
                continue
    assert len(state.is_dropped_before(10**18, 10**18)) == len(state.dropped)
    for revision in (REVISION, OTHER):
        assert state.has_named(revision, state.topic(revision).l1).all()


@fuzzing(80)
@given(st.data(), st.integers(0, len(JOURNAL) - 1))
def test_a_journal_entry_works_or_is_refused_without_any_change(data: st.DataObject, at: int) -> None:
    machine = JournalMachine(0)
    state = state_after(machine, JOURNAL[:at])
    before = machine.encode(state)
    body = data.draw(hostile(JOURNAL[at].payload, JOURNAL[at - 1].payload, MSGPACK))
    bounds = [bound_of(state, r, p) for r in (REVISION, OTHER) for p in range(PARTITIONS)]
    closed = [state.closed(r) for r in (REVISION, OTHER) for _ in range(PARTITIONS)]
    refused = refusal(lambda: machine.apply(state, StoredEntry(at, 5000, body, 0)))
    if refused:
        assert f"log/{at:020}" in refused
        assert machine.encode(state) == before
        return
    assert machine.encode(machine.decode(machine.encode(state), "x")) == machine.encode(state)
    after = [bound_of(state, r, p) for r in (REVISION, OTHER) for p in range(PARTITIONS)]
    assert all(a >= b for a, b, gone in zip(after, bounds, closed, strict=True) if not gone)
    assert state.previous_applied_epoch <= state.max_applied_epoch
    use(state)


@fuzzing(150)
@given(st.data(), st.integers(0, len(CONTROLLER) - 1))
def test_a_controller_entry_works_or_is_refused_without_any_change(data: st.DataObject, at: int) -> None:
    machine = ControllerMachine()
    state = state_after(machine, [controller_entry(i, p) for i, p in enumerate(CONTROLLER[:at])])
    before = machine.encode(state)
    body = data.draw(hostile(CONTROLLER[at], CONTROLLER[at - 1], MSGPACK))
    refused = refusal(lambda: machine.apply(state, StoredEntry(at, 5000, body, 0)))
    if refused:
        assert f"entry {at}" in refused
        assert machine.encode(state) == before
        return
    assert machine.decode(machine.encode(state), "x") == state
    assert state.epoch == at


@fuzzing(80)
@given(st.data())
def test_a_journal_checkpoint_works_or_is_refused(data: st.DataObject) -> None:
    machine = JournalMachine(0)
    body = machine.encode(state_after(machine, JOURNAL[:-1]))
    other = machine.encode(state_after(machine, JOURNAL[:3]))
    (head, rest), (other_head, other_rest) = split_state(body), split_state(other)
    heads = hostile(head, other_head, MSGPACK) | other_msgpack(head) | st.just(head)
    rests = hostile(rest, other_rest, MSGPACK) | st.just(rest)
    changed = join_state(data.draw(heads), data.draw(rests))
    refused = refusal(lambda: machine.decode(changed, "the/key"))
    if refused:
        assert "the/key" in refused
        return
    state = machine.decode(changed, "the/key")
    if machine.lacks(state):
        return  # the second part was taken away, or is empty
    again = machine.encode(state)
    assert machine.encode(machine.decode(again, "x")) == again
    use(state)


@fuzzing(120)
@given(st.data())
def test_a_controller_checkpoint_is_read_or_refused(data: st.DataObject) -> None:
    machine = ControllerMachine()
    entries = [controller_entry(i, p) for i, p in enumerate(CONTROLLER)]
    body = machine.encode(state_after(machine, entries))
    other = machine.encode(state_after(machine, entries[:3]))
    changed = join_state(data.draw(hostile(split_state(body)[0], split_state(other)[0], MSGPACK)))
    refused = refusal(lambda: machine.decode(changed, "the/key"))
    if refused:
        assert "the/key" in refused
        return
    state = machine.decode(changed, "the/key")
    assert machine.decode(machine.encode(state), "x") == state
    assert state.partition_count >= 0
    assert set(state.journals_in_use()) <= set(range(state.journals))


@fuzzing(80)
@given(st.binary(max_size=40))
def test_bytes_that_are_no_two_parts_are_refused(body: bytes) -> None:
    for machine in (JournalMachine(0), ControllerMachine()):
        assert "the/key" in refusal(lambda machine=machine: machine.decode(body, "the/key"))  # type: ignore[misc]


@pytest.mark.parametrize("machine", [JournalMachine(0), ControllerMachine()], ids=["journal", "controller"])
def test_what_is_nested_too_deep_is_refused(machine: StateMachine[object]) -> None:
    deep = b"\x92\xa1a" + b"\x91" * 100_000
    with pytest.raises(CorruptObjectError):
        machine.apply(machine.initial(), StoredEntry(0, 0, deep, 0))
    with pytest.raises(CorruptObjectError):
        machine.decode(b"\x91" * 100_000, "the/key")


def test_a_checkpoint_of_another_journal_is_refused() -> None:
    body = JournalMachine(1).encode(JournalState())
    assert "the/key" in refusal(lambda: JournalMachine(0).decode(body, "the/key"))


def test_numbers_at_their_ends_make_no_state_that_is_wrong() -> None:
    """A partition, an offset or an epoch as large as allowed overflows nothing."""
    machine, state = JournalMachine(0), JournalState()
    most = 2**31 - 1
    machine.apply(state, landed(0, Objects([extents_of(most, {most: most})])))
    machine.apply(state, landed(1, Objects([extents_of(most, {0: 1, most: most - 1})])))
    assert state.topic(REVISION).view(most).next_offset == 2 * most - 1
    assert state.lowest(REVISION, most, 1, 1)[0].partition == most
    assert machine.encode(machine.decode(machine.encode(state), "x")) == machine.encode(state)
    with pytest.raises(CorruptObjectError):
        machine.apply(state, landed(2, Objects([extents_of(most, {0: most, 1: most})])))
