"""The controller's rules: the epoch is the offset, topics and producers come and go, and a replay is the live state."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.errors import (
    ClusterMismatchError,
    CorruptObjectError,
    EpochExpectationError,
    InvalidProducerEpochError,
    L0gcError,
    NotFoundError,
    TopicExistsError,
    TopicNotFoundError,
    UsageError,
)
from l0gc.keys import PartitionId
from l0gc.storage.log import Landed
from l0gc.streamlog.controller.state import (
    CLOSE_EPOCHS,
    MAX_PARTITIONS,
    NAME_EXPIRY_MS,
    PRODUCER_EXPIRY_MS,
    Bootstrap,
    ControllerEntry,
    ControllerMachine,
    ControllerState,
    CreateTopic,
    DeleteTopic,
    InitProducer,
    Producer,
    Tick,
    Topic,
    decide_advance,
    decide_bootstrap,
    decide_create_topic,
    decide_init_producer,
)

MACHINE = ControllerMachine()
FOUNDED = Bootstrap("c", 4)


def landed(offset: int, entry: ControllerEntry, time_ms: int = 0) -> Landed:
    return Landed(offset, time_ms, msgspec.json.encode(entry), time_ms)


def state_of(*entries: ControllerEntry | tuple[int, ControllerEntry]) -> ControllerState:
    state = MACHINE.initial()
    for offset, e in enumerate(entries):
        time_ms, entry = e if isinstance(e, tuple) else (0, e)
        MACHINE.apply(state, landed(offset, entry, time_ms))
    return state


def test_the_epoch_is_the_offset_of_the_last_entry() -> None:
    assert MACHINE.initial().epoch == -1
    assert state_of(FOUNDED).epoch == 0
    assert state_of(FOUNDED, Tick(), CreateTopic("t", 1), InitProducer("p", -1, 0, -1), DeleteTopic("t", 2)).epoch == 4


def test_a_topics_revision_is_the_epoch_of_its_creation() -> None:
    state = state_of(FOUNDED, Tick(), CreateTopic("t", 2))
    assert state.topics == {"t": Topic("t", 2, 2)}
    assert state.partitions() == [PartitionId("t", 2, 0), PartitionId("t", 2, 1)]


def test_a_topic_that_is_created_again_is_another_one() -> None:
    """Hazard 6: other keys, and nothing of its predecessor's at or above its own revision."""
    state = state_of(FOUNDED, CreateTopic("t", 1), DeleteTopic("t", 1), CreateTopic("t", 1))
    assert state.partitions() == [PartitionId("t", 3, 0)]
    assert [d.topic.revision for d in state.deleted] == [1]


def test_a_deleted_topic_is_closed_for_a_while_and_known_for_ever() -> None:
    entries: list[ControllerEntry] = [FOUNDED, CreateTopic("t", 1), DeleteTopic("t", 1)]
    entries += [Tick()] * (CLOSE_EPOCHS - 1)
    assert state_of(*entries).to_be_closed() == [PartitionId("t", 1, 0)]
    later = state_of(*entries, Tick())
    assert later.to_be_closed() == []
    assert later.knows("t", 1)
    assert not later.knows("t", 2)
    assert not later.knows("u", 1)


def test_an_unknown_topic_is_answered_with_the_nearest_name() -> None:
    state = state_of(FOUNDED, CreateTopic("flights", 1))
    with pytest.raises(TopicNotFoundError, match="there is no topic 'flihgts'; did you mean 'flights'"):
        state.topic("flihgts")
    with pytest.raises(TopicNotFoundError, match="l0gc topic list"):
        state.topic("zzz")


