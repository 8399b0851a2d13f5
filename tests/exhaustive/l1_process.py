"""A process of the search over L1's life, with l0gc's handles: each time that they read the world is a step.

A journal's log is linear here; the search in `search.py` shows that `Replica` and `SharedLog` keep it so in every
interleaving and under every fault. A process reads it and appends where its read ended; if another process was first,
it decides again. A process that has not read since the last tick reads before it appends, as a writer does that was
idle for a minute.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol, cast

import msgspec

from l0gc.errors import ObjectNotFoundError
from l0gc.keys import journal_log
from l0gc.runtime import Runtime
from l0gc.storage.entry import Place
from l0gc.storage.log import SharedLog
from l0gc.storage.objectstore import OFF, DeleteFailure, ListedPage, PutResult, StoredObject
from l0gc.storage.parallel import Parallel
from l0gc.streamlog.cluster import identity_of, unheld
from l0gc.streamlog.controller.handle import Controller
from l0gc.streamlog.controller.state import ControllerState, DeletedTopic, EpochTime, Topic
from l0gc.streamlog.controller.value_schema import FIRST_ID, ValueColumn, ValueSchema
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.state import JournalState
from tests.exhaustive.process import RightTime
from tests.exhaustive.store import Call, LocalClock, Stands
from tests.support.memory_store import MemoryStore

TOPIC: Final = Topic("events", 1, 2, (0,), "t")
START_MS: Final = 1_700_000_000_000
EPOCH_MS: Final = 600_000
GRACE_EPOCHS: Final = 2
"""How many epochs a dropped object stays, according to the documents."""
_L1: Final = "level_one/"


class Answer(NamedTuple):
    """`value` is the answer; `epoch` is the cluster epoch then, `log` the number of the log, `done` whether the call
    succeeded.
    """

    epoch: int
    log: int = -1
    done: bool = True
    value: Any = None


class BrokenError(Exception):
    """A condition that must hold does not."""


class Logs(Protocol):
    """The states of the journal's log, by their numbers in the answers."""

    lost: frozenset[str]
    """The L0 objects that cannot be read."""

    def state(self, log: int) -> JournalState: ...


class View:
    """The answers that a process has got, in order; the process waits after the last one."""

    def __init__(
        self, logs: Logs, answers: Sequence[Answer] = (), answer: Callable[[Call], Answer] | None = None
    ) -> None:
        self.logs = logs
        self._answers = iter(answers)
        self._answer = answer
        self.epoch = 0
        self.looked = 0

    def ask(self, method: str, *arguments: Any) -> Answer:
        call = Call(method, arguments)
        answer = next(self._answers, None)
        if answer is None:
            if self._answer is None:
                raise Stands(call)
            answer = self._answer(call)
        self.epoch = answer.epoch
        return answer


def now_ms(epoch: int) -> int:
    return START_MS + epoch * EPOCH_MS


@lru_cache
def topic_with(schema: int, epoch: int) -> Topic:
    """Return the topic with the value schema of this number, set in this epoch; 0 for none."""
    if not schema:
        return TOPIC
    fields = tuple(ValueColumn(FIRST_ID + n, f"f{n}", "long") for n in range(schema))
    value_schema = ValueSchema(schema, fields, FIRST_ID + schema)
    return msgspec.structs.replace(TOPIC, value_schema=value_schema, schema_epoch=epoch)


@lru_cache
def controller_state(epoch: int, deleted: int, schema: int) -> ControllerState:
    """Return the controller's state at an epoch; `deleted` is the one at which the topic was deleted, 0 if it was not.

    Scopes in which the topic gets a value schema have no ticks, so the schema's epoch is this one.
    """
    state = ControllerState("cluster", 4, epoch=epoch, journals=1, time_ms=now_ms(epoch))
    state.epoch_times = [EpochTime(e, now_ms(e)) for e in range(epoch + 1)]
    state.topics = {} if deleted else {TOPIC.name: topic_with(schema, epoch)}
    state.deleted = [DeletedTopic(TOPIC, deleted)] if deleted else []
    return state


