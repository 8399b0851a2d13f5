"""A cluster's handles, which end with the `with` block, and the daily work; `operations` and `gc` add more."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from l0gc.api.engine import Engine, Work
from l0gc.api.groups import Pins, Producers, Runs, Tables, Topics, checked
from l0gc.api.reading import Reads
from l0gc.collect.attempts import recorded_attempt
from l0gc.epoch import MAX_EPOCH
from l0gc.errors import CorruptObjectError, UsageError
from l0gc.events import Progress, quiet
from l0gc.formatting import count, size
from l0gc.runtime import user_at_host
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from l0gc.storage.workers import SPARK, Workers
from l0gc.streamlog.cluster import Handles, open_cluster
from l0gc.streamlog.ingest.inputs import AUTO

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from l0gc.api.results import *

BYTES_FOR_SPARK: Final = 1 << 30
"""From so much to rewrite on, Spark is worth its start: with less, this process is done by then."""

OBJECTS_FOR_SPARK: Final = 1_000_000
"""So many objects are listed or deleted on Spark: with fewer, this process is done before it has started.

`benchmarks/run engines` measures it: on 2 cores, next to other work, this process had listed a million keys after 39 s, and
Spark after 86 s, of which its start took 47 s. A key took both as long there, so with 2 cores Spark does not catch up.
"""


class DailyWork(Reads):
    """The part of a cluster that takes records in, keeps them, and computes M."""

    topics: Topics
    """The cluster's topics."""
    producers: Producers
    """Who uploads into it."""
    runs: Runs
    """The records of its past sweeps and vacuums."""
    pins: Pins
    """Who keeps a state of it readable."""
    tables: Tables
    """The Iceberg tables of its topics."""

    def __init__(self, config: StoreConfig, cluster_id: str | None, epoch_interval_s: float) -> None:
        self._stack, self._config, self._closed = ExitStack(), config, False
        opened = open_cluster(config, expected_cluster_id=cluster_id, epoch_interval_s=epoch_interval_s)
        self._handles, self.store = self._stack.enter_context(opened)
        self.topics, self.producers, self.runs = Topics(self.handles), Producers(self.handles), Runs(self.handles)
        self.pins, self.tables = Pins(self.handles), Tables(self.handles)

    def __repr__(self) -> str:
        return f"<l0gc.Cluster {self.url}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """End its threads; a `with` block does it."""
        self._closed = True
        self._stack.close()

    @property
    def url(self) -> str:
        """The bucket and the prefix, as a URL."""
        return self.store.url

    def handles(self) -> Handles:
        if self._closed:
            raise UsageError("the cluster is closed: use it inside its with block, or open it again")
        return self._handles

    def _workers(
        self, spark: SparkSession | Engine | None, work: Work, progress: Progress
    ) -> AbstractContextManager[tuple[Workers[Handles], str]]:
        """Those who do a piece of work, and why it is they."""
        return Engine.of(spark).workers(self.handles(), self._config, work, progress)

    def _counted(self, eligible: bool = False) -> int:
        """How many objects the last computation of M listed, or found eligible; -1 if it counted none, or nobody knows."""
        from l0gc.watermark.publication import read_any

        with suppress(CorruptObjectError):
            published, _ = read_any(self.store)
            if published is not None:
                return published.eligible_objects if eligible else published.listed_objects
        return -1

    def init(
        self,
        *,
        create_bucket: bool = False,
        shards: int | None = None,
        key_template: str | None = None,
        journals: int | None = None,
        external_log: bool = False,
    ) -> FoundedCluster:
        """Try out the store and found the cluster; where it is already, change nothing. As `l0gc init`.

        Args:
            shards: folders that L0 keys are spread over.
            key_template: the shape of L0 keys.
            journals: logs that topics are spread over.
            external_log: epochs and partitions are those of another system, with its own log.
        """
        from l0gc.streamlog.founding import found_cluster

        return found_cluster(
            self.handles(),
            self.store,
            create_bucket=create_bucket,
            shards=shards,
            key_template=key_template,
            journals=journals,
            external_log=external_log,
        )

    def upload(
        self,
        topic: str,
        *sources: Source,
        key_field: str | None = None,
        partition: int | None = None,
        timestamp_field: str | None = None,
        producer: str | None = None,
        batch_bytes: int = 4 << 20,
        format: str = AUTO,
        progress: Progress = quiet,
    ) -> UploadResult:
        """Upload records, and return when they are committed. As `l0gc upload`. An error's `so_far` is what was before it.

        Args:
            sources: paths or binary files of newline-delimited records (`"-"` is stdin), or iterables of records as bytes.
            key_field: each record goes to the partition that this field of its JSON hashes to; the field is its key.
            partition: all records go there. Without either, they are spread round-robin over the partitions.
            timestamp_field: this field of its JSON is a record's create time: milliseconds since 1970, or ISO 8601.
            producer: the name under which a repeated upload lands nothing twice.
            batch_bytes: about so many bytes of records become one L0 object.
            format: `auto` unpacks gzip and zstd, and refuses anything but lines; `raw` takes any bytes as they are.
            progress: called after each batch that is committed, with all that is committed so far.
        """
        from l0gc.streamlog.ingest.inputs import plain_size
        from l0gc.streamlog.ingest.uploader import open_upload
        from l0gc.streamlog.journal.fence import sum_of

        def landed(_: int, __: int) -> None:
            r = uploader.result
            done = min(r.records + r.bytes, total or r.records + r.bytes)  # the last record's newline may be missing
            progress(f"{count(r.records, 'record')}, {size(r.bytes)}", done=done, total=total)

        with ExitStack() as stack:
            uploader, inputs = open_upload(
                self.handles(),
                topic,
                sources,
                stack,
                partition=partition,
                key_field=key_field,
                timestamp_field=timestamp_field,
                producer=producer,
                batch_bytes=batch_bytes,
                form=format,
                progress=landed,
            )
            sizes = [
                i.size if i.size is not None else plain_size(s, format) for s, i in zip(sources, inputs, strict=True)
            ]
            total = None if None in sizes else sum(n or 0 for n in sizes)
            try:
                return uploader.run(inputs)
            except BaseException as e:
                vars(e)["so_far"] = uploader.result
                raise
            finally:
                uploader.result.fence = sum_of([journal.fence.counters for journal in uploader.journals])

    def give_up(
        self, topic: str, partition: int, offsets: tuple[int, int], *, force_readable: bool = False
    ) -> GiveUpResult:
        """Give up lost records that are not in L1, so that the rest of their partition goes on. As `l0gc give-up`.

        Args:
            offsets: the first and the last record; readers find a hole there for ever.
            force_readable: also records that can be read.
        """
        from l0gc.streamlog.give_up import give_up

        return give_up(self.handles(), topic, partition, offsets, user_at_host(), force_readable=force_readable)

    def housekeep(self, *, barrier: bool = False) -> HousekeepResult:
        """Advance the epoch if it is due, move idle journals on, and keep the logs short. As `l0gc housekeep`.

        Args:
            barrier: close every journal's window, so that all that was uploaded before, and is reconciled, can go.
        """
        from l0gc.streamlog.housekeep import housekeep

        with recorded_attempt(self.handles(), "housekeep"):
            return checked(housekeep(self._handles, barrier=barrier))

    def reconcile(
        self,
        spark: SparkSession | Engine | None = None,
        topic: str | None = None,
        *,
        up_to: int | None = None,
        max_bytes: int | None = None,
        round_bytes: int = 4 << 30,
        progress: Progress = quiet,
    ) -> ReconcileResult:
        """Lift unreconciled records from L0 into L1 Parquet, of one topic or of all, the oldest first. As `l0gc reconcile`.

        Args:
            spark: a session, or an engine, that does the work; without one, this process does it, which suits small buckets.
            up_to: lift of each partition what lies at or below this epoch and what lies before that, and no more.
            max_bytes: lift no more of L0 than this, but one log entry's objects at least.
            round_bytes: how much L0 is lifted and committed at once.
            progress: called with what is done next, and the number of `records` that are in L1.
        """
        from l0gc.streamlog.level_one.reconcile import reconcile
        from l0gc.streamlog.level_one.waiting import has_work, waiting_bytes

        handles, epoch = self.handles(), MAX_EPOCH if up_to is None else up_to
        enough = BYTES_FOR_SPARK if max_bytes is None else min(max_bytes, BYTES_FOR_SPARK)
        work = Work(
            lambda: min(enough, waiting_bytes(handles, topic, enough, up_to=epoch)),
            "bytes of L0 not in L1",
            on_cluster=1,
            here=BYTES_FOR_SPARK,
            needed=lambda: has_work(handles, topic, up_to=epoch),
        )
        whole = topic is None and up_to is None and max_bytes is None
        with recorded_attempt(handles, "reconcile", whole=whole):
            progress("reading the journals")
            with self._workers(spark, work, progress) as (workers, _):
                limits: dict[str, Any] = {"round_bytes": round_bytes, "up_to": up_to, "max_bytes": max_bytes}
                result = reconcile(handles, topic, workers=workers, **limits)
            return checked(result)

    def merge(
        self,
        spark: SparkSession | Engine | None = None,
        topic: str | None = None,
        *,
        dry_run: bool = False,
        target_bytes: int = 128 << 20,
        fan_in: int = 4,
        progress: Progress = quiet,
    ) -> MergeResult:
        """Merge small consecutive L1 objects of each partition, of one topic or of all. As `l0gc merge`.

        Args:
            spark: see `reconcile`.
            dry_run: only report what can be merged.
            target_bytes: the most that a merged object may have; one that has half of it is left alone.
            fan_in: a partition may keep one more small object each time that they have grown by this factor.
            progress: called with what is done next, and how many `objects` were merged.
        """
        from l0gc.streamlog.level_one.merge import plan_merge, run_merge
        from l0gc.streamlog.level_one.merge_plan import MergeRule

        handles = self.handles()
        with recorded_attempt(handles, "merge", whole=topic is None and not dry_run):
            progress("reading the journals")
            plan = plan_merge(handles, topic, MergeRule(target_bytes, fan_in))
            result = plan.total
            work = Work(
                lambda: plan.total.bytes_read,
                "bytes of L1 to merge",
                on_cluster=1,
                here=BYTES_FOR_SPARK,
                needed=lambda: plan.total.objects_before > 0,
            )
            if dry_run:
                result.engine, result.dry_run = Engine.of(spark).choose(work)[0], True
            else:
                with self._workers(spark, work, progress) as (workers, _):
                    result = run_merge(handles, plan, workers)
            return checked(result)

    def compute_watermark(
        self,
        spark: SparkSession | Engine | None = None,
        *,
        scan: bool = True,
        external: ExternalEpochs | ExternalFiles | None = None,
        dry_run: bool = False,
        progress: Progress = quiet,
    ) -> WatermarkResult:
        """Compute M from the journals, or from an external log, and publish it. As `l0gc compute-watermark`.

        Args:
            spark: see `reconcile`.
            scan: whether to read the listing, too, and count what is eligible.
            external: what a system with an external log exports, as files or as numbers; None for l0gc's own journals.
            dry_run: publish nothing.
            progress: called with what is done next.
        """
        from l0gc.streamlog.epoch_source import JournalSource
        from l0gc.streamlog.journal.summary import READERS
        from l0gc.watermark.external_log import ExternalLogSource
        from l0gc.watermark.histogram import read_listing
        from l0gc.watermark.pipeline import EpochSource, check_kind, run_pipeline

        handles = self.handles()
        with recorded_attempt(handles, "compute-watermark", whole=not dry_run):
            # What is wrong with the arguments is reported before Spark starts.
            check_kind(handles.identity(), external=external is not None)
            theirs = None if external is None else external.read(self._store_at, handles.parallel)
            work = Work(
                self._counted,
                "objects counted by the last scan",
                here=OBJECTS_FOR_SPARK if scan else None,
                needed=lambda: theirs is None or scan,
            )
            began = time.monotonic()
            with self._workers(spark, work, progress) as (workers, _):
                started = time.monotonic() - began
                workers.say("reading the journals and the listing" if scan else "reading the journals")
                source: EpochSource = JournalSource(handles, workers, readers=READERS)
                if theirs is not None:
                    source = ExternalLogSource(handles, theirs)
                result = run_pipeline(
                    handles, source, partial(read_listing, workers) if scan else None, dry_run=dry_run
                )
            if workers.engine == SPARK:
                result.seconds["spark"] = started
            return result

    def _store_at(self, url: str) -> S3Store:
        """The store of another bucket, with this one's credentials."""
        c = self._config
        return S3Store(StoreConfig.from_url(url, endpoint_url=c.endpoint_url, region=c.region, profile=c.profile))
