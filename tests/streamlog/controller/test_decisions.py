"""Entries that may be appended to the controller's log, and the sentences that refuse all others."""

from __future__ import annotations

import pytest

from l0gc.errors import (
    ClusterMismatchError,
    EpochRegressionError,
    InvalidProducerEpochError,
    ProtocolError,
    UsageError,
)
from l0gc.streamlog.controller.decisions import (
    decide_advance,
    decide_bootstrap,
    decide_create_topic,
    decide_init_producer,
)
from l0gc.streamlog.controller.entries import (
    Bootstrap,
    InitProducer,
    Tick,
)
from l0gc.streamlog.controller.state import NAME_EXPIRY_MS, ControllerState, Producer
from tests.support.controller import FOUNDED, MACHINE, P0, created, state_of


def test_a_cluster_is_founded_once() -> None:
    assert decide_bootstrap(MACHINE.initial(), FOUNDED, None) == FOUNDED
    assert decide_bootstrap(state_of(FOUNDED), Bootstrap("another", 4, journals=4), None) is None


def test_a_bucket_of_another_cluster_is_refused() -> None:
    with pytest.raises(ClusterMismatchError, match="belongs to cluster c, not d"):
        decide_bootstrap(state_of(FOUNDED), Bootstrap("d", 4), "d")


@pytest.mark.parametrize("other", [Bootstrap("c", 5), Bootstrap("c", 4, "x/{shard:03}/{epoch:018}/{uuid}")])
def test_a_cluster_keeps_its_key_layout(other: Bootstrap) -> None:
    with pytest.raises(UsageError, match="initialised with 4 shards"):
        decide_bootstrap(state_of(FOUNDED), other, None)


def test_a_cluster_keeps_its_journals() -> None:
    with pytest.raises(UsageError, match="initialised with 4 journals; that cannot change, so leave --journals out"):
        decide_bootstrap(state_of(FOUNDED), Bootstrap("c", 4, journals=5), None)


# -- topics -------------------------------------------------------------------------------------------------------------


def test_a_topic_is_created_once() -> None:
    assert decide_create_topic(state_of(FOUNDED), "t", 2, None, "id-t") == created("t", 2)
    assert decide_create_topic(state_of(FOUNDED), "t", 2, 2, "id-t") == created("t", 2, 2)
    exists = state_of(FOUNDED, created("t", 2, 2))
    assert decide_create_topic(exists, "t", 2, None, "another") is None
    assert decide_create_topic(exists, "t", 2, 2, "another") is None
    with pytest.raises(UsageError, match="'t' exists with 2 partitions, not 3"):
        decide_create_topic(exists, "t", 3, None, "another")
    with pytest.raises(UsageError, match="'t' exists in 2 journals, not 1"):
        decide_create_topic(exists, "t", 2, 1, "another")


# -- the epoch ----------------------------------------------------------------------------------------------------------


def test_an_advance_without_expectation_always_advances() -> None:
    assert decide_advance(state_of(FOUNDED, Tick()), None, "") == Tick()


def test_an_advance_is_repeatable_after_a_lost_reply_and_only_then() -> None:
    tick = decide_advance(state_of(FOUNDED), 0, "me")
    assert tick == Tick(0, "me")
    assert decide_advance(state_of(FOUNDED, tick), 0, "me") is None
    with pytest.raises(ProtocolError, match="is 1, not 0, and not because of an advance by 'you'"):
        decide_advance(state_of(FOUNDED, tick), 0, "you")
    with pytest.raises(ProtocolError, match="is 2, not 0"):
        decide_advance(state_of(FOUNDED, tick, Tick()), 0, "me")
    with pytest.raises(ProtocolError, match="is 2, not 0"):
        decide_advance(state_of(FOUNDED, tick, created("t")), 0, "me")
    with pytest.raises(ProtocolError, match="is 1, not 5"):
        decide_advance(state_of(FOUNDED, tick), 5, "me")


# -- producers ----------------------------------------------------------------------------------------------------------


def decide(
    state: ControllerState, instance: tuple[int, int, str] | None = None, name: str = "p"
) -> InitProducer | None:
    return decide_init_producer(state, name, instance, new_id=7, new_run=f"run-{state.epoch}")


