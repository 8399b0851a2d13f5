"""What an operator on call wants to know first: M, how old it is, what holds it back and why, and what to do next.

Read from the journals themselves (`journals.py`), as M is. `causes.py` draws the conclusions. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any, Final, NamedTuple

import msgspec

from l0gc.collect.attempts import read_attempts
from l0gc.collect.gc_steps import SWEEP
from l0gc.collect.pause import read_pause
from l0gc.collect.record import Removed
from l0gc.collect.runs import RunEntry, newest_runs
from l0gc.epoch import NO_WATERMARK
from l0gc.errors import (
    ClusterMismatchError,
    CorruptObjectError,
    NotFoundError,
    ObjectNotFoundError,
    SetBackError,
    StoreError,
)
from l0gc.formatting import STANDARD_PRICE, dollars_month
from l0gc.inspect.causes import (
    DAMAGED_WATERMARK,
    FOREIGN_WATERMARK,
    NORMAL_LAG,
    find_causes,
    find_warnings,
    next_step,
)
from l0gc.inspect.journals import Held, Journals, Overview, PinHeld, read_journals
from l0gc.inspect.laggards import Laggards, find_laggards, unpinned_below
from l0gc.inspect.tables import tables_held
from l0gc.keys import PUBLISHED_WATERMARK, KeyLayout
from l0gc.storage.objectstore import Head, if_there
from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.controller.decisions import tick_is_due
from l0gc.streamlog.journal.holes import how_to_give_up
from l0gc.streamlog.journal.topic import Extent
from l0gc.watermark.publication import PublishedWatermark, check_set_back, read_published
from l0gc.watermark.scans import ScanSnapshot, list_scans, read_scan
from l0gc.watermark.source import UNRECONCILED, Holder

RUNS_SHOWN: Final = 3
_SCANS_TRIED: Final = 5


class Status(Overview, kw_only=True):
    """The cluster as it is now.

    Attributes:
        eligible_objects: what the scan at `eligible_as_of_ms` found eligible; -1 where nothing is known.
        deleted_since: what sweeps have deleted of L0 since then.
    """

    journals: int
    published_ms: int
    eligible_objects: int
    eligible_bytes: int
    eligible_as_of_ms: int
    deleted_since: Removed

    @property
    def left_bytes(self) -> int:
        return max(0, self.eligible_bytes - self.deleted_since.bytes)

    @property
    def dollars_month(self) -> float | None:
        """What the garbage that is left costs a month; None if nobody knows."""
        return dollars_month(self.left_bytes, self.price_gb_month) if self.eligible_objects >= 0 else None

    @property
    def lag_epochs(self) -> int:
        return self.cluster_epoch - self.watermark

    def to_json(self) -> dict[str, Any]:
        """The fields, and what follows from them."""
        return super().to_json() | {
            "lag_epochs": self.lag_epochs,
            "dollars_month": None if self.dollars_month is None else round(self.dollars_month, 6),
            "attempts": [msgspec.to_builtins(a) | {"ok": a.ok} for a in self.attempts],
        }


def status(cluster: Handles, price_gb_month: float = STANDARD_PRICE) -> Status:
    """The cluster as it is now.

    Raises:
        NotInitialisedError: no cluster exists here.
        CorruptObjectError: the controller's log cannot be read, so nothing is known.
    """
    return status_and_journals(cluster, price_gb_month)[0]


def status_and_journals(cluster: Handles, price_gb_month: float) -> tuple[Status, Journals]:
    """The same, and the journals that it was read from; none of them if the log is external."""
    # What is published comes before what is compared with it: a topic that M was computed without is gone then.
    published, watermark_error = _published(cluster, cluster.controller.snapshot().cluster_id)
    state = cluster.controller.snapshot()
    now_ms = cluster.store.now_ms()
    runs, damaged_record = _runs(cluster, now_ms)
    known = published or PublishedWatermark(state.cluster_id, NO_WATERMARK, -1, -1)
    counted = known.eligible_objects >= 0
    deleted = deleted_since(runs, known.published_at_ms) if counted else Removed()
    s = Status(
        cluster_id=state.cluster_id,
        external_log=state.external_log,
        as_of_ms=now_ms,
        local_ms=cluster.runtime.clock.now_ms(),
        cluster_epoch=known.cluster_epoch if state.external_log else state.epoch,
        epoch_ms=-1 if state.external_log else state.time_ms,
        interval_ms=int(cluster.epoch_interval_s * 1000),
        layout=KeyLayout(state.key_template, state.shards),
        topics=len(state.topics),
        partitions=state.partition_count,
        journals=len(state.journals_in_use()),
        watermark=known.watermark,
        watermark_error=watermark_error,
        published_ms=known.published_at_ms,
        eligible_objects=known.eligible_objects if counted else -1,
        eligible_bytes=known.eligible_bytes if counted else -1,
        eligible_as_of_ms=known.published_at_ms if counted else -1,
        deleted_since=deleted,
        left_objects=max(0, known.eligible_objects - deleted.objects) if counted else -1,
        runs=runs,
        damaged_record=damaged_record,
        attempts=list(read_attempts(cluster.store, cluster.parallel).values()),
        paused=read_pause(cluster.store),
        price_gb_month=price_gb_month,
    )
    journals = Journals(state)
    scan = cache(partial(newest_scan, cluster, s.cluster_id))
    if not state.external_log:
        journals = read_journals(cluster, state, s.watermark)
        _look(cluster, journals, s, published)
        if not s.set_back:
            s.laggards = see_laggards(scan, journals, s.as_of_ms, giving_up=s.giving_up)
    s.pins = _pins(scan, journals, s)
    s.tables = tables_held(state, journals.dropped_bytes, s.as_of_ms)
    s.records, s.unreconciled_records, s.lost_records, s.holes = journals.records()
    s.causes, s.warnings = find_causes(s), find_warnings(s)
    if not s.causes and not state.external_log and published is not None and s.left_objects == 0:
        s.held_objects = _held_objects(scan(), journals, s)
    s.lag_ms, s.lag_at_least = _lag(cluster, s, published)
    s.next = next_step(s, s.causes)
    return s, journals


def _published(cluster: Handles, cluster_id: str) -> tuple[PublishedWatermark | None, tuple[str, str] | None]:
    """What is published; or why that cannot be used."""
    try:
        return read_published(cluster.store, cluster_id)[0], None
    except ClusterMismatchError as e:
        return None, (FOREIGN_WATERMARK, str(e))
    except CorruptObjectError as e:
        return None, (DAMAGED_WATERMARK, str(e))


def _runs(cluster: Handles, now_ms: int) -> tuple[list[RunEntry], str]:
    """The last sweeps; none, and why, if a record of one cannot be read."""
    try:
        return newest_runs(cluster.store, RUNS_SHOWN, now_ms), ""
    except ObjectNotFoundError:
        return [], ""  # a record has expired since it was listed
    except CorruptObjectError as e:
        return [], str(e)


ReadScan = Callable[[], ScanSnapshot | None]
"""Gives the newest listing; None where it cannot be read."""


def newest_scan(cluster: Handles, cluster_id: str, notes: list[str] | None = None) -> ScanSnapshot | None:
    """The newest scan that can be read, of the last few; None without one.

    Args:
        notes: gets a sentence for each that cannot be read.
    """
    notes = [] if notes is None else notes
    try:
        for key in list_scans(cluster.store)[: -_SCANS_TRIED - 1 : -1]:
            try:
                return read_scan(cluster.store, key, cluster_id)
            except ObjectNotFoundError:
                continue  # it has expired since it was listed
            except (CorruptObjectError, ClusterMismatchError) as e:
                notes.append(f"an older scan is shown, or none: {e}")
    except (StoreError, NotFoundError) as e:
        notes.append(f"no scan is shown: {e}")
    return None


def _held_objects(scan: ScanSnapshot | None, journals: Journals, s: Status) -> dict[int, int]:
    """The L0 objects above M, as the last scan saw them, by how many ticks from now they are free.

    Empty without a readable scan.
    """
    held: dict[int, int] = {}
    due = tick_is_due(s.as_of_ms - s.epoch_ms, s.interval_ms)
    for r in scan.epochs if scan is not None else []:
        if r.epoch is not None and r.epoch > s.watermark:
            ticks = journals.ticks_until_free(r.epoch, due=due)
            held[ticks] = held.get(ticks, 0) + r.objects
    return held


def _pins(read_scan: ReadScan, journals: Journals, s: Status) -> list[PinHeld]:
    """The pins, and what they hold. A scan's rows without holders are epochs that only pins hold, or newer than its M."""
    pins, tables = journals.snapshot.pins.values(), journals.snapshot.tables.values()
    scan = read_scan() if any(not p.level_one for p in pins) else None
    found = []
    for p in sorted(pins, key=lambda p: p.revision):
        above = max(s.watermark, p.watermark)
        l0 = 0 if p.level_one else -1
        if scan is not None and not p.level_one:
            free = (r for r in scan.epochs if r.epoch is not None and not r.holders)
            l0 = sum(r.bytes for r in free if above < (r.epoch or 0) <= scan.totals.cluster_epoch)
        held = None if p.level_one else above
        l1 = journals.dropped_bytes(p)
        table = next((t.table for t in tables if p.name.startswith(t.pin_prefix)), "")
        found.append(PinHeld(p.name, held, p.created_ms, p.end_ms, p.why, l0, l1, table))
    return found


