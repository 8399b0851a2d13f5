"""Why M does not move, or L0 is not swept, and what to do about it (pure).

Each cause has a code, which stays the same, a sentence, and a remedy: commands joined by ` && `, or what a person has to do
first, then the commands. Which partitions hold M, and why, comes from where M comes from (`watermark/source.py`); what is
made of it is decided here. In a healthy cluster M is two epochs behind, since each window spans two; what explains more than
that is a cause. docs/operations.md has a row for each code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from l0gc.collect.pause import describe_pause
from l0gc.formatting import count, span
from l0gc.inspect.journals import Cause, Overview
from l0gc.inspect.laggards import COMPUTE, RECONCILE
from l0gc.keys import PUBLISHED_WATERMARK
from l0gc.streamlog.controller.decisions import tick_is_due
from l0gc.watermark.source import IDLE, PINNED, UNRECONCILED, Holder

NORMAL_LAG: Final = 2
"""Epochs that M is behind where all is well: the window of each journal spans two."""
SKEW_MS: Final = 60_000
"""A clock that is wrong by more than this is worth a word."""
TICKS_LATE: Final = 3
"""So many epoch intervals without a tick, and housekeeping does not run."""
_LEAST_INTERVAL_MS: Final = 60_000

FOREIGN_WATERMARK: Final = "foreign_watermark"
DAMAGED_WATERMARK: Final = "damaged_watermark"
OLD_CONTROLLER: Final = "old_controller"
SET_BACK_JOURNAL: Final = "set_back_journal"
POISONED_KEY: Final = "poisoned_key"
DAMAGED_JOURNAL: Final = "damaged_journal"
UNREADABLE_JOURNAL: Final = "unreadable_journal"
DAMAGED_OBJECT: Final = "damaged_object"
STORE_CLOCK: Final = "store_clock"
HOUSEKEEP_FAILED: Final = "housekeep_failed"
HOUSEKEEP_OVERDUE: Final = "housekeep_overdue"
RECONCILE_FAILED: Final = "reconcile_failed"
UNRECONCILED_DATA: Final = "unreconciled"
IDLE_WINDOW: Final = "idle_window"
PINNED_M: Final = "pinned"
COMPUTE_FAILED: Final = "compute_failed"
NOT_COMPUTED: Final = "not_computed"
PAUSED: Final = "paused"
SWEEP_FAILED: Final = "sweep_failed"
LOCAL_CLOCK: Final = "local_clock"
DAMAGED_RECORD: Final = "damaged_record"
UNCLOSED_TOPIC: Final = "unclosed_topic"
OVERDUE_TABLE: Final = "overdue_table"

CODES: Final = (
    FOREIGN_WATERMARK, DAMAGED_WATERMARK, OLD_CONTROLLER, SET_BACK_JOURNAL, POISONED_KEY, DAMAGED_JOURNAL,
    UNREADABLE_JOURNAL, DAMAGED_OBJECT, STORE_CLOCK, HOUSEKEEP_FAILED, HOUSEKEEP_OVERDUE, RECONCILE_FAILED,
    UNRECONCILED_DATA, IDLE_WINDOW, PINNED_M, COMPUTE_FAILED, NOT_COMPUTED, PAUSED, SWEEP_FAILED, LOCAL_CLOCK,
    DAMAGED_RECORD, UNCLOSED_TOPIC, OVERDUE_TABLE,
)  # fmt: skip

_M_REFUSED: Final = {FOREIGN_WATERMARK, DAMAGED_WATERMARK, OLD_CONTROLLER, SET_BACK_JOURNAL, POISONED_KEY}
"""What keeps M from being published."""

HOUSEKEEP: Final = "l0gc housekeep"
BARRIER: Final = "l0gc housekeep --barrier"
SWEEP: Final = "l0gc sweep"
RESUME: Final = "wait until its reason is gone, then l0gc resume"
THEIR_COMPUTE: Final = "l0gc compute-watermark --reports PATH --partitions PATH"
GC_BARRIER: Final = "l0gc gc --barrier"
NOTHING: Final = "nothing"
"""How the text begins if no step is needed: held objects become free in time, and the sentence says when."""


def find_causes(f: Overview) -> list[Cause]:
    """What keeps M or the sweep where it is, the first to be seen to first."""
    found = [*_of_the_watermark(f), *_of_the_bucket(f)]
    if not f.external_log:
        found += [*_of_time(f), *_of_partitions(f), *_of_m(f, {c.cause for c in found})]
    return [*found, *_of_failed_runs(f, {c.cause for c in found}), *_of_sweeps(f)]


def find_warnings(f: Overview) -> list[Cause]:
    """What is wrong and holds nothing."""
    found = []
    if f.damaged_record:
        remedy = "remove that record, or restore it; until then no past sweep is shown"
        found.append(Cause(DAMAGED_RECORD, f.damaged_record, remedy))
    if f.unclosed:
        found.append(Cause(UNCLOSED_TOPIC, _first(f.unclosed), f"{HOUSEKEEP}, which closes it, or says why it cannot"))
    found += [Cause(OVERDUE_TABLE, t.sentence, t.remedy) for t in f.tables if t.overdue]
    skew_s = (f.local_ms - f.as_of_ms) / 1000
    if abs(skew_s) * 1000 <= SKEW_MS:
        return found
    side = "ahead of" if skew_s > 0 else "behind"
    detail = (
        f"this machine's clock is {abs(skew_s):,.0f} s {side} the store's; ticks and ages use the store's, so it does "
        "not hold M, but S3 refuses requests from 15 minutes on"
    )
    return [*found, Cause(LOCAL_CLOCK, detail, "set the clock (NTP)")]


def next_step(f: Overview, causes: Sequence[Cause]) -> str:
    """The one thing to do now: the first cause's remedy, or what the loop needs next."""
    if causes:
        return causes[0].remedy
    if f.external_log:
        return SWEEP if f.left_objects > 0 else THEIR_COMPUTE
    if f.computable_watermark is not None and f.computable_watermark > f.watermark:
        return COMPUTE
    if f.unreconciled_records:
        return RECONCILE
    return SWEEP if f.left_objects > 0 else _waiting(f)


