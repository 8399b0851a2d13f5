"""What an operator on call wants to know first: M, how old it is, what holds it back and why, and what to do next.

Read from the journals themselves (`journals.py`), as M is. `causes.py` draws the conclusions. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec

from l0gc.collect.attempts import Attempt, read_attempts
from l0gc.collect.gc_steps import SWEEP
from l0gc.collect.pause import Pause, read_pause
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
from l0gc.formatting import STANDARD_PRICE, Outcome, dollars_month
from l0gc.inspect.causes import (
    DAMAGED_WATERMARK,
    FOREIGN_WATERMARK,
    NORMAL_LAG,
    Cause,
    Facts,
    find_causes,
    find_warnings,
    next_step,
)
from l0gc.inspect.journals import Journals, head_of, read_journals
from l0gc.keys import PUBLISHED_WATERMARK, KeyLayout
from l0gc.storage.objectstore import Head
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.controller.decisions import tick_is_due
from l0gc.streamlog.ingest.extents import decode_block
from l0gc.streamlog.journal.holes import way_out
from l0gc.streamlog.journal.topic import Extent
from l0gc.watermark.publication import PublishedWatermark, check_set_back, read_published
from l0gc.watermark.scans import list_scans, read_scan
from l0gc.watermark.source import UNRECONCILED, Holder

RUNS_SHOWN: Final = 3


class Held(Holder, frozen=True):
    """A partition that M cannot pass. `oldest_ms` is when the L0 object was written that holds it; -1 if none does."""

    oldest_ms: int = -1


class Overview(msgspec.Struct, Outcome, kw_only=True):
    """How a cluster stands at `as_of_ms`: what `l0gc status` and the page of `l0gc report` have in common.

    All times are the store's clock. Epochs are -1 if unknown.

    Attributes:
        cluster_epoch: for a cluster with an external log, the one that was published with M.
        computable_watermark: M as the journals have it; None for a cluster with an external log.
        lag_ms: how long ago the epoch after M began: what was uploaded since cannot go yet. None if unknown.
        lag_at_least: whether it is longer than that, since that epoch's entry is no longer in the log.
        held_back_by: the first few of the partitions that M stands at; `held_partitions` counts all.
        errors: why journals cannot be read.
        causes, warnings: why M stands or L0 is not swept, and what is wrong but holds nothing; each with its remedy.
        price_gb_month: dollars for a GB and month.
    """

    cluster_id: str
    external_log: bool
    as_of_ms: int
    cluster_epoch: int
    topics: int
    partitions: int
    watermark: int
    computable_watermark: int | None
    lag_ms: int | None
    lag_at_least: bool
    records: int
    unreconciled_records: int
    held_back_by: list[Held]
    held_partitions: int
    errors: list[str]
    paused: Pause | None
    causes: list[Cause]
    warnings: list[Cause]
    next: str
    runs: list[RunEntry]
    price_gb_month: float


class Status(Overview, kw_only=True):
    """The cluster as it is now.

    Attributes:
        epoch_ms: when its epoch began; -1 if it is another system's.
        eligible_objects: what the scan at `eligible_as_of_ms` found eligible; -1 where nothing is known.
        deleted_since: what sweeps have deleted of L0 since then.
        lost_records: records that were given up, in so many `holes`.
    """

    epoch_ms: int
    lost_records: int
    holes: int
    journals: int
    published_ms: int
    eligible_objects: int
    eligible_bytes: int
    eligible_as_of_ms: int
    deleted_since: Removed
    attempts: list[Attempt]

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


def status(cluster: Cluster, price_gb_month: float = STANDARD_PRICE) -> Status:
    """The cluster as it is now.

    Raises:
        NotInitialisedError: no cluster exists here.
        CorruptObjectError: the controller's log cannot be read, so nothing is known.
    """
    return status_and_journals(cluster, price_gb_month)[0]


def status_and_journals(cluster: Cluster, price_gb_month: float) -> tuple[Status, Journals]:
    """The same, and the journals that it was read from; none of them if the log is external."""
    # What is published comes before what is compared with it: a topic that M was computed without is gone then.
    published, watermark_error = _published(cluster, cluster.controller.snapshot().cluster_id)
    state = cluster.controller.snapshot()
    now_ms, local_ms = cluster.store.now_ms(), cluster.runtime.clock.now_ms()
    runs, damaged_record = _runs(cluster, now_ms)
    known = published or PublishedWatermark(state.cluster_id, NO_WATERMARK, -1, -1)
    counted = known.eligible_objects >= 0
    deleted = deleted_since(runs, known.published_at_ms) if counted else Removed()
    facts = Facts(
        KeyLayout(state.key_template, state.shards),
        now_ms,
        local_ms,
        state.epoch,
        state.time_ms,
        int(cluster.epoch_interval_s * 1000),
        external_log=state.external_log,
        watermark=known.watermark,
        watermark_error=watermark_error,
        damaged_record=damaged_record,
        eligible_objects=max(0, known.eligible_objects - deleted.objects) if counted else -1,
        attempts=read_attempts(cluster.store, cluster.parallel),
        pause=read_pause(cluster.store),
    )
    journals = Journals(state)
    held: list[Held] = []
    if not state.external_log:
        journals = read_journals(cluster, state, facts.watermark)
        held = _look(cluster, journals, facts, published)
    records, facts.unreconciled_records, lost_records, holes = journals.records()
    causes = find_causes(facts)
    if not causes and not state.external_log and published is not None and facts.eligible_objects == 0:
        facts.held_objects = _held_objects(cluster, journals, facts)
    lag_ms, at_least = _lag(cluster, facts, published)
    found = Status(
        cluster_id=state.cluster_id,
        external_log=state.external_log,
        as_of_ms=now_ms,
        cluster_epoch=known.cluster_epoch if state.external_log else facts.epoch,
        epoch_ms=-1 if state.external_log else facts.epoch_ms,
        topics=len(state.topics),
        partitions=state.partition_count,
        journals=len(state.journals_in_use()),
        watermark=facts.watermark,
        published_ms=known.published_at_ms,
        computable_watermark=facts.computable,
        lag_ms=lag_ms,
        lag_at_least=at_least,
        records=records,
        unreconciled_records=facts.unreconciled_records,
        lost_records=lost_records,
        holes=holes,
        eligible_objects=known.eligible_objects if counted else -1,
        eligible_bytes=known.eligible_bytes if counted else -1,
        eligible_as_of_ms=known.published_at_ms if counted else -1,
        deleted_since=deleted,
        held_back_by=held,
        held_partitions=facts.held_partitions,
        errors=journals.errors,
        runs=runs,
        attempts=list(facts.attempts.values()),
        paused=facts.pause,
        causes=causes,
        warnings=find_warnings(facts),
        next=next_step(facts, causes),
        price_gb_month=price_gb_month,
    )
    return found, journals


def _published(cluster: Cluster, cluster_id: str) -> tuple[PublishedWatermark | None, tuple[str, str] | None]:
    """What is published; or why that cannot be used."""
    try:
        return read_published(cluster.store, cluster_id)[0], None
    except ClusterMismatchError as e:
        return None, (FOREIGN_WATERMARK, str(e))
    except CorruptObjectError as e:
        return None, (DAMAGED_WATERMARK, str(e))


def _runs(cluster: Cluster, now_ms: int) -> tuple[list[RunEntry], str]:
    """The last sweeps; none, and why, if a record of one cannot be read."""
    try:
        return newest_runs(cluster.store, RUNS_SHOWN, now_ms), ""
    except ObjectNotFoundError:
        return [], ""  # a record has expired since it was listed
    except CorruptObjectError as e:
        return [], str(e)


def _held_objects(cluster: Cluster, journals: Journals, facts: Facts) -> dict[int, int]:
    """The L0 objects above M, as the last scan saw them, by how many ticks from now they are free.

    Empty without a readable scan.
    """
    held: dict[int, int] = {}
    with suppress(StoreError, NotFoundError, CorruptObjectError, ClusterMismatchError):
        keys = list_scans(cluster.store)
        rows = read_scan(cluster.store, max(keys), journals.snapshot.cluster_id).epochs if keys else []
        due = tick_is_due(facts.now_ms - facts.epoch_ms, facts.interval_ms)
        for r in rows:
            if r.epoch is not None and r.epoch > facts.watermark:
                ticks = journals.ticks_until_free(r.epoch, due=due)
                held[ticks] = held.get(ticks, 0) + r.objects
    return held


def deleted_since(runs: Iterable[RunEntry], since_ms: int) -> Removed:
    """The L0 objects deleted by sweeps that began at `since_ms` or later. Vacuums do not count.

    A run's name says when `gc` began, which counts the garbage itself before it sweeps; its summary says when it swept.
    """
    ended = [r.summary for r in runs if r.summary is not None and r.summary.started_ms >= since_ms]
    swept = [s for s in ended if s.command == SWEEP]
    return Removed(sum(s.deleted for s in swept), sum(s.bytes for s in swept))


def _lag(cluster: Cluster, facts: Facts, published: PublishedWatermark | None) -> tuple[int | None, bool]:
    if facts.external_log or facts.watermark > facts.epoch:
        return None, False
    if facts.watermark == facts.epoch:
        return 0, False
    began_ms = None
    with suppress(CorruptObjectError):
        began_ms = cluster.controller.began_ms(facts.watermark + 1)
    if began_ms is not None:
        return max(0, facts.now_ms - began_ms), False
    known = [facts.epoch_ms] + ([published.published_at_ms] if published is not None else [])
    return max(0, facts.now_ms - min(known)), True


# -- the journals ---------------------------------------------------------------------------------------------------------


def _look(cluster: Cluster, journals: Journals, facts: Facts, published: PublishedWatermark | None) -> list[Held]:
    """Complete `facts` by what the journals say; returns what holds M."""
    m = journals.watermark
    facts.computable, facts.holders = m.watermark, m.held_back_by
    if m.watermark < m.cluster_epoch:
        facts.held_partitions = max(journals.at(m.watermark), len(m.held_back_by))
        facts.windows = journals.windows_at(m.watermark)
    facts.damaged_journals = [r.error for r in journals.readings if r.summary.damaged]
    facts.unreadable_journals = [r.error for r in journals.readings if r.error and not r.summary.damaged]
    facts.highest, facts.forgotten = journals.highest(), journals.forgotten()
    facts.unclosed = journals.unclosed(facts.now_ms)
    try:
        for r in journals.readings:
            check_set_back(published, r.summary)  # hazard 38
    except SetBackError as e:
        facts.set_back = str(e)
    if published is not None:
        known = max(published.watermark, published.cluster_epoch)
        facts.highest = max(facts.highest, (known, f"what is in {PUBLISHED_WATERMARK}"))
    # Read last, so that what was written since is not taken for what another log has left here.
    now = cluster.controller.snapshot()
    facts.epoch, facts.epoch_ms = now.epoch, now.time_ms

    by_data = [h for h in m.held_back_by if h.kind == UNRECONCILED]
    extents = [(h, extent) for h in by_data if (extent := journals.extent_of(h)) is not None]
    keys = list(dict.fromkeys(e.key for _, e in extents))
    heads = dict(zip(keys, cluster.parallel.map(partial(head_of, cluster.store), keys), strict=True))
    failed = facts.attempts.get("reconcile")
    if facts.epoch - m.watermark > NORMAL_LAG or (failed is not None and not failed.ok):
        suspects = _suspects(cluster, extents, heads, "" if failed is None else failed.error)
        for h, extent, text in suspects:
            if _still(cluster, journals, h, extent):
                facts.damaged = f"reconcile fails on object {extent.key}: {text}"
                topic = journals.snapshot.topics[h.topic]
                state = cluster.journal(topic.journal_of(h.partition)).state.topic(topic.revision)
                facts.giving_up = way_out(state, h.topic, h.partition, extent.base_offset)
                break
    written = {key: head.modified_ms for key, head in heads.items() if head is not None}
    return [Held(**msgspec.structs.asdict(h), oldest_ms=written.get(h.key, -1)) for h in m.held_back_by]


def _suspects(
    cluster: Cluster, extents: Sequence[tuple[Holder, Extent]], heads: Mapping[str, Head | None], named: str
) -> Iterator[tuple[Holder, Extent, str]]:
    """The L0 objects that are not what the log says: all are checked by their size, and a block is read of one.

    Args:
        named: what reconcile failed on: that object is the one, or else the first.
    """
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


def _still(cluster: Cluster, journals: Journals, holder: Holder, extent: Extent) -> bool:
    """Whether the journal refers to it still: it may have been reconciled and swept since."""
    topic = journals.snapshot.topics[holder.topic]
    state = cluster.journal(topic.journal_of(holder.partition)).catch_up()
    return extent in state.topic(topic.revision).extents(holder.partition)
