"""Counts requests by a store in memory, in the model's terms."""

from __future__ import annotations

from collections.abc import Callable

from docs.programs.scaling import Requests
from l0gc.keys import PUBLISHED_COPY
from tests.support.memory_store import Call, MemoryStore

_KINDS = {
    "list": "lists",
    "scan": "lists",
    "get": "gets",
    "head": "gets",
    "put": "puts",
    "put_if_absent": "puts",
    "put_if_match": "puts",
    "delete": "deletes",
}


def counted(store: MemoryStore, work: Callable[[], object]) -> Requests:
    """Return the requests of `work`, except for the copy of `published.json`, which every cluster of the model has."""
    found, before = dict.fromkeys(_KINDS.values(), 0), store.fault

    def fault(call: Call) -> None:
        if (call.kind, call.key, call.when) == ("get", PUBLISHED_COPY, "before"):
            found["gets"] -= 1
        before(call)

    store.requests.clear()
    store.fault = fault
    try:
        work()
    finally:
        store.fault = before
    for kind, n in store.requests.items():
        found[_KINDS[kind]] += n
    return Requests(**found)
