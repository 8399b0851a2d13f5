"""Payloads and checkpoints of any bytes, behind a checksum that fits: refused without any change, or a state that works."""

from __future__ import annotations

from typing import TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.errors import CorruptObjectError, L0gcError
from l0gc.keys import PartitionId
from l0gc.storage.log import Landed
from l0gc.storage.replica import StateMachine
from l0gc.streamlog.controller.state import Bootstrap, ControllerMachine, CreateTopic, DeleteTopic, InitProducer, Tick
from l0gc.streamlog.journal.entries import (
    Advance,
    Barrier,
    Closed,
    InputSpan,
    L1File,
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
    decide_placeholder,
)
from l0gc.streamlog.level_one.plan import make_plan
from l0gc.watermark.reports import publish_reports, report_of
from tests.fuzz.mutations import fuzzing, hostile, other_json, refusal
from tests.support.memory_store import MemoryStore, memory_cluster

P = PartitionId("t", 1, 0)
S = TypeVar("S")


def extent(base: int, sequence: int) -> Placeholder:
    batch = ProducerBatch(4, 2, sequence, [InputSpan("in", base, base + 5)])
    return Placeholder("level_zero/data/000/000000000000000002/x", 0, 10, 5, 77, base, batch)


PARTITION = [
    msgspec.json.encode(e)
    for e in (
        Placeholders(2, [extent(0, 0)]),
        Advance(3),
        Placeholders(4, [extent(5, 1)]),
        Reconciled(0, 4, 0, [L1File("level_one/x", 0, 4, 100)]),
        Barrier(6),
        Placeholders(7, [extent(10, 2)]),
        Closed(),
    )
]
CONTROLLER = [
    msgspec.json.encode(e)
    for e in (
        Bootstrap("c", 4),
        CreateTopic("a", 2),
        Tick(1, "me"),
        InitProducer("p", -1, 0, -1),
        CreateTopic("b", 1),
        DeleteTopic("a", 1),
        InitProducer("p", 3, 1, 0),
    )
]


def state_after(machine: StateMachine[S], payloads: list[bytes]) -> S:
    state = machine.initial()
    for offset, payload in enumerate(payloads):
        machine.apply(state, Landed(offset, 1000 + offset, payload, 0))
    return state


def use(state: PartitionState) -> None:
    """What the rest of l0gc does with a state that it believes. Whatever is refused is refused by an error of l0gc's."""
    store = MemoryStore()
    cluster = memory_cluster(store)
    for act in (
        lambda: decide_placeholder(state, P, extent(0, 9), 9, 9),
        lambda: decide_advance(state, 50),
        lambda: decide_barrier(state, 50),
        lambda: make_plan([(P, state)]),
    ):
        try:
            act()
        except L0gcError:
            continue
    publish_reports(store, cluster.runtime, "fuzz", [report_of("c", P, state, 3)])


@fuzzing(600)
@given(st.data(), st.integers(0, len(PARTITION) - 1))
def test_a_partition_entry_works_or_is_refused_without_any_change(data: st.DataObject, at: int) -> None:
    machine = PartitionMachine(P)
    state = state_after(machine, PARTITION[:at])
    before = machine.encode(state)
    body = data.draw(hostile(PARTITION[at], PARTITION[at - 1], is_json=True))
    bound = state.min_epoch_lower_bound
    refused = refusal(lambda: machine.apply(state, Landed(at, 5000, body, 0)))
    if refused:
        assert f"entry {at}" in refused
        assert machine.encode(state) == before
        return
    assert machine.decode(machine.encode(state), "x") == state
    assert state.min_epoch_lower_bound >= bound
    assert all(u.epoch > state.gc_epoch for u in state.placeholders)
    assert state.gc_epoch < state.previous_applied_epoch
    use(state)


@fuzzing(400)
@given(st.data(), st.integers(0, len(CONTROLLER) - 1))
def test_a_controller_entry_works_or_is_refused_without_any_change(data: st.DataObject, at: int) -> None:
    machine = ControllerMachine()
    state = state_after(machine, CONTROLLER[:at])
    before = machine.encode(state)
    body = data.draw(hostile(CONTROLLER[at], CONTROLLER[at - 1], is_json=True))
    refused = refusal(lambda: machine.apply(state, Landed(at, 5000, body, 0)))
    if refused:
        assert f"entry {at}" in refused
        assert machine.encode(state) == before
        return
    assert machine.decode(machine.encode(state), "x") == state
    assert state.epoch == at


@fuzzing(500)
@given(st.data())
def test_a_partition_checkpoint_works_or_is_refused(data: st.DataObject) -> None:
    machine = PartitionMachine(P)
    body = machine.encode(state_after(machine, PARTITION[:6]))
    other = machine.encode(state_after(machine, PARTITION[:3]))
    changed = data.draw(hostile(body, other, is_json=True) | other_json(body))
    refused = refusal(lambda: machine.decode(changed, "the/key"))
    if refused:
        assert "the/key" in refused
        return
    state = machine.decode(changed, "the/key")
    assert machine.decode(machine.encode(state), "x") == state
    use(state)


@fuzzing(300)
@given(st.data())
def test_a_controller_checkpoint_is_read_or_refused(data: st.DataObject) -> None:
    machine = ControllerMachine()
    body = machine.encode(state_after(machine, CONTROLLER))
    other = machine.encode(state_after(machine, CONTROLLER[:3]))
    changed = data.draw(hostile(body, other, is_json=True))
    refused = refusal(lambda: machine.decode(changed, "the/key"))
    if refused:
        assert "the/key" in refused
        return
    state = machine.decode(changed, "the/key")
    assert machine.decode(machine.encode(state), "x") == state


@pytest.mark.parametrize("machine", [PartitionMachine(P), ControllerMachine()], ids=["partition", "controller"])
def test_what_is_nested_too_deep_is_refused(machine: StateMachine[object]) -> None:
    deep = b'{"type":"tick","epoch":1,"more":' + b"[" * 100_000
    with pytest.raises(CorruptObjectError):
        machine.apply(machine.initial(), Landed(0, 0, deep, 0))
    with pytest.raises(CorruptObjectError):
        machine.decode(deep, "the/key")
