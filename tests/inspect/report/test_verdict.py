"""The verdict: whether somebody has to act, in a sentence that says for what or why."""

from __future__ import annotations

import msgspec
import pytest

from l0gc.inspect import causes as codes
from l0gc.inspect.journals import Cause
from l0gc.inspect.report.facts import HEALTHY, LATE_MS, NEEDS_YOU, WAITING, Verdict, garbage_of, gather, verdict
from l0gc.inspect.report.page import commands_of
from l0gc.inspect.verify.findings import VerifyResult
from l0gc.watermark.scans import ScanSnapshot
from tests.inspect.report.support import run_entry, totals
from tests.support.memory_store import memory_cluster

HOUR = 3_600_000
KNOWN = msgspec.structs.replace(gather(memory_cluster(), "s3://b/"), watermark=5, lag_ms=HOUR)
GARBAGE = garbage_of(ScanSnapshot(totals(0), []), 0, [], 1.0)


def of(
    *causes: str,
    warnings: tuple[str, ...] = (),
    findings: int = 0,
    left: tuple[int, int] | None = (0, 0),
    held_objects: int = 0,
    since_sweep_ms: int | None = HOUR,
    **changes: object,
) -> Verdict:
    found = [Cause(c, f"what is with {c}", "l0gc gc") for c in causes]
    warned = [Cause(c, f"what is with {c}", "x") for c in warnings]
    known = {
        "garbage": left
        and msgspec.structs.replace(GARBAGE, left_objects=left[0], left_bytes=left[1], held_objects=held_objects),
        "runs": [] if since_sweep_ms is None else [run_entry(KNOWN.as_of_ms - since_sweep_ms, 1)],
        "findings": VerifyResult(1, 0, False, total=findings),
    }
    return verdict(msgspec.structs.replace(KNOWN, causes=found, warnings=warned, **known, **changes))


WAITS = {codes.UNRECONCILED_DATA, codes.IDLE_WINDOW, codes.NOT_COMPUTED, codes.PAUSED}
WARNS = {codes.LOCAL_CLOCK, codes.DAMAGED_RECORD}


@pytest.mark.parametrize("cause", sorted(set(codes.CODES) - WARNS))
def test_what_the_next_runs_end_waits_and_everything_else_needs_a_person(cause: str) -> None:
    found = of(cause)
    assert (found.state, found.cause) == (WAITING if cause in WAITS else NEEDS_YOU, cause)
    assert f"what is with {cause}." in found.sentence


def test_the_acute_cause_is_named_before_those_that_wait_and_the_others_are_counted() -> None:
    found = of(codes.UNRECONCILED_DATA, codes.DAMAGED_OBJECT)
    assert found == Verdict(NEEDS_YOU, "what is with damaged_object. And 1 other cause, below.", codes.DAMAGED_OBJECT)


def test_what_waits_for_more_than_a_day_needs_a_person_but_a_pause_is_meant() -> None:
    late = LATE_MS + HOUR
    found = of(codes.UNRECONCILED_DATA, lag_ms=late)
    assert (found.state, found.sentence) == (NEEDS_YOU, "M has stood for 25 h: what is with unreconciled.")
    assert of(codes.PAUSED, lag_ms=late).state == WAITING
    assert of(codes.PAUSED, lag_ms=late).sentence.startswith("for l0gc resume: ")


def test_a_finding_and_a_warning_need_a_person_though_nothing_is_held() -> None:
    assert of(findings=2).sentence.startswith("l0gc verify has 2 findings")
    assert of(findings=2).state == NEEDS_YOU
    warned = of(warnings=(codes.LOCAL_CLOCK,))
    assert (warned.state, warned.sentence) == (NEEDS_YOU, "nothing is held back, but what is with local_clock.")


@pytest.mark.parametrize(
    ("changes", "state", "sentence"),
    [
        ({}, HEALTHY, "no garbage is left; L0 is empty."),
        ({"held_objects": 3}, HEALTHY, "no garbage is left; 3 objects may still be needed."),
        ({"left": (2, 2048)}, HEALTHY, "the next sweep may delete 2 objects (2.0 KiB)."),
        ({"left": None}, HEALTHY, "M follows the cluster epoch. What the bucket holds is not known: no scan is there."),
        ({"watermark": -1}, WAITING, "for the first M: none is published yet, so nothing may go."),
        (
            {"left": (1, 1), "since_sweep_ms": None},
            WAITING,
            "for l0gc sweep: 1 object (1 B) may go, and none is on record.",
        ),
        (
            {"left": (1, 1), "since_sweep_ms": 3 * LATE_MS},
            WAITING,
            "for l0gc sweep: 1 object (1 B) may go, and the last one began 3 d ago.",
        ),
    ],
)
def test_without_a_cause_the_garbage_decides(changes: dict[str, object], state: str, sentence: str) -> None:
    assert of(**changes) == Verdict(state, sentence)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("remedy", "commands"),
    [
        ("l0gc reconcile && l0gc compute-watermark", "l0gc reconcile && l0gc compute-watermark"),
        ("see to what it says, then l0gc housekeep --barrier", "l0gc housekeep --barrier"),
        ("remove l0gc/watermarks/published.json, then l0gc compute-watermark", "l0gc compute-watermark"),
        ("l0gc compute-watermark --reports PATH", "l0gc compute-watermark --reports PATH"),
        ("set the clock (NTP)", ""),
        ("nothing", ""),
        ("nothing to do: 2 objects become garbage in about 9 min, or now with l0gc gc --barrier", ""),
        ("wait until its reason is gone, then l0gc resume", "l0gc resume"),
        ("remove that record; l0gc reconcile; rm -rf /", ""),
        ("not-l0gc sweep", ""),
    ],
)  # fmt: skip
def test_commands_to_copy_are_those_that_a_remedy_ends_with(remedy: str, commands: str) -> None:
    assert commands_of(remedy) == commands
