"""What deletes, what operators ask of a cluster, and what they decide by hand: the methods beyond the daily work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from l0gc.api.cluster import OBJECTS_FOR_SPARK, DailyWork
from l0gc.api.engine import Engine, Work
from l0gc.api.groups import checked, records_of
from l0gc.collect.attempts import recorded_attempt
from l0gc.collect.plan import KEEP_QUARANTINE_S, L1_GRACE_MS, ONE_PROCESS, ORPHAN_AGE_MS, Removal
from l0gc.collect.runs import KEEP_RUNS_S
from l0gc.errors import UsageError
from l0gc.events import Progress, quiet
from l0gc.formatting import STANDARD_PRICE
from l0gc.runtime import user_at_host
from l0gc.streamlog.topics import PARTITIONS_SHOWN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from l0gc.api.results import *
    from l0gc.collect.scan import Deletable
    from l0gc.inspect.log import Shown


class Operations(DailyWork):
    """The part of a cluster that deletes, and that operators use."""

    def sweep(
        self,
        *,
        dry_run: bool = False,
        min_age_s: float = 0,
        max_objects: int | None = None,
        max_rate: float | None = None,
        max_delete_ratio: float | None = None,
        shards: tuple[int, int] | None = None,
        up_to: int | None = None,
        purge_versions: bool = False,
        record: bool = True,
        record_dir: Path | None = None,
        run_id: str | None = None,
        spark: SparkSession | Engine | None = None,
        progress: Progress = quiet,
        stop: threading.Event | None = None,
        gone: Callable[[Sequence[Deletable]], None] | None = None,
    ) -> SweepResult:
        """Delete the L0 objects whose epoch is at or below the published M. As `l0gc sweep`.

        Args:
            dry_run: delete nothing; the result has the numbers that the run would have.
            min_age_s: leave objects that are younger.
            max_objects: delete no more than this many.
            max_rate: delete no more than this many a second.
            max_delete_ratio: stop before deleting more than this share of the bucket.
            shards: the first and the last shard to sweep.
            up_to: delete nothing above this epoch, which is at most M.
            purge_versions: remove every version of what is deleted, for good.
            record: whether the run goes on record.
            record_dir: keep the record in this folder instead of the bucket.
            run_id: the run's name; by default a new one.
            spark: see `reconcile`.
            progress: called after each request with where the run is.
            stop: once it is set, the run finishes its requests in flight, and ends with a `StoppedError`.
            gone: called with the objects of each batch that was deleted, or would be in a dry run, in the order of keys.
        """
        from l0gc.collect.remover import SEGMENTS_IN_HAND
        from l0gc.collect.sweep import Sweep

        wanted = Removal(
            dry_run=dry_run,
            min_age_ms=int(min_age_s * 1000),
            max_objects=max_objects,
            max_rate=max_rate,
            shards=shards,
            up_to=up_to,
            max_delete_ratio=max_delete_ratio,
            purge_versions=purge_versions,
            record=record,
            record_dir=record_dir,
            run_id=run_id or "",
        )
        handles = self.handles()
        work = sweep_work(partial(self._counted, eligible=True), limited=wanted.in_one_process or gone is not None)
        plan = wanted
        with recorded_attempt(handles, "sweep", whole=lambda: plan.whole):
            with (
                self._workers(spark, work, progress) as (workers, why),
                ThreadPoolExecutor(SEGMENTS_IN_HAND) as deleters,
            ):
                result = Sweep(handles, wanted, workers, stop=stop, deleters=deleters).run(reason=why, gone=gone)
            plan = result.plan
            return checked(result)

    def vacuum(
        self,
        *,
        dry_run: bool = False,
        l1_grace_s: float = L1_GRACE_MS / 1000,
        orphan_age_s: float = ORPHAN_AGE_MS / 1000,
        orphans: bool = True,
        max_objects: int | None = None,
        max_rate: float | None = None,
        keep_runs_s: float = KEEP_RUNS_S,
        keep_quarantine_s: float = KEEP_QUARANTINE_S,
        record: bool = True,
        record_dir: Path | None = None,
        run_id: str | None = None,
        spark: SparkSession | Engine | None = None,
        progress: Progress = quiet,
        stop: threading.Event | None = None,
    ) -> VacuumResult:
        """Delete what else is garbage: dropped L1 objects, orphans, old records. As `l0gc vacuum`.

        Args:
            dry_run: delete nothing; the result has the numbers that the run would have.
            l1_grace_s: how long readers may go on with L1 objects that were merged or dropped.
            orphan_age_s: refuse what runs stamped so long ago and have not committed, and delete it.
            orphans: False to leave out the listing that finds orphans.
            max_objects: delete no more than this many.
            max_rate: delete no more than this many a second.
            keep_runs_s: remove the records of runs that are older than this.
            keep_quarantine_s: remove what `give_up` kept longer ago.
            record: see `sweep`, and so for the others.
        """
        from l0gc.collect.remover import SEGMENTS_IN_HAND
        from l0gc.collect.vacuum import Vacuum
        from l0gc.streamlog.garbage import JournalGarbage

        wanted = Removal(
            dry_run=dry_run,
            l1_grace_ms=int(l1_grace_s * 1000),
            orphan_age_ms=int(orphan_age_s * 1000),
            orphans=orphans,
            keep_runs_ms=int(keep_runs_s * 1000),
            keep_quarantine_ms=int(keep_quarantine_s * 1000),
            max_objects=max_objects,
            max_rate=max_rate,
            record=record,
            record_dir=record_dir,
            run_id=run_id or "",
        )
        handles = self.handles()
        with recorded_attempt(handles, "vacuum", whole=wanted.whole):
            source = None if handles.identity().external_log else JournalGarbage(handles)

            def named() -> int:
                if source is None:
                    return 0
                source.refresh()
                return source.objects

            limits = ONE_PROCESS if wanted.in_one_process else ""
            work = Work(named, "objects in L1", OBJECTS_FOR_SPARK, limits=limits, needed=lambda: source is not None)
            with self._workers(spark, work, progress) as (workers, _), ThreadPoolExecutor(SEGMENTS_IN_HAND) as deleters:
                result = Vacuum(handles, wanted, workers, stop=stop, deleters=deleters).run(source)
            return checked(result)

    def expire(self, topic: str | None = None, *, dry_run: bool = False) -> ExpireResult:
        """Delete the records that are beyond their topic's retention, of one topic or of all. As `l0gc expire`.

        Args:
            dry_run: delete nothing; the result is what a run would do.
        """
        from l0gc.streamlog.level_one.expire import expire

        with recorded_attempt(self.handles(), "expire", whole=topic is None and not dry_run):
            return checked(expire(self._handles, topic, dry_run=dry_run, shown=PARTITIONS_SHOWN))

    def delete_records(
        self,
        topic: str,
        partition: int | None = None,
        *,
        before_offset: int | None = None,
        before_time_ms: int | None = None,
        dry_run: bool = False,
    ) -> ExpireResult:
        """Delete the oldest records of one partition, or of all. As `l0gc delete-records`.

        Args:
            before_offset: the first offset that stays; -1 to delete all records that there are now.
            before_time_ms: keep the first record whose timestamp is this one or a later one, and all after it.
            dry_run: delete nothing; the result is what a run would do.
        """
        from l0gc.streamlog.delete_records import delete_records

        result = delete_records(
            self.handles(),
            topic,
            partition,
            before_offset=before_offset,
            before_time_ms=before_time_ms,
            dry_run=dry_run,
            shown=PARTITIONS_SHOWN,
        )
        return checked(result)

    @property
    def epoch(self) -> int:
        """The cluster epoch, read now."""
        return self.handles().controller.snapshot().epoch

    def status(self, *, price_gb_month: float = STANDARD_PRICE) -> Overview:
        """M, what holds it back and why, and what to do next. As `l0gc status`.

        Args:
            price_gb_month: dollars for a GB and month.
        """
        from l0gc.inspect.reading import read_overview

        return read_overview(self.handles(), price_gb_month)

    def explain(self, key: str | None = None, *, epoch: int | None = None, partition: str | None = None) -> Explanation:
        """Why an object is kept or may go, and which command moves it. As `l0gc explain`; one thing at a time.

        Args:
            key: of an object, relative to the URL, or as a whole s3:// URL.
            epoch: what holds the objects of this epoch.
            partition: what this partition holds: `TOPIC/N`.
        """
        from l0gc.inspect.explain import explain_epoch, explain_key, explain_partition

        if sum(x is not None for x in (key, epoch, partition)) != 1:
            raise UsageError("explain one thing: KEY, --epoch E or --partition TOPIC/N")
        if key is not None:
            return explain_key(self.handles(), key.removeprefix(self.store.url))
        if epoch is not None:
            return explain_epoch(self.handles(), epoch)
        return explain_partition(self.handles(), partition or "")

    def doctor(self, *, progress: Callable[[str], None] = lambda check: None) -> DoctorResult:
        """Check the store, the credentials, this machine and the cluster. As `l0gc doctor`; a failure is not raised.

        Args:
            progress: called with the name of each part before it is checked.
        """
        from l0gc.inspect.doctor import examine

        return examine(self.handles(), self.store, progress)

    def verify(
        self,
        spark: SparkSession | Engine | None = None,
        *,
        deep: bool = False,
        min_age_s: float = 3600,
        progress: Progress = quiet,
    ) -> VerifyResult:
        """Check that the bucket holds what the journals say. As `l0gc verify`; findings are not raised.

        Args:
            spark: the session that does the work; without one, this process does it, which suits small buckets.
            deep: read every block that a journal needs and every L1 object, and check what they hold.
            min_age_s: an L1 object that no journal names is a finding when it is older than this.
            progress: called with what is done next.
        """
        from l0gc.inspect.verify.run import check_log_is_ours, verify

        cluster = self.handles()
        check_log_is_ours(cluster.controller.snapshot())  # said before Spark starts
        work = Work(self._counted, "objects counted by the last scan", here=OBJECTS_FOR_SPARK)
        with self._workers(spark, work, progress) as (workers, _):
            return verify(cluster, workers, deep=deep, min_age_ms=int(min_age_s * 1000))

    def report(self, *, findings: Path | None = None, price_gb_month: float = STANDARD_PRICE) -> Report:
        """A page about the cluster, as one HTML file, and what it shows. As `l0gc report`.

        Args:
            findings: show what `l0gc verify --json` printed into this file, too.
            price_gb_month: dollars for a GB and month.
        """
        from l0gc.inspect.report.facts import gather, read_findings
        from l0gc.inspect.report.page import render

        verified = None if findings is None else read_findings(findings)
        where = self.store.config
        report = gather(
            self.handles(), where.url, endpoint_url=where.endpoint_url, price_gb_month=price_gb_month, findings=verified
        )
        report.html = render(report)
        return report

    def log(self, journal: int | None = None, start: int = 0, *, checkpoint: bool = False) -> Iterator[Shown]:
        """What a log holds, from offset `start` on: each has `data`, and `damaged` if it cannot be read. As `l0gc log show`.

        Args:
            journal: by default the controller's log.
            checkpoint: the newest checkpoint comes first, also where no entry is gone.
        """
        from l0gc.inspect.log import show_log

        return show_log(self.handles(), journal, start, checkpoint=checkpoint)

    def advance_epoch(
        self, expect: int | None = None, *, above: int | None = None, close_unknown_topics: bool = False
    ) -> AdvancedEpoch:
        """Advance the cluster epoch by one. As `l0gc epoch advance`.

        Args:
            expect: only if the epoch is this one. Repeated by this user on this host, it advances once.
            above: to the epoch above this one, also where the controller log went back behind what is published.
            close_unknown_topics: with `above`: give up topics that journals hold and the controller log does not know.
        """
        from l0gc.streamlog.topics import AdvancedEpoch, UnknownTopic
        from l0gc.streamlog.topics import close_unknown_topics as close_them

        if above is not None and expect is not None:
            raise UsageError("--expect and --above exclude each other")
        if close_unknown_topics and above is None:
            raise UsageError("--close-unknown-topics goes with --above")
        cluster = self.handles()
        if above is None:
            return AdvancedEpoch(cluster.controller.advance(expect, user_at_host()))
        epoch = cluster.controller.advance_above(above)
        closed = [UnknownTopic(*topic) for topic in close_them(cluster)] if close_unknown_topics else None
        return AdvancedEpoch(epoch, closed)

    def accept_set_back(self, journal: int) -> int:
        """Go on with a journal that was set back to an older copy, because its newest log is gone for good.

        What its lost entries named is then lost. Returns the tick below which nothing lands there any more. As `l0gc
        housekeep --accept-set-back`, which shows first why the journal is refused, and asks.
        """
        from l0gc.streamlog.set_back import accept_set_back

        return accept_set_back(self.handles(), journal)

    def pause(self, why: str, by: str | None = None) -> NewPause:
        """Pause all sweeps of the cluster, wherever they run, until `resume`. As `l0gc pause`.

        Args:
            why: the reason, which every sweep then gives.
            by: who pauses; by default this user on this host.
        """
        from l0gc.collect.pause import NewPause, set_pause

        if not why.strip():
            raise UsageError('--why is empty: say why sweeps are paused, e.g. --why "restoring a backup"')
        if by is not None and not by.strip():
            raise UsageError("--by is empty: say who pauses, or leave it out for user@host")
        cluster = self.handles()
        cluster.identity()
        pause, new = set_pause(cluster.store, why, by or user_at_host())
        return NewPause(pause.why, pause.by, pause.since_ms, new)

    def resume(self) -> Pause | None:
        """Let sweeps go on; the pause that was set, or None. As `l0gc resume`."""
        from l0gc.collect.pause import clear_pause

        cluster = self.handles()
        cluster.identity()
        return clear_pause(cluster.store)

    def undelete(self, run_id: str, *, record_dir: Path | None = None) -> UndeleteResult:
        """Bring back what a sweep or a vacuum deleted from a versioned bucket. As `l0gc undelete`.

        Args:
            record_dir: where the run's record is, if `--record-dir` kept it in a folder.
        """
        from l0gc.collect.runs import undelete

        cluster = self.handles()
        cluster.identity()
        return checked(undelete(cluster, run_id, records=records_of(cluster, record_dir)))


def sweep_work(eligible: Callable[[], int], *, limited: bool) -> Work:
    """How large a sweep is.

    Args:
        eligible: gives what the last scan saw as eligible, -1 without one.
        limited: whether there is a limit, or a record, that only one process can keep.
    """
    return Work(
        eligible,
        "objects were eligible at the last scan",
        OBJECTS_FOR_SPARK,
        limits=ONE_PROCESS if limited else "",
        uncounted="the last compute-watermark did not count what is eligible",
    )
