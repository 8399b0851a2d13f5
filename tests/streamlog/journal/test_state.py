"""The journal's state machine: what may land, what leaves, and which epoch each partition may still need."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.epoch import prev
from l0gc.errors import (
    CorruptObjectError,
    EpochRegressionError,
    L0gcError,
    PartitionClosedError,
    StaleClusterEpochError,
    UsageError,
)
from l0gc.storage.entry import StoredEntry
from l0gc.streamlog.journal.admission import Admission, EpochWindow
from l0gc.streamlog.journal.apply import apply
from l0gc.streamlog.journal.checkpoint import JournalMachine
from l0gc.streamlog.journal.edits import GONE, fits
from l0gc.streamlog.journal.entries import (
    EXPIRE,
    RECONCILE,
    Advance,
    Barrier,
    Closed,
    ClosedTopic,
    Edit,
    EditedTopic,
    ObjectExtents,
    Objects,
)
from l0gc.streamlog.journal.rows import EXTENT, MAX_OFFSET, MISFITS, NUMBER, pack, unpack
from l0gc.streamlog.journal.state import JournalState
from tests.support.journal import (
    REVISION,
    TOPIC_ID,
    Journal,
    batch,
    bound_of,
    edit,
    extents_of,
    gc_epoch_of,
    key_of,
    l1_row,
    l1_rows,
    lowest_of,
    of_parts,
    parts_of,
    reconciled,
    starts_of,
)
from tests.support.tries import tries

MACHINE = JournalMachine(0)


def copy_of(state: JournalState) -> JournalState:
    return MACHINE.decode(MACHINE.encode(state), "a copy")


def same(a: JournalState, b: JournalState) -> bool:
    return MACHINE.encode(a) == MACHINE.encode(b)


def admit(state: JournalState, *objects: ObjectExtents) -> None:
    admission = Admission(state.window, state.topics, state.producers, state.closed)
    for o in objects:
        admission.admit(o)


def test_records_are_admitted_up_to_the_last_offset_and_number() -> None:
    j = Journal()
    j.land(extents_of(REVISION))
    j.state.topics[REVISION].next_offsets[:] = MAX_OFFSET - 5
    admit(j.state, extents_of(REVISION, {0: 5}))
    for many in ([{0: 6}], [{0: 3}, {0: 3}]):
        with pytest.raises(UsageError, match="more records than there are offsets left"):
            admit(j.state, *(extents_of(REVISION, records) for records in many))
    most = extents_of(REVISION, {1: 2**31 - 1})
    admit(JournalState(), most)
    with pytest.raises(UsageError, match="more records than there are offsets left"):
        admit(JournalState(), most, extents_of(REVISION))


# -- a journal with one partition, compared with the first edition's rules ------------------------------------------------


class OnePartition:
    """The references' rules for a partition with its own log, as a model to compare with."""

    def __init__(self, revision: int) -> None:
        self.previous = self.newest = self.bound = revision
        self.unreconciled: list[tuple[int, int]] = []
        self.next = 0

    def admits(self, epoch: int) -> bool:
        return epoch >= self.previous

    def slide(self, epoch: int) -> None:
        if epoch > self.newest:
            self.previous, self.newest = self.newest, epoch
        self._raise_bound()

    def land(self, epoch: int) -> None:
        self.unreconciled.append((self.next, epoch))
        self.next += 1
        self.slide(epoch)

    def close_window(self, epoch: int) -> None:
        self.previous = self.newest = max(epoch, self.newest)
        self._raise_bound()

    def reconcile(self, count: int) -> None:
        del self.unreconciled[:count]
        self._raise_bound()

    def _raise_bound(self) -> None:
        self.bound = max(self.bound, min([self.previous, *(e for _, e in self.unreconciled)]))