def see_laggards(read_scan: ReadScan, journals: Journals, now_ms: int, *, giving_up: str) -> Laggards | None:
    """Who lags, and what that costs; see `find_laggards`. None where a journal cannot be read, which holds M itself."""
    if journals.errors:
        return None
    below = unpinned_below(journals.snapshot)
    return find_laggards(journals.windows(), below, read_scan, now_ms=now_ms, giving_up=giving_up)


def deleted_since(runs: Iterable[RunEntry], since_ms: int) -> Removed:
    """The L0 objects deleted by sweeps that began at `since_ms` or later. Vacuums do not count.

    A run's name says when `gc` began, which counts the garbage itself before it sweeps; its summary says when it swept.
    """
    ended = [r.summary for r in runs if r.summary is not None and r.summary.started_ms >= since_ms]
    swept = [r for r in ended if r.command == SWEEP]
    return Removed(sum(r.deleted for r in swept), sum(r.bytes for r in swept))


def _lag(cluster: Handles, s: Status, published: PublishedWatermark | None) -> tuple[int | None, bool]:
    if s.external_log or s.watermark > s.cluster_epoch:
        return None, False
    if s.watermark == s.cluster_epoch:
        return 0, False
    began_ms = None
    with suppress(CorruptObjectError):
        began_ms = cluster.controller.began_ms(s.watermark + 1)
    if began_ms is not None:
        return max(0, s.as_of_ms - began_ms), False
    known = [s.epoch_ms] + ([published.published_at_ms] if published is not None else [])
    return max(0, s.as_of_ms - min(known)), True


