"""Send records from another system, such as Kafka, each exactly once.

The other system numbers its records in each partition, and can be read again from any number. So the producer's position
in a partition is the next number that has not landed. It is committed with the records, in one entry of their journal. A
new sender looks up the positions and continues from there, so no record is missing or duplicated, wherever the previous
run ended.

A sender may run for months, but a run's name is forgotten after two weeks, and then another sender would not fence it
(hazard 33). So once a day it continues as the producer's next run, unless another run took over, or the name was
forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import NoneType
from typing import Final

import numpy as np

from l0gc.errors import InvalidProducerEpochError, UsageError
from l0gc.operations import EARLY_MS, checked_value
from l0gc.storage.entry import Place
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import Producer, Topic
from l0gc.streamlog.ingest.extents import Records, check_object_bytes, check_records, pack_records
from l0gc.streamlog.ingest.headers_and_times import MAX_TIME_MS, NO_TIME, Record, headers_column, size_of_headers
from l0gc.streamlog.ingest.landing import Landing, RunAppender, write_object
from l0gc.streamlog.ingest.result import UploadResult
from l0gc.streamlog.ingest.uploader import target_of
from l0gc.streamlog.journal.producers import INPUTS_KEPT, InputSpan, Int62, ProducerState, landed_of, progress_of
from l0gc.streamlog.journal.rows import NUMBER
from l0gc.streamlog.producers import begin_run, is_due

_KINDS: Final[dict[str, set[type]]] = {
    "partition": {int},
    "value": {bytes},
    "key": {bytes, NoneType},
    "create_time_ms": {int, NoneType},
}


@contextmanager
def open_sender(cluster: ClusterHandles, topic: str, producer: str) -> Iterator[Sender]:
    """Begin a run of the producer.

    Raises:
        NotFoundError: the topic does not exist.
        UsageError: a journal has more of its partitions than it can remember inputs. EpochRegressionError, SetBackError:
            see `open_upload`; nothing was written.
    """
    target = target_of(cluster, topic)
    if max(r.count for r in target.partition_ranges()) > INPUTS_KEPT:
        raise UsageError(
            f"topic {topic!r} has more than {INPUTS_KEPT:,} partitions in a journal, which cannot be remembered"
        )
    run = begin_run(cluster, producer, [cluster.journal(r.journal) for r in target.partition_ranges()])
    yield Sender(cluster, target, producer, run)


class Sender:
    """Sends records into a topic, one batch after another, as the newest run of a producer.

    Args:
        name: the producer's name.
        run: a run that has landed nothing; the topic's journals are caught up.
    """

    def __init__(self, cluster: ClusterHandles, topic: Topic, name: str, run: Producer) -> None:
        self._cluster, self._topic, self._name, self._run = cluster, topic, name, run
        self._appender = RunAppender(run)
        self._landing = Landing(cluster, self._appender)
        self._error: BaseException | None = None
        self.positions: dict[int, int] = {}
        """The number after that of the last landed record, by partition. Partitions without records from the producer in
        the last 21 days are missing.
        """
        for partition in range(topic.partitions):
            progress = progress_of(self._producers(partition), self._input(partition))
            if progress is not None:
                self.positions[partition] = progress.landed

    def end(self, partition: int) -> Place:
        """Return the place in the partition's journal after which nothing from this sender has landed."""
        return self._cluster.journal(self._topic.journal_of(partition)).replica.end

    def holds(self, partition: int, place: Place) -> bool:
        """Return whether the partition's journal has the entry at a noted place, see `Replica.holds`."""
        return self._cluster.journal(self._topic.journal_of(partition)).replica.holds(place)

    def _input(self, partition: int) -> str:
        return f"{self._name}/{self._topic.topic_id}/{partition}"

    def _producers(self, partition: int) -> Mapping[int, ProducerState]:
        return self._cluster.journal(self._topic.journal_of(partition)).head.producers

    @property
    def result(self) -> UploadResult:
        """Return the result so far."""
        return self._landing.result

    def send(self, records: Iterable[Record], positions: Mapping[int, int]) -> None:
        """Land records, those of each partition in order, together with the producer's new positions. If there are no
        records for days, call it without any at least once a week, so that the run stays the producer's newest.

        Args:
            positions: for each partition with records, the number after that of its last record.

        Raises:
            UsageError: a record cannot be stored, they are too many for an object, or the positions
                do not fit the records; none of them was sent.
            InputPositionMovedError, InvalidProducerEpochError: another run of the producer took over.
            L0gcError: see `Landing.land`; every later call raises it, too. Some journals may already have their part:
                begin again with the positions that they record.
        """
        self._cluster.parallel.check_open()
        if self._error is not None:
            raise self._error
        batch = list(records)
        if not all(isinstance(r, Record) for r in batch):
            raise UsageError("a record is not an l0gc.api.Record")
        for name, kinds in _KINDS.items():
            for kind in {type(getattr(r, name)) for r in batch} - kinds:
                raise UsageError(f"a record's {name} cannot be of type {kind.__name__}, see Record")
        positions = checked_value("positions", positions, dict[int, Int62])
        spans = self._spans(batch, positions)
        packed = pack_records(self._topic, _columns(batch)) if batch else None
        try:
            self._renew()
            if packed is None:
                return
            written = write_object(self._cluster, self._topic, packed)
            written.spans = spans
            self._landing.land([written])
        except BaseException as e:
            self._error = e
            raise
        self.positions |= positions

    def _renew(self) -> None:
        """Continue as the producer's next run if that is due.

        Raises:
            InvalidProducerEpochError: another run took over, according to the controller's log of a few seconds ago, or
                may have.
        """
        self._cluster.controller.epoch()  # looks at the log
        newest = self._cluster.controller.replica.state.producers.get(self._name)
        if newest is not None and newest.follows(self._run):
            raise InvalidProducerEpochError(
                f"another run of producer {self._name!r} began after this one, and takes over: let this one end, or end the "
                "other one and begin again"
            )
        if is_due(self._cluster, self._run):
            self._run = self._cluster.controller.init_producer(
                self._name, self._run.producer_id, self._run.epoch, self._run.run
            )
            self._appender.begin(self._run)

    def _spans(self, records: Sequence[Record], positions: Mapping[int, int]) -> dict[int, list[InputSpan]]:
        named = {r.partition for r in records}
        if named != set(positions):
            raise UsageError(f"records are for the partitions {sorted(named)}, and positions for {sorted(positions)}")
        spans: dict[int, list[InputSpan]] = {}
        for partition, end in sorted(positions.items()):
            if not 0 <= partition < self._topic.partitions:
                valid = f"the topic has partitions 0 to {self._topic.partitions - 1}"
                raise UsageError(f"partition {partition} is out of range: {valid}")
            landed = self.positions.get(partition, 0)
            if end <= landed:
                raise UsageError(f"position {end} of partition {partition} is not above {landed}, which landed")
            input_id = self._input(partition)
            start = landed_of(self._producers(partition), self._run.producer_id, input_id)
            spans.setdefault(self._topic.journal_of(partition), []).append(InputSpan(input_id, start, end))
        return spans


