"""The partition's state machine: what may land, what leaves, and what epoch may still be needed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l0gc.errors import (
    CorruptObjectError,
    PartitionClosedError,
    PoisonedEpochError,
    StaleClusterEpochError,
    StaleReconcilerError,
)
from l0gc.keys import PartitionId
from l0gc.storage.log import Landed
from l0gc.streamlog.journal.entries import (
    Advance,
    Barrier,
    Closed,
    L1File,
    LandedBatch,
    PartitionEntry,
    Placeholder,
    Placeholders,
    ProducerBatch,
    Reconciled,
)
from l0gc.streamlog.journal.state import (
    PartitionMachine,
    PartitionState,
    decide_advance,
    decide_barrier,
    decide_closed,
    decide_placeholder,
    decide_reconciled,
)
from l0gc.streamlog.journal.window import EpochWindow

REVISION = 7
P = PartitionId("events", REVISION, 0)
CLUSTER_EPOCH = 40
MACHINE = PartitionMachine(P)


def extent(records: int = 1, producer: ProducerBatch | None = None) -> Placeholder:
    return Placeholder("level_zero/data/000/some", 0, 10 * records, records, 0, -1, producer)


def copy_of(state: PartitionState) -> PartitionState:
    return MACHINE.decode(MACHINE.encode(state), "a copy")


class Partition:
    """A live state and the log that it came from."""

    def __init__(self) -> None:
        self.state = MACHINE.initial()
        self.log: list[Landed] = []

    def land(self, entry: PartitionEntry | dict[str, Any]) -> None:
        offset = len(self.log)
        landed = Landed(offset, 1000 * offset, msgspec.json.encode(entry), 0)
        MACHINE.apply(self.state, landed)
        self.log.append(landed)

    def put(self, epoch: int, records: int = 1, producer: ProducerBatch | None = None) -> None:
        decision = decide_placeholder(self.state, P, extent(records, producer), epoch, CLUSTER_EPOCH)
        assert isinstance(decision, Placeholders)
        self.land(decision)

    def reconciled(self, entries: int) -> Reconciled:
        """The commit of the first `entries` unreconciled placeholders."""
        last = self.state.placeholders[entries - 1]
        base = self.state.last_reconciled_offset + 1
        end = last.placeholder.last_offset
        return Reconciled(base, end, last.log_offset, [L1File(f"level_one/{base}", base, end, 100)])

    def reconcile(self, entries: int) -> None:
        self.land(decide_reconciled(self.state, P, self.reconciled(entries)))


# -- what every sequence of entries holds to ---------------------------------------------------------------------------

EPOCH = st.integers(REVISION - 2, CLUSTER_EPOCH + 2)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), EPOCH, st.integers(1, 3)),
        st.tuples(st.just("put by a producer"), EPOCH, st.integers(1, 3)),
        st.tuples(st.just("raw"), EPOCH, st.integers(0, 2)),
        st.tuples(st.just("advance"), EPOCH, st.just(0)),
        st.tuples(st.just("barrier"), EPOCH, st.just(0)),
        st.tuples(st.just("reconcile"), st.integers(1, 3), st.integers(0, 5)),
        st.tuples(st.just("close"), st.just(0), st.sampled_from([0] * 9 + [1])),
    ),
    max_size=30,
)


def step(p: Partition, kind: str, a: int, b: int) -> None:
    """Propose one entry, and land what is admitted."""
    entry: PartitionEntry | None = None
    if kind.startswith("put"):
        known = p.state.producers.get(1)
        batch = ProducerBatch(1, 0, known.next_sequence if known else 0) if kind != "put" else None
        decision = decide_placeholder(p.state, P, extent(b, batch), a, CLUSTER_EPOCH)
        assert isinstance(decision, Placeholders)
        entry = decision
    elif kind == "raw":  # as a writer without any checks would
        entry = Placeholders(a, [msgspec.structs.replace(extent(), base_offset=p.state.next_offset + b)])
    elif kind == "advance":
        entry = decide_advance(p.state, a)
    elif kind == "barrier":
        entry = decide_barrier(p.state, a)
    elif kind == "reconcile" and p.state.placeholders:
        whole = p.reconciled(min(a, len(p.state.placeholders)))
        entry = decide_reconciled(p.state, P, msgspec.structs.replace(whole, base_offset=whole.base_offset - b // 4))
    elif kind == "close" and b:
        entry = decide_closed(p.state)
    if entry is not None:
        p.land(entry)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_no_sequence_of_entries_breaks_a_rule(steps: list[tuple[str, int, int]]) -> None:
    p = Partition()
    for kind, a, b in steps:
        before, entries = copy_of(p.state), len(p.log)
        try:
            step(p, kind, a, b)
        except (
            StaleClusterEpochError,
            PoisonedEpochError,
            PartitionClosedError,
            StaleReconcilerError,
            CorruptObjectError,
        ):
            assert p.state == before  # what is refused changes nothing
            continue
        state = p.state
        assert state.gc_epoch >= before.gc_epoch
        assert state.window.oldest >= before.window.oldest
        assert state.window.newest >= before.window.newest
        assert state.next_offset >= before.next_offset
        assert state.last_reconciled_offset >= before.last_reconciled_offset
        # Hazard 1: nothing that is needed, and nothing that may still land, is at or below the gc epoch.
        assert state.min_epoch_lower_bound <= state.previous_applied_epoch <= state.max_applied_epoch
        assert all(u.epoch > state.gc_epoch for u in state.placeholders)
        for u in state.placeholders[len(before.placeholders) :] if kind != "reconcile" else []:
            assert u.epoch >= before.window.oldest  # hazard 2
        if not state.placeholders:
            assert state.min_epoch_lower_bound == state.previous_applied_epoch  # caught up: no garbage is stranded
        offsets = [u.placeholder.base_offset for u in state.placeholders]
        assert offsets == sorted(set(offsets))
        assert state.unreconciled_records == sum(u.placeholder.records for u in state.placeholders)
        assert not before.closed or len(p.log) == entries
    replayed = MACHINE.initial()
    for at, entry in enumerate(p.log):
        MACHINE.apply(replayed, entry)
        if at == len(p.log) // 2:
            replayed = copy_of(replayed)  # through a checkpoint
    assert replayed == p.state


# -- the bound ---------------------------------------------------------------------------------------------------------


def test_a_new_partition_needs_its_revision_and_nothing_below() -> None:
    state = PartitionState.new(REVISION)
    assert state.gc_epoch == REVISION - 1
    assert state.window == EpochWindow(REVISION, REVISION)
    assert PartitionState.new(0).gc_epoch == -1


def test_the_bound_follows_the_previous_epoch_and_not_the_newest() -> None:
    """Hazard 1: all is reconciled, and yet a straggler at the previous epoch may land."""
    p = Partition()
    p.put(10)
    p.put(12)
    p.reconcile(2)
    assert p.state.min_epoch_lower_bound == 10
    p.put(10)  # the straggler
    assert p.state.gc_epoch < 10
    p.land(Advance(14))
    assert p.state.min_epoch_lower_bound == 10  # it is unreconciled
    p.reconcile(1)
    assert p.state.min_epoch_lower_bound == 12


def test_the_lowest_unreconciled_epoch_holds_the_bound() -> None:
    p = Partition()
    p.put(10)
    p.put(12)
    p.put(14)
    assert p.state.window == EpochWindow(12, 14)
    assert p.state.min_epoch_lower_bound == 10
    p.reconcile(1)
    assert p.state.min_epoch_lower_bound == 12


def test_a_straggler_below_a_newer_entry_counts_wherever_it_lies_in_the_log() -> None:
    p = Partition()
    p.put(10)
    p.put(14)
    p.put(11)  # in the window, behind a newer one
    p.land(Advance(20))
    p.land(Advance(30))
    p.reconcile(2)
    assert p.state.lowest_unreconciled_epoch == 11
    assert p.state.min_epoch_lower_bound == 11


# -- the window --------------------------------------------------------------------------------------------------------


def test_below_the_window_is_refused_at_the_landing() -> None:
    p = Partition()
    p.put(10)
    p.put(12)
    with pytest.raises(StaleClusterEpochError, match=r"9 is below the window \[10, 12\] of partition events/0") as e:
        decide_placeholder(p.state, P, extent(), 9, CLUSTER_EPOCH)
    assert (e.value.epoch, e.value.window) == (9, (10, 12))
    assert isinstance(decide_placeholder(p.state, P, extent(), 11, CLUSTER_EPOCH), Placeholders)


@pytest.mark.parametrize("epoch", [CLUSTER_EPOCH + 1, 10**18, -1])
def test_an_epoch_that_the_cluster_has_not_reached_is_refused(epoch: int) -> None:
    """Hazard 14."""
    with pytest.raises(PoisonedEpochError, match=f"epoch {epoch} .*the cluster epoch {CLUSTER_EPOCH}"):
        decide_placeholder(PartitionState.new(REVISION), P, extent(), epoch, CLUSTER_EPOCH)


def test_an_advance_slides_without_data_and_only_up() -> None:
    p = Partition()
    assert decide_advance(p.state, REVISION) is None
    assert decide_advance(p.state, 10) == Advance(10)
    p.land(Advance(10))
    p.land(Advance(12))
    assert p.state.window == EpochWindow(10, 12)
    assert p.state.current_epoch_window_offset == 1
    assert p.state.gc_epoch == 9
    p.land(Advance(11))  # raced with a newer one: nothing happens
    assert p.state.window == EpochWindow(10, 12)


def test_a_barrier_closes_the_window_to_one_epoch_and_shuts_out_stragglers() -> None:
    p = Partition()
    p.put(10)
    p.put(12)
    p.reconcile(2)
    assert decide_barrier(p.state, 15) == Barrier(15)
    p.land(Barrier(15))
    assert p.state.window == EpochWindow(15, 15)
    assert p.state.gc_epoch == 14
    assert decide_barrier(p.state, 15) is None
    with pytest.raises(StaleClusterEpochError):
        decide_placeholder(p.state, P, extent(), 14, CLUSTER_EPOCH)


def test_a_barrier_below_a_newer_epoch_closes_the_window_to_that_one() -> None:
    p = Partition()
    p.put(10)
    p.put(20)
    assert decide_barrier(p.state, 15) == Barrier(20)
    with pytest.raises(CorruptObjectError):
        p.land(Barrier(15))


def test_a_barrier_does_not_free_what_is_unreconciled() -> None:
    p = Partition()
    p.put(10)
    p.land(Barrier(15))
    assert p.state.gc_epoch == 9


# -- the reconciler ----------------------------------------------------------------------------------------------------


def test_reconciled_takes_the_placeholders_out_and_the_files_in() -> None:
    p = Partition()
    p.put(10, records=3)
    p.put(10, records=2)
    p.put(11, records=4)
    p.reconcile(2)
    state = p.state
    assert (state.last_reconciled_offset, state.last_reconciled_log_offset) == (4, 1)
    assert [u.placeholder.base_offset for u in state.placeholders] == [5]
    assert [(f.base_offset, f.last_offset) for f in state.l1] == [(0, 4)]
    assert state.unreconciled_records == 4


@pytest.mark.parametrize(
    "wrong",
    [
        {"base_offset": 0, "files": [L1File("a", 0, 6, 1)]},  # a zombie's range
        {"base_offset": 4, "files": [L1File("a", 4, 6, 1)]},  # a gap
        {"base_offset": 4},
        {"last_offset": 5},  # inside an entry
        {"last_offset": 7},  # beyond what is there
        {"log_offset": 0},  # an entry that is reconciled
        {"log_offset": 99},  # an entry that is not there yet: later ones could never be committed
        {"files": []},
        {"files": [L1File("a", 3, 5, 1)]},  # short
        {"files": [L1File("a", 3, 4, 1), L1File("b", 6, 6, 1)]},  # a hole
        {"files": [L1File("a", 3, 6, 1), L1File("b", 3, 6, 1)]},  # twice
        {"files": [L1File("a", 3, 2, 1), L1File("b", 3, 6, 1)]},  # empty
    ],
    ids=str,
)
def test_a_range_that_does_not_continue_what_is_reconciled_is_refused(wrong: dict[str, Any]) -> None:
    """Hazard 9: offered, it is refused; found in the log, it is corrupt; either way nothing changes."""
    p = Partition()
    p.put(10, records=3)
    p.reconcile(1)
    p.put(10, records=2)
    p.put(10, records=2)
    right = Reconciled(3, 6, 3, [L1File("a", 3, 6, 1)])
    assert decide_reconciled(p.state, P, right) == right
    entry = msgspec.structs.replace(right, **wrong)
    before = copy_of(p.state)
    with pytest.raises(StaleReconcilerError):
        decide_reconciled(p.state, P, entry)
    with pytest.raises(CorruptObjectError, match=r"partition events/0 log entry 4 should never have landed"):
        p.land(entry)
    assert p.state == before


@pytest.mark.parametrize(
    "batch", [ProducerBatch(5, 1, 0), ProducerBatch(5, 1, 1), ProducerBatch(5, 0, 2), ProducerBatch(5, 1, 3)], ids=str
)
def test_a_batch_that_its_producer_may_not_land_is_corrupt_in_the_log(batch: ProducerBatch) -> None:
    """Landed before, of an older epoch, or behind a gap: whoever wrote it did not ask `decide_placeholder`."""
    p = Partition()
    p.put(10, producer=ProducerBatch(5, 1, 0))
    p.put(10, producer=ProducerBatch(5, 1, 1))
    before = copy_of(p.state)
    entry = Placeholders(10, [msgspec.structs.replace(extent(1, batch), base_offset=2)])
    with pytest.raises(CorruptObjectError, match="should never have landed"):
        p.land(entry)
    assert p.state == before
    p.put(10, producer=ProducerBatch(5, 1, 2))


# -- the end -----------------------------------------------------------------------------------------------------------


def test_closed_refuses_everything() -> None:
    p = Partition()
    p.put(10)
    commit = p.reconciled(1)
    assert decide_closed(p.state) == Closed()
    p.land(Closed())
    with pytest.raises(PartitionClosedError, match="'events'"):
        decide_placeholder(p.state, P, extent(), 10, CLUSTER_EPOCH)
    with pytest.raises(PartitionClosedError):
        decide_reconciled(p.state, P, commit)
    assert decide_advance(p.state, 20) is None
    assert decide_barrier(p.state, 20) is None
    assert decide_closed(p.state) is None
    before = copy_of(p.state)
    for entry in (Closed(), Advance(20), Placeholders(20, [msgspec.structs.replace(extent(), base_offset=1)])):
        with pytest.raises(CorruptObjectError, match="it follows the end of the partition"):
            p.land(entry)
    assert p.state == before


# -- corruption --------------------------------------------------------------------------------------------------------


def _placeholders(**changes: Any) -> dict[str, Any]:
    good = {"key": "k", "start": 0, "length": 10, "records": 2, "crc32c": 0, "base_offset": 1}
    return {"type": "placeholders", "epoch": 12, "placeholders": [good, {**good, "base_offset": 3, **changes}]}


@pytest.mark.parametrize(
    "entry",
    [
        {"type": "unheard of"},
        {"type": "advance"},
        {"type": "advance", "epoch": -1},
        {"type": "advance", "epoch": 10**18},
        {"type": "advance", "epoch": "12"},
        {"type": "barrier", "epoch": 9},
        {"type": "placeholders", "epoch": 12, "placeholders": []},
        {**_placeholders(), "epoch": REVISION - 1},
        _placeholders(base_offset=4),
        _placeholders(base_offset=2),
        _placeholders(records=0),
        _placeholders(start=-1),
        _placeholders(length=0),
        _placeholders(records=2**62),
        _placeholders(records=2**63),
    ],
    ids=str,
)
def test_a_corrupt_entry_is_named_and_changes_nothing(entry: dict[str, Any]) -> None:
    p = Partition()
    p.put(10)
    before = copy_of(p.state)
    with pytest.raises(CorruptObjectError, match=r"partition events/0 log entry 1 "):
        p.land(entry)
    assert p.state == before


@pytest.mark.parametrize("payload", [b"", b"[]", b"\xff", b'{"type":"advance","epoch":8', b'{"a":' * 100_000])
def test_what_is_no_entry_at_all_is_named_and_changes_nothing(payload: bytes) -> None:
    state = MACHINE.initial()
    with pytest.raises(CorruptObjectError, match=r"log entry 0 cannot be read"):
        MACHINE.apply(state, Landed(0, 0, payload, 0))
    assert state == MACHINE.initial()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"\xff\xfe",
        b"[" * 100_000,
        MACHINE.encode(PartitionState.new(REVISION + 1)),
        MACHINE.encode(PartitionState(REVISION, 2**63, REVISION, REVISION)),
        MACHINE.encode(PartitionState(REVISION, REVISION, REVISION, -(2**63))),
    ],
    ids=range(7),
)
def test_a_checkpoint_that_is_not_this_partitions_is_refused_by_name(body: bytes) -> None:
    with pytest.raises(CorruptObjectError, match=r"^checkpoint/1\.json is "):
        MACHINE.decode(body, "checkpoint/1.json")


# -- producers in the log ----------------------------------------------------------------------------------------------


def test_a_repeated_batch_is_answered_with_its_offset_even_when_its_epoch_has_gone_stale() -> None:
    p = Partition()
    p.put(10)
    batch = ProducerBatch(1, 0, 0)
    p.put(10, records=3, producer=batch)
    p.land(Advance(20))
    p.land(Advance(30))
    decision = decide_placeholder(p.state, P, extent(3, batch), 10, CLUSTER_EPOCH)
    assert decision == LandedBatch(0, 1, 3)