@pytest.mark.parametrize(
    "entry",
    [
        CreateTopic("t", 1),
        CreateTopic("u", 0),
        CreateTopic("u", MAX_PARTITIONS + 1),
        DeleteTopic("u", 1),
        DeleteTopic("t", 0),
        FOUNDED,
        InitProducer("p", 2, 2, -1),  # the epoch goes down, stays, jumps
        InitProducer("p", 2, 3, 2),
        InitProducer("p", 2, 5, 3),
        InitProducer("p", 2, 4, 2),  # it was bumped from an epoch that it was not at
        InitProducer("p", 3, 4, 3),  # another id
        InitProducer("p", -2, 0, -1),
        InitProducer("p", -1, 1, -1),
        InitProducer("p", -1, 0, 0),
        InitProducer("q", 2, 4, 3),
    ],
)
def test_an_entry_that_no_decision_makes_is_corrupt_and_changes_nothing(entry: ControllerEntry) -> None:
    bumps = [InitProducer("p", 2, e, e - 1) for e in (1, 2, 3)]
    state = state_of(FOUNDED, CreateTopic("t", 1), InitProducer("p", -1, 0, -1), *bumps)
    before = MACHINE.encode(state)
    with pytest.raises(CorruptObjectError, match="controller log entry 6"):
        MACHINE.apply(state, landed(6, entry))
    assert MACHINE.encode(state) == before


@pytest.mark.parametrize("payload", [b"", b"{}", b'{"type":"what"}', b'{"type":"create_topic"}', b'"\xff"'])
def test_an_entry_that_cannot_be_read_is_corrupt(payload: bytes) -> None:
    with pytest.raises(CorruptObjectError, match="controller log entry 1"):
        MACHINE.apply(state_of(FOUNDED), Landed(1, 0, payload, 0))


def test_a_cluster_begins_with_its_bootstrap() -> None:
    with pytest.raises(CorruptObjectError, match="entry 0: a bootstrap belongs at offset 0"):
        MACHINE.apply(MACHINE.initial(), landed(0, Tick()))


@pytest.mark.parametrize("body", [b"", b"[]", b'{"epoch":"x"}', b"\xff"])
def test_a_checkpoint_that_cannot_be_read_is_named(body: bytes) -> None:
    with pytest.raises(CorruptObjectError, match="the/key is not a controller checkpoint"):
        MACHINE.decode(body, "the/key")


# -- decisions ----------------------------------------------------------------------------------------------------------


def test_a_cluster_is_founded_once() -> None:
    assert decide_bootstrap(MACHINE.initial(), FOUNDED, None) == FOUNDED
    assert decide_bootstrap(state_of(FOUNDED), Bootstrap("another", 4), None) is None


def test_a_bucket_of_another_cluster_is_refused() -> None:
    with pytest.raises(ClusterMismatchError, match="belongs to cluster c, not d"):
        decide_bootstrap(state_of(FOUNDED), Bootstrap("d", 4), "d")


@pytest.mark.parametrize("other", [Bootstrap("c", 5), Bootstrap("c", 4, "x/{shard:03}/{epoch:018}/{uuid}")])
def test_a_cluster_keeps_its_key_layout(other: Bootstrap) -> None:
    with pytest.raises(UsageError, match="initialised with 4 shards"):
        decide_bootstrap(state_of(FOUNDED), other, None)


def test_a_topic_is_created_once() -> None:
    assert decide_create_topic(state_of(FOUNDED), "t", 2) == CreateTopic("t", 2)
    exists = state_of(FOUNDED, CreateTopic("t", 2))
    assert decide_create_topic(exists, "t", 2) is None
    with pytest.raises(TopicExistsError, match="'t' exists with 2 partitions, not 3"):
        decide_create_topic(exists, "t", 3)


@pytest.mark.parametrize(("name", "partitions"), [("t", 0), ("t", MAX_PARTITIONS + 1), ("a/b", 1), ("", 1)])
def test_a_topic_that_cannot_be_is_a_usage_error(name: str, partitions: int) -> None:
    with pytest.raises(UsageError):
        decide_create_topic(state_of(FOUNDED), name, partitions)


def test_an_advance_without_expectation_always_advances() -> None:
    assert decide_advance(state_of(FOUNDED, Tick()), None, "") == Tick()


