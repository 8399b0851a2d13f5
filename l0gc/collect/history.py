"""Read from their records what past runs did; undo deletions, with a record of that; find old records.

A killed run leaves objects as `planned`, and an unanswered request leaves them as `failed`. The bucket shows whether
those are gone, so reports are correct. An undelete removes only delete markers that the run created. An object that it
restores existed before; since M has passed it, the next sweep deletes it again. `gc` resets its note of what was swept,
so that its next run lists the bucket.

Deleting old run records and old scan snapshots is safe, because neither deletions nor the computation of M read them.
Each kind expires by age, by the store's clock, and by number. The records of the newest runs always stay, including this
run's. No record is kept of deleted records and snapshots: it would be the next to expire.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final, NamedTuple

import msgspec

from l0gc.collect.deletion import Deletable
from l0gc.collect.gc_steps import STEPS, SWEEP, UNDELETE, GcNote
from l0gc.collect.plan import NOTHING_KNOWN, RATIO, DeletionPlan
from l0gc.collect.plan import run_id as new_run_id
from l0gc.collect.record import (
    DELETED,
    DONE,
    LEFT,
    PLANNED,
    VERSIONS,
    ObjectTotals,
    RecordedObject,
    Records,
    RunSummary,
    attempt_key,
    folder,
    read_segment,
    read_summary,
    summary_key,
    write_gc_note,
    write_summary,
)
from l0gc.epoch import NO_WATERMARK
from l0gc.errors import (
    AccessDeniedError,
    CorruptObjectError,
    NotFoundError,
    PartialFailureError,
    StoreError,
    UsageError,
)
from l0gc.formatting import Outcome, count, moment, size
from l0gc.keys import ATTEMPTS, RUNS, SCANS, SHADOW
from l0gc.operations import Vacuum
from l0gc.storage.objectstore import (
    ENABLED,
    OFF,
    PAGE_SIZE,
    DeleteFailure,
    ListedPage,
    ObjectStore,
    VersionedKey,
    if_there,
)
from l0gc.storage.parallel import Parallel
from l0gc.watermark.scans import old_scans
from l0gc.watermark.source import ClusterView

_FAILURES_SHOWN: Final = 20
_RUN_KEY: Final = re.compile(rf"{RUNS}((?:{SHADOW})?)([0-9]{{8}}T[0-9]{{6}}Z-[0-9a-f]{{8}})/.+")
RESTORED: Final = "restored"
"""The status of an object that a run deleted and that exists again."""
_NO_ID: Final = {"", "null"}
"""The id of a delete marker that is unknown, or that a later write replaces because versioning is suspended."""
KEEP_RUNS: Final = 10_000
"""The most runs whose records are kept, and the most shadow runs."""
_SEGMENTS_AT_ONCE: Final = 8
_CLOCKS_MS: Final = 3_000
"""A shadow run may have missed what was changed this shortly before it began: the log's time is accurate to 2 s, and
the store's times are in whole seconds.
"""


@dataclass
class RunEntry(Outcome):
    """One run; `summary` is None if it did not finish, or has not yet, or if it cannot be read, for the reason `damage`.

    Attributes:
        run_id: The run.
        started_ms: When it began.
        ended_ms: When it ended; null if it was killed or is still running. So are the next fields up to `limited_by`,
            but `outcome`.
        outcome: `done`, `stopped` by a signal or a pause, `failed` by an error, `damaged` if its `run.json` cannot be
            read, or `killed`, which it is called, too, while it runs.
        command: `sweep`, `vacuum`, or `undelete` of another run.
        purge_versions: Whether it removed versions for good.
        kinds: The `objects` and `bytes` of each kind that a vacuum deleted.
        engine: `local` or `spark`.
        watermark: The M that was published.
        bound: The highest epoch that a sweep was to delete: M, or `--up-to`.
        deleted: The objects that it reported as deleted at its end.
        bytes: Their size.
        failed: The objects that it reported as failed.
        limited_by: The option whose limit left some of what was eligible; empty if none did.
        of_run: Of an undelete: the run whose objects it brought back; else empty.
        restored: Of an undelete: how many `objects` it brought back, and their `bytes`.
        segments: Parquet files of the record.
    """

    run_id: str
    started_ms: int
    segments: int
    summary: RunSummary | None
    damage: str = ""
    ended_ms: int | None = field(init=False, default=None)
    outcome: str = field(init=False, default="killed")
    command: str | None = field(init=False, default=None)
    purge_versions: bool | None = field(init=False, default=None)
    kinds: dict[str, ObjectTotals] = field(init=False, default_factory=dict)
    engine: str | None = field(init=False, default=None)
    watermark: int | None = field(init=False, default=None)
    bound: int | None = field(init=False, default=None)
    deleted: int | None = field(init=False, default=None)
    bytes: int | None = field(init=False, default=None)
    failed: int | None = field(init=False, default=None)
    limited_by: str | None = field(init=False, default=None)
    of_run: str | None = field(init=False, default=None)
    restored: ObjectTotals | None = field(init=False, default=None)
    hidden: ClassVar[frozenset[str]] = frozenset({"summary", "damage"})

    def __post_init__(self) -> None:
        self.outcome = "damaged" if self.damage else self.outcome
        for f in fields(self) if self.summary is not None else ():
            if not f.init:
                setattr(self, f.name, getattr(self.summary, "objects" if f.name == "deleted" else f.name))


@dataclass(frozen=True, slots=True)
class RunList(Outcome):
    """The newest runs that left a record, the oldest first.

    Attributes:
        runs: Each with the fields of `runs show` up to `segments`.
        total: How many are on record.
    """

    runs: list[RunEntry]
    total: int


@dataclass
class RunDetail(RunEntry):
    """One run, object by object.

    Attributes:
        by_status: Objects `deleted`, `failed` and `left`, by the record and, where it is uncertain, by the bucket. What came
            back since is in `undeletes`.
        deleted_bytes: The size of those deleted.
        lowest_epoch: The lowest epoch of those deleted; -1 for none.
        highest_epoch: The highest.
        sample: The first ten objects, each with `key`, `epoch`, `size`, `modified_ms`, `version_id`, `status` and
            `deleted_ms`; -1 and empty where that is not known.
        undeletes: The runs of `undelete` that brought objects of it back, oldest first, each as in `runs list`.
    """

    by_status: Counter[str] = field(default_factory=Counter)
    deleted_bytes: int = 0
    lowest_epoch: int = -1
    highest_epoch: int = -1
    sample: list[RecordedObject] = field(default_factory=list)
    undeletes: list[RunEntry] = field(default_factory=list)


class KeyInRun(RecordedObject, Outcome, frozen=True, kw_only=True):
    """One object in the record of a run.

    Attributes:
        run_id: The run.
        command: `sweep` or `vacuum`; `null` for a killed run.
        key: The object.
        epoch: The epoch of its key; -1 where it is not an L0 object.
        size: Its bytes.
        modified_ms: When it was written.
        version_id: Its delete marker's version, or the version that was removed; empty if neither is known.
        status: `deleted`; `left` if the run left it; `restored` if the run deleted it and it exists again.
        deleted_ms: When it was deleted; -1 if that is not known.
        kept: Whether the bucket keeps what it deleted as a version, so that `undelete` may bring it back.
    """

    run_id: str
    command: str | None
    kept: bool

    @property
    def sentence(self) -> str:
        """Return a sentence on what the run did, and whether it can be undone."""
        run = f"run {self.run_id} ({self.command or 'killed'})"
        if self.status == LEFT:
            return f"{run} planned to delete it ({size(self.size)}), but left it"
        when = f" at {moment(self.deleted_ms)}" if self.deleted_ms >= 0 else ""
        if self.status == RESTORED:
            return f"{run} deleted it ({size(self.size)}){when}, and it exists again"
        undo = f"l0gc undelete --run {self.run_id} brings back what the run deleted"
        back = undo if self.kept else "no version of it was kept, so only a backup brings it back"
        return f"{run} deleted it ({size(self.size)}){when}; {back}"


@dataclass
class UndeleteResult(Outcome):
    """The result of an undelete: `restored` objects exist again; `gone` are those whose versions had been removed.

    Attributes:
        run_id: The run.
        restored: Objects that are there again.
        gone: Objects that did not come back: their versions have since been removed, or were written while versioning
            was suspended. With any, exit code 3.
        already: Objects that were back before, by an earlier `undelete`.
        again: The later runs that deleted objects of this one once more, each with `run_id` and `objects`: take those
            runs back, too. With any, exit code 3.
        failed: Markers that could not be removed. With any, exit code 3.
        failures: Up to 20 of them, each with `key`, `code`, `message` and `version_id`.
        command: What made the run: `sweep` or `vacuum`.
        bytes: The size of those that are there again.
    """

    run_id: str
    restored: int = 0
    bytes: int = 0
    gone: int = 0
    already: int = 0
    again: Counter[str] = field(default_factory=Counter)
    command: str = SWEEP
    failures: list[DeleteFailure] = field(default_factory=list)
    derived: ClassVar[tuple[str, ...]] = ("failed",)

    @property
    def failed(self) -> int:
        return len(self.failures)

    @property
    def problem(self) -> PartialFailureError | None:
        """Return, in one sentence, which markers stay, or how many objects could not be restored."""
        if self.failures:
            markers, first = count(len(self.failures), "marker"), self.failures[0]
            return PartialFailureError(f"{markers} could not be removed; the first is of {first.key}: {first.why}")
        if missing := self.gone + self.again.total():
            return PartialFailureError(f"{count(missing, 'object')} of run {self.run_id} did not come back")
        return None

    def to_json(self) -> dict[str, Any]:
        """Return the fields, with the first failures only."""
        return super().to_json() | {
            "again": [{"run_id": run, "objects": objects} for run, objects in sorted(self.again.items())],
            "failures": [msgspec.to_builtins(f) for f in self.failures[:_FAILURES_SHOWN]],
        }


def started_ms(run_id: str) -> int:
    """Return when a run began, from its name."""
    # strptime takes ten times as long, and a listing calls this for each object of a record.
    return int(datetime.fromisoformat(run_id.removeprefix(SHADOW).split("-", maxsplit=1)[0]).timestamp() * 1000)


def run_of(key: str, *, shadow: bool = False) -> str | None:
    """Return the run whose record the object `key` belongs to, or None.

    Args:
        shadow: return the shadow run instead, which deleted nothing.
    """
    m = _RUN_KEY.fullmatch(key)
    if m is None or bool(m[1]) != shadow:
        return None
    try:
        started_ms(m[2])
    except ValueError:  # a name of a record's form with a month 13
        return None
    return m[1] + m[2]


# -- list and show ------------------------------------------------------------------------------------------------------


def newest_runs(records: Records, last: int, now_ms: int) -> list[RunEntry]:
    """Return the `last` newest runs, the oldest first. Searches the last day, then the last week, then all runs."""
    for days in (1, 7):
        since = datetime.fromtimestamp(now_ms / 1000, UTC) - timedelta(days=days)
        runs, total = list_runs(records, last, f"{RUNS}{since:%Y%m%dT%H%M%SZ}")
        if total >= last:
            return runs
    return list_runs(records, last)[0]


_RECENT: Final = 100
"""The runs whose deletions are usual; `gc` every ten minutes makes more than these in a busy day."""


def usual_objects(cluster: ClusterView, command: str, now_ms: int, kinds: Sequence[str] = ()) -> int:
    """Return how many objects a run of a command may delete without being unusual: twice the most that recent runs deleted
    within as long a time as has passed since the last one that deleted some.

    So what a pin, a pause or a weekend has held back is not unusual. A run that its share ended does not count, and the time
    ends with it: neither a wrong M nor the time until somebody looks raises what the next run may delete.

    Args:
        kinds: the kinds of garbage that count, for a run of several; by default all that it deleted.
    """
    runs, _ = list_runs(cluster.store, _RECENT, parallel=cluster.parallel)
    deletions, until_ms = list[tuple[int, int]](), now_ms
    for run in runs:
        s = run.summary
        if s is None or s.command != command or s.of_run:
            continue
        if s.limited_by == RATIO:
            until_ms = min(until_ms, run.started_ms)
        elif objects := sum(s.kinds[k].objects for k in kinds if k in s.kinds) if kinds else s.objects:
            deletions.append((run.started_ms, objects))
            until_ms = now_ms
    if not deletions:
        return 0
    (first_ms, first), (last_ms, _) = deletions[0], deletions[-1]
    passed_ms, span_ms = max(0, until_ms - last_ms), last_ms - first_ms
    begins, within, most = 0, 0, 0
    for at_ms, objects in deletions:
        within += objects
        while deletions[begins][0] <= at_ms - max(passed_ms, 1):
            within -= deletions[begins][1]
            begins += 1
        most = max(most, within)
    if passed_ms > span_ms > 0:  # longer than the runs on record: at the same rate
        most = max(most, (sum(objects for _, objects in deletions) - first) * passed_ms // span_ms)
    return 2 * most


def list_runs(
    records: Records, last: int, start_after: str = "", *, parallel: Parallel | None = None, shadow: bool = False
) -> tuple[list[RunEntry], int]:
    """Return the `last` newest recorded runs, the oldest first, and the number of all runs.

    A summary that cannot be read hides only its own run.

    Args:
        start_after: only the runs whose records come after this key.
        parallel: reads their summaries concurrently; without it, one after another.
        shadow: list shadow runs instead, which deleted nothing.

    Raises:
        CorruptObjectError: the summary of a shadow run cannot be read; it has the bounds that its proof needs.
    """
    segments, ended = _counted(records, start_after, shadow=shadow)

    def entry(run: str) -> RunEntry:
        try:
            summary, damage = read_summary(records, run) if run in ended else None, ""
        except CorruptObjectError as e:
            if shadow:
                raise
            summary, damage = None, str(e)
        return RunEntry(run, started_ms(run), segments[run], summary, damage)

    return (parallel or Parallel()).map(entry, sorted(segments)[-last:]), len(segments)


def _undeletes(cluster: ClusterView, records: Records, run_id: str) -> list[RunEntry]:
    """Return the undeletes of a run, oldest first. Like few other runs, they have no segment."""
    segments, ended = _counted(records, f"{folder(run_id)}~")
    later = [run for run in sorted(ended) if not segments[run]]
    summaries = cluster.parallel.map(lambda run: if_there(read_summary, records, run), later)
    candidates = zip(later, summaries, strict=True)
    return [RunEntry(run, started_ms(run), 0, s) for run, s in candidates if s is not None and s.of_run == run_id]


def _counted(records: Records, start_after: str = "", *, shadow: bool = False) -> tuple[Counter[str], set[str]]:
    """Return how many segments each run has, and the runs that recorded an end; see `list_runs`."""
    segments: Counter[str] = Counter()
    ended: set[str] = set()
    for page in records.scan(f"{RUNS}{SHADOW}" if shadow else RUNS, start_after):
        for key in page.keys:
            run = run_of(key, shadow=shadow)
            if run is not None:
                segments[run] += key.endswith(".parquet")
                if key == summary_key(run):
                    ended.add(run)
    return segments, ended


def shadowed(records: Records, run_id: str, parallel: Parallel) -> Iterator[RecordedObject]:
    """Yield the objects that a shadow run would have deleted. Raises `CorruptObjectError`."""
    keys = sorted(k for k in records.list(folder(run_id)).modified_ms if k.endswith(".parquet"))
    for at in range(0, len(keys), _SEGMENTS_AT_ONCE):
        for rows in parallel.map(lambda key: read_segment(records, key), keys[at : at + _SEGMENTS_AT_ONCE]):
            yield from rows


def on_record_as_shadow(records: Records, shards: int) -> tuple[int, int]:
    """Return the epoch and the time up to which the newest complete shadow run has recorded all objects."""
    for run in sorted(_counted(records, shadow=True)[1], reverse=True):
        if is_whole(s := read_summary(records, run), shards):
            return s.bound, s.older_than_ms - _CLOCKS_MS
    return NOTHING_KNOWN


def is_whole(s: RunSummary, shards: int) -> bool:
    """Return whether a run covered everything that it might have deleted."""
    return s.outcome == DONE and not s.limited and (s.first_shard, s.end_shard) == (0, shards)


def show_run(
    cluster: ClusterView,
    run_id: str,
    sample: int = 10,
    *,
    records: Records | None = None,
    each: Callable[[RecordedObject], None] = lambda row: None,
) -> RunDetail:
    """Return the outcome of each object of a run.

    Args:
        sample: how many objects are described in full.
        records: where the record is; by default in the bucket.
        each: called with every object, as it is read.

    Raises:
        UsageError: no run can have this name.
        NotFoundError: it has no record.
        CorruptObjectError: the record cannot be read.
    """
    records = records or cluster.store
    run_id = run_named(records, run_id)
    segments = _segments(records, run_id)
    detail = RunDetail(run_id, started_ms(run_id), len(segments), if_there(read_summary, records, run_id))
    detail.undeletes = _undeletes(cluster, records, run_id)
    for rows in _settled(cluster, records, segments):
        for row in rows:
            each(row)
            detail.by_status[row.status] += 1
            if row.status == DELETED:
                detail.deleted_bytes += row.size
                detail.lowest_epoch = row.epoch if detail.lowest_epoch < 0 else min(detail.lowest_epoch, row.epoch)
                detail.highest_epoch = max(detail.highest_epoch, row.epoch)
            if len(detail.sample) < sample:
                detail.sample.append(row)
    return detail


def find_in_runs(cluster: ClusterView, key: str, *, records: Records | None = None) -> KeyInRun | None:
    """Return what the run did that deleted the object `key` last, else the newest run that planned to; None without either.

    A delete marker shows the run by its id, or by its time: the runs that began before it are searched first, newest first.
    Without a marker, sweeps that reached the key's epoch are searched first, oldest first, since nearly always the oldest
    deleted it; later ones count only if an undelete of that run is on record. So this reads about one run's segments. It
    reads all of them only if the object exists, or if no run has the key.

    Raises:
        CorruptObjectError: a record cannot be read.
    """
    records = records or cluster.store
    segments: dict[str, list[str]] = {}
    ended: set[str] = set()
    for page in records.scan(RUNS):
        for name in page.keys:
            if (run := run_of(name)) is not None and name.endswith(".parquet"):
                segments.setdefault(run, []).append(name)
            elif run is not None and name == summary_key(run):
                ended.add(run)
    runs = sorted(segments)
    is_there = key in cluster.store.list(key).modified_ms
    marker = None if is_there else _newest_marker(cluster.store, key)
    if is_there or marker is not None:
        before_ms = cluster.now_ms() if marker is None else marker.made_ms + _CLOCKS_MS
        ahead = bisect_right(runs, before_ms, key=started_ms)
        order = [*reversed(runs[:ahead]), *reversed(runs[ahead:])]
    else:
        parsed = cluster.identity().layout.parse(key)
        first = bisect_left(runs, True, key=lambda r: _reached(records, r, parsed.epoch)) if parsed is not None else 0
        order = [*runs[first:], *reversed(runs[:first])]
    meant: KeyInRun | None = None
    for run in order:
        deletion = _in_run(cluster, records, segments[run], key, is_there, marker)
        if deletion is not None and deletion.status == DELETED and marker is None:
            return _deleted_since(cluster, records, deletion, {r: segments[r] for r in runs}, ended) or deletion
        if deletion is not None and deletion.status == DELETED:
            return deletion
        meant = max(filter(None, (meant, deletion)), key=lambda k: k.run_id, default=None)
        if is_there and meant is not None:
            break
    return meant


class _Marker(NamedTuple):
    """The newest delete marker of a key: when it was made, and its id; several may be of the same second."""

    made_ms: int
    ids: set[str]


def _newest_marker(store: ObjectStore, key: str) -> _Marker | None:
    """Return a missing object's newest delete marker; None if the bucket has none, or does not show it."""
    with suppress(AccessDeniedError):
        if store.versioning() != OFF:
            made = [(made_ms, version) for version, made_ms in _versions_of(store, key) if made_ms is not None]
            newest_ms = max((made_ms for made_ms, _ in made), default=-1)
            return _Marker(newest_ms, {version for made_ms, version in made if made_ms == newest_ms}) if made else None
    return None


