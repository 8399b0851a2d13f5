"""Mutants of how a sink treats a repeated batch, and how a bridge treats an outdated position."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock

from confluent_kafka import Consumer

from l0gc.integrations.spark.sink import OBJECT_BITS, BatchId, BatchRows, refuse_other_rows
from l0gc.streamlog.ingest.landing import WrittenObject
from l0gc.streamlog.ingest.sender import Sender
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.producers import InputProgress
from tests.simulation.mutants.tools import everywhere, instead, mutant

_KAFKA = "tests/integrations/test_kafka.py"
_SENDER = "tests/streamlog/ingest/test_sender.py"
_REPEATED = "tests/integrations/spark/test_repeated_batches.py"

_of = BatchRows.of
_refuse_other_rows = refuse_other_rows
_LANDED = "l0gc.integrations.spark.sink"


@instead(
    30,
    "l0gc/integrations/spark/sink.py::landed_rows",
    "a batch whose number has landed is skipped, whatever its rows",
    f"{_REPEATED}::test_a_repeated_batch_with_more_rows_lands_nothing",
    f"{_REPEATED}::test_other_rows_under_a_landed_number_are_refused",
    f"{_REPEATED}::test_a_batch_older_than_the_newest_is_refused",
    f"{_REPEATED}::test_concurrent_rows_of_another_driver_are_compared_where_they_land",
)
def known_by_number(batch: BatchId, rows: BatchRows, journal: int, progress: InputProgress | None) -> BatchRows | None:
    return rows if progress is not None and progress.landed >> OBJECT_BITS > batch.number else None


@instead(
    30,
    "l0gc/integrations/spark/sink.py::BatchRows.of",
    "a batch of which a part has landed is completed by its rows, in whatever partitions they now are",
    f"{_REPEATED}::test_a_partly_landed_batch_is_not_completed_in_other_journals",
    f"{_REPEATED}::test_another_drivers_rows_in_other_journals_are_an_error",
    simulated=False,
)
def places_ignored(objects: Sequence[WrittenObject]) -> BatchRows:
    return replace(_of(objects), destinations="")


@mutant(
    30,
    "l0gc/integrations/spark/sink.py::refuse_other_rows",
    "only the journals in which a batch's rows land compare them",
    f"{_REPEATED}::test_other_rows_for_other_journals_are_refused",
    simulated=False,
)
def other_journals_not_asked() -> AbstractContextManager[Any]:
    return everywhere(_LANDED, "refuse_other_rows", lambda cluster, batch, rows, topics: set())


@instead(
    33,
    "l0gc/streamlog/ingest/sender.py::Sender._renew",
    "a sender continues as the run with which it began",
    f"{_SENDER}::test_the_next_sender_fences_a_weeks_old_one",
    f"{_SENDER}::test_an_idle_sender_resumes_only_without_a_successor",
    f"{_SENDER}::test_a_journal_that_got_nothing_for_a_week_takes_its_first_record",
    simulated=False,
)
def run_not_renewed(sender: Sender) -> None:
    return None


@instead(
    33,
    "l0gc/integrations/kafka.py::topic_id",
    "a recreated topic of Kafka counts as its predecessor",
    f"{_KAFKA}::test_a_recreated_kafka_topic_is_copied_only_on_request",
    f"{_KAFKA}::test_a_kafka_topic_recreated_during_a_read_ends_the_bridge",
    simulated=False,
)
def made_again_unseen(admin: object, source: str) -> str:
    return "any"


@mutant(
    33,
    "l0gc/integrations/kafka.py::to_l0gc",
    "if Kafka does not have a position, reading starts anew",
    f"{_KAFKA}::test_a_position_past_the_end_is_an_error_that_names_both",
    simulated=False,
)
def position_skipped() -> AbstractContextManager[Any]:
    return everywhere(
        "l0gc.integrations.kafka", "Consumer", lambda config: Consumer({**config, "auto.offset.reset": "earliest"})
    )


@instead(
    30,
    "l0gc/integrations/spark/sink.py::refuse_other_rows",
    "journals compare a batch's rows with those that the driver saw last",
    f"{_REPEATED}::test_journals_refuse_other_rows_before_taking_any_part",
    simulated=False,
)
def compared_as_seen_before(*args: Any) -> Any:
    with mock.patch.object(JournalHandle, "catch_up", lambda self: self.state):
        return _refuse_other_rows(*args)
