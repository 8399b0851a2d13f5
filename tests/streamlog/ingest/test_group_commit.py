"""Group commit: batches that wait for the log go into one entry, in order, even if some are stale."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, TypeVar

import pytest

from l0gc.streamlog.ingest import uploader
from l0gc.streamlog.producers import begin_run
from tests.support.ingest import (
    SMALL,
    CrashError,
    journal_of,
    l0_objects,
    lines,
    objects_in_entries,
    round_robin,
    slide,
    stored_values,
    upload,
    write,
)
from tests.support.memory_store import Call, another_process, failing, store_of, topic_in_memory
from tests.support.tries import sampled

T = TypeVar("T")

PARTITIONS = 2


@pytest.fixture(autouse=True)
def _many_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sixteen packed batches wait for a slow committer."""
    monkeypatch.setattr(uploader, "_PACKED", 16)


class Later(Executor):
    """A slow committer: runs submitted work when the test calls `go_on`, or when a result is awaited."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future = _Awaited[T](self)
        self._waiting.append(lambda: future.run(fn, *args, **kwargs))
        return future

    def go_on(self) -> None:
        while self._waiting:
            self._waiting.pop(0)()


class _Awaited(Future[T]):
    def __init__(self, executor: Later) -> None:
        super().__init__()
        self._executor = executor

    def run(self, fn: Callable[..., T], *args: Any) -> None:
        try:
            self.set_result(fn(*args))
        except Exception as e:  # noqa: BLE001 - handed on
            self.set_exception(e)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._executor.go_on()
        return super().exception(timeout)


class OnDemand(Executor):
    """Runs submitted work when its result is requested."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        return _Demanded(lambda: fn(*args, **kwargs))


class _Demanded(Future[T]):
    def __init__(self, fn: Callable[[], T]) -> None:
        super().__init__()
        self._fn = fn

    def result(self, timeout: float | None = None) -> T:
        return self._fn()


def test_a_batch_that_is_packed_after_one_that_failed_is_not_committed(tmp_path: Path) -> None:
    """If a record fails, every later record fails, too, even if its batch is already packed."""
    cluster = topic_in_memory(PARTITIONS)
    store_of(cluster).fault = failing(CrashError, "put_if_absent", times=1)
    path = write(tmp_path / "in", lines(8))
    with pytest.raises(CrashError):
        upload(cluster, "events", [path], batch_bytes=SMALL, packers=OnDemand(), committer=Later())
    assert len(l0_objects(cluster)) == 1
    assert stored_values(cluster, "events") == [[], []]


def test_no_more_batches_wait_than_fit_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reading thread waits for the committer once three batches wait."""
    monkeypatch.setattr(uploader, "_PACKED", 3)
    waiting: list[int] = []

    class Counting(Later):
        def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
            future = super().submit(fn, *args, **kwargs)
            waiting.append(len(self._waiting))
            if len(self._waiting) == 3:
                self.go_on()
            return future

    path = write(tmp_path / "in", lines(40))
    cluster = topic_in_memory(PARTITIONS)
    upload(cluster, "events", [path], batch_bytes=SMALL, committer=Counting())
    assert max(waiting) == 3
    assert objects_in_entries(cluster) == [3, 3, 3, 1]


@pytest.mark.parametrize("with_producer", [False, True])
def test_what_is_packed_while_the_log_is_slow_goes_into_one_entry(tmp_path: Path, with_producer: bool) -> None:
    cluster = topic_in_memory(PARTITIONS)
    session = begin_run(cluster, "job") if with_producer else None
    records = lines(40)
    result = upload(
        cluster, "events", [write(tmp_path / "in", records)], session=session, batch_bytes=SMALL, committer=Later()
    )
    assert len(result.objects) == 10
    assert objects_in_entries(cluster) == [10]
    assert stored_values(another_process(cluster), "events") == round_robin(records, partitions=PARTITIONS)
    if session is not None:
        assert journal_of(cluster).state.producers[session.producer_id].next_sequence == 10


@pytest.mark.parametrize("with_producer", [False, True])
def test_a_stale_batch_in_a_group_lands_after_earlier_ones(tmp_path: Path, with_producer: bool) -> None:
    """Six batches wait, four at one epoch and two at the next; the window slides past the last two before they land."""
    cluster = topic_in_memory(PARTITIONS)
    session = begin_run(cluster, "job") if with_producer else None
    puts: list[str] = []

    def fault(call: Call) -> None:
        if call.when == "after" or not call.kind.startswith("put") or call.key.startswith("l0gc/controller"):
            return
        puts.append(call.key)
        if len(puts) == 4:
            another_process(cluster, 78).controller.advance()
            store_of(cluster).clock.ms += 60_000  # so that the uploader reads the epoch again
        elif len(puts) == 8:  # after six objects and an entry
            slide(cluster, 2)

    store_of(cluster).fault = fault
    records = lines(24)
    result = upload(
        cluster, "events", [write(tmp_path / "in", records)], session=session, batch_bytes=SMALL, committer=Later()
    )
    store_of(cluster).fault = lambda call: None
    assert objects_in_entries(cluster) == [4, 2]
    assert result.retries == 2
    assert stored_values(another_process(cluster), "events") == round_robin(records, partitions=PARTITIONS)


@pytest.mark.parametrize("seed", sampled(range(40), range(14)))
def test_stale_objects_keep_their_order_and_land_once(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    cluster = topic_in_memory(6, 3)
    session = begin_run(cluster, "job") if seed % 2 else None
    busy: list[bool] = []
    left = [12]

    def fault(call: Call) -> None:
        if busy or not left[0] or call.when == "after" or chance.random() > 0.3:
            return
        busy.append(True)
        left[0] -= 1
        other = another_process(cluster, chance.randrange(1000))
        topic = other.controller.snapshot().topic("events")
        store_of(cluster).clock.ms += chance.choice([0, 20_000])
        epoch = other.controller.advance()
        for journal in chance.sample(topic.journals, chance.randrange(3)):
            other.journal(journal).advance(epoch)
        busy.clear()

    store_of(cluster).fault = fault
    records = lines(60)
    result = upload(
        cluster,
        "events",
        [write(tmp_path / "in", records)],
        session=session,
        batch_bytes=SMALL,
        committer=chance.choice([Later(), None]),
    )
    store_of(cluster).fault = lambda call: None
    assert stored_values(another_process(cluster), "events") == round_robin(records, partitions=6)
    assert result.records == 60
    assert sum((p.last_offset or 0) + 1 - (p.base_offset or 0) for p in result.placeholders) == 60
