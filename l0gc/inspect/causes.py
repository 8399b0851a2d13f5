"""Determine why M does not move or L0 is not swept, and the remedy (pure).

Each cause has a stable code, a sentence and a remedy: commands joined by ` && `, or the step that an operator must take
before them. `watermark/source.py` determines which partitions hold M, and why; this module draws the conclusions. In a
healthy cluster, M is two epochs behind, since each window spans two. Anything that holds M further back is a cause.
`CAUSES` has a row for each code, and docs/work/operate-m.md shows these rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from l0gc.collect.deletion import describe_pause
from l0gc.errors import fault_of
from l0gc.formatting import as_duration, count, span
from l0gc.inspect.laggards import COMPUTE, RECONCILE
from l0gc.inspect.overview import Cause, Overview, ahead_text
from l0gc.streamlog.controller.decisions import tick_is_due
from l0gc.watermark.source import IDLE, PINNED, RESTORE_CONTROLLER, UNRECONCILED, Holder

NORMAL_LAG: Final = 2
"""How many epochs M is behind in a healthy cluster, since the window of each journal spans two."""
SKEW_MS: Final = 60_000
"""The error of a clock above which it is reported."""
TICKS_LATE: Final = 3
"""The number of epoch intervals without a tick after which housekeeping counts as not running."""
_LEAST_INTERVAL_MS: Final = 60_000

FOREIGN_WATERMARK: Final = "foreign_watermark"
DAMAGED_WATERMARK: Final = "damaged_watermark"
UNREADABLE_WATERMARK: Final = "unreadable_watermark"
LOST_WATERMARK: Final = "lost_watermark"
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
BROUGHT_BACK: Final = "brought_back"

M_REFUSED: Final = frozenset({
    FOREIGN_WATERMARK, DAMAGED_WATERMARK, UNREADABLE_WATERMARK, LOST_WATERMARK, OLD_CONTROLLER, SET_BACK_JOURNAL,
    POISONED_KEY,
})  # fmt: skip
"""The causes that prevent the publication of M."""
UNSAFE: Final = M_REFUSED | {DAMAGED_JOURNAL, UNREADABLE_JOURNAL, DAMAGED_OBJECT}
"""The causes for things that are damaged, were set back or belong to another cluster. Commands refuse or skip these,
and fail.
"""

HOUSEKEEP: Final = "l0gc housekeep"
BARRIER: Final = "l0gc housekeep --barrier"
SWEEP: Final = "l0gc sweep"
RESUME: Final = "wait until its reason no longer holds, then l0gc resume"
UNPIN: Final = f"wait until the pin ends, or delete it with l0gc pin delete, then {COMPUTE}"
PUT_BACK: Final = f"put the newest log of that journal back (l0gc help operate-logs), then {COMPUTE}"
THEIR_COMPUTE: Final = "l0gc compute-watermark --reports PATH --partitions PATH"
GC_BARRIER: Final = "l0gc gc --housekeep-barrier"
NOTHING: Final = "nothing"
"""The start of the text if no step is needed, since held objects become free in time; the sentence gives the time."""

WAITS_FOR: Final = {
    UNRECONCILED_DATA: RECONCILE,
    IDLE_WINDOW: HOUSEKEEP,
    NOT_COMPUTED: COMPUTE,
    PAUSED: "l0gc resume",
}
"""The causes that later runs end, and the run that ends each; any other cause needs an operator."""


class CauseRow(NamedTuple):
    """The meaning of a code, and its remedy, for the documents."""

    meaning: str
    remedy: str


_FIRST: Final = "Fix the error that it names, then"
CAUSES: Final = {
    FOREIGN_WATERMARK: CauseRow(
        "`published.json` belongs to another cluster.",
        f"Find out who copied it here. Restore this cluster's own file or, without a backup, replace it with the copy by "
        f"`{COMPUTE} --accept-lost`.",
    ),
    DAMAGED_WATERMARK: CauseRow(
        "`published.json` cannot be read.",
        f"Restore it or, without a backup, replace it with the copy by `{COMPUTE} --accept-lost`.",
    ),
    UNREADABLE_WATERMARK: CauseRow("The store refused to read `published.json`.", f"{_FIRST} `{COMPUTE}`."),
    LOST_WATERMARK: CauseRow(
        "`published.json` is gone, though M was published before. Nothing is deleted.",
        f"Restore it, or make sure that no log was restored from a backup, then `{COMPUTE} --accept-lost`.",
    ),
    OLD_CONTROLLER: CauseRow(
        "The published M or a journal is ahead of the controller log, which was set back.",
        f"Restore the newest controller log, then `{COMPUTE}`.",
    ),
    SET_BACK_JOURNAL: CauseRow(
        "A journal was set back: its log lacks an entry that was read before, or may need an epoch that M has passed.",
        f"Put the newest log back, then `{COMPUTE}`.",
    ),
    POISONED_KEY: CauseRow(
        "An object's key claims an epoch that the cluster has not reached, so M was refused.",
        f"Restore the newest controller log, or have the owner of a foreign object move it out of the L0 folder, then "
        f"`{COMPUTE}`.",
    ),
    DAMAGED_JOURNAL: CauseRow(
        "An object of a journal is damaged.", f"Restore that object, then `{HOUSEKEEP} && {COMPUTE}`."
    ),
    UNREADABLE_JOURNAL: CauseRow("The store refused to read a journal.", f"{_FIRST} `{HOUSEKEEP} && {COMPUTE}`."),
    DAMAGED_OBJECT: CauseRow(
        "An L0 object with records that are not in L1 is missing or damaged, so reconcile skips them.",
        f"Restore it, or give up its records, then `{RECONCILE} && {COMPUTE}`.",
    ),
    STORE_CLOCK: CauseRow(
        "The controller log's last entry is more than a minute ahead of the store's clock, so no tick is due.",
        f"Set the store's clock. `{BARRIER} && {COMPUTE}` ticks in any case.",
    ),
    HOUSEKEEP_OVERDUE: CauseRow(
        "The epoch has not advanced for three times `--epoch-interval`.",
        f"`{HOUSEKEEP} && {COMPUTE}`; find out why the job does not run.",
    ),
    HOUSEKEEP_FAILED: CauseRow("The last housekeep failed.", f"{_FIRST} `{HOUSEKEEP}`."),
    UNRECONCILED_DATA: CauseRow(
        "Records that are not in L1 hold M.",
        f"`{RECONCILE} && {COMPUTE}`; if that does not help, reconcile is too slow or does not run.",
    ),
    RECONCILE_FAILED: CauseRow("The last reconcile failed.", f"{_FIRST} `{RECONCILE} && {COMPUTE}`."),
    IDLE_WINDOW: CauseRow(
        "A journal's window is far behind, since nothing was uploaded and housekeeping has not advanced it.",
        f"`{HOUSEKEEP} && {COMPUTE}`, or with `--barrier` if the window would not move at once.",
    ),
    PINNED_M: CauseRow(
        "A pin keeps M from moving.",
        f"Wait until it ends, or, if nobody needs it, `l0gc pin delete NAME && {COMPUTE}`.",
    ),
    NOT_COMPUTED: CauseRow(
        "The journals allow a higher M than is published.", f"`{COMPUTE}`; find out why the job does not run."
    ),
    COMPUTE_FAILED: CauseRow("The last compute-watermark failed.", f"{_FIRST} `{HOUSEKEEP} && {COMPUTE}`."),
    PAUSED: CauseRow("Sweeps are paused. M still moves.", "Wait until the reason is gone, then `l0gc resume`."),
    SWEEP_FAILED: CauseRow("The last sweep failed. M still moves.", f"{_FIRST} `{SWEEP}`."),
    DAMAGED_RECORD: CauseRow(
        "A warning: the record of a past sweep cannot be read, so its deletions are unknown.",
        "Restore that `run.json` from a version or a backup, or wait until `l0gc vacuum` deletes it with the other old "
        "records.",
    ),
    UNCLOSED_TOPIC: CauseRow(
        "A warning: a journal has not closed a topic that was deleted more than a day ago. The topic's L1 objects stay.",
        f"`{HOUSEKEEP}` closes it, or prints why it cannot.",
    ),
    OVERDUE_TABLE: CauseRow(
        "A warning: a table was not synced when it was due, or its topic was deleted. Once its pins end, its readers may "
        "miss objects.",
        "`l0gc table sync`, or `l0gc table drop` if its topic was deleted.",
    ),
    BROUGHT_BACK: CauseRow(
        "A warning: `l0gc undelete` has brought objects back, and the next run of that kind deletes them again.",
        "Copy them first, or `l0gc pause --why TEXT`.",
    ),
    LOCAL_CLOCK: CauseRow(
        "A warning: this machine's clock is more than a minute off. Ticks and ages use the store's clock.",
        "Set it (NTP): S3 refuses requests from a clock that is 15 minutes off.",
    ),
}
"""All codes, in the order of the table in docs/work/operate-m.md."""
CODES: Final = tuple(CAUSES)


_LATER: Final = {HOUSEKEEP_OVERDUE, UNRECONCILED_DATA, IDLE_WINDOW, PINNED_M, NOT_COMPUTED}
"""The causes that only hold M. Objects that the published M allows are deleted first."""


def find_causes(o: Overview) -> list[Cause]:
    """Return the causes that hold M or the sweep, the most urgent first."""
    causes = [*_of_the_watermark(o), *_of_the_bucket(o)]
    if not o.external_log:
        causes += [*_clock_causes(o), *_of_partitions(o), *_of_m(o, {c.cause for c in causes})]
    return [*causes, *_of_failed_runs(o, {c.cause for c in causes}), *_of_sweeps(o)]


def find_warnings(o: Overview) -> list[Cause]:
    """Return problems that do not hold M or the sweep."""
    warnings = []
    if o.damaged_record:
        remedy = (
            "restore that record from a version or a backup, or wait until l0gc vacuum deletes it with other old ones"
        )
        warnings.append(Cause(DAMAGED_RECORD, o.damaged_record, remedy))
    if o.unclosed:
        warnings.append(
            Cause(UNCLOSED_TOPIC, _first(o.unclosed), f"{HOUSEKEEP}, which closes it, or reports why it cannot")
        )
    warnings += [Cause(OVERDUE_TABLE, t.sentence, t.remedy) for t in o.tables if t.overdue]
    warnings += _brought_back(o)
    skew = clock_skew(o.local_ms, o.as_of_ms)
    return warnings if skew is None else [*warnings, skew]


def _brought_back(o: Overview) -> Iterator[Cause]:
    """Yield a warning about the newest undelete, unless a run of the kind that it undid has begun since."""
    ended = [r.summary for r in o.runs if r.summary is not None]
    undone = next((s for s in reversed(ended) if s.of_run), None)
    if undone is None:
        return
    since = (
        s for s in ended if s.started_ms >= undone.ended_ms and s.run_id != undone.of_run
    )  # times are in whole seconds
    if any(s.command == undone.of_command for s in since):
        return
    again = "it" if undone.restored.objects == 1 else "them"
    detail = (
        f"{count(undone.restored.objects, 'object')} of run {undone.of_run} came back with an undelete "
        f"{span(o.as_of_ms - undone.ended_ms)} ago; the next {undone.of_command} deletes {again} again"
    )
    yield Cause(BROUGHT_BACK, detail, f"copy {again} first, or run l0gc pause --why TEXT")


def clock_skew(local_ms: int, store_ms: int) -> Cause | None:
    """Return a warning if this machine's clock is wrong; None if it is roughly right."""
    skew_ms = local_ms - store_ms
    if abs(skew_ms) <= SKEW_MS:
        return None
    detail = (
        f"this machine's clock is {abs(skew_ms) / 1000:,.0f} s {'ahead of' if skew_ms > 0 else 'behind'} the "
        f"store's; it does not hold M, since ticks, ages and the times of records use the store's clock, "
        f"but S3 refuses requests from a difference of 15 minutes on"
    )
    return Cause(LOCAL_CLOCK, detail, "set the clock (NTP)")