@tries(120)
@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "put", "put", "advance", "barrier", "reconcile"]), st.integers(0, 12)),
        max_size=30,
    )
)
def test_a_single_partition_journal_behaves_like_a_partition_log(steps: list[tuple[str, int]]) -> None:
    model, journal = OnePartition(REVISION), Journal()
    for n, (kind, number) in enumerate(steps):
        epoch = REVISION - 1 + number
        if kind == "put":
            try:
                journal.land(extents_of(epoch, key=key_of(epoch, n)))
                landed = True
            except CorruptObjectError:
                landed = False
            assert landed == model.admits(epoch)
            if landed:
                model.land(epoch)
        elif kind == "advance":
            journal.apply(Advance(epoch))
            model.slide(epoch)
        elif kind == "barrier":
            journal.apply(Barrier(max(epoch, journal.state.max_applied_epoch)))
            model.close_window(epoch)
        elif model.unreconciled and number:
            count = min(number, len(model.unreconciled))
            journal.reconcile({0: model.unreconciled[count - 1][0]})
            model.reconcile(count)
        assert bound_of(journal.state, REVISION, 0) == model.bound
        assert gc_epoch_of(journal.state, REVISION, 0) == prev(model.bound)
        assert max(REVISION, journal.state.previous_applied_epoch) == model.previous
        assert [e.base_offset for e in journal.state.topic(REVISION).extents(0)] == [o for o, _ in model.unreconciled]


# -- invariants of every sequence of entries -----------------------------------------------------------------------------

PARTITIONS = 4
EPOCHS = st.integers(REVISION - 1, 20)
RECORDS = st.dictionaries(st.integers(0, PARTITIONS - 1), st.integers(1, 3), min_size=1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), EPOCHS, RECORDS, st.sampled_from([REVISION, REVISION + 4])),
        st.tuples(st.just("advance"), EPOCHS, st.just({}), st.just(0)),
        st.tuples(st.just("barrier"), EPOCHS, st.just({}), st.just(0)),
        st.tuples(st.just("reconcile"), st.integers(0, 3), RECORDS, st.sampled_from([REVISION, REVISION + 4])),
        st.tuples(st.just("close"), st.sampled_from([0] * 9 + [1]), st.just({}), st.just(REVISION)),
    ),
    max_size=25,
)


def step(j: Journal, n: int, kind: str, a: int, records: dict[int, int], revision: int) -> None:
    if kind == "put":
        j.land(extents_of(a, records, key=key_of(max(a, 0), n), revision=revision))
    elif kind == "advance":
        j.apply(Advance(a))
    elif kind == "barrier":
        j.apply(Barrier(a))
    elif kind == "close" and a:
        j.apply(Closed([ClosedTopic(revision)]))
    elif kind == "reconcile":
        upto = {}
        for partition in records:
            extents = j.state.topic(revision).extents(partition)
            if extents:
                upto[partition] = extents[min(a, len(extents) - 1)].last_offset
        if upto:
            j.reconcile(upto, revision=revision)


@tries(80)
@given(STEPS)
def test_no_sequence_of_entries_breaks_a_rule(steps: list[tuple[str, int, dict[int, int], int]]) -> None:
    j = Journal()
    for n, (kind, a, records, revision) in enumerate(steps):
        before = copy_of(j.state)
        try:
            step(j, n, kind, a, records, revision)
        except L0gcError:
            assert same(j.state, before)  # a refusal changes nothing
            continue
        state = j.state
        assert state.window.oldest >= before.window.oldest
        assert state.window.newest >= before.window.newest
        for r in (REVISION, REVISION + 4):
            if state.closed(r):
                continue
            for p in range(PARTITIONS):
                assert gc_epoch_of(state, r, p) >= gc_epoch_of(before, r, p)
                # Hazard 1: every object that is needed, and every object that may still land, is above the gc epoch.
                assert bound_of(state, r, p) <= max(r, state.previous_applied_epoch)
                extents = state.topic(r).extents(p)
                assert all(e.epoch > gc_epoch_of(state, r, p) for e in extents)
                if not extents:
                    assert bound_of(state, r, p) == max(r, state.previous_applied_epoch)  # no garbage is stranded
                view, at = state.topic(r).view(p), state.topic(r).view(p).last_reconciled_offset + 1
                assert view.unreconciled_records == sum(e.records for e in extents)
                for e in extents:
                    assert e.base_offset == at
                    at = e.last_offset + 1
                assert view.next_offset >= before.topic(r).view(p).next_offset
                assert view.last_reconciled_offset >= before.topic(r).view(p).last_reconciled_offset
            low = state.lowest(r, 0, PARTITIONS, PARTITIONS)
            assert [(x.gc_epoch, x.partition) for x in low] == sorted(
                (gc_epoch_of(state, r, p), p) for p in range(PARTITIONS)
            )
    replayed = MACHINE.initial()
    for at, entry in enumerate(j.entries):
        MACHINE.apply(replayed, entry)
        if at == len(j.entries) // 2:
            replayed = copy_of(replayed)  # replayed from a checkpoint
    assert same(replayed, j.state)