def test_an_advance_is_repeatable_after_a_lost_reply_and_only_then() -> None:
    tick = decide_advance(state_of(FOUNDED), 0, "me")
    assert tick == Tick(0, "me")
    assert decide_advance(state_of(FOUNDED, tick), 0, "me") is None
    with pytest.raises(EpochExpectationError, match="is 1, not 0, and not because of an advance by 'you'"):
        decide_advance(state_of(FOUNDED, tick), 0, "you")
    with pytest.raises(EpochExpectationError, match="is 2, not 0"):
        decide_advance(state_of(FOUNDED, tick, Tick()), 0, "me")
    with pytest.raises(EpochExpectationError, match="is 2, not 0"):
        decide_advance(state_of(FOUNDED, tick, CreateTopic("t", 1)), 0, "me")
    with pytest.raises(EpochExpectationError, match="is 1, not 5"):
        decide_advance(state_of(FOUNDED, tick), 5, "me")


P0 = InitProducer("p", -1, 0, -1)


def test_a_new_producers_id_is_the_offset_of_its_entry() -> None:
    assert decide_init_producer(state_of(FOUNDED, Tick()), "p", None, None) == P0
    assert state_of(FOUNDED, Tick(), P0).producers == {"p": Producer(2, 0, -1, 0)}


def test_a_producer_that_starts_anew_fences_the_instance_before() -> None:
    state = state_of(FOUNDED, P0)
    entry = decide_init_producer(state, "p", None, None)
    assert entry == InitProducer("p", 1, 1, -1)
    fenced = state_of(FOUNDED, P0, entry)
    with pytest.raises(InvalidProducerEpochError, match="at epoch 1: a newer instance has fenced epoch 0"):
        decide_init_producer(fenced, "p", 1, 0)


def test_a_producer_that_bumps_its_own_epoch_may_repeat_that_after_a_lost_reply() -> None:
    bump = decide_init_producer(state_of(FOUNDED, P0), "p", 1, 0)
    assert bump == InitProducer("p", 1, 1, 0)
    bumped = state_of(FOUNDED, P0, bump)
    assert decide_init_producer(bumped, "p", 1, 0) is None
    assert bumped.producers["p"] == Producer(1, 1, 0, 0)
    again = decide_init_producer(bumped, "p", 1, 1)
    assert again == InitProducer("p", 1, 2, 1)
    with pytest.raises(InvalidProducerEpochError):
        decide_init_producer(state_of(FOUNDED, P0, bump, again), "p", 1, 0)


@pytest.mark.parametrize(("producer_id", "epoch"), [(2, 1), (2, 0), (0, 1), (1, 7), (1, 2), (1, -1), (1, -2)])
@pytest.mark.parametrize("last_epoch", [0, -1])
def test_a_producer_that_was_never_so_is_refused(producer_id: int, epoch: int, last_epoch: int) -> None:
    """Also -1, which is written where there is no last epoch: nobody gets the current epoch for it without a bump."""
    state = state_of(FOUNDED, P0, InitProducer("p", 1, 1, last_epoch))
    with pytest.raises(InvalidProducerEpochError):
        decide_init_producer(state, "p", producer_id, epoch)


@pytest.mark.parametrize(("producer_id", "epoch"), [(1, None), (None, 0)])
def test_an_instance_has_an_id_and_an_epoch_or_neither(producer_id: int | None, epoch: int | None) -> None:
    with pytest.raises(UsageError, match="an id and an epoch"):
        decide_init_producer(state_of(FOUNDED, P0), "p", producer_id, epoch)


def test_an_unknown_producer_with_an_epoch_is_refused() -> None:
    with pytest.raises(InvalidProducerEpochError, match="'p' has no id 1; start it anew"):
        decide_init_producer(state_of(FOUNDED), "p", 1, 0)


@pytest.mark.parametrize("name", ["", "x" * 201])
def test_a_producer_name_that_cannot_be_is_a_usage_error(name: str) -> None:
    with pytest.raises(UsageError, match="producer name"):
        decide_init_producer(state_of(FOUNDED), name, None, None)


def test_a_name_that_no_run_used_expires_and_then_gets_another_id() -> None:
    early = state_of(FOUNDED, P0, (NAME_EXPIRY_MS - 1, Tick()))
    assert "p" in early.producers
    late = state_of(FOUNDED, P0, (NAME_EXPIRY_MS, Tick()))
    assert late.producers == {}
    entry = decide_init_producer(late, "p", None, None)
    assert entry is not None
    assert state_of(FOUNDED, P0, (NAME_EXPIRY_MS, Tick()), entry).producers["p"].producer_id == 3


