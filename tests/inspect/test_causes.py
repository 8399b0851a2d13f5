"""Causes: which facts lead to which cause, their order, and that each remedy moves what the cause names."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.collect.deletion import Pause
from l0gc.collect.history import RunEntry
from l0gc.collect.record import Attempt
from l0gc.inspect import causes
from l0gc.inspect.causes import CODES, find_causes, find_warnings, next_step
from l0gc.inspect.overview import Overview
from l0gc.inspect.overview_reader import garbage_of
from l0gc.keys import KeyLayout
from l0gc.streamlog.journal.admission import EpochWindow
from l0gc.watermark.scans import ScanRow, ScanSnapshot
from l0gc.watermark.source import IDLE, PINNED, UNRECONCILED, Holder
from tests.inspect.report.support import summary, totals

ROOT = Path(__file__).parents[2]
LAYOUT = KeyLayout(shards=4)
NOW = 1_700_000_000_000
MINUTE = 60_000
GARBAGE = garbage_of(ScanSnapshot(totals(NOW), [ScanRow(1, 3, 30, 1)]), 7, [], 1.0)
POISONED = LAYOUT.format(1, 99, "3f1c0000-0000-4000-8000-000000000000")


def facts(**changed: object) -> Overview:
    """Return a healthy cluster's overview at epoch 9 with M = 7, with these changes."""
    f = Overview(
        cluster_id="c", external_log=False, as_of_ms=NOW, local_ms=NOW, cluster_epoch=9, epoch_ms=NOW - MINUTE,
        interval_ms=10 * MINUTE, topics=1, partitions=4, watermark=7, computable_watermark=7, highest=(9, "M"),
        layout=LAYOUT,
    )  # fmt: skip
    for name, value in changed.items():
        setattr(f, name, value)
    return f


def codes(f: Overview) -> list[str]:
    return [c.cause for c in find_causes(f)]


def failed(command: str, error: str = "no space left", code: int = 1) -> list[Attempt]:
    return [Attempt(command, code, error, NOW - MINUTE)]


def data(partition: int = 1) -> Holder:
    """Return a partition whose data holds M at 3."""
    return Holder("events", partition, 3, UNRECONCILED, "10 unreconciled records", 10, "level_zero/data/x")


def idle(partition: int = 1) -> Holder:
    return Holder("events", partition, 3, IDLE, "its window may still take epoch 4")


def held(*holders: Holder, **changed: object) -> Overview:
    given: dict[str, object] = {"held_partitions": len(holders)}
    if any(h.kind == IDLE for h in holders):
        given["windows"] = [EpochWindow(4, 8)]
    return facts(**{"watermark": 3, "computable_watermark": 3, "held_back_by": holders, **given, **changed})


@pytest.mark.parametrize(
    ("command", "started_ms", "warned"),
    [("sweep", NOW, False), ("sweep", NOW - 1, True), ("vacuum", NOW, True)],  # times have whole seconds
)
def test_an_undelete_is_a_warning_until_such_a_run_begins(command: str, started_ms: int, warned: bool) -> None:
    undone, later = (
        msgspec.structs.replace(summary(NOW - 5000, 0), of_run="run", of_command="sweep", ended_ms=NOW),
        msgspec.structs.replace(summary(started_ms, 1), command=command),
    )
    runs = [RunEntry(s.run_id, s.started_ms, 1, s) for s in (undone, later)]
    assert [w.cause for w in find_warnings(facts(runs=runs))] == ["brought_back"] * warned


def test_where_all_is_well_there_is_no_cause_and_nothing_to_do() -> None:
    assert (codes(facts()), find_warnings(facts())) == ([], [])
    assert next_step(facts(), []) == "nothing"


