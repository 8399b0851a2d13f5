"""Shared L1 objects in the journal's state machine: when they are listed, when they are dropped, and which edits are
refused.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from l0gc.errors import CorruptObjectError, UsageError
from l0gc.streamlog.controller.state import ControllerState
from l0gc.streamlog.garbage import amounts_of
from l0gc.streamlog.journal.checkpoint import JournalMachine
from l0gc.streamlog.journal.edits import NAMED_TWICE, NOT_SHARED, fits
from l0gc.streamlog.journal.entries import (
    DRAIN,
    EXPIRE,
    MERGE,
    RECONCILE,
    Closed,
    ClosedTopic,
    Edit,
    EditedTopic,
    FenceL1,
    Purged,
)
from l0gc.streamlog.journal.rows import NAME, pack
from l0gc.streamlog.journal.shared import LEFT, NAMED, UNLANDED, SharedObject, unpack_shared
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.journal.topic import TopicState
from tests.support.journal import (
    REVISION,
    TOPIC_ID,
    Journal,
    edit,
    extents_of,
    l1_row,
    l1_rows,
    shared_object,
    starts_of,
)

MACHINE = JournalMachine(0)


def lifted(*objects: SharedObject, epoch: int = 5) -> Edit:
    return Edit(RECONCILE, epoch, [EditedTopic.of(REVISION, TOPIC_ID, objects)])


def drained(*rows: tuple[int, int, int], epoch: int = 5, name: int = 100) -> Edit:
    """Return a drain of runs of records, each given as partition, first and last offset."""
    found = (l1_row(p, base, last, epoch=epoch, name=name + n) for n, (p, base, last) in enumerate(rows))
    return edit(DRAIN, epoch, added=l1_rows(*found))


def refused(state: JournalState, e: Edit) -> dict[int, str]:
    return {partition: why for (_, partition), why in fits(state, e).items()}


def topic_of(j: Journal) -> TopicState:
    return j.state.topics[REVISION]


def names(j: Journal) -> list[int]:
    return [uuid.UUID(bytes=o.name).int for o in topic_of(j).shared]


def dropped(j: Journal) -> list[int]:
    return [uuid.UUID(bytes=bytes(name)).int for name in j.state.dropped["name"]]


def two_rounds() -> Journal:
    """Lift two records of each of three partitions into each of two shared objects; leave the third L0 object's in L0."""
    j = Journal()
    for _ in range(3):
        j.land(extents_of(5, {0: 2, 1: 2, 2: 2}))
    j.apply(lifted(shared_object(dict.fromkeys(range(3), (0, 1)))), time_ms=10)
    j.apply(lifted(shared_object(dict.fromkeys(range(3), (2, 3)), name=2)), time_ms=20)
    return j


# -- the list of shared objects --------------------------------------------------------------------------------------------


def test_a_commit_lists_rows_of_a_shared_object_and_lifts_their_extents() -> None:
    j = two_rounds()
    topic = topic_of(j)
    assert names(j) == [1, 2]
    assert topic.reconciled.tolist() == [3, 3, 3]
    assert [(o.time_ms, o.partitions.tolist()) for o in topic.shared] == [(10, [0, 1, 2]), (20, [0, 1, 2])]
    assert [(e.base_offset, e.last_offset) for e in topic.extents(1)] == [(4, 5)]
    listed = topic.all_rows()
    assert [listed[c].tolist() for c in ("partition", "base", "last")] == [
        [0, 0, 1, 1, 2, 2],
        [0, 2, 0, 2, 0, 2],
        [1, 3, 1, 3, 1, 3],
    ]
    assert topic.totals().l1_objects == 2
    assert topic.totals().l1_bytes == 400


def test_a_shared_object_has_the_places_of_its_records_in_blocks() -> None:
    o = shared_object({0: (0, 2), 3: (5, 5), 7: (1, 4)})
    assert o.extents()[["partition", "block", "row", "records", "base"]].tolist() == [
        (0, 0, 0, 3, 0),
        (3, 0, 3, 1, 5),
        (7, 1, 0, 4, 1),
    ]
    left = o.only(np.array([False, True, True])).extents()
    assert left[["partition", "block", "row"]].tolist() == [(3, 0, 3), (7, 1, 0)]