def _waiting(f: Overview) -> str:
    """That there is nothing to do, and when what is held becomes garbage, given that `l0gc gc` runs at each tick."""
    if not f.held_objects:
        return NOTHING
    held = count(sum(f.held_objects.values()), "object")
    age_ms = f.as_of_ms - f.epoch_ms
    first, last = (free_in(n, age_ms, f.interval_ms) for n in (min(f.held_objects), max(f.held_objects)))
    becomes = "becomes" if sum(f.held_objects.values()) == 1 else "become"
    when = last if first == last else f"{last.replace('in', 'within', 1)}, the first {first}"
    return f"{NOTHING} to do: {held} {becomes} garbage {when}, or now with {GC_BARRIER}"


def free_in(ticks: int, age_ms: int, interval_ms: int) -> str:
    """When what is held for so many ticks becomes garbage, if `l0gc gc` runs whenever one is due.

    Args:
        age_ms: how long ago the cluster epoch began.
    """
    first_ms = 0 if tick_is_due(age_ms, interval_ms) else interval_ms - age_ms
    ms = first_ms + (ticks - 1) * interval_ms if ticks else 0
    return f"in about {span(ms)}" if ms >= 1000 else "with the next l0gc gc"


# -- what is published, and what is in the bucket -----------------------------------------------------------------------


def _of_the_watermark(f: Overview) -> Iterator[Cause]:
    if f.watermark_error is not None:
        code, text = f.watermark_error
        compute = THEIR_COMPUTE if f.external_log else COMPUTE
        way_out = f"restore {PUBLISHED_WATERMARK} from a version or a backup, or remove it if you have neither"
        if code == FOREIGN_WATERMARK:
            way_out = f"remove {PUBLISHED_WATERMARK}"
        yield Cause(code, text, f"{way_out}, then {compute}")
        return
    highest, where = f.highest
    if f.external_log or (highest <= f.cluster_epoch and not f.forgotten):
        return
    ahead = f"{where} is at epoch {highest}, above the cluster epoch {f.cluster_epoch}"
    detail = f"{ahead if highest > f.cluster_epoch else f.forgotten}: the controller log went back, as from a backup"
    yield Cause(OLD_CONTROLLER, detail, f"restore the newest controller log (docs/operations.md), then {COMPUTE}")


