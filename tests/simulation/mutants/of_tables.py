"""Mutants of tables: what a table's snapshot may name, and which pins may be deleted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from copy import copy
from types import SimpleNamespace
from typing import Any
from unittest import mock

from l0gc.integrations.iceberg import commit, plan
from l0gc.streamlog.controller.state import TopicTable
from tests.simulation.mutants.tools import everywhere, instead, mutant

_TEST = "tests/integrations/iceberg/test_sync.py"
_check_owner = plan.check_owner
_ENDS = "tests/integrations/iceberg/test_ends.py"
_PLAN = "l0gc.integrations.iceberg.plan"

_unnamed = commit.unnamed


@instead(
    32,
    "l0gc/integrations/iceberg/catalog.py::check_location",
    "a table is synced at any location that its catalog names",
    f"{_TEST}::test_a_table_pointing_at_foreign_metadata_stays_refused",
    simulated=False,
)
def anywhere(table: Any, wanted: Any) -> None:
    return None


@instead(
    32,
    "l0gc/integrations/iceberg/plan.py::unused_pins",
    "a sync ends the pins of running syncs",
    f"{_ENDS}::test_a_sync_does_not_end_another_syncs_pin",
    simulated=False,
)
def running_pins_ended(pins: Any, loaded: Any, kept: Any, now_ms: int) -> list[str]:
    return list(pins.keys() - {note.pin for note in kept if note is not None})


@instead(
    32,
    "l0gc/integrations/iceberg/commit.py::unnamed",
    "metadata files that the table did not name when it was loaded are deleted",
    f"{_ENDS}::test_the_metadata_of_another_commit_stays_whatever_the_warehouses_clock_says",
    simulated=False,
)
def named_once(table: Any, age_ms: int | None = None) -> Iterator[str]:
    once = copy(table)
    once.catalog = SimpleNamespace(load_table=lambda name: table)
    return _unnamed(once)


@mutant(
    37,
    "l0gc/integrations/iceberg/plan.py::unused_pins",
    "a sync deletes pins that kept snapshots name",
    f"{_TEST}::test_vacuum_keeps_objects_of_kept_snapshots",
    simulated=False,
)
def table_pins_deleted() -> AbstractContextManager[Any]:
    return everywhere(_PLAN, "unused_pins", lambda pins, loaded, kept, now_ms: list(pins))


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
    "a sync removes no object from a table",
    f"{_TEST}::test_a_sync_is_one_snapshot_and_another_one_commits_nothing",
    simulated=False,
)
def merged_beside_its_input() -> AbstractContextManager[Any]:
    return everywhere(_PLAN, "held_before", lambda note, rows: rows["epoch"] < 0)


@mutant(
    37,
    "l0gc/integrations/iceberg/plan.py::check_not_ahead",
    "a table that has more than its journal is synced",
    f"{_TEST}::test_a_table_that_knows_more_than_its_journal_is_refused",
    simulated=False,
)
def table_ahead() -> AbstractContextManager[Any]:
    return everywhere(_PLAN, "check_not_ahead", lambda note, holds, table: None)


@mutant(
    37,
    "l0gc/integrations/iceberg/plan.py::check_owner",
    "a table of another cluster, or of an earlier topic, is synced",
    f"{_TEST}::test_a_table_of_another_owner_or_earlier_topic_is_refused",
    simulated=False,
)
def anyones_table() -> AbstractContextManager[Any]:
    return everywhere(_PLAN, "check_owner", lambda *whose: None)


@instead(
    37,
    "l0gc/integrations/iceberg/plan.py::is_fresh",
    "a sync relies on a pin that ends before its snapshots do",
    f"{_TEST}::test_only_a_pin_with_a_full_lifetime_is_fresh",
    simulated=False,
)
def short_pin_used(note: Any, pins: Any, now_ms: int, keep_ms: int) -> bool:
    return note.pin in pins


@mutant(
    37,
    "l0gc/integrations/iceberg/plan.py::ended_snapshots",
    "a snapshot counts as read until the last of its successors took its place, not the first",
    f"{_TEST}::test_a_snapshot_is_followed_by_the_first_that_took_its_place",
    simulated=False,
)
def followed_by_the_last() -> AbstractContextManager[Any]:
    return mock.patch.object(plan, "min", max, create=True)


@instead(
    37,
    "l0gc/streamlog/journal/topic.py::TopicState.l1_before_shared",
    "a table lacks the records of shared objects between others",
    "tests/integrations/iceberg/test_shared.py::test_a_table_names_nothing_above_rows_of_shared_objects",
    simulated=False,
)
def shared_rows_passed(topic: Any) -> Any:
    return topic.l1


@mutant(
    40,
    "l0gc/integrations/iceberg/plan.py::check_owner",
    "a copy of a cluster syncs the tables of the cluster that it was copied from",
    f"{_TEST}::test_a_restored_copy_of_a_cluster_leaves_productions_table_as_it_is",
    simulated=False,
)
def copys_table() -> AbstractContextManager[Any]:
    def owned(owner: str, place: str, revision: int, table: TopicTable, cluster_id: str, url: str) -> None:
        _check_owner(owner, url, revision, table, cluster_id, url)

    return everywhere(_PLAN, "check_owner", owned)
