"""The store of the search: a process's calls, the store's answers, and a process that is run again from its answers.

A process's next call follows from the answers that it has got, since its clock and its randomness are fixed. So a
process needs no waiting thread. It is run from its beginning on a store that repeats the known answers, up to the first
call without one, where the process waits. `perform` answers the call by a `MemoryStore` with the bucket's contents.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from l0gc.errors import L0gcError, ObjectNotFoundError
from l0gc.storage.objectstore import DeleteFailure, Head, Listing, PutResult, StoredObject
from tests.support.memory_store import FakeClock, MemoryStore

Bucket = tuple[tuple[str, bytes, int], ...]
"""Every object (key, body, time of its change), in key order."""

GETS: Final = frozenset({"get", "get_start"})
"""The calls that read an object, or its beginning."""


class Call(NamedTuple):
    """A store call, or another request of a process to the world; `arguments` are the method's own."""

    method: str
    arguments: tuple[Any, ...]

    @property
    def key(self) -> str:
        first = self.arguments[0]
        return first if isinstance(first, str) else ""


class Failed(NamedTuple):
    """An answer that is an error. `seconds` pass for the process before it gets the answer."""

    error: type[L0gcError]
    message: str
    date_ms: int
    seconds: int = 0


class Listed(NamedTuple):
    """A `Listing` that can be compared and kept in a set."""

    modified_ms: tuple[tuple[str, int], ...]
    date_ms: int


Answer = StoredObject | Head | PutResult | Listed | Failed | None


class Stands(BaseException):
    """Ends the run of a process at the first call that has no answer yet."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.call = call


class LocalClock(FakeClock):
    """A process's own clock; it advances when the process waits, and while an answer takes long."""

    def __init__(self) -> None:
        super().__init__(0)


class AnsweredStore:
    """Repeats the answers that a process has got before, in order: the part of an `ObjectStore` that a log uses."""

    def __init__(self, answers: Sequence[Answer], clock: FakeClock) -> None:
        self._answers = iter(answers)
        self._clock = clock

    def _ask(self, method: str, *arguments: object) -> Answer:
        call = Call(method, arguments)
        for answer in self._answers:
            if isinstance(answer, Failed):
                self._clock.ms += answer.seconds * 1000
                error = answer.error(answer.message)
                if isinstance(error, ObjectNotFoundError):
                    error.date_ms = answer.date_ms
                raise error
            return answer
        raise Stands(call)

    quotes_etags = True

    def head(self, key: str) -> Head:
        answer = self._ask("head", key)
        assert isinstance(answer, Head)
        return answer

    def get(self, key: str) -> StoredObject:
        answer = self._ask("get", key)
        assert isinstance(answer, StoredObject)
        return answer

    def get_start(self, key: str, length: int) -> StoredObject:
        answer = self._ask("get_start", key, length)
        assert isinstance(answer, StoredObject)
        return answer

    def put_if_absent(self, key: str, body: bytes) -> PutResult:
        answer = self._ask("put_if_absent", key, body)
        assert isinstance(answer, PutResult)
        return answer

    def put_if_match(self, key: str, body: bytes, etag: str) -> PutResult:
        answer = self._ask("put_if_match", key, body, etag)
        assert isinstance(answer, PutResult)
        return answer

    def delete(self, keys: Sequence[str]) -> builtins.list[DeleteFailure]:
        self._ask("delete", tuple(keys))
        return []

    def list(self, folder: str, *, one_page: bool = False) -> Listing:
        answer = self._ask("list", folder)
        assert isinstance(answer, Listed)
        return Listing(dict(answer.modified_ms), answer.date_ms)


def perform(bucket: Bucket, date_ms: int, call: Call) -> tuple[Bucket, Answer]:
    """Return the bucket after the call, and the store's answer."""
    store = _store(bucket, date_ms)
    try:
        result = getattr(store, call.method)(*call.arguments)
    except L0gcError as e:
        return bucket, Failed(type(e), str(e), date_ms)
    answer: Answer
    if isinstance(result, Listing):
        answer = Listed(tuple(result.modified_ms.items()), result.date_ms)
    elif isinstance(result, StoredObject | Head | PutResult):
        answer = result
    else:
        answer = None  # a successful delete
    if call.method in {*GETS, "head", "list"}:
        return bucket, answer
    return tuple(sorted((k, o.body, o.modified_ms) for k, o in store.objects.items())), answer


def _store(bucket: Bucket, date_ms: int) -> MemoryStore:
    store = MemoryStore(FakeClock(date_ms))
    for key, body, modified_ms in bucket:
        store.clock.ms = modified_ms
        store._version = 0  # an ETag follows from the content, as S3's does
        store._write(key, body)
    store._version, store.clock.ms = 0, date_ms
    return store
