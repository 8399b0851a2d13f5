"""The metrics of l0gc: one table of their names, and their values for a command's run.

A run is short, so its metrics are computed once, at its end, from the result that the command prints. A counter is the
sum over all runs, which the system that stores it adds up; a gauge is the value of the last run. The gauges of the
cluster come from one overview, which is read when the command ends, so they do not depend on which steps were due.
Values that a run has not measured are omitted: an unknown number is never reported as zero, and a dry run reports
nothing at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sized
from typing import TYPE_CHECKING, Any, Final

import msgspec

from l0gc.collect.gc_steps import STEPS
from l0gc.collect.vacuum import KINDS

if TYPE_CHECKING:
    from l0gc.inspect.overview import Overview

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
REFUSED: Final = 4
"""The exit code of a run that was refused for safety."""

LABELS: Final = ("url", "command", "step")
"""The labels of every metric: the cluster, the command, and its step; `gc` has several steps."""

LAST_RUN: Final = "l0gc_last_run_"
"""The prefix of the gauges that replace counters on a Pushgateway."""


class Metric(msgspec.Struct, frozen=True):
    """One metric.

    Attributes:
        steps: the steps that report it.
        source: the path of the number in a step's result, as names with dots between them. A list stands for its
            length.
        label: an additional label, if there is a number for each of its values.
    """

    name: str
    kind: str
    steps: tuple[str, ...]
    source: str
    help: str
    label: str = ""

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the names of its labels, in order."""
        return (*LABELS, self.label) if self.label else LABELS

    @property
    def last_run_name(self) -> str:
        """Return its name as a gauge of the last run, for a Pushgateway."""
        if self.kind == GAUGE:
            return self.name
        return LAST_RUN + self.name.removeprefix("l0gc_").removesuffix("_total")


class Run(msgspec.Struct):
    """The outcome of a command, with those of its steps in `parts`.

    Attributes:
        data: the result that it printed, and its other measurements.
        ended_s: when it ended, in seconds since 1970.
        due: whether it ran at all. The last run of a step that was not due did not fail.
        seen: the overview of the cluster at its end; None if it was not read.
        log_free: see the metric `log_disk_free_bytes`.
    """

    step: str
    data: dict[str, Any] = {}
    exit_code: int = 0
    seconds: float = 0.0
    ended_s: float = 0.0
    parts: list[Run] = []
    due: bool = True
    seen: Overview | None = None
    log_free: int | None = None


MEASURED: Final = (*STEPS, "upload", "status", "verify", "gc")
"""The commands that report metrics; those before `upload` are the steps of `gc`."""

OBSERVING: Final = tuple(step for step in MEASURED if step != "upload")
"""The commands that read the cluster at their end. Uploads, which are frequent and have a policy with fewer reads, do
not.
"""


def _counter(name: str, steps: str, source: str, text: str) -> Metric:
    return Metric(f"l0gc_{name}_total", COUNTER, tuple(steps.split()), source, text)


def _gauge(name: str, steps: str, source: str, text: str) -> Metric:
    return Metric(f"l0gc_{name}", GAUGE, tuple(steps.split()), source, text)


def _seen(name: str, source: str, text: str, label: str = "") -> Metric:
    return Metric(f"l0gc_{name}", GAUGE, OBSERVING, f"cluster.{source}", text, label)


_ALL: Final = " ".join(MEASURED)

