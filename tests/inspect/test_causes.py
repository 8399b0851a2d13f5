"""Causes: which facts make which of them, what comes first, and that a remedy moves what it is for."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.collect.attempts import Attempt
from l0gc.collect.pause import Pause
from l0gc.inspect import causes
from l0gc.inspect.causes import CODES, DamagedObject, Facts, find_causes, find_warnings, next_step
from l0gc.keys import KeyLayout, PartitionId
from l0gc.watermark.compute import PartitionReport
from tests.support.reports import a_report

ROOT = Path(__file__).parents[2]
LAYOUT = KeyLayout(shards=4)
NOW = 1_700_000_000_000
MINUTE = 60_000
POISONED = LAYOUT.format(1, 99, "3f1c0000-0000-4000-8000-000000000000")


def facts(**changed: object) -> Facts:
    """All is well: epoch 9, M = 7, published; with what is changed."""
    f = Facts(LAYOUT, NOW, NOW, 9, NOW - MINUTE, 10 * MINUTE, watermark=7, computable=7, reported=7, highest=(9, "M"))
    for name, value in changed.items():
        setattr(f, name, value)
    return f


def codes(f: Facts) -> list[str]:
    return [c.cause for c in find_causes(f)]


def failed(command: str, error: str = "no space left", code: int = 1) -> dict[str, Attempt]:
    return {command: Attempt(command, code, error, NOW - MINUTE)}


def window(previous: int, newest: int, unreconciled: int | None = None) -> PartitionReport:
    """Of a partition that M = 3 stands at."""
    report = a_report("c", PartitionId("events", 1, 0), 3)
    return msgspec.structs.replace(
        report,
        previous_applied_epoch=previous,
        max_applied_epoch=newest,
        lowest_unreconciled_epoch=unreconciled,
        next_offset=0 if unreconciled is None else 10,
    )


def held(*lowest: PartitionReport, **changed: object) -> Facts:
    return facts(watermark=3, computable=3, reported=3, lowest=lowest, **changed)


def test_where_all_is_well_there_is_no_cause_and_nothing_to_do() -> None:
    assert (codes(facts()), find_warnings(facts())) == ([], [])
    assert next_step(facts(), []) == "nothing"


@pytest.mark.parametrize(
    ("expected", "f"),
    [
        ("foreign_watermark", facts(watermark=-1, watermark_error=("foreign", "another's"))),
        ("damaged_watermark", facts(watermark=-1, watermark_error=("damaged", "unreadable"))),
        ("old_controller", facts(highest=(12, "a report"))),
        ("poisoned_key", facts(attempts=failed("compute-watermark", f"object {POISONED} is at epoch 99, above", 4))),
        ("broken_log", facts(broken=["key x is damaged"])),
        ("damaged_object", facts(damaged=DamagedObject("key", "it is missing"))),
        ("damaged_report", facts(damaged_report="key x is no report")),
        ("store_clock", facts(epoch_ms=NOW + 2 * MINUTE)),
        ("housekeep_overdue", facts(epoch_ms=NOW - 31 * MINUTE)),
        ("housekeep_failed", facts(attempts=failed("housekeep"))),
        ("reconcile_failed", facts(attempts=failed("reconcile"))),
        ("reconcile_failed", held(window(8, 9, 4), attempts=failed("reconcile"))),
        ("compute_failed", facts(attempts=failed("compute-watermark"))),
        ("unreconciled", held(window(8, 9, 4))),
        ("idle_window", held(window(4, 8))),
        ("no_report", facts(watermark=3, reported=3, unreported=["events/1"])),
        ("stale_report", facts(watermark=3, reported=3, stale=["events/1"])),
        ("not_computed", facts(watermark=3)),
        ("paused", facts(pause=Pause("audit", "ann", NOW - MINUTE))),
        ("sweep_failed", facts(attempts=failed("sweep"))),
    ],
)  # fmt: skip
def test_one_thing_that_is_wrong_is_one_cause(expected: str, f: Facts) -> None:
    assert codes(f) == [expected]
    assert next_step(f, find_causes(f)) == find_causes(f)[0].remedy


def test_every_code_is_in_the_operators_table_and_no_other() -> None:
    text = (ROOT / "docs/operations.md").read_text().split("## Why doesn't M move?")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == [c for c in CODES_IN_ORDER if c in CODES]
    assert len(set(CODES)) == len(CODES) == len(CODES_IN_ORDER)


CODES_IN_ORDER = [
    "foreign_watermark", "damaged_watermark", "old_controller", "poisoned_key", "broken_log", "damaged_object",
    "damaged_report", "store_clock", "housekeep_overdue", "housekeep_failed", "unreconciled", "reconcile_failed",
    "idle_window", "no_report", "stale_report", "not_computed", "compute_failed", "paused", "sweep_failed", "damaged_record",
    "local_clock",
]  # fmt: skip


def test_a_window_that_housekeeping_slides_needs_no_barrier() -> None:
    (cause,) = find_causes(held(window(4, 8)))
    assert cause.remedy == "l0gc housekeep && l0gc compute-watermark"
    for closed in (window(4, 4), window(4, 9)):
        (cause,) = find_causes(held(closed))
        assert cause.remedy == "l0gc housekeep --barrier && l0gc compute-watermark"
    (cause,) = find_causes(held(window(4, 9), epoch_ms=NOW - 10 * MINUTE))
    assert cause.remedy == "l0gc housekeep && l0gc compute-watermark"


@given(st.lists(st.tuples(st.integers(4, 9), st.integers(4, 9), st.booleans()), min_size=1, max_size=4))
def test_a_remedy_moves_every_partition_that_m_stands_at(rows: list[tuple[int, int, bool]]) -> None:
    """By the rules of a partition's state: what the commands do to M(p), told anew here."""
    lowest = [window(min(a, b), max(a, b), 4 if data or min(a, b) > 4 else None) for a, b, data in rows]
    (remedy,) = {c.remedy for c in find_causes(held(*lowest))}
    for r in lowest:
        unreconciled = None if "l0gc reconcile" in remedy else r.lowest_unreconciled_epoch
        previous = r.previous_applied_epoch
        if "--barrier" in remedy:
            previous = 10
        elif "housekeep" in remedy and r.max_applied_epoch < 9:
            previous = r.max_applied_epoch
        assert min(previous, 99 if unreconciled is None else unreconciled) - 1 > 3
    assert remedy.endswith("l0gc compute-watermark")