def test_a_new_producer_gets_the_id_that_was_drawn() -> None:
    assert decide(state_of(FOUNDED)) == P0


def test_a_producer_that_starts_anew_fences_the_instance_before() -> None:
    entry = decide(state_of(FOUNDED, P0))
    assert entry == InitProducer("p", 7, 1, -1, "run-1")
    with pytest.raises(InvalidProducerEpochError, match="at epoch 1: a newer instance has fenced epoch 0"):
        decide(state_of(FOUNDED, P0, entry), (7, 0, "run-0"))


def test_a_self_bumping_producer_may_repeat_a_lost_request() -> None:
    bump = decide(state_of(FOUNDED, P0), (7, 0, "run-0"))
    assert bump == InitProducer("p", 7, 1, 0, "run-1")
    bumped = state_of(FOUNDED, P0, bump)
    assert decide(bumped, (7, 0, "run-0")) is None
    assert bumped.producers["p"] == Producer(7, 1, 0, 0, "run-1", "run-0")
    again = decide(bumped, (7, 1, "run-1"))
    assert again == InitProducer("p", 7, 2, 1, "run-2")
    with pytest.raises(InvalidProducerEpochError):
        decide(state_of(FOUNDED, P0, bump, again), (7, 0, "run-0"))


def test_a_new_instance_exceeds_journals_but_not_the_cluster_epoch() -> None:
    """A restored log has lost the runs of epochs 1 to 3, and has advanced since."""
    state = state_of(FOUNDED, P0, Tick(), Tick())
    entry = decide_init_producer(state, "p", None, new_id=7, new_run="new", above=3)
    assert entry == InitProducer("p", 7, 4, -1, "new")
    entry.check(state)
    assert decide_init_producer(state, "p", None, new_id=7, new_run="new", above=-1) == InitProducer(
        "p", 7, 1, -1, "new"
    )
    with pytest.raises(
        EpochRegressionError, match="epoch 4 of producer 'p', but the controller log is only at epoch 3"
    ):
        decide_init_producer(state, "p", None, new_id=7, new_run="new", above=4)


def test_two_instances_with_one_epoch_do_not_become_one() -> None:
    """A restored log assigns epoch 1 again. The earlier holder gets neither a bump nor the reply meant for the new one."""
    restored = state_of(FOUNDED, P0, InitProducer("p", 7, 1, -1, "run-1"))
    with pytest.raises(InvalidProducerEpochError):
        decide(restored, (7, 1, "run-of-the-log-that-is-gone"))
    bumped = state_of(FOUNDED, P0, InitProducer("p", 7, 1, -1, "run-1"), InitProducer("p", 7, 2, 1, "run-2"))
    assert decide(bumped, (7, 1, "run-1")) is None
    with pytest.raises(InvalidProducerEpochError):
        decide(bumped, (7, 1, "run-of-the-log-that-is-gone"))


@pytest.mark.parametrize(("producer_id", "epoch"), [(2, 1), (2, 0), (0, 1), (7, 7), (7, 2), (7, -1), (7, -2)])
@pytest.mark.parametrize("last_epoch", [0, -1])
@pytest.mark.parametrize("run", ["run-1", "run-0", ""])
def test_a_producer_that_was_never_so_is_refused(producer_id: int, epoch: int, last_epoch: int, run: str) -> None:
    """The producer never had these ids and epochs. Even -1, the stored value of a missing last epoch, is refused."""
    state = state_of(FOUNDED, P0, InitProducer("p", 7, 1, last_epoch, "run-1"))
    with pytest.raises(InvalidProducerEpochError):
        decide(state, (producer_id, epoch, run))


def test_an_unknown_producer_with_an_epoch_is_refused() -> None:
    with pytest.raises(InvalidProducerEpochError, match="'p' has no id 1; start it again"):
        decide(state_of(FOUNDED), (1, 0, "run"))


def test_a_name_that_expired_gets_another_id() -> None:
    late = state_of(FOUNDED, P0, (NAME_EXPIRY_MS, Tick()))
    entry = decide_init_producer(late, "p", None, new_id=8, new_run="later")
    assert entry == InitProducer("p", 8, 0, -1, "later")
