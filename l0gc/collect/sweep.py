"""A sweep: L0 objects at or below M, and unfinished uploads of such, go.

One process sweeps all shards with one remover; a limit is used up in key order. On Spark each part is a range of shards.
Uploads: their parts cost money, and no listing of objects shows them. One is aborted only if its key is an L0 key at or
below M (hazard 13 goes for them, too). Completing it later could only bring about an object that M already gives up: no
partition takes a placeholder for it any more.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from l0gc.collect.plan import Removal, plan_sweep
from l0gc.collect.run import RemovalRun, RunResult
from l0gc.collect.scan import Deletable, Tally
from l0gc.collect.sweeper import Ranges, sweep_ranges
from l0gc.epoch import NO_WATERMARK
from l0gc.errors import L0gcError, PartialFailureError, SafetyError, StoreError
from l0gc.events import quiet
from l0gc.formatting import count
from l0gc.storage.parallel import InlineExecutor
from l0gc.storage.workers import LOCAL, Workers
from l0gc.watermark.source import ClusterHandle

LEVEL_ZERO: Final = "l0"
"""What the segments of a sweep's workers begin with."""


@dataclass(kw_only=True)
class SweepResult(RunResult):
    """What a sweep did, or would do.

    `eligible` are objects at or below M, whatever their age; `unparsable` keys are not L0 keys, and stay.
    """

    beside: ClassVar[frozenset[str]] = RunResult.beside | {"uploads_note"}

    watermark: int = NO_WATERMARK
    eligible: int = 0
    held_by_age: int = 0
    deleted: int = 0
    uploads_aborted: int = 0
    uploads_note: str = ""
    """Why not all uploads were listed, where the store or the credentials did not allow it."""
    engine_reason: str = ""

    def count(self, tally: Tally) -> None:
        super().count(tally)
        self.watermark = self.plan.watermark
        self.eligible, self.held_by_age, self.deleted = tally.eligible, tally.held_by_age, tally.deleted

    def measures(self) -> dict[str, Any]:
        names = ("highest_deleted_epoch", "list_errors", "delete_errors")
        return {"cluster_epoch": self.plan.cluster_epoch} | {name: getattr(self.tally, name) for name in names}

    @property
    def left_traces(self) -> bool:
        return super().left_traces or self.uploads_aborted > 0

    @property
    def over_ratio(self) -> bool:
        """Whether the run ended because more was eligible than the share of the bucket that may go."""
        return self.tally.limited and self.plan.ratio_limit is not None and self.plan.limit == self.plan.ratio_limit

    @property
    def problem(self) -> L0gcError | None:
        """What kept the run from deleting all that it was to delete: a pause, the share that may go, or failures."""
        if super().problem is not None:
            return super().problem
        if self.over_ratio:
            return SafetyError(
                f"more than {self.plan.ratio_limit:,} objects are eligible, the share of the bucket that --max-delete-ratio "
                "allows; look at l0gc sweep --dry-run without it, and raise it if that is right"
            )
        if not self.failed:
            return None
        first = self.failures[0]
        return PartialFailureError(
            f"{count(self.failed, 'object')} could not be deleted, the rest is done; the first is {first.key}: "
            f"{first.why}. Run the sweep again"
        )


class Sweep(RemovalRun[SweepResult]):
    """One run; see `RemovalRun` for the other arguments.

    Args:
        gone: called with what each batch has removed, or would remove in a dry run, in the order of keys. Those of a scan
            that began again, because the store lists out of order, come twice.
    """

    def __init__(
        self,
        cluster: ClusterHandle,
        wanted: Removal | None = None,
        workers: Workers[Any] | None = None,
        *,
        stop: threading.Event | None = None,
        deleters: Executor | None = None,
        gone: Callable[[Sequence[Deletable]], None] | None = None,
    ) -> None:
        super().__init__(cluster, wanted, workers, stop=stop, deleters=deleters if gone is None else InlineExecutor())
        self._gone = gone

    def run(self, ranges: int | None = None, reason: str = "") -> SweepResult:
        """Sweep.

        Args:
            ranges: into how many ranges the shards are cut, each scanned on its own; by default as suits the workers.
            reason: why the engine was chosen, for the result.

        Raises:
            What `plan_sweep` raises: nothing was deleted.
            UsageError: a limit or another record is wanted, which only one process can keep.
            StoreError, BucketNotFoundError: the store failed, or the credentials do not allow it; what was deleted until
                then is on record.
        """
        plan = plan_sweep(self._cluster, self._wanted)
        result = SweepResult(plan=plan, engine=self._workers.engine, engine_reason=reason)
        self._begin(plan)
        if plan.watermark == NO_WATERMARK:
            return result
        with self._ending(result):
            remover, parts, say = self._remover(LEVEL_ZERO), self._parts(plan, ranges), self._workers.say
            if self._gone is not None:
                remover.gone = self._gone
            if self._workers.engine != LOCAL:
                say(f"{count(len(parts), 'range')} of shards")
                say = quiet
            self._spread(LEVEL_ZERO, functools.partial(sweep_ranges, say), parts)
            self._count(result)
            if not result.over_ratio:
                self._abort_uploads(plan, result, remover.tally)
        return result

    def _parts(self, plan: Removal, ranges: int | None) -> list[Ranges]:
        """The shards in parts."""
        workers = self._workers
        if workers.engine != LOCAL:
            # A rate can be shared out among as many tasks as there are, however many of them run at once, and no more.
            return [[r] for r in plan.ranges(workers.slots if plan.max_rate is None else workers.cores)]
        n = ranges or workers.slots
        if plan.limit is not None or self._gone is not None:
            n = 1  # a limit is used up in key order, so that a dry run counts the objects that the run deletes
        elif plan.is_mostly_garbage:
            n = (n + 3) // 4  # the deletes set the pace, and a scanner that waits holds a page
        return [plan.ranges(n)]

    def _abort_uploads(self, plan: Removal, result: SweepResult, tally: Tally) -> None:
        """Abort the unfinished uploads of keys that M gives up; a dry run only counts them."""
        store, layout = self._cluster.store, plan.layout
        tally.list_requests += 1  # for the first page, also if it is empty
        try:
            for number, page in enumerate(store.history.uploads(layout.data_prefix)):
                tally.list_requests += number > 0
                for upload in page:
                    if self.stop.is_set():
                        return
                    parsed = layout.parse(upload.key)
                    if parsed is None or parsed.epoch > plan.watermark:
                        continue
                    if (
                        not plan.first_shard <= parsed.shard < plan.end_shard
                        or upload.initiated_ms > plan.older_than_ms
                    ):
                        continue
                    if not plan.dry_run:
                        store.history.abort(upload)
                    result.uploads_aborted += 1
        except StoreError as e:
            result.uploads_note = f"unfinished multipart uploads were not all listed: {e}"
