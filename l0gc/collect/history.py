"""Report past runs from their records, undo and record deletions, and find old records.

A killed run leaves objects as `planned`, and an unanswered request leaves them as `failed`. The bucket shows whether
these objects are gone, so reports are correct. An undelete removes only delete markers that the run created. A restored
object existed before, and M has passed it, so the next sweep deletes it again. `gc` resets `swept` in its note, so that
its next run lists the bucket.

It is safe to delete old run records and old scan snapshots, because deletions and the computation of M do not read
them. Each kind expires by age, by the store's clock, and by number. The records of the newest runs always stay,
including this run's. Deleted records and snapshots are not recorded, since that record would be the next to expire.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
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
"""The status of an object that exists again after a run deleted it."""
_NO_ID: Final = {"", "null"}
"""The ids of delete markers that are unknown, or that later writes replace because versioning is suspended."""
KEEP_RUNS: Final = 10_000
"""The largest number of runs whose records are kept, and of shadow runs."""
_SEGMENTS_AT_ONCE: Final = 8
_CLOCKS_MS: Final = 3_000
"""How shortly before its start a shadow run may have missed changes. The log's time is accurate to 2 s, and the store's
times are in whole seconds.
"""


class RunEntry(msgspec.Struct, Outcome):
    """A run. Its `summary` is None if the run has not finished, or if `run.json` cannot be read, for the reason
    `damage`.

    Attributes:
        run_id: The run.
        started_ms: When it began.
        ended_ms: When it ended. Null if it was killed or is still running, as are the following fields up to
            `limited_by`, except `outcome`.
        outcome: `done`, `stopped` by a signal or a pause, `failed` with an error, `damaged` if its `run.json` cannot be
            read, or `killed`, also while it is still running.
        command: `sweep`, `vacuum`, or `undelete`.
        purge_versions: Whether it permanently removed versions.
        kinds: The `objects` and `bytes` of each kind that a vacuum deleted.
        engine: `local` or `spark`.
        watermark: The M that was published.
        bound: The highest epoch that a sweep could delete: M, or `--up-to`.
        deleted: The number of objects that it reported as deleted at its end.
        bytes: Their size.
        failed: The number of objects that it reported as failed.
        limited_by: The option whose limit left some eligible objects; empty if none did.
        of_run: For an undelete, the run whose objects it brought back; otherwise empty.
        restored: For an undelete, the number of `objects` that it brought back, and their `bytes`.
        segments: The number of Parquet files in the record.
    """

    run_id: str
    started_ms: int
    segments: int
    summary: RunSummary | None
    damage: str = ""
    ended_ms: int | None = None
    outcome: str = "killed"
    command: str | None = None
    purge_versions: bool | None = None
    kinds: dict[str, ObjectTotals] = {}
    engine: str | None = None
    watermark: int | None = None
    bound: int | None = None
    deleted: int | None = None
    bytes: int | None = None
    failed: int | None = None
    limited_by: str | None = None
    of_run: str | None = None
    restored: ObjectTotals | None = None
    hidden: ClassVar[frozenset[str]] = frozenset({"summary", "damage"})

    def __post_init__(self) -> None:
        self.outcome = "damaged" if self.damage else self.outcome
        for name in _OF_SUMMARY if self.summary is not None else ():
            setattr(self, name, getattr(self.summary, "objects" if name == "deleted" else name))


_OF_SUMMARY: Final = RunEntry.__struct_fields__[RunEntry.__struct_fields__.index("ended_ms") :]
"""The fields of a run that its summary has."""


class RunList(msgspec.Struct, Outcome, frozen=True):
    """The newest runs with a record, the oldest first.

    Attributes:
        runs: The runs, each with the fields of `runs show` up to `segments`.
        total: The number of runs on record.
    """

    runs: list[RunEntry]
    total: int


class RunDetail(RunEntry):
    """A run with the outcome of its objects.

    Attributes:
        by_status: The numbers of objects `deleted`, `failed` and `left`, according to the record or, if it is
            uncertain, the bucket. Objects that came back later are in `undeletes`.
        deleted_bytes: The size of the deleted objects.
        lowest_epoch: The lowest epoch of the deleted objects; -1 if there are none.
        highest_epoch: The highest epoch of the deleted objects; -1 if there are none.
        sample: The first ten objects, each with `key`, `epoch`, `size`, `modified_ms`, `version_id`, `status` and
            `deleted_ms`; an unknown value is -1 or empty.
        undeletes: The runs of `undelete` that brought back objects of this run, oldest first, each as in `runs list`.
    """

    by_status: Counter[str] = msgspec.field(default_factory=Counter)
    deleted_bytes: int = 0
    lowest_epoch: int = -1
    highest_epoch: int = -1
    sample: list[RecordedObject] = []
    undeletes: list[RunEntry] = []


class KeyInRun(RecordedObject, Outcome, frozen=True, kw_only=True):
    """An object in the record of a run.

    Attributes:
        run_id: The run.
        command: `sweep` or `vacuum`; `null` for a killed run.
        key: The object.
        epoch: The epoch of its key; -1 if it is not an L0 object.
        size: Its size in bytes.
        modified_ms: When it was written.
        version_id: The version of its delete marker, or the version that was removed; empty if unknown.
        status: `deleted`; `left` if the run did not delete it; `restored` if the run deleted it and it exists again.
        deleted_ms: When it was deleted; -1 if unknown.
        kept: Whether the bucket keeps the deleted object as a version, so that `undelete` can bring it back.
    """

    run_id: str
    command: str | None
    kept: bool

    @property
    def sentence(self) -> str:
        """Return a sentence about the run's action, and whether it can be undone."""
        run = f"run {self.run_id} ({self.command or 'killed'})"
        if self.status == LEFT:
            return f"{run} planned to delete it ({size(self.size)}), but left it"
        when = f" at {moment(self.deleted_ms)}" if self.deleted_ms >= 0 else ""
        if self.status == RESTORED:
            return f"{run} deleted it ({size(self.size)}){when}, and it exists again"
        undo = f"l0gc undelete --run {self.run_id} brings back what the run deleted"
        back = undo if self.kept else "no version of it was kept, so only a backup brings it back"
        return f"{run} deleted it ({size(self.size)}){when}; {back}"