def blocking_cause(o: Overview) -> Cause | None:
    """Return the first cause that prevents publications of M or deletions by it."""
    return next((c for c in o.causes if c.cause in M_REFUSED), None)


def next_step(o: Overview, causes: Sequence[Cause]) -> str:
    """Return the next thing to do: the first cause's remedy, or the next step of the usual order."""
    if o.left_objects and {c.cause for c in causes} <= _LATER:
        return _next_sweep(o)
    if causes:
        return causes[0].remedy
    if o.external_log:
        return _next_sweep(o) if o.left_objects > 0 else THEIR_COMPUTE
    if o.computable_watermark is not None and o.computable_watermark > o.watermark and not o.idle:
        return COMPUTE
    if o.unreconciled_records:
        return RECONCILE
    return _next_sweep(o) if o.left_objects > 0 else _waiting(o)


def sweep_as_before(o: Overview) -> str:
    """Return the sweep with the caution of the last one, since an operator may not trust any other sweep yet."""
    last = o.last("sweep")
    if last is None or not (last.shadow or last.leaves_s):
        return SWEEP
    return f"{SWEEP} --shadow" if last.shadow else f"{SWEEP} --grace {as_duration(last.leaves_s)}"


def _next_sweep(o: Overview) -> str:
    """Return the sweep to run now, or a text that nothing is to be done, since regular sweeps leave objects that M
    allows.
    """
    last = o.last("sweep")
    if last is None or not (last.shadow or last.leaves_s):
        return SWEEP
    if last.shadow:
        return f"{NOTHING} to do: sweeps are shadow runs, which delete nothing; l0gc verify --shadow checks them"
    return f"{NOTHING} to do: sweeps leave what M has allowed for less than {as_duration(last.leaves_s)}"