# -- the bound -----------------------------------------------------------------------------------------------------------


def test_a_new_partition_needs_its_revision_and_nothing_below_without_any_entry() -> None:
    assert gc_epoch_of(JournalState(), REVISION, 12) == REVISION - 1


def test_the_bound_follows_the_previous_epoch_and_not_the_newest() -> None:
    """Hazard 1: a straggler at the previous epoch may still land."""
    j = Journal()
    j.apply(Advance(10))
    j.apply(Advance(12))
    assert bound_of(j.state, REVISION, 0) == 10
    j.land(extents_of(11))
    assert bound_of(j.state, REVISION, 0) == 10


def test_one_advance_moves_every_partition_and_data_holds_its_own_alone() -> None:
    j = Journal()
    j.land(extents_of(5, {3: 1}))
    j.apply(Advance(10))
    j.apply(Advance(20))
    assert [gc_epoch_of(j.state, REVISION, p) for p in (0, 3, 99_999)] == [9, 4, 9]
    assert lowest_of(j.state) == 5
    assert [low.partition for low in j.state.lowest(REVISION, 0, 100_000, 2)] == [3, 0]


def test_the_lowest_unreconciled_epoch_holds_the_bound() -> None:
    j = Journal()
    j.land(extents_of(8, {0: 1}, key=key_of(8)))
    j.land(extents_of(5, {0: 1}, key=key_of(5)))  # a straggler
    j.apply(Advance(9))
    j.apply(Advance(10))
    assert bound_of(j.state, REVISION, 0) == 5
    j.reconcile({0: 0})
    assert bound_of(j.state, REVISION, 0) == 5
    j.reconcile({0: 1})
    assert bound_of(j.state, REVISION, 0) == 9


def test_a_topic_needs_nothing_below_its_revision_though_its_journal_stands_lower() -> None:
    """Hazard 21: the topic must not take an object that is older than its revision."""
    j = Journal()
    j.apply(Advance(10))
    assert gc_epoch_of(j.state, 50, 0) == 49
    with pytest.raises(CorruptObjectError, match=r"epoch 49 is below the window \[50, 50\]"):
        j.land(extents_of(49, revision=50))
    j.land(extents_of(50, revision=50))


# -- admission -----------------------------------------------------------------------------------------------------------


def test_below_the_window_is_refused_at_the_landing() -> None:
    """Hazard 2: the window may slide after the fence has admitted the object."""
    j = Journal()
    j.apply(Advance(10))
    j.apply(Advance(12))
    with pytest.raises(StaleClusterEpochError, match=r"epoch 9 is below the window \[10, 12\]") as e:
        admit(j.state, extents_of(9))
    assert (e.value.epoch, e.value.window) == (9, (10, 12))
    admit(j.state, extents_of(10))


def test_objects_of_one_entry_are_admitted_one_after_another() -> None:
    """Hazard 22: the third object is below the window that the first two make."""
    state = JournalState()
    with pytest.raises(StaleClusterEpochError, match=r"\[10, 20\]"):
        admit(state, extents_of(10), extents_of(20), extents_of(9))
    j = Journal()
    offset = j.land(
        extents_of(10, {0: 2}, key=key_of(10), producer=batch(0)), extents_of(10, {0: 3}, producer=batch(1))
    )
    assert [(e.log_offset, e.base_offset) for e in j.state.topic(REVISION).extents(0)] == [(offset, 0), (offset, 2)]
    with pytest.raises(CorruptObjectError, match="sequence 4 instead of 3"):
        j.land(extents_of(10, producer=batch(2)), extents_of(10, producer=batch(4)))


def test_an_object_lands_whole_or_not_at_all() -> None:
    j = Journal()
    before = copy_of(j.state)
    for wrong in (
        msgspec.structs.replace(extents_of(5, {0: 1, 1: 1}), partitions=pack(np.array([1, 0], NUMBER))),
        msgspec.structs.replace(extents_of(5, {0: 1, 1: 1}), partitions=pack(np.array([1, 1], NUMBER))),
        msgspec.structs.replace(extents_of(5, {0: 1, 1: 1}), records=pack(np.array([1, 0], NUMBER))),
        msgspec.structs.replace(extents_of(5, {0: 1, 1: 1}), records=pack(np.array([1], NUMBER))),
        msgspec.structs.replace(extents_of(5), partitions=pack(np.array([-1], NUMBER))),
        msgspec.structs.replace(extents_of(5), partitions=b"", records=b""),
        msgspec.structs.replace(extents_of(5), records=b"abc"),
        msgspec.structs.replace(extents_of(5), blocks=b""),
        msgspec.structs.replace(extents_of(5), blocks=extents_of(5, {0: 1, 1: 1}).blocks),
        msgspec.structs.replace(extents_of(5), start=-1),
        msgspec.structs.replace(extents_of(5), key=""),
        msgspec.structs.replace(extents_of(5), epoch=-1),
        msgspec.structs.replace(extents_of(5), epoch=2**62),
    ):
        with pytest.raises(L0gcError):  # refused before the append
            admit(j.state, wrong)
        with pytest.raises(CorruptObjectError):  # refused in the log, too
            j.land(extents_of(5, key=key_of(5, 1)), wrong)
        assert same(j.state, before)