def _in_run(
    cluster: ClusterView, records: Records, segments: Sequence[str], key: str, is_there: bool, marker: _Marker | None
) -> KeyInRun | None:
    """Return what a run did with an object, by its record and the bucket; None if another run made the marker."""
    read = cluster.parallel.map(lambda s: [(s, r) for r in read_segment(records, s) if r.key == key], segments)
    rows = [row for part in read for row in part]
    run = run_of(segments[0])
    assert run is not None
    summary = if_there(read_summary, records, run) if rows else None
    command, versioning = (None, ENABLED) if summary is None else (summary.command, summary.versioning)
    kept = versioning != OFF and not any(map(_is_of_versions, segments))
    deletion: KeyInRun | None = None
    for segment, row in rows:
        is_of_run = marker is None or (not _is_of_versions(segment) and row.version_id in {*_NO_ID, *marker.ids})
        if row.status == LEFT or (row.status != DELETED and _is_there(cluster.store, row)):
            status = LEFT
        elif is_there:
            status = RESTORED
        elif is_of_run:
            status = DELETED
        else:
            continue
        deletion = KeyInRun(**msgspec.structs.asdict(row) | {"status": status}, run_id=run, command=command, kept=kept)
        if status != LEFT:
            break
    return deletion


def _deleted_since(
    cluster: ClusterView, records: Records, deletion: KeyInRun, segments: dict[str, list[str]], ended: set[str]
) -> KeyInRun | None:
    """Return what a later run did that deleted an object which an undelete of the found run may have brought back."""
    later = sorted(run for run in ended - segments.keys() if run > deletion.run_id)
    summaries = cluster.parallel.map(lambda run: if_there(read_summary, records, run), later)
    if not any(s is not None and s.of_run == deletion.run_id for s in summaries):
        return None
    for run in sorted((r for r in segments if r > deletion.run_id), reverse=True):
        again = _in_run(cluster, records, segments[run], deletion.key, False, None)
        if again is not None and again.status == DELETED:
            return again
    return None


