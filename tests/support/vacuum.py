"""Runs vacuums without grace, after the epochs that have to pass first."""

from __future__ import annotations

from typing import Final

from l0gc.collect.vacuum import VacuumResult, VacuumRun
from l0gc.operations import Vacuum
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.garbage import JournalGarbage
from l0gc.streamlog.housekeep import housekeep
from tests.support.memory_store import store_of

NOW: Final = Vacuum(l1_grace_s=0, orphan_age_s=0)


def vacuum(cluster: ClusterHandles, options: Vacuum = NOW) -> VacuumResult:
    return VacuumRun(cluster, options).run(JournalGarbage(cluster))


def tick(cluster: ClusterHandles, times: int = 1) -> None:
    """Let this many epochs pass, a minute each, and run housekeeping."""
    for _ in range(times):
        store_of(cluster).clock.ms += 60_000
        cluster.controller.advance()
    housekeep(cluster)


def vacuum_later(cluster: ClusterHandles) -> None:
    """Vacuum some epochs later, when every grace is over."""
    tick(cluster, 3)
    assert vacuum(cluster).problem is None
