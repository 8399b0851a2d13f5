"""Reading records, one after another or as lines, with a pin or without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from l0gc.errors import L0gcError, UsageError
from l0gc.events import Progress, quiet
from l0gc.formatting import count, size
from l0gc.storage.objectstore import LocalFolder
from l0gc.streamlog.cluster import Handles

if TYPE_CHECKING:
    from l0gc.api.results import *
    from l0gc.storage.s3 import S3Store
    from l0gc.streamlog.controller.state import Topic

A = TypeVar("A")


class Reads:
    """The part of a cluster that reads records."""

    handles: Callable[[], Handles]
    _store_at: Callable[[str], S3Store]

    def read(
        self,
        topic: str,
        partition: int | None = None,
        start: int | None = None,
        *,
        skip_holes: bool = False,
        pin: bool = False,
    ) -> Iterator[Record]:
        """The records of a topic, byte for byte as uploaded, as `l0gc read`: one partition after another, or only one.

        Args:
            start: begin at this offset, in each partition; by default at the first one that is there.
            skip_holes: leave out records that were given up, with a warning; without it, they end the reading.
            pin: whether a pin keeps what there is when the first record is read, also from retention and the topic's
                deletion. It ends with the reading, or after a day.

        Raises:
            AccessDeniedError: with `pin`, the credentials may only read.
        """
        from l0gc.streamlog.reader import read_topic

        target, partitions = self._partitions_of(topic, partition)
        records = read_topic(self.handles(), target, partitions, start, skip_holes=skip_holes)
        return self._pinned(topic, records) if pin else records

    def read_lines(
        self,
        topic: str,
        partition: int | None = None,
        start: int | None = None,
        *,
        skip_holes: bool = False,
        pin: bool = False,
        progress: Progress = quiet,
    ) -> Iterator[RecordLines]:
        """The records as `read` gives them, some thousand at once, each followed by a newline: for a file.

        Args:
            skip_holes: see `read`.
            pin: see `read`.
            progress: called as it goes. If somebody follows it, the records are counted first.
        """
        from l0gc.streamlog.reader import count_records, read_record_lines

        target, partitions = self._partitions_of(topic, partition)
        cluster, total, records, written = self.handles(), 0, 0, 0
        if progress is not quiet:
            progress("reading the journals")
            total = count_records(cluster, target, partitions, start)
        lines = read_record_lines(cluster, target, partitions, start, skip_holes=skip_holes)
        for some in self._pinned(topic, lines) if pin else lines:
            records, written = records + some.records, written + len(some.lines)
            yield some
            progress(f"{count(records, 'record')}, {size(written)}", done=records, total=max(total, records))

    def lag(self, checkpoint: str | Path) -> QueryLag:
        """How far a streaming query of Spark is behind the topics that it reads, a partition after another. The command line
        does not have this.

        Args:
            checkpoint: its `checkpointLocation`: a folder of this machine, or in a bucket of this store, as `s3://bucket/folder`.

        Raises:
            NotFoundError: there is no checkpoint, no micro-batch has ended, or the query reads a topic that is not there.
        """
        from urllib.parse import urlsplit
        from urllib.request import url2pathname

        from l0gc.inspect.lag import query_lag

        place = str(checkpoint)
        scheme, _, rest = place.rpartition("://")
        if scheme in ("s3", "s3a", "s3n"):
            return query_lag(self.handles(), self._store_at(f"s3://{rest}"), place)
        if scheme not in ("", "file"):
            raise UsageError(
                f"checkpoint {place} cannot be read here: name a folder of this machine, or of a bucket as s3://bucket/folder"
            )
        folder = Path(url2pathname(urlsplit(place).path) if place.startswith("file:") else place)
        return query_lag(self.handles(), LocalFolder(folder), place)

    def _partitions_of(self, topic: str, partition: int | None) -> tuple[Topic, list[int] | None]:
        target = self.handles().controller.snapshot().topic(topic)
        return target, None if partition is None else [target.id(partition).partition]

    def _pinned(self, topic: str, found: Iterator[A]) -> Iterator[A]:
        """What is read, while a pin keeps it. Nothing of it was looked up before."""
        from l0gc.streamlog.pins import pin_for_reader

        cluster = self.handles()
        pin = pin_for_reader(cluster, f"topic {topic}")
        try:
            yield from found
        finally:
            with suppress(L0gcError):  # it ends by itself
                cluster.controller.delete_pin(pin.name, pin.revision)
