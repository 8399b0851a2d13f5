"""Mutants of tables: what a table's snapshot may name, and which pins may go."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from tests.simulation.mutants.tools import everywhere, mutant

_TEST = "tests/integrations/iceberg/test_sync.py"
_PLAN = "l0gc.integrations.iceberg.plan"


@mutant(
    37,
    "l0gc/integrations/iceberg/plan.py::unused_pins",
    "a sync deletes pins that kept snapshots name",
    f"{_TEST}::test_vacuum_leaves_what_a_kept_snapshot_names_and_takes_it_once_that_has_ended",
    simulated=False,
)
def table_pins_deleted() -> AbstractContextManager[Any]:
    return everywhere(_PLAN, "unused_pins", lambda pins, kept, now_ms: list(pins))


@mutant(
    37,
    "l0gc/integrations/iceberg/plan.py::is_fresh",
    "a sync relies on a pin that has ended",
    f"{_TEST}::test_a_snapshot_whose_pin_has_ended_is_followed_and_ends",
    simulated=False,
)
def ended_pin_used() -> AbstractContextManager[Any]:
    return everywhere(_PLAN, "is_fresh", lambda note, pins, now_ms, keep_ms: True)


@mutant(
    37,
    "l0gc/integrations/iceberg/plan.py::held_before",
    "a sync takes nothing out of a table",
    f"{_TEST}::test_a_sync_is_one_snapshot_and_another_one_commits_nothing",
    simulated=False,
)
def merged_beside_its_input() -> AbstractContextManager[Any]:
    return everywhere(_PLAN, "held_before", lambda note, rows: rows["epoch"] < 0)


@mutant(
    37,
    "l0gc/integrations/iceberg/plan.py::check_not_ahead",
    "a table that knows more than its journal is synced",
    f"{_TEST}::test_a_table_that_knows_more_than_its_journal_is_refused",
    simulated=False,
)
def table_ahead() -> AbstractContextManager[Any]:
    return everywhere(_PLAN, "check_not_ahead", lambda note, offsets, table: None)


@mutant(
    37,
    "l0gc/integrations/iceberg/plan.py::check_owner",
    "a table of another cluster, or of an earlier topic, is synced",
    f"{_TEST}::test_the_table_of_another_program_another_cluster_or_an_earlier_topic_is_refused",
    simulated=False,
)
def anyones_table() -> AbstractContextManager[Any]:
    return everywhere(_PLAN, "check_owner", lambda owner, revision, table, cluster_id: None)