@pytest.mark.parametrize(
    ("objects", "since_minutes", "expected"),
    [
        ({1: 24}, 1, "24 objects become garbage in about 9 min"),
        ({2: 1}, 1, "1 object becomes garbage in about 19 min"),
        ({1: 20, 2: 4}, 1, "24 objects become garbage within about 19 min, the first in about 9 min"),
        ({1: 24}, 12, "24 objects become garbage with the next l0gc gc"),
        ({1: 20, 2: 4}, 12, "24 objects become garbage within about 10 min, the first with the next l0gc gc"),
        ({0: 3}, 1, "3 objects become garbage with the next l0gc gc"),
    ],
)
def test_held_bytes_show_when_they_become_free(objects: dict[int, int], since_minutes: int, expected: str) -> None:
    f = facts(held_objects=objects, epoch_ms=NOW - since_minutes * MINUTE)
    assert next_step(f, find_causes(f)) == f"nothing to do: {expected}, or now with l0gc gc --housekeep-barrier"


@pytest.mark.parametrize(
    ("expected", "f"),
    [
        ("foreign_watermark", facts(watermark=-1, watermark_error=("foreign_watermark", "another's"))),
        ("damaged_watermark", facts(watermark=-1, watermark_error=("damaged_watermark", "unreadable"))),
        ("unreadable_watermark", facts(watermark=-1, watermark_error=("unreadable_watermark", "access denied"))),
        ("lost_watermark", facts(watermark_error=("lost_watermark", "lost"))),
        ("old_controller", facts(highest=(12, "journal 3"))),
        ("old_controller", facts(forgotten="journal 3 holds a topic that the controller log does not know")),
        ("set_back_journal", facts(set_back="journal 3 ended at offset 5, and ended at offset 9 when it was read before")),
        ("poisoned_key", facts(attempts=failed("compute-watermark", f"object {POISONED} is at epoch 99, above", 4))),
        ("damaged_journal", facts(damaged_journals=["journal 3 cannot be read: key x is damaged"])),
        ("unreadable_journal", facts(errors=["journal 3 cannot be read: access denied"])),
        ("damaged_object", facts(damaged="reconcile fails on object key: it is missing")),
        ("store_clock", facts(epoch_ms=NOW + 2 * MINUTE)),
        ("housekeep_overdue", facts(epoch_ms=NOW - 31 * MINUTE)),
        ("housekeep_failed", facts(attempts=failed("housekeep"))),
        ("reconcile_failed", facts(attempts=failed("reconcile"))),
        ("reconcile_failed", held(data(), attempts=failed("reconcile"))),
        ("compute_failed", facts(attempts=failed("compute-watermark"))),
        ("unreconciled", held(data())),
        ("idle_window", held(idle())),
        ("pinned", held(Holder("", -1, 3, PINNED, "pin 'backup' until then (l0gc pin delete)"))),
        ("not_computed", facts(watermark=3)),
        ("paused", facts(paused=Pause("audit", "ann", NOW - MINUTE))),
        ("sweep_failed", facts(attempts=failed("sweep"))),
    ],
)  # fmt: skip
def test_one_thing_that_is_wrong_is_one_cause(expected: str, f: Overview) -> None:
    assert codes(f) == [expected]
    assert next_step(f, find_causes(f)) == find_causes(f)[0].remedy


def test_every_code_is_in_the_operators_table_and_no_other() -> None:
    text = (ROOT / "docs/work/operate-m.md").read_text().split("## Causes")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == CODES_IN_ORDER == list(CODES)


CODES_IN_ORDER = [
    "foreign_watermark", "damaged_watermark", "unreadable_watermark", "lost_watermark",
    "old_controller", "set_back_journal", "poisoned_key",
    "damaged_journal", "unreadable_journal", "damaged_object", "store_clock", "housekeep_overdue",
    "housekeep_failed", "unreconciled", "reconcile_failed", "idle_window", "pinned", "not_computed",
    "compute_failed", "paused", "sweep_failed", "damaged_record", "unclosed_topic", "overdue_table",
    "brought_back", "local_clock",
]  # fmt: skip


def test_which_log_went_back_is_said_by_the_cause_that_knows_more() -> None:
    (cause,) = find_causes(facts(highest=(12, "journal 3")))
    assert cause.detail.startswith("journal 3 is at epoch 12, above the cluster epoch 9: ")