class UndeleteResult(msgspec.Struct, Outcome):
    """The result of an undelete: `restored` objects exist again; the versions of `gone` objects had been removed.

    Attributes:
        run_id: The run.
        restored: The number of objects that exist again.
        gone: The number of objects that did not come back, since their versions have been removed or were written while
            versioning was suspended. If there are any, the exit code is 3.
        already: The number of objects that an earlier `undelete` had already brought back.
        again: The later runs that deleted objects of this run again, each with `run_id` and `objects`; undelete those
            runs, too. If there are any, the exit code is 3.
        failed: The number of markers that could not be removed. If there are any, the exit code is 3.
        failures: Up to 20 of these markers, each with `key`, `code`, `message` and `version_id`.
        command: The command of the run: `sweep` or `vacuum`.
        bytes: The size of the objects that exist again.
    """

    run_id: str
    restored: int = 0
    bytes: int = 0
    gone: int = 0
    already: int = 0
    again: Counter[str] = msgspec.field(default_factory=Counter)
    command: str = SWEEP
    failures: list[DeleteFailure] = []
    derived: ClassVar[tuple[str, ...]] = ("failed",)

    @property
    def failed(self) -> int:
        return len(self.failures)

    @property
    def problem(self) -> PartialFailureError | None:
        """Return an error that names the markers that stay, or the number of objects that were not restored."""
        if self.failures:
            markers, first = count(len(self.failures), "marker"), self.failures[0]
            return PartialFailureError(f"{markers} could not be removed; the first is of {first.key}: {first.why}")
        if missing := self.gone + self.again.total():
            return PartialFailureError(f"{count(missing, 'object')} of run {self.run_id} did not come back")
        return None

    def to_json(self) -> dict[str, Any]:
        """Return the fields, with only the first failures."""
        return super().to_json() | {
            "again": [{"run_id": run, "objects": objects} for run, objects in sorted(self.again.items())],
            "failures": [msgspec.to_builtins(f) for f in self.failures[:_FAILURES_SHOWN]],
        }


def started_ms(run_id: str) -> int:
    """Return when a run began, according to its name."""
    # strptime would take ten times as long, and a listing calls this for each object of a record.
    return int(datetime.fromisoformat(run_id.removeprefix(SHADOW).split("-", maxsplit=1)[0]).timestamp() * 1000)


def run_of(key: str, *, shadow: bool = False) -> str | None:
    """Return the run to whose record the object `key` belongs, or None.

    Args:
        shadow: return the shadow run instead, which deleted nothing.
    """
    m = _RUN_KEY.fullmatch(key)
    if m is None or bool(m[1]) != shadow:
        return None
    try:
        started_ms(m[2])
    except ValueError:  # a name in a record's form, but with a month 13, for example
        return None
    return m[1] + m[2]


# -- list and show ------------------------------------------------------------------------------------------------------