def _waiting(o: Overview) -> str:
    """Return a sentence that nothing is to be done, and when held objects become garbage if `l0gc gc` runs at each
    tick.
    """
    if not o.held_objects:
        return NOTHING
    objects = count(sum(o.held_objects.values()), "object")
    age_ms = o.as_of_ms - o.epoch_ms
    first, last = (free_in(n, age_ms, o.interval_ms) for n in (min(o.held_objects), max(o.held_objects)))
    becomes = "becomes" if sum(o.held_objects.values()) == 1 else "become"
    when = last if first == last else f"{last.replace('in', 'within', 1)}, the first {first}"
    return f"{NOTHING} to do: {objects} {becomes} garbage {when}, or now with {GC_BARRIER}"


def free_in(ticks: int, age_ms: int, interval_ms: int) -> str:
    """Return when objects held for this many ticks become garbage, if `l0gc gc` runs whenever a tick is due.

    Args:
        age_ms: how long ago the cluster epoch began.
    """
    first_ms = 0 if tick_is_due(age_ms, interval_ms) else interval_ms - age_ms
    ms = first_ms + (ticks - 1) * interval_ms if ticks else 0
    return f"in about {span(ms)}" if ms >= 1000 else "with the next l0gc gc"


# -- what is published, and what is in the bucket -----------------------------------------------------------------------


