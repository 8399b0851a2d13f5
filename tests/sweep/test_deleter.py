"""Deleting a batch: what may succeed later is tried again, what cannot is reported, and nothing else is touched."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from l0gc.errors import AccessDeniedError, StoreError, ThrottledError
from l0gc.runtime import Runtime
from l0gc.storage.objectstore import DeleteFailure
from l0gc.sweep.deleter import DeleteOutcome, delete_batch
from l0gc.sweep.scan import EligibleObject
from tests.support.memory_store import Call, MemoryStore

OBJECTS = [EligibleObject(f"k{i}", i, 10) for i in range(5)]


class Stubborn(MemoryStore):
    """Keys that fail a number of times with a code, each."""

    def __init__(self, failing: dict[str, tuple[int, str]]) -> None:
        super().__init__()
        self.failing = failing
        self.asked: Counter[str] = Counter()

    def delete(self, keys: Sequence[str]) -> list[DeleteFailure]:
        self.asked.update(keys)
        failed = [k for k in keys if self.asked[k] <= self.failing.get(k, (0, ""))[0]]
        super().delete([k for k in keys if k not in failed])
        return [DeleteFailure(k, self.failing[k][1], "why") for k in failed]


def run(store: MemoryStore) -> DeleteOutcome:
    for o in OBJECTS:
        store.put(o.key, b"x" * o.size)
    store.put("k5", b"x")
    return delete_batch(store, Runtime(store.clock, random.Random(0)), OBJECTS)


def test_a_batch_is_one_request() -> None:
    store = MemoryStore()
    outcome = run(store)
    assert (outcome.deleted, outcome.failures, outcome.requests) == (OBJECTS, [], 1)
    assert list(store.objects) == ["k5"]


@pytest.mark.parametrize("code", ["SlowDown", "InternalError", "ServiceUnavailable"])
def test_only_the_keys_that_failed_are_tried_again(code: str) -> None:
    store = Stubborn({"k2": (2, code)})
    outcome = run(store)
    assert (outcome.deleted, outcome.failures, outcome.requests) == (OBJECTS, [], 3)
    assert store.asked == {"k0": 1, "k1": 1, "k2": 3, "k3": 1, "k4": 1}


def test_a_key_that_keeps_failing_is_reported_in_the_end() -> None:
    store = Stubborn({"k2": (99, "InternalError")})
    outcome = run(store)
    assert [f.key for f in outcome.failures] == ["k2"]
    assert [o.key for o in outcome.deleted] == ["k0", "k1", "k3", "k4"]
    assert 2 <= store.asked["k2"] <= 10
    assert list(store.objects) == ["k2", "k5"]


@pytest.mark.parametrize("code", ["AccessDenied", "InvalidObjectState", "MethodNotAllowed"])
def test_what_cannot_succeed_is_reported_and_not_tried_again(code: str) -> None:
    store = Stubborn({"k2": (99, code), "k3": (1, "SlowDown")})
    outcome = run(store)
    assert outcome.failures == [DeleteFailure("k2", code, "why")]
    assert store.asked["k2"] == 1
    assert "k3" not in store.objects


def test_a_request_without_an_answer_is_repeated_and_a_delete_that_landed_counts() -> None:
    store = MemoryStore()
    left = [2]

    def fault(call: Call) -> None:
        if call.kind == "delete" and call.when == "after" and left[0]:
            left[0] -= 1
            raise StoreError("cut")

    store.fault = fault
    outcome = run(store)
    assert (outcome.deleted, outcome.requests) == (OBJECTS, 3)


def test_a_store_that_stays_slow_is_waited_for_and_then_reported() -> None:
    def fault(call: Call) -> None:
        if call.kind == "delete":
            raise ThrottledError("slow down")

    store = MemoryStore(fault=fault)
    began = store.clock.monotonic()
    outcome = run(store)
    assert outcome.deleted == []
    assert {f.key for f in outcome.failures} == {o.key for o in OBJECTS}
    assert 0.1 < store.clock.monotonic() - began < 60


def test_refused_credentials_end_the_sweep_at_once() -> None:
    def fault(call: Call) -> None:
        if call.kind == "delete":
            raise AccessDeniedError("denied")

    store = MemoryStore(fault=fault)
    with pytest.raises(AccessDeniedError):
        run(store)
    assert store.requests["delete"] == 1
