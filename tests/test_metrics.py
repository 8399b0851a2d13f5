"""Metrics follow from results: known values are reported, unknown ones are omitted, and counters add up."""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.cli.metrics import BY_NAME, COUNTER, GAUGE, MEASURED, METRICS, OBSERVING, Run, added_up, key_of, samples
from l0gc.collect.deletion import Pause
from l0gc.collect.record import Attempt
from l0gc.inspect.causes import CODES, LOCAL_CLOCK, PAUSED
from l0gc.inspect.laggards import Laggards
from l0gc.inspect.overview import Cause, DatedHolder, Garbage, Overview, PinCost
from l0gc.watermark.scans import ScanTotals
from l0gc.watermark.source import UNRECONCILED

AS_OF_MS = 1_000_000


def an_overview(**fields: Any) -> Overview:
    """Return the overview of a cluster with everything that metrics show."""
    scan = ScanTotals(
        cluster_id="c", taken_ms=AS_OF_MS - 1000, watermark=3, cluster_epoch=9, objects=9, bytes=90,
        eligible_objects=4, eligible_bytes=40, unparsable=0, oldest_eligible_ms=AS_OF_MS - 60_000,
    )  # fmt: skip
    garbage = Garbage(
        **msgspec.structs.asdict(scan), deleted_objects=1, deleted_bytes=10, left_objects=3, left_bytes=30,
        dollars_month=0.5, held_objects=5, held_bytes=50, held_dollars_month=0.6,
    )  # fmt: skip
    known: dict[str, Any] = {
        "cluster_id": "c", "external_log": False, "as_of_ms": AS_OF_MS, "cluster_epoch": 9, "topics": 1, "partitions": 12,
        "watermark": 3, "computable_watermark": 3, "lag_ms": 90_000, "held_partitions": 12,
        "held_back_by": [DatedHolder("t", p, 3, UNRECONCILED, "") for p in range(2)], "garbage": garbage,
        "laggards": Laggards(), "paused": Pause("audit", "ann", AS_OF_MS - 5000),
        "causes": [Cause(PAUSED, "", "")], "warnings": [Cause(LOCAL_CLOCK, "", "")],
    }  # fmt: skip
    return Overview(**known | fields)


SWEPT: dict[str, Any] = {
    "watermark": 2, "listed": 20, "eligible": 15, "unparsable": 1, "deleted": 14, "bytes": 1400, "failed": 1,
    "held_by_age": 0, "uploads_aborted": 2, "requests": {"list": 5, "delete": 1}, "throttled": 3,
    "backpressure_seconds": 1.5, "highest_deleted_epoch": 2, "list_errors": 0, "delete_errors": 1,
    "limited": False,
}  # fmt: skip


def values_of(run: Run) -> dict[str, float]:
    return {name: value for (name, _), value in samples(run, "s3://b/p").items()}


def test_names_are_unique_and_follow_the_rules_of_prometheus() -> None:
    assert len(BY_NAME) == len(METRICS)
    for m in METRICS:
        assert re.fullmatch(r"l0gc_[a-z0-9_]+", m.name)
        assert m.kind in {COUNTER, GAUGE}
        assert m.name.endswith("_total") == (m.kind == COUNTER)
        assert set(m.steps) <= set(MEASURED)
        assert m.help.endswith(".")


def test_no_name_of_a_last_run_is_another_metrics() -> None:
    names = [m.last_run_name for m in METRICS]
    assert len(set(names)) == len(METRICS)
    assert all(n in BY_NAME and BY_NAME[n] is m for n, m in zip(names, METRICS, strict=True) if m.kind == GAUGE)
    assert all(n not in BY_NAME for n, m in zip(names, METRICS, strict=True) if m.kind == COUNTER)


