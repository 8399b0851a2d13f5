"""Evacuation in the state machine: which records move, and that nothing else about them changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l0gc.errors import CorruptObjectError, SafetyError, UsageError
from l0gc.streamlog.journal.checkpoint import JournalMachine
from l0gc.streamlog.journal.entries import (
    Advance,
    Barrier,
    Closed,
    ClosedTopic,
    Expired,
    ExpiredTopic,
    Moved,
    MovedBlocks,
    SetBack,
)
from l0gc.streamlog.journal.moves import movable
from l0gc.streamlog.journal.rows import NUMBER, OFFSET, pack
from l0gc.streamlog.journal.topic import Extent
from tests.support.journal import (
    REVISION,
    TOPIC_ID,
    Journal,
    bound_of,
    extents_of,
    journal_of,
    key_of,
    moved_part,
    of_topic,
)

MACHINE = JournalMachine(0)
COPY = key_of(20, 1)


def blocks(*numbers: int) -> bytes:
    return pack(np.array(numbers, NUMBER))


def journal() -> Journal:
    """Partitions 0 to 3 at epoch 4, two in a block, then partition 0 at epoch 5; the window is [9, 10]."""
    j = Journal()
    j.land(extents_of(4, {0: 2, 1: 3, 2: 1, 3: 4}), time_ms=1000)
    j.land(extents_of(5, {0: 1}), time_ms=2000)
    j.apply(Advance(9), time_ms=3000)
    j.apply(Advance(10), time_ms=3000)
    return j


def part(j: Journal, at: int = 0, **more: Any) -> MovedBlocks:
    return moved_part(j.state.topic(REVISION).objects[at], **{"key": COPY, **more})


def extents(j: Journal) -> list[Extent]:
    return [e for p in range(4) for e in j.state.topic(REVISION).extents(p)]


def test_a_move_changes_where_records_are_and_how_low_the_bound_is_and_nothing_else() -> None:
    j = journal()
    before, views = extents(j), [j.state.topic(REVISION).view(p) for p in range(4)]
    window = j.state.window, j.state.window_offset
    j.apply(Moved([part(j, start=700)]), time_ms=5000)
    assert (j.state.window, j.state.window_offset) == window
    assert [j.state.topic(REVISION).view(p) for p in range(4)] == views
    for was, now in zip(before, extents(j), strict=True):
        assert (was.partition, was.row, was.records, was.base_offset, was.log_offset) == (
            now.partition, now.row, now.records, now.base_offset, now.log_offset,
        )  # fmt: skip
        assert (was.block.crc32c, was.block.length, was.block.bytes, was.block.time_ms) == (
            now.block.crc32c, now.block.length, now.block.bytes, now.block.time_ms,
        )  # fmt: skip
        if was.epoch == 4:
            assert (now.key, now.epoch, now.block.start) == (COPY, 20, was.block.start + 700)
    assert {o.uploaded_epoch for o in j.state.topic(REVISION).objects} == {4, 5}
    assert [bound_of(j.state, REVISION, p) for p in range(4)] == [5, 9, 9, 9]


def test_the_copys_epoch_counts_for_the_bound_once_the_window_has_passed_it() -> None:
    j = journal()
    j.apply(Moved([part(j, 0), part(j, 1, start=900)]))
    j.apply(Barrier(30))
    assert [bound_of(j.state, REVISION, p) for p in range(4)] == [20] * 4


def test_what_was_reconciled_meanwhile_stays_gone_and_the_rest_of_its_object_moves() -> None:
    j = journal()
    planned = part(j)
    j.reconcile({1: 2})
    j.apply(Moved([planned]))
    assert [e.partition for e in extents(j) if e.key == COPY] == [0, 2, 3]
    assert not j.state.topic(REVISION).extents(1)


def test_what_was_expired_meanwhile_stays_gone() -> None:
    j = journal()
    planned = part(j)
    starts = pack(np.array([0, 1], NUMBER)), pack(np.array([2, 3], OFFSET))
    j.apply(Expired([ExpiredTopic(REVISION, TOPIC_ID, *starts)]))
    j.apply(Moved([planned]))
    assert [e.partition for e in extents(j) if e.key == COPY] == [2, 3]


def test_a_block_of_an_object_may_stay_where_it_is() -> None:
    j = journal()
    j.apply(Moved([part(j, blocks=blocks(1))]))
    assert [(e.partition, e.key == COPY) for e in extents(j)] == [
        (0, False),
        (0, False),
        (1, False),
        (2, True),
        (3, True),
    ]
    assert bound_of(j.state, REVISION, 0) == 4
    assert bound_of(j.state, REVISION, 3) == 9


@pytest.mark.parametrize("what", ["reconciled", "closed", "another topic", "moved by another", "set back"])
def test_a_part_of_which_nothing_is_left_is_left_out_and_the_others_land(what: str) -> None:
    j = journal()
    planned, other = part(j), part(j, 1, start=900)
    match what:
        case "reconciled":
            j.reconcile({0: 1, 1: 2, 2: 0, 3: 3})
        case "closed":
            j.apply(Closed([ClosedTopic(REVISION)]))
        case "another topic":
            planned = part(j, topic_id="that was created again")
        case "moved by another":
            j.apply(Moved([part(j, key=key_of(21), epoch=21)]))
        case "set back":
            j.apply(SetBack(21, 1))
    everything = what in ("closed", "set back")
    assert movable(j.state.topics, j.state.kept_below, [planned, other]) == ([] if everything else [other])
    before = MACHINE.encode(j.state)
    with pytest.raises(CorruptObjectError, match="should never have landed"):
        j.apply(Moved([planned, other]))
    assert MACHINE.encode(j.state) == before


def test_a_landing_that_is_repeated_is_left_out() -> None:
    j = journal()
    planned = part(j)
    j.apply(Moved([planned]))
    assert movable(j.state.topics, 0, [planned]) == []


def test_a_landing_that_is_repeated_is_left_out_where_other_blocks_stayed() -> None:
    j = journal()
    planned = part(j, blocks=blocks(1))
    j.apply(Moved([planned]))
    assert movable(j.state.topics, 0, [planned]) == []


def test_a_copy_can_be_moved_again_part_by_part_and_keeps_the_first_epoch() -> None:
    j = journal()
    j.apply(Moved([part(j, 0), part(j, 1, start=900)]))
    j.apply(Moved([part(j, 1, key=key_of(22), epoch=22)]))
    assert [(o.key, o.epoch, o.uploaded_epoch) for o in j.state.topic(REVISION).objects] == [
        (COPY, 20, 4),
        (key_of(22), 22, 5),
    ]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epoch": 4}, "not above 4"),
        ({"epoch": 3}, "not above 4"),
        ({"epoch": -1}, "cannot be"),
        ({"key": ""}, "cannot be"),
        ({"start": -1}, "cannot be"),
        ({"blocks": b""}, "ascending"),
        ({"blocks": blocks(1, 0)}, "ascending"),
        ({"blocks": blocks(-1)}, "ascending"),
        ({"blocks": blocks(0, 7)}, "never in it"),
        ({"key": key_of(5), "epoch": 20}, "named twice"),
    ],
)
def test_what_cannot_be_meant_is_refused(wrong: dict[str, Any], message: str) -> None:
    j = journal()
    with pytest.raises(UsageError, match=message):
        movable(j.state.topics, 0, [part(j, **wrong)])
    with pytest.raises(CorruptObjectError, match=message):
        j.apply(Moved([part(j, **wrong)]))


def test_an_entry_that_names_a_source_or_a_place_twice_or_nothing_is_refused() -> None:
    j = journal()
    for parts in ([part(j), part(j, start=5)], [part(j, 0), part(j, 1)], []):
        with pytest.raises(CorruptObjectError):
            j.apply(Moved(parts))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["land", "move", "late move", "reconcile", "advance"]), max_size=25), st.randoms())
def test_after_any_history_records_are_where_they_were_before_without_moves(steps: list[str], chance: object) -> None:
    """The same history without moves: the same offsets, times and uploads' epochs; the bound is never lower."""
    import random

    assert isinstance(chance, random.Random)
    moved, plain = Journal(), Journal()
    epoch, late, number = REVISION, list[MovedBlocks](), 0
    for step in steps:
        epoch += step == "advance"
        topic = moved.state.topics.get(REVISION)
        match step:
            case "land":
                number += 1
                new = extents_of(epoch, {p: chance.randint(1, 3) for p in range(chance.randint(1, 4))}, key=f"{number}")
                for j in (moved, plain):
                    j.land(new, time_ms=number)
            case "advance":
                for j in (moved, plain):
                    j.apply(Advance(epoch), time_ms=number)
            case "reconcile" if topic is not None and topic.objects:
                e = topic.extents(int(chance.choice(topic.objects).extents["partition"][0]))[0]
                for j in (moved, plain):
                    j.reconcile({e.partition: e.last_offset})
            case "move" | "late move" if topic is not None and topic.objects:
                number += 1
                o = chance.choice(topic.objects)
                numbers = o.needed.tolist()
                some = blocks(*sorted(chance.sample(numbers, chance.randint(1, len(numbers)))))
                if o.epoch < epoch:
                    late.append(moved_part(o, f"{number}", epoch, blocks=some))
                for p in movable(moved.state.topics, 0, late[-1:]) if step == "move" else ():
                    moved.apply(Moved([p]), time_ms=number)
        if late and chance.random() < 0.3:
            p = chance.choice(late)
            for left in movable(moved.state.topics, 0, [p]) if p.epoch else ():
                moved.apply(Moved([left]), time_ms=number)
        told = [[(e.base_offset, e.records, e.row, e.block.crc32c, e.block.time_ms) for p in range(4)
                 for e in j.state.topic(REVISION).extents(p)] for j in (moved, plain)]  # fmt: skip
        assert told[0] == told[1]
        assert all(bound_of(moved.state, REVISION, p) >= bound_of(plain.state, REVISION, p) for p in range(4))
        for o in moved.state.topic(REVISION).objects:
            assert all(bound_of(moved.state, REVISION, int(p)) <= o.epoch for p in o.extents["partition"])
        body = MACHINE.encode(moved.state)
        assert MACHINE.encode(MACHINE.decode(body, "x")) == body