def who_deleted(cluster: ClusterView, key: str) -> str:
    """Return which run deleted a missing object, as the end of a sentence."""
    try:
        deletion = find_in_runs(cluster, key)
    except (StoreError, CorruptObjectError) as e:
        return f"it is unknown whether a run deleted it: {e}"
    return "no recorded run deleted it" if deletion is None else deletion.sentence


def _reached(records: Records, run_id: str, epoch: int) -> bool:
    """Return whether a run was to delete objects of an epoch; a killed run may have been."""
    summary = if_there(read_summary, records, run_id)
    return summary is None or summary.bound >= epoch


def run_named(records: Records, start: str) -> str:
    """Return the id of the recorded run whose id begins with `start`.

    Raises:
        UsageError: several runs' ids begin with it, or none could.
        NotFoundError: no such run exists.
    """
    if run_of(f"{folder(start)}x", shadow=True) is not None:
        raise UsageError(f"{start} was a shadow run, which deleted nothing; l0gc verify --shadow reads its record")
    if run_of(f"{folder(start)}x") is not None:
        return start
    if not re.fullmatch(r"[0-9]{1,8}|[0-9]{8}T[0-9]{0,6}|[0-9]{8}T[0-9]{6}Z(-[0-9a-f]{0,7})?", start):
        raise UsageError(f"{start!r} is not a run id; use for example 20260131T235959Z-0123abcd (l0gc runs list)")
    runs = {run for page in records.scan(RUNS) for key in page.keys if (run := run_of(key)) and run.startswith(start)}
    if len(runs) > 1:
        raise UsageError(f"{start} begins the ids of {len(runs)} runs, {min(runs)} and others: give more of it")
    if not runs:
        raise NotFoundError(
            f"no run whose id begins with {start} has a record; l0gc runs list shows the records that are kept"
        )
    return runs.pop()