def _of_the_watermark(o: Overview) -> Iterator[Cause]:
    if o.watermark_error is not None:
        code, text = o.watermark_error
        compute = THEIR_COMPUTE if o.external_log else COMPUTE
        ways_out = {
            FOREIGN_WATERMARK: "restore this cluster's own, or accept the loss",
            UNREADABLE_WATERMARK: "fix what it reports",
            LOST_WATERMARK: "restore it, or make sure that no log was restored from a backup",
            DAMAGED_WATERMARK: "restore it from a version or a backup, or accept the loss",
        }
        accept = "" if code == UNREADABLE_WATERMARK else " --accept-lost"
        yield Cause(code, fault_of(text), f"{ways_out[code]}, then {compute}{accept}")
        return
    highest, where = o.highest
    if o.external_log or (highest <= o.cluster_epoch and not o.forgotten):
        return
    evidence = ahead_text(where, highest, o.cluster_epoch) if highest > o.cluster_epoch else o.forgotten
    detail = f"{evidence}: the controller log went back, as from a backup"
    yield Cause(OLD_CONTROLLER, detail, f"restore the newest controller log (l0gc help operate-logs), then {COMPUTE}")


def _of_the_bucket(o: Overview) -> Iterator[Cause]:
    if o.set_back:
        yield Cause(SET_BACK_JOURNAL, o.set_back, PUT_BACK)
    for key in _keys_in(o, "compute-watermark"):
        parsed = o.layout.parse(key)
        if not o.external_log and parsed is not None and parsed.epoch > o.cluster_epoch >= o.highest[0]:
            yield poisoned(key, parsed.epoch, o.cluster_epoch)
    if o.damaged_journals:
        remedy = f"restore that object from a version or a backup, then {HOUSEKEEP} && {COMPUTE}"
        yield Cause(DAMAGED_JOURNAL, _first([*map(fault_of, o.damaged_journals)]), remedy)
    if unreadable := [e for e in o.errors if e not in o.damaged_journals]:
        remedy = f"fix what it reports, then {HOUSEKEEP} && {COMPUTE}"
        yield Cause(UNREADABLE_JOURNAL, _first(unreadable), remedy)
    if o.damaged:
        ways = f"restore that object from a version or a backup, or give up its records: {o.giving_up}"
        yield Cause(DAMAGED_OBJECT, o.damaged, f"{ways} (l0gc help operate-lost); then {RECONCILE} && {COMPUTE}")


