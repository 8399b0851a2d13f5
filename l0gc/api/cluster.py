"""Open a cluster for a `with` block, with one method for the work of each command."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, cast

import msgspec

from l0gc.api.engine import Engine, Work
from l0gc.api.estimate import DELETING, LISTING, READING_FILES, REWRITING
from l0gc.api.gc import Due, GcResult, GcStep, StepRunner, play
from l0gc.api.groups import Pins, Producers, Runs, Tables, Topics, checked, checks_arguments, run_records
from l0gc.collect import gc_steps
from l0gc.collect.plan import run_id as new_run_id
from l0gc.collect.record import read_attempts, recorded_attempt
from l0gc.epoch import MAX_EPOCH
from l0gc.errors import CorruptObjectError, NotFoundError, StoppedError, UsageError
from l0gc.events import Progress, quiet
from l0gc.formatting import STANDARD_PRICE, count, size
from l0gc.operations import (
    FOLLOW_S,
    LEASE_S,
    PARTITIONS_SHOWN,
    ComputeWatermark,
    Expire,
    Gc,
    Housekeep,
    Init,
    Merge,
    Read,
    Reconcile,
    Sweep,
    Upload,
    Vacuum,
    Verify,
)
from l0gc.runtime import user_at_host
from l0gc.storage.config import StoreConfig
from l0gc.storage.objectstore import LocalFolder
from l0gc.storage.parallel import CLOSED
from l0gc.storage.s3 import S3Store
from l0gc.storage.workers import LOCAL, SPARK, LocalWorkers, Workers
from l0gc.streamlog.cluster import ClusterHandles, open_cluster

if TYPE_CHECKING:
    from pyarrow import RecordBatchReader
    from pyspark.sql import DataFrame, SparkSession

    from l0gc.api.keywords import *
    from l0gc.api.results import *
    from l0gc.collect.deletion import Deletable
    from l0gc.inspect.log import LogLine
    from l0gc.streamlog.controller.state import Topic

A = TypeVar("A")


@checks_arguments
class Cluster:
    """A cluster, as returned by `l0gc.open`; safe for use by several threads."""

    topics: Topics
    """The cluster's topics."""
    producers: Producers
    """The producers that upload to the cluster."""
    runs: Runs
    """The records of the cluster's past sweeps and vacuums."""
    pins: Pins
    """The pins that keep a state of the cluster readable."""
    tables: Tables
    """The Iceberg tables of the cluster's topics."""

    def __init__(self, config: StoreConfig, cluster_id: str | None, epoch_interval_s: float) -> None:
        self._stack, self._config, self._closed = ExitStack(), config, False
        self._opened_with = config, cluster_id, epoch_interval_s
        opened = open_cluster(config, expected_cluster_id=cluster_id, epoch_interval_s=epoch_interval_s)
        self._handles, self.store = self._stack.enter_context(opened)
        self.topics, self.producers, self.runs = Topics(self.handles), Producers(self.handles), Runs(self.handles)
        self.pins, self.tables = Pins(self.handles), Tables(self.handles)

    def __repr__(self) -> str:
        return f"<l0gc.Cluster {self.url}>"

    def __reduce__(self) -> tuple[type[Cluster], tuple[StoreConfig, str | None, float]]:
        """Pickle the arguments of `open`. Unpickling opens the cluster again, with new threads and clients."""
        if self._closed:
            raise UsageError(CLOSED)
        return Cluster, self._opened_with

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the cluster and end its threads, as a `with` block does."""
        self._closed = True
        self._stack.close()

    @property
    def url(self) -> str:
        """Return the bucket and the prefix as a URL."""
        return self.store.url

    def handles(self) -> ClusterHandles:
        if self._closed:
            raise UsageError(CLOSED)
        self._handles.parallel.check_open()
        return self._handles

    def init(self, **options: Unpack[InitKeywords]) -> FoundedCluster:
        """Probe the store and create the cluster; change nothing if it exists. See `l0gc init`."""
        from l0gc.streamlog.founding import found_cluster

        return found_cluster(self.handles(), self.store, Init(**options))

    def upload(
        self,
        topic: str,
        *sources: Source,
        progress: Progress = quiet,
        **options: Unpack[UploadKeywords],
    ) -> UploadResult:
        """Upload records, and return when they are committed. The `so_far` of an error has the committed part. See
        `l0gc upload`.

        Args:
            sources: paths or binary files, in the format that `format` names (`"-"` is stdin); iterables of records; or
                tables with a record's columns, of Arrow, pandas, Polars or any other source of Arrow streams. A record
                is its value as bytes, an `l0gc.Record`, a dict of its fields, or a tuple of key, value and optionally
                headers and create time. It is sent to the partition that it names, or else to that of its key.
            progress: called after each committed batch, with the amounts committed so far.
        """
        from l0gc.streamlog.ingest.inputs import LINES, plain_size
        from l0gc.streamlog.ingest.uploader import open_upload
        from l0gc.streamlog.journal.fence import sum_of

        form = Upload(**options).format

        def landed(_: int, __: int) -> None:
            r = uploader.result
            done = min(
                r.records + r.bytes, total or r.records + r.bytes
            )  # the newline of the last record may be missing
            progress(f"{count(r.records, 'record')}, {size(r.bytes)}", done=done, total=total)

        with ExitStack() as stack:
            uploader, inputs = open_upload(self.handles(), topic, sources, stack, Upload(**options))
            uploader.landing.progress = landed
            sizes = [
                i.size if i.size is not None and i.kind == LINES else plain_size(s, form)
                for s, i in zip(sources, inputs, strict=True)
            ]
            total = None if None in sizes else sum(n or 0 for n in sizes)
            try:
                return uploader.run(inputs)
            except BaseException as e:
                vars(e)["so_far"] = uploader.result
                raise
            finally:
                uploader.result.fence = sum_of([journal.fence.counters for journal in uploader.journals])

    def read(
        self,
        topic: str,
        partition: int | None = None,
        start: int | dict[int, int] | None = None,
        **options: Unpack[ReadKeywords],
    ) -> Iterator[Record]:
        """Yield a topic's records, byte for byte as uploaded, from one partition or from all, one after another. See
        `l0gc read`.

        `start` is one offset for all partitions, or a dict of offsets by partition; other partitions begin at their
        first record.

        Raises:
            AccessDeniedError: a `pin` is requested, but the credentials allow only reading.
        """
        from l0gc.streamlog.reader import read_topic

        return self._reading(read_topic, *self._wanted(topic, partition, start, options))

    def follow(
        self,
        topic: str,
        partition: int | None = None,
        start: int | dict[int, int] | None = None,
        *,
        interval_s: float | timedelta = FOLLOW_S,
        caught_up: Callable[[], object] = lambda: None,
        stop: threading.Event | None = None,
        **options: Unpack[ReadKeywords],
    ) -> Follower:
        """Yield a topic's records as they land, in order within each partition, until stopped. See `l0gc read
        --follow`.

        Each check sends one request per journal of the topic, and more only if records have landed. The `positions` of
        the result have the offset from which to continue, by partition. Store them, or `record.offset + 1`, together
        with the program's result for the records, and pass them as `start` with the topic's `topic_id`.

        Args:
            interval_s: how long to wait between two checks, in seconds or as a `timedelta`. While nothing lands, the
                wait grows to eight times this.
            caught_up: called each time that all landed records have been yielded, for example to write or commit
                buffered records.
            stop: set to end the iteration.

        Raises:
            OffsetOutOfRangeError: a record was deleted before it was read, or a position is above a partition's end.
        """
        from l0gc.streamlog.follow import Follower

        target, request = self._wanted(topic, partition, start, options)
        return Follower(
            self.handles(),
            target,
            request,
            interval_s=cast(float, interval_s),
            caught_up=caught_up,
            stop=stop or threading.Event(),
        )

    def read_arrow(
        self,
        topic: str,
        partition: int | None = None,
        start: int | dict[int, int] | None = None,
        *,
        columns: Sequence[str] | None = None,
        **options: Unpack[ReadKeywords],
    ) -> RecordBatchReader:
        """Return the records of `read` as Arrow batches, for pandas, Polars and DuckDB.

        Args:
            columns: the columns of L1 and of the topic's value schema to read, in this order; by default, all columns.
        """
        from pyarrow import RecordBatchReader

        from l0gc.streamlog.reader import read_batches, schema_of

        target, request = self._wanted(topic, partition, start, options)
        schema = schema_of(target, columns)
        batches = self._reading(partial(read_batches, schema=schema), target, request)
        return RecordBatchReader.from_batches(schema, batches)

    def read_lines(
        self,
        topic: str,
        partition: int | None = None,
        start: int | dict[int, int] | None = None,
        *,
        length_prefixed: bool = False,
        progress: Progress = quiet,
        **options: Unpack[ReadKeywords],
    ) -> Iterator[RecordLines]:
        """Yield the records of `read` as lines for a file, some thousands at a time, each record followed by a newline.

        Args:
            length_prefixed: yield each record after its length instead, as `upload` accepts it with
                `format="length-prefixed"`, so that values with newlines are preserved.
            progress: called regularly. If it is given, the records are counted first.
        """
        from l0gc.streamlog.reader import count_records, read_record_lines

        target, request = self._wanted(topic, partition, start, options)
        total = records = written = 0
        if progress is not quiet:
            progress("reading the journals")
            total = count_records(self.handles(), target, request)
        for lines in self._reading(partial(read_record_lines, length_prefixed=length_prefixed), target, request):
            records, written = records + lines.records, written + len(lines.lines)
            yield lines
            progress(f"{count(records, 'record')}, {size(written)}", done=records, total=max(total, records))

    def lag(self, checkpoint: str | Path) -> QueryLag:
        """Return how far a streaming query of Spark is behind its topics, by partition. There is no command for this.

        Args:
            checkpoint: the query's `checkpointLocation`: a folder on this machine, or in a bucket of this store, as
                `s3://bucket/folder`.

        Raises:
            NotFoundError: there is no checkpoint, no micro-batch has ended, or a topic does not exist.
        """
        from urllib.parse import urlsplit
        from urllib.request import url2pathname

        from l0gc.inspect.lag import query_lag

        location = str(checkpoint)
        scheme, _, rest = location.rpartition("://")
        if scheme in ("s3", "s3a", "s3n"):
            return query_lag(self.handles(), S3Store(self._config).at(f"s3://{rest}"), location)
        if scheme not in ("", "file"):
            raise UsageError(
                f"checkpoint {location} cannot be read here: name a folder of this machine, or of a bucket as s3://bucket/folder"
            )
        folder = Path(url2pathname(urlsplit(location).path) if location.startswith("file:") else location)
        try:
            return query_lag(self.handles(), LocalFolder(folder), location)
        except OSError as e:  # for example a name that is too long for a folder
            raise NotFoundError(f"checkpoint {location} cannot be read: {e.strerror}") from e

    @contextmanager
    def pin(
        self,
        name: str,
        *,
        ttl_s: float | timedelta = LEASE_S,
        topic: str | None = None,
        level_one: bool = False,
        why: str = "",
    ) -> Iterator[PinView]:
        """Create a pin for a `with` block, which renews it and deletes it at the end; see `Pins.create`.

        Args:
            ttl_s: how long the pin lasts after this process has died, in seconds or as a `timedelta`.

        Raises:
            NotFoundError: the pin ended before the block, so records may have been missing.
        """
        from l0gc.streamlog.pins import renewed

        pin = self.pins.create(name, ttl_s=ttl_s, topic=topic, level_one=level_one, why=why)
        with renewed(self.handles, name, pin.epoch, pin.expires_ms - pin.created_ms):
            yield pin
            self.handles().controller.snapshot().pin(name, pin.epoch)

    def housekeep(self, **options: Unpack[HousekeepKeywords]) -> HousekeepResult:
        """Advance the epoch if it is due, advance idle journals, and keep the logs short. See `l0gc housekeep`."""
        from l0gc.streamlog.housekeep import housekeep

        request = Housekeep(**options)
        with recorded_attempt(self.handles(), "housekeep"):
            return checked(housekeep(self._handles, barrier=request.barrier))

    def reconcile(
        self,
        spark: SparkSession | Engine | None = None,
        topic: str | None = None,
        *,
        progress: Progress = quiet,
        **options: Unpack[ReconcileKeywords],
    ) -> ReconcileResult:
        """Lift unreconciled records of one topic or all from L0 to L1 Parquet, the oldest first. See `l0gc reconcile`.

        Args:
            spark: a session or an engine for the work; without one, this process does it, which suits small buckets.
            progress: called with the next step, and the number of `records` lifted to L1.
        """
        from l0gc.streamlog.level_one.plan import has_work, waiting_bytes
        from l0gc.streamlog.level_one.reconcile import reconcile

        handles, request = self.handles(), Reconcile(**options)
        epoch = MAX_EPOCH if request.up_to is None else request.up_to

        def waiting(enough: int) -> int:
            enough = enough if request.max_bytes is None else min(request.max_bytes, enough)
            return min(enough, waiting_bytes(handles, topic, enough, up_to=epoch))

        work = Work(
            waiting,
            "bytes of L0 not in L1",
            REWRITING,
            needed=lambda: has_work(handles, topic, up_to=epoch),
        )
        whole = topic is None and request.up_to is None and request.max_bytes is None
        with recorded_attempt(handles, "reconcile", whole=whole):
            progress("reading the journals")
            with self._workers(spark, work, progress) as workers:
                result = reconcile(
                    handles,
                    topic,
                    workers=workers,
                    up_to=request.up_to,
                    max_bytes=request.max_bytes,
                    round_bytes=request.round_bytes,
                )
            return checked(result)

    def merge(
        self,
        spark: SparkSession | Engine | None = None,
        topic: str | None = None,
        *,
        progress: Progress = quiet,
        **options: Unpack[MergeKeywords],
    ) -> MergeResult:
        """Merge small consecutive L1 objects in each partition of one topic or all. See `l0gc merge`.

        Args:
            spark: see `reconcile`.
            progress: called with the next step, and the number of merged `objects`.
        """
        from l0gc.streamlog.level_one.merge import plan_merge, run_merge
        from l0gc.streamlog.level_one.merge_plan import MergeRule

        handles, request = self.handles(), Merge(**options)
        with recorded_attempt(handles, "merge", whole=topic is None, dry_run=request.dry_run):
            progress("reading the journals")
            plan = plan_merge(handles, topic, MergeRule(request.target_bytes, request.fan_in), request.max_bytes)
            result = plan.total
            work = Work(
                lambda enough: plan.total.bytes_read,
                "bytes of L1 to merge",
                REWRITING,
                needed=lambda: plan.total.objects_before > 0,
            )
            if request.dry_run:
                result.dry_run = True
                result.engine, result.engine_reason = Engine.of(spark).choose(work)
            else:
                with self._workers(spark, work, progress) as workers:
                    result = run_merge(handles, plan, workers)
            return checked(result)

    def expire(self, topic: str | None = None, **options: Unpack[ExpireKeywords]) -> ExpireResult:
        """Delete the records of one topic or all that are beyond their topic's retention. See `l0gc expire`."""
        from l0gc.streamlog.level_one.expire import expire

        request = Expire(**options)
        with recorded_attempt(self.handles(), "expire", whole=topic is None, dry_run=request.dry_run):
            return checked(expire(self._handles, topic, dry_run=request.dry_run, shown=PARTITIONS_SHOWN))

    def delete_records(
        self,
        topic: str,
        partition: int | None = None,
        *,
        before_offset: int | None = None,
        before_time_ms: int | datetime | None = None,
        dry_run: bool = False,
        confirm: Callable[[ExpireResult], None] | None = None,
    ) -> ExpireResult:
        """Delete the oldest records of one partition or all. See `l0gc delete-records`.

        Args:
            before_offset: the first offset to keep; -1 to delete all present records.
            before_time_ms: keep the first record with this timestamp or a later one, and all after it.
            dry_run: delete nothing; the result shows what a run would delete.
            confirm: called with the result of a dry run, if anything would be deleted. If it raises an error, nothing
                is deleted. Only the records in that result are deleted, even if more land in the meantime.
        """
        from l0gc.streamlog.delete_records import delete_records

        result = delete_records(
            self.handles(),
            topic,
            partition,
            before_offset=before_offset,
            before_time_ms=cast("int | None", before_time_ms),
            dry_run=dry_run,
            shown=PARTITIONS_SHOWN,
            confirm=confirm,
        )
        return checked(result)

    def give_up(
        self,
        topic: str = "",
        partition: int = -1,
        offsets: tuple[int, int] | None = None,
        *,
        objects: Sequence[str] = (),
        force_readable: bool = False,
        confirm: Callable[[], object] | None = None,
    ) -> GiveUpResult:
        """Give up lost records that are not in L1, so that their partitions can continue. See `l0gc give-up`.

        Args:
            offsets: the first and last lost record of the topic's partition; readers will always find a hole there.
            objects: instead, the keys of L0 objects, to give up all their records.
            force_readable: give up even records that can be read.
            confirm: called once the records are chosen; it raises to give up nothing.
        """
        from l0gc.streamlog.level_one.give_up import give_up

        return give_up(
            self.handles(),
            user_at_host(),
            objects=objects,
            topic=topic,
            partition=partition,
            offsets=offsets,
            force_readable=force_readable,
            confirm=confirm,
        )

    def compute_watermark(
        self,
        spark: SparkSession | Engine | None = None,
        *,
        external: ExternalEpochs | ExternalFiles | ExternalFrames | None = None,
        reports: DataFrame | None = None,
        partitions: DataFrame | None = None,
        accept_lost: bool = False,
        progress: Progress = quiet,
        **options: Unpack[ComputeWatermarkKeywords],
    ) -> WatermarkResult:
        """Compute M from the journals, or from an external log, and publish it. See `l0gc compute-watermark`.

        Args:
            spark: see `reconcile`.
            external: reports of a system with an external log, as files, data frames or numbers; None for l0gc's own
                journals.
            reports: with `partitions`, short for `external=ExternalFrames(reports, partitions)`.
            partitions: see `reports`.
            accept_lost: publish M although `published.json` is lost or damaged, or belongs to another cluster. The
                option `--accept-lost` also shows the loss and asks first.
            progress: called with the next step.
        """
        from l0gc.streamlog.epoch_source import JournalSource
        from l0gc.streamlog.journal.summary import READERS
        from l0gc.watermark.histogram import read_listing
        from l0gc.watermark.pipeline import EpochSource, check_kind, run_pipeline
        from l0gc.watermark.publication import replace_unusable, what_is_lost

        handles, request = self.handles(), ComputeWatermark(**options)
        if reports is not None or partitions is not None:
            from l0gc.spark.frames import ExternalFrames

            if external is not None or reports is None or partitions is None:
                raise UsageError("reports and partitions need each other, and exclude external")
            external = ExternalFrames(reports, partitions)
        if spark is None:
            spark = getattr(external, "session", None)
        with recorded_attempt(handles, "compute-watermark", dry_run=request.dry_run):
            # Invalid arguments are reported before Spark starts.
            check_kind(handles.identity(), external=external is not None)
            if accept_lost:
                what_is_lost(handles)
                if not request.dry_run:
                    replace_unusable(handles)
            theirs = None if external is None else external.find(handles.store, S3Store.at)
            if theirs is None or request.scan:
                journals = 0 if theirs is not None else handles.controller.snapshot().journals
                counted = self._counted if request.scan else lambda enough: 0
                unit = "objects counted by the last scan" if request.scan else "objects to list"
                work = Work(counted, unit, LISTING, journals)
            else:
                files = theirs.files
                work = Work(lambda enough: files, "files in S3", READING_FILES, needed=lambda: files > 0)
            began = time.monotonic()
            with self._workers(spark, work, progress) as workers:
                started = time.monotonic() - began
                workers.say("reading the journals and the listing" if request.scan else "reading the journals")
                source: EpochSource = JournalSource(handles, workers, readers=READERS)
                if theirs is not None:
                    from l0gc.watermark.external_log import ExternalLogSource

                    local = theirs.files == 0 or workers.engine == LOCAL
                    source = ExternalLogSource(handles, theirs.read(LocalWorkers(handles) if local else workers))
                result = run_pipeline(
                    handles,
                    source,
                    partial(read_listing, workers) if request.scan else None,
                    dry_run=request.dry_run,
                    accept_lost=accept_lost,
                )
            if workers.engine == SPARK:
                result.seconds["spark"] = started
            return msgspec.structs.replace(result, engine=workers.engine, engine_reason=workers.reason)

    def sweep(
        self,
        spark: SparkSession | Engine | None = None,
        *,
        run_id: str = "",
        progress: Progress = quiet,
        stop: threading.Event | None = None,
        gone: Callable[[Sequence[Deletable]], None] | None = None,
        **options: Unpack[SweepKeywords],
    ) -> SweepResult:
        """Delete the L0 objects whose epoch is at or below the published M. See `l0gc sweep`.

        Args:
            spark: see `reconcile`.
            run_id: the name of the run; by default, a new one.
            progress: called after each request with the position of the run.
            stop: when set, the run finishes its requests in flight and ends with a `StoppedError`.
            gone: called, in key order, with the objects of each batch that was deleted or, in a dry run, would be
                deleted.
        """
        from l0gc.collect.run import SEGMENTS_IN_HAND
        from l0gc.collect.sweep import SweepRun

        handles, request = self.handles(), Sweep.of(options)
        limits = request.in_one_process or ("the order of keys, for --list" if gone is not None else "")
        work = sweep_work(partial(self._counted, eligible=True), limits=limits)
        result: SweepResult | None = None

        def whole() -> bool:
            return request.whole and (result is None or request.grace_s > 0 or result.bound == result.watermark)

        deletes_later, dry_run = max(request.grace_s, request.min_age_s), request.dry_run and not request.shadow
        recorded = recorded_attempt(
            handles, "sweep", whole=whole, dry_run=dry_run, shadow=request.shadow, leaves_s=deletes_later
        )
        with recorded:
            with (
                self._workers(spark, work, progress) as workers,
                ThreadPoolExecutor(SEGMENTS_IN_HAND) as deleters,
            ):
                run = SweepRun(handles, request, workers, run_id=run_id, stop=stop, deleters=deleters)
                result = run.run(gone=gone)
            return checked(result)

    def vacuum(
        self,
        spark: SparkSession | Engine | None = None,
        *,
        run_id: str = "",
        progress: Progress = quiet,
        stop: threading.Event | None = None,
        **options: Unpack[VacuumKeywords],
    ) -> VacuumResult:
        """Delete all other garbage: dropped L1 objects, orphans, old records. See `l0gc vacuum`.

        Args:
            spark: see `reconcile`.
            run_id: see `sweep`, also for the other arguments.
        """
        from l0gc.collect.run import SEGMENTS_IN_HAND
        from l0gc.collect.vacuum import VacuumRun
        from l0gc.streamlog.garbage import JournalGarbage

        handles, request = self.handles(), Vacuum.of(options)
        with recorded_attempt(handles, "vacuum", whole=request.whole, dry_run=request.dry_run):
            source = None if handles.identity().external_log else JournalGarbage(handles)

            def named(enough: int) -> int:
                if source is None:
                    return 0
                source.refresh()
                return source.objects

            limits = request.in_one_process
            work = Work(named, "objects in L1", LISTING, limits=limits, needed=lambda: source is not None)
            with self._workers(spark, work, progress) as workers, ThreadPoolExecutor(SEGMENTS_IN_HAND) as deleters:
                run = VacuumRun(handles, request, workers, run_id=run_id, stop=stop, deleters=deleters)
                return checked(run.run(source))

    def gc(
        self,
        spark: SparkSession | Engine | None = None,
        *,
        run_id: str = "",
        run_step: StepRunner = lambda step, call: call and call(),
        **options: Unpack[GcKeywords],
    ) -> GcResult:
        """Housekeep, reconcile, merge, expire, sync tables, compute M, sweep and vacuum, each if due. See `l0gc gc`.

        Each step takes its own options, for example `sweep=Sweep(min_age_s=3600)`; None skips the step. If steps fail,
        an error is raised at the end, and its result has the failed steps.

        Args:
            spark: see `reconcile`; each step decides whether it uses an engine's session.
            run_id: the name of the run and of its sweep; by default, a new one.
            run_step: called to run each step, with the step's name and its function, or None if the step is not due.
        """
        request, engine, handles = Gc(**options), Engine.of(spark), self.handles()
        external = handles.controller.snapshot().external_log  # raises an error if there is no cluster
        run_id = run_id or new_run_id(handles.now_ms(), handles.runtime.new_id())
        last = read_attempts(handles.store, handles.parallel)
        due = Due(handles, request)

        def vacuum(*, orphans: bool, **more: Any) -> VacuumResult:
            search = orphans and (request.dry_run or external or due.orphans())
            return self.vacuum(engine, orphans=search, **more)

        steps = [
            GcStep(gc_steps.HOUSEKEEP, request.housekeep, self.housekeep, done=due.housekept),
            GcStep(gc_steps.RECONCILE, request.reconcile, partial(self.reconcile, engine), due.no_reconcile),
            GcStep(gc_steps.MERGE, request.merge, partial(self.merge, engine), due.no_merge),
            GcStep(gc_steps.EXPIRE, request.expire, self.expire, due.no_expiry),
            GcStep(gc_steps.TABLE_SYNC, request.table_sync, self.tables.sync, due.no_table),
            GcStep(
                gc_steps.COMPUTE, request.compute_watermark, partial(self.compute_watermark, engine),
                due.no_watermark, due.computed,
            ),
            GcStep(gc_steps.SWEEP, request.sweep, partial(self.sweep, engine, run_id=run_id), due.no_sweep, due.swept),
            GcStep(gc_steps.VACUUM, request.vacuum, vacuum, due.no_vacuum),
        ]  # fmt: skip
        result = GcResult(dry_run=request.dry_run, run_id=run_id)
        try:
            play(result, steps, last, run_step, external=external)
        except KeyboardInterrupt as e:
            vars(e)["so_far"] = result
            raise
        except StoppedError as e:
            e.result = result
            raise
        return checked(result)

    def undelete(self, run_id: str, *, record_dir: Path | None = None) -> UndeleteResult:
        """Bring back the objects that a sweep or a vacuum deleted from a versioned bucket. See `l0gc undelete`.

        Args:
            record_dir: the folder of the run's record, if `--record-dir` kept it in a folder.
        """
        from l0gc.collect.history import undelete

        cluster = self.handles()
        cluster.identity()
        return checked(undelete(cluster, run_id, records=run_records(cluster, record_dir)))

    def pause(self, why: str, by: str | None = None) -> NewPause:
        """Pause all sweeps of the cluster, wherever they run, until `resume`. See `l0gc pause`.

        Args:
            why: the reason, which every sweep reports during the pause.
            by: the name of the operator; by default, this user on this host.
        """
        from l0gc.collect.deletion import NewPause, set_pause

        if not why.strip():
            raise UsageError('--why is empty: say why sweeps are paused, e.g. --why "restoring a backup"')
        if by is not None and not by.strip():
            raise UsageError("--by is empty: say who pauses, or leave it out for user@host")
        cluster = self.handles()
        cluster.identity()
        pause, new = set_pause(cluster.store, why, by or user_at_host())
        return NewPause(pause.why, pause.by, pause.since_ms, new)

    def resume(self) -> Pause | None:
        """Let sweeps continue, and return the pause that was set, or None. See `l0gc resume`."""
        from l0gc.collect.deletion import clear_pause

        cluster = self.handles()
        cluster.identity()
        return clear_pause(cluster.store)

    @property
    def epoch(self) -> int:
        """Read and return the cluster epoch."""
        return self.handles().controller.snapshot().epoch

    def advance_epoch(
        self, expect: int | None = None, *, above: int | None = None, close_unknown_topics: bool = False
    ) -> AdvancedEpoch:
        """Advance the cluster epoch by one. See `l0gc epoch advance`.

        Args:
            expect: advance only if this is the epoch. If this user on this host repeats the call, the epoch advances
                only once.
            above: advance to the epoch after this one, even if the controller log is older than the published epoch.
            close_unknown_topics: with `above`, give up topics that journals have but the controller log lacks.
        """
        from l0gc.streamlog.topics import AdvancedEpoch, UnknownTopic
        from l0gc.streamlog.topics import close_unknown_topics as close_them

        if above is not None and expect is not None:
            raise UsageError("--expect and --above exclude each other")
        if close_unknown_topics and above is None:
            raise UsageError("--close-unknown-topics needs --above")
        cluster = self.handles()
        if above is None:
            return AdvancedEpoch(cluster.controller.advance(expect, user_at_host()))
        epoch = cluster.controller.advance_above(above)
        closed = [UnknownTopic(*topic) for topic in close_them(cluster)] if close_unknown_topics else None
        return AdvancedEpoch(epoch, closed)

    def accept_set_back(self, journal: int) -> int:
        """Accept a journal that was set back to an older copy because its newest log is permanently lost. Return the
        epoch of the new tick.

        Data that only the lost entries named is then lost, and nothing lands below that epoch any more. The command
        `l0gc housekeep --accept-set-back` also shows why the journal is refused, and asks first.
        """
        from l0gc.streamlog.set_back import accept_set_back

        return accept_set_back(self.handles(), journal)

    def status(self, *, price_gb_month: float = STANDARD_PRICE) -> Overview:
        """Return M, the causes that hold it back, and the next step. See `l0gc status`.

        Args:
            price_gb_month: dollars per GB and month.
        """
        from l0gc.inspect.overview_reader import read_overview

        return read_overview(self.handles(), price_gb_month)

    def explain(self, key: str | None = None, *, epoch: int | None = None, partition: str | None = None) -> Explanation:
        """Explain why an object is kept or may be deleted, and which command changes that. See `l0gc explain`.

        Args:
            key: explain this object, given by its key relative to the URL, or by a whole s3:// URL.
            epoch: explain why the objects of this epoch are held.
            partition: explain which epochs this partition, given as `TOPIC/N`, holds.
        """
        from l0gc.inspect.explain import explain_epoch, explain_key, explain_partition

        if sum(x is not None for x in (key, epoch, partition)) != 1:
            raise UsageError("explain one thing: KEY, --epoch E or --partition TOPIC/N")
        if key is not None:
            return explain_key(self.handles(), key.removeprefix(self.store.url))
        if epoch is not None:
            return explain_epoch(self.handles(), epoch)
        return explain_partition(self.handles(), partition or "")

    def report(self, *, findings: Path | None = None, price_gb_month: float = STANDARD_PRICE) -> Report:
        """Return a report on the cluster: an HTML page, and the facts that it shows. See `l0gc report`.

        Args:
            findings: a file with the output of `l0gc verify --json`, which the report then also shows.
            price_gb_month: dollars per GB and month.
        """
        from l0gc.inspect.report.facts import gather, read_findings
        from l0gc.inspect.report.page import render

        verified = None if findings is None else read_findings(findings)
        store = self.store
        report = gather(
            self.handles(),
            store.url,
            endpoint_url=store.access.endpoint_url,
            price_gb_month=price_gb_month,
            findings=verified,
        )
        report.html = render(report)
        return report

    def verify(
        self,
        spark: SparkSession | Engine | None = None,
        *,
        progress: Progress = quiet,
        **options: Unpack[VerifyKeywords],
    ) -> VerifyResult:
        """Check that the bucket has the objects that the journals name. Findings raise no error. See `l0gc verify`.

        Args:
            spark: see `reconcile`.
            progress: called with the next step.
        """
        from l0gc.inspect.verify.run import check_log_is_ours, verify
        from l0gc.inspect.verify.shadow import AccessLogs, verify_shadow

        cluster, request = self.handles(), Verify.of(options)
        if request.access_logs is not None and not request.shadow:
            raise UsageError("--access-logs needs --shadow")
        check_log_is_ours(cluster.controller.snapshot())  # raises its error before Spark starts
        if request.shadow:
            progress("reading the records of shadow runs and the journals")
            logs = None
            if (url := request.access_logs) is not None:
                source = S3Store(self._config).at(url) if url.startswith("s3://") else LocalFolder(Path(url))
                logs = AccessLogs(source, url, self._config.bucket, self._config.prefix)
            return verify_shadow(cluster, logs)
        journals = cluster.controller.snapshot().journals
        work = Work(self._counted, "objects counted by the last scan", LISTING, journals)
        with self._workers(spark, work, progress) as workers:
            return verify(cluster, workers, deep=request.deep, min_age_ms=int(request.min_age_s * 1000))

    def doctor(self, *, progress: Callable[[str], None] = lambda check: None) -> DoctorResult:
        """Check the store, the credentials, this machine and the cluster. Failures raise no error. See `l0gc doctor`.

        Args:
            progress: called with the name of each part before it is checked.
        """
        from l0gc.inspect.doctor import examine

        return examine(self.handles(), self.store, progress)

    def log(self, journal: int | None = None, start: int = 0, *, checkpoint: bool = False) -> Iterator[LogLine]:
        """Yield the lines of a log from offset `start` on, each with `data`, and whether it is `damaged`. See `l0gc log
        show`.

        Args:
            journal: the number of the journal; by default, the controller's log is shown.
            checkpoint: yield the newest checkpoint first, even if no entries were deleted.
        """
        from l0gc.inspect.log import show_log

        return self._while_open(show_log(self.handles(), journal, start, checkpoint=checkpoint))

    def _wanted(
        self, topic: str, partition: int | None, start: int | dict[int, int] | None, options: ReadKeywords
    ) -> tuple[Topic, Read]:
        """Return the topic and the read options. Raises `UsageError`, or `NotFoundError` if the partition does not
        exist.
        """
        request = Read.of({"partition": partition, "start": start, **options})
        target = self.handles().controller.snapshot().topic(topic)
        for named in [partition] if partition is not None else start if isinstance(start, dict) else ():
            target.id(named)
        return target, request

    def _reading(self, read: Callable[..., Iterator[A]], topic: Topic, request: Read) -> Iterator[A]:
        """Yield the results of `read`, as of a pin if the options request one."""
        read_now = self._pinned(read, topic, request) if request.pin else read(self.handles(), topic, request)
        return self._while_open(read_now)

    def _while_open(self, items: Iterator[A]) -> Iterator[A]:
        """Yield items until the cluster is closed; the next one then raises an error."""
        self.handles()
        for item in items:
            yield item
            if self._closed:
                raise UsageError(CLOSED)

    def _pinned(self, read: Callable[..., Iterator[A]], topic: Topic, request: Read) -> Iterator[A]:
        """Create a pin and read as of it. Raises `NotFoundError` if the pin ended before the read."""
        from l0gc.streamlog.pins import leased_for_reader, while_pinned

        cluster = self.handles()
        with leased_for_reader(self.handles, f"topic {topic.name}") as pin, while_pinned(cluster, pin, "read again"):
            yield from read(cluster, topic, request, pin=pin)

    def _workers(
        self, spark: SparkSession | Engine | None, work: Work, progress: Progress
    ) -> AbstractContextManager[Workers[ClusterHandles]]:
        """Return the workers for a piece of work."""
        return Engine.of(spark).workers(self.handles(), self._config, work, progress)

    def _counted(self, enough: int = 0, *, eligible: bool = False) -> int:
        """Return how many objects the last computation of M listed or, with `eligible`, found eligible; -1 if unknown."""
        from l0gc.watermark.publication import read_any

        with suppress(CorruptObjectError):
            published, _ = read_any(self.store)
            if published is not None:
                return published.eligible_objects if eligible else published.listed_objects
        return -1


def sweep_work(eligible: Callable[[int], int], *, limits: str = "") -> Work:
    """Return the facts about a sweep for the choice of an engine.

    Args:
        eligible: returns the number of eligible objects in the last scan; -1 if unknown.
        limits: see `Work`.
    """
    unit = "objects that were eligible at the last scan"
    return Work(eligible, unit, DELETING, limits=limits)