def _segments(records: Records, run_id: str) -> list[str]:
    """Return the keys of a run's segments; a run that ended early may have none."""
    keys = sorted(records.list(folder(run_id)).modified_ms)
    if not keys:
        raise NotFoundError(f"run {run_id} has no record; l0gc runs list shows the records that are kept")
    return [k for k in keys if k.endswith(".parquet")]


def _settled(cluster: ClusterView, records: Records, segments: Iterable[str]) -> Iterator[list[RecordedObject]]:
    """Yield each object once with its outcome. The bucket shows that of objects that were planned or got no answer.

    An object may be in two segments: a store that lists out of order is scanned twice, and Spark repeats the tasks of a
    dead executor.
    """
    segments = list(segments)
    open_rows: dict[tuple[str, str], RecordedObject] = {}
    for key in segments:
        rows = read_segment(records, key)
        open_rows |= {(r.key, r.version_id): r for r in rows if r.status != DELETED}
        yield [r for r in rows if r.status == DELETED]
    for key in segments if open_rows else ():
        for row in read_segment(records, key):
            if row.status == DELETED:
                # Of an object as it is, the version id is that of its marker, and was not known when it was planned.
                open_rows.pop((row.key, row.version_id if _is_of_versions(key) else ""), None)
    todo = list(open_rows.values())
    for at in range(0, len(todo), PAGE_SIZE):
        page = todo[at : at + PAGE_SIZE]
        exist = cluster.parallel.map(lambda r: _is_there(cluster.store, r), page)
        yield [
            msgspec.structs.replace(r, status=DELETED if not t else LEFT if r.status == PLANNED else r.status)
            for r, t in zip(page, exist, strict=True)
        ]


