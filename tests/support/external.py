"""Builds what another system with an external log exports."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from l0gc.api import Cluster
from l0gc.errors import L0gcError
from l0gc.storage.config import StoreConfig
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.parallel import Parallel
from l0gc.storage.s3 import S3Store
from l0gc.storage.workers import LocalWorkers
from l0gc.watermark.external_files import ExternalFiles
from l0gc.watermark.external_log import ExternalLog, SnapshotLimits
from l0gc.watermark.external_rows import add_up, known_columns
from tests.support.memory_store import MemoryStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LISTED: Final = ("topic", "revision", "partition")
REPORTED: Final = ("topic", "revision", "partition", "gc_epoch")


@dataclass
class _Place:
    """A workplace for work that needs nothing of a cluster."""

    store: ObjectStore = field(default_factory=MemoryStore)
    parallel: Parallel = field(default_factory=Parallel)


def table(rows: Sequence[tuple[Any, ...]], columns: Sequence[str]) -> pa.Table:
    """Return rows as the table that l0gc reads."""
    return known_columns("rows", pa.table({c: [r[i] for r in rows] for i, c in enumerate(columns)}), ())


def exported(
    epoch: int,
    listed: Sequence[tuple[str, int | None, int]],
    reports: Sequence[tuple[str, int | None, int, int]] = (),
    limits: SnapshotLimits | None = None,
) -> ExternalLog:
    """Return the log of a list of partitions and of reports."""
    return ExternalLog(epoch, add_up([table(listed, LISTED)], [table(reports, REPORTED)]), limits or SnapshotLimits())


def no_store(url: str) -> ObjectStore:
    """Fail, because all files are on this machine."""
    raise AssertionError(url)


def read(files: ExternalFiles, store_of: Callable[[str], ObjectStore] = no_store) -> ExternalLog:
    """Read files in this process."""
    place = _Place()
    return files.find(place.store, lambda _, url: store_of(url)).read(LocalWorkers(place))


def answer(cluster: Cluster, spark: Any, *, scan: bool = False, **theirs: Any) -> str | type[L0gcError]:
    """Return a dry run's JSON without its durations and times, or the class of the error that it raises."""
    try:
        result = cluster.compute_watermark(spark, scan=scan, dry_run=True, **theirs)
    except L0gcError as e:
        return type(e)
    said = msgspec.structs.replace(result, seconds={}, engine="", engine_reason="").to_json()
    for moment in ("taken_ms", "oldest_eligible_age_s", "oldest_held_age_s") if scan else ():
        del said["listing"][moment]
    return json.dumps(said)


def in_the_bucket(
    cluster: Cluster, name: str, frame: DataFrame, folder: Path, *columns: str, kind: str = "parquet"
) -> str:
    """Write the rows to S3 as Spark writes them."""
    frame.write.partitionBy(*columns).format(kind).save(f"file://{folder}/{name}")
    place = f"{cluster.url.rstrip('/')}/{folder.name}/{name}"
    store = S3Store(StoreConfig.from_url(cluster.url)).at(place)
    for file in (folder / name).rglob("*"):
        if file.is_file():
            store.put(file.relative_to(folder / name).as_posix(), file.read_bytes())
    return place
