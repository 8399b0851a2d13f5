"""Sending records that another system keeps, each once: what a bridge from Kafka does.

The other system numbers its records, in each partition separately, and can be read again from any number on. So the
producer's position in a partition is the next number that has not landed, and it is committed with the records, in one entry
of their journal. Whoever begins again asks for the positions, and reads on from there; no record is missing and none is
there twice, wherever the run before ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from l0gc.errors import UsageError
from l0gc.storage.parallel import WorkerThreads
from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.controller.state import Producer, Topic
from l0gc.streamlog.ingest.batch import Batch
from l0gc.streamlog.ingest.headers_and_times import MAX_TIME_MS, NO_TIME, Headers, header_bytes, headers_column
from l0gc.streamlog.ingest.inputs import MAX_RECORD_BYTES
from l0gc.streamlog.ingest.placement import in_turn
from l0gc.streamlog.ingest.result import UploadResult
from l0gc.streamlog.ingest.uploader import Uploader, target_of
from l0gc.streamlog.journal.entries import InputSpan, ProducerState
from l0gc.streamlog.journal.producers import INPUTS_KEPT, landed_of, progress_of
from l0gc.streamlog.journal.rows import NUMBER
from l0gc.streamlog.producers import begin_run


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to send; see `Record`. Its value may be any bytes."""

    partition: int
    value: bytes
    key: bytes | None = None
    headers: Headers = ()
    create_time_ms: int | None = None


@contextmanager
def open_sender(cluster: Handles, topic: str, producer: str) -> Iterator[Sender]:
    """A sender, which begins a run of the producer.

    Raises:
        NotFoundError: there is no such topic.
        UsageError: a journal has more of its partitions than inputs that it remembers.
        EpochRegressionError, SetBackError: see `open_upload`; nothing was written.
    """
    target = target_of(cluster, topic)
    if max(r.count for r in target.runs()) > INPUTS_KEPT:
        raise UsageError(
            f"topic {topic!r} has more than {INPUTS_KEPT:,} partitions in a journal, which cannot be remembered"
        )
    run = begin_run(cluster, producer, [cluster.journal(r.journal) for r in target.runs()])
    with WorkerThreads(1, "pack") as packers, WorkerThreads(1, "commit") as committer:
        spread = in_turn(target.partitions)  # records name their partitions
        uploader = Uploader(cluster, target, spread, packers=packers, committer=committer, producer=run)
        yield Sender(target, producer, run, uploader)


class Sender:
    """Sends records into a topic, one batch after another, as the newest run of a producer.

    Args:
        name: the producer's.
        uploader: one that has sent nothing, with this run; its journals are caught up.
    """

    def __init__(self, topic: Topic, name: str, producer: Producer, uploader: Uploader) -> None:
        self._topic, self._name, self._producer, self._uploader = topic, name, producer, uploader
        self._run_of = {p: n for n, r in enumerate(topic.runs()) for p in range(r.first, r.first + r.count)}
        self.positions: dict[int, int] = {}
        """By partition, the number after that of the last record which landed. A partition into which the producer sent
        nothing in 21 days is not there."""
        for partition in self._run_of:
            found = progress_of(self._producers(partition), self._input(partition))
            if found is not None:
                self.positions[partition] = found.landed

    def _input(self, partition: int) -> str:
        return f"{self._name}/{self._topic.topic_id}/{partition}"

    def _producers(self, partition: int) -> Mapping[int, ProducerState]:
        return self._uploader.journals[self._run_of[partition]].state.producers

    @property
    def result(self) -> UploadResult:
        """What has landed so far."""
        return self._uploader.result

    def send(self, records: Iterable[NewRecord], positions: Mapping[int, int]) -> None:
        """Land records, those of each partition in their order, and the producer's new positions with them.

        Args:
            positions: by partition, of those that have any of the records: the number after that of its last one.

        Raises:
            UsageError: a record cannot be stored, or the positions do not fit the records; none of them was sent.
            InputPositionMovedError, InvalidProducerEpochError: another run of the producer took over.
            L0gcError: see `Uploader.run`. Some of the journals may have their part: begin again with the positions there.
        """
        if batch := self._batch(list(records), positions):
            self._uploader.land(batch)
            self.positions |= positions

    def _batch(self, records: list[NewRecord], positions: Mapping[int, int]) -> Batch | None:
        named = {r.partition for r in records}
        if named != set(positions):
            raise UsageError(f"records are for the partitions {sorted(named)}, and positions for {sorted(positions)}")
        spans: list[list[InputSpan]] = [[] for _ in self._uploader.journals]
        for partition, end in sorted(positions.items()):
            if partition not in self._run_of:
                there = f"the topic has partitions 0 to {self._topic.partitions - 1}"
                raise UsageError(f"partition {partition} is out of range: {there}")
            landed = self.positions.get(partition, 0)
            if end <= landed:
                raise UsageError(f"position {end} of partition {partition} is not above {landed}, which landed")
            input_id = self._input(partition)
            start = landed_of(self._producers(partition), self._producer.producer_id, input_id)
            spans[self._run_of[partition]].append(InputSpan(input_id, start, end))
        if not records:
            return None
        times = np.array([NO_TIME if r.create_time_ms is None else r.create_time_ms for r in records], np.int64)
        sizes = np.array([len(r.value) for r in records], np.int64)
        headers = headers_column(r.headers for r in records)
        if times.min() < NO_TIME or times.max() > MAX_TIME_MS:
            raise UsageError("a record has a create time that is not in the years 1970 to 9999")
        if int((sizes + header_bytes(headers)).max()) > MAX_RECORD_BYTES:
            raise UsageError(
                f"a record is longer than {MAX_RECORD_BYTES} bytes with its headers, the most that one may have"
            )
        return Batch(
            spans,
            [r.value for r in records],
            [r.key for r in records],
            [np.array([r.partition for r in records], NUMBER)],
            [sizes],
            [times],
            headers,
        )