def _is_there(store: ObjectStore, row: RecordedObject) -> bool:
    if row.version_id:
        return any(row.version_id == version for version, _ in _versions_of(store, row.key))
    return row.key in store.list(row.key).modified_ms


def _is_of_versions(segment: str) -> bool:
    return segment.rsplit("/", 1)[1].startswith(f"{VERSIONS}-")


# -- take back ----------------------------------------------------------------------------------------------------------


def undelete(cluster: ClusterView, run_id: str, *, records: Records | None = None) -> UndeleteResult:
    """Remove the delete markers that a run created, so that the objects exist again.

    Args:
        records: where the record is; by default in the bucket.

    Raises:
        UsageError: the run removed versions for good, or the bucket keeps none.
        NotFoundError, CorruptObjectError: see `show_run`.
    """
    store = cluster.store
    records = records or store
    run_id = run_named(records, run_id)
    result, segments = UndeleteResult(run_id), _segments(records, run_id)
    if any(_is_of_versions(key) for key in segments):
        raise UsageError(f"run {run_id} removed versions for good: there is nothing to bring back")
    summary = if_there(read_summary, records, run_id)
    if summary is not None and summary.command == UNDELETE:
        raise UsageError(
            f"run {run_id} is the undelete of run {summary.of_run}: it deleted nothing that could come back"
        )
    if (summary is not None and summary.versioning == OFF) or store.versioning() == OFF:
        raise UsageError(f"run {run_id} deleted from a bucket that kept no versions: there is nothing to bring back")
    result.command = summary.command if summary is not None else SWEEP
    began_ms = cluster.now_ms()
    write_gc_note(store, GcNote())
    try:
        missing = _take_back(cluster, records, segments, result)
    finally:
        if result.restored:
            _record_undelete(cluster, records, result, began_ms)
    result.again = _deleted_again(records, run_id, missing) if missing else Counter()
    result.gone = len(missing) - result.again.total()
    return result