def test_a_shared_row_begins_behind_the_lro_and_ends_with_an_extent() -> None:
    j = two_rounds()
    wrong = shared_object({0: (4, 4), 1: (3, 5), 2: (4, 5)}, name=3)
    found = refused(j.state, lifted(wrong))
    assert set(found) == {0, 1}
    assert "3 is not next" in found[1]
    rest = lifted(wrong).without({(REVISION, 0), (REVISION, 1)})
    assert rest is not None
    j.apply(rest)
    assert topic_of(j).shared[-1].flags.tolist() == [UNLANDED, UNLANDED, NAMED]
    assert topic_of(j).reconciled.tolist() == [3, 3, 5]


def test_own_objects_may_follow_shared_rows_and_the_other_way() -> None:
    j = two_rounds()
    j.apply(edit(RECONCILE, 5, added=l1_rows(l1_row(1, 4, 5, epoch=5, name=50))))
    j.land(extents_of(5, {1: 1}))
    j.apply(lifted(shared_object({1: (6, 6)}, name=3)))
    rows = topic_of(j).all_rows()
    assert rows["base"][rows["partition"] == 1].tolist() == [0, 2, 4, 6]
    assert MACHINE.decode(MACHINE.encode(j.state), "it").topics[REVISION].all_rows().tobytes() == rows.tobytes()


# -- rule 1: an object is listed while one of its rows is named ------------------------------------------------------------


def test_a_shared_object_is_dropped_with_its_last_row() -> None:
    j = two_rounds()
    j.apply(drained((0, 0, 3), (1, 0, 1)))
    assert (names(j), dropped(j)) == ([1, 2], [])
    assert [o.partitions.tolist() for o in topic_of(j).shared] == [[2], [1, 2]]
    j.apply(edit(EXPIRE, 5, starts=starts_of({2: 2})))
    assert (names(j), dropped(j)) == ([2], [1])
    j.apply(drained((1, 2, 3), (2, 2, 3), name=200))
    assert (names(j), dropped(j)) == ([], [1, 2])
    assert topic_of(j).all_rows()["last"].tolist() == [3, 1, 3, 3]
    assert j.state.dropped["partition"].tolist() == [-1, -1]


def test_bytes_of_rows_that_left_are_dead_until_their_object_is_dropped() -> None:
    j = two_rounds()
    j.apply(drained((0, 0, 3)))
    assert topic_of(j).totals().dead_bytes == 100
    assert amounts_of(ControllerState(), [j.state, j.state]).dead_bytes == 200


def test_a_deleted_topic_drops_its_shared_objects() -> None:
    j = two_rounds()
    j.apply(Closed([ClosedTopic(REVISION)], 5))
    assert dropped(j) == [1, 2]


# -- rule 2: no edit names a dropped shared object again -------------------------------------------------------------------


def partly_landed() -> tuple[Journal, Edit]:
    """Return a commit that landed for partition 0 alone; partition 1's earlier records are lifted by another run
    afterwards.
    """
    j = Journal()
    j.land(extents_of(5, {1: 1}))
    j.land(extents_of(5, {0: 2, 1: 2}))
    commit = lifted(shared_object({0: (0, 1), 1: (1, 2)}))
    assert set(refused(j.state, commit)) == {1}
    rest = commit.without({(REVISION, 1)})
    assert rest is not None
    j.apply(rest)
    j.apply(edit(RECONCILE, 5, added=l1_rows(l1_row(1, 0, 0, epoch=5, name=50))))
    return j, commit


def test_a_repeated_commit_adds_the_row_that_was_refused_before() -> None:
    j, commit = partly_landed()
    found = refused(j.state, commit)
    assert set(found) == {0}
    rest = commit.without({(REVISION, 0)})
    assert rest is not None
    j.apply(rest)
    assert names(j) == [1]
    assert topic_of(j).shared[0].flags.tolist() == [NAMED, NAMED]


