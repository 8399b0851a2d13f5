"""Evacuation: moving what lagging partitions still need, so that M can pass the objects that they hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from l0gc.api.cluster import BYTES_FOR_SPARK
from l0gc.api.engine import Engine, Work
from l0gc.api.groups import checked
from l0gc.api.operations import Operations
from l0gc.collect.attempts import read_attempts, recorded_attempt
from l0gc.collect.gc_steps import SWEEP
from l0gc.errors import L0gcError
from l0gc.events import Progress, quiet
from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.pins import PIN_TTL_S, PinView

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from l0gc.streamlog.evacuation.plan import EvacuateResult, EvacuationPlan


def planned(cluster: Handles, **limits: Any) -> EvacuationPlan:
    """What an evacuation would move now; see `plan_evacuation`."""
    from l0gc.streamlog.evacuation.plan import plan_evacuation

    swept = read_attempts(cluster.store, cluster.parallel, [SWEEP]).get(SWEEP)
    ended_ms = 0 if swept is None else swept.ended_ms
    return plan_evacuation(cluster, swept_ms=ended_ms, **limits)


class Evacuation(Operations):
    """The part of a cluster that moves records within L0, and that holds a state of it still."""

    @contextmanager
    def pin(self, name: str, *, ttl_s: float = PIN_TTL_S, level_one: bool = False, why: str = "") -> Iterator[PinView]:
        """A pin for a `with` block, which is deleted at its end; see `Pins.create` for the arguments.

        Raises:
            NotFoundError: at the end of the block, if the pin had ended before, so that what was read may have been gone.
        """
        pin = self.pins.create(name, ttl_s=ttl_s, level_one=level_one, why=why)
        try:
            yield pin
        except BaseException:
            with suppress(L0gcError):
                self.pins.delete(name, epoch=pin.epoch)
            raise
        self.pins.delete(name, epoch=pin.epoch)

    def evacuate(
        self,
        spark: SparkSession | Engine | None = None,
        *,
        dry_run: bool = False,
        ratio: float = 4,
        max_bytes: int = 1 << 30,
        progress: Progress = quiet,
    ) -> EvacuateResult:
        """Copy what lagging partitions still need into new L0 objects, so that M can pass the old ones. As `l0gc evacuate`.

        Args:
            spark: see `reconcile`.
            dry_run: copy nothing; the result has the numbers that the run would have.
            ratio: how many bytes of garbage have to be released for each byte that is copied; an object counts 1 MiB more.
            max_bytes: copy no more than this.
            progress: called with what is done next.
        """
        from l0gc.streamlog.evacuation.choice import OBJECT_BYTES

        limits = {"max_bytes": max_bytes, "object_bytes": OBJECT_BYTES}
        return self._evacuate(Engine.of(spark), dry_run=dry_run, progress=progress, ratio=ratio, **limits)

    def _evacuate(
        self, engine: Engine, *, dry_run: bool = False, progress: Progress = quiet, **limits: Any
    ) -> EvacuateResult:
        """The same with the limits of `planned`."""
        from l0gc.streamlog.evacuation.evacuate import run_evacuation

        handles = self.handles()
        with recorded_attempt(handles, "evacuate", whole=not dry_run):
            progress("reading the journals")
            plan = planned(handles, **limits)
            result = plan.expected
            work = Work(
                lambda: plan.target.copied,
                "bytes of L0 to move",
                on_cluster=1,
                here=BYTES_FOR_SPARK,
                needed=lambda: plan.target.epoch is not None,
            )
            if dry_run:
                result.engine, result.dry_run = engine.choose(work)[0], True
            else:
                with self._workers(engine, work, progress) as (workers, _):
                    result = run_evacuation(handles, plan, workers)
            return checked(result)