def test_a_sweep_reports_what_it_did() -> None:
    numbers = values_of(Run("sweep", SWEPT, seconds=2.5, ended_s=1000))
    assert numbers["l0gc_objects_deleted_total"] == 14
    assert numbers["l0gc_objects_skipped_not_eligible_total"] == 20 - 15 - 1
    assert numbers["l0gc_list_requests_total"] == 5
    assert numbers["l0gc_backpressure_seconds_total"] == 1.5
    assert numbers["l0gc_last_success_timestamp_seconds"] == 1000
    assert "l0gc_cluster_epoch" not in numbers  # the epoch was not read


@pytest.mark.parametrize(("shadow", "leaves_s"), [(True, math.inf), (False, 3600)])
def test_a_shadow_run_leaves_everything_that_m_allows(shadow: bool, leaves_s: float) -> None:
    last = Attempt("sweep", 0, "", AS_OF_MS, shadow=shadow, leaves_s=3600)
    assert values_of(Run("status", seen=an_overview(attempts=[last])))["l0gc_sweep_leaves_seconds"] == leaves_s


def test_a_dry_run_has_no_numbers() -> None:
    steps = Run("sweep", SWEPT | {"dry_run": True}), Run("vacuum", {"dry_run": False})
    numbers = samples(Run("gc", {"dry_run": True}, parts=[*steps]), "s3://b/p")
    assert {dict(labels)["step"] for _, labels in numbers} == {"vacuum"}


def test_a_complete_result_of_a_sweep_leaves_out_no_metric_of_it() -> None:
    found = values_of(Run("sweep", SWEPT, log_free=1, seen=an_overview()))
    assert set(found) == {m.name for m in METRICS if "sweep" in m.steps}


def test_unknown_values_of_external_logs_are_not_reported_as_zero() -> None:
    seen = an_overview(external_log=True, watermark=-1, cluster_epoch=-1, partitions=0, garbage=None)
    names = {"l0gc_watermark", "l0gc_cluster_epoch", "l0gc_epoch_lag", "l0gc_partitions", "l0gc_held_back_partitions"}
    assert names & values_of(Run("sweep", seen=seen)).keys() == {"l0gc_watermark"}
    published = values_of(Run("sweep", seen=an_overview(external_log=True, watermark=3, cluster_epoch=7)))
    assert (published["l0gc_cluster_epoch"], published["l0gc_epoch_lag"]) == (7, 4)


def test_an_epoch_that_there_is_not_is_no_number() -> None:
    assert "l0gc_highest_deleted_epoch" not in values_of(Run("sweep", SWEPT | {"highest_deleted_epoch": -1}))


def test_a_run_without_a_result_reports_the_run_alone_and_no_success() -> None:
    numbers = values_of(Run("sweep", exit_code=4))
    assert numbers["l0gc_safety_blocks_total"] == numbers["l0gc_failed_runs_total"] == numbers["l0gc_runs_total"] == 1
    assert numbers["l0gc_exit_code"] == 4
    assert "l0gc_last_success_timestamp_seconds" not in numbers
    assert not any("objects" in name for name in numbers)


def test_gauges_of_the_cluster_are_of_the_overview_whichever_step_ran() -> None:
    o = an_overview(watermark=3, cluster_epoch=9)
    for step in OBSERVING:
        numbers = values_of(Run(step, seen=o))
        assert (numbers["l0gc_lowest_partition_gc_epoch"], numbers["l0gc_held_back_partitions"]) == (3, 12)
        assert (numbers["l0gc_epoch_lag"], numbers["l0gc_lag_seconds"]) == (6, 90)
        assert numbers["l0gc_oldest_eligible_age_seconds"] == 60
        assert numbers["l0gc_paused_seconds"] == 5
    assert "l0gc_epoch_lag" not in values_of(Run("upload", seen=o))


def test_each_cause_is_a_number_that_returns_to_zero() -> None:
    found = {
        dict(labels)["cause"]: value
        for (name, labels), value in samples(Run("gc", seen=an_overview()), "u").items()
        if name == "l0gc_cause"
    }
    assert found == {code: float(code in (PAUSED, LOCAL_CLOCK)) for code in CODES}