def _take_back(cluster: ClusterView, records: Records, segments: Sequence[str], result: UndeleteResult) -> set[str]:
    """Remove the markers of a run's segments, and count the restored objects in `result`; return the keys not restored."""
    store, since_ms = cluster.store, started_ms(result.run_id)
    done: set[VersionedKey] = set()
    missing: set[str] = set()
    for key in segments:
        rows = read_segment(records, key)
        recorded_markers = [
            VersionedKey(r.key, r.version_id) for r in rows if r.status == DELETED and r.version_id not in _NO_ID
        ]
        sure = {m.key for m in recorded_markers}
        unsure = [r.key for r in rows if r.status != LEFT and r.key not in sure]
        found_markers = cluster.parallel.map(lambda k: _markers_of(store, k, since_ms), unsure)
        markers = [m for m in (*recorded_markers, *(m for of_key in found_markers for m in of_key)) if m not in done]
        done |= {m for m in markers if m.key not in sure}
        # Whose marker's id is known is looked up only here; a marker that is gone would be removed once more, and counted.
        names = sorted(sure)
        existing = _there(cluster, names)
        result.already += len(existing)
        markers = [m for m in markers if m.key not in existing]
        hidden = {m.key for of_key in found_markers for m in of_key}
        lost = [r.key for r in rows if r.status == DELETED and r.key not in sure and r.key not in hidden]
        missing |= set(lost) - _there(cluster, lost)
        sizes = {r.key: r.size for r in rows}
        for at in range(0, len(markers), PAGE_SIZE):
            batch = markers[at : at + PAGE_SIZE]
            failures = store.delete_versions(batch).failures
            result.failures += failures
            keys = {m.key for m in batch} - {f.key for f in failures}
            back = _there(cluster, sorted(keys))
            result.restored += len(back)
            result.bytes += sum(sizes[k] for k in back)
            missing = (missing | keys) - back
    return missing


