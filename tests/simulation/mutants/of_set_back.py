"""Mutants of the checks that notice a journal that was set back to an older copy."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import msgspec

import l0gc.collect.gc_steps
import l0gc.streamlog.level_one.give_up
import l0gc.streamlog.level_one.plan
import l0gc.watermark.publication
from l0gc.storage.entry import Place
from l0gc.storage.log import SharedLog
from l0gc.storage.replica import Replica
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.garbage_facts import JournalNames
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.rows import indices_in
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.journal.topic import TopicState
from l0gc.streamlog.level_one.plan import ObjectRead
from l0gc.watermark.publication import PublishedWatermark
from l0gc.watermark.source import ClusterView, UnitSummary
from tests.simulation.mutants.tools import everywhere, instead, method, mutant, together

_TEST_ACCEPTED = "tests/streamlog/test_accepted_journal.py"
_TEST = "tests/streamlog/test_set_back_journal.py"
_TEST_PLACES = "tests/streamlog/test_places.py"
_TEST_PLAN = "tests/streamlog/level_one/test_plan.py"
_TEST_REPLICA = "tests/storage/test_replica.py"
_TEST_PUBLICATION = "tests/watermark/test_publication.py"

_PUBLICATION = "l0gc.watermark.publication"
_WAITING = "l0gc.streamlog.level_one.plan"
_STEPS = "l0gc.collect.gc_steps"
_check_set_back = l0gc.watermark.publication.check_set_back
_keep = JournalNames._keep
_units = ClusterHandles.units
_accept = JournalHandle.accept_set_back
_compute_not_due = l0gc.collect.gc_steps.compute_not_due


@instead(
    38,
    "l0gc/inspect/lag.py::lacking",
    "a query's position counts by its offset alone, in any log",
    "tests/integrations/spark/test_stream.py::test_a_checkpoint_of_a_log_set_back_and_grown_is_refused",
    simulated=False,
)
def any_logs_position(*args: object) -> str:
    return ""


@instead(
    38,
    "l0gc/watermark/publication.py::check_set_back",
    "the noted end of a journal's log is ignored",
    f"{_TEST}::test_set_back_journals_stop_everything_until_restored",
    f"{_TEST}::test_a_journal_whose_log_is_gone_is_refused",
    simulated=False,
)
def ends_not_compared(published: PublishedWatermark | None, unit: UnitSummary, *, by_m: bool = False) -> None:
    if published is not None:
        published = msgspec.structs.replace(published, ends={})
    _check_set_back(published, msgspec.structs.replace(unit, rewritten=False), by_m=by_m)


@instead(
    38,
    "l0gc/storage/replica.py::Replica.holds",
    "a place in a log is its offset alone",
    f"{_TEST_PLACES}::test_a_journal_that_grew_past_its_noted_end_is_refused_by_name",
    f"{_TEST_PLACES}::test_a_controller_log_that_grew_past_what_is_published_is_refused",
    f"{_TEST_PLACES}::test_a_pin_of_an_accepted_set_back_journal_reads_only_its_history",
    "tests/integrations/iceberg/test_sync.py::test_a_table_of_a_regrown_journal_is_refused",
    simulated=False,
)
def place_is_offset(self: Replica[Any], place: Place) -> bool:
    return place.offset <= self.offset


@instead(
    7,
    "l0gc/storage/log.py::SharedLog.is_re_created",
    "a truncated offset that a stale writer has created again counts as a sign that the log was set back",
    f"{_TEST_REPLICA}::test_a_noted_place_holds_after_a_stale_writer_recreates_its_offset",
    simulated=False,
)
def phantom_is_another_log(self: SharedLog, offset: int) -> bool:
    return False


@instead(
    38,
    "l0gc/storage/log.py::SharedLog.is_re_created",
    "the boundary of a newer log hides that the log was set back and has grown again",
    f"{_TEST_REPLICA}::test_a_boundary_hides_no_entry_of_a_log_that_was_set_back",
    simulated=False,
)
def boundary_believed(self: SharedLog, offset: int) -> bool:
    return self.boundary.read()[0] > offset


@instead(
    38,
    "l0gc/storage/log.py::SharedLog.is_re_created",
    "a log that was set back and truncated up to a noted place counts as the same log",
    f"{_TEST_REPLICA}::test_a_boundary_hides_no_entry_of_a_log_that_was_set_back",
    simulated=False,
)
def gap_believed(self: SharedLog, offset: int) -> bool:
    return any(
        self.entry_key(beside) not in self.store.list(self.folder).modified_ms for beside in (offset - 1, offset + 1)
    )


@instead(
    43,
    "l0gc/watermark/publication.py::reserve_numbers",
    "a value schema's number and field ids are counted by the controller log alone",
    "tests/streamlog/controller/test_value_schema.py::test_a_restored_controller_log_gives_no_field_id_twice",
    "tests/integrations/iceberg/test_typed.py::test_a_restored_controller_log_swaps_no_columns_of_a_table",
    simulated=False,
)
def numbers_given_twice(cluster: ClusterView, wanted: tuple[int, int]) -> tuple[int, int]:
    return 0, 0


@instead(
    38,
    "l0gc/watermark/publication.py::check_set_back",
    "a journal may need epochs that M has passed",
    f"{_TEST}::test_publications_without_ends_are_compared_with_the_journals_needs",
    simulated=False,
)
def needs_not_compared(published: PublishedWatermark | None, unit: UnitSummary, *, by_m: bool = False) -> None:
    _check_set_back(published, msgspec.structs.replace(unit, gc_epochs={}, lowest=[]), by_m=by_m)


@mutant(
    38,
    "l0gc/watermark/publication.py::refuse_if_lost",
    "the next publication replaces a lost `published.json`",
    f"{_TEST_PUBLICATION}::test_nothing_is_deleted_or_published_while_what_was_published_is_lost",
    "tests/test_gc.py::test_a_quiet_gc_reports_a_lost_watermark_until_m_is_computed",
    simulated=False,
)
def loss_unnoticed() -> AbstractContextManager[Any]:
    return everywhere(_PUBLICATION, "refuse_if_lost", lambda published, etag: None)


@mutant(
    38,
    "l0gc/watermark/publication.py::newest_ends",
    "a publication forgets the end of a journal that it could not read, or read earlier than another",
    f"{_TEST_PUBLICATION}::test_the_end_of_a_journal_never_goes_down",
    simulated=False,
)
def ends_not_kept() -> AbstractContextManager[Any]:
    return everywhere(_PUBLICATION, "newest_ends", lambda *known: dict(known[-1]))


@instead(
    38,
    "l0gc/collect/gc_steps.py::compute_not_due",
    "gc does not compute an M that would be lower than the published one",
    "tests/collect/test_gc_steps.py::test_m_is_computed_where_it_would_be_lower_than_published",
    simulated=False,
)
def lower_is_not_due(published: PublishedWatermark | None, *rest: Any, lowest: int | None, **more: Any) -> str:
    """Let `gc` treat an M below the published one as one that cannot move."""
    if published is not None and lowest is not None:
        lowest = max(lowest, published.watermark)
    return _compute_not_due(published, *rest, lowest=lowest, **more)


@mutant(
    38,
    "l0gc/watermark/publication.py::refuse_if_set_back",
    "no command checks whether a journal was set back, and gc does not compute M",
    f"{_TEST}::test_a_vacuum_by_itself_takes_no_live_object_for_an_orphan",
    f"{_TEST}::test_a_sweep_by_itself_deletes_nothing_that_was_restored_with_its_journal",
    "tests/cli/test_refused.py::test_gc_on_older_journals_deletes_nothing",
    set_back=True,
)
def set_back_unseen() -> AbstractContextManager[Any]:
    unchecked = everywhere(_PUBLICATION, "check_set_back", lambda published, unit, by_m=False: None)
    return together(unchecked, lower_is_not_due.off())


@instead(
    38,
    "l0gc/streamlog/garbage_facts.py::JournalNames.facts",
    "an object that only the lost part of an accepted log had named is an orphan",
    f"{_TEST_ACCEPTED}::test_the_cluster_goes_on_and_nothing_that_was_lost_is_deleted",
    simulated=False,
    place="l0gc/streamlog/garbage_facts.py::JournalNames._keep",
)
def lost_are_orphans(self: JournalNames, journal: int, state: JournalState) -> None:
    """Treat objects that only the lost part of a log had named as orphans."""
    _keep(self, journal, state)
    self._kept.clear()


@instead(
    38,
    "l0gc/watermark/publication.py::check_set_back",
    "sweeps continue while an accepted journal needs epochs that M has passed",
    f"{_TEST_ACCEPTED}::test_the_cluster_goes_on_and_nothing_that_was_lost_is_deleted",
    simulated=False,
)
def swept_before_lifted(published: PublishedWatermark | None, unit: UnitSummary, *, by_m: bool = False) -> None:
    """Let an accepted journal stop nothing, whatever it needs."""
    _check_set_back(published, unit)


@instead(
    38,
    "l0gc/streamlog/set_back.py::accept_set_back",
    "the acceptances of a journal are counted from its log alone",
    f"{_TEST_ACCEPTED}::test_a_copy_from_before_an_acceptance_is_accepted_as_the_next_one",
    simulated=False,
    place="l0gc/streamlog/journal/handle.py::JournalHandle.accept_set_back",
)
def acceptances_forgotten(self: JournalHandle, epoch: int, times: int) -> bool:
    return _accept(self, epoch, self.catch_up().set_backs + 1)


@instead(
    38,
    "l0gc/streamlog/level_one/plan.py::still_unreconciled",
    "the part of an object that a journal still needs is determined by partitions, without their offsets",
    f"{_TEST_PLAN}::test_unreadable_extents_are_needed_only_at_their_offsets",
    simulated=False,
)
def needed_at_any_offset(topic: TopicState, read: ObjectRead) -> ObjectRead | None:
    for o in topic.objects:
        if (o.key, o.start) == (read.object.key, read.object.start):
            there = indices_in(read.object.extents["partition"], o.extents["partition"])[1]
            return read._replace(object=msgspec.structs.replace(o, extents=o.extents[there]))
    return None


@mutant(
    38,
    "l0gc/streamlog/level_one/give_up.py::give_up",
    "records are given up even if a log was set back",
    f"{_TEST}::test_set_back_journals_stop_everything_until_restored",
    simulated=False,
)
def given_up_on_half_a_memory() -> AbstractContextManager[Any]:
    return mock.patch.object(l0gc.streamlog.level_one.give_up, "refuse_if_set_back")


@mutant(
    38,
    "l0gc/streamlog/level_one/plan.py::checked_windows",
    "a journal that could not be read for its check takes part later",
    f"{_TEST}::test_an_unchecked_journal_is_left_out_though_readable_later",
    simulated=False,
)
def unread_goes_on() -> AbstractContextManager[Any]:
    """Let a journal take part as soon as it can be read, even if it could not be read at first."""

    def units(self: ClusterHandles, *rest: Any, **more: Any) -> Sequence[UnitSummary]:
        found = _units(self, *rest, **more)
        for handle in self._journals.values():
            handle.unread = None
        return found

    all_checked = everywhere(_WAITING, "checked_windows", lambda windows, unread: list(windows))
    return together(method(ClusterHandles, "units", units), all_checked)