class Replica:
    """Replaces `l0gc.storage.replica.Replica`: a read of the log, or an append to it, is one step."""

    def __init__(self, view: View) -> None:
        self._view = view
        self.lock = threading.RLock()
        self.log = self.first = -1

    @property
    def state(self) -> JournalState:
        return self.catch_up() if self.log < 0 else self.peek()

    @property
    def head(self) -> JournalState:
        return self.state

    @property
    def end(self) -> Place:
        """An empty place: a search never sets its logs back, so no process compares places."""
        return Place()

    def peek(self) -> JournalState:
        return self._view.logs.state(self.log)

    def catch_up(self, *, whole: bool = True) -> JournalState:
        answer = self._view.ask("read")
        self.log, self._view.looked = answer.log, answer.epoch
        self.first = self.log if self.first < 0 else self.first
        return self.peek()

    def propose(self, decide: Callable[[JournalState, int], object | None], *, whole: bool = True) -> int | None:
        while True:
            entry = decide(self.state, 0)
            if entry is None:
                return None
            answer = self._view.ask("append", self.log, self._view.looked, msgspec.msgpack.encode(entry))
            self.log, self._view.looked = answer.log, answer.epoch
            if answer.done:
                return 0


class Store:
    """The bucket: L1 objects are those of the world, and other objects do not exist here. See `ObjectStore`."""

    quotes_etags = True

    def __init__(self, view: View, *, patient: bool) -> None:
        self._view, self._patient = view, patient
        self._written: set[str] = set()
        self.versioning = lambda: OFF
        self.uploads = lambda prefix: iter(())

    def get(self, key: str) -> StoredObject:
        if not key.startswith(_L1):
            raise ObjectNotFoundError(key)
        (body,) = self.read([key])
        return StoredObject(body, "", 0, now_ms(self._view.epoch))

    def read(self, keys: Sequence[str]) -> Sequence[bytes]:
        """Return the bodies of objects that are read at once. Raises `ObjectNotFoundError` for the first missing one."""
        answer = self._view.ask("get", *keys)
        if not answer.done:
            written = answer.value in self._written  # no journal names it yet, so a vacuum may take it
            if self._patient and not written and answer.epoch - self._view.looked < GRACE_EPOCHS:
                raise BrokenError(
                    f"{answer.value} was named at epoch {self._view.looked}, and is gone at {answer.epoch}"
                )
            raise ObjectNotFoundError(answer.value)
        return cast(Sequence[bytes], answer.value)

    def put(self, key: str, body: bytes) -> PutResult:
        if key.startswith(_L1):
            self._view.ask("put", key, body)
            self._written.add(key)
        return PutResult("", 0)

    def scan(self, prefix: str, start_after: str = "") -> Iterator[ListedPage]:
        if prefix.startswith(_L1):
            keys = list(self._view.ask("scan", prefix).value)
            if keys:
                yield ListedPage(keys, [1] * len(keys), [0] * len(keys))

    def delete(self, keys: Sequence[str]) -> list[DeleteFailure]:
        self._view.ask("delete", tuple(keys))
        return []

    delete_once = delete

    def now_ms(self) -> int:
        return now_ms(self._view.epoch)


class FakeController:
    """The cluster epoch and the topic; a cached epoch is the one that the process has seen last."""

    def __init__(self, view: View) -> None:
        self._view = view
        self.kept: ControllerState | None = None
        self.store_time = RightTime(MemoryStore())

    def snapshot(self) -> ControllerState:
        kept, self.kept = self.kept, None
        if kept is not None:
            return kept
        answer = self._view.ask("epoch")
        return controller_state(answer.epoch, *answer.value)

    def epoch(self, at_least: int = -1) -> int:
        return self._view.epoch

    def forget_topics(self, revisions: Sequence[int]) -> bool:
        return True


class FakeCluster:
    """Replaces `Cluster`."""

    def __init__(self, view: View, chance: random.Random, *, patient: bool) -> None:
        self.store, self.parallel = Store(view, patient=patient), Parallel()
        self.runtime = Runtime(LocalClock(), chance)
        self.controller = FakeController(view)
        log = SharedLog(cast(Any, self.store), journal_log(0), self.runtime, store_time=self.controller.store_time)
        self._handle = JournalHandle(0, log, cast(Controller, self.controller), self.runtime)
        self._handle.replica = cast(Any, Replica(view))
        self.writing = unheld

    def journal(self, number: int) -> JournalHandle:
        return self._handle

    passing_journal = journal

    def now_ms(self) -> int:
        return self.store.now_ms()

    def identity(self) -> Any:
        """The identity that a vacuum compares with the published watermark; this is also its first read of the
        controller.
        """
        state = self.controller.kept = self.controller.snapshot()
        return identity_of(state)