def test_records_beyond_the_last_offset_are_refused() -> None:
    j = Journal()
    most = 2**31 - 1
    with pytest.raises(L0gcError, match="more records than there are offsets"):
        admit(j.state, extents_of(5, {0: most}), extents_of(5, {0: 1}))


def test_a_revision_that_was_given_twice_is_refused() -> None:
    j = Journal()
    j.land(extents_of(5))
    with pytest.raises(EpochRegressionError, match="another topic"):
        admit(j.state, extents_of(5, topic_id="another"))


# -- the window --------------------------------------------------------------------------------------------------------


def test_an_advance_slides_without_data_and_only_up() -> None:
    j = Journal()
    for epoch in (10, 5, 12):
        j.apply(Advance(epoch))
    assert j.state.window == EpochWindow(10, 12)
    assert j.state.window_offset == 2


def test_a_barrier_narrows_the_window_but_frees_nothing_unreconciled() -> None:
    j = Journal()
    j.land(extents_of(5))
    j.apply(Barrier(10))
    assert j.state.window == EpochWindow(10, 10)
    assert bound_of(j.state, REVISION, 0) == 5
    with pytest.raises(StaleClusterEpochError):
        admit(j.state, extents_of(9))
    j.reconcile({0: 0})
    assert gc_epoch_of(j.state, REVISION, 0) == 9
    with pytest.raises(CorruptObjectError, match="would lower the window"):
        j.apply(Barrier(9))


# -- commits of reconcilers ----------------------------------------------------------------------------------------------


def two_objects() -> Journal:
    j = Journal()
    j.land(extents_of(5, {0: 2, 1: 1, 2: 4}, key=key_of(5)))
    j.land(extents_of(6, {0: 1, 2: 1}, key=key_of(6)))
    return j


def test_reconciled_takes_extents_out_and_an_object_leaves_with_its_last_extent() -> None:
    j = two_objects()
    j.reconcile({0: 2, 2: 3}, epoch=9)
    topic = j.state.topics[REVISION]
    assert [(o.key, o.extents["partition"].tolist()) for o in topic.objects] == [(key_of(5), [1]), (key_of(6), [2])]
    assert j.state.topic(REVISION).extents(0) == []
    assert j.state.topic(REVISION).extents(2)[0].base_offset == 4
    (file,) = j.state.topic(REVISION).files(0)
    assert (file.base_offset, file.last_offset, file.epoch) == (0, 2, 9)
    j.reconcile({1: 0, 2: 4})
    assert topic.objects == []
    assert j.state.topic(REVISION).totals().unreconciled_records == 0
    assert len(j.state.topic(REVISION).files(2)) == 2


def test_what_is_left_of_a_block_keeps_its_rows() -> None:
    j = two_objects()
    before = j.state.topic(REVISION).extents(2)[0]
    j.reconcile({0: 1, 1: 0})
    assert j.state.topic(REVISION).extents(2)[0] == before
    assert (before.block.start, before.row) == (102, 0)  # the second block of two
    assert j.state.topic(REVISION).extents(0)[0].base_offset == 2


def test_a_partition_that_moved_on_is_refused_and_the_others_land() -> None:
    """Hazard 9: a zombie reconciler's old range must not be committed."""
    j = two_objects()
    late = reconciled(j.state, {0: 1, 1: 0})
    j.reconcile({0: 2})
    refused = fits(j.state, late)
    assert list(refused) == [(REVISION, 0)]
    assert "records up to 2 are already reconciled" in refused[REVISION, 0]
    left = late.without(refused)
    assert left is not None
    j.apply(left)
    assert j.state.topic(REVISION).view(1).last_reconciled_offset == 0
    assert late.without({(REVISION, 0): "", (REVISION, 1): ""}) is None