def _record_undelete(cluster: ClusterView, records: Records, result: UndeleteResult, began_ms: int) -> None:
    """Record the restored objects, next to the runs that delete, if the store accepts it."""
    with suppress(StoreError):
        ended_ms = cluster.now_ms()
        summary = RunSummary(
            run_id=new_run_id(began_ms, cluster.runtime.new_id()),
            command=UNDELETE,
            started_ms=began_ms,
            ended_ms=ended_ms,
            outcome="failed" if result.failures else "done",
            watermark=NO_WATERMARK,
            cluster_epoch=cluster.identity().cluster_epoch,
            of_run=result.run_id,
            of_command=result.command,
            restored=ObjectTotals(result.restored, result.bytes),
        )
        write_summary(records, summary)


def _there(cluster: ClusterView, keys: Sequence[str]) -> set[str]:
    """Return which of the keys exist."""
    is_there = cluster.parallel.map(lambda k: k in cluster.store.list(k).modified_ms, keys)
    return {key for key, exists in zip(keys, is_there, strict=True) if exists}


def _deleted_again(records: Records, run_id: str, keys: set[str]) -> Counter[str]:
    """Return how many of these missing keys each later run deleted last."""
    again: Counter[str] = Counter()
    left = set(keys)
    later = [k for page in records.scan(RUNS, f"{folder(run_id)}~") for k in page.keys]
    for key in sorted((k for k in later if k.endswith(".parquet")), reverse=True):
        run = run_of(key)
        if run is None or not left:
            continue
        deleted = left & {r.key for r in read_segment(records, key) if r.status != LEFT}
        left -= deleted
        if deleted and not _is_of_versions(key):  # a version that was removed for good cannot come back
            again[run] += len(deleted)
    return again


