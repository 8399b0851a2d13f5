"""The record of runs' outcomes; a note that cannot be written is not an error."""

from __future__ import annotations

import pytest

from l0gc.collect.record import Attempt, attempt_key, read_attempts, recorded_attempt
from l0gc.errors import (
    AccessDeniedError,
    CorruptObjectError,
    NotInitialisedError,
    PausedError,
    UsageError,
)
from l0gc.storage.parallel import Parallel
from l0gc.streamlog.cluster import ClusterHandles
from tests.support.memory_store import MemoryStore, failing, memory_cluster


def known(cluster: ClusterHandles) -> MemoryStore:
    """Return the store of a cluster whose state has been read."""
    cluster.controller.snapshot()
    assert isinstance(cluster.store, MemoryStore)
    return cluster.store


def run(
    cluster: ClusterHandles, error: BaseException | None = None, *, whole: bool = True, dry_run: bool = False
) -> None:
    with recorded_attempt(cluster, "reconcile", whole=whole, dry_run=dry_run):
        if error is not None:
            raise error


def last(store: MemoryStore) -> Attempt | None:
    return read_attempts(store, Parallel()).known.get("reconcile")


def test_a_successful_run_is_recorded_with_store_time_in_one_request() -> None:
    cluster = memory_cluster()
    store = known(cluster)
    store.requests.clear()
    run(cluster)
    assert store.requests == {"put": 1}
    assert last(store) == Attempt("reconcile", 0, "", store.clock.ms)


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (CorruptObjectError("object x is damaged"), 4, "object x is damaged"),
        (AccessDeniedError("no"), 1, "no"),
        (CorruptObjectError("x" * 1001), 4, "x" * 1000),
        (KeyboardInterrupt(), 130, "it was stopped"),
        (ZeroDivisionError("by zero"), 1, "unexpected ZeroDivisionError: by zero"),
    ],
)
def test_a_failure_is_recorded_and_raised(error: BaseException, code: int, text: str) -> None:
    cluster = memory_cluster()
    store = known(cluster)
    with pytest.raises(type(error)):
        run(cluster, error)
    found = last(store)
    assert found is not None
    assert (found.exit_code, found.error, found.ok) == (code, text, False)
    run(cluster)
    found = last(store)
    assert found is not None
    assert found.ok


@pytest.mark.parametrize("error", [UsageError("typo"), PausedError("audit"), NotInitialisedError("none")])
def test_an_error_that_does_not_concern_the_cluster_is_not_recorded(error: Exception) -> None:
    cluster = memory_cluster()
    store = known(cluster)
    with pytest.raises(type(error)):
        run(cluster, error)
    assert last(store) is None


def test_a_partial_run_is_recorded_as_partial() -> None:
    cluster = memory_cluster()
    store = known(cluster)
    with pytest.raises(AccessDeniedError):
        run(cluster, AccessDeniedError("no"), whole=False)
    assert last(store) is None
    for _ in range(2):  # the second run replaces the first
        store.clock.sleep(60)
        run(cluster, whole=False)
        assert last(store) == Attempt("reconcile", 0, "", store.clock.ms, part=True)
    with pytest.raises(AccessDeniedError):
        run(cluster, AccessDeniedError("no"))
    run(cluster, whole=False)
    found = last(store)
    assert found is not None
    assert (found.exit_code, found.part) == (1, False)  # the failure of the whole run is kept


def test_a_partial_run_does_not_replace_an_unreadable_record() -> None:
    cluster = memory_cluster()
    store = known(cluster)
    run(cluster)
    store.fault = failing(AccessDeniedError("no"), "get", attempt_key("reconcile"))
    run(cluster, whole=False)
    store.fault = lambda call: None
    found = last(store)
    assert found is not None
    assert not found.part


@pytest.mark.parametrize(
    ("code", "ended"), [(0, "ended"), (129, "stopped"), (130, "stopped"), (143, "stopped"), (3, "failed")]
)
def test_what_a_signal_stopped_has_not_failed(code: int, ended: str) -> None:
    assert Attempt("sweep", code, "").ended == ended


def test_a_dry_run_and_one_whose_reader_went_away_are_not_recorded() -> None:
    cluster = memory_cluster()
    store = known(cluster)
    run(cluster, dry_run=True)
    closed = RuntimeError("closed")
    closed.__cause__ = BrokenPipeError()
    with pytest.raises(RuntimeError):
        run(cluster, closed)
    assert last(store) is None


def test_nothing_is_written_where_no_cluster_has_been_seen() -> None:
    cluster = memory_cluster(MemoryStore(), bootstrap=False)
    run(cluster)
    assert isinstance(cluster.store, MemoryStore)
    assert cluster.store.objects == {}


def test_a_store_that_refuses_the_note_does_not_fail_the_run() -> None:
    cluster = memory_cluster()
    store = known(cluster)
    store.fault = failing(AccessDeniedError("not here"), "put")
    run(cluster)
    assert last(store) is None


def test_a_note_that_cannot_be_read_counts_as_none() -> None:
    store = known(memory_cluster())
    store.put(attempt_key("reconcile"), b"\xff{")
    assert last(store) is None
