"""An exception at any moment of an append leaves no lock held, loses no record and reports no wrong outcome (hazard
29).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from unittest import mock

import pytest

from l0gc.errors import AppendOutcomeUnknownError, L0gcError
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.journal import fence as fence_module
from l0gc.streamlog.journal.admission import EpochWindow
from l0gc.streamlog.journal.checkpoint import JournalMachine
from l0gc.streamlog.journal.handle import JournalHandle
from tests.support.fence import PATIENCE_S, fence_on, fenced, held, within_patience
from tests.support.interrupting import Interrupt, interrupted
from tests.support.journal import journal_of, key_of, of_topic
from tests.support.memory_store import Call, MemoryStore, failing, memory_cluster

EVERY = 7
"""`make test` tries every seventh moment of an append."""
MACHINE = JournalMachine(0)


def test_an_abandoned_fence_delays_a_new_epoch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence_module, "MOST_HELD_S", 0.05)
    fence, _ = fence_on(5, 5)
    leaked = threading.Lock()
    leaked.acquire()
    fence.enter(5, leaked)
    within_patience(lambda: fenced(fence, 6))
    assert fence.window == EpochWindow(5, 6)
    monkeypatch.setattr(fence_module, "MOST_HELD_S", -1)  # no holder expires
    within_patience(lambda: fenced(fence, 7))


def test_a_failed_holders_window_falls_back_to_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence_module, "MOST_HELD_S", 0.05)
    fence, _ = fence_on(5, 5)
    leaked = threading.Lock()
    leaked.acquire()
    fence.enter(9, leaked)  # the append for 9 never lands
    within_patience(lambda: fenced(fence, 10))
    assert fence.window == EpochWindow(5, 10)


@pytest.mark.parametrize("epoch", [5, 6])
def test_no_moment_at_which_a_thread_is_interrupted_leaves_the_fence_held(
    monkeypatch: pytest.MonkeyPatch, epoch: int
) -> None:
    monkeypatch.setattr(fence_module, "MOST_HELD_S", 0.0)  # finds a leaked holder at once
    fence, _ = fence_on(5, 5)
    with interrupted(-1, as_signals=True) as steps:
        fenced(fence, epoch)
    for at in range(1, steps[0] + 1):
        fence, _ = fence_on(5, 5)
        with pytest.raises(Interrupt), interrupted(at, as_signals=True):
            fenced(fence, epoch)
        assert not any(h.locked() for h in (fence._lock, fence._turn, *fence._holders)), f"moment {at}"
        fenced(fence, 7)


def test_an_interrupted_waiter_lets_the_next_epoch_slide() -> None:
    fence, _ = fence_on(5, 5)
    with held(fence, 5):
        with pytest.raises(Interrupt), mock.patch.object(fence_module, "_is_given_back", _interrupts):
            fenced(fence, 6)
        within_patience(lambda: fenced(fence, 5))
    within_patience(lambda: fenced(fence, 6))


def _interrupts(hold: object) -> bool:
    raise Interrupt


# -- whole appends -----------------------------------------------------------------------------------------------------


def _begun() -> tuple[ClusterHandles, Topic, JournalHandle]:
    cluster, topic, handle = journal_of(2)
    assert handle.append([of_topic(topic, topic.revision)]).error is None
    return cluster, topic, handle


def _is_well(cluster: ClusterHandles, topic: Topic, handle: JournalHandle) -> None:
    """Check that no lock is held, the state equals the log's, and the next append lands."""
    assert not handle._queue
    fence = handle.fence
    assert not any(h.locked() for h in (handle._appending, fence._lock, fence._turn, *fence._holders))
    within_patience(lambda: handle.append([of_topic(topic, topic.revision, key=key_of(topic.revision, 99))]))
    assert isinstance(cluster.store, MemoryStore)
    fresh = memory_cluster(cluster.store, seed=5, bootstrap=False).journal(0)
    assert MACHINE.encode(handle.state) == MACHINE.encode(fresh.state)
    assert next(reversed(handle.state.topics[topic.revision].objects)).key == key_of(topic.revision, 99)


@pytest.mark.parametrize("every", [EVERY, pytest.param(1, marks=pytest.mark.thorough)])
def test_no_moment_at_which_an_append_is_interrupted_leaves_anything_behind(every: int) -> None:
    cluster, topic, handle = _begun()
    with interrupted(-1, as_signals=True) as steps:
        handle.append([of_topic(topic, topic.revision, key=key_of(topic.revision, 1))])
    for at in range(1, steps[0] + 1, every):
        cluster, topic, handle = _begun()
        with pytest.raises(Interrupt), interrupted(at, as_signals=True):
            handle.append([of_topic(topic, topic.revision, key=key_of(topic.revision, 1))])
        _is_well(cluster, topic, handle)


