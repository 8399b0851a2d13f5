"""How sweeps and vacuums end on record: as runs that failed, or, if the process is killed, with no end at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from l0gc.collect.local import LocalSweep
from l0gc.collect.plan import Removal, run_id
from l0gc.collect.record import read_summary
from l0gc.collect.vacuum import Vacuum
from l0gc.errors import AccessDeniedError, ObjectNotFoundError
from l0gc.storage.parallel import Inline
from tests.collect.test_local import a_cluster as swept_cluster
from tests.collect.test_vacuum import a_cluster as vacuumed_cluster
from tests.collect.test_vacuum import planted
from tests.support.memory_store import Call, MemoryStore

RUN = run_id(0, "0123abcd")
Made = tuple[MemoryStore, Callable[[], Any]]


def a_sweep() -> Made:
    store = MemoryStore()
    cluster = swept_cluster(store)
    return store, lambda: LocalSweep(cluster, Removal(run_id=RUN)).run(Inline())


def a_vacuum() -> Made:
    cluster, store = vacuumed_cluster()
    source = planted(store)
    return store, lambda: Vacuum(cluster, source, Removal(run_id=RUN)).run(Inline())


def ended_by(e: BaseException, run: Made) -> MemoryStore:
    """What a run leaves whose first DELETE request raises `e` after its effect."""
    store, work = run

    def fault(call: Call) -> None:
        if call.kind == "delete" and call.when == "after":
            raise e

    store.fault = fault
    with pytest.raises(type(e)):
        work()
    store.fault = lambda call: None
    return store


@pytest.mark.parametrize("make", [a_sweep, a_vacuum])
def test_a_run_that_failed_says_so(make: Callable[[], Made]) -> None:
    assert read_summary(ended_by(AccessDeniedError("denied"), make()), RUN).outcome == "failed"


@pytest.mark.parametrize("make", [a_sweep, a_vacuum])
def test_a_run_whose_process_is_killed_leaves_no_end(make: Callable[[], Made]) -> None:
    store = ended_by(KeyboardInterrupt(), make())
    with pytest.raises(ObjectNotFoundError):
        read_summary(store, RUN)
