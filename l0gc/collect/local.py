"""The local engine: one process, scanners and deleters on threads. It starts in a fraction of a second."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Final

from l0gc.collect.pause import refusal
from l0gc.collect.plan import Removal, plan_sweep
from l0gc.collect.record_places import sink_of
from l0gc.collect.remover import Tally
from l0gc.collect.run_end import ending
from l0gc.collect.scan import Deletable
from l0gc.collect.sweeper import Sweeper, SweepProgress
from l0gc.collect.uploads import UploadsResult, abort_uploads
from l0gc.epoch import NO_WATERMARK
from l0gc.errors import L0gcError, PartialFailureError, SafetyError
from l0gc.formatting import count
from l0gc.storage.parallel import InlineExecutor, Parallel
from l0gc.watermark.source import ClusterHandle

SCANNERS: Final = 8
DELETERS: Final = 6
"""A DELETE of a thousand keys takes a store about 0.3 s, so these are 20,000 objects a second; each holds half a MiB."""


@dataclass
class SweepResult:
    """What a sweep did, or would do. What a dry run reports as deleted is what the real run deletes.

    Its properties have the names of the command's JSON. `stopped`: the caller or a pause ended it.
    """

    plan: Removal
    engine: str
    tally: Tally = field(default_factory=Tally)
    uploads: UploadsResult = field(default_factory=UploadsResult)
    stopped: bool = False
    seconds: float = 0.0

    @property
    def watermark(self) -> int:
        return self.plan.watermark

    @property
    def run_id(self) -> str:
        return self.plan.run_id

    @property
    def dry_run(self) -> bool:
        return self.plan.dry_run

    @property
    def listed(self) -> int:
        return self.tally.counts.listed

    @property
    def eligible(self) -> int:
        """Objects at or below M, whatever their age."""
        return self.tally.counts.eligible

    @property
    def deleted(self) -> int:
        return self.tally.deleted

    @property
    def bytes(self) -> int:
        """Of what was deleted."""
        return self.tally.bytes

    @property
    def failed(self) -> int:
        return self.tally.failed

    @property
    def held_by_age(self) -> int:
        return self.tally.counts.held_by_age

    @property
    def unparsable(self) -> int:
        """Keys that are not L0 keys, and stay."""
        return self.tally.counts.unparsable

    @property
    def requests(self) -> dict[str, int]:
        """LIST and DELETE requests."""
        return {"list": self.tally.counts.requests + self.uploads.requests, "delete": self.tally.delete_requests}

    @property
    def paused(self) -> str | None:
        """The pause that is set, or that ended the run."""
        return self.plan.paused or self.tally.paused or None

    @property
    def left_traces(self) -> bool:
        return bool(self.tally.deleted or self.tally.failed or self.uploads.aborted)

    def particulars(self) -> dict[str, Any]:
        """What only a sweep has in its `run.json`."""
        return {
            "purge_versions": self.plan.purge_versions,
            "first_shard": self.plan.first_shard,
            "end_shard": self.plan.end_shard,
            "listed": self.tally.counts.listed,
            "eligible": self.tally.counts.eligible,
            "uploads_aborted": self.uploads.aborted,
        }

    @property
    def over_ratio(self) -> bool:
        """Whether the run ended because more was eligible than the share of the bucket that may go."""
        return self.tally.limited and self.plan.ratio_limit is not None and self.plan.limit == self.plan.ratio_limit

    @property
    def problem(self) -> L0gcError | None:
        """What kept the run from deleting all that it was to delete: a pause, the share that may go, or failures."""
        if self.tally.paused:
            return refusal(self.tally.paused)
        if self.over_ratio:
            return SafetyError(
                f"more than {self.plan.ratio_limit:,} objects are eligible, the share of the bucket that --max-delete-ratio "
                "allows; look at l0gc sweep --dry-run without it, and raise it if that is right"
            )
        if not self.failed:
            return None
        first = self.tally.failures[0]
        return PartialFailureError(
            f"{count(self.failed, 'object')} could not be deleted, the rest is done; the first is {first.key}: "
            f"{first.why}. Run the sweep again"
        )


class LocalSweep:
    """One run.

    Args:
        progress: called after every request.
        gone: called with what each batch has removed, or would remove in a dry run. Those of a scan that began again,
            because the store lists out of order, come twice.
    """

    def __init__(
        self,
        cluster: ClusterHandle,
        wanted: Removal | None = None,
        *,
        progress: Callable[[SweepProgress], None] = lambda progress: None,
        gone: Callable[[Sequence[Deletable]], None] = lambda objects: None,
    ) -> None:
        self._cluster = cluster
        self._gone = gone
        self._wanted = wanted or Removal()
        self._progress = progress
        self._records = sink_of(cluster.store, self._wanted)
        self.stop = threading.Event()
        """Set it, and the run finishes its requests in flight, records them, and returns."""
        self.result: SweepResult | None = None
        """What was done so far, also by a run that failed; None before there is a plan."""

    def run(self, scanners: Parallel, ranges: int = SCANNERS, deleters: Executor | None = None) -> SweepResult:
        """Sweep.

        Args:
            ranges: into how many ranges the shards are cut, each scanned on its own.
            deleters: where DELETE requests run; by default in the scanner's thread.

        Raises:
            What `plan_sweep` raises: nothing was deleted.
            StoreError, BucketNotFoundError: the store failed, or the credentials do not allow it; what was deleted until
                then is on record.
        """
        began = self._cluster.runtime.clock.monotonic()
        plan = plan_sweep(self._cluster, self._wanted)
        result = self.result = SweepResult(plan, "local")
        if plan.watermark == NO_WATERMARK:
            return result
        sweeper = Sweeper(
            self._cluster.store,
            self._cluster.runtime,
            plan,
            worker="local",
            deleters=deleters or InlineExecutor(),
            records=self._records,
            stop=self.stop,
            progress=self._progress,
            gone=self._gone,
        )
        if plan.limit is not None:
            ranges = 1  # a limit is used up in key order, so that a dry run counts the objects that the run deletes
        elif plan.is_mostly_garbage:
            ranges = (ranges + 3) // 4  # the deletes set the pace, and a scanner that waits holds a page
        with ending(self._cluster, self._records, result, began):
            try:
                result.tally = sweeper.run(plan.ranges(ranges), scanners)
            except Exception:
                result.tally = sweeper.tally
                raise
            if not result.over_ratio:
                result.uploads = abort_uploads(self._cluster.store, plan, self.stop)
            result.stopped = self.stop.is_set()
        return result
