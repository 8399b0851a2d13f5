"""The plan of a sweep, made once, before anything is deleted; both engines and every worker follow the same one.

The published watermark must be this cluster's (hazard 11), and not ahead of the cluster epoch (hazard 10). M is read once: a
higher one that is published meanwhile waits for the next run. Ages are measured by the store's clock (hazard 16). While an
operator's pause is set, there is no plan but that of a dry run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from l0gc.collect.pause import describe, read_pause, refusal
from l0gc.epoch import NO_WATERMARK
from l0gc.errors import SafetyError, StoreError, UsageError
from l0gc.keys import KeyLayout
from l0gc.storage.objectstore import OFF, PAGE_SIZE, ObjectStore
from l0gc.watermark.publication import PublishedWatermark, refuse_if_set_back, watermark_of
from l0gc.watermark.source import ClusterHandle

UNKNOWN: Final = "unknown"
_WHATEVER_ITS_AGE: Final = 1 << 62
ONE_PROCESS: Final = "--max-objects, --max-delete-ratio, --record-dir and --no-record need one process"
SPARK_FROM: Final = 1_000_000
"""Eligible objects from which `auto` takes a Spark cluster, if it is given one: below, starting Spark takes longer."""


@dataclass(frozen=True)
class SweepOptions:
    """What the caller wants.

    Attributes:
        min_age_ms: objects younger than this stay for now.
        max_objects: delete no more than this many.
        max_rate: delete no more than this many a second.
        shards: the first and the last shard to sweep.
        max_delete_ratio: stop before deleting more than this share of what the last scan counted.
        purge_versions: remove every version and delete marker of eligible keys for good.
        run_id: the run's name, see `run_id`; by default a new one.
        record_dir: a folder of this machine that the run record goes to, for a store that takes no more writes.
        record: False for no run record at all.
    """

    dry_run: bool = False
    min_age_ms: int = 0
    max_objects: int | None = None
    max_rate: float | None = None
    shards: tuple[int, int] | None = None
    max_delete_ratio: float | None = None
    purge_versions: bool = False
    run_id: str | None = None
    record_dir: Path | None = None
    record: bool = True

    @property
    def whole(self) -> bool:
        """Whether the run is to delete all that may go."""
        return not self.dry_run and self.shards is None


class SweepPlan(msgspec.Struct, frozen=True):
    """What every worker needs to know; holds no secret, so it can be sent to executors.

    `expected` and `counted` are what the last scan saw as eligible and in all, -1 if there was none. `paused` is the
    pause that is set, which a dry run reports and which stops any other run; else empty.
    """

    run_id: str
    watermark: int
    cluster_epoch: int
    template: str
    shards: int
    first_shard: int
    end_shard: int
    started_ms: int
    older_than_ms: int
    dry_run: bool
    versioning: str
    purge_versions: bool
    max_objects: int | None = None
    max_rate: float | None = None
    ratio_limit: int | None = None
    expected: int = -1
    counted: int = -1
    paused: str = ""

    @property
    def layout(self) -> KeyLayout:
        return KeyLayout(self.template, self.shards)

    @property
    def limit(self) -> int | None:
        """The most objects that the run may delete, for whichever reason."""
        limits = [n for n in (self.max_objects, self.ratio_limit) if n is not None]
        return min(limits) if limits else None

    @property
    def keeps_history(self) -> bool:
        """Whether version ids may matter: those of the delete markers that are made, or of the versions that go."""
        return self.versioning != OFF

    @property
    def by_version(self) -> bool:
        """Whether versions go, for good; a bucket that never kept any has none but the objects."""
        return self.purge_versions and self.keeps_history

    @property
    def is_mostly_garbage(self) -> bool:
        """Whether the last scan saw more eligible objects than others."""
        return self.expected > self.counted - self.expected >= 0

    def ranges(self, n: int) -> list[tuple[int, int]]:
        """The shards in at most `n` ranges, each from its first shard to the one after its last.

        Each range costs the end of a page that is not its own, so where the last scan saw few pages there are few ranges.
        """
        total = self.end_shard - self.first_shard
        if self.counted >= 0:
            n = min(n, -(-self.counted // PAGE_SIZE))
        n = max(1, min(n, total))
        cuts = [self.first_shard + total * i // n for i in range(n + 1)]
        return [(cuts[i], cuts[i + 1]) for i in range(n)]


def make_plan(cluster: ClusterHandle, options: SweepOptions) -> SweepPlan:
    """Look at the cluster, and decide what may go.

    Raises:
        NotInitialisedError, ClusterMismatchError, EpochRegressionError: see the module.
        PausedError: an operator has paused sweeps, and this is no dry run.
        UsageError: there are no such shards.
        SafetyError: a share of the bucket is given, and the bucket was not counted.
    """
    identity, published, _ = refuse_if_set_back(cluster, keep=False, by_m=True)
    layout = identity.layout
    pause = read_pause(cluster.store)
    if pause is not None and not options.dry_run:
        raise refusal(describe(pause))
    first, last = options.shards or (0, layout.shards - 1)
    if not 0 <= first <= last < layout.shards:
        raise UsageError(f"shards {first}-{last} are not within 0-{layout.shards - 1}, which this cluster has")
    now_ms = cluster.now_ms()
    return SweepPlan(
        run_id=options.run_id or run_id(now_ms, cluster.runtime.new_id()),
        watermark=watermark_of(published),
        cluster_epoch=identity.cluster_epoch,
        template=layout.template,
        shards=layout.shards,
        first_shard=first,
        end_shard=last + 1,
        started_ms=now_ms,
        older_than_ms=now_ms - options.min_age_ms if options.min_age_ms else _WHATEVER_ITS_AGE,
        dry_run=options.dry_run,
        versioning=versioning_of(cluster.store) if watermark_of(published) > NO_WATERMARK else OFF,
        purge_versions=options.purge_versions,
        max_objects=options.max_objects,
        max_rate=options.max_rate,
        ratio_limit=_ratio_limit(published, options.max_delete_ratio),
        expected=published.eligible_objects if published is not None else -1,
        counted=published.listed_objects if published is not None else -1,
        paused=describe(pause) if pause is not None else "",
    )


def versioning_of(store: ObjectStore) -> str:
    """Whether the bucket keeps versions; `unknown` where the store or the credentials do not say."""
    try:
        return store.history.versioning()
    except StoreError:
        return UNKNOWN


def run_id(now_ms: int, random_id: str) -> str:
    """A run's name, which sorts by the time it began."""
    return f"{datetime.fromtimestamp(now_ms / 1000, UTC):%Y%m%dT%H%M%SZ}-{random_id[:8]}"


