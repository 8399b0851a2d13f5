"""Which steps of `l0gc gc` are due, read from the bucket when each comes up, and what a run keeps for the next to decide by.

`collect/gc_steps.py` and each step's own module decide; here the facts are read. If they are unknown, the step is due: an
unneeded run only costs time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from l0gc.collect.attempts import read_gc_note, write_gc_note
from l0gc.collect.gc_steps import SCAN_EVERY_MS, GcNote, compute_not_due, sweep_not_due
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.controller.entries import UNLIMITED
from l0gc.watermark.publication import PublishedWatermark, read_published

if TYPE_CHECKING:
    from l0gc.collect.sweep import SweepResult
    from l0gc.streamlog.garbage import JournalGarbage
    from l0gc.streamlog.level_one.merge_plan import MergeRule
    from l0gc.watermark.pipeline import WatermarkResult


class Due:
    """Each `no_…` says why its step is not due, or nothing if it is. In a dry run, and on an external log, all are."""

    def __init__(
        self, cluster: Cluster, rule: MergeRule, *, dry_run: bool, l1_grace_s: float, orphan_age_s: float
    ) -> None:
        self._cluster, self._rule, self._dry_run = cluster, rule, dry_run
        self._l1_grace_ms, self._orphan_age_ms = int(l1_grace_s * 1000), int(orphan_age_s * 1000)
        self._all = dry_run or cluster.identity().external_log
        self._note = GcNote()
        self._landed = -1
        self._garbage: JournalGarbage | None = None

    def no_reconcile(self) -> str:
        from l0gc.streamlog.level_one.reconcile import has_work

        return "" if self._all or has_work(self._cluster) else "everything is in L1"

    def no_merge(self) -> str:
        from l0gc.streamlog.level_one.merge import merge_due

        due = self._all or merge_due(self._cluster, rule=self._rule)
        return "" if due else "no partition has L1 objects that should be one"

    def no_expiry(self) -> str:
        state = self._cluster.controller.snapshot()
        kept = [state.retention(t) for t in state.topics.values()]
        limited = any(r.ms != UNLIMITED or r.bytes != UNLIMITED for r in kept)
        return "" if self._all or limited else "no topic has a retention"

    def no_watermark(self) -> str:
        from l0gc.streamlog.journal_totals import journal_totals

        if self._all:
            return ""
        self._note = read_gc_note(self._cluster.store)
        now = journal_totals(self._cluster)
        self._landed = now.landed
        published = self._published()
        now_ms = self._cluster.store.now_ms()
        return compute_not_due(published, self._note, lowest=now.lowest, landed=now.landed, now_ms=now_ms)

    def computed(self, result: WatermarkResult) -> None:
        """Keep for the next run what M was computed from."""
        published, listing = self._published(), result.listing
        if self._dry_run or published is None:
            return
        held = -1
        if listing is not None:
            held = listing.objects - listing.eligible_objects - listing.unparsable
        self._keep(landed=self._landed, published_ms=published.published_at_ms, held=held)

    def no_sweep(self) -> str:
        return "" if self._all else sweep_not_due(self._published(), self._note)

    def swept(self, result: SweepResult) -> None:
        """Keep for the next run up to where nothing is left."""
        if not self._dry_run and result.eligible == result.deleted and not result.stopped and not result.paused:
            self._keep(swept=result.watermark)

    def no_vacuum(self) -> str:
        if self._all:
            return ""
        source = self._garbage_now()
        dropped = source.is_due(self._cluster.store.now_ms() - self._l1_grace_ms)
        if dropped or source.broken or self.orphans():
            return ""
        return "nothing that was dropped has had its grace, and orphans were searched for within a day"

    def orphans(self) -> bool:
        """Whether it is time to look for orphans, which takes a listing."""
        if self._all:
            return True
        before_ms = self._cluster.store.now_ms() - self._orphan_age_ms - SCAN_EVERY_MS
        return self._garbage_now().scan_due(before_ms)

    def _garbage_now(self) -> JournalGarbage:
        from l0gc.streamlog.garbage import JournalGarbage

        if self._garbage is None:
            self._garbage = JournalGarbage(self._cluster)
            self._garbage.refresh()
        return self._garbage

    def _published(self) -> PublishedWatermark | None:
        return read_published(self._cluster.store, self._cluster.identity().cluster_id)[0]

    def _keep(self, **fields: int) -> None:
        self._note = msgspec.structs.replace(self._note, **fields)
        write_gc_note(self._cluster.store, self._note)
