"""Deleting a batch: failures that may pass are tried again, others are reported, and no other key is touched."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Sequence

import pytest

from l0gc.collect.deletion import PATIENCE_S, TRIES, Deletable, DeleteOutcome, Deleter, Pacer, PauseWatch, set_pause
from l0gc.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    SafetyError,
    StoreError,
    StoreSilentError,
    StoreTimeoutError,
    ThrottledError,
)
from l0gc.keys import PAUSED
from l0gc.runtime import Runtime
from l0gc.storage.objectstore import DeleteFailure, VersionedKey, VersionsDeleted
from tests.support.memory_store import Call, MemoryStore, failing, once

OBJECTS = [Deletable(f"k{i}", i, 10) for i in range(5)]


class Stubborn(MemoryStore):
    """A store whose keys fail with a code for a number of times each."""

    def __init__(self, failing: dict[str, tuple[int, str]]) -> None:
        super().__init__()
        self.failing = failing
        self.requested: Counter[str] = Counter()

    def delete(self, keys: Sequence[str]) -> list[DeleteFailure]:
        self.requested.update(keys)
        failed = [k for k in keys if self.requested[k] <= self.failing.get(k, (0, ""))[0]]
        super().delete([k for k in keys if k not in failed])
        return [DeleteFailure(k, self.failing[k][1], "why") for k in failed]


def a_deleter(
    store: MemoryStore, stop: threading.Event | None = None, *, keep_history: bool = False
) -> tuple[Deleter, Pacer]:
    runtime, stop = Runtime(store.clock, random.Random(0)), stop or threading.Event()
    pacer = Pacer(runtime, None, stop)
    return Deleter(store, runtime, pacer, stop, keep_history=keep_history), pacer


def run(store: MemoryStore, stop: threading.Event | None = None) -> DeleteOutcome:
    for o in OBJECTS:
        store.put(o.key, b"x" * o.size)
    store.put("k5", b"x")
    return a_deleter(store, stop)[0].delete(OBJECTS)


def test_a_batch_is_one_request() -> None:
    store = MemoryStore()
    outcome = run(store)
    assert (outcome.deleted, outcome.failures, outcome.requests, outcome.errors) == (OBJECTS, [], 1, 0)
    assert list(store.objects) == ["k5"]


@pytest.mark.parametrize("code", ["SlowDown", "InternalError", "ServiceUnavailable"])
def test_only_the_keys_that_failed_are_tried_again(code: str) -> None:
    store = Stubborn({"k2": (2, code)})
    outcome = run(store)
    assert (sorted(o.key for o in outcome.deleted), outcome.failures, outcome.requests) == (
        [o.key for o in OBJECTS],
        [],
        3,
    )
    assert store.requested == {"k0": 1, "k1": 1, "k2": 3, "k3": 1, "k4": 1}


def test_the_message_of_a_failed_request_is_cleared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searching a text for secrets takes longer than repeating a request for a thousand keys."""
    cleared = list[str]()

    def clear(text: str) -> str:
        cleared.append(text)
        return text

    monkeypatch.setattr("l0gc.errors.without_secrets", clear)
    store = MemoryStore()
    store.fault = failing(ThrottledError("slow down"), "delete", times=1)
    assert run(store).deleted == OBJECTS
    assert cleared == ["slow down"]


def test_a_key_that_keeps_failing_is_reported_in_the_end() -> None:
    store = Stubborn({"k2": (99, "InternalError")})
    outcome = run(store)
    assert [f.key for f in outcome.failures] == ["k2"]
    assert [o.key for o in outcome.deleted] == ["k0", "k1", "k3", "k4"]
    assert store.requested["k2"] == TRIES + 1  # the first request deleted other keys
    assert list(store.objects) == ["k2", "k5"]


@pytest.mark.parametrize("code", ["AccessDenied", "InvalidRequest", "ObjectLocked", "MethodNotAllowed", "Whatever"])
def test_what_cannot_succeed_is_reported_and_not_tried_again(code: str) -> None:
    """Stores report object lock and legal holds as AccessDenied, or with their own codes."""
    store = Stubborn({"k2": (99, code), "k3": (1, "SlowDown")})
    outcome = run(store)
    assert outcome.failures == [DeleteFailure("k2", code, "why")]
    assert store.requested["k2"] == 1
    assert "k3" not in store.objects


@pytest.mark.parametrize("code", ["NoSuchKey", "NoSuchVersion"])
def test_what_is_gone_counts_as_deleted(code: str) -> None:
    outcome = run(Stubborn({"k2": (99, code)}))
    assert (len(outcome.deleted), outcome.failures, outcome.requests) == (5, [], 1)