def newest_runs(records: Records, last: int, now_ms: int) -> list[RunEntry]:
    """Return the `last` newest runs, the oldest first. Search the last day, then the last week, then all runs."""
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    for days in (1, 7):
        segments, ended = _counted(records, f"{RUNS}{now - timedelta(days=days):%Y%m%dT%H%M%SZ}")
        if len(segments) >= last:
            break
    else:
        segments, ended = _counted(records)
    return [_entry(records, run, segments, ended) for run in sorted(segments)[-last:]]


_RECENT: Final = 100
"""How many of the newest runs define the usual number of deletions. `gc` every ten minutes makes more runs than this on
a busy day.
"""


def usual_objects(cluster: ClusterView, command: str, now_ms: int, kinds: Sequence[str] = ()) -> int:
    """Return how many objects a run of a command may delete without being unusual: twice the most that recent runs
    deleted in a period as long as the time since the last run that deleted something.

    Objects that a pin, a pause or a weekend has held back are thus not unusual. A run that its share ended does not
    count, and the period ends with it, so that a wrong M, and the time until an operator looks, do not raise the number
    for the next run.

    Args:
        kinds: the kinds of garbage that count, for a run of several kinds; by default, all that it deleted.
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
    if passed_ms > span_ms > 0:  # longer than the runs on record, so extrapolate their rate
        most = max(most, (sum(objects for _, objects in deletions) - first) * passed_ms // span_ms)
    return 2 * most


def list_runs(
    records: Records, last: int, *, parallel: Parallel | None = None, shadow: bool = False
) -> tuple[list[RunEntry], int]:
    """Return the `last` newest recorded runs, the oldest first, and the number of all runs.

    A summary that cannot be read affects only its own run.

    Args:
        parallel: reads the summaries concurrently; without it, they are read one after another.
        shadow: list shadow runs instead, which deleted nothing.

    Raises:
        CorruptObjectError: the summary of a shadow run cannot be read; its proof needs the bounds in it.
    """
    segments, ended = _counted(records, shadow=shadow)
    entries = (parallel or Parallel()).map(
        lambda run: _entry(records, run, segments, ended, shadow=shadow), sorted(segments)[-last:]
    )
    return entries, len(segments)


def _entry(
    records: Records, run: str, segments: Mapping[str, int], ended: Collection[str], *, shadow: bool = False
) -> RunEntry:
    """Return a run, given the counts of `_counted`; see `list_runs`."""
    try:
        summary, damage = read_summary(records, run) if run in ended else None, ""
    except CorruptObjectError as e:
        if shadow:
            raise
        summary, damage = None, str(e)
    return RunEntry(run, started_ms(run), segments[run], summary, damage)


def _undeletes(cluster: ClusterView, records: Records, run_id: str) -> list[RunEntry]:
    """Return the undeletes of a run, oldest first. Unlike most other runs, they have no segments."""
    segments, ended = _counted(records, f"{folder(run_id)}~")
    later = [run for run in sorted(ended) if not segments[run]]
    summaries = cluster.parallel.map(lambda run: if_there(read_summary, records, run), later)
    candidates = zip(later, summaries, strict=True)
    return [RunEntry(run, started_ms(run), 0, s) for run, s in candidates if s is not None and s.of_run == run_id]


def _counted(records: Records, start_after: str = "", *, shadow: bool = False) -> tuple[Counter[str], set[str]]:
    """Return the number of segments of each run, and the runs that recorded their end.

    Args:
        start_after: count only the runs whose records come after this key.
        shadow: count shadow runs instead.
    """
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
    """Return whether a run covered all shards and everything eligible."""
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
        each: called with each object when it is read.

    Raises:
        UsageError: a run cannot have this name.
        NotFoundError: the run has no record.
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
    """Return the record of the object `key` in the run that deleted it last, or else in the newest run that planned to;
    None if there is no such run.

    The id or the time of a delete marker identifies the run: the runs that began before it are searched first, newest
    first. Without a marker, sweeps that reached the key's epoch are searched first, oldest first, since the oldest has
    nearly always deleted it; later ones count only if an undelete of that run is on record. This usually reads the
    segments of about one run. It reads all segments only if the object exists, or if no run has the key.

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
    """The newest delete marker of a key: when it was created, and its id, or the ids of several from the same second."""

    made_ms: int
    ids: set[str]


def _newest_marker(store: ObjectStore, key: str) -> _Marker | None:
    """Return the newest delete marker of a missing object; None if there is none or reading it is denied."""
    with suppress(AccessDeniedError):
        if store.versioning() != OFF:
            made = [(made_ms, version) for version, made_ms in _versions_of(store, key) if made_ms is not None]
            newest_ms = max((made_ms for made_ms, _ in made), default=-1)
            return _Marker(newest_ms, {version for made_ms, version in made if made_ms == newest_ms}) if made else None
    return None


