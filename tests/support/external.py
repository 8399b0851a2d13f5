"""What another system with an external log exports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.parallel import Parallel
from l0gc.storage.workers import LocalWorkers
from l0gc.watermark.external_files import ExternalFiles
from l0gc.watermark.external_log import ExternalLog, SnapshotLimits
from l0gc.watermark.external_rows import add_up, known_columns
from tests.support.memory_store import MemoryStore

LISTED: Final = ("topic", "revision", "partition")
REPORTED: Final = ("topic", "revision", "partition", "gc_epoch")


@dataclass
class _Place:
    """Where nothing of a cluster is needed."""

    store: ObjectStore = field(default_factory=MemoryStore)
    parallel: Parallel = field(default_factory=Parallel)


def table(rows: Sequence[tuple[Any, ...]], columns: Sequence[str]) -> pa.Table:
    """Rows as l0gc takes them."""
    return known_columns("rows", pa.table({c: [r[i] for r in rows] for i, c in enumerate(columns)}), ())


def exported(
    epoch: int,
    listed: Sequence[tuple[str, int | None, int]],
    reports: Sequence[tuple[str, int | None, int, int]] = (),
    limits: SnapshotLimits | None = None,
) -> ExternalLog:
    """A list of partitions, and reports."""
    return ExternalLog(epoch, add_up([table(listed, LISTED)], [table(reports, REPORTED)]), limits or SnapshotLimits())


def no_store(url: str) -> ObjectStore:
    """For files that are all of this machine."""
    raise AssertionError(url)


def read(files: ExternalFiles, store_of: Callable[[str], ObjectStore] = no_store) -> ExternalLog:
    """Read files in this process."""
    place = _Place()
    return files.find(place.store, lambda _, url: store_of(url)).read(LocalWorkers(place))