def _of_the_bucket(f: Overview) -> Iterator[Cause]:
    if f.set_back:
        remedy = f"put the newest log of that journal back (docs/operations.md), then {COMPUTE}"
        yield Cause(SET_BACK_JOURNAL, f.set_back, remedy)
    for key in _keys_in(f, "compute-watermark"):
        parsed = f.layout.parse(key)
        if not f.external_log and parsed is not None and parsed.epoch > f.cluster_epoch >= f.highest[0]:
            detail = (
                f"the key {key} claims epoch {parsed.epoch}, above the cluster epoch {f.cluster_epoch}; M is refused"
            )
            yield Cause(POISONED_KEY, detail, f"remove that object if it is not l0gc's, then {COMPUTE}")
    if f.damaged_journals:
        remedy = f"restore that object from a version or a backup, then {HOUSEKEEP} && {COMPUTE}"
        yield Cause(DAMAGED_JOURNAL, _first(f.damaged_journals), remedy)
    if unreadable := [e for e in f.errors if e not in f.damaged_journals]:
        remedy = f"see to what it says, then {HOUSEKEEP} && {COMPUTE}"
        yield Cause(UNREADABLE_JOURNAL, _first(unreadable), remedy)
    if f.damaged:
        ways = f"restore that object from a version or a backup, or give up its records: {f.giving_up} (docs/operations.md)"
        yield Cause(DAMAGED_OBJECT, f.damaged, f"{ways}; then {RECONCILE} && {COMPUTE}")


def _first(errors: Sequence[str]) -> str:
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{errors[0]}{more}"


def _keys_in(f: Overview, command: str) -> list[str]:
    """The L0 keys that the last run of a command failed over."""
    attempt = f.last(command)
    words = attempt.error.split() if attempt is not None else []
    return [w for w in (word.strip(",;:'") for word in words) if f.layout.parse(w) is not None]


# -- time ---------------------------------------------------------------------------------------------------------------


def _of_time(f: Overview) -> Iterator[Cause]:
    ahead_ms = f.epoch_ms - f.as_of_ms
    if ahead_ms > SKEW_MS:
        detail = (
            f"the last entry of the controller log is {span(ahead_ms)} ahead of the store's clock, which went back: no "
            "tick is due until then"
        )
        yield Cause(STORE_CLOCK, detail, f"{BARRIER} && {COMPUTE}")
    elif -ahead_ms > TICKS_LATE * max(f.interval_ms, _LEAST_INTERVAL_MS):
        detail = f"the epoch has not moved for {span(-ahead_ms)}; {_ran(f, 'housekeep')}"
        yield Cause(HOUSEKEEP_OVERDUE, detail, f"{HOUSEKEEP} && {COMPUTE}")


def _ran(f: Overview, command: str) -> str:
    attempt = f.last(command)
    if attempt is None:
        return f"no {command} is on record"
    how = "ended" if attempt.ok else "failed"
    return f"the last {command} {how} {span(f.as_of_ms - attempt.ended_ms)} ago"


# -- partitions ---------------------------------------------------------------------------------------------------------


def _of_partitions(f: Overview) -> Iterator[Cause]:
    if f.computable_watermark is None or f.cluster_epoch - f.computable_watermark <= NORMAL_LAG:
        return
    by_data = [h for h in f.held_back_by if h.kind == UNRECONCILED]
    idle = [h for h in f.held_back_by if h.kind == IDLE]
    by_pins = [h for h in f.held_back_by if h.kind == PINNED]
    remedy = _moving(f, by_data)
    if by_data and not f.damaged:
        records = count(sum(h.unreconciled_records for h in by_data), "record")
        held = f"{_some(f, by_data)} at {f.computable_watermark}: {_at_least(f)}{records} not in L1 yet"
        if failed := f.failed("reconcile"):
            detail = f"{held}, and {_ran(f, 'reconcile')}: {failed.error}"
            yield Cause(RECONCILE_FAILED, detail, f"see to what it says, then {remedy}")
        else:
            yield Cause(UNRECONCILED_DATA, f"{held}; {_ran(f, 'reconcile')}", remedy)
    if idle:
        still = f"idle, but may still take epoch {f.computable_watermark + 1}"
        detail = f"{_some(f, idle)} at {f.computable_watermark}: {still}; {_ran(f, 'housekeep')}"
        yield Cause(IDLE_WINDOW, detail, remedy)
    if by_pins:
        yield from _of_pins(f, by_pins)


