"""Mutants of what a sink does with a batch that comes again."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from l0gc.integrations.spark.sink import PLACES, BatchId, BatchRows
from l0gc.integrations.spark.stage import StagedObject
from l0gc.streamlog.journal.producers import InputProgress
from tests.simulation.mutants.tools import everywhere, instead, mutant

_REPEATED = "tests/integrations/spark/test_repeated_batches.py"

_of = BatchRows.of
_LANDED = "l0gc.integrations.spark.sink"


@instead(
    30,
    "l0gc/integrations/spark/sink.py::landed_rows",
    "a batch whose number has landed is skipped, whatever its rows",
    f"{_REPEATED}::test_a_batch_that_comes_again_with_more_rows_is_an_error_that_names_both_and_lands_nothing",
    f"{_REPEATED}::test_other_rows_under_a_number_that_has_landed_are_never_skipped_and_never_landed",
    f"{_REPEATED}::test_a_batch_that_is_older_than_the_newest_is_an_error_that_names_both",
    f"{_REPEATED}::test_rows_that_another_driver_of_the_query_lands_at_the_same_time_are_compared_where_they_land",
)
def known_by_number(batch: BatchId, rows: BatchRows, journal: int, progress: InputProgress | None) -> BatchRows | None:
    return rows if progress is not None and progress.landed >> PLACES > batch.number else None


@instead(
    30,
    "l0gc/integrations/spark/sink.py::BatchRows.of",
    "a batch of which a part has landed is completed by its rows, wherever they are now",
    f"{_REPEATED}::test_a_batch_of_which_a_part_has_landed_is_not_completed_by_rows_in_other_journals",
    f"{_REPEATED}::test_rows_that_another_driver_lands_in_other_journals_at_the_same_time_are_an_error",
    simulated=False,
)
def places_ignored(objects: Sequence[StagedObject]) -> BatchRows:
    return replace(_of(objects), places="")


@mutant(
    30,
    "l0gc/integrations/spark/sink.py::refuse_other_rows",
    "only the journals in which a batch's rows land compare them",
    f"{_REPEATED}::test_other_rows_that_all_go_to_other_journals_are_an_error_as_well",
    simulated=False,
)
def other_journals_not_asked() -> AbstractContextManager[Any]:
    return everywhere(_LANDED, "refuse_other_rows", lambda cluster, batch, rows, topics: set())
