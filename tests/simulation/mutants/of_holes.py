"""Mutants of giving up: what may become a hole, and how everything else treats a hole."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import numpy as np

import l0gc.streamlog.journal.entries
import l0gc.streamlog.level_one.give_up
import l0gc.streamlog.level_one.merge_plan
from l0gc.errors import RefusedObjectError
from l0gc.streamlog.journal.entries import GIVE_UP
from l0gc.streamlog.journal.topic import Extent
from l0gc.streamlog.level_one.give_up import Remains
from tests.simulation.mutants.of_l1 import fits_anyhow
from tests.simulation.mutants.tools import everywhere, mutant

_TEST = "tests/streamlog/journal/test_holes.py"
_REFUSED = "tests/streamlog/level_one/test_refused_objects.py"
_TEST_GIVE_UP = "tests/streamlog/level_one/test_give_up.py"


_read_back = l0gc.streamlog.level_one.give_up.read_back


def _none(rows: Any) -> Any:
    return np.zeros(len(rows), np.bool_)


@mutant(
    34,
    "l0gc/streamlog/level_one/give_up.py::give_up",
    "records are given up after one failed read",
    f"{_REFUSED}::test_a_replica_that_is_bad_once_makes_nothing_a_hole",
    simulated=False,
)
def one_read_decides() -> AbstractContextManager[Any]:
    return mock.patch.object(l0gc.streamlog.level_one.give_up, "LOOKS", 1)


@mutant(
    35,
    "l0gc/streamlog/level_one/give_up.py::read_back",
    "records are given up without an attempt to read them",
    f"{_TEST_GIVE_UP}::test_what_can_be_read_is_given_up_only_if_that_is_said",
    simulated=False,
)
def readable_given_up() -> AbstractContextManager[Any]:
    def untried(cluster: Any, key: str, extents: Sequence[Extent]) -> list[Remains]:
        return [Remains(key, e.block.start, "it is gone") for e in extents]

    return everywhere("l0gc.streamlog.level_one.give_up", "read_back", untried)


@mutant(
    35,
    "l0gc/streamlog/level_one/give_up.py::give_up",
    "objects that the store merely refuses are given up as lost",
    f"{_REFUSED}::test_a_refused_object_is_given_up_only_on_request",
    simulated=False,
)
def refused_given_up() -> AbstractContextManager[Any]:
    def lost(cluster: Any, key: str, extents: Sequence[Extent]) -> list[Remains]:
        try:
            return _read_back(cluster, key, extents)
        except RefusedObjectError as e:
            return [Remains(key, extent.block.start, str(e)) for extent in extents]

    return everywhere("l0gc.streamlog.level_one.give_up", "read_back", lost)


@mutant(
    35,
    "l0gc/streamlog/journal/edits.py::fits",
    "a hole may cover records that are in L1, or leave a gap before it",
    f"{_TEST}::test_a_hole_starts_after_the_lro_and_ends_with_an_extent",
    simulated=False,
)
def any_hole() -> AbstractContextManager[Any]:
    return fits_anyhow(GIVE_UP)


@mutant(
    35,
    "l0gc/streamlog/journal/entries.py::Edit",
    "an edit may replace a hole",
    f"{_TEST}::test_no_other_edit_adds_a_hole_and_no_merge_takes_its_place",
    simulated=False,
)
def hole_merged() -> AbstractContextManager[Any]:
    return mock.patch.object(l0gc.streamlog.journal.entries, "is_hole", _none)


@mutant(
    35,
    "l0gc/streamlog/level_one/merge_plan.py::merges_of",
    "a merge is planned across a hole",
    f"{_TEST_GIVE_UP}::test_merge_retention_and_vacuum_pass_a_hole",
    simulated=False,
)
def hole_spanned() -> AbstractContextManager[Any]:
    return mock.patch.object(l0gc.streamlog.level_one.merge_plan, "is_hole", _none)