def test_an_unanswered_delete_is_repeated_and_counted_once() -> None:
    store = MemoryStore()
    store.fault = failing(StoreError("cut"), "delete", when="after", times=2)
    outcome = run(store)
    assert (outcome.deleted, outcome.requests, outcome.errors) == (OBJECTS, 3, 2)


@pytest.mark.parametrize("error", [ThrottledError, StoreTimeoutError])
def test_a_store_that_stays_slow_is_waited_for_and_then_reported(error: type[StoreError]) -> None:
    store = MemoryStore(fault=failing(error("slow down"), "delete"))
    began = store.clock.monotonic()
    outcome = run(store)
    assert outcome.deleted == []
    assert {f.key for f in outcome.failures} == {o.key for o in OBJECTS}
    assert PATIENCE_S <= store.clock.monotonic() - began < 2 * PATIENCE_S
    assert 15 < outcome.requests < 100  # pauses grow, with jitter


def test_a_store_that_stays_silent_is_not_asked_again() -> None:
    store = MemoryStore(fault=failing(StoreSilentError("silent"), "delete"))
    outcome = run(store)
    assert (outcome.deleted, outcome.failures, outcome.requests) == ([], [], 1)
    assert isinstance(outcome.error, StoreSilentError)


def test_patience_begins_with_the_batch_and_not_with_the_run() -> None:
    """A scan may find nothing for an hour; the first 503 after it must not end the run."""
    store = MemoryStore()
    for o in OBJECTS:
        store.put(o.key, b"")
    deleter, _ = a_deleter(store)
    store.clock.sleep(3600)
    store.fault = failing(ThrottledError("slow down"), "delete", times=3)
    assert deleter.delete(OBJECTS).deleted == OBJECTS


def test_patience_begins_anew_with_each_success() -> None:
    store = Stubborn({"k2": (3, "SlowDown")})
    store.fault = lambda call: store.clock.sleep(50) if (call.kind, call.when) == ("delete", "before") else None
    assert sorted(o.key for o in run(store).deleted) == [o.key for o in OBJECTS]


def test_a_time_out_makes_the_run_slower_and_another_error_does_not() -> None:
    for error, throttled in ((StoreTimeoutError, 1), (ThrottledError, 1), (StoreError, 0)):
        store = MemoryStore()
        deleter, pacer = a_deleter(store)
        deleter.delete(OBJECTS)  # a store that has accepted nothing yet has no rate to lower
        store.fault = failing(error("x"), times=1)
        assert deleter.delete(OBJECTS).deleted == OBJECTS
        assert (pacer.throttled, pacer.rate() is None) == (throttled, not throttled)


@pytest.mark.parametrize("error", [AccessDeniedError, BucketNotFoundError])
def test_a_refusal_of_everything_ends_it_at_once(error: type[Exception]) -> None:
    store = MemoryStore(fault=failing(error("no"), "delete"))
    outcome = run(store)
    assert isinstance(outcome.error, error)
    assert (outcome.left, outcome.deleted, outcome.failures) == (OBJECTS, [], [])
    assert store.requests["delete"] == 1


def test_what_went_before_a_refusal_is_reported_as_deleted() -> None:
    store = Stubborn({"k2": (1, "SlowDown")})
    store.fault = failing(AccessDeniedError("no longer"), "delete", after=1)
    outcome = run(store)
    assert [o.key for o in outcome.deleted] == ["k0", "k1", "k3", "k4"]
    assert [o.key for o in outcome.left] == ["k2"]


def test_objects_of_an_unanswered_request_are_not_reported_as_left() -> None:
    store = MemoryStore(fault=failing(SafetyError("unforeseen"), "delete", when="after"))
    outcome = run(store)
    assert isinstance(outcome.error, SafetyError)
    assert (outcome.left, outcome.deleted) == ([], [])


def test_a_stop_ends_it_after_the_request_that_is_under_way() -> None:
    stop = threading.Event()
    store = Stubborn({"k2": (99, "SlowDown")})
    store.fault = once(stop.set, "delete")
    outcome = run(store, stop)
    assert [o.key for o in outcome.deleted] == ["k0", "k1", "k3", "k4"]
    assert (outcome.left, outcome.failures, outcome.requests) == ([OBJECTS[2]], [], 1)