def _columns(records: Sequence[Record]) -> Records:
    """Return the records as columns. Raises `UsageError` if one of them cannot be stored."""
    in_order = sorted(records, key=lambda r: r.partition)
    sizes = np.array([len(r.value) for r in in_order], np.int64)
    try:
        whole = sizes + np.array([len(r.key or b"") + size_of_headers(r.headers) for r in in_order], np.int64)
        check_records(whole)
        check_object_bytes(int(whole.sum()))  # before they become columns, whose offsets end at 2^31 bytes
        times = np.array([NO_TIME if r.create_time_ms is None else r.create_time_ms for r in in_order], np.int64)
        headers = headers_column(r.headers for r in in_order)
    except (AttributeError, OverflowError, TypeError, ValueError) as e:
        raise UsageError(f"a record has a create time or headers that cannot be stored: {e}") from e
    if times.min() < NO_TIME or times.max() > MAX_TIME_MS:
        raise UsageError("a record has a create time that is not in the years 1970 to 9999")
    for at in np.flatnonzero((times > 0) & (times < EARLY_MS)).tolist():
        if in_order[at].offset < 0:
            raise UsageError(
                f"a record has the create time {times[at]}, which is before 1990 in milliseconds, so it is probably in "
                "another unit; a record with its offset in the other system keeps such a time"
            )
    partitions = np.array([r.partition for r in in_order], NUMBER)
    values = b"".join(r.value for r in in_order)
    return Records(partitions, sizes, values, [r.key for r in in_order], times, headers)