def _first(errors: Sequence[str]) -> str:
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{errors[0]}{more}"


def poisoned(key: str, epoch: int, cluster_epoch: int) -> Cause:
    """Return the cause for an L0 key with an epoch that the cluster has not reached."""
    detail = f"the key {key} claims epoch {epoch}, above the cluster epoch {cluster_epoch}; M is refused"
    remedy = f"{RESTORE_CONTROLLER}, then {COMPUTE}"
    return Cause(POISONED_KEY, detail, remedy)


def _keys_in(o: Overview, command: str) -> list[str]:
    """Return the L0 keys on which the last run of a command failed."""
    attempt = o.last(command)
    words = attempt.error.split() if attempt is not None else []
    return [w for w in (word.strip(",;:'") for word in words) if o.layout.parse(w) is not None]


# -- time ---------------------------------------------------------------------------------------------------------------


def _clock_causes(o: Overview) -> Iterator[Cause]:
    ahead_ms = o.epoch_ms - o.as_of_ms
    if ahead_ms > SKEW_MS:
        detail = (
            f"the last entry of the controller log is {span(ahead_ms)} ahead of the store's clock, which went back: no "
            "tick is due until then"
        )
        yield Cause(STORE_CLOCK, detail, f"{BARRIER} && {COMPUTE}")
    elif -ahead_ms > TICKS_LATE * max(o.interval_ms, _LEAST_INTERVAL_MS):
        detail = f"the epoch has not moved for {span(-ahead_ms)}; {_ran(o, 'housekeep')}"
        yield Cause(HOUSEKEEP_OVERDUE, detail, f"{HOUSEKEEP} && {COMPUTE}")


def _ran(o: Overview, command: str) -> str:
    attempt = o.last(command)
    if command in o.refused_attempts:
        return f"it is not known when {command} ran last"
    if attempt is None:
        return f"no {command} is on record"
    how = attempt.ended.replace("stopped", "was stopped")
    part = ", of a part," if attempt.part else ""
    return f"the last {command}{part} {how} {span(o.as_of_ms - attempt.ended_ms)} ago"


# -- partitions ---------------------------------------------------------------------------------------------------------


def _of_partitions(o: Overview) -> Iterator[Cause]:
    if o.computable_watermark is None or o.cluster_epoch - o.computable_watermark <= NORMAL_LAG:
        return
    by_data = [h for h in o.held_back_by if h.kind == UNRECONCILED]
    idle = [h for h in o.held_back_by if h.kind == IDLE]
    by_pins = [h for h in o.held_back_by if h.kind == PINNED]
    remedy = _moving(o, by_data)
    if by_data and not o.damaged:
        total = count(sum(h.unreconciled_records for h in by_data), "record")
        records = f"{_some(o, by_data)} at {o.computable_watermark}: {_at_least(o)}{total} not in L1 yet"
        if failed := o.failed("reconcile"):
            detail = f"{records}, and {_ran(o, 'reconcile')}: {failed.error}"
            yield Cause(RECONCILE_FAILED, detail, f"fix what it reports, then {remedy}")
        else:
            yield Cause(UNRECONCILED_DATA, f"{records}; {_ran(o, 'reconcile')}", remedy)
    if idle:
        still = f"idle, but may still take epoch {o.computable_watermark + 1}"
        detail = f"{_some(o, idle)} at {o.computable_watermark}: {still}; {_ran(o, 'housekeep')}"
        yield Cause(IDLE_WINDOW, detail, remedy)
    if by_pins:
        more = f" and {count(len(by_pins) - 1, 'other pin')}" if len(by_pins) > 1 else ""
        pins = f"{by_pins[0].reason.partition(' (')[0]}{more}"
        yield Cause(PINNED_M, f"{pins} at {o.computable_watermark}: M does not pass what a pin needs", UNPIN)


