"""Requests as a store in memory counted them, in the model's terms."""

from __future__ import annotations

from collections.abc import Callable

from docs.scaling import Requests
from tests.support.memory_store import MemoryStore

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
    """What `work` asks of the store."""
    store.requests.clear()
    work()
    found = dict.fromkeys(_KINDS.values(), 0)
    for kind, n in store.requests.items():
        found[_KINDS[kind]] += n
    return Requests(**found)