@pytest.mark.parametrize(
    ("upto", "why"),
    [({0: 0}, "not the last of an object"), ({0: 5}, "not the last of an object"), ({7: 0}, "is not next")],
)
def test_a_range_that_does_not_end_with_an_object_is_refused(upto: dict[int, int], why: str) -> None:
    j = two_objects()
    commit = reconciled(j.state, upto)
    assert any(why in text for text in fits(j.state, commit).values())
    with pytest.raises(CorruptObjectError):
        j.apply(commit)


@pytest.mark.parametrize("wrong", ["gap", "short", "no files", "bad bytes", "order", "negative"])
def test_files_that_do_not_fill_their_range_are_refused(wrong: str) -> None:
    """Hazard 9: L1 is committed only if it holds exactly the records that leave."""
    j = two_objects()
    files = reconciled(j.state, {0: 2, 1: 0}).topics[0].change.added.copy()
    if wrong == "gap":
        files = l1_rows(l1_row(0, 0, 0), l1_row(0, 2, 2))
    elif wrong == "short":
        files["last"][0] = 0
    elif wrong == "no files":
        files = files[:0]
    elif wrong == "order":
        files = files[::-1]
    elif wrong == "negative":
        files["bytes"][0] = -1
    if wrong == "short":
        assert list(fits(j.state, edit(RECONCILE, 1, added=files))) == [(REVISION, 0)]
        return
    body = pack(files)[:-1] if wrong == "bad bytes" else pack(files)
    with pytest.raises(UsageError):
        Edit(RECONCILE, 1, [EditedTopic(REVISION, TOPIC_ID, body)])
    payload = msgspec.msgpack.encode(["e", RECONCILE, 1, [[REVISION, TOPIC_ID, body]]])
    with pytest.raises(CorruptObjectError, match="should never have landed"):
        apply(j.state, StoredEntry(2, 0, payload, 0, 0), "the entry")


# -- records that do not fit the value schema ------------------------------------------------------------------------------


def test_misfits_count_with_the_partitions_that_land_and_once() -> None:
    j = two_objects()
    late = reconciled(j.state, {0: 2, 1: 0}, misfits={0: 2, 1: 1})
    j.reconcile({1: 0})
    left = late.without(fits(j.state, late))
    assert left is not None
    j.apply(left)
    assert (j.state.topic(REVISION).misfits, j.state.topic(REVISION).totals().misfits) == (2, 2)
    assert list(fits(j.state, late)) == [(REVISION, 0), (REVISION, 1)]
    assert copy_of(j.state).topic(REVISION).misfits == 2
    assert [e.topics[0].change.misfits.tolist() for e in late.divided(61)] == [[(0, 2)], [(1, 1)]]


@pytest.mark.parametrize("misfits", [{0: 4}, {0: 0}, {0: -1}, {1: 1, 0: 1}, {2: 1}])
def test_misfits_that_no_reconcile_can_have_are_refused(misfits: dict[int, int]) -> None:
    j = two_objects()
    with pytest.raises(UsageError, match=r"value schema|names no records"):
        reconciled(j.state, {0: 2, 1: 0}, misfits=misfits)
    with pytest.raises(UsageError, match="rows that are not allowed in it"):
        edit(EXPIRE, 1, starts=starts_of({0: 1}), misfits=np.array([(0, 1)], MISFITS))


def test_a_log_and_a_checkpoint_without_later_fields_are_read() -> None:
    """An older version's entries and checkpoints end before misfits and shared objects."""
    j = two_objects()
    body = pack(reconciled(j.state, {0: 2}).topics[0].change.added)
    payload = msgspec.msgpack.encode(["e", RECONCILE, 1, [[REVISION, TOPIC_ID, body, b"", b""]]])
    apply(j.state, StoredEntry(2, 0, payload, 0, 0), "the entry")
    checkpoint, rows = parts_of(MACHINE.encode(j.state))
    assert (checkpoint[4][0].pop(), checkpoint[4][0].pop()) == ([], 0)
    assert same(MACHINE.decode(of_parts(checkpoint, rows), "an old one"), j.state)
    checkpoint[4][0].append(4)
    with pytest.raises(CorruptObjectError, match="4 records that do not fit"):
        MACHINE.decode(of_parts(checkpoint, rows), "a damaged one")


# -- closed topics -------------------------------------------------------------------------------------------------------