# -- the handle -------------------------------------------------------------------------------------------------------------


def test_a_handle_moves_what_is_there_and_counts_again_what_it_moved_before() -> None:
    cluster, topic, handle = journal_of(2)
    epoch = topic.revision
    handle.append([of_topic(topic, epoch, {0: 2, 1: 3})])
    cluster.controller.advance()
    o = handle.catch_up().topic(topic.revision).objects[0]
    p = moved_part(o, COPY, epoch + 1, revision=topic.revision, topic_id=topic.topic_id)
    assert handle.move([p]) == {(COPY, 0): 2}
    end = handle.replica.offset
    assert handle.move([p]) == {(COPY, 0): 2}
    gone = moved_part(o, key_of(9), epoch + 1, revision=topic.revision, topic_id=topic.topic_id)
    assert handle.move([gone]) == {(key_of(9), 0): 0}
    assert handle.replica.offset == end


def test_a_copy_above_the_cluster_epoch_is_refused() -> None:
    _, topic, handle = journal_of()
    handle.append([of_topic(topic, topic.revision)])
    o = handle.state.topic(topic.revision).objects[0]
    with pytest.raises(SafetyError):
        handle.move([moved_part(o, COPY, topic.revision + 1, revision=topic.revision, topic_id=topic.topic_id)])


def test_more_than_an_entry_holds_goes_into_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("l0gc.streamlog.journal.handle.ENTRY_BYTES", 500)
    cluster, topic, handle = journal_of()
    for n in range(5):
        handle.append([of_topic(topic, topic.revision, key=key_of(topic.revision, n))])
    cluster.controller.advance()
    end = handle.replica.offset
    parts = [
        moved_part(o, COPY, topic.revision + 1, n, revision=topic.revision, topic_id=topic.topic_id)
        for n, o in enumerate(handle.state.topic(topic.revision).objects)
    ]
    assert list(handle.move(parts).values()) == [1] * 5
    assert handle.replica.offset == end + 3