METRICS: Final = (
    # -- of every run: the fields that `Run` adds to its result
    _counter("runs", _ALL, "run.one", "Runs that ended, with any result."),
    _counter("failed_runs", _ALL, "run.failed", "Runs that ended with an exit code other than 0."),
    _counter("safety_blocks", _ALL, "run.refused", "Runs that were refused for safety or by a pause (exit code 4)."),
    _gauge("exit_code", _ALL, "run.exit_code", "The exit code of the last run."),
    _gauge("run_duration_seconds", _ALL, "run.seconds", "How long the last run took."),
    _gauge("last_end_timestamp_seconds", _ALL, "run.ended_s", "When the last run ended."),
    _gauge("last_success_timestamp_seconds", _ALL, "run.success_s", "When the last run with exit code 0 ended."),
    _gauge(
        "log_disk_free_bytes", _ALL, "run.log_free", "The free bytes on the disk of stdout and stderr, if they are files."
    ),
    # -- the cluster at the end of the run, regardless of which steps were due: the overview that `status` shows
    _seen("seen_timestamp_seconds", "seen_s", "When the run read the cluster, which is the time of the cluster's gauges."),
    _seen("cluster_epoch", "cluster_epoch", "The cluster epoch."),
    _seen("watermark", "watermark", "M; -1 if nothing may be deleted."),
    _seen("epoch_lag", "lag_epochs", "The cluster epoch minus M, or minus the possible M if l0gc gc need not compute it."),
    _seen("lag_seconds", "lag_s", "How long ago the epoch above M began."),
    _seen("computable_watermark", "computable_watermark", "The M that a computation would give now."),
    _seen(
        "lowest_partition_gc_epoch", "lowest_gc_epoch", "The lowest M(p) of all partitions; absent if M is the epoch."
    ),
    _seen("held_back_partitions", "held_partitions", "The number of partitions whose M(p) is M."),
    _seen("partitions", "partitions", "The number of partitions in the cluster."),
    _seen("journals", "journals", "The number of journals that keep the partitions."),
    _seen("unreadable_journals", "errors", "The number of journals that cannot be read; they hold M."),
    _seen("records", "records", "The number of records uploaded to the existing topics since their creation."),
    _seen("unreconciled_records", "unreconciled_records", "The number of records that are still in L0."),
    _seen("unreconciled_bytes", "unreconciled_bytes", "The bytes of unreconciled records in L0."),
    _seen(
        "laggard_garbage_bytes", "laggards.garbage_bytes",
        "The bytes of L0 at the last listing that nothing needs and that lagging partitions keep.",
    ),
    _seen("pins", "pins", "The number of pins that have not ended."),
    _seen("pinned_bytes", "pinned_bytes", "The bytes of garbage kept by the pin that keeps the most."),
    _seen("paused_seconds", "paused_s", "How long sweeps have been paused; 0 if they are not."),
    _seen("holes", "holes", "The number of ranges of records that were given up."),
    _seen("lost_records", "lost_records", "The number of records that were given up."),
    _seen("misfits", "misfits", "The number of records that did not fit their topic's value schema when they were lifted."),
    _seen("l0_objects", "garbage.objects", "The number of L0 objects in the bucket at the last listing."),
    _seen("l0_bytes", "garbage.bytes", "The bytes of those objects."),
    _seen(
        "eligible_objects", "garbage.left_objects",
        "The number of L0 objects in the last listing that are at or below M and not known to be deleted: the garbage.",
    ),
    _seen("eligible_bytes", "garbage.left_bytes", "The bytes of those objects."),
    _seen("eligible_dollars_month", "garbage.dollars_month", "The monthly cost of those bytes at $0.023 per GB."),
    _seen("oldest_eligible_age_seconds", "oldest_eligible_s", "The age of the oldest of those objects, or 0."),
    _seen(
        "unparsable_keys", "garbage.unparsable", "Keys in the L0 folder that are not L0 keys; they are never deleted."
    ),
    _seen("l1_live_objects", "l1.live_objects", "The number of L1 objects that journals name."),
    _seen("l1_live_bytes", "l1.live_bytes", "The bytes of those objects."),
    _seen("l1_dead_bytes", "l1.dead_bytes", "The bytes in shared L1 objects that no partition names any more."),
    _seen("l1_dropped_objects", "l1.dropped_objects", "The number of existing L1 objects that journals dropped."),
    _seen("l1_dropped_bytes", "l1.dropped_bytes", "The bytes of those objects."),
    _seen(
        "l1_oldest_dropped_age_seconds", "oldest_dropped_s", "How long the oldest of those without a pin has waited, or 0."
    ),
    _seen(
        "sweep_leaves_seconds", "leaves_s",
        "How long sweeps leave objects that M allows: --grace or --min-age of the last sweep, +Inf if it was a shadow run.",
    ),
    _seen("cause", "causes", "1 if status names this cause or warning, else 0.", label="cause"),
    # -- housekeep
    _counter("ticks", "housekeep", "ticked", "Runs in which the cluster epoch moved."),
    _counter("windows_advanced", "housekeep", "advanced", "Windows that slid without data."),
    _counter("windows_closed", "housekeep", "barriers", "Windows that a barrier closed."),
    _counter("checkpoints", "housekeep", "checkpoints", "Checkpoints written."),
    _counter("truncated_entries", "housekeep", "truncated_entries", "Log entries deleted."),
    _gauge("broken_logs", "housekeep", "broken", "Logs for which housekeeping failed."),
    # -- reconcile
    _counter("reconciled_records", "reconcile", "records", "Records lifted into L1."),
    _counter("reconciled_l1_objects", "reconcile", "l1_objects", "L1 objects written and committed."),
    _counter("reconciled_l1_bytes", "reconcile", "bytes", "The bytes of those objects."),
    _counter("reconciled_misfits", "reconcile", "misfits", "Records lifted that do not fit their topic's value schema."),
    _counter("reconcile_lost_partitions", "reconcile", "lost", "Partitions that another reconciler lifted first."),
    _gauge("reconcile_errors", "reconcile", "errors", "Partitions and objects that failed in the last run."),
    # -- merge
    _counter("merged_l1_objects", "merge", "merged.objects_before", "L1 objects that merges replaced."),
    _counter("merged_into_l1_objects", "merge", "merged.objects_after", "L1 objects that merges wrote and committed."),
    _counter("merge_read_bytes", "merge", "merged.bytes_read", "The bytes of the L1 objects that were merged."),
    _counter("merge_written_bytes", "merge", "merged.bytes", "The bytes of the L1 objects that replaced them."),
    _counter("merges_lost", "merge", "lost", "Merges given up: another run had changed the partition's objects."),
    _gauge("merge_errors", "merge", "errors", "Partitions and journals that failed in the last run."),
    # -- sweep
    _counter("objects_deleted", "sweep", "deleted", "L0 objects deleted."),
    _counter("bytes_deleted", "sweep", "bytes", "The bytes of those objects."),
    _counter("objects_failed", "sweep", "failed", "Objects that could not be deleted."),
    _counter("objects_listed", "sweep", "listed", "Keys read."),
    _counter("objects_skipped_not_eligible", "sweep", "not_eligible", "Keys read that are above M."),
    _counter("objects_skipped_too_young", "sweep", "held_by_age", "Eligible objects that --min-age left."),
    _counter("uploads_aborted", "sweep", "uploads_aborted", "Unfinished multipart uploads aborted."),
    _counter("list_requests", "sweep", "requests.list", "LIST requests."),
    _counter("list_errors", "sweep", "list_errors", "LIST requests that ended a run."),
    _counter("delete_requests", "sweep", "requests.delete", "DELETE requests, including repeated ones."),
    _counter("delete_errors", "sweep", "delete_errors", "DELETE requests that failed as a whole."),
    _counter("throttled", "sweep", "throttled", "How often the store asked to slow down, or did not answer in time."),
    _counter("backpressure_seconds", "sweep", "backpressure_seconds", "How long deleting waited because of that."),
    _gauge("highest_deleted_epoch", "sweep", "highest_deleted_epoch", "The highest epoch that the last run deleted."),
    # -- vacuum
    *(
        metric
        for kind, (text, *_) in KINDS.items()
        for metric in (
            _counter(f"vacuumed_{kind}_objects", "vacuum", f"deleted.{kind}.objects", f"Vacuum deleted: {text}."),
            _counter(f"vacuumed_{kind}_bytes", "vacuum", f"deleted.{kind}.bytes", "The bytes of those."),
        )
    ),
    _counter("vacuum_objects_failed", "vacuum", "failed", "Objects that a vacuum could not delete."),
    _gauge("vacuum_unparsable_keys", "vacuum", "unparsable", "Keys among L1 that are not L1 keys; they are never deleted."),
    # -- upload, and its fences
    _counter("uploaded_records", "upload", "records", "Records that landed."),
    _counter("uploaded_bytes", "upload", "bytes", "The bytes of those records."),
    _counter("uploaded_objects", "upload", "objects", "L0 objects written."),
    _counter("uploaded_placeholders", "upload", "placeholders", "Placeholders that landed."),
    _counter("upload_skipped_records", "upload", "skipped", "Records that had landed before."),
    _counter("upload_retries", "upload", "retries", "Batches stamped with a fresh epoch and written again."),
    _counter("fence_window_slides", "upload", "fence.window_slides", "Windows that uploads slid."),
    _gauge("fence_window_size", "upload", "fence.window_size", "Epochs in the widest window at the end of the run."),
    _counter(
        "fence_rejected_below_window", "upload", "fence.rejected_below_window", "Epochs refused below the window."
    ),
    _counter(
        "fence_rejected_at_landing", "upload", "fence.rejected_at_landing",
        "Epochs that a fence let in and the log then refused.",
    ),
    _gauge(
        "fence_last_rejected_gap", "upload", "fence.last_rejected_gap",
        "How far the last refused epoch lay below its journal's window, for the journal with the largest gap.",
    ),
    _counter("fence_new_epochs", "upload", "fence.fences_new_epoch", "Fences at an epoch that was new."),
    _counter("fence_known_epochs", "upload", "fence.fences_known_epoch", "Fences at an epoch that was known."),
    # -- verify
    Metric(
        "l0gc_verify_findings", GAUGE, ("verify",), "severities", "Findings of the last verify, by severity.", "severity"
    ),
    # -- limits
    _gauge(
        "limited", "reconcile sweep vacuum", "limited", "1 if the last run ended at its limit and left something, else 0."
    ),
)  # fmt: skip
"""All metrics; docs/reference/metrics.md has the same table."""