# -- the journals ---------------------------------------------------------------------------------------------------------


def _look(cluster: Handles, journals: Journals, s: Status, published: PublishedWatermark | None) -> None:
    """Complete `s` by what the journals say."""
    m = journals.watermark
    s.computable_watermark = m.watermark
    if m.watermark < m.cluster_epoch:
        s.held_partitions = max(journals.at(m.watermark), len(m.held_back_by))
        s.windows = journals.windows_at(m.watermark)
    s.damaged_journals = [r.error for r in journals.readings if r.summary.damaged]
    s.highest, s.forgotten = journals.highest(), journals.forgotten()
    s.errors, s.unclosed = journals.errors, journals.unclosed(s.as_of_ms)
    try:
        for r in journals.readings:
            check_set_back(published, r.summary)  # hazard 38
    except SetBackError as e:
        s.set_back = str(e)
    if published is not None:
        known = max(published.watermark, published.cluster_epoch)
        s.highest = max(s.highest, (known, f"what is in {PUBLISHED_WATERMARK}"))
    # Read last, so that what was written since is not taken for what another log has left here.
    now = cluster.controller.snapshot()
    s.cluster_epoch, s.epoch_ms = now.epoch, now.time_ms

    failed = s.failed("reconcile")
    suspect = s.cluster_epoch - m.watermark > NORMAL_LAG or failed is not None
    seen = see_objects(cluster, journals, m.held_back_by, suspect=suspect, named="" if failed is None else failed.error)
    s.damaged, s.giving_up = seen.damaged, seen.giving_up
    s.held_back_by = [Held(**msgspec.structs.asdict(h), oldest_ms=seen.written.get(h.key, -1)) for h in m.held_back_by]


