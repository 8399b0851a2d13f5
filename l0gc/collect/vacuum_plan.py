"""The plan of a vacuum: what the caller wants, and what the cluster is, read once before anything is deleted.

As for a sweep (`plan.py`), the published watermark must be this cluster's, and not ahead of the cluster epoch (hazards 10
and 11), and while an operator's pause is set there is no plan but that of a dry run. Ages are measured by the store's clock
(hazard 16), from the moment of the plan on, so a long run judges all objects alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from l0gc.collect.pause import describe, read_pause, refusal
from l0gc.collect.plan import run_id, versioning_of
from l0gc.collect.runs import KEEP_RUNS_S
from l0gc.storage.objectstore import OFF
from l0gc.watermark.publication import refuse_if_set_back, watermark_of
from l0gc.watermark.source import ClusterHandle

L1_GRACE_MS: Final = 3_600_000
"""How long dropped objects stay for readers by default."""
ORPHAN_AGE_MS: Final = 24 * 3_600_000
"""Runs that stamped an object so long ago are refused by default, if they have not committed it yet."""


@dataclass(frozen=True)
class VacuumOptions:
    """What the caller wants.

    Attributes:
        l1_grace_ms: dropped objects stay so long for readers.
        orphan_age_ms: objects stamped so long ago that no journal names are orphans.
        orphans: False to leave out the listing that finds orphans.
        keep_runs_ms: the records of runs are kept so long.
        max_objects: delete no more than this many.
        max_rate: delete no more than this many a second.
        run_id: the run's name, see `plan.run_id`; by default a new one.
        record_dir: a folder of this machine that the run record goes to.
        record: False for no run record at all.
    """

    dry_run: bool = False
    l1_grace_ms: int = L1_GRACE_MS
    orphan_age_ms: int = ORPHAN_AGE_MS
    orphans: bool = True
    keep_runs_ms: int = KEEP_RUNS_S * 1000
    max_objects: int | None = None
    max_rate: float | None = None
    run_id: str | None = None
    record_dir: Path | None = None
    record: bool = True


class VacuumPlan(msgspec.Struct, frozen=True):
    """What every worker needs to know; holds no secret. `watermark` is what was published when the run began."""

    run_id: str
    watermark: int
    cluster_epoch: int
    started_ms: int
    dry_run: bool
    versioning: str
    external_log: bool = False
    max_objects: int | None = None
    max_rate: float | None = None
    paused: str = ""

    @property
    def by_version(self) -> bool:
        """Versions stay, for `l0gc undelete`."""
        return False

    @property
    def limit(self) -> int | None:
        return self.max_objects

    @property
    def keeps_history(self) -> bool:
        return self.versioning != OFF


def make_vacuum_plan(cluster: ClusterHandle, options: VacuumOptions) -> VacuumPlan:
    """Look at the cluster.

    Raises:
        NotInitialisedError, ClusterMismatchError, EpochRegressionError: nothing may be deleted here.
        PausedError: an operator has paused deletions, and this is no dry run.
    """
    identity, published, _ = refuse_if_set_back(cluster)
    pause = read_pause(cluster.store)
    if pause is not None and not options.dry_run:
        raise refusal(describe(pause))
    now_ms = cluster.now_ms()
    return VacuumPlan(
        run_id=options.run_id or run_id(now_ms, cluster.runtime.new_id()),
        watermark=watermark_of(published),
        cluster_epoch=identity.cluster_epoch,
        started_ms=now_ms,
        dry_run=options.dry_run,
        versioning=versioning_of(cluster.store),
        external_log=identity.external_log,
        max_objects=options.max_objects,
        max_rate=options.max_rate,
        paused=describe(pause) if pause is not None else "",
    )