def _moving(o: Overview, by_data: Sequence[Holder]) -> str:
    """Return the command that makes M pass all these partitions at once.

    Housekeeping replaces the oldest epoch of a window with its newest one. Only a barrier moves M at once if the newest
    is not above the epoch for which M waits, or if the cluster has no newer epoch.
    """
    steps = [RECONCILE] if by_data else []
    if o.windows:
        assert o.computable_watermark is not None
        due = tick_is_due(o.as_of_ms - o.epoch_ms, o.interval_ms)
        slides = all(w.newest > o.computable_watermark + 1 and (o.cluster_epoch > w.newest or due) for w in o.windows)
        steps.append(HOUSEKEEP if slides else BARRIER)
    return " && ".join([*steps, COMPUTE])


def _at_least(o: Overview) -> str:
    """Return `at least ` if there are more partitions than are named."""
    return "at least " if o.held_partitions > len(o.held_back_by) else ""


def _some(o: Overview, holders: Sequence[Holder]) -> str:
    """Return the name of the first holder and the number of others. If all named holders have the same kind, the
    unnamed ones count as that kind, too.
    """
    alone = len(holders) == len(o.held_back_by)
    more = (o.held_partitions if alone else len(holders)) - 1
    if more < 1:
        return holders[0].name
    return f"{holders[0].name} and {'' if alone else _at_least(o)}{more:,} more"


# -- M ------------------------------------------------------------------------------------------------------------------


def _of_m(o: Overview, others: set[str]) -> Iterator[Cause]:
    """Yield a cause if the journals allow a higher M than the published one."""
    if o.computable_watermark is None or others & M_REFUSED or o.failed("compute-watermark"):
        return
    if not o.idle and o.watermark < min(o.computable_watermark, o.cluster_epoch - NORMAL_LAG):
        published = f"{o.watermark} is published" if o.watermark >= 0 else "none is published"
        detail = f"M could be {o.computable_watermark} and {published}; {_ran(o, 'compute-watermark')}"
        yield Cause(NOT_COMPUTED, detail, COMPUTE)


# -- failed runs, and sweeps --------------------------------------------------------------------------------------------


def _of_failed_runs(o: Overview, others: set[str]) -> Iterator[Cause]:
    """Yield causes for failed runs that no other cause explains, with the error of the run."""
    compute = THEIR_COMPUTE if o.external_log else f"{HOUSEKEEP} && {COMPUTE}"
    journals = {DAMAGED_JOURNAL, UNREADABLE_JOURNAL, SET_BACK_JOURNAL}
    rows = (
        ("housekeep", HOUSEKEEP_FAILED, HOUSEKEEP, journals | {OLD_CONTROLLER, HOUSEKEEP_OVERDUE}),
        ("reconcile", RECONCILE_FAILED, RECONCILE, journals | {DAMAGED_OBJECT, RECONCILE_FAILED}),
        ("compute-watermark", COMPUTE_FAILED, compute, M_REFUSED),
    )
    for command, code, remedy, explained in rows:
        attempt = o.failed(command)
        if attempt is not None and not others & explained:
            yield Cause(code, f"{_ran(o, command)}: {attempt.error}", f"fix what it reports, then {remedy}")


def _of_sweeps(o: Overview) -> Iterator[Cause]:
    if o.paused is not None:
        yield Cause(PAUSED, f"sweeps are paused: {describe_pause(o.paused)}", RESUME)
    elif attempt := o.failed("sweep"):
        yield Cause(
            SWEEP_FAILED, f"{_ran(o, 'sweep')}: {attempt.error}", f"fix what it reports, then {sweep_as_before(o)}"
        )