def test_no_edit_names_a_dropped_shared_object_again() -> None:
    """Hazard 26: vacuum may have deleted an object that is dropped."""
    j, commit = partly_landed()
    j.apply(drained((0, 0, 1)))
    assert dropped(j) == [1]
    rest = commit.without({(REVISION, 0)})
    assert rest is not None
    assert refused(j.state, rest) == {1: NAMED_TWICE}
    with pytest.raises(CorruptObjectError):
        j.apply(rest)


def test_a_row_that_has_left_is_not_named_again() -> None:
    j, commit = partly_landed()
    rest = commit.without({(REVISION, 0)})
    assert rest is not None
    j.apply(rest)
    j.apply(drained((0, 0, 1)))
    assert topic_of(j).shared[0].flags.tolist() == [LEFT, NAMED]
    assert set(refused(j.state, commit)) == {0, 1}


def test_other_content_under_a_listed_name_is_refused() -> None:
    j, _ = partly_landed()
    other = shared_object({0: (0, 1), 1: (1, 2), 2: (0, 0)}).only(np.array([False, True, False]))
    assert refused(j.state, lifted(other)) == {1: NAMED_TWICE}


# -- rule 3: a dropped object waits for the fence --------------------------------------------------------------------------


def test_a_dropped_shared_object_waits_until_the_fence_passes_its_stamp() -> None:
    """Hazard 26: until then, a repeated commit may name it."""
    j = two_rounds()
    j.apply(drained((0, 0, 3), (1, 0, 3), (2, 0, 3)))
    assert not j.state.is_dropped_before(1 << 60, 1 << 60).any()
    j.apply(FenceL1(5))
    assert not j.state.is_dropped_before(1 << 60, 1 << 60).any()
    j.apply(FenceL1(6))
    assert j.state.is_dropped_before(1 << 60, 1 << 60).all()
    j.apply(Purged(pack(np.array(list(j.state.dropped["name"]), NAME))))
    assert dropped(j) == []


def test_nothing_that_is_stamped_below_the_fence_is_shared_object() -> None:
    """Hazard 25: vacuum deletes shared objects below the fence that the journal does not name, too."""
    j = two_rounds()
    j.apply(FenceL1(6))
    found = refused(j.state, lifted(shared_object({0: (4, 5), 1: (4, 5)}, name=3)))
    assert set(found) == {0, 1}
    assert "fenced off" in found[0]


# -- drains ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "fit"),
    [
        ([(0, 0, 1)], True),
        ([(0, 2, 3)], True),
        ([(0, 0, 3)], True),
        ([(0, 0, 1), (0, 2, 3)], True),
        ([(0, 0, 0)], False),  # a part of a row
        ([(0, 1, 3)], False),
        ([(0, 0, 2)], False),
        ([(0, 0, 4)], False),  # includes a record of L0
        ([(0, 4, 5)], False),
        ([(3, 0, 1)], False),
    ],
)
def test_a_drain_holds_exactly_the_records_of_named_rows(rows: list[tuple[int, int, int]], *, fit: bool) -> None:
    j = two_rounds()
    assert refused(j.state, drained(*rows)) == ({} if fit else {rows[0][0]: NOT_SHARED})


def test_of_two_drains_the_second_is_refused() -> None:
    j = two_rounds()
    j.apply(drained((0, 0, 3)))
    assert refused(j.state, drained((0, 0, 3), (1, 0, 3), name=300)) == {0: NOT_SHARED}


def test_a_drain_moves_no_offset_and_releases_no_extent() -> None:
    j = two_rounds()
    before = topic_of(j).copy()
    j.apply(drained((0, 0, 3), (1, 2, 3)))
    after = topic_of(j)
    for column in ("reconciled", "log_start", "next_offsets"):
        assert (getattr(before, column) == getattr(after, column)).all()
    assert [len(o.extents) for o in after.objects] == [len(o.extents) for o in before.objects]


# -- malformed edits -------------------------------------------------------------------------------------------------------


