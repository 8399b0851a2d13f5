"""Mutants of what an evacuation moves, and of those who planned with what was moved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

import l0gc.streamlog.evacuation.copy
import l0gc.streamlog.journal.moves
from l0gc.streamlog.evacuation.copy import Copied, Source, StillThere
from l0gc.streamlog.journal.entries import MovedBlocks
from l0gc.streamlog.journal.moves import objects_by_place
from l0gc.streamlog.journal.rows import Rows
from l0gc.streamlog.journal.topic import TopicState, UnreconciledObject
from l0gc.streamlog.level_one.plan import ObjectRead
from tests.simulation.mutants.tools import everywhere, method, mutant, together

_TEST_MOVES = "tests/streamlog/journal/test_moves.py"
_TEST_EVACUATE = "tests/streamlog/evacuation/test_evacuate.py"
_MOVES = "l0gc.streamlog.journal.moves"
_COPY = "l0gc.streamlog.evacuation.copy"
_movable = l0gc.streamlog.journal.moves.movable
_copy_all = l0gc.streamlog.evacuation.copy.copy_all
_lowest_epochs = TopicState.lowest_epochs


@mutant(
    31,
    "l0gc/streamlog/journal/moves.py::movable",
    "a move lands though its records have left the old object meanwhile, and brings them back",
    f"{_TEST_MOVES}::test_a_part_of_which_nothing_is_left_is_left_out_and_the_others_land",
)
def moved_back() -> AbstractContextManager[Any]:
    known: dict[tuple[int, str, int], UnreconciledObject] = {}

    def movable(topics: Mapping[int, TopicState], kept_below: int, parts: Sequence[MovedBlocks]) -> list[MovedBlocks]:
        for p in parts:
            place, topic = (p.revision, p.source, p.source_start), topics.get(p.revision)
            if topic is None:
                continue
            if (o := objects_by_place(topic).get(place[1:])) is not None:
                known[place] = o
            elif place in known:
                topic.objects = [*topic.objects, known[place]]
        return _movable(topics, kept_below, parts)

    return everywhere(_MOVES, "movable", movable)


@mutant(
    32,
    "l0gc/streamlog/journal/moves.py::check_stamp",
    "a copy is stamped with the epoch of what it was copied from",
    f"{_TEST_MOVES}::test_what_cannot_be_meant_is_refused",
)
def older_stamp() -> AbstractContextManager[Any]:
    def copy_all(cluster: Any, sources: Iterable[Source], epoch: int, still_there: StillThere) -> Iterator[Copied]:
        layout = cluster.controller.layout()
        for s in list(sources):
            yield from _copy_all(cluster, [s], layout.parse(s.key).epoch, still_there)

    unchecked = everywhere(_MOVES, "check_stamp", lambda part, o: None)
    return together(unchecked, everywhere(_COPY, "copy_all", copy_all))


@mutant(
    32,
    "l0gc/streamlog/evacuation/copy.py::copy_all",
    "a copy is named before it is written",
    f"{_TEST_EVACUATE}::test_after_an_evacuation_m_passes_what_the_lagging_partition_held",
)
def named_before_durable() -> AbstractContextManager[Any]:
    class Unwritten:
        def __init__(self, cluster: Any) -> None:
            self._cluster = cluster

        def __getattr__(self, name: str) -> Any:
            return getattr(self._cluster, name)

        def write_l0(self, body: bytes, epoch: int) -> str:
            layout, name = self._cluster.controller.layout(), self._cluster.runtime.new_id()
            return str(layout.format(layout.shard_of(name), epoch, name))

    def copy_all(cluster: Any, sources: Iterable[Source], epoch: int, still_there: StillThere) -> Iterator[Copied]:
        return _copy_all(Unwritten(cluster), sources, epoch, still_there)  # type: ignore[arg-type]

    return everywhere(_COPY, "copy_all", copy_all)


@mutant(
    33,
    "l0gc/streamlog/journal/topic.py::TopicState.lowest_epochs",
    "the bound forgets what was moved",
    f"{_TEST_MOVES}::test_the_copys_epoch_counts_for_the_bound_once_the_window_has_passed_it",
)
def bound_forgets_copies() -> AbstractContextManager[Any]:
    def lowest(self: TopicState, first: int, count: int, ceiling: int) -> Rows:
        kept = TopicState(self.revision, self.topic_id, objects=[o for o in self.objects if o.first_epoch < 0])
        return _lowest_epochs(kept, first, count, ceiling)

    return method(TopicState, "lowest_epochs", lowest)


@mutant(
    34,
    "l0gc/streamlog/level_one/plan.py::reads_again",
    "a reconciler takes what was moved for lost, or for lifted",
    f"{_TEST_EVACUATE}::test_a_reconciler_that_planned_with_an_object_that_was_moved_and_swept_looks_again",
    simulated=False,
)
def moved_is_gone() -> AbstractContextManager[Any]:
    def again(topic: TopicState, read: ObjectRead) -> list[ObjectRead]:
        left = [o for o in topic.objects if o.key == read.object.key]
        return [read] if any(np.isin(o.extents["base"], read.object.extents["base"]).any() for o in left) else []

    return everywhere("l0gc.streamlog.level_one.plan", "reads_again", again)
