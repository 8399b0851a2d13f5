"""How a run ends on record: `run.json`, written by one function for sweeps and vacuums, on every engine.

A dry run, and a run that deleted no data and met no trouble, leave none. A run that failed or was stopped says so. A killed
process, as by a second signal, writes no end: its absence is how `runs` recognises a run that was killed, and
the segments say what it deleted (`record.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol

from l0gc.collect.plan import Removal
from l0gc.collect.record import RecordSink, RunSummary, write_summary
from l0gc.collect.remover import Tally
from l0gc.errors import StoreError
from l0gc.watermark.source import ClusterHandle

DONE: Final = "done"
STOPPED: Final = "stopped"
FAILED: Final = "failed"
"""The outcomes: all that was to go was tried; the caller or a pause ended the run; an error did."""


class RunResult(Protocol):
    """What the results of all runs have in common."""

    stopped: bool
    seconds: float

    @property
    def plan(self) -> Removal: ...

    @property
    def engine(self) -> str: ...

    @property
    def tally(self) -> Tally: ...

    @property
    def left_traces(self) -> bool:
        """Whether it deleted data, or met trouble: then a run that is done leaves a record, too."""
        ...

    def particulars(self) -> dict[str, Any]:
        """The fields of `RunSummary` that are this kind of run's own."""
        ...


@contextmanager
def ending(cluster: ClusterHandle, records: RecordSink | None, result: RunResult, began: float) -> Iterator[None]:
    """Around the work of a run: its result gets its time, and `run.json` is written, when the work has ended or failed.

    Args:
        records: where it goes; None to write nothing.
        began: when, by the monotonic clock.

    Raises:
        What the work raises.
        StoreError: the end cannot be written.
    """
    clock = cluster.runtime.clock
    try:
        yield
    except Exception:  # not what kills the process
        result.seconds = clock.monotonic() - began
        with suppress(StoreError):  # the error that ended the run is the one to report
            _write(cluster, records, result, FAILED)
        raise
    result.seconds = clock.monotonic() - began
    _write(cluster, records, result, STOPPED if result.stopped else DONE)


def _write(cluster: ClusterHandle, records: RecordSink | None, result: RunResult, outcome: str) -> None:
    plan, t = result.plan, result.tally
    if records is None or (outcome == DONE and not result.left_traces):
        return
    summary = RunSummary(
        run_id=plan.run_id,
        started_ms=plan.started_ms,
        watermark=plan.watermark,
        cluster_epoch=plan.cluster_epoch,
        engine=result.engine,
        versioning=plan.versioning,
        ended_ms=cluster.store.now_ms(),
        outcome=outcome,
        deleted=t.deleted,
        bytes=t.bytes,
        failed=t.failed,
        seconds=round(result.seconds, 3),
        **result.particulars(),
    )
    write_summary(records, summary)
