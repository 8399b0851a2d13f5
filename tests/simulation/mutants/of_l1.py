"""Mutants of the life of L1: commits and merges, the fence, the vacuum."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from unittest import mock

import msgspec
import numpy as np
from numpy.typing import NDArray

import l0gc.streamlog.garbage
import l0gc.streamlog.journal.edits
import l0gc.streamlog.journal.shared
from l0gc.collect.dropped_l1 import DroppedSource, delete_dropped
from l0gc.collect.run import DeletionQueue
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.format import Format
from l0gc.streamlog.garbage import JournalGarbage
from l0gc.streamlog.journal.entries import MERGE, Edit, Kind
from l0gc.streamlog.journal.row_list import RowList
from l0gc.streamlog.journal.rows import Rows, of_partition
from l0gc.streamlog.journal.shared import SharedObject
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.journal.topic import TopicState, l1_file, l1_key, shared_key
from l0gc.streamlog.level_one.plan import Window
from l0gc.streamlog.level_one.reconcile import Commit
from l0gc.streamlog.values import parse
from tests.simulation.mutants.tools import everywhere, instead, method, mutant, together

_STATE_L1 = "tests/streamlog/journal/test_state_l1.py"
_VACUUM = "tests/collect/test_vacuum.py"
_GARBAGE = "tests/streamlog/test_garbage.py"
_SHARED = "tests/streamlog/journal/test_shared.py"
_ROADS = "tests/streamlog/values/test_roads.py"
_VALUES = "tests/streamlog/values/test_parse.py"
_AGAIN = "tests/streamlog/level_one/test_commit_again.py"

_EDITS = "l0gc.streamlog.journal.edits"
_begin, _count = Commit.__init__, Commit._count
_without = l0gc.streamlog.journal.shared.without
_fits = l0gc.streamlog.journal.edits.fits
_raise_fence = JournalGarbage.fence
_BETWEEN_S = 60.0
_delete_dropped = delete_dropped


@mutant(
    24,
    "l0gc/streamlog/journal/edits.py::fits",
    "a merge lands even if the objects that it replaces have changed",
    f"{_STATE_L1}::test_a_losing_merge_does_not_hold_up_other_partitions",
    simulated=False,
)
def any_merge() -> AbstractContextManager[Any]:
    return fits_anyhow(MERGE)


def fits_anyhow(kind: Kind) -> AbstractContextManager[Any]:
    """Land edits of a kind whatever the state."""

    def fitting(state: JournalState, edit: Edit) -> dict[tuple[int, int], str]:
        return {} if edit.kind == kind else _fits(state, edit)

    return everywhere(_EDITS, "fits", fitting)


@mutant(
    24,
    "l0gc/streamlog/level_one/rewrite.py::_check_columns",
    "a merge that began under an older value schema rewrites newer columns by that schema",
    "tests/streamlog/level_one/test_typed.py::test_a_merge_that_began_under_an_older_schema_leaves_what_is_newer",
    simulated=False,
)
def newer_columns_lost() -> AbstractContextManager[Any]:
    return everywhere("l0gc.streamlog.level_one.rewrite", "schema_number", lambda metadata: 0)


@mutant(
    24,
    "l0gc/streamlog/controller/entries.py::check_next_schema",
    "a value schema lands that does not follow the previous one",
    "tests/streamlog/controller/test_value_schema.py::test_an_entry_with_a_schema_that_does_not_follow_is_refused",
    simulated=False,
)
def any_next_schema() -> AbstractContextManager[Any]:
    return everywhere("l0gc.streamlog.controller.entries", "check_next_schema", lambda known, wanted: None)


@mutant(
    44,
    "l0gc/streamlog/values/parse.py::ValueParser._together",
    "the result of pyarrow is used without a check",
    f"{_ROADS}::test_both_roads_and_the_reference_give_the_same_values",
    f"{_VALUES}::test_a_decimal_beyond_its_column_is_null_whatever_its_neighbours",
    simulated=False,
)
def pyarrow_trusted() -> AbstractContextManager[Any]:
    return everywhere("l0gc.streamlog.values.parse", "_read_type", parse.type_of)


@mutant(
    25,
    "l0gc/streamlog/journal/edits.py::fits",
    "objects that are stamped below the L1 fence are committed",
    f"{_STATE_L1}::test_what_is_stamped_below_the_fence_is_never_named",
)
def commit_below_fence() -> AbstractContextManager[Any]:
    return everywhere(_EDITS, "fits", lambda state, edit: _fits(msgspec.structs.replace(state, l1_fence=0), edit))


@instead(
    25,
    "l0gc/streamlog/garbage.py::JournalGarbage.fence",
    "a vacuum reads the journals before the fence",
    f"{_GARBAGE}::test_what_is_committed_until_the_fence_is_no_orphan",
    simulated=False,
)
def looked_before_fence(self: JournalGarbage, before_ms: int, dropped_before_ms: int, *, dry_run: bool) -> int:
    """Give a vacuum the journals' state from before the fence."""
    before = copy.deepcopy(self._states)
    self._cluster.runtime.clock.sleep(_BETWEEN_S)
    found = _raise_fence(self, before_ms, dropped_before_ms, dry_run=dry_run)
    for journal, state in before.items():
        state.l1_fence = self._fences.get(journal, 0)
    self._states = before
    return found


