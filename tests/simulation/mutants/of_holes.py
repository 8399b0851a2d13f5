"""Mutants of giving up: what may become a hole, and what a hole is to everything else."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import msgspec
import numpy as np

import l0gc.streamlog.journal.entries
import l0gc.streamlog.journal.holes
import l0gc.streamlog.level_one.merge_plan
from l0gc.streamlog.journal.topic import TopicState
from tests.simulation.mutants.tools import everywhere, method, mutant

_TEST = "tests/streamlog/journal/test_holes.py"
_TEST_GIVE_UP = "tests/streamlog/test_give_up.py"
_HOLES = "l0gc.streamlog.journal.holes"
_check = l0gc.streamlog.journal.holes.check_give_up


def _none(rows: Any) -> Any:
    return np.zeros(len(rows), np.bool_)


@mutant(
    35,
    "l0gc/streamlog/give_up.py::why_lost",
    "records are given up that nobody has tried to read",
    f"{_TEST_GIVE_UP}::test_what_can_be_read_is_given_up_only_if_that_is_said",
    simulated=False,
)
def readable_given_up() -> AbstractContextManager[Any]:
    return everywhere("l0gc.streamlog.give_up", "why_lost", lambda store, e: "it is gone")


@mutant(
    35,
    "l0gc/streamlog/journal/holes.py::check_give_up",
    "what lands is not compared with what was tried",
    f"{_TEST}::test_records_in_an_object_that_was_not_tried_are_refused",
    simulated=False,
)
def untried_given_up() -> AbstractContextManager[Any]:
    def check(topics: Any, e: Any, name: str) -> Any:
        keys = [o.key for t in topics.values() for o in t.objects]
        return _check(topics, msgspec.structs.replace(e, keys=keys), name)

    return everywhere(_HOLES, "check_give_up", check)


@mutant(
    35,
    "l0gc/streamlog/journal/edits.py::fits",
    "a commit may cover records that were given up",
    f"{_TEST}::test_no_commit_covers_a_hole",
    simulated=False,
)
def hole_reconciled() -> AbstractContextManager[Any]:
    return method(TopicState, "given_up", lambda self, ranges: _none(ranges))


@mutant(
    35,
    "l0gc/streamlog/journal/entries.py::Edit",
    "an entry may name a hole, and have an object take its place",
    f"{_TEST}::test_no_commit_names_a_hole_and_no_merge_takes_its_place",
    simulated=False,
)
def hole_merged() -> AbstractContextManager[Any]:
    return mock.patch.object(l0gc.streamlog.journal.entries, "is_hole", _none)


@mutant(
    35,
    "l0gc/streamlog/level_one/merge_plan.py::merges_of",
    "a merge is planned over a hole",
    f"{_TEST_GIVE_UP}::test_merge_retention_and_vacuum_pass_a_hole",
    simulated=False,
)
def hole_spanned() -> AbstractContextManager[Any]:
    return mock.patch.object(l0gc.streamlog.level_one.merge_plan, "is_hole", _none)
