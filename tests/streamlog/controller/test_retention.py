"""Retention settings, the times of epochs, and deleted topics that are forgotten."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.errors import CorruptObjectError, NotFoundError, UsageError
from l0gc.streamlog.controller.decisions import NOT_GIVEN, RetentionSettings
from l0gc.streamlog.controller.entries import (
    AlterDefaults,
    AlterTopic,
    CreateTopic,
    Tick,
)
from l0gc.streamlog.controller.state import (
    EPOCH_TIME_STEP_MS,
    EPOCH_TIMES_KEPT_MS,
    EpochTime,
    Retention,
)
from tests.support.controller import FOUNDED, MACHINE, created, state_of
from tests.support.memory_store import memory_cluster

MINUTE = 60_000


def test_a_topics_settings_override_the_clusters() -> None:
    state = state_of(FOUNDED, created("a"), CreateTopic("b", 1, 1, "id-b", 5, None), AlterDefaults(7, 9))
    assert state.retention(state.topic("a")) == Retention(7, 9)
    assert state.retention(state.topic("b")) == Retention(5, 9)
    state = state_of(FOUNDED, created("a"), AlterTopic("a", 1, -1, 3), AlterDefaults(7, 9))
    assert state.retention(state.topic("a")) == Retention(-1, 3)
    assert state_of(FOUNDED, created("a")).retention(state.topic("a")) == Retention(-1, 3)
    assert Retention() == Retention(-1, -1)


def test_what_is_not_given_stays_and_none_goes_back_to_the_default() -> None:
    controller = memory_cluster().controller
    topic, _ = controller.create_topic("a", 1, retention=RetentionSettings(ms=5))
    assert (topic.retention_ms, topic.retention_bytes) == (5, None)
    assert controller.create_topic("a", 1) == controller.create_topic("a", 1, retention=RetentionSettings(ms=5))
    with pytest.raises(UsageError, match="l0gc topic alter"):
        controller.create_topic("a", 1, retention=RetentionSettings(ms=6))
    altered, before = controller.alter_topic("a", RetentionSettings(bytes=9))
    assert (altered.retention_ms, altered.retention_bytes) == (5, 9)
    assert before is not None
    assert before.retention_bytes != 9
    epoch = controller.epoch()
    assert not controller.alter_topic("a", RetentionSettings(bytes=9))[1]
    assert controller.epoch() == epoch
    altered, _ = controller.alter_topic("a", RetentionSettings(ms=None))
    assert (altered.retention_ms, altered.retention_bytes) == (None, 9)
    assert controller.alter_defaults(RetentionSettings(ms=3)) == (Retention(3, -1), True)
    assert controller.alter_defaults(RetentionSettings(ms=3)) == (Retention(3, -1), False)
    assert controller.alter_defaults(RetentionSettings(ms=None, bytes=4)) == (Retention(-1, 4), True)
    assert RetentionSettings() == NOT_GIVEN
    with pytest.raises(UsageError, match="retention_ms cannot be -2"):
        controller.alter_topic("a", RetentionSettings(ms=-2))
    with pytest.raises(NotFoundError, match="does not exist"):
        controller.alter_topic("b", RetentionSettings(ms=1))


def test_a_topic_altered_meanwhile_is_still_deleted() -> None:
    controller = memory_cluster().controller
    controller.create_topic("a", 1)
    controller.alter_topic("a", RetentionSettings(ms=1))
    assert controller.delete_topic("a").retention_ms == 1


def test_a_topic_of_which_nothing_is_left_is_forgotten_once() -> None:
    controller = memory_cluster().controller
    topics = [controller.create_topic(name, 1)[0] for name in ("a", "b")]
    controller.delete_topic("a")
    assert controller.forget_topics([topics[0].revision, topics[1].revision, 99])
    assert not controller.forget_topics([topics[0].revision])
    state = controller.snapshot()
    assert (state.deleted, list(state.topics)) == ([], ["b"])
    assert not state.has_created(topics[0].revision, topics[0].topic_id)


# -- the times of epochs --------------------------------------------------------------------------------------------------


def test_epoch_ages_are_known_to_a_quarter_hour() -> None:
    ticks = [(n * 5 * MINUTE, Tick()) for n in range(1, 20)]
    state = state_of((0, FOUNDED), *ticks)
    assert [e.epoch for e in state.epoch_times] == [0, 3, 6, 9, 12, 15, 18]
    assert [state.epoch_before(m * MINUTE) for m in (-1, 0, 14, 15, 44, 45, 94, 95)] == [0, 0, 0, 3, 6, 9, 18, 19]
    assert MACHINE.decode(MACHINE.encode(state), "").epoch_times == state.epoch_times


@given(st.lists(st.integers(0, 6 * 3_600_000), max_size=300))
def test_epoch_times_stay_few_and_never_exaggerate_age(gaps: list[int]) -> None:
    times = list(itertools.accumulate(gaps, initial=0))
    state = state_of((0, FOUNDED), *((t, Tick()) for t in times[1:]))
    kept = state.epoch_times
    assert len(kept) <= EPOCH_TIMES_KEPT_MS // EPOCH_TIME_STEP_MS + 2
    assert all(times[e.epoch] == e.time_ms for e in kept)
    for age in (0, 3_600_000, 24 * 3_600_000, EPOCH_TIMES_KEPT_MS):
        at = times[-1] - age
        epoch = state.epoch_before(at)
        assert epoch == 0 or times[epoch] <= at
        if at >= 0:  # the epoch is the newest kept one that is old enough
            newer = [e for e in kept if e.epoch > epoch]
            assert not newer or newer[0].time_ms > at


@pytest.mark.parametrize("times", [[EpochTime(3, 0), EpochTime(2, 5)], [EpochTime(-1, 0)], [EpochTime(9, 0)]])
def test_a_checkpoint_with_epochs_that_cannot_be_is_refused(times: list[EpochTime]) -> None:
    state = msgspec.structs.replace(state_of(FOUNDED, Tick(), Tick(), Tick()), epoch_times=times)
    with pytest.raises(CorruptObjectError):
        MACHINE.decode(MACHINE.encode(state), "")