@instead(
    26,
    "l0gc/collect/dropped_l1.py::delete_dropped",
    "dropped objects are deleted at once",
    f"{_GARBAGE}::test_merged_objects_go_after_the_grace_and_two_epochs",
)
def no_grace(source: DroppedSource, queue: DeletionQueue) -> None:
    plan = queue.plan
    options = msgspec.structs.replace(plan.options, l1_grace_s=0)
    queue.plan = msgspec.structs.replace(plan, options=options, cluster_epoch=1 << 50)
    _delete_dropped(source, queue)
    queue.plan = plan


@mutant(
    26,
    "l0gc/streamlog/journal/topic.py::TopicState.l1_list",
    "a state that was read without L1 rows counts as one without L1 objects",
    "tests/streamlog/journal/test_head.py::test_a_head_has_the_states_offsets_and_sums_without_rows",
    simulated=False,
)
def lacking_is_empty() -> AbstractContextManager[Any]:
    empty = property(lambda self: RowList() if self.lacks_l1 else self.listed)
    return mock.patch.object(TopicState, "l1_list", empty)


@instead(
    26,
    "l0gc/streamlog/journal/shared.py::without",
    "a shared object is dropped when the first of its rows leaves",
    f"{_SHARED}::test_a_shared_object_is_dropped_with_its_last_row",
    simulated=False,
)
def shared_dropped_at_first(
    objects: Sequence[SharedObject], gone: Rows
) -> tuple[tuple[SharedObject, ...], list[SharedObject]]:
    kept, dropped = _without(objects, gone)
    touched = {objects[number].name for number in gone["object"].tolist()}
    left = [o for o in kept if o.name in touched]
    return tuple(o for o in kept if o.name not in touched), dropped + left


@instead(
    26,
    "l0gc/streamlog/journal/edits.py::cannot_be_listed",
    "a repeated commit names a shared object that was dropped",
    f"{_SHARED}::test_no_edit_names_a_dropped_shared_object_again",
    simulated=False,
)
def dropped_shared_named(topic: TopicState, o: SharedObject, dropped: Rows) -> bool:
    return False


@instead(
    26,
    "l0gc/streamlog/journal/state.py::JournalState.may_be_named",
    "a dropped shared object is deleted although a repeated commit may name it",
    f"{_SHARED}::test_a_dropped_shared_object_waits_until_the_fence_passes_its_stamp",
    simulated=False,
)
def shared_purged_above_fence(self: JournalState) -> NDArray[np.bool_]:
    return np.zeros(len(self.dropped), bool)


@mutant(
    26,
    "l0gc/streamlog/format.py::check_format",
    "an l0gc that does not support shared objects reads a bucket that has some",
    "tests/streamlog/test_format.py::test_an_l0gc_of_the_format_before_shared_objects_refuses_the_bucket",
    simulated=False,
)
def format_not_raised() -> AbstractContextManager[Any]:
    return everywhere("l0gc.streamlog.format", "Format", partial(Format, 3, 3, 3))


@mutant(
    28,
    "l0gc/streamlog/level_one/reconcile.py::Commit",
    "a commit deletes the objects of partitions that count as lost",
    f"{_AGAIN}::test_a_commit_that_is_done_again_deletes_nothing_and_counts_once_more",
    "tests/streamlog/level_one/test_commit.py::test_each_of_many_lost_partitions_is_counted",
)
def losers_removed() -> AbstractContextManager[Any]:
    def begun(self: Any, cluster: ClusterHandles, window: Window, epoch: int) -> None:
        _begin(self, cluster, window, epoch)
        self.store = cluster.store

    return together(method(Commit, "__init__", begun), method(Commit, "_count", _count_and_delete))


def _count_and_delete(
    self: Any,
    revision: int,
    rows: Rows,
    shared: Sequence[SharedObject],
    misfits: Rows,
    refused: Mapping[int, str],
) -> None:
    """Let a commit delete what it takes for lost: all objects of a partition, unless the journal lists all of them."""
    with self.handle.replica.lock:
        topic = self.handle.state.topics.get(revision)
        known = rows[:0] if topic is None else rows[topic.l1_list.has(rows)]
    listed = {o.name for o in topic.shared} if topic is not None else set()
    lost = sorted(p for p, why in refused.items() if "fenced off" not in why)
    of = self.topics[revision]
    keys = [
        shared_key(of.name, revision, self.handle.journal, o)
        for o in shared
        if o.name not in listed and np.isin(o.partitions, lost).any()
    ]
    for partition in lost:
        mine = of_partition(rows, partition)
        if len(of_partition(known, partition)) < len(mine):
            keys += [l1_key(of.id(partition), f) for f in map(l1_file, mine)]
    if keys:
        self.store.delete(keys)
    _count(self, revision, rows, shared, misfits, refused)