def test_each_run_renews_its_name() -> None:
    half = NAME_EXPIRY_MS // 2
    bump = InitProducer("p", 1, 1, -1)
    assert "p" in state_of(FOUNDED, P0, (half, bump), (half + NAME_EXPIRY_MS - 1, Tick())).producers
    assert "p" not in state_of(FOUNDED, P0, (half, bump), (half + NAME_EXPIRY_MS, Tick())).producers


def test_a_name_outlives_what_partitions_know_of_a_run_by_as_long_as_a_run_may_take() -> None:
    """A run of a week that is repeated within a week of its last record still has its id, hence its position."""
    assert NAME_EXPIRY_MS >= 2 * PRODUCER_EXPIRY_MS


def test_only_the_newest_run_may_begin_and_only_while_no_partition_can_have_forgotten_it() -> None:
    """Hazard 17: what it landed may have been forgotten with it."""
    state = state_of(FOUNDED, P0, (100, InitProducer("p", 1, 1, -1)), (100, InitProducer("q", -1, 0, -1)))
    last_ms = 100 + PRODUCER_EXPIRY_MS - 1
    assert state.may_begin(1, 1, 100)
    assert state.may_begin(1, 1, last_ms)
    assert not state.may_begin(1, 1, last_ms + 1)
    assert state.may_begin(3, 0, 100)
    for producer_id, epoch in [(1, 0), (1, 2), (1, -1), (3, 1), (2, 0), (0, 0)]:
        assert not state.may_begin(producer_id, epoch, 100)


def test_an_unknown_producer_is_answered_with_the_nearest_name() -> None:
    state = state_of(FOUNDED, InitProducer("nightly", -1, 0, -1))
    assert state.producer("nightly") is state.producers["nightly"]
    with pytest.raises(NotFoundError, match=r"there is no producer 'nigthly', .*; did you mean 'nightly'"):
        state.producer("nigthly")
    with pytest.raises(NotFoundError, match="l0gc producer list"):
        state.producer("zzz")


# -- any sequence -------------------------------------------------------------------------------------------------------


def _decided(state: ControllerState, rng: random.Random) -> ControllerEntry | None:
    name = rng.choice(["a", "b", "c"])
    try:
        match rng.randrange(6):
            case 0:
                return decide_create_topic(state, name, rng.randint(1, 3))
            case 1:
                return DeleteTopic(name, state.topic(name).revision)
            case 2:
                return decide_advance(state, rng.choice([None, state.epoch, state.epoch - 1]), name)
            case 3:
                return decide_init_producer(state, name, None, None)
            case 4:
                return decide_init_producer(state, name, rng.randint(0, 9), rng.randint(0, 2))
            case _:
                return decide_bootstrap(state, FOUNDED, None)
    except L0gcError:
        return None


@given(st.randoms(use_true_random=False), st.integers(1, 40))
def test_a_replay_from_any_checkpoint_is_the_live_state(rng: random.Random, steps: int) -> None:
    live = MACHINE.initial()
    log: list[Landed] = []
    checkpoints: list[bytes] = []
    time_ms = 0
    for _ in range(steps):
        time_ms += rng.choice([0, 1, NAME_EXPIRY_MS // 2])
        entry = _decided(live, rng) if log else FOUNDED
        if entry is None:
            continue
        log.append(landed(len(log), entry, time_ms))
        before = MACHINE.decode(MACHINE.encode(live), "")
        MACHINE.apply(live, log[-1])
        checkpoints.append(MACHINE.encode(live))
        assert live.epoch == before.epoch + 1
        assert {p.revision for p in live.partitions()} - {p.revision for p in before.partitions()} <= {live.epoch}
        assert MACHINE.decode(checkpoints[-1], "") == live
    for i in range(-1, len(checkpoints)):
        state = MACHINE.decode(checkpoints[i], "") if i >= 0 else MACHINE.initial()
        for e in log[i + 1 :]:
            MACHINE.apply(state, e)
        assert state == live
    ids = [p.producer_id for p in live.producers.values()]
    assert len(set(ids)) == len(ids)