def test_a_window_that_housekeeping_slides_needs_no_barrier() -> None:
    (cause,) = find_causes(held(idle()))
    assert cause.remedy == "l0gc housekeep && l0gc compute-watermark"
    for closed in (EpochWindow(4, 4), EpochWindow(4, 9)):
        (cause,) = find_causes(held(idle(), windows=[EpochWindow(4, 8), closed]))
        assert cause.remedy == "l0gc housekeep --barrier && l0gc compute-watermark"
    (cause,) = find_causes(held(idle(), windows=[EpochWindow(4, 9)], epoch_ms=NOW - 10 * MINUTE))
    assert cause.remedy == "l0gc housekeep && l0gc compute-watermark"


def test_a_window_below_a_young_topic_needs_a_barrier() -> None:
    """The topic has revision 4, and M stays at 3 while the window's newest epoch is not above 4."""
    (cause,) = find_causes(held(idle(), windows=[EpochWindow(1, 4)]))
    assert "--barrier" in cause.remedy


@given(st.lists(st.tuples(st.integers(4, 9), st.integers(4, 9), st.booleans()), min_size=1, max_size=4))
def test_a_remedy_moves_every_partition_that_m_stands_at(rows: list[tuple[int, int, bool]]) -> None:
    """The test restates a journal's rules for the effect of the remedy's commands on M(p)."""
    windows = [EpochWindow(min(a, b), max(a, b)) for a, b, _ in rows]
    with_data = [has or w.oldest > 4 for w, (_, _, has) in zip(windows, rows, strict=True)]
    holders = [data(p) if has else idle(p) for p, has in enumerate(with_data)]
    at = [w for w in windows if w.oldest == 4]
    (remedy,) = {c.remedy for c in find_causes(held(*holders, windows=at))}
    for window, has in zip(windows, with_data, strict=True):
        unreconciled = 4 if has and "l0gc reconcile" not in remedy else 99
        previous = window.oldest
        if "--barrier" in remedy:
            previous = 10
        elif "housekeep" in remedy and window.newest < 9:
            previous = window.newest
        assert min(previous, unreconciled) - 1 > 3
    assert remedy.endswith("l0gc compute-watermark")


def test_partitions_that_are_not_named_are_counted() -> None:
    (cause,) = find_causes(held(data(0), data(1), held_partitions=16_384))
    assert cause.detail.startswith("events/0 and 16,383 more at 3: at least 20 records not in L1 yet; ")
    texts = [c.detail for c in find_causes(held(data(0), data(1), idle(2), held_partitions=16_384))]
    assert texts[0].startswith("events/0 and at least 1 more at 3: ")
    assert texts[1].startswith("events/2 at 3: idle, but may still take epoch 4; ")
    (cause,) = find_causes(held(data(0)))
    assert cause.detail.startswith("events/0 at 3: 10 records not in L1 yet; ")


def test_a_failure_that_a_better_cause_explains_is_not_reported_twice() -> None:
    assert codes(facts(damaged_journals=["x"], attempts=failed("housekeep"))) == ["damaged_journal"]
    assert codes(facts(errors=["x"], attempts=failed("reconcile"))) == ["unreadable_journal"]
    damaged = "reconcile fails on object key: it is missing"
    assert codes(held(data(), damaged=damaged, attempts=failed("reconcile"))) == ["damaged_object"]
    assert codes(facts(highest=(99, "M"), attempts=failed("compute-watermark", f"{POISONED} is"))) == ["old_controller"]


def test_a_key_that_the_epoch_has_caught_up_with_is_not_poisoned() -> None:
    f = facts(cluster_epoch=100, watermark=98, computable_watermark=98, attempts=failed("compute-watermark", POISONED))
    assert codes(f) == ["compute_failed"]


def test_of_a_system_with_its_external_log_only_what_is_published_counts() -> None:
    f = facts(external_log=True, cluster_epoch=0, epoch_ms=NOW - 9**9, computable_watermark=None, highest=(-1, ""))
    assert codes(f) == []
    assert next_step(f, []) == causes.THEIR_COMPUTE
    f.garbage = GARBAGE
    assert next_step(f, []) == "l0gc sweep"
    f.watermark_error = ("foreign_watermark", "another's")
    assert next_step(f, find_causes(f)).endswith(f"{causes.THEIR_COMPUTE} --accept-lost")