def test_nothing_is_old_where_nothing_is_garbage() -> None:
    o = an_overview()
    assert o.garbage is not None
    o.garbage = msgspec.structs.replace(o.garbage, left_objects=0)
    assert values_of(Run("gc", seen=o))["l0gc_oldest_eligible_age_seconds"] == 0
    o.garbage, o.paused = None, None
    numbers = values_of(Run("gc", seen=o))
    assert "l0gc_oldest_eligible_age_seconds" not in numbers  # the bucket was never listed
    assert numbers["l0gc_paused_seconds"] == 0


@pytest.mark.parametrize(
    ("seen", "reported"), [(Laggards(), 0), (Laggards(partitions=1, garbage_bytes=None), None), (None, None)]
)
def test_what_laggards_keep_is_a_number_only_where_it_is_known(seen: Laggards | None, reported: int | None) -> None:
    numbers = values_of(Run("status", seen=an_overview(laggards=seen)))
    assert numbers.get("l0gc_laggard_garbage_bytes") == reported


@pytest.mark.parametrize(("costs", "kept"), [([], 0), ([(-1, 5), (4, 3)], 7)])
def test_pins_are_counted_and_the_one_that_keeps_most_is_measured(costs: list[tuple[int, int]], kept: int) -> None:
    pins = [PinCost(f"p{n}", 3, 0, 1, "", *cost) for n, cost in enumerate(costs)]
    numbers = values_of(Run("status", seen=an_overview(pins=pins)))
    assert (numbers["l0gc_pins"], numbers["l0gc_pinned_bytes"]) == (len(pins), kept)


def test_a_step_not_due_counts_neither_as_run_nor_success() -> None:
    before = added_up({}, samples(Run("gc", parts=[Run("sweep", exit_code=3, seconds=2, ended_s=9)]), "u"))
    after = added_up(before, samples(Run("gc", parts=[Run("sweep", due=False, ended_s=20)]), "u"))
    labels = {"url": "u", "command": "gc", "step": "sweep"}
    changed = {name for (name, of), value in after.items() if dict(of) == labels and before[name, of] != value}
    assert changed == {"l0gc_exit_code"}
    assert after[key_of("l0gc_exit_code", labels)] == 0


def test_records_that_do_not_fit_their_schema_are_counted() -> None:
    assert values_of(Run("reconcile", {"records": 5, "misfits": 3}))["l0gc_reconciled_misfits_total"] == 3


def test_the_steps_of_gc_are_distinguished_by_their_label() -> None:
    run = Run("gc", {}, exit_code=4, parts=[Run("housekeep"), Run("sweep", SWEPT)])
    found = [(name, dict(labels), value) for (name, labels), value in samples(run, "u").items()]
    codes = {labels["step"]: value for name, labels, value in found if name == "l0gc_exit_code"}
    assert codes == {"gc": 4, "housekeep": 0, "sweep": 0}
    assert {labels["command"] for _, labels, _ in found} == {"gc"}


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=6))
def test_counters_add_up_and_gauges_are_of_the_last_run(deleted: list[int]) -> None:
    kept: dict[Any, float] = {}
    for epoch, n in enumerate(deleted):
        kept = added_up(kept, samples(Run("sweep", SWEPT | {"deleted": n, "highest_deleted_epoch": epoch}), "u"))
    labels = {"url": "u", "command": "sweep", "step": "sweep"}
    assert kept[key_of("l0gc_objects_deleted_total", labels)] == sum(deleted)
    assert kept[key_of("l0gc_highest_deleted_epoch", labels)] == len(deleted) - 1


def test_other_runs_numbers_stay_and_foreign_ones_go() -> None:
    before = added_up({}, samples(Run("housekeep", {"ticked": True}), "u"))
    kept = added_up(before | {key_of("up", {}): 1.0}, samples(Run("sweep", SWEPT), "u"))
    assert before.items() <= kept.items()
    assert key_of("up", {}) not in kept
