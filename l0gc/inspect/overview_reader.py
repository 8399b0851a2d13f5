"""Read a cluster's overview. Nothing is changed.

The order of the reads makes it correct for a cluster in use: `published.json`, then the controller's snapshot, then the
journals, then the controller's epoch again. Entries written in between are thus not mistaken for remains of another
log. Everything else (runs, attempts, the newest scan) is only informative. Parts that the store refuses are named, and
the rest is shown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from l0gc.collect.deletion import read_pause
from l0gc.collect.gc_steps import SWEEP, compute_not_due
from l0gc.collect.history import RunEntry, list_runs, newest_runs
from l0gc.collect.record import ObjectTotals, read_attempts, read_gc_note
from l0gc.epoch import NO_WATERMARK
from l0gc.errors import (
    ClusterMismatchError,
    CorruptObjectError,
    NotFoundError,
    ObjectNotFoundError,
    RefusedObjectError,
    StoreError,
    StoreUnreachableError,
    UnansweredObjectError,
)
from l0gc.formatting import STANDARD_PRICE, count, dollars_month, moment, size, span
from l0gc.inspect.causes import (
    DAMAGED_WATERMARK,
    FOREIGN_WATERMARK,
    LOST_WATERMARK,
    NORMAL_LAG,
    UNREADABLE_WATERMARK,
    find_causes,
    find_warnings,
    next_step,
)
from l0gc.inspect.laggards import extent_bytes, find_laggards
from l0gc.inspect.overview import DatedHolder, Garbage, JournalReading, Journals, Overview, PinCost, TableState
from l0gc.keys import PUBLISHED_WATERMARK, KeyLayout
from l0gc.storage.objectstore import Head, ObjectStore, ask_of_one
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.decisions import tick_is_due
from l0gc.streamlog.controller.handle import Controller
from l0gc.streamlog.controller.state import ControllerState, TopicTable
from l0gc.streamlog.epoch_source import landed_number
from l0gc.streamlog.garbage import amounts_of
from l0gc.streamlog.journal.summary import JournalTask, sum_up, tasks_of
from l0gc.streamlog.journal.topic import Extent
from l0gc.streamlog.tables import due_ms
from l0gc.watermark.publication import PublishedWatermark, ends_of, lost, read_published
from l0gc.watermark.scans import ScanSnapshot, list_scans, oldest_ms, read_scan
from l0gc.watermark.source import REPORTED, UNRECONCILED, Holder, LogEnd

RUNS_SHOWN: Final = 3
TABLE_OVERDUE_MS: Final = 86_400_000
"""How late the replacement of a table's newest pin may be before the table counts as no longer synced."""
_SCANS_TRIED: Final = 5
_HELD_BY_EXTERNAL_LOG: Final = (
    "by that system's report when M was computed; it moves when that reports a higher gc epoch"
)