class SeenObjects(NamedTuple):
    """The L0 objects that hold partitions: when each was `written`; which is damaged, as a sentence, with the command that
    gives up its records in the first partition that it holds."""

    written: dict[str, int]
    damaged: str = ""
    giving_up: str = ""


def see_objects(
    cluster: Handles, journals: Journals, holders: Iterable[Holder], *, suspect: bool = True, named: str = ""
) -> SeenObjects:
    """Look at the objects that hold these partitions.

    Args:
        suspect: whether there is a reason to see if they are what the log says.
        named: what reconcile failed on; see `_suspects`.
    """
    by_data = [h for h in holders if h.kind == UNRECONCILED]
    extents = [(h, extent) for h in by_data if (extent := journals.extent_of(h)) is not None]
    keys = list(dict.fromkeys(e.key for _, e in extents))
    heads = dict(zip(keys, cluster.parallel.map(partial(if_there, cluster.store.head), keys), strict=True))
    written = {key: head.modified_ms for key, head in heads.items() if head is not None}
    for h, extent, text in _suspects(cluster, extents, heads, named) if suspect else ():
        # It may have been reconciled and swept since: then the journal refers to it no more.
        topic = journals.snapshot.topics[h.topic]
        state = cluster.journal(topic.journal_of(h.partition)).catch_up().topic(topic.revision)
        if extent in state.extents(h.partition):
            giving_up = how_to_give_up(state, h.topic, h.partition, extent.base_offset)
            return SeenObjects(written, f"reconcile fails on object {extent.key}: {text}", giving_up)
    return SeenObjects(written)


def _suspects(
    cluster: Handles, extents: Sequence[tuple[Holder, Extent]], heads: Mapping[str, Head | None], named: str
) -> Iterator[tuple[Holder, Extent, str]]:
    """The L0 objects that are not what the log says: all are checked by their size, and a block is read of one.

    Args:
        named: what reconcile failed on: that object is the one, or else the first.
    """
    from l0gc.streamlog.ingest.extents import decode_block  # with Arrow, which most calls need not load

    for h, extent in extents:
        head = heads[extent.key]
        if head is None or head.size < extent.block.start + extent.block.length:
            yield h, extent, "it is missing" if head is None else "it is too short"
    for h, extent in ([(h, e) for h, e in extents if e.key in named] or extents)[:1]:
        place = (extent.block.start, extent.block.length)
        try:
            decode_block(cluster.store.get_ranges(extent.key, [place])[0], extent.key, extent.block)
        except ObjectNotFoundError:
            yield h, extent, "it is missing"
        except CorruptObjectError:
            yield h, extent, "it does not match the checksum in the log"