def _in_run(
    cluster: ClusterView, records: Records, segments: Sequence[str], key: str, is_there: bool, marker: _Marker | None
) -> KeyInRun | None:
    """Return the outcome of an object in a run, according to its record and the bucket; None if another run created the
    marker.
    """
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
    """Return the deletion of the object by a later run, if an undelete of the found run may have brought it back."""
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
    """Return the end of a sentence that names the run that deleted a missing object."""
    try:
        deletion = find_in_runs(cluster, key)
    except (StoreError, CorruptObjectError) as e:
        return f"it is unknown whether a run deleted it: {e}"
    return "no recorded run deleted it" if deletion is None else deletion.sentence


def _reached(records: Records, run_id: str, epoch: int) -> bool:
    """Return whether a run may have deleted objects of an epoch, which holds for every killed run."""
    summary = if_there(read_summary, records, run_id)
    return summary is None or summary.bound >= epoch


def run_named(records: Records, start: str) -> str:
    """Return the id of the recorded run whose id begins with `start`.

    Raises:
        UsageError: the ids of several runs begin with it, or no id can.
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
    """Return the keys of a run's segments. A run that ended early may have no segments."""
    keys = sorted(records.list(folder(run_id)).modified_ms)
    if not keys:
        raise NotFoundError(f"run {run_id} has no record; l0gc runs list shows the records that are kept")
    return [k for k in keys if k.endswith(".parquet")]


def _settled(cluster: ClusterView, records: Records, segments: Iterable[str]) -> Iterator[list[RecordedObject]]:
    """Yield each object once with its outcome. For objects that were only planned or got no answer, the bucket shows
    the outcome.

    An object may be in two segments, since a store that lists out of order is scanned twice, and Spark repeats the
    tasks of a dead executor.
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
                # For a current object, the version id is its marker's, which was unknown when the object was planned.
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
        UsageError: the run permanently removed versions, or the bucket keeps no versions.
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
    """Remove the markers of a run's segments, and count the restored objects in `result`. Return the keys that were not
    restored.
    """
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
        # Keys with a known marker are looked up only here. A marker that is gone would be removed again, and counted.
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
    """Record the restored objects, next to the runs that delete, if the store accepts the record."""
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
    """Return, for each later run, how many of these missing keys it was the last to delete."""
    again: Counter[str] = Counter()
    left = set(keys)
    later = [k for page in records.scan(RUNS, f"{folder(run_id)}~") for k in page.keys]
    for key in sorted((k for k in later if k.endswith(".parquet")), reverse=True):
        run = run_of(key)
        if run is None or not left:
            continue
        deleted = left & {r.key for r in read_segment(records, key) if r.status != LEFT}
        left -= deleted
        if deleted and not _is_of_versions(key):  # a permanently removed version cannot come back
            again[run] += len(deleted)
    return again


def _versions_of(store: ObjectStore, key: str) -> Iterator[tuple[str, int | None]]:
    """Yield the versions of `key`, and the creation times of its delete markers."""
    for page in store.versions(key):
        rows = zip(page.keys, page.version_ids, page.markers, page.modified_ms, strict=True)
        yield from ((version, modified if marker else None) for k, version, marker, modified in rows if k == key)


def _markers_of(store: ObjectStore, key: str, since_ms: int) -> list[VersionedKey]:
    """Return the delete markers of `key` that were created since the run began."""
    return [
        VersionedKey(key, version)
        for version, made_ms in _versions_of(store, key)
        if made_ms is not None and made_ms >= since_ms
    ]


def deleted_on_record(cluster: ClusterView, segments: Iterable[str]) -> tuple[int, int]:
    """Return the number of objects in the segments that are gone, each counted once, and their bytes."""
    objects = size = 0
    for rows in _settled(cluster, cluster.store, segments):
        objects += sum(r.status == DELETED for r in rows)
        size += sum(r.size for r in rows if r.status == DELETED)
    return objects, size


# -- what expires -------------------------------------------------------------------------------------------------------


def old_run_records(store: ObjectStore, plan: DeletionPlan[Vacuum], keep: int = KEEP_RUNS) -> Iterator[list[Deletable]]:
    """Yield old run records: those that are older than the plan keeps, and all except the `keep` newest.

    The record of the last run of a step that this l0gc does not have expires at the same age.
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
    """Return the objects of a page whose key and write time `is_old` accepts."""
    rows = zip(page.keys, page.sizes, page.modified_ms, strict=True)
    return [Deletable(key, -1, size, modified_ms) for key, size, modified_ms in rows if is_old(key, modified_ms)]