def read_overview(
    cluster: ClusterHandles, price_gb_month: float = STANDARD_PRICE, *, runs: int | None = None
) -> Overview:
    """Read everything once.

    Args:
        price_gb_month: dollars per GB and month.
        runs: how many runs to read, in which case all runs are counted; by default, the newest few, which take fewer
            requests.

    Raises:
        NotInitialisedError: no cluster exists here.
        CorruptObjectError: the controller's log cannot be read.
    """
    notes = list[str]()
    # M is read before the state, so that every topic that M does not cover is gone from the state.
    try:
        published, watermark_error = published_m(cluster)
    except StoreError as e:
        _raise_if_unreachable(e)
        published, watermark_error = None, (UNREADABLE_WATERMARK, f"{PUBLISHED_WATERMARK} cannot be read: {e}")
    state = cluster.controller.snapshot()
    now_ms = cluster.store.now_ms()
    attempts, paused, pause_unknown = read_attempts(cluster.store, cluster.parallel), None, False
    notes += [f"the last run of {job} is not shown: {e}" for job, e in attempts.refused.items()]
    try:
        paused = read_pause(cluster.store)
    except StoreError as e:
        _raise_if_unreachable(e)
        pause_unknown = True
        notes.append(f"whether sweeps are paused is not known, and none begins: {e}")
    m = published or PublishedWatermark(state.cluster_id, NO_WATERMARK, -1, -1)
    o = Overview(
        cluster_id=state.cluster_id,
        external_log=state.external_log,
        as_of_ms=now_ms,
        local_ms=cluster.runtime.clock.now_ms(),
        cluster_epoch=m.cluster_epoch if state.external_log else state.epoch,
        epoch_ms=-1 if state.external_log else state.time_ms,
        interval_ms=int(cluster.epoch_interval_s * 1000),
        layout=KeyLayout(state.key_template, state.shards),
        topics=len(state.topics),
        partitions=state.partition_count,
        journals=len(state.journals_in_use()),
        watermark=m.watermark,
        watermark_error=watermark_error,
        published_ms=m.published_at_ms,
        notes=notes,
        attempts=list(attempts.known.values()),
        refused_attempts=list(attempts.refused),
        paused=paused,
        pause_unknown=pause_unknown,
        price_gb_month=price_gb_month,
        logs=Journals(state),
    )
    try:
        if runs is None:
            o.runs = newest_runs(cluster.store, RUNS_SHOWN, now_ms)
        else:
            o.runs, o.runs_total = list_runs(cluster.store, runs, parallel=cluster.parallel)
        o.damaged_record = next((r.damage for r in o.runs if r.damage), "")
    except ObjectNotFoundError:
        pass  # a record that was listed has expired
    except StoreError as e:
        _raise_if_unreachable(e)
        o.notes.append(f"no past sweep is shown, nor what they deleted: {e}")
    o.scan = _newest_scan(cluster.store, o)
    if o.scan is not None:
        o.garbage = garbage_of(o.scan, o.watermark, o.runs, price_gb_month)
    if state.external_log:
        o.held_back_by = _holders_in_scan(o.scan, o.watermark)
    else:
        o.logs = read_journals(cluster, state, o.watermark, ends_of(published))
        _check_journals(cluster, o, published)
    o.pins, o.tables = _pins(o), [_table(o, table) for _, table in sorted(o.logs.snapshot.tables.items())]
    o.records, o.unreconciled_records, o.lost_records, o.holes, o.misfits = o.logs.records()
    o.idle = published is not None and _is_idle(cluster.store, o, published)
    o.lag_ms, o.lag_at_least = _lag(cluster.controller, o)
    o.causes, o.warnings = find_causes(o), find_warnings(o)
    if not (o.causes or o.external_log or o.left_objects) and published is not None:
        o.held_objects = _held_objects(o)
    o.next = next_step(o, o.causes)
    return o


def _raise_if_unreachable(e: StoreError) -> None:
    """Raise the error if the store does not answer at all."""
    if isinstance(e, StoreUnreachableError):
        raise e


def published_m(cluster: ClusterHandles) -> tuple[PublishedWatermark | None, tuple[str, str] | None]:
    """Return the published M and, if it cannot be used, the code of the cause and a sentence. If it is lost, return its
    copy.
    """
    cluster_id = cluster.controller.snapshot().cluster_id
    try:
        published, etag = read_published(cluster.store, cluster_id)
        loss = lost(published, etag)
        return published, (LOST_WATERMARK, loss) if loss else None
    except ClusterMismatchError as e:
        return None, (FOREIGN_WATERMARK, str(e))
    except CorruptObjectError as e:
        return None, (DAMAGED_WATERMARK, str(e))


# -- what was scanned and deleted ---------------------------------------------------------------------------------------


def _newest_scan(store: ObjectStore, o: Overview) -> ScanSnapshot | None:
    """Return the newest readable scan of the last few, and add a note for each unreadable one."""
    try:
        for key in list_scans(store)[: -_SCANS_TRIED - 1 : -1]:
            try:
                return read_scan(store, key, o.cluster_id)
            except ObjectNotFoundError:
                continue  # it has expired since the listing
            except (CorruptObjectError, ClusterMismatchError) as e:
                o.notes.append(f"an older scan is shown, or none: {e}")
    except (StoreError, NotFoundError) as e:
        o.notes.append(f"no scan is shown: {e}")
    return None


def garbage_of(scan: ScanSnapshot, watermark: int, runs: Sequence[RunEntry], price_gb_month: float) -> Garbage:
    """Return the garbage in a scan according to the current M, less later deletions (pure)."""
    eligible = [r for r in scan.epochs if r.epoch is not None and r.epoch <= watermark]
    held_rows = [r for r in scan.epochs if r.epoch is not None and r.epoch > watermark]
    objects, bytes_ = sum(r.objects for r in eligible), sum(r.bytes for r in eligible)
    deleted = deleted_since(runs, scan.totals.taken_ms)
    left_bytes, held_bytes = max(0, bytes_ - deleted.bytes), sum(r.bytes for r in held_rows)
    totals = msgspec.structs.replace(
        scan.totals,
        watermark=watermark,
        eligible_objects=objects,
        eligible_bytes=bytes_,
        oldest_eligible_ms=oldest_ms(eligible),
        oldest_held_ms=oldest_ms(held_rows),
    )
    return Garbage(
        **msgspec.structs.asdict(totals),
        deleted_objects=max(0, deleted.objects),
        deleted_bytes=max(0, deleted.bytes),
        left_objects=max(0, objects - deleted.objects),
        left_bytes=left_bytes,
        dollars_month=round(dollars_month(left_bytes, price_gb_month), 6),
        held_objects=sum(r.objects for r in held_rows),
        held_bytes=held_bytes,
        held_dollars_month=round(dollars_month(held_bytes, price_gb_month), 6),
    )