class Group:
    """Threads whose objects queue while one entry is appended, and then share the next entry."""

    def __init__(self, fault: Callable[[Call], None]) -> None:
        self.cluster, self.topic, self.handle = _begun()
        assert isinstance(self.cluster.store, MemoryStore)
        self.store = self.cluster.store
        self.outcomes: dict[int, BaseException | None] = {}
        self._lock = threading.Lock()
        self._fault = fault
        self._entries = 0
        self._threads = [threading.Thread(target=self._offer, args=(n,), daemon=True) for n in range(1, 6)]

    def _offer(self, n: int) -> None:
        error: BaseException | None
        try:
            error = self.handle.append([of_topic(self.topic, self.topic.revision, key=self.key(n))]).error
        except BaseException as e:  # noqa: BLE001 - it is what the test looks at
            error = e
        with self._lock:
            self.outcomes[n] = error

    def key(self, n: int) -> str:
        return key_of(self.topic.revision, n)

    def run(self) -> None:
        """Append one object while five threads queue theirs; the append of those five meets the fault."""

        def fault(call: Call) -> None:
            if call.kind != "put_if_absent" or "/journal/" not in call.key:
                return
            self._entries += call.when == "before"
            if self._entries == 1 and call.when == "before":
                for thread in self._threads:
                    thread.start()
                while len(self.handle._queue) < 6:
                    threading.Event().wait(0.001)
            elif self._entries == 2:
                self._fault(call)

        self.store.fault = fault
        self._offer(0)
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "a thread waits for ever"
        self.store.fault = lambda call: None

    def landed(self) -> list[str]:
        """Return the keys of the objects in the log after the first one, in order."""
        state = memory_cluster(self.store, seed=5, bootstrap=False).journal(0).state
        return [o.key for o in state.topics[self.topic.revision].objects][1:]


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupted_threads_group_append_lands_at_most_once(when: str) -> None:
    def fault(call: Call) -> None:
        if call.when == when:
            raise Interrupt

    group = Group(fault)
    group.run()
    of_others = [group.outcomes[n] for n in range(1, 6)]
    assert group.outcomes[0] is None
    assert sorted(type(e).__name__ for e in of_others) == ["AppendOutcomeUnknownError"] * 4 + ["Interrupt"]
    there = [group.key(n) for n in range(1, 6)] if when == "after" else []
    assert sorted(group.landed()) == sorted([group.key(0), *there])
    _is_well(group.cluster, group.topic, group.handle)


def test_an_interrupted_threads_unsent_batches_go_with_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Group(lambda call: None)
    original, tries = JournalHandle._admit, [0]

    def admit(self: JournalHandle, admission: object, request: object, *args: object) -> object:
        tries[0] += 1
        if tries[0] == 4:  # the second entry's third object
            raise Interrupt
        return original(self, admission, request, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(JournalHandle, "_admit", admit)
    group.run()
    errors = [e for e in group.outcomes.values() if e is not None]
    assert [type(e) for e in errors] == [Interrupt]
    refused = next(n for n, e in group.outcomes.items() if e is not None)
    assert sorted(group.landed()) == sorted(group.key(n) for n in range(6) if n != refused)


def test_a_thread_that_is_interrupted_while_another_appends_is_not_committed_later() -> None:
    _, topic, handle = _begun()
    with pytest.raises(Interrupt), mock.patch.object(JournalHandle, "_append_queued", _interrupts):
        handle.append([of_topic(topic, topic.revision, key=key_of(topic.revision, 1))])
    handle.append([of_topic(topic, topic.revision, key=key_of(topic.revision, 2))])
    keys = [o.key for o in handle.state.topics[topic.revision].objects]
    assert keys[1:] == [key_of(topic.revision, 2)]


def test_the_outcome_that_is_not_known_says_what_to_do() -> None:
    group = Group(failing(Interrupt))
    group.run()
    error = next(e for e in group.outcomes.values() if isinstance(e, L0gcError))
    assert isinstance(error, AppendOutcomeUnknownError)
    assert str(error) == (
        "it is unknown whether the group offered to journal 0 was written (the thread that appended it was interrupted); "
        "run the command again with the same --producer, which repeats nothing"
    )