def test_a_failure_that_a_better_cause_explains_is_not_told_twice() -> None:
    assert codes(facts(broken=["x"], attempts=failed("housekeep"))) == ["broken_log"]
    damaged = DamagedObject("key", "it is missing")
    assert codes(held(window(8, 9, 4), damaged=damaged, attempts=failed("reconcile"))) == ["damaged_object"]
    assert codes(facts(highest=(99, "M"), attempts=failed("compute-watermark", f"{POISONED} is"))) == ["old_controller"]


def test_a_key_that_the_epoch_has_caught_up_with_is_not_poisoned() -> None:
    f = facts(epoch=100, watermark=98, computable=98, reported=98, attempts=failed("compute-watermark", POISONED))
    assert codes(f) == ["compute_failed"]


def test_of_a_system_with_its_external_log_only_what_is_published_counts() -> None:
    f = facts(external_log=True, epoch=0, epoch_ms=NOW - 9**9, computable=None, reported=None, highest=(-1, ""))
    assert codes(f) == []
    assert next_step(f, []) == causes.THEIR_COMPUTE
    f.eligible_objects = 3
    assert next_step(f, []) == "l0gc sweep"
    f.watermark_error = ("foreign", "another's")
    assert next_step(f, find_causes(f)).endswith(causes.THEIR_COMPUTE)


@pytest.mark.parametrize(
    ("expected", "f"),
    [
        ("l0gc compute-watermark", facts(computable=8, reported=8)),
        ("l0gc compute-watermark --refresh", facts(computable=8)),
        ("l0gc reconcile", facts(unreconciled_records=1)),
        ("l0gc sweep", facts(eligible_objects=1)),
    ],
)
def test_without_a_cause_the_loop_goes_on(expected: str, f: Facts) -> None:
    assert (codes(f), next_step(f, [])) == ([], expected)


def test_a_record_of_a_sweep_that_cannot_be_read_is_a_warning() -> None:
    f = facts(damaged_record="l0gc/runs/r/run.json cannot be read")
    assert (codes(f), [w.cause for w in find_warnings(f)]) == ([], ["damaged_record"])


@pytest.mark.parametrize("minutes", [2, -2])
def test_a_local_clock_that_is_off_is_a_warning(minutes: int) -> None:
    f = facts(local_ms=NOW + minutes * MINUTE)
    assert codes(f) == []
    (warning,) = find_warnings(f)
    assert warning.cause == "local_clock"
    assert ("120 s ahead of" if minutes > 0 else "120 s behind") in warning.detail
