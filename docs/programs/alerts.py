"""Write the alert rules and the dashboard from the table of what can go wrong.

`.venv/bin/python -m docs.programs.alerts`; docs/programs/tables.py writes the table in docs/reference/metrics.md.
Several jobs export the same gauges, each with the values of its last run. An old value must neither hide a fault nor
keep one alive, so `newest` takes those of the latest run.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from l0gc.inspect.causes import (
    DAMAGED_JOURNAL,
    DAMAGED_OBJECT,
    DAMAGED_WATERMARK,
    FOREIGN_WATERMARK,
    OLD_CONTROLLER,
    OVERDUE_TABLE,
    PAUSED,
    PINNED_M,
    POISONED_KEY,
    SET_BACK_JOURNAL,
    UNREADABLE_JOURNAL,
)

ROOT = Path(__file__).parents[2]
RULES = ROOT / "examples/prometheus/alerts.yml"
DASHBOARD = ROOT / "examples/grafana/l0gc.json"
LINK = re.compile(r"\[([^]]*)\]\(([^)]*)\)")

PAGES = "page"
TICKET = "ticket"


class Alert(NamedTuple):
    """Something that can go wrong, and how it is reported to an operator.

    Attributes:
        expr: PromQL; it gives a series for each cluster with the fault.
        lasts: how long the fault has to last.
        when: a sentence without its full stop, for the table and as the summary.
        remedy: what to do, with links that name a document alone.
        by: the labels besides the cluster that distinguish faults.
    """

    name: str
    severity: str
    expr: str
    lasts: str
    when: str
    remedy: str
    by: str = ""


def looked(metric: str, by: str = "url") -> str:
    """Return the highest value within two weeks, so that series that vanished with their machine or file still count."""
    return f"max by ({by}) (max_over_time({metric}[14d]))"


def newest(metric: str, by: str = "url") -> str:
    """Return the gauge of the cluster from the run that read it last."""
    return f"max by ({by}) ({metric} and on (url, command, instance) topk by (url) (1, l0gc_seen_timestamp_seconds))"


def cause(*codes: str, but: bool = False) -> str:
    """Return the causes of `codes` that status names, or all others."""
    return newest(f'l0gc_cause{{cause{"!~" if but else "=~"}"{"|".join(codes)}"}}', "url, cause") + " > 0"


PAGED = (
    DAMAGED_OBJECT, SET_BACK_JOURNAL, OLD_CONTROLLER, DAMAGED_JOURNAL, UNREADABLE_JOURNAL, FOREIGN_WATERMARK,
    DAMAGED_WATERMARK, POISONED_KEY,
)  # fmt: skip
OFTEN = "housekeep|reconcile|compute-watermark|sweep"
DAILY = "merge|expire|vacuum|verify|table-sync"
DELETING = "sweep|vacuum|gc"
SUCCESS = "l0gc_last_success_timestamp_seconds"
UNPAUSED = f"unless on (url) {cause(PAUSED)}"
"""Excludes clusters whose sweeps are paused, because each step of `DELETING` then ends with 4."""

ALERTS = (
    # -- data is lost or in danger
    Alert(
        "L0gcObjectLost", PAGES, cause(DAMAGED_OBJECT), "0m",
        "An L0 object with records that are not in L1 is missing or damaged",
        "`l0gc status` names the object. [Restore it, or give up its records](operate-lost.md#a-lost-l0-object). It holds "
        "M for the whole cluster until then.",
    ),
    Alert(
        "L0gcLogSetBack", PAGES, cause(SET_BACK_JOURNAL, OLD_CONTROLLER), "0m",
        "A log was set back to an older copy, for example from a backup, and lacks its newest entries",
        "Until then nothing is written or deleted. [Restore the newest log](operate-logs.md); `l0gc status` names it.",
        "cause",
    ),
    Alert(
        "L0gcLogUnreadable", PAGES, cause(DAMAGED_JOURNAL, UNREADABLE_JOURNAL), "15m",
        "A journal cannot be read, and holds M for the whole cluster",
        "[Restore](operate-logs.md#a-log-entry-or-a-checkpoint-is-damaged-or-missing) what `l0gc status` names.",
        "cause",
    ),
    Alert(
        "L0gcWatermarkRefused", PAGES, cause(FOREIGN_WATERMARK, DAMAGED_WATERMARK, POISONED_KEY), "0m",
        "The published M is damaged or from another cluster, or a key has an epoch above the cluster's",
        "Until then nothing is deleted. Follow the remedy that `l0gc status` shows.",
        "cause",
    ),
    Alert(
        "L0gcFindings", PAGES, 'max by (url) (l0gc_verify_findings{severity!="waste"}) > 0', "0m",
        "`l0gc verify` has found something wrong",
        "Read its log, or run `l0gc verify` again: each finding names its remedy.",
    ),
    Alert(
        "L0gcRefusedForSafety", PAGES,
        f'(max by (url) (l0gc_exit_code{{step=~"{DELETING}"}} == 4) {UNPAUSED}) '
        f'or max by (url) (l0gc_exit_code{{step!~"{DELETING}|verify"}} == 4) '
        'or max by (url) (l0gc_exit_code{step="verify"} == 4 unless on (url, command, instance) l0gc_verify_findings > 0)',
        "0m",
        "A step's last run was refused for safety (exit code 4), for another reason than a pause or findings of `verify`",
        "The step deleted nothing more. Read its message before you run anything else; see [operations](operations.md).",
    ),
    Alert(
        "L0gcStoreUnfit", PAGES, "max by (url) (l0gc_exit_code == 6)", "0m",
        "The store is not safe for l0gc, or this l0gc does not support the bucket's format (exit code 6)",
        "Run `l0gc doctor`.",
    ),
    # -- the jobs
    Alert(
        "L0gcFailing", TICKET, "max by (url) (l0gc_exit_code > 0 != 4)", "1h",
        "For an hour, the last run of a job or a step has been a failure with another exit code than 4",
        "Run `l0gc status`, and read the job's log. Until then space is wasted, but no needed object is deleted.",
    ),
    Alert(
        "L0gcNoSuccess", TICKET,
        f'time() - ({looked(f"""{SUCCESS}{{command=~"{OFTEN}"}}""", "url, command")} '
        f'or {looked(f"""{SUCCESS}{{command="gc",step="gc"}}""", "url, command")}) > 7200 {UNPAUSED}', "10m",
        "A job that runs every few minutes has not succeeded for two hours, and sweeps are not paused",
        "Read its log, and check that cron runs it.",
        "command",
    ),
    Alert(
        "L0gcDailyJobOverdue", TICKET,
        f'time() - {looked(f"""{SUCCESS}{{command=~"{DAILY}"}}""", "url, command")} > 180000', "10m",
        "A job that runs daily or more often has not succeeded for 50 hours",
        "Read its log, and check that cron runs it.",
        "command",
    ),
    Alert(
        "L0gcNotSeen", TICKET,
        f"time() - {looked('l0gc_seen_timestamp_seconds')} > 7200 or absent(l0gc_seen_timestamp_seconds)", "10m",
        "No run has read the state of the cluster for two hours, so the other alerts are out of date",
        "Check that the machine and its job run and that node_exporter reads the job's file, and read the job's log.",
    ),
    Alert(
        "L0gcLimited", TICKET, "max by (url, step) (l0gc_limited) > 0", "24h",
        "For a day, each run of a step has ended at its limit and left something",
        "Raise `--max-bytes` or `--max-objects`, or run the step more often.",
        "step",
    ),
    Alert(
        "L0gcLogDiskFull", TICKET, "min by (url) (l0gc_log_disk_free_bytes) < 1e9", "10m",
        "Less than 1 GB is free on the disk that the jobs log to",
        "Rotate the logs. A job whose stdout cannot be written fails; one whose stderr cannot be written loses its log.",
    ),
    # -- M and garbage
    Alert(
        "L0gcMLags", TICKET, f"{newest('l0gc_epoch_lag')} > 12 unless on (url) {cause(PINNED_M)}", "1h",
        "M is more than 12 epochs behind, and no pin is the cause; two epochs are normal",
        "Run `l0gc status`: it names what holds M (a partition, a journal), and the remedy.",
    ),
    Alert(
        "L0gcCauseLasts", TICKET, cause(*PAGED, PAUSED, OVERDUE_TABLE, but=True), "24h",
        "`l0gc status` has named the same cause or warning for a day",
        "Follow the remedy that `l0gc status` shows.",
        "cause",
    ),
    Alert(
        "L0gcPaused", TICKET, f"{newest('l0gc_paused_seconds')} > 86400", "0m",
        "Sweeps have been paused for a day",
        "`l0gc status` shows who paused them, and why. Run `l0gc resume` when the reason is gone.",
    ),
    Alert(
        "L0gcGarbageStays", TICKET,
        f"{newest('l0gc_oldest_eligible_age_seconds')} - {newest('l0gc_sweep_leaves_seconds')} > 172800", "1h",
        "Objects that are two days older than `--grace` or `--min-age` may be deleted, but no sweep has deleted them",
        "Check that sweeps run, and read their log. The alert never fires while sweeps are shadow runs.",
    ),
    Alert(
        "L0gcLaggards", TICKET, f"{newest('l0gc_laggard_garbage_bytes')} > 1e10", "36h",
        "Lagging partitions have kept 10 GB of other partitions' garbage for 36 hours",
        "`l0gc status` names them, and the command that [lifts them](operate-m.md#what-laggards-keep).",
    ),
    Alert(
        "L0gcPinKeepsMuch", TICKET, f"{newest('l0gc_pinned_bytes')} > 1e10", "36h",
        "A pin has kept 10 GB of garbage for 36 hours",
        "`l0gc status` names it with its reason; [`l0gc pin delete`](operate-stop.md#pins) ends it if it is not needed. "
        "Pins of a [table](tables.md) end with `l0gc table sync`; `--keep-snapshots` determines how much they keep.",
    ),
    Alert(
        "L0gcTableBehind", TICKET, cause(OVERDUE_TABLE), "1h",
        "A table should have been synced a day ago, or its topic was deleted",
        "`l0gc status` names the table: run `l0gc table sync`, or `l0gc table drop`.",
    ),
    Alert(
        "L0gcRecordsGivenUp", TICKET, "max by (url) (l0gc_holes - min_over_time(l0gc_holes[1d])) > 0", "0m",
        "Records have been given up within a day; the value is the number of new holes",
        "`l0gc report` lists the ranges; [inform their readers](operate-lost.md#records-were-given-up).",
    ),
    Alert(
        "L0gcDeadL1", TICKET, f"{newest('l0gc_l1_oldest_dropped_age_seconds')} > 86400", "1h",
        "L1 objects that were dropped a day ago still exist",
        "Run `l0gc vacuum`: it names what it cannot delete, or which journal it cannot read.",
    ),
    Alert(
        "L0gcObjectsNotDeleted", TICKET,
        "sum by (url) (increase(l0gc_objects_failed_total[6h]) or increase(l0gc_vacuum_objects_failed_total[6h])) > 0", "0m",
        "Within the last six hours, objects could not be deleted",
        "Check permissions, Object Lock and legal holds; `l0gc sweep --json` lists the `failures`.",
    ),
    Alert(
        "L0gcWaste", TICKET, 'max by (url) (l0gc_verify_findings{severity="waste"}) > 0', "1h",
        "`l0gc verify` has found objects that nothing needs and that no vacuum has deleted for days",
        "Run `l0gc vacuum`, and check that it runs daily.",
    ),
    Alert(
        "L0gcForeignKeys", TICKET, f"{newest('l0gc_unparsable_keys')} > 0", "1h",
        "Keys among the L0 objects are not L0 keys",
        "Find out who writes there; `l0gc compute-watermark` names some. They are never deleted.",
    ),
    Alert(
        "L0gcThrottled", TICKET, "sum by (url) (rate(l0gc_backpressure_seconds_total[1h])) > 0.3", "2h",
        "Sweeps wait for the store during a third of their time",
        "Sweep more often, or ask for a higher limit.",
    ),
    Alert(
        "L0gcUploadsTooSlow", TICKET,
        "sum by (url) (rate(l0gc_upload_retries_total[1h])) / sum by (url) (rate(l0gc_uploaded_objects_total[1h])) > 0.1",
        "1h",
        "A tenth of the batches arrive too late and are written twice",
        "Use a longer `--epoch-interval`, or smaller batches.",
    ),
)  # fmt: skip


def rules() -> str:
    """Return examples/prometheus/alerts.yml."""
    lines = [
        "# Generated by make generate: alert rules for l0gc, for text files that node_exporter reads (--metrics-file).",
        "# l0gc help metrics explains each alert and its remedy. Adapt the times to how often your jobs run; these are for",
        "# `l0gc gc` every ten minutes.",
        "groups:",
        "  - name: l0gc",
        "    rules:",
    ]
    for a in ALERTS:
        where = "".join(f", {{{{ $labels.{label} }}}}" for label in ("url", *a.by.split()))[2:]
        lines += [
            f"      - alert: {a.name}",
            f"        expr: {json.dumps(a.expr)}",
            f"        for: {a.lasts}",
            f"        labels: {{severity: {a.severity}}}",
            "        annotations:",
            f"          summary: {json.dumps(f'{a.when}: {where}')}",
            f"          description: {json.dumps(LINK.sub(_beside, a.remedy))}",
        ]
    return "\n".join(lines) + "\n"


def _beside(link: re.Match[str]) -> str:
    return f"{link[1]} (l0gc help {Path(link[2].partition('#')[0]).stem})"


# -- the dashboard ------------------------------------------------------------------------------------------------------


def _of_cluster(metric: str, label: str = "url") -> str:
    return newest(f'{metric}{{url=~"$url"}}', label)


def _summed(function: str, metric: str, span: str, by: str = "url") -> str:
    return f'sum by ({by}) ({function}({metric}{{url=~"$url"}}[{span}]))'


PANELS: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    ("M and the cluster epoch", "none", (
        (_of_cluster("l0gc_cluster_epoch"), "cluster epoch"), (_of_cluster("l0gc_watermark"), "M"),
    )),
    ("How far M is behind", "none", (
        (_of_cluster("l0gc_epoch_lag"), "epochs"), (_of_cluster("l0gc_held_back_partitions"), "partitions that hold it"),
    )),
    ("How long ago the epoch above M began", "s", ((_of_cluster("l0gc_lag_seconds"), "lag"),)),
    ("What status names", "none", ((f"{_of_cluster('l0gc_cause', 'url, cause')} > 0", "{{cause}}"),)),
    ("Since the last success", "s", (
        (f'time() - max by (step) ({SUCCESS}{{url=~"$url"}})', "{{step}}"),
    )),
    ("Paused", "s", ((_of_cluster("l0gc_paused_seconds"), "for"),)),
    ("L0 objects in the bucket", "none", (
        (_of_cluster("l0gc_l0_objects"), "all"), (_of_cluster("l0gc_eligible_objects"), "eligible"),
    )),
    ("L0 bytes in the bucket", "bytes", (
        (_of_cluster("l0gc_l0_bytes"), "all"), (_of_cluster("l0gc_eligible_bytes"), "eligible"),
        (_of_cluster("l0gc_unreconciled_bytes"), "unreconciled"),
    )),
    ("What the garbage costs a month", "currencyUSD", ((_of_cluster("l0gc_eligible_dollars_month"), "eligible"),)),
    ("Age of the oldest eligible object", "s", ((_of_cluster("l0gc_oldest_eligible_age_seconds"), "age"),)),
    ("Garbage that is kept", "bytes", (
        (_of_cluster("l0gc_laggard_garbage_bytes"), "by laggards"), (_of_cluster("l0gc_pinned_bytes"), "by a pin"),
        (_of_cluster("l0gc_l1_dropped_bytes"), "dropped L1"),
    )),
    ("Objects deleted", "none", (
        (_summed("increase", "l0gc_objects_deleted_total", "1h"), "an hour"),
        (_summed("increase", "l0gc_objects_failed_total", "1h"), "failed"),
    )),
    ("Bytes deleted", "bytes", ((_summed("increase", "l0gc_bytes_deleted_total", "1h"), "an hour"),)),
    ("Requests of sweeps", "reqps", (
        (_summed("rate", "l0gc_list_requests_total", "1h"), "LIST"),
        (_summed("rate", "l0gc_delete_requests_total", "1h"), "DELETE"),
        (_summed("rate", "l0gc_delete_errors_total", "1h"), "DELETE errors"),
    )),
    ("Backpressure", "percentunit", ((_summed("rate", "l0gc_backpressure_seconds_total", "1h"), "share of time"),)),
    ("Duration of the last run", "s", (('max by (step) (l0gc_run_duration_seconds{url=~"$url"})', "{{step}}"),)),
    ("Runs that failed", "none", (
        (_summed("increase", "l0gc_failed_runs_total", "1d", "step"), "{{step}}"),
        (_summed("increase", "l0gc_safety_blocks_total", "1d"), "refused for safety"),
    )),
    ("Steps that ended at their limit", "none", (('max by (step) (l0gc_limited{url=~"$url"})', "{{step}}"),)),
    ("Records", "none", (
        (_of_cluster("l0gc_unreconciled_records"), "unreconciled"),
        (_summed("increase", "l0gc_reconciled_records_total", "1h"), "reconciled an hour"),
        (_summed("increase", "l0gc_uploaded_records_total", "1h"), "uploaded an hour"),
    )),
    ("Fence", "none", (
        (_summed("increase", "l0gc_fence_window_slides_total", "1h"), "windows slid"),
        (_summed("increase", "l0gc_fence_rejected_below_window_total", "1h"), "refused below the window"),
        (_summed("increase", "l0gc_fence_rejected_at_landing_total", "1h"), "refused at landing"),
        (_summed("increase", "l0gc_upload_retries_total", "1h"), "batches written again"),
    )),
    ("Findings, journals, foreign keys", "none", (
        ('max by (url) (l0gc_verify_findings{url=~"$url"})', "findings of verify"),
        (_of_cluster("l0gc_unreadable_journals"), "journals that cannot be read"),
        (_of_cluster("l0gc_unparsable_keys"), "keys that are not L0 keys"),
    )),
    ("What sweeps left", "none", (
        (_summed("increase", "l0gc_objects_skipped_not_eligible_total", "1h"), "above M"),
        (_summed("increase", "l0gc_objects_skipped_too_young_total", "1h"), "too young"),
    )),
    ("Records given up", "none", ((_of_cluster("l0gc_lost_records"), "records"), (_of_cluster("l0gc_holes"), "holes"))),
    ("Free on the log's disk", "bytes", (('min by (url) (l0gc_log_disk_free_bytes{url=~"$url"})', "free"),)),
)  # fmt: skip
"""Title, unit, and the expressions with their legends."""


def dashboard() -> str:
    """Return examples/grafana/l0gc.json."""
    source = {"type": "prometheus", "uid": "${datasource}"}
    panels = [
        {
            "id": n + 1,
            "type": "timeseries",
            "title": title,
            "datasource": source,
            "gridPos": {"x": n % 3 * 8, "y": n // 3 * 7, "w": 8, "h": 7},
            "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
            "targets": [
                {"refId": chr(ord("A") + i), "expr": expr, "legendFormat": legend}
                for i, (expr, legend) in enumerate(targets)
            ],
        }
        for n, (title, unit, targets) in enumerate(PANELS)
    ]
    names: dict[str, Any] = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    url: dict[str, Any] = {"name": "url", "type": "query", "label": "Cluster", "datasource": source}
    url |= {"query": "label_values(l0gc_runs_total, url)", "refresh": 2, "includeAll": True, "multi": True}
    whole = {"title": "l0gc", "uid": "l0gc", "schemaVersion": 39, "version": 1, "editable": True, "timezone": "utc"}
    whole |= {"refresh": "1m", "time": {"from": "now-24h", "to": "now"}, "templating": {"list": [names, url]}}
    return json.dumps(whole | {"panels": panels}, indent=2) + "\n"


if __name__ == "__main__":
    RULES.write_text(rules())
    DASHBOARD.write_text(dashboard())