def _versions_of(store: ObjectStore, key: str) -> Iterator[tuple[str, int | None]]:
    """Yield the versions of `key`; for a delete marker, with its creation time."""
    for page in store.versions(key):
        rows = zip(page.keys, page.version_ids, page.markers, page.modified_ms, strict=True)
        yield from ((version, modified if marker else None) for k, version, marker, modified in rows if k == key)


def _markers_of(store: ObjectStore, key: str, since_ms: int) -> list[VersionedKey]:
    """Return the delete markers of `key` that are not older than the run."""
    return [
        VersionedKey(key, version)
        for version, made_ms in _versions_of(store, key)
        if made_ms is not None and made_ms >= since_ms
    ]


def deleted_on_record(cluster: ClusterView, segments: Iterable[str]) -> tuple[int, int]:
    """Return how many objects of the segments are gone, each counted once, and their bytes."""
    objects = size = 0
    for rows in _settled(cluster, cluster.store, segments):
        objects += sum(r.status == DELETED for r in rows)
        size += sum(r.size for r in rows if r.status == DELETED)
    return objects, size


# -- what expires -------------------------------------------------------------------------------------------------------


def old_run_records(store: ObjectStore, plan: DeletionPlan[Vacuum], keep: int = KEEP_RUNS) -> Iterator[list[Deletable]]:
    """Yield old run records: those older than the plan keeps, and all but the `keep` newest.

    An attempt of a step that this l0gc does not have expires at the same age.
    """
    before_ms = plan.started_ms - int(1000 * plan.options.keep_runs_s)
    current = {attempt_key(step) for step in STEPS}
    for page in store.scan(ATTEMPTS):
        yield _those(page, lambda key, modified_ms: key not in current and modified_ms < before_ms)
    old: set[str] = set()
    for shadow in (False, True):
        newest_first = sorted(_counted(store, shadow=shadow)[0], reverse=True)
        old |= {run for i, run in enumerate(newest_first) if i >= keep or started_ms(run) < before_ms} - {plan.run_id}
    if not old:
        return
    end = f"{folder(max(old))}~"
    for page in store.scan(RUNS):
        yield _those(page, lambda key, _: (run_of(key) or run_of(key, shadow=True)) in old)
        if page.keys[-1] > end:
            return  # names sort by time, and shadow runs after the others


def old_scan_snapshots(store: ObjectStore, plan: DeletionPlan[Vacuum]) -> Iterator[list[Deletable]]:
    """Yield the snapshots that `old_scans` returns."""
    pages = list(store.scan(SCANS))
    old = set(old_scans([key for page in pages for key in page.keys], plan.started_ms))
    yield from (_those(page, lambda key, _: key in old) for page in pages)


def _those(page: ListedPage, is_old: Callable[[str, int], bool]) -> list[Deletable]:
    """Return the objects of a page that `is_old` selects by key and write time."""
    rows = zip(page.keys, page.sizes, page.modified_ms, strict=True)
    return [Deletable(key, -1, size, modified_ms) for key, size, modified_ms in rows if is_old(key, modified_ms)]
