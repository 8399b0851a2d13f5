"""A queue in virtual time: it keeps the store's speed, bounds the objects in hand, and stops soon after a pause."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import pytest

from l0gc.collect.deletion import PAUSE_READ_S, Deletable, Pause
from l0gc.collect.plan import DeletionPlan
from l0gc.collect.record import DELETED, LEFT, PLANNED, SEGMENT_OBJECTS, RecordedObject
from l0gc.collect.run import OBJECT_BYTES, SEGMENT_BYTES, SEGMENTS_IN_HAND, DeletionQueue
from l0gc.errors import ObjectNotFoundError
from l0gc.keys import PAUSED
from l0gc.operations import Sweep
from l0gc.runtime import Runtime
from l0gc.storage.objectstore import StoredObject
from l0gc.storage.parallel import InlineExecutor
from tests.collect.test_deletion_pacing import Limited
from tests.support.virtual_time import VirtualClock, VirtualThreads

SMALL_S = 0.01
"""Seconds that a small request takes."""
PAUSE = msgspec.json.encode(Pause("disk audit", "ann", 0))


class Bucket(Limited):
    """A store that also keeps a run record, without encoding it, and is paused from `paused_at` on."""

    def __init__(
        self,
        clock: VirtualClock,
        limit: float,
        latency_s: float,
        paused_at: float = float("inf"),
        small_s: float | None = None,
    ) -> None:
        super().__init__(clock, limit, 1, by_key=False, latency_s=latency_s)
        self._small_s = latency_s if small_s is None else small_s
        self.paused_at = paused_at
        self.planned: list[float] = []
        self.ended: list[Sequence[RecordedObject]] = []
        self.most_begun = 0

    def get(self, key: str) -> StoredObject:
        assert key == PAUSED
        self._clock.sleep(self._small_s)
        if self._clock.now < self.paused_at:
            raise ObjectNotFoundError(key)
        return StoredObject(PAUSE, "", 0, 0)

    def put_bulk(self, key: str, rows: Sequence[RecordedObject]) -> None:
        self._clock.sleep(self._small_s)
        if rows[0].status == PLANNED:
            self.planned.append(self._clock.now)
        else:
            self.ended.append(rows)
        self.most_begun = max(self.most_begun, len(self.planned) - len(self.ended))


def removed_from(
    store: Bucket, seconds: float, segment: int, max_rate: float | None = None
) -> tuple[DeletionQueue, int]:
    """Hand over objects for `seconds`, as soon as there is room; return the queue and the most objects in hand."""
    clock = store._clock
    runtime = Runtime(clock, random.Random(1))
    queue = DeletionQueue(
        cast(Any, store), runtime, DeletionPlan(options=Sweep(max_rate=max_rate), started_ms=0), worker="l0",
        deleters=VirtualThreads(clock), records=cast(Any, store),
    )  # fmt: skip
    objects = [Deletable(f"level_zero/data/000/{1:018}/{n:036}", 1, 1) for n in range(segment)]
    handed, most = 0, 0

    def hand_over() -> None:
        nonlocal handed, most
        while clock.now < seconds and not queue.stop.is_set():
            if not queue._room.empty():
                queue.take(objects)
                handed += segment
                most = max(most, handed - queue.counts.objects)
            else:
                clock.sleep(0.001)

    clock.run(hand_over)
    return queue, most


@pytest.fixture(autouse=True)
def without_parquet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("l0gc.collect.record.encode_segment", lambda rows: rows)


@pytest.mark.parametrize(
    ("limit", "latency_s"),
    [
        (3_500, 0.05),
        (20_000, 0.3),
        *(
            pytest.param(*case, marks=pytest.mark.thorough)
            for case in ((3_500, 0.005), (3_500, 0.3), (20_000, 0.005), (20_000, 0.05))
        ),
    ],
)
def test_within_five_seconds_nine_tenths_of_what_the_store_takes_go(limit: float, latency_s: float) -> None:
    store = Bucket(VirtualClock(), limit, latency_s)
    queue, most = removed_from(store, 20, SEGMENT_OBJECTS)
    assert queue.counts.failed == 0
    assert store.per_second(5, 20) >= 0.9 * limit
    assert store.most_begun <= SEGMENTS_IN_HAND
    assert most <= SEGMENTS_IN_HAND * SEGMENT_OBJECTS


@pytest.mark.parametrize(
    ("segment", "max_rate"), [(SEGMENT_OBJECTS, None), (SEGMENT_OBJECTS, 500)],
    ids=["as fast as the store takes it", "far less than what is in hand"],
)  # fmt: skip
def test_a_pause_ends_it_before_any_other_segment_is_on_record(segment: int, max_rate: float | None) -> None:
    """No other request is sent later than five seconds after the pause, however many objects are in hand."""
    store = Bucket(VirtualClock(), 20_000, 0.3, paused_at=8, small_s=SMALL_S)
    queue, _ = removed_from(store, 60, segment, max_rate)
    gone = sum(n for _, n in store.taken)
    assert queue.counts.paused.startswith("disk audit")
    assert 0 < sum(n for t, n in store.taken if t >= store.paused_at) <= SEGMENTS_IN_HAND * segment
    assert max(t for t, _ in store.taken) <= store.paused_at + PAUSE_READ_S + 0.3
    assert max(store.planned) < store.paused_at + 2 * SMALL_S
    assert store.most_begun <= SEGMENTS_IN_HAND
    assert len(store.ended) == len(store.planned)
    assert sum(r.status == DELETED for rows in store.ended for r in rows) == gone == queue.counts.objects
    assert {r.status for rows in store.ended for r in rows} <= {DELETED, LEFT}
    assert store._clock.now < store.paused_at + PAUSE_READ_S + 3


def test_segments_of_long_keys_are_smaller() -> None:
    store = Bucket(VirtualClock(), 20_000, 0.01)
    queue = DeletionQueue(
        cast(Any, store), Runtime(store._clock, random.Random(1)), DeletionPlan(options=Sweep(), started_ms=0), worker="l0",
        deleters=InlineExecutor(), records=cast(Any, store),
    )  # fmt: skip
    with queue.finishing():
        queue.take([Deletable(f"{n:01000}", 1, 1) for n in range(5000)])
    sizes = [sum(len(r.key) + OBJECT_BYTES for r in rows) for rows in store.ended]
    assert sum(map(len, store.ended)) == 5000
    assert max(sizes) <= SEGMENT_BYTES
    assert len(sizes) == -(-5000 // (SEGMENT_BYTES // (1000 + OBJECT_BYTES)))
