"""Verify over shared L1 objects: it counts whole ones, and finds missing, short, damaged and orphaned ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from l0gc.inspect.explain import explain_key
from l0gc.keys import level_one_shared
from l0gc.streamlog.cluster import ClusterHandles
from tests.inspect.verify.test_run import kinds, verified
from tests.support.memory_store import MemoryStore, store_of, topic_in_memory
from tests.support.reconcile import named, put, reconcile

UUID = "01234567-89ab-cdef-0123-456789abcdef"


def shared_cluster() -> tuple[ClusterHandles, str]:
    """Create two shared objects of 80 partitions; return the cluster and the key of one."""
    cluster = topic_in_memory(80)
    for n in range(2):
        put(cluster, "events", {p: [b"%d-%d" % (p, n)] for p in range(80)})
        reconcile(cluster)
    return cluster, min(named(cluster, "events"))


@pytest.mark.parametrize("deep", [False, True])
def test_a_bucket_with_shared_objects_is_whole(*, deep: bool) -> None:
    cluster, _ = shared_cluster()
    result = verified(cluster, deep=deep)
    assert kinds(result) == []
    assert result.checked.l1_objects == 2


def damage(store: MemoryStore, key: str) -> None:
    body = store.objects[key].body
    store.put(key, bytes([body[0] ^ 1]) + body[1:])


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda store, key: store.delete([key]), "l1_missing"),
        (lambda store, key: store.put(key, store.objects[key].body[:-1]), "l1_size"),
        (damage, "l1_corrupt"),
    ],
)
def test_a_shared_object_that_is_not_as_it_was_is_a_finding(
    change: Callable[[MemoryStore, str], None], kind: str
) -> None:
    cluster, key = shared_cluster()
    change(store_of(cluster), key)
    result = verified(cluster, deep=True)
    assert kinds(result) == [kind]
    assert key in str(result.findings[0])


def test_a_shared_object_that_no_journal_names_is_an_orphan() -> None:
    cluster, _ = shared_cluster()
    topic = cluster.controller.snapshot().topic("events")
    store_of(cluster).put(level_one_shared("events", topic.revision, 0, 1, UUID), b"left over")
    store_of(cluster).put(level_one_shared("events", topic.revision, 7, 1, UUID), b"of a journal that has none of it")
    store_of(cluster).clock.ms += 3 * 86_400_000
    result = verified(cluster)
    assert kinds(result) == ["l1_orphan"]
    assert result.unparsable_keys == 1


def test_explain_says_what_a_shared_object_is_and_who_names_it() -> None:
    cluster, key = shared_cluster()
    text = " ".join(explain_key(cluster, key).explanation)
    assert "shared L1 object with records of many partitions of topic events" in text
    assert "Journal 0 names it: its records of 80 partitions are live." in text