BY_NAME: Final = {m.name: m for m in METRICS}


Key = tuple[str, tuple[tuple[str, str], ...]]
"""A metric's name and its labels, in the labels' order."""


def key_of(name: str, labels: Mapping[str, str]) -> Key:
    return name, tuple(sorted(labels.items()))


def samples(run: Run, url: str) -> dict[Key, float]:
    """Return the values of a command's run and of its steps, with the labels in `LABELS`. A dry run or a shadow run has
    no values.
    """
    values = {}
    for part in (p for p in (run, *run.parts) if not p.data.get("dry_run")):
        labels = {"url": url, "command": run.step, "step": part.step}
        numbers = _numbers(part)
        for metric in METRICS:
            if part.step not in metric.steps:
                continue
            if metric.label:
                for of, value in (_at(numbers, metric.source) or {}).items():
                    values[key_of(metric.name, labels | {metric.label: of})] = float(value)
            elif (number := _number(_at(numbers, metric.source))) is not None:
                values[key_of(metric.name, labels)] = number
    return values


def added_up(before: Mapping[Key, float], new: Mapping[Key, float]) -> dict[Key, float]:
    """Return the stored values combined with a new run's: counters are added, gauges are replaced, and all others stay."""
    kept = {k: v for k, v in before.items() if k[0] in BY_NAME}
    for key, value in new.items():
        kept[key] = value + (kept.get(key, 0.0) if BY_NAME[key[0]].kind == COUNTER else 0.0)
    return kept


