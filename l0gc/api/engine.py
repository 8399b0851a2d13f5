"""Choose where the work of a call runs: in this process, or on a Spark session, which starts when it is first needed.

One rule decides for every command: the user's choice, or else the engine with the lower estimate (`api/estimate.py`).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING, Any, Final

import msgspec

from l0gc.api.estimate import CLUSTER_CORES, EngineEstimate, Pace, SparkTarget
from l0gc.errors import UsageError
from l0gc.events import Progress, event, quiet
from l0gc.formatting import count
from l0gc.storage.config import StoreConfig
from l0gc.storage.workers import AUTO, LOCAL, SPARK, LocalWorkers, Workers
from l0gc.streamlog.cluster import ClusterHandles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log: Final = logging.getLogger(__name__)


class Work(msgspec.Struct, frozen=True):
    """The facts about a piece of work that decide where it runs.

    Attributes:
        size: returns the size of the work, or -1 if it is unknown; called only if the size matters. It may stop
            counting at its argument.
        unit: the counted noun, for the sentence that gives the reason, e.g. `objects eligible at the last scan`.
        pace: the speed of the work.
        journals: the number of journals that are also read.
        limits: the options that only one process can keep, in words for the sentence that refuses Spark; empty if there
            are none.
        needed: returns whether there is any work for Spark; if not, Spark is not started.
    """

    size: Callable[[int], int]
    unit: str
    pace: Pace
    journals: int = 0
    limits: str = ""
    needed: Callable[[], bool] = lambda: True


def choose_engine(engine: str, work: Work, spark: SparkTarget, *, cores: int, java: bool) -> tuple[str, str]:
    """Return LOCAL or SPARK, and the reason: the user's choice, or else the engine with the lower estimate.

    Work of an unknown size runs on a cluster, if one is given: its start takes seconds, and one process could need
    hours.

    Args:
        cores: the number of cores of this machine.
        java: whether Spark could start on this machine.

    Raises:
        UsageError: Spark was chosen, but the work needs a single process.
    """
    if engine == SPARK and work.limits:
        raise UsageError(f"only one process can keep {work.limits}: use --engine local")
    if engine != AUTO:
        return engine, f"--engine {engine}"
    if work.limits:
        return LOCAL, f"only one process can keep {work.limits}"
    estimate = EngineEstimate(work.pace, work.journals, cores, spark)
    where = f"Spark ({spark.master}, {count(spark.cores, 'core')})"
    if estimate.break_even == inf:
        return LOCAL, f"{where} would take longer, however much there is to do"
    enough = int(estimate.break_even)
    size = work.size(enough)
    if size < 0:
        said = f"the number of {work.unit} is not known"
        return (SPARK, f"{said}, and a cluster is given") if spark.cluster else (LOCAL, said)
    amount = f"{'at least ' if 0 < size == enough else ''}{size:,} {work.unit}"
    amount += f" and {count(work.journals, 'journal')}" if work.journals else ""
    why = f"{amount}: {estimate.local_s(size):,.1f} s estimated in this process, {estimate.spark_s(size):,.1f} s on {where}"
    if size < estimate.break_even:
        return LOCAL, why
    if not spark.cluster and not java:
        why += ", which needs Java 17 or newer and a user with a name"
        _log.warning("%s", why, extra=event("no_java"))
        return LOCAL, why
    return SPARK, why


class Engine:
    """An engine for the work of calls. Use it in a `with` block, which ends a session that the engine started.

    Args:
        choice: `local`, `spark`, or `auto` for the engine that suits the work.
        spark: a session to use; by default, one is started when it is needed.
        master: the Spark cluster; by default, this machine's cores.
        conf: Spark settings for a session that is started.
        send_credentials: whether the driver's credentials are sent to a cluster's executors; by default, they are
            unless they come from a role.
        app: the name, after `l0gc`, of a session that is started.
        verbose: let Spark log warnings.
    """

    def __init__(
        self,
        choice: str = AUTO,
        *,
        spark: SparkSession | None = None,
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        send_credentials: bool | None = None,
        app: str = "library",
        verbose: bool = False,
    ) -> None:
        self._choice, self._given, self._master = choice, spark, master
        self._conf, self._send, self._app, self._verbose = dict(conf or {}), send_credentials, app, verbose
        self._started: SparkSession | None = None
        self._used: SparkSession | None = None
        self._ready = False

    @classmethod
    def of(cls, spark: SparkSession | Engine | None) -> Engine:
        """Return the engine for a method's argument: an engine, a session, or None for this process."""
        if spark is None or isinstance(spark, Engine):
            return spark or cls(LOCAL)
        if type(spark).__name__ != "SparkSession":
            raise UsageError(f"spark cannot be {spark!r}: give a SparkSession or an l0gc.api.Engine")
        from l0gc.spark.master import CONNECT_CANNOT, is_connect

        if is_connect(spark):
            raise UsageError(
                f'{CONNECT_CANNOT}: pass a session of a master, or none for this process; format("l0gc") works with Connect'
            )
        return cls(SPARK, spark=spark)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        if self._started is None:
            return
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self._end_java()
            return
        from l0gc.spark.session import stop

        stop(self._started)
        self._started = None

    def choose(self, work: Work) -> tuple[str, str]:
        """Return LOCAL or SPARK for a piece of work, and the reason; see `choose_engine`."""
        from l0gc.spark.master import has_java, has_user

        java, cores = has_java() and has_user(), os.cpu_count() or 1
        kind, why = choose_engine(self._choice, work, self._target(cores), cores=cores, java=java)
        return (LOCAL, "there is nothing to do") if kind == SPARK and not work.needed() else (kind, why)

    def _target(self, cores: int) -> SparkTarget:
        """Return where Spark would do the work; by default, on a machine with this many cores."""
        from l0gc.spark.master import cores_named, is_local

        if (session := self._given or self._started) is not None:
            from l0gc.spark.executors import cores_of
            from l0gc.spark.workers import raising_causes

            with raising_causes():  # Java may have ended since the last step
                context = session.sparkContext
                master = str(context.master)
                return SparkTarget(master, cores_of(context), not is_local(master), running=True)
        submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit has set the master and started Java
        master = self._master or ("the cluster of spark-submit" if submitted else "local[*]")
        cluster_cores = cores_named(master, self._conf, cores)
        return SparkTarget(master, cluster_cores or CLUSTER_CORES, not is_local(master), running=submitted)

    @contextmanager
    def workers(
        self, cluster: ClusterHandles, config: StoreConfig, work: Work, progress: Progress
    ) -> Iterator[Workers[ClusterHandles]]:
        """Provide the workers for a piece of work.

        Args:
            config: the address of the bucket.
            progress: called with their current step.

        Raises:
            The errors of `spark.session.get_session` and of `spark.ship.make_ready`.
        """
        kind, why = self.choose(work)
        if kind == LOCAL:
            local = LocalWorkers(cluster, progress=progress)
            local.reason = why
            yield local
            return
        try:
            from l0gc.spark.handles import ClusterAddress
            from l0gc.spark.workers import SparkWorkers, raising_causes
            from l0gc.storage.s3 import S3Store

            with raising_causes():  # Java may also end while the session is prepared
                self._used = spark = self.session(config, progress)
                workers = SparkWorkers(spark, ClusterAddress(S3Store(config).access.settled()), progress)
                workers.reason = why
                yield workers
        except KeyboardInterrupt:
            self._end_java()  # cuts off its jobs; nothing more may be sent to it
            raise

    def session(self, config: StoreConfig, progress: Progress = quiet) -> SparkSession:
        """Return the session, which is started and prepared for l0gc if necessary."""
        spark = self._given or self._started
        if spark is None:
            from l0gc.spark.session import get_session

            progress("starting Spark")
            began = time.monotonic()
            spark = get_session(self._app, master=self._master, conf=self._conf, verbose=self._verbose)
            self._started = spark
            seconds = round(time.monotonic() - began, 3)
            _log.info("Spark started after %.1f s", seconds, extra=event("spark_started", seconds=seconds))
        if not self._ready:
            from l0gc.spark.ship import make_ready

            make_ready(spark, config, self._send)
            self._ready = True
        progress("")
        return spark

    def ran(self) -> dict[str, Any]:
        """Return the `version` and `master` of the session, and the number of its finished `tasks`; empty if no session
        was used.
        """
        if self._used is None:
            return {}
        context = self._used.sparkContext
        tracker = context.statusTracker()
        jobs = [job for number in tracker.getJobIdsForGroup() if (job := tracker.getJobInfo(number)) is not None]
        stages = [tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds]
        tasks = sum(s.numCompletedTasks for s in stages if s is not None)
        return {"version": context.version, "master": context.master, "tasks": tasks}

    def _end_java(self) -> None:
        if self._given is None:
            from l0gc.spark.gateway import end_java

            end_java()
            self._started = None
