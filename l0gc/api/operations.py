"""What operators ask of a cluster, and what they decide by hand: the methods of the library beyond the daily work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from l0gc.api.engine import Engine, Work
from l0gc.api.groups import checked, records_of
from l0gc.errors import CorruptObjectError, UsageError
from l0gc.events import Progress, quiet
from l0gc.formatting import STANDARD_PRICE
from l0gc.runtime import user_at_host
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import Cluster as Handles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from l0gc.collect.pause import NewPause, Pause
    from l0gc.collect.runs import UndeleteResult
    from l0gc.inspect.doctor.checkup import Check, DoctorResult
    from l0gc.inspect.explain import Explanation
    from l0gc.inspect.log import Shown
    from l0gc.inspect.report.page import Report
    from l0gc.inspect.status import Status
    from l0gc.inspect.verify.findings import VerifyResult
    from l0gc.streamlog.topics import AdvancedEpoch

OBJECTS_FOR_SPARK: Final = 1_000_000
"""So many objects are listed on Spark: fewer are listed here before it has started."""


class Operations:
    """The part of a cluster that operators use."""

    store: S3Store
    handles: Callable[[], Handles]
    _config: StoreConfig

    @property
    def epoch(self) -> int:
        """The cluster epoch, read now."""
        return self.handles().controller.snapshot().epoch

    def status(self, *, price_gb_month: float = STANDARD_PRICE) -> Status:
        """M, what holds it back and why, and what to do next. As `l0gc status`.

        Args:
            price_gb_month: dollars for a GB and month.
        """
        from l0gc.inspect.status import status

        return status(self.handles(), price_gb_month)

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
            return explain_key(self.handles(), key.removeprefix(self.store.config.url))
        if epoch is not None:
            return explain_epoch(self.handles(), epoch)
        return explain_partition(self.handles(), partition or "")

    def doctor(self, *, progress: Callable[[str], None] = lambda check: None) -> DoctorResult:
        """Check the store, the credentials, this machine and the cluster. As `l0gc doctor`; a failure is not raised.

        Args:
            progress: called with the name of each part before it is checked.
        """
        from l0gc.inspect.doctor import cluster, machine, store
        from l0gc.inspect.doctor.checkup import FAILURE, DoctorResult, guarded

        handles, bucket = self.handles(), self.store
        parts: list[tuple[str, Callable[[], Iterable[Check]], str]] = [
            ("java", machine.java, "install Java 17 or newer"),
            ("spark", machine.spark, "pip install l0gc"),
            ("versions", machine.versions, "pip install l0gc"),
            ("bucket", lambda: store.reachable(bucket, handles.runtime), "check --url, --endpoint-url and --profile"),
            ("permissions", lambda: store.permissions(bucket, handles.runtime), "check the credentials' policy"),
            ("settings", lambda: store.settings(bucket), "ask the owner of the bucket"),
            ("store", lambda: store.promises(bucket, handles.runtime), "see what the store says above"),
            ("cluster", lambda: cluster.cluster(handles), "see docs/operations.md, recovery"),
        ]
        checks: list[Check] = []
        for name, check, remedy in parts:
            progress(name)
            found = guarded(name, check, remedy)
            checks += found
            if name == "bucket" and any(c.status == FAILURE for c in found):
                break  # without a bucket the rest says the same over and over
        return DoctorResult(checks)

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
        from l0gc.inspect.verify.basis import check_log_is_ours
        from l0gc.inspect.verify.run import verify

        cluster, config, engine = self.handles(), self._config, Engine.of(spark)
        check_log_is_ours(cluster.controller.snapshot())  # said before Spark starts
        kind, _ = engine.choose(Work(self._counted, "objects counted by the last scan", here=OBJECTS_FOR_SPARK))
        with engine.workers(cluster, config, kind, progress) as workers:
            return verify(cluster, workers, deep=deep, min_age_ms=int(min_age_s * 1000))

    def _counted(self) -> int:
        """How many objects the last computation of M counted; -1 if it counted none, or nobody knows."""
        from l0gc.watermark.publication import read_any

        with suppress(CorruptObjectError):
            published, _ = read_any(self.store)
            return -1 if published is None else published.listed_objects
        return -1

    def report(self, *, findings: Path | None = None, price_gb_month: float = STANDARD_PRICE) -> Report:
        """A page about the cluster, as one HTML file, and what it shows. As `l0gc report`.

        Args:
            findings: show what `l0gc verify --json` printed into this file, too.
            price_gb_month: dollars for a GB and month.
        """
        from l0gc.inspect.report.facts import gather, read_findings
        from l0gc.inspect.report.page import Report, render

        found = None if findings is None else read_findings(findings)
        facts = gather(self.handles(), self.store.config.url, price_gb_month=price_gb_month, findings=found)
        return Report(facts, render(facts))

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
        result = undelete(cluster, run_id, records=records_of(cluster, record_dir))
        return checked(result, result.problem)