def _numbers(run: Run) -> dict[str, Any]:
    """Return a step's result, with derived values."""
    if not run.due:
        return {"run": {"exit_code": run.exit_code}}
    failed = run.exit_code != 0
    data = run.data | {
        "run": {
            "one": 1,
            "failed": failed,
            "refused": run.exit_code == REFUSED,
            "exit_code": run.exit_code,
            "seconds": run.seconds,
            "ended_s": run.ended_s,
            "success_s": None if failed else run.ended_s,
            "log_free": run.log_free,
        },
        "cluster": _cluster(run.seen, run.ended_s) if run.seen is not None else None,
    }
    if "eligible" in data:
        data["not_eligible"] = data["listed"] - data["eligible"] - data["unparsable"]
    if data.get("highest_deleted_epoch", -1) < 0:
        data.pop("highest_deleted_epoch", None)
    return data


def _cluster(o: Overview, seen_s: float) -> dict[str, Any]:
    """Return the overview, with derived values and without unknown ones."""
    from l0gc.inspect.causes import CODES

    def age_s(ms: int | None) -> float:
        return 0.0 if ms is None else max(0, o.as_of_ms - ms) / 1000

    named, sweep = {c.cause for c in (*o.causes, *o.warnings)}, o.last("sweep")
    data = o.to_json() | {
        "seen_s": seen_s,
        "lag_s": None if o.lag_ms is None else o.lag_ms / 1000,
        "lowest_gc_epoch": min((h.gc_epoch for h in o.held_back_by), default=None),
        "pinned_bytes": max((max(0, p.l0_bytes) + p.l1_bytes for p in o.pins), default=0),
        "paused_s": age_s(None if o.paused is None else o.paused.since_ms),
        "oldest_dropped_s": age_s(o.l1.oldest_dropped_ms),
        "causes": {code: code in named for code in CODES},
        "leaves_s": 0.0 if sweep is None else math.inf if sweep.shadow else sweep.leaves_s,
    }
    if o.garbage is not None:
        data["oldest_eligible_s"] = age_s(o.garbage.oldest_eligible_ms if o.garbage.left_objects else None)
    if not o.external_log:
        return data
    # Another system keeps the logs, so their contents were not counted.
    unknown = {
        "partitions", "journals", "errors", "records", "unreconciled_records", "unreconciled_bytes", "held_partitions",
        "lowest_gc_epoch", "holes", "lost_records", "misfits", "l1", "oldest_dropped_s",
    }  # fmt: skip
    unknown |= {"cluster_epoch", "lag_epochs"} if o.cluster_epoch < 0 else set()
    return {k: v for k, v in data.items() if k not in unknown}


def _at(data: Mapping[str, Any], source: str) -> Any:
    value: Any = data
    for name in source.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _number(value: Any) -> float | None:
    if isinstance(value, Sized) and not isinstance(value, str | Mapping):
        return float(len(value))
    return float(value) if isinstance(value, int | float) else None