def _ratio_limit(published: PublishedWatermark | None, ratio: float | None) -> int | None:
    if ratio is None or published is None:
        return None
    if published.listed_objects < 0:
        raise SafetyError(
            "--max-delete-ratio is a share of the bucket, and the last compute-watermark did not count the bucket: "
            "run l0gc compute-watermark without --no-scan and --inventory"
        )
    return int(published.listed_objects * ratio)


def needs_one_process() -> UsageError:
    """What becomes on Spark of a limit, or of a record, that one process must keep."""
    return UsageError(f"{ONE_PROCESS}: use --engine local")


def choose_engine(
    wanted: str, master: str | None, eligible: Callable[[], int], *, limited: bool = False
) -> tuple[str, str]:
    """The engine, and why.

    Args:
        eligible: gives what the last scan saw as eligible, -1 if there was no scan.
        limited: whether there is a limit, or a record, that only one process can keep.

    Raises:
        UsageError: Spark is wanted, which keeps no such limit.
    """
    if wanted == "spark" and limited:
        raise needs_one_process()
    if wanted != "auto":
        return wanted, "--engine"
    if master is None or master.startswith("local"):
        return "local", "no Spark cluster is given (--master)"
    if limited:
        return "local", ONE_PROCESS
    n = eligible()
    if n < 0:
        return "local", "the last compute-watermark did not count what is eligible"
    if n < SPARK_FROM:
        return "local", f"{n:,} objects were eligible at the last scan, fewer than {SPARK_FROM:,}"
    return "spark", f"{n:,} objects were eligible at the last scan, at least {SPARK_FROM:,}"