def deleted_since(runs: Iterable[RunEntry], since_ms: int) -> ObjectTotals:
    """Return the number of L0 objects deleted by sweeps that began at `since_ms` or later, minus those that `undelete`
    has restored since.

    The result can be negative. Vacuums do not count. The name of a run has the time at which `gc` began, and `gc`
    itself scans before it sweeps; the run's summary has the time of the sweep.
    """
    ended = [r.summary for r in runs if r.summary is not None and r.summary.started_ms >= since_ms]
    swept = [r for r in ended if r.command == SWEEP]
    back = [r.restored for r in ended if r.of_command == SWEEP]
    objects = sum(r.objects for r in swept) - sum(r.objects for r in back)
    return ObjectTotals(objects, sum(r.bytes for r in swept) - sum(r.bytes for r in back))


def _holders_in_scan(scan: ScanSnapshot | None, watermark: int) -> list[DatedHolder]:
    """Return the partition of an external log that holds M, according to the newest scan."""
    row = next((r for r in scan.epochs if r.held_by), None) if scan is not None else None
    if row is None:
        return []
    topic, _, partition = row.held_by.rpartition("/")
    number = int(partition) if partition.isdecimal() else -1
    return [DatedHolder(topic, number, watermark, REPORTED, _HELD_BY_EXTERNAL_LOG)]


def _held_objects(o: Overview) -> dict[int, int]:
    """Return the L0 objects above M at the last scan, by the number of ticks until they are free."""
    objects: dict[int, int] = {}
    due = tick_is_due(o.as_of_ms - o.epoch_ms, o.interval_ms)
    for r in o.scan.epochs if o.scan is not None else []:
        if r.epoch is not None and r.epoch > o.watermark:
            ticks = o.logs.ticks_until_free(r.epoch, due=due)
            objects[ticks] = objects.get(ticks, 0) + r.objects
    return objects


def _is_idle(store: ObjectStore, o: Overview, published: PublishedWatermark) -> bool:
    """Return whether `gc` would skip the computation of M because it would release nothing, although M could rise."""
    m = o.computable_watermark
    if m is None or m <= published.watermark or o.watermark_error is not None:
        return False  # the M of an external log is not computed here
    landed = landed_number((topic.revision, state.landed) for topic, _, state in o.logs.topics())
    note = read_gc_note(store)
    return bool(compute_not_due(published, note, lowest=m, landed=landed, now_ms=o.as_of_ms))


def _lag(controller: Controller, o: Overview) -> tuple[int | None, bool]:
    """Return how long M has not moved, and whether that is only a lower bound, since the log no longer shows it."""
    if o.external_log or o.lowest_held > o.cluster_epoch:
        return None, False
    if o.lowest_held == o.cluster_epoch:
        return 0, False
    began_ms = None
    with suppress(CorruptObjectError, StoreError):
        began_ms = controller.began_ms(o.lowest_held + 1)
    if began_ms is not None:
        return max(0, o.as_of_ms - began_ms), False
    oldest_held_ms = o.garbage.oldest_held_ms if o.garbage is not None else None  # this object is above M
    moments = [o.epoch_ms, *([o.published_ms] if o.published_ms >= 0 else []), oldest_held_ms]
    return max(0, o.as_of_ms - min(ms for ms in moments if ms is not None)), True


# -- pins and tables ----------------------------------------------------------------------------------------------------


