"""The limit on the time for which requests wait in vain, and which requests are sent again."""

from __future__ import annotations

import pytest

from l0gc.storage.patience import Patience

JOURNAL = "l0gc/journal/{}/log/7"


class Watch:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def patience(watch: Watch) -> Patience:
    return Patience(120, watch)


def wait(patience: Patience, watch: Watch, key: str, seconds: float = 60, kind: str = "get") -> None:
    began = watch.now
    watch.now += seconds
    patience.unanswered(kind, key, began)


def test_requests_that_wait_one_after_another_share_one_limit(patience: Patience, watch: Watch) -> None:
    for journal in range(2):
        assert not patience.is_over("get")
        wait(patience, watch, JOURNAL.format(journal))
    assert patience.is_over("get")


def test_requests_that_wait_at_once_count_once(patience: Patience, watch: Watch) -> None:
    watch.now += 60
    for journal in range(16):
        patience.unanswered("get", JOURNAL.format(journal), 0)
    assert not patience.is_over("get")


def test_an_answer_about_the_same_folder_takes_its_time_back(patience: Patience, watch: Watch) -> None:
    for _ in range(100):
        wait(patience, watch, JOURNAL.format(3))
        patience.answered("get", JOURNAL.format(3))
        assert not patience.is_over("get")


@pytest.mark.parametrize(
    ("kind", "key"), [("put", JOURNAL.format(3)), ("get", JOURNAL.format(4)), ("get", "level_zero/data/1")]
)
def test_answers_about_other_things_do_not_extend_the_limit(
    patience: Patience, watch: Watch, kind: str, key: str
) -> None:
    for _ in range(2):
        wait(patience, watch, JOURNAL.format(3))
        patience.answered(kind, key)
    assert patience.is_over("get")


def test_only_kinds_of_requests_that_went_unanswered_end(patience: Patience, watch: Watch) -> None:
    for _ in range(2):
        wait(patience, watch, JOURNAL.format(3), kind="delete")
    assert (patience.is_over("delete"), patience.is_over("put")) == (True, False)


def test_after_a_rest_the_store_is_tried_anew(patience: Patience, watch: Watch) -> None:
    for _ in range(2):
        wait(patience, watch, JOURNAL.format(3))
    watch.now += 59
    assert patience.is_over("get")
    watch.now += 1
    assert not patience.is_over("get")
    wait(patience, watch, JOURNAL.format(3))
    assert not patience.is_over("get")


def test_a_request_is_sent_again_for_half_of_the_limit(patience: Patience, watch: Watch) -> None:
    watch.now = 59
    assert patience.allows_again(0)
    watch.now = 60
    assert not patience.allows_again(0)


def test_a_request_is_not_sent_again_beyond_the_rest(patience: Patience, watch: Watch) -> None:
    wait(patience, watch, JOURNAL.format(3), 100)
    began = watch.now
    watch.now += 19
    assert patience.allows_again(began)
    watch.now += 1
    assert not patience.allows_again(began)
