"""Metrics are made of results: what is known is reported, what is not is left out, and counters add up."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.cli.metrics import BY_NAME, COUNTER, GAUGE, MEASURED, METRICS, Run, added_up, key_of, samples

SWEPT: dict[str, Any] = {
    "watermark": 2, "listed": 20, "eligible": 15, "unparsable": 1, "deleted": 14, "bytes": 1400, "failed": 1,
    "held_by_age": 0, "uploads_aborted": 2, "requests": {"list": 5, "delete": 1}, "throttled": 3,
    "backpressure_seconds": 1.5, "cluster_epoch": 4, "highest_deleted_epoch": 2, "list_errors": 0, "delete_errors": 1,
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
    assert numbers["l0gc_epoch_lag"] == 2
    assert numbers["l0gc_backpressure_seconds_total"] == 1.5
    assert numbers["l0gc_last_success_timestamp_seconds"] == 1000
    assert "l0gc_partitions" not in numbers


def test_a_complete_result_of_a_sweep_leaves_out_no_metric_of_it() -> None:
    assert set(values_of(Run("sweep", SWEPT))) == {m.name for m in METRICS if "sweep" in m.steps}


def test_what_status_cannot_know_of_another_systems_log_is_not_reported_as_zero() -> None:
    seen = {
        "external_log": True,
        "watermark": -1,
        "cluster_epoch": -1,
        "partitions": 0,
        "records": 0,
        "held_back_by": [],
    }
    names = {"l0gc_watermark", "l0gc_cluster_epoch", "l0gc_epoch_lag", "l0gc_partitions", "l0gc_held_back_partitions"}
    assert names & values_of(Run("status", seen)).keys() == {"l0gc_watermark"}
    published = values_of(Run("status", seen | {"watermark": 3, "cluster_epoch": 7}))
    assert (published["l0gc_cluster_epoch"], published["l0gc_epoch_lag"]) == (7, 4)


def test_an_epoch_that_there_is_not_is_no_number() -> None:
    assert "l0gc_highest_deleted_epoch" not in values_of(Run("sweep", SWEPT | {"highest_deleted_epoch": -1}))


def test_a_run_without_a_result_reports_the_run_alone_and_no_success() -> None:
    numbers = values_of(Run("sweep", exit_code=4))
    assert numbers["l0gc_safety_blocks_total"] == numbers["l0gc_failed_runs_total"] == numbers["l0gc_runs_total"] == 1
    assert numbers["l0gc_exit_code"] == 4
    assert "l0gc_last_success_timestamp_seconds" not in numbers
    assert not any("objects" in name for name in numbers)


def test_metrics_count_the_partitions_that_hold_m_and_name_the_lowest() -> None:
    held = [{"topic": "t", "partition": p, "gc_epoch": 3, "reason": ""} for p in range(2)]
    numbers = values_of(
        Run("compute-watermark", {"watermark": 3, "cluster_epoch": 5, "held_back_by": held, "listing": None})
    )
    assert (numbers["l0gc_lowest_partition_gc_epoch"], numbers["l0gc_held_back_partitions"]) == (3, 2)
    assert "l0gc_l0_objects" not in numbers


@pytest.mark.parametrize(
    ("seen", "reported"), [({"garbage_bytes": 0}, 0), ({"garbage_bytes": None}, None), (None, None)]
)
def test_what_laggards_keep_is_a_number_only_where_it_is_known(seen: object, reported: int | None) -> None:
    numbers = values_of(Run("status", {"watermark": 3, "cluster_epoch": 5, "laggards": seen}))
    assert numbers.get("l0gc_laggard_garbage_bytes") == reported


@pytest.mark.parametrize(
    ("pins", "count", "kept"),
    [([], 0, 0), ([{"l0_bytes": -1, "l1_bytes": 5}, {"l0_bytes": 4, "l1_bytes": 3}], 2, 7)],
)
def test_pins_are_counted_and_the_one_that_keeps_most_is_measured(pins: object, count: int, kept: int) -> None:
    numbers = values_of(Run("status", {"watermark": 3, "cluster_epoch": 5, "pins": pins}))
    assert (numbers["l0gc_pins"], numbers["l0gc_pinned_bytes"]) == (count, kept)


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
        kept = added_up(kept, samples(Run("sweep", SWEPT | {"deleted": n, "cluster_epoch": epoch}), "u"))
    labels = {"url": "u", "command": "sweep", "step": "sweep"}
    assert kept[key_of("l0gc_objects_deleted_total", labels)] == sum(deleted)
    assert kept[key_of("l0gc_cluster_epoch", labels)] == len(deleted) - 1


def test_other_runs_numbers_stay_and_foreign_ones_go() -> None:
    before = added_up({}, samples(Run("housekeep", {"cluster_epoch": 9}), "u"))
    kept = added_up(before | {key_of("up", {}): 1.0}, samples(Run("sweep", SWEPT), "u"))
    assert before.items() <= kept.items()
    assert key_of("up", {}) not in kept
