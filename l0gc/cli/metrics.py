"""The metrics of l0gc: one table of their names, and what a command's run makes of them.

A run is short, so a metric is made from the result that the command prints, once, when it ends. A counter holds what
runs did, added up from run to run by the system that stores them; a gauge holds what the last run saw. What a run does not
know it leaves out: an unknown number is never reported as zero, and a dry run reports nothing at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import dataclass, field
from typing import Any, Final

from l0gc.collect.garbage import KINDS

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
REFUSED: Final = 4
"""The exit code of a run that was refused for safety."""

LABELS: Final = ("url", "command", "step")
"""Every metric has these: the cluster, the command that ran, and which of its steps; `gc` has several."""

LAST_RUN: Final = "l0gc_last_run_"
"""What the names of a Pushgateway's gauges begin with where a counter would have to be added up."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        steps: the steps that report it.
        source: where the number is in a step's result: names with dots between; of a list, its length.
    """

    name: str
    kind: str
    steps: tuple[str, ...]
    source: str
    help: str

    @property
    def last_run_name(self) -> str:
        """Its name as a number of the last run alone: what a Pushgateway is sent."""
        if self.kind == GAUGE:
            return self.name
        return LAST_RUN + self.name.removeprefix("l0gc_").removesuffix("_total")


@dataclass(slots=True)
class Run:
    """What became of a command, or of one of its steps, in `parts`.

    Attributes:
        data: the result that it printed, and what else it measured.
        ended_s: when it ended, seconds since 1970.
    """

    step: str
    data: dict[str, Any] = field(default_factory=dict)
    exit_code: int = 0
    seconds: float = 0.0
    ended_s: float = 0.0
    parts: list[Run] = field(default_factory=list)


MEASURED: Final = (
    "housekeep", "reconcile", "merge", "compute-watermark", "sweep", "vacuum", "upload", "status", "gc",
)  # fmt: skip
"""The commands that report metrics; those before `upload` are also steps of `gc`."""


def _counter(name: str, steps: str, source: str, text: str) -> Metric:
    return Metric(f"l0gc_{name}_total", COUNTER, tuple(steps.split()), source, text)


def _gauge(name: str, steps: str, source: str, text: str) -> Metric:
    return Metric(f"l0gc_{name}", GAUGE, tuple(steps.split()), source, text)


_ALL: Final = " ".join(MEASURED)

METRICS: Final = (
    # -- of every run: what `Run` adds to its result
    _counter("runs", _ALL, "run.one", "Runs that ended, with any result."),
    _counter("failed_runs", _ALL, "run.failed", "Runs that ended with another exit code than 0."),
    _counter("safety_blocks", _ALL, "run.refused", "Runs that were refused for safety or by a pause (exit code 4)."),
    _gauge("exit_code", _ALL, "run.exit_code", "The exit code of the last run."),
    _gauge("run_duration_seconds", _ALL, "run.seconds", "How long the last run took."),
    _gauge("last_end_timestamp_seconds", _ALL, "run.ended_s", "When the last run ended."),
    _gauge("last_success_timestamp_seconds", _ALL, "run.success_s", "When the last run with exit code 0 ended."),
    # -- the cluster and M
    _gauge("cluster_epoch", "housekeep compute-watermark sweep status", "cluster_epoch", "The cluster epoch."),
    _gauge("watermark", "compute-watermark sweep status", "watermark", "M; -1 if nothing may be deleted."),
    _gauge("epoch_lag", "compute-watermark sweep status", "lag_epochs", "The cluster epoch less M."),
    _gauge(
        "lowest_partition_gc_epoch", "compute-watermark status", "lowest_gc_epoch",
        "The lowest M(p) of all partitions; absent without partitions.",
    ),
    _gauge(
        "held_back_partitions", "compute-watermark status", "held_back_by",
        "Partitions whose M(p) is M; counted up to ten.",
    ),
    _gauge("computable_watermark", "status", "computable_watermark", "What M would be if it were computed now."),
    _gauge("partitions", "housekeep compute-watermark status", "partitions", "Partitions of the cluster."),
    _gauge("journals", "housekeep status", "journals", "Journals that keep them."),
    _gauge("records", "status", "records", "Records ever uploaded into the topics there are."),
    _gauge("unreconciled_records", "status", "unreconciled_records", "Records that are still in L0."),
    _gauge(
        "laggard_garbage_bytes", "status", "laggards.garbage_bytes",
        "Bytes of L0 that nothing needs and that lagging partitions keep, at the last listing.",
    ),
    _gauge("pins", "status", "pins", "Pins that have not ended."),
    _gauge("pinned_bytes", "status", "pinned_bytes", "Bytes of garbage that one pin keeps, of the one that keeps most."),
    _gauge("holes", "status", "holes", "Ranges of records that were given up."),
    _gauge("lost_records", "status", "lost_records", "Records that were given up."),
    _gauge("l0_objects", "compute-watermark", "listing.objects", "L0 objects in the bucket."),
    _gauge("l0_bytes", "compute-watermark", "listing.bytes", "The bytes of those objects."),
    _gauge(
        "eligible_objects", "compute-watermark", "listing.eligible_objects",
        "L0 objects at or below M when M was computed.",
    ),
    _gauge("eligible_bytes", "compute-watermark", "listing.eligible_bytes", "The bytes of those objects."),
    _gauge(
        "unparsable_keys", "compute-watermark sweep", "unparsable",
        "Keys among the L0 objects that are not L0 keys; they are never deleted.",
    ),
    # -- housekeep
    _counter("ticks", "housekeep", "ticked", "Runs in which the cluster epoch moved."),
    _counter("windows_advanced", "housekeep", "advanced", "Windows that slid without data."),
    _counter("windows_closed", "housekeep", "barriers", "Windows that a barrier closed."),
    _counter("checkpoints", "housekeep", "checkpoints", "Checkpoints written."),
    _counter("truncated_entries", "housekeep", "truncated_entries", "Log entries deleted."),
    _gauge("broken_logs", "housekeep", "broken", "Logs for which housekeeping failed."),
    # -- reconcile
    _counter("reconciled_records", "reconcile", "records", "Records lifted into L1."),
    _counter("reconciled_l1_objects", "reconcile", "l1_objects", "L1 objects written that count."),
    _counter("reconciled_l1_bytes", "reconcile", "bytes", "The bytes of those objects."),
    _counter("reconcile_lost_partitions", "reconcile", "lost", "Partitions that another reconciler was first at."),
    _gauge("reconcile_errors", "reconcile", "errors", "Partitions and objects that failed in the last run."),
    # -- merge
    _counter("merged_l1_objects", "merge", "merged.objects_before", "L1 objects that others have taken the place of."),
    _counter("merged_into_l1_objects", "merge", "merged.objects_after", "L1 objects written by merges that count."),
    _counter("merge_read_bytes", "merge", "merged.bytes_read", "The bytes of the L1 objects that were merged."),
    _counter("merge_written_bytes", "merge", "merged.bytes", "The bytes of the L1 objects that took their places."),
    _counter("merges_lost", "merge", "lost", "Merges given up: another run had changed the partition's objects."),
    _gauge("merge_errors", "merge", "errors", "Partitions and journals that failed in the last run."),
    # -- compute-watermark
    _gauge("unreadable_journals", "compute-watermark", "unreadable", "Journals that cannot be read; they hold M."),
    # -- sweep
    _counter("objects_deleted", "sweep", "deleted", "L0 objects deleted."),
    _counter("bytes_deleted", "sweep", "bytes", "The bytes of those objects."),
    _counter("objects_failed", "sweep", "failed", "Objects that could not be deleted."),
    _counter("objects_listed", "sweep", "listed", "Keys read."),
    _counter("objects_skipped_not_eligible", "sweep", "not_eligible", "Keys read that M does not allow to delete."),
    _counter("objects_skipped_too_young", "sweep", "held_by_age", "Eligible objects that --min-age left."),
    _counter("uploads_aborted", "sweep", "uploads_aborted", "Unfinished multipart uploads aborted."),
    _counter("list_requests", "sweep", "requests.list", "LIST requests."),
    _counter("list_errors", "sweep", "list_errors", "LIST requests that ended a run."),
    _counter("delete_requests", "sweep", "requests.delete", "DELETE requests, repeated ones counted."),
    _counter("delete_errors", "sweep", "delete_errors", "DELETE requests that failed as a whole."),
    _counter("throttled", "sweep", "throttled", "How often the store asked to slow down, or did not answer in time."),
    _counter("backpressure_seconds", "sweep", "backpressure_seconds", "For how long deleting waited because of that."),
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
    _gauge("l1_live_objects", "vacuum", "l1.live_objects", "L1 and index objects that journals name."),
    _gauge("l1_live_bytes", "vacuum", "l1.live_bytes", "The bytes of those objects."),
    _gauge("l1_dropped_objects", "vacuum", "l1.dropped_objects", "L1 and index objects that journals dropped, still there."),
    _gauge("l1_dropped_bytes", "vacuum", "l1.dropped_bytes", "The bytes of those objects."),
    _gauge("l1_oldest_dropped_age_seconds", "vacuum", "oldest_dropped_age_s", "How long the oldest without a pin waits."),
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
        "By how many epochs a refused one lay below the window: the most of each journal's last.",
    ),
    _counter("fence_new_epochs", "upload", "fence.fences_new_epoch", "Fences at an epoch that was new."),
    _counter("fence_known_epochs", "upload", "fence.fences_known_epoch", "Fences at an epoch that was known."),
    # -- gc
)  # fmt: skip
"""All of them; docs/metrics.md has the same table."""

BY_NAME: Final = {m.name: m for m in METRICS}


Key = tuple[str, tuple[tuple[str, str], ...]]
"""A metric's name and its labels, in the labels' order."""


def key_of(name: str, labels: Mapping[str, str]) -> Key:
    return name, tuple(sorted(labels.items()))


def samples(run: Run, url: str) -> dict[Key, float]:
    """The numbers of a command's run, and of its steps; their labels are those of `LABELS`."""
    found = {}
    for part in (run, *run.parts):
        labels = {"url": url, "command": run.step, "step": part.step}
        numbers = _numbers(part)
        for metric in METRICS:
            if part.step in metric.steps and (value := _value(numbers, metric.source)) is not None:
                found[key_of(metric.name, labels)] = value
    return found