def test_a_closed_topic_takes_nothing_more_and_holds_nothing_back() -> None:
    """Hazard 6: a deleted topic must not hold M."""
    j = two_objects()
    commit = reconciled(j.state, {0: 2})
    j.apply(Closed([ClosedTopic(REVISION)]))
    assert j.state.closed(REVISION)
    assert j.state.topic(REVISION).extents(0) == []
    with pytest.raises(PartitionClosedError):
        admit(j.state, extents_of(6))
    assert fits(j.state, commit) == {(REVISION, 0): GONE}
    with pytest.raises(CorruptObjectError):
        j.land(extents_of(6))
    admit(j.state, extents_of(10, revision=9, topic_id="created again"))


def test_a_topic_that_nothing_landed_in_can_be_closed() -> None:
    j = Journal()
    j.apply(Closed([ClosedTopic(REVISION)]))
    with pytest.raises(PartitionClosedError):
        admit(copy_of(j.state), extents_of(6))


# -- corrupt entries and checkpoints -------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [b"", b"\xc0", b"\xff", b"\x92\xa1a", b"\x91" * 100_000, b"\x92\xa1a\xa1x"])
def test_a_body_that_is_not_an_entry_is_named_and_changes_nothing(payload: bytes) -> None:
    j = two_objects()
    before = copy_of(j.state)
    with pytest.raises(CorruptObjectError, match="some entry"):
        apply(j.state, StoredEntry(2, 0, payload, 0, 0), "some entry")
    assert same(j.state, before)


def test_an_entry_without_effect_that_nobody_writes_is_corrupt() -> None:
    j = Journal()
    for entry in (Objects([]), Advance(-1), Closed([ClosedTopic(-5)])):
        with pytest.raises(CorruptObjectError):
            j.apply(entry)


def test_a_checkpoint_of_another_journal_is_refused_by_name() -> None:
    body = JournalMachine(3).encode(two_objects().state)
    with pytest.raises(CorruptObjectError, match=r"the checkpoint .* journal 3's"):
        MACHINE.decode(body, "the checkpoint")


def corruptions() -> list[tuple[str, Any]]:
    def edit(topic: list[Any], index: int, value: Any) -> None:
        topic[index] = value

    def stray(topic: list[Any]) -> None:
        """Make the last extent the first record of a partition that the topic does not have."""
        rows = unpack(topic[8], EXTENT).copy()
        rows[-1] = (99, 0, 1, 1, 0)
        topic[8] = pack(rows)

    return [
        ("offsets", lambda t: edit(t, 3, t[3][:-8])),
        ("partitions", lambda t: edit(t, 2, t[2][::-1])),
        ("extents", lambda t: edit(t, 8, t[8][:-1])),
        ("extent rows", lambda t: edit(t, 8, b"\xff" * len(t[8]))),
        ("an extent's partition", stray),
        ("l1", lambda t: edit(t, 9, [1, 2, 0, 0])),
        ("no blocks", lambda t: edit(t, 7, b"")),
        ("object sizes", lambda t: edit(t[6][0], 5, 99)),
    ]


@pytest.mark.parametrize(("name", "spoil"), corruptions(), ids=[n for n, _ in corruptions()])
def test_a_checkpoint_whose_rows_cannot_be_is_refused(name: str, spoil: Any) -> None:
    checkpoint, rows = parts_of(MACHINE.encode(two_objects().state))
    spoil(checkpoint[4][0])
    with pytest.raises(CorruptObjectError):
        MACHINE.decode(of_parts(checkpoint, rows), "the checkpoint")


@pytest.mark.parametrize("rows", [[], [[b"x"]], [[b"\0" * 8], [b"\0" * 8]], [[5]]])
def test_a_checkpoint_whose_second_part_cannot_be_is_refused(rows: list[Any]) -> None:
    checkpoint, right = parts_of(MACHINE.encode(two_objects().state))
    assert len(right) == 1
    with pytest.raises(CorruptObjectError):
        MACHINE.decode(of_parts(checkpoint, rows), "the checkpoint")


def test_a_copy_of_the_state_does_not_share_its_columns() -> None:
    j = two_objects()
    before = copy.deepcopy(MACHINE.encode(j.state))
    other = copy_of(j.state)
    apply(other, StoredEntry(2, 0, msgspec.msgpack.encode(Objects([extents_of(7, {0: 1})])), 0, 0), "")
    assert MACHINE.encode(j.state) == before