def _pins(o: Overview) -> list[PinCost]:
    """Return the pins, and the amounts that they keep. A row of a scan without holders is an epoch that only pins hold,
    or that is newer than the scan's M.
    """
    state = o.logs.snapshot
    costs = []
    for p in sorted(state.pins.values(), key=lambda p: p.revision):
        above = max(o.watermark, p.watermark)
        l0 = 0 if p.level_one else -1
        if o.scan is not None and not p.level_one:
            free = (r for r in o.scan.epochs if r.epoch is not None and not r.holders)
            l0 = sum(r.bytes for r in free if above < (r.epoch or 0) <= o.scan.totals.cluster_epoch)
        watermark, l1 = None if p.level_one else above, o.logs.dropped_bytes(p)
        table = next((t.table for t in state.tables.values() if p.name.startswith(t.pin_prefix)), "")
        costs.append(PinCost(p.name, watermark, p.created_ms, p.end_ms, p.why, l0, l1, table))
    return costs


def _table(o: Overview, t: TopicTable) -> TableState:
    state = o.logs.snapshot
    deleted = state.topic_of(t) is None
    name = f"{t.table} of {'deleted ' if deleted else ''}topic {t.topic}"
    remedy = f"l0gc table {'drop' if deleted else 'sync'} {t.topic}"
    pins = sorted((p for p in state.pins_of(t).values() if p.in_effect), key=lambda p: p.revision)
    if not pins:
        none = f"{name} was not synced yet, or its pins have ended since: vacuum may delete what it names"
        return TableState(t.topic, t.table, t.catalog, overdue=True, sentence=none, remedy=remedy)
    newest, kept = pins[-1], o.logs.dropped_bytes(pins[0])
    overdue = deleted or o.as_of_ms - due_ms(newest) > TABLE_OVERDUE_MS
    sentence = (
        f"{name} was synced about {span(o.as_of_ms - newest.created_ms)} ago and can be read until {moment(newest.end_ms)}: "
        f"{count(len(pins), 'pin')} of it {'keeps' if len(pins) == 1 else 'keep'} {size(kept)} of dropped L1"
    )
    times = (newest.created_ms, newest.end_ms)
    return TableState(
        t.topic, t.table, t.catalog, len(pins), *times, kept, overdue, sentence, remedy if overdue else ""
    )


# -- the journals -------------------------------------------------------------------------------------------------------


def read_journals(
    cluster: ClusterHandles,
    snapshot: ControllerState,
    published: int,
    noted: Mapping[str, LogEnd] = {},
    *,
    whole: bool = False,
) -> Journals:
    """Read all journals of a cluster, including those without a topic, since topics that the controller lost may be in
    any of them.

    Args:
        published: the published M, below which no M(p) is; -1 if none is published.
        noted: where the logs ended before.
        whole: whether to read the L1 rows, too.

    Raises:
        StoreUnreachableError: the store is unreachable.
    """

    def read(task: JournalTask) -> JournalReading:
        return JournalReading(task.journal, *sum_up(task, cluster.journal(task.journal).replica, whole=whole))

    return Journals(snapshot, cluster.parallel.map(read, tasks_of(snapshot, published, noted=noted)), published)


def _check_journals(cluster: ClusterHandles, o: Overview, published: PublishedWatermark | None) -> None:
    """Complete the overview from the journals' states."""
    logs, m = o.logs, o.logs.watermark
    o.computable_watermark = m.watermark
    if m.watermark < m.cluster_epoch:
        o.held_partitions = max(logs.partitions_at(m.watermark), len(m.held_back_by))
        o.windows = logs.windows_at(m.watermark)
    o.damaged_journals = [r.error for r in logs.readings if r.summary.damaged]
    o.highest, o.forgotten, o.set_back = logs.highest(), logs.forgotten(), logs.set_back(published)
    o.errors, o.unclosed = logs.errors, logs.unclosed(o.as_of_ms)
    if published is not None:
        newest = max(published.watermark, published.cluster_epoch)
        o.highest = max(o.highest, (newest, f"what is in {PUBLISHED_WATERMARK}"))
    # The epoch is read last, so that newer entries are not mistaken for the remains of another log.
    now = cluster.controller.snapshot()
    o.cluster_epoch, o.epoch_ms = now.epoch, now.time_ms

    failed = o.failed("reconcile")
    suspect = o.cluster_epoch - m.watermark > NORMAL_LAG or failed is not None
    why = "" if failed is None else failed.error
    written: dict[str, int] = {}
    try:
        written, o.damaged, o.giving_up = check_holders(cluster, logs, m.held_back_by, suspect=suspect, named=why)
    except StoreError as e:
        _raise_if_unreachable(e)
        o.notes.append(f"the L0 objects that hold M were not checked: {e}")
    o.held_back_by = [
        DatedHolder(**msgspec.structs.asdict(h), oldest_ms=written.get(h.key, -1)) for h in m.held_back_by
    ]
    o.l1 = amounts_of(logs.snapshot, (state for _, state in logs.states()))
    needed = [(topic.name, u) for topic, _, state in logs.topics() for u in state.objects]
    o.unreconciled_bytes = sum(extent_bytes(u) for _, u in needed)
    if not (o.errors or o.set_back or o.forgotten):  # each of these holds M alone
        o.laggards = find_laggards(needed, logs.free_below(), o.scan, now_ms=o.as_of_ms, giving_up=o.giving_up)