def added_up(before: Mapping[Key, float], new: Mapping[Key, float]) -> dict[Key, float]:
    """What was kept so far, and a run on top of it: counters are added, gauges replaced, the rest stays."""
    kept = {k: v for k, v in before.items() if k[0] in BY_NAME}
    for key, value in new.items():
        kept[key] = value + (kept.get(key, 0.0) if BY_NAME[key[0]].kind == COUNTER else 0.0)
    return kept


def _numbers(run: Run) -> dict[str, Any]:
    """A step's result, with what follows from it."""
    data = dict(run.data)
    failed = run.exit_code != 0
    data["run"] = {
        "one": 1,
        "failed": failed,
        "refused": run.exit_code == REFUSED,
        "exit_code": run.exit_code,
        "seconds": run.seconds,
        "ended_s": run.ended_s,
        "success_s": None if failed else run.ended_s,
    }
    if data.get("external_log"):  # the logs are another system's, so nobody has counted what is in them
        unknown = {"partitions", "journals", "records", "unreconciled_records", "held_back_by", "holes", "lost_records"}
        unknown |= {"cluster_epoch"} if data["cluster_epoch"] < 0 else set()
        data = {k: v for k, v in data.items() if k not in unknown}
    epoch, watermark = data.get("cluster_epoch"), data.get("watermark")
    if epoch is not None and watermark is not None:
        data["lag_epochs"] = epoch - watermark
    held = data.get("held_back_by")
    if held:
        data["lowest_gc_epoch"] = min(h["gc_epoch"] for h in held)
    if "pins" in data:
        data["pinned_bytes"] = max((max(0, p["l0_bytes"]) + p["l1_bytes"] for p in data["pins"]), default=0)
    listing = data.get("listing")
    if listing:
        data["unparsable"] = listing["unparsable"]
    if "l1" in data and data["oldest_dropped_age_s"] is None:
        data["oldest_dropped_age_s"] = 0  # nothing waits, and an older number must not stay
    if "eligible" in data:
        data["not_eligible"] = data["listed"] - data["eligible"] - data["unparsable"]
    if data.get("highest_deleted_epoch", -1) < 0:
        data.pop("highest_deleted_epoch", None)
    return data


def _value(data: Mapping[str, Any], source: str) -> float | None:
    found: Any = data
    for name in source.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    if isinstance(found, Sized) and not isinstance(found, str | Mapping):
        return float(len(found))
    return float(found) if isinstance(found, int | float) else None
