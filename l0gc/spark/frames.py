"""Read another system's export from Spark's data frames. Executors read it and sum it up, by the rules for files.

One job reads a data frame, and the driver gets only sums. Rows that Spark could not read and skipped are not detected.
A list with missing partitions makes M too high, so `allow_fewer_partitions`, `expect_partitions` and the other checks
apply to data frames as to files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from l0gc.errors import CorruptObjectError, UsageError
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.workers import Workers
from l0gc.watermark.external_log import ExternalExport, ExternalLog, SnapshotLimits, StoreAt
from l0gc.watermark.external_rows import PARTITIONS, REPORTS, TYPES, ExternalSummary, add_up, known_columns, merged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_IS_REPORT: Final = "is_report"
_SCHEMA: Final = ", ".join(f"{c} {'string' if t == pa.string() else 'bigint'}" for c, t in TYPES.items())


@dataclass(frozen=True)
class ExternalFrames(SnapshotLimits):
    """Another system's reports and partitions as data frames of one session, which reads them.

    Attributes:
        reports: a frame with the columns topic, partition and gc_epoch, and optionally revision, max_applied_epoch and
            cluster_id.
        partitions: a frame with the columns topic and partition, and optionally revision, cluster_id and cluster_epoch.
        cluster_epoch: the cluster epoch; None to take it from the column cluster_epoch, which must have the same value
            in each row.
        expect_partitions: the required number of partitions.
    """

    files: ClassVar[int] = 1
    reports: DataFrame
    partitions: DataFrame
    cluster_epoch: int | None = None
    expect_partitions: int | None = None

    @property
    def session(self) -> SparkSession:
        """Return the session that reads the frames."""
        return self.reports.sparkSession

    def find(self, store: ObjectStore, store_at: StoreAt) -> ExternalExport:
        """Check the columns, which takes no executor. Raises `UsageError`, `CorruptObjectError`."""
        for name, frame, needed in self._frames():
            if type(frame).__name__ != "DataFrame" or not hasattr(frame, "mapInArrow"):
                raise UsageError(f"{name} cannot be {type(frame).__name__}: give a Spark DataFrame")
            from pyspark.sql.pandas.types import to_arrow_schema

            columns = [f for f in frame.schema if f.name in TYPES]
            schema = to_arrow_schema(type(frame.schema)(columns), timezone="UTC")
            _known(name, needed, pa.Table.from_batches([], schema))
        return self

    def read(self, workers: Workers[Any]) -> ExternalLog:
        """Read the frames in their own session; see `ExternalExport.read`.

        Raises:
            The errors of `known_columns` for invalid values.
        """
        from l0gc.spark.executors import cores_of
        from l0gc.spark.workers import raising_causes

        rows = []
        for name, frame, needed in self._frames():
            selected = frame.select([c for c in frame.columns if c in TYPES])
            work = partial(_checked, name, needed, reports=needed is REPORTS)
            rows.append(selected.mapInArrow(work, f"{_SCHEMA}, {_IS_REPORT} boolean"))
        tasks = cores_of(self.session.sparkContext)
        together = rows[0].unionByName(rows[1]).repartition(tasks, *PARTITIONS)
        with raising_causes():
            sums = together.mapInArrow(_sum_up, "summary binary").collect()
        summary = merged([msgspec.msgpack.decode(row.summary, type=ExternalSummary) for row in sums])
        return ExternalLog.of(summary, self, "partitions", epoch=self.cluster_epoch, expected=self.expect_partitions)

    def _frames(self) -> tuple[tuple[str, DataFrame, tuple[str, ...]], ...]:
        return ("reports", self.reports, REPORTS), ("partitions", self.partitions, PARTITIONS)


def _known(name: str, needed: tuple[str, ...], rows: pa.Table) -> pa.Table:
    try:
        return known_columns(name, rows, needed)
    except pa.ArrowException as e:
        raise CorruptObjectError(f"{name} cannot be read: {e}") from e


def _checked(
    name: str, needed: tuple[str, ...], batches: Iterator[pa.RecordBatch], *, reports: bool
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = _known(name, needed, pa.Table.from_batches([batch]))
        yield from rows.append_column(_IS_REPORT, pa.repeat(reports, len(rows))).to_batches()


def _sum_up(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    by_kind: dict[bool, list[pa.Table]] = {False: [], True: []}
    for batch in batches:
        rows = pa.Table.from_batches([batch])
        for kind, tables in by_kind.items():
            tables.append(rows.filter(rows[_IS_REPORT] if kind else pc.invert(rows[_IS_REPORT])))
    summary = add_up(by_kind[False], by_kind[True])
    yield pa.record_batch([pa.array([msgspec.msgpack.encode(summary)], pa.binary())], ["summary"])