def check_holders(
    cluster: ClusterHandles, journals: Journals, holders: Iterable[Holder], *, suspect: bool = True, named: str = ""
) -> tuple[dict[str, int], str, str]:
    """Check the objects that hold these partitions.

    Returns when each object was written, a sentence about a damaged one, and the command that gives up its records in
    the first partition that it holds.

    Args:
        suspect: whether there is a reason to compare their contents with the log.
        named: the error of a failed reconcile. The objects that it names are checked, too.
    """
    by_data = [h for h in holders if h.kind == UNRECONCILED]
    extents = [(h, extent) for h in by_data if (extent := journals.extent_of(h)) is not None]
    extents += _named(journals, named, {extent.key for _, extent in extents})
    keys = list(dict.fromkeys(e.key for _, e in extents))

    def head_of(key: str) -> Head | str | None:
        """Return an object's size and time, or why they cannot be read; None if the store does not serve it at present."""
        try:
            return ask_of_one(cluster.store, cluster.store.head, key)
        except UnansweredObjectError:
            return None
        except RefusedObjectError as e:
            return str(e)
        except ObjectNotFoundError:
            return "it is missing"

    heads = dict(zip(keys, cluster.parallel.map(head_of, keys), strict=True))
    written = {key: head.modified_ms for key, head in heads.items() if isinstance(head, Head)}
    for h, extent, text in _suspects(cluster.store, extents, heads, named) if suspect else ():
        # It may have been reconciled and swept since, in which case the journal no longer refers to it.
        topic = journals.snapshot.topics[h.topic]
        state = cluster.journal(topic.journal_of(h.partition)).catch_up(whole=False).topic(topic.revision)
        if extent in state.extents(h.partition):
            giving_up = state.how_to_give_up(h.partition, extent.base_offset)
            return written, f"reconcile fails on object {extent.key}: {text}", giving_up
    return written, "", ""


def _named(journals: Journals, text: str, excluded: Collection[str]) -> Iterator[tuple[Holder, Extent]]:
    """Yield the L0 objects that the error of a failed run names and that a partition needs, whatever holds M at
    present.
    """
    layout = KeyLayout(journals.snapshot.key_template, journals.snapshot.shards)
    keys = {word for w in text.split() if layout.parse(word := w.strip(",;:'")) is not None} - {*excluded}
    for key in sorted(keys):
        for _, topic, unreconciled in journals.naming(key)[:1]:
            holder = journals.holder(topic, int(unreconciled.extents[0]["partition"]))
            extent = journals.extent_of(msgspec.structs.replace(holder, key=key))
            if extent is not None:
                yield holder, extent


def _suspects(
    store: ObjectStore,
    extents: Sequence[tuple[Holder, Extent]],
    heads: Mapping[str, Head | str | None],
    named: str,
) -> Iterator[tuple[Holder, Extent, str]]:
    """Yield the L0 objects that differ from the log. The sizes of all objects are checked, and one block of one object
    is read.

    Args:
        named: the error of a failed reconcile. The block is read from an object that it names, or else from the first
            object.
    """
    from l0gc.streamlog.ingest.extents import (
        decode_block,
        fetch_blocks,
    )  # this loads Arrow, which most calls do not need

    for h, extent in extents:
        head = heads[extent.key]
        if head is None:
            continue  # it may be intact
        if isinstance(head, str) or head.size < extent.block.start + extent.block.length:
            yield h, extent, head if isinstance(head, str) else "it is too short"
    for h, extent in ([(h, e) for h, e in extents if e.key in named] or extents)[:1]:
        try:
            (body,) = fetch_blocks(store, extent.key, [extent.block])
            decode_block(body, extent.key, extent.block)
        except ObjectNotFoundError:
            yield h, extent, "it is missing"
        except UnansweredObjectError:
            pass
        except RefusedObjectError as e:
            yield h, extent, str(e)
        except CorruptObjectError:
            yield h, extent, "it does not match the checksum in the log"
