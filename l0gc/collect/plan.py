"""Describe a run that deletes, a sweep or a vacuum: the caller's options, and the cluster's state at its start.

The plan is complete before anything is deleted; both engines and all workers follow the same plan. The published
watermark must belong to this cluster (hazard 11), must not be above the cluster epoch (hazard 10), and must not be lost
(hazard 38). M is read once; the next run uses a higher M that is published later. Ages are measured by the store's
clock (hazard 16) at the time of the plan, so a long run treats all objects alike. During a pause, only a dry run
starts.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Final, Generic, Self, TypeVar

import msgspec

from l0gc.collect.deletion import describe_pause, paused_error, read_pause
from l0gc.epoch import NO_WATERMARK
from l0gc.errors import SafetyError, StoreError, UsageError
from l0gc.keys import SHADOW, KeyLayout
from l0gc.operations import Deletion, Sweep, Vacuum
from l0gc.storage.objectstore import OFF, PAGE_SIZE, ObjectStore
from l0gc.watermark.publication import LogCheck, PublishedWatermark, refuse_if_set_back, watermark_at, watermark_of
from l0gc.watermark.source import ClusterView, LogEnd

D = TypeVar("D", bound=Deletion)

UNKNOWN: Final = "unknown"
NOTHING_KNOWN: Final = (NO_WATERMARK, 0)
_WHATEVER_ITS_AGE: Final = 1 << 62
RATIO: Final = "max_delete_ratio"
OBJECTS: Final = "max_objects"
BYTES: Final = "max_bytes"
"""The options that limit how much a run deletes."""


class DeletionPlan(msgspec.Struct, Generic[D], frozen=True, kw_only=True):
    """A run that deletes: its options, and the state that `plan_sweep` or `plan_vacuum` read. It contains no secret, so
    it can be sent to executors.

    Attributes:
        run_id: the run's name; see `run_id`.
        watermark: M, for display. Only `bound` decides what a sweep may delete: no object above it.
        older_than_ms: a sweep deletes only objects that were changed at this time or before.
        by_version: whether a sweep permanently deletes every version and delete marker; False if the bucket has never
            kept versions.
        expected, counted: the numbers of eligible objects and of all objects at the last scan; -1 if unknown.
        paused: the current pause, which a dry run reports and which stops any other run; otherwise empty.
        ends: for a shadow run, where the log of each unit ended when M was last published.
        known: for a shadow run, an epoch and a time: objects at or below the epoch that were changed before the time
            are already on record from earlier shadow runs, so they are counted but not recorded.
    """

    options: D
    run_id: str = ""
    started_ms: int = -1
    watermark: int = NO_WATERMARK
    bound: int = NO_WATERMARK
    cluster_epoch: int = -1
    external_log: bool = False
    older_than_ms: int = _WHATEVER_ITS_AGE
    layout: KeyLayout = KeyLayout()
    first_shard: int = 0
    end_shard: int = 0
    versioning: str = OFF
    by_version: bool = False
    ratio_limit: int | None = None
    expected: int = -1
    counted: int = -1
    paused: str = ""
    ends: dict[str, LogEnd] = {}
    known: tuple[int, int] = NOTHING_KNOWN

    def limited_to_share(self, total: int, usual: int = 0) -> Self:
        """Return the plan, limited to the share of `total` objects that the options allow, if they set one.

        Args:
            usual: the number of objects that is not unusual, whatever its share. When uploads rest, the last objects
                are a large share.
        """
        ratio = self.options.max_delete_ratio
        if ratio is None:
            return self
        return msgspec.structs.replace(self, ratio_limit=max(int(total * ratio), usual) if ratio else 0)

    @property
    def limits(self) -> dict[str, int]:
        """Return how many objects, or for `BYTES` how many bytes, the run may delete, for each option that limits it.

        The share comes first, since it needs an operator if two limits exclude the same object.
        """
        limits = {RATIO: self.ratio_limit, OBJECTS: self.options.max_objects, BYTES: self.options.max_bytes}
        return {option: most for option, most in limits.items() if most is not None}

    @property
    def keeps_history(self) -> bool:
        """Return whether the ids of created delete markers or removed versions may be of use."""
        return self.versioning != OFF

    def ranges(self, n: int) -> list[tuple[int, int]]:
        """Return the shards in at most `n` ranges, each from its first shard to the shard after its last.

        A range may read part of a page that belongs to the next range, so there are few ranges if the last scan read
        few pages.
        """
        total = self.end_shard - self.first_shard
        if self.counted >= 0:
            n = min(n, -(-self.counted // PAGE_SIZE))
        n = max(1, min(n, total))
        cuts = [self.first_shard + total * i // n for i in range(n + 1)]
        return [(cuts[i], cuts[i + 1]) for i in range(n)]


def plan_sweep(
    cluster: ClusterView, options: Sweep, name: str = "", usual: Callable[[int], int] = lambda now_ms: 0
) -> DeletionPlan[Sweep]:
    """Read the cluster, and decide what a sweep may delete.

    Args:
        usual: see `DeletionPlan.limited_to_share`; called with the start of the run, if a share is given.

    Raises:
        NotInitialisedError, ClusterMismatchError, EpochRegressionError, LostWatermarkError: see the module.
        PausedError: an operator has paused deletions, and this is not a dry run.
        UsageError: the shards do not exist.
        SafetyError: objects above M would be deleted, or a share of the bucket is given although the bucket was not
            counted.
    """
    plan, published, look = _begin_plan(
        cluster, options, name, partial(refuse_if_set_back, cluster, keep=False, by_m=True, deletes=True)
    )
    shards = plan.layout.shards
    first, last = options.shards or (0, shards - 1)
    if not 0 <= first <= last < shards:
        raise UsageError(f"shards {first}-{last} are not within 0-{shards - 1}, which this cluster has")
    bound = plan.watermark
    if options.grace_s:
        earlier_ms, _ = cluster.between_ms()
        bound = watermark_at(published, earlier_ms - int(1000 * options.grace_s))
    if options.up_to is not None and options.up_to > plan.watermark:
        why = f"is above M = {plan.watermark}" if plan.watermark > NO_WATERMARK else "needs an M, and none is published"
        raise SafetyError(f"--up-to {options.up_to} {why}; l0gc compute-watermark publishes the M that is possible now")
    if options.up_to is not None:
        bound = min(bound, options.up_to)
    versioning = look() if bound > NO_WATERMARK else OFF
    counted = published.listed_objects if published is not None else -1
    if options.max_delete_ratio is not None and published is not None and counted < 0:
        raise SafetyError(
            "--max-delete-ratio is a share of the bucket, and the last compute-watermark did not count the bucket: "
            "run l0gc compute-watermark without --no-scan"
        )
    eligible = published.eligible_objects if published is not None else -1
    if options.max_delete_ratio and 0 <= eligible <= int(counted * options.max_delete_ratio):
        plan = plan.limited_to_share(counted)
    else:
        plan = plan.limited_to_share(max(0, counted), usual(plan.started_ms) if options.max_delete_ratio else 0)
    if options.shadow:
        ends = published.ends if published is not None else {}
        plan = msgspec.structs.replace(plan, run_id=f"{SHADOW}{plan.run_id}", ends=ends)
    return msgspec.structs.replace(
        plan,
        bound=bound,
        older_than_ms=plan.started_ms - int(1000 * options.min_age_s) if options.min_age_s else _WHATEVER_ITS_AGE,
        first_shard=first,
        end_shard=last + 1,
        versioning=versioning,
        by_version=options.purge_versions and versioning != OFF,
        expected=published.eligible_objects if published is not None and bound == plan.watermark else -1,
        counted=counted,
    )


def plan_vacuum(cluster: ClusterView, options: Vacuum, name: str = "") -> DeletionPlan[Vacuum]:
    """Read the cluster, and decide what a vacuum may delete. Versions stay for `l0gc undelete`.

    Raises:
        NotInitialisedError, ClusterMismatchError, EpochRegressionError: nothing may be deleted here.
        PausedError: an operator has paused deletions, and this is not a dry run.
    """
    plan, _, look = _begin_plan(cluster, options, name, partial(refuse_if_set_back, cluster, deletes=True))
    return msgspec.structs.replace(plan, versioning=look())


def _begin_plan(
    cluster: ClusterView, options: D, name: str, check: Callable[[], LogCheck]
) -> tuple[DeletionPlan[D], PublishedWatermark | None, Callable[[], str]]:
    """Return the plan without the fields that depend on the kind of run, the published M, and a function that returns
    the versioning.

    The pause and the versioning, which no log records, are requested while the logs are read. Raises `PausedError`.
    """
    pause_read = cluster.parallel.begin(partial(read_pause, cluster.store))
    versioning = cluster.parallel.begin(partial(versioning_of, cluster.store))
    identity, published, _ = check()
    pause = pause_read()
    if pause is not None and not options.dry_run:
        raise paused_error(describe_pause(pause))
    now_ms, m = cluster.now_ms(), watermark_of(published)
    plan = DeletionPlan(
        options=options,
        run_id=name or run_id(now_ms, cluster.runtime.new_id()),
        started_ms=now_ms,
        watermark=m,
        bound=m,
        cluster_epoch=identity.cluster_epoch,
        external_log=identity.external_log,
        layout=identity.layout,
        paused=describe_pause(pause) if pause is not None else "",
    )
    return plan, published, versioning


def versioning_of(store: ObjectStore) -> str:
    """Return whether the bucket keeps versions; `unknown` if the store or the credentials do not allow reading that."""
    try:
        return store.versioning()
    except StoreError:
        return UNKNOWN


def run_id(now_ms: int, random_id: str) -> str:
    """Return the name of a run. Names sort by the time at which runs began."""
    return f"{datetime.fromtimestamp(now_ms / 1000, UTC):%Y%m%dT%H%M%SZ}-{random_id[:8]}"