def test_edits_that_cannot_be_are_refused_wherever_they_land() -> None:
    o = shared_object({0: (0, 1), 1: (0, 1)})
    own = l1_rows(l1_row(0, 2, 3, epoch=5))
    wrongs: list[Callable[[], Edit]] = [
        lambda: Edit(MERGE, 5, [EditedTopic.of(REVISION, TOPIC_ID, [o], added=own, removed=own)]),
        lambda: Edit(DRAIN, 5, [EditedTopic.of(REVISION, TOPIC_ID, [o], added=own)]),
        lambda: Edit(DRAIN, 5, [EditedTopic.of(REVISION, TOPIC_ID, added=own, removed=own)]),
        lambda: Edit(RECONCILE, 5, [EditedTopic.of(REVISION, TOPIC_ID, [o], added=own)]),  # two kinds for partition 0
        lambda: lifted(o, o),
        lambda: lifted(msgspec.structs.replace(o, flags=np.array([NAMED, LEFT], np.uint8))),
        lambda: lifted(msgspec.structs.replace(o, flags=np.array([UNLANDED, UNLANDED], np.uint8))),
        lambda: lifted(msgspec.structs.replace(o, flags=np.array([NAMED], np.uint8))),
        lambda: lifted(msgspec.structs.replace(o, rows=o.rows[::-1])),
        lambda: lifted(msgspec.structs.replace(o, blocks=o.blocks[:0])),
        lambda: lifted(msgspec.structs.replace(o, name=b"short")),
        lambda: lifted(msgspec.structs.replace(o, epoch=-1)),
    ]
    for wrong in wrongs:
        with pytest.raises(UsageError):
            wrong()


def test_what_was_packed_comes_out_again_or_nothing_does() -> None:
    chance, packed = random.Random(1), shared_object({3: (5, 9), 8: (0, 0), 9: (7, 7)}).packed()
    assert unpack_shared(packed).is_same(shared_object({3: (5, 9), 8: (0, 0), 9: (7, 7)}))
    for _ in range(300):
        field = chance.choice(["name", "blocks", "rows", "flags"])
        body = bytearray(getattr(packed, field))
        if chance.random() < 0.5:
            del body[chance.randrange(len(body)) :]
        else:
            body[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
        try:
            found = unpack_shared(msgspec.structs.replace(packed, **{field: bytes(body)}))
        except UsageError:
            continue
        assert len(found.rows) == len(found.flags) == int(found.blocks["extents"].sum())
        assert (np.diff(found.rows["partition"]) > 0).all()


def test_a_checkpoint_holds_shared_objects_with_the_state_of_each_row() -> None:
    j, commit = partly_landed()
    rest = commit.without({(REVISION, 0)})
    assert rest is not None
    j.apply(rest)
    j.apply(drained((0, 0, 1)))
    (found,) = MACHINE.decode(MACHINE.encode(j.state), "it").topics[REVISION].shared
    (o,) = topic_of(j).shared
    assert found.is_same(o)
    assert (found.flags.tolist(), found.time_ms) == ([LEFT, NAMED], o.time_ms)


def test_a_checkpoint_in_which_shared_rows_leave_a_gap_is_refused() -> None:
    j = two_rounds()
    topic_of(j).shared = topic_of(j).shared[1:]
    with pytest.raises(CorruptObjectError, match="are not those of the records"):
        MACHINE.decode(MACHINE.encode(j.state), "it")
    j = two_rounds()
    topic_of(j).shared *= 2
    with pytest.raises(CorruptObjectError, match="twice"):
        MACHINE.decode(MACHINE.encode(j.state), "it")


def test_an_edit_is_divided_between_shared_objects() -> None:
    objects = [shared_object(dict.fromkeys(range(n, n + 50), (0, 0)), name=n + 1) for n in range(0, 500, 50)]
    own = l1_rows(*(l1_row(p, 0, 0, epoch=5) for p in range(600, 700)))
    whole = Edit(RECONCILE, 5, [EditedTopic.of(REVISION, TOPIC_ID, objects, added=own)])
    parts = list(whole.divided(5_000))
    assert len(parts) > 3
    found = [o for part in parts for t in part.topics for o in t.change.shared]
    assert [o.name for o in found] == [o.name for o in objects]
    assert all(o.is_named.all() for o in found)
    assert np.concatenate([t.change.added for part in parts for t in part.topics]).tobytes() == own.tobytes()