@pytest.mark.parametrize(
    "f",
    [
        held(data()),
        held(idle()),
        held(Holder("", -1, 3, PINNED, "pin 'backup' until then (l0gc pin delete)")),
        facts(epoch_ms=NOW - 31 * MINUTE),
        facts(watermark=3),
    ],
)
def test_sweepable_objects_precede_what_holds_m(f: Overview) -> None:
    assert next_step(f, find_causes(f)) != "l0gc sweep"
    f.garbage = GARBAGE
    assert next_step(f, find_causes(f)) == "l0gc sweep"
    f.paused = Pause("audit", "ann", NOW - MINUTE)
    assert next_step(f, find_causes(f)) != "l0gc sweep"


@pytest.mark.parametrize(
    ("attempt", "following", "again"),
    [
        (Attempt("sweep", 0, ""), "l0gc sweep", "l0gc sweep"),
        (Attempt("sweep", 0, "", shadow=True), "nothing to do: sweeps are shadow runs, ", "l0gc sweep --shadow"),
        (Attempt("sweep", 0, "", leaves_s=86_400), "nothing to do: sweeps leave what M has ", "l0gc sweep --grace 1d"),
    ],
)
def test_advice_deletes_no_more_than_the_last_sweep_would_have(attempt: Attempt, following: str, again: str) -> None:
    f = facts(garbage=GARBAGE, attempts=[attempt])
    assert next_step(f, []).startswith(following)
    f.attempts = [msgspec.structs.replace(attempt, exit_code=3, error="x")]
    assert find_causes(f)[0].remedy == f"fix what it reports, then {again}"


def test_a_signalled_run_is_reported_as_stopped() -> None:
    for command in ("housekeep", "reconcile", "compute-watermark", "sweep"):
        assert codes(facts(attempts=failed(command, "it was stopped", 130))) == []
    (cause,) = find_causes(held(data(), attempts=failed("reconcile", "it was stopped", 143)))
    assert cause.detail.endswith("; the last reconcile was stopped 60 s ago")
    part = [Attempt("reconcile", 0, "", NOW - MINUTE, part=True)]
    assert find_causes(held(data(), attempts=part))[0].detail.endswith(
        "; the last reconcile, of a part, ended 60 s ago"
    )


@pytest.mark.parametrize(
    ("expected", "f"),
    [
        ("l0gc compute-watermark", facts(computable_watermark=8)),
        ("l0gc reconcile", facts(unreconciled_records=1)),
        ("l0gc sweep", facts(garbage=GARBAGE)),
    ],
)
def test_without_a_cause_the_loop_goes_on(expected: str, f: Overview) -> None:
    assert (codes(f), next_step(f, [])) == ([], expected)


def test_a_record_of_a_sweep_that_cannot_be_read_is_a_warning() -> None:
    f = facts(damaged_record="l0gc/runs/r/run.json cannot be read")
    assert (codes(f), [w.cause for w in find_warnings(f)]) == ([], ["damaged_record"])


def test_a_deleted_topic_that_no_journal_closes_is_a_warning() -> None:
    f = facts(unclosed=["topic 'a' is not closed in journal 3", "topic 'b' is not closed in journal 3"])
    (warning,) = find_warnings(f)
    assert (codes(f), warning.cause) == ([], "unclosed_topic")
    assert warning.detail == "topic 'a' is not closed in journal 3 (and 1 more)"


@pytest.mark.parametrize("minutes", [2, -2])
def test_a_local_clock_that_is_off_is_a_warning(minutes: int) -> None:
    f = facts(local_ms=NOW + minutes * MINUTE)
    assert codes(f) == []
    (warning,) = find_warnings(f)
    assert warning.cause == "local_clock"
    assert ("120 s ahead of" if minutes > 0 else "120 s behind") in warning.detail