def _of_pins(f: Overview, pins: Sequence[Holder]) -> Iterator[Cause]:
    more = f" and {count(len(pins) - 1, 'other pin')}" if len(pins) > 1 else ""
    detail = f"{pins[0].reason.partition(' (')[0]}{more} at {f.computable_watermark}: M does not pass what a pin needs"
    yield Cause(PINNED_M, detail, f"wait until it ends, or delete it with l0gc pin delete, then {COMPUTE}")


def _moving(f: Overview, by_data: Sequence[Holder]) -> str:
    """What makes M move, if it has to leave all of these behind at once.

    A plain housekeeping puts the newest epoch of a window in the place of the oldest; where that is not above the epoch that
    M waits for, or the cluster has no newer one, only a barrier moves it at once.
    """
    steps = [RECONCILE] if by_data else []
    if f.windows:
        assert f.computable_watermark is not None
        due = tick_is_due(f.as_of_ms - f.epoch_ms, f.interval_ms)
        slides = all(w.newest > f.computable_watermark + 1 and (f.cluster_epoch > w.newest or due) for w in f.windows)
        steps.append(HOUSEKEEP if slides else BARRIER)
    return " && ".join([*steps, COMPUTE])


def _at_least(f: Overview) -> str:
    """Where there are more partitions than are named."""
    return "at least " if f.held_partitions > len(f.held_back_by) else ""


def _some(f: Overview, holders: Sequence[Holder]) -> str:
    """The first of them by name, and how many more; where all that are named are of one kind, the others count with them."""
    alone = len(holders) == len(f.held_back_by)
    more = (f.held_partitions if alone else len(holders)) - 1
    if more < 1:
        return holders[0].name
    return f"{holders[0].name} and {'' if alone else _at_least(f)}{more:,} more"


# -- M ------------------------------------------------------------------------------------------------------------------


def _of_m(f: Overview, others: set[str]) -> Iterator[Cause]:
    """What the journals allow, and what is published does not."""
    if f.computable_watermark is None or others & _M_REFUSED or f.failed("compute-watermark"):
        return
    if f.watermark < min(f.computable_watermark, f.cluster_epoch - NORMAL_LAG):
        published = f"{f.watermark} is published" if f.watermark >= 0 else "none is published"
        detail = f"M could be {f.computable_watermark} and {published}; {_ran(f, 'compute-watermark')}"
        yield Cause(NOT_COMPUTED, detail, COMPUTE)


# -- failed runs, and sweeps --------------------------------------------------------------------------------------------


def _of_failed_runs(f: Overview, others: set[str]) -> Iterator[Cause]:
    """What no better cause explains; the run's own words are the sentence."""
    compute = THEIR_COMPUTE if f.external_log else f"{HOUSEKEEP} && {COMPUTE}"
    journals = {DAMAGED_JOURNAL, UNREADABLE_JOURNAL, SET_BACK_JOURNAL}
    rows = (
        ("housekeep", HOUSEKEEP_FAILED, HOUSEKEEP, journals | {OLD_CONTROLLER, HOUSEKEEP_OVERDUE}),
        ("reconcile", RECONCILE_FAILED, RECONCILE, journals | {DAMAGED_OBJECT, RECONCILE_FAILED}),
        ("compute-watermark", COMPUTE_FAILED, compute, _M_REFUSED),
    )
    for command, code, remedy, explained in rows:
        attempt = f.failed(command)
        if attempt is not None and not others & explained:
            yield Cause(code, f"{_ran(f, command)}: {attempt.error}", f"see to what it says, then {remedy}")


def _of_sweeps(f: Overview) -> Iterator[Cause]:
    if f.paused is not None:
        yield Cause(PAUSED, f"sweeps are paused: {describe_pause(f.paused)}", RESUME)
    elif attempt := f.failed("sweep"):
        yield Cause(SWEEP_FAILED, f"{_ran(f, 'sweep')}: {attempt.error}", f"see to what it says, then {SWEEP}")