@pytest.mark.parametrize("then", ["a stop", "a refusal"])
def test_what_an_unanswered_request_may_have_deleted_is_not_reported_as_left(then: str) -> None:
    """An undelete does not look for delete markers of objects that are reported as left."""
    stop = threading.Event()
    store = MemoryStore()

    def fault(call: Call) -> None:
        if call.kind == "delete" and call.when == "after":
            if then == "a stop":
                stop.set()
            raise StoreError("cut")
        if call.kind == "delete" and store.requests["delete"] == 2:
            raise AccessDeniedError("expired")

    store.fault = fault
    outcome = run(store, stop)
    assert list(store.objects) == ["k5"]
    assert (outcome.left, outcome.deleted, outcome.failures) == ([], [], [])


@pytest.mark.parametrize("code", ["InternalError", "RequestTimeout"])
def test_a_key_whose_first_answer_proved_nothing_has_no_known_marker(code: str) -> None:
    """The object may have been deleted, with a marker, before the store answered with an internal error."""

    class Versioned(Stubborn):
        def delete_versions(self, objects: Sequence[VersionedKey]) -> VersionsDeleted:
            failures = self.delete([o.key for o in objects])
            failed = {f.key for f in failures}
            return VersionsDeleted(failures, {o.key: "marker" for o in objects if o.key not in failed})

    store = Versioned({"k2": (1, code), "k3": (1, "SlowDown")})
    outcome = a_deleter(store, keep_history=True)[0].delete(OBJECTS)
    assert len(outcome.deleted) == 5
    assert set(outcome.markers) == {"k0", "k1", "k3", "k4"}


@pytest.mark.parametrize("named", ["", "k2/", "somebody/else"])
def test_a_failure_without_a_known_key_fails_the_whole_request(named: str) -> None:
    class Confused(MemoryStore):
        def delete(self, keys: Sequence[str]) -> list[DeleteFailure]:
            return [DeleteFailure(named, "InternalError", "lost")]

    store = Confused()
    outcome = run(store)
    assert (outcome.deleted, [f.key for f in outcome.failures]) == ([], [o.key for o in OBJECTS])
    assert repr(named) in outcome.failures[0].message
    assert len(store.objects) == 6


def test_a_stop_is_heard_while_waiting_for_a_slow_store() -> None:
    stop = threading.Event()
    store = MemoryStore(fault=failing(ThrottledError("slow down"), "delete"))
    began = store.clock.monotonic()
    sleep = store.clock.sleep

    def watched(seconds: float) -> None:
        assert seconds <= 0.25
        sleep(seconds)
        if store.clock.monotonic() - began > 30:
            stop.set()

    store.clock.sleep = watched  # type: ignore[method-assign]
    outcome = run(store, stop)
    assert outcome.left == OBJECTS
    assert store.clock.monotonic() - began < 31


def test_a_store_that_takes_nothing_gets_smaller_and_smaller_requests() -> None:
    """A store that accepts only small requests would otherwise never accept one."""

    class Small(MemoryStore):
        def delete(self, keys: Sequence[str]) -> list[DeleteFailure]:
            if len(keys) > 1:
                raise ThrottledError("slow down")
            return super().delete(keys)

    assert run(Small()).deleted == OBJECTS


def test_an_old_pause_reading_is_refreshed_before_a_request() -> None:
    store = MemoryStore()
    pacer = Pacer(Runtime(store.clock, random.Random(0)), 0.1, stop := threading.Event())
    pause = PauseWatch(store, store.clock, stop)
    deleter = Deleter(store, Runtime(store.clock, random.Random(0)), pacer, stop, pause=pause)
    assert not pause.is_set()
    assert deleter.delete(OBJECTS[:1]).deleted == OBJECTS[:1]  # ten seconds later, so the pause is read again
    set_pause(store, "disk audit", "ann")
    outcome = deleter.delete(OBJECTS)
    assert (outcome.deleted, outcome.left, outcome.error) == ([], OBJECTS, None)
    assert (pause.seen[:10], stop.is_set()) == ("disk audit", True)


def test_an_unreadable_pause_ends_the_run() -> None:
    store, stop = MemoryStore(), threading.Event()
    runtime = Runtime(store.clock, random.Random(0))
    deleter = Deleter(store, runtime, Pacer(runtime, 0.1, stop), stop, pause=PauseWatch(store, store.clock, stop))
    for o in OBJECTS:
        store.put(o.key, b"x")
    store.fault = failing(StoreError("cut"), "get", PAUSED)
    outcome = deleter.delete(OBJECTS)
    assert (outcome.deleted, str(outcome.error)) == ([], "cut")
    assert len(store.objects) == len(OBJECTS)
