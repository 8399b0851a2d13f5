"""The controller's state: the epoch is an offset, topics and producers come and go, and a replay gives the same state."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.errors import CorruptObjectError, L0gcError, NotFoundError, UsageError
from l0gc.keys import PartitionId
from l0gc.storage.entry import StoredEntry
from l0gc.streamlog.controller.decisions import (
    decide_advance,
    decide_bootstrap,
    decide_create_topic,
    decide_init_producer,
)
from l0gc.streamlog.controller.entries import (
    ControllerEntry,
    DeleteTopic,
    ForgetTopics,
    Tick,
)
from l0gc.streamlog.controller.state import (
    NAME_EXPIRY_MS,
    PRODUCER_EXPIRY_MS,
    RUN_LIMIT_MS,
    ControllerState,
    Producer,
    Topic,
)
from tests.streamlog.controller.test_entries import bump
from tests.support.controller import FOUNDED, MACHINE, P0, created, landed, state_of


@pytest.mark.parametrize(
    ("newer", "follows"),
    [
        (Producer(7, 1, 0, 50, "b"), True),
        (Producer(7, 0, -1, 50, "b"), True),
        (Producer(7, 0, -1, 90, "a"), False),
        (Producer(8, 0, -1, 50, "b"), True),  # its name was forgotten in the same millisecond
        (Producer(8, 0, -1, 49, "b"), False),
    ],
)
def test_a_run_follows_the_one_that_began_before_it(newer: Producer, follows: bool) -> None:
    assert newer.follows(Producer(7, 0, -1, 50, "a")) is follows


def test_the_epoch_is_the_offset_of_the_last_entry() -> None:
    assert MACHINE.initial().epoch == -1
    assert state_of(FOUNDED).epoch == 0
    assert state_of(FOUNDED, Tick(), created("t"), P0, DeleteTopic("t", 2)).epoch == 4


def test_a_topics_revision_is_the_epoch_of_its_creation() -> None:
    state = state_of(FOUNDED, Tick(), created("t", 2))
    assert state.topics == {"t": Topic("t", 2, 2, (0,), "id-t")}
    assert state.topic("t").id(1) == PartitionId("t", 2, 1)


def test_a_topic_that_is_created_again_is_another_one() -> None:
    """Hazard 6: the new topic gets other keys, and nothing of its predecessor lies at or above its revision."""
    state = state_of(FOUNDED, created("t"), DeleteTopic("t", 1), created("t"))
    assert state.topic("t").id(0) == PartitionId("t", 3, 0)
    assert [d.topic.revision for d in state.deleted] == [1]


def test_a_deleted_topic_must_be_closed_until_forgotten() -> None:
    """Hazard 6: the journals may hold records of the deleted topic for as long as it is not closed there."""
    entries: list[ControllerEntry] = [FOUNDED, created("s", 1), created("t", 2, 2), DeleteTopic("t", 2)]
    entries += [DeleteTopic("s", 1), *[Tick()] * 2000]
    later = state_of(*entries)
    s, t = (d.topic for d in sorted(later.deleted, key=lambda d: d.topic.name))
    assert later.deleted_of() == {1: [t], 2: [t], 0: [s]}
    assert state_of(*entries, ForgetTopics([2])).deleted_of() == {0: [s]}
    assert later.has_created(2, "id-t")
    assert not later.has_created(2, "id-s")
    assert not later.has_created(9, "id-t")


def test_an_unknown_topic_is_answered_with_the_nearest_name() -> None:
    state = state_of(FOUNDED, created("flights"))
    with pytest.raises(NotFoundError, match="topic 'flihgts' does not exist; did you mean 'flights'"):
        state.topic("flihgts")
    with pytest.raises(NotFoundError, match="l0gc topic list"):
        state.topic("zzz")


# -- checkpoints --------------------------------------------------------------------------------------------------------


FULL = (FOUNDED, created("t", 8, 3), created("u"), DeleteTopic("u", 2), P0, bump(1, 0), Tick(5, "me"))


def test_a_checkpoint_holds_all_of_the_state() -> None:
    state = state_of(*FULL)
    assert MACHINE.decode(MACHINE.encode(state), "") == state


@pytest.mark.parametrize("body", [b"", b"\x90\x90", b"\x91\x01", b"\xff", b"{}"])
def test_a_checkpoint_that_cannot_be_read_is_named(body: bytes) -> None:
    with pytest.raises(CorruptObjectError, match="the/key is not a controller checkpoint"):
        MACHINE.decode(body, "the/key")


def _topic(**changes: object) -> dict[str, object]:
    return {"topics": {"t": msgspec.structs.replace(state_of(*FULL).topic("t"), **changes)}}


@pytest.mark.parametrize(
    "changes",
    [
        {"epoch": -1},
        {"epoch": -2},
        {"epoch": 10**18},
        {"shards": 0},
        {"key_template": "{uuid}"},
        {"cluster_id": ""},
        {"journals": 0},
        {"journals": 2},
        {"topics": {"v": state_of(*FULL).topic("t")}},
        _topic(revision=0),
        _topic(revision=7),
        _topic(partitions=0),
        _topic(partitions=2),
        _topic(journals=()),
        _topic(journals=(0, 0)),
        _topic(journals=(-1, 0)),
        _topic(journals=(0, 4)),
        _topic(topic_id=""),
        {"deleted": [msgspec.structs.replace(d, deleted_epoch=2) for d in state_of(*FULL).deleted]},
        {"deleted": [msgspec.structs.replace(d, deleted_epoch=7) for d in state_of(*FULL).deleted]},
        {"producers": {"": Producer(7, 0, -1, 0, "r")}},
        {"producers": {"p": Producer(7, 0, 0, 0, "r")}},
        {"producers": {"p": Producer(7, 0, -2, 0, "r")}},
        {"producers": {"p": Producer(-1, 0, -1, 0, "r")}},
        {"producers": {"p": Producer(7, 0, -1, 0, "")}},
    ],
)
def test_a_checkpoint_that_no_log_leads_to_is_refused(changes: dict[str, object]) -> None:
    body = MACHINE.encode(msgspec.structs.replace(state_of(*FULL), **changes))
    with pytest.raises(CorruptObjectError, match="the/key is not a controller checkpoint"):
        MACHINE.decode(body, "the/key")


@given(st.integers(0, 400), st.integers(0, 255))
def test_a_checkpoint_with_one_byte_changed_is_read_or_corrupt(at: int, value: int) -> None:
    body = bytearray(MACHINE.encode(state_of(*FULL)))
    body[at % len(body)] = value
    try:
        state = MACHINE.decode(bytes(body), "")
    except CorruptObjectError:
        return
    for name in state.topics:
        assert sum(r.count for r in state.topic(name).partition_ranges()) == state.topic(name).partitions
    state.deleted_of()
    state.least_used_journals(1)


def test_a_copy_does_not_change_with_the_state() -> None:
    state = state_of(*FULL)
    copy = state.copy()
    before = MACHINE.encode(copy)
    entries: list[ControllerEntry] = [created("v"), DeleteTopic("t", 1), bump(2, 1), Tick()]
    for offset, entry in enumerate(entries, len(FULL)):
        MACHINE.apply(state, landed(offset, entry))
    assert MACHINE.encode(copy) == before


# -- producers ----------------------------------------------------------------------------------------------------------


def test_a_self_bump_remembers_its_previous_epoch() -> None:
    assert state_of(FOUNDED, P0).producers == {"p": Producer(7, 0, -1, 0, "run-0")}
    assert state_of(FOUNDED, P0, bump(1, 0)).producers["p"] == Producer(7, 1, 0, 0, "run-1", "run-0")
    assert state_of(FOUNDED, P0, bump(1)).producers["p"] == Producer(7, 1, -1, 0, "run-1", "")


def test_a_name_that_no_run_used_expires() -> None:
    assert "p" in state_of(FOUNDED, P0, (NAME_EXPIRY_MS - 1, Tick())).producers
    assert state_of(FOUNDED, P0, (NAME_EXPIRY_MS, Tick())).producers == {}


def test_each_run_renews_its_name() -> None:
    half = NAME_EXPIRY_MS // 2
    q = bump(0, name="q", producer_id=8)
    early = (FOUNDED, P0, (half - 1, q), (half, bump(1)), (half + NAME_EXPIRY_MS - 1, Tick()))
    assert list(state_of(*early).producers) == ["p"]
    assert state_of(*early, (half + NAME_EXPIRY_MS, Tick())).producers == {}


def test_a_log_whose_time_goes_back_expires_nothing_early_and_in_order() -> None:
    state = state_of(FOUNDED, (NAME_EXPIRY_MS, P0), (0, bump(0, name="q", producer_id=8)), (NAME_EXPIRY_MS, Tick()))
    assert [p.time_ms for p in state.producers.values()] == [NAME_EXPIRY_MS, NAME_EXPIRY_MS]


def test_a_journal_remembers_inputs_for_a_runs_maximum_duration() -> None:
    """A run that lasts as long as it may can be repeated for as long again, and still finds its id and its position."""
    assert NAME_EXPIRY_MS >= 2 * RUN_LIMIT_MS
    assert PRODUCER_EXPIRY_MS >= NAME_EXPIRY_MS + RUN_LIMIT_MS


def test_only_the_newest_unforgotten_run_may_begin() -> None:
    """Hazard 17: the journals may have forgotten what an older run landed."""
    state = state_of(FOUNDED, P0, (100, bump(1)), (100, bump(0, name="q", producer_id=8)))
    last_ms = 100 + RUN_LIMIT_MS - 1
    assert state.may_begin(7, 1, "run-1", 100)
    assert state.may_begin(7, 1, "run-1", last_ms)
    assert not state.may_begin(7, 1, "run-1", last_ms + 1)
    assert state.may_begin(8, 0, "run-0", 100)
    for producer_id, epoch in [(7, 0), (7, 2), (7, -1), (8, 1), (9, 0), (0, 0)]:
        assert not state.may_begin(producer_id, epoch, f"run-{epoch}", 100)


def test_a_reissued_epoch_does_not_admit_a_lost_logs_run() -> None:
    state = state_of(FOUNDED, P0, bump(1))
    assert not state.may_begin(7, 1, "run-of-the-log-that-is-gone", 0)


def test_an_unknown_producer_is_answered_with_the_nearest_name() -> None:
    state = state_of(FOUNDED, bump(0, name="nightly"))
    assert state.producer("nightly") is state.producers["nightly"]
    with pytest.raises(NotFoundError, match=r"producer 'nigthly' does not exist, .*; did you mean 'nightly'"):
        state.producer("nigthly")
    with pytest.raises(NotFoundError, match="l0gc producer list"):
        state.producer("zzz")


# -- random sequences ---------------------------------------------------------------------------------------------------


def _decided(state: ControllerState, rng: random.Random) -> ControllerEntry | None:
    name = rng.choice(["a", "b", "c"])
    try:
        match rng.randrange(6):
            case 0:
                return decide_create_topic(state, name, rng.randint(1, 9), rng.choice([None, 1, 2, 4, 5]), "some id")
            case 1:
                return DeleteTopic(name, state.topic(name).revision)
            case 2:
                return decide_advance(state, rng.choice([None, state.epoch, state.epoch - 1]), name)
            case 3 | 4:
                p = state.producers.get(name)
                instance = (
                    None if p is None else (p.producer_id, p.epoch - rng.randint(0, 1), rng.choice([p.run, p.last_run]))
                )
                ids = {"new_id": 10 + state.epoch, "new_run": f"run-{state.epoch}"}
                return decide_init_producer(state, name, rng.choice([None, instance]), **ids)  # type: ignore[arg-type]
            case _:
                return decide_bootstrap(state, FOUNDED, None)
    except L0gcError:
        return None


@given(st.randoms(use_true_random=False), st.integers(1, 40))
def test_a_replay_from_any_checkpoint_is_the_live_state(rng: random.Random, steps: int) -> None:
    live = MACHINE.initial()
    log: list[StoredEntry] = []
    checkpoints: list[bytes] = []
    time_ms = 0
    for _ in range(steps):
        time_ms += rng.choice([0, 1, NAME_EXPIRY_MS // 2])
        entry = _decided(live, rng) if log else FOUNDED
        if entry is None:
            continue
        payload = landed(len(log), entry).payload
        try:
            MACHINE.check(live, len(log), payload)
        except UsageError:  # more journals than the cluster has
            continue
        log.append(landed(len(log), entry, time_ms))
        before = live.copy()
        MACHINE.apply(live, log[-1])
        checkpoints.append(MACHINE.encode(live))
        assert live.epoch == before.epoch + 1
        revisions = {t.revision for t in live.topics.values()} - {t.revision for t in before.topics.values()}
        assert revisions <= {live.epoch}
        for t in before.topics.values():  # a topic never moves
            assert live.topics.get(t.name, t).revision != t.revision or live.topics.get(t.name, t) == t
        assert MACHINE.decode(checkpoints[-1], "") == live
    for i in range(-1, len(checkpoints)):
        state = MACHINE.decode(checkpoints[i], "") if i >= 0 else MACHINE.initial()
        for e in log[i + 1 :]:
            MACHINE.apply(state, e)
        assert MACHINE.encode(state) == checkpoints[-1]
    ids = [p.producer_id for p in live.producers.values()]
    assert len(set(ids)) == len(ids)
