"""Findings: what a journal must not contain, the owner of an L1 object, and how findings are printed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.errors import SafetyError
from l0gc.inspect.verify.findings import (
    DELETED,
    FOREIGN,
    LATER,
    LIVE,
    ClusterSnapshot,
    Kind,
    ReplayedJournal,
    Suspect,
    check_journal,
    described,
    finding_of,
    needed_end,
    needs,
    orphan_text,
    placed,
)
from l0gc.inspect.verify.run import check_log_is_ours, l1_ranges
from l0gc.keys import PartitionId, level_one, parse_level_one
from l0gc.storage.entry import Place
from l0gc.streamlog.controller.state import ControllerState, DeletedTopic, Topic
from l0gc.streamlog.journal.entries import Advance, Closed, ClosedTopic
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.journal.topic import TopicState
from l0gc.watermark.publication import PublishedWatermark
from tests.support.journal import LAYOUT, REVISION, TOPIC_ID, Journal, extents_of, key_of

EVENTS = Topic("events", REVISION, 4, (0,), TOPIC_ID)
GONE = Topic("gone", 4, 2, (0,), "id-of-gone")


def healthy() -> JournalState:
    """Return a state with records 0 to 9 of partitions 0 and 2 in L1, five more of both at epoch 5, and five of 0 at
    epoch 6.
    """
    j = Journal()
    j.land(extents_of(4, {0: 10, 2: 10}, key=key_of(4)))
    j.reconcile({0: 9, 2: 9})
    j.land(extents_of(5, {0: 5, 2: 5}, key=key_of(5)))
    j.land(extents_of(6, {0: 5}, key=key_of(6)))
    return j.state


def events(state: JournalState) -> TopicState:
    return state.topics[REVISION]


def snapshot(watermark: int = 4, epoch: int = 9, *topics: Topic) -> ClusterSnapshot:
    state = ControllerState("ours", LAYOUT.shards, epoch=epoch, journals=2)
    state.topics = {t.name: t for t in topics or (EVENTS,)}
    state.deleted = [DeletedTopic(GONE, 8)]
    return ClusterSnapshot(state, PublishedWatermark("ours", watermark, watermark, 0), 1000)


def check(
    state: JournalState, against: ClusterSnapshot | None = None, *, journal: int = 0, **faults: str
) -> list[Suspect]:
    of_log = [(Kind[kind.upper()], text) for kind, text in faults.items()]
    return check_journal(ReplayedJournal(journal, state, Place(9), of_log), against or snapshot())


def found(state: JournalState, against: ClusterSnapshot | None = None) -> list[tuple[str, int, int]]:
    return [(s.kind, s.partition, s.offset) for s in check(state, against)]


def test_a_healthy_journal_gives_nothing() -> None:
    assert check(healthy()) == []
    assert check(JournalState(), snapshot(-1)) == []


def test_what_is_wrong_with_the_log_itself_is_named_by_its_folder() -> None:
    (s,) = check(healthy(), log_gap="entry 3 is missing")
    assert (s.kind, s.journal, s.key, s.detail) == (Kind.LOG_GAP, 0, "l0gc/journal/0000/", "entry 3 is missing")


# -- M -------------------------------------------------------------------------------------------------------------------


def test_a_live_object_below_m_is_found_once() -> None:
    assert found(healthy(), snapshot(5)) == [(Kind.LIVE_BELOW_WATERMARK, 0, 10)]
    assert found(healthy(), snapshot(6)) == [(Kind.LIVE_BELOW_WATERMARK, 0, 10), (Kind.LIVE_BELOW_WATERMARK, 0, 15)]
    assert "10 unreconciled records of 2 partitions, at epoch 5" in check(healthy(), snapshot(5))[0].detail


def test_an_m_above_a_journals_bound_is_found_without_live_objects() -> None:
    j = Journal()
    j.apply(Advance(5))
    j.apply(Advance(6))
    assert found(j.state, snapshot(4)) == []
    assert found(j.state, snapshot(5)) == [(Kind.WATERMARK_AHEAD, 0, -1)]
    assert found(JournalState(), snapshot(3)) == [(Kind.WATERMARK_AHEAD, 0, -1)]


def test_a_key_of_another_epoch_or_of_another_shape_is_found() -> None:
    state = healthy()
    objects = events(state).objects
    events(state).objects = [
        msgspec.structs.replace(objects[0], key=key_of(6)),
        msgspec.structs.replace(objects[1], key="level_zero/data/foreign"),
    ]
    assert found(state) == [(Kind.L0_WRONG_EPOCH, 0, 10), (Kind.L0_WRONG_EPOCH, 0, 15)]


def test_a_live_key_below_m_is_found_whatever_its_recorded_epoch() -> None:
    state = healthy()
    objects = events(state).objects
    events(state).objects = [msgspec.structs.replace(objects[0], key=key_of(3)), objects[1]]
    assert found(state) == [(Kind.L0_WRONG_EPOCH, 0, 10), (Kind.LIVE_BELOW_WATERMARK, 0, 10)]


def test_a_window_above_the_cluster_epoch_is_found() -> None:
    (s,) = check(healthy(), snapshot(4, 5))
    assert (s.kind, s.expected) == (Kind.EPOCH_AHEAD, 6)


# -- topics --------------------------------------------------------------------------------------------------------------


def test_a_topic_that_is_placed_elsewhere_is_found() -> None:
    (s,) = check(healthy(), snapshot(-1, 9, Topic("events", REVISION, 4, (1,), TOPIC_ID)))
    assert (s.kind, s.topic, s.partition) == (Kind.TOPIC_MISPLACED, "events", -1)
    assert "placed in journal 1" in s.detail


def test_a_partition_outside_of_the_journals_run_is_found() -> None:
    (s,) = check(healthy(), snapshot(-1, 9, Topic("events", REVISION, 4, (0, 1), TOPIC_ID)))
    assert (s.kind, s.detail) == (
        Kind.TOPIC_MISPLACED,
        "it holds partition 2 of topic 'events', and the controller has placed partitions 0 to 1 there",
    )


def test_a_topic_that_the_controller_never_created_is_found() -> None:
    """The controller log was restored from a backup, and may have assigned the revision to another topic."""
    for topic in (Topic("events", REVISION, 4, (0,), "another"), Topic("events", 2, 4, (0,), TOPIC_ID)):
        (s,) = check(healthy(), snapshot(-1, 9, topic))
        assert (s.kind, s.revision, s.topic) == (Kind.TOPIC_UNKNOWN, REVISION, "")


def test_a_topic_that_is_newer_than_the_snapshot_is_not_checked() -> None:
    j = Journal()
    j.land(extents_of(12, revision=10))
    assert {k for k, _, _ in found(j.state, snapshot(-1))} == {Kind.EPOCH_AHEAD}  # the second reading decides on it


def test_a_deleted_topic_is_not_checked() -> None:
    j = Journal()
    j.land(extents_of(5, {0: 1}, key="foreign", revision=4, topic_id="id-of-gone"))
    assert check(j.state, snapshot(9, 9, Topic("late", 9, 1, (1,), "id"))) == []
    j.apply(Closed([ClosedTopic(4)]))
    assert check(j.state, snapshot(9, 9, Topic("late", 9, 1, (1,), "id"))) == []


def test_a_topic_deleted_long_ago_must_be_closed_everywhere() -> None:
    late = replace(snapshot(-1), to_be_closed=[GONE])
    j = Journal()
    (s,) = check(j.state, late, journal=GONE.journals[0])
    assert (s.kind, s.topic, s.revision) == (Kind.TOPIC_UNCLOSED, GONE.name, GONE.revision)
    assert check(j.state, late, journal=1 - GONE.journals[0]) == []
    j.apply(Closed([ClosedTopic(GONE.revision)]))
    assert check(j.state, late, journal=GONE.journals[0]) == []


def test_a_live_topic_that_has_ended_in_its_journal_is_found() -> None:
    state = healthy()
    del state.topics[REVISION]
    state.closed_revisions = np.array([REVISION])
    assert found(state, snapshot(8)) == [(Kind.STATE_BROKEN, -1, -1)]


def test_only_what_belongs_in_the_journal_has_to_be_in_the_bucket() -> None:
    def named(live: Topic) -> list[str]:
        return [topic.name for topic, _ in placed(ReplayedJournal(0, healthy(), Place(9), []), snapshot(4, 9, live))]

    assert named(EVENTS) == ["events"]
    assert named(Topic("events", REVISION, 4, (1,), TOPIC_ID)) == []
    assert named(Topic("events", REVISION, 4, (0,), "another")) == []


# -- offsets -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{"log_offset": 4}, {"log_offset": 10}, {"epoch": 7, "key": key_of(7)}])
def test_an_object_that_cannot_have_landed_there_is_found(changes: dict[str, Any]) -> None:
    state = healthy()
    objects = events(state).objects
    objects[0] = msgspec.structs.replace(objects[0], **changes)
    assert found(state) == [(Kind.STATE_BROKEN, -1, -1)]


# -- how an object is described
# --------------------------------------------------------------------------------------------


def test_only_the_blocks_that_are_still_needed_have_to_be_there() -> None:
    j = Journal()
    j.land(extents_of(5, {0: 1, 1: 1, 2: 1}, per_block=2))
    (o,) = events(j.state).objects
    assert (needed_end(o), described(o)) == (203, "3 unreconciled records of 3 partitions")
    j.reconcile({2: 0})
    (o,) = events(j.state).objects
    assert needed_end(o) == 102
    assert needs(j.state, REVISION, {o.key, "other"}) == {o.key: [o]}
    assert needs(j.state, REVISION, {"other"}) == needs(j.state, 99, {o.key}) == {}


def test_an_orphans_finding_depends_on_whether_its_records_are_reconciled() -> None:
    p = PartitionId("events", REVISION, 0)
    assert "other L1 objects" in orphan_text(0, 9, healthy(), p)
    assert "9 is the last reconciled" in orphan_text(5, 10, healthy(), p)


# -- the owner of an L1 object
# ----------------------------------------------------------------------------------------------


P = PartitionId("events", 3, 7)
UUID = "01234567-89ab-cdef-0123-456789abcdef"
STREAM = Topic("events", 3, 8, (2, 5), "id-events")
PAST = Topic("gone", 4, 2, (0,), "id-gone")


def l1_key_of(partition: PartitionId = P) -> str:
    return level_one(partition, 6, 0, 4, UUID)


def topics_of_two() -> ClusterSnapshot:
    state = ControllerState("ours", 4, epoch=9, journals=6)
    state.topics = {"events": STREAM, "events-3.b": Topic("events-3.b", 5, 1, (0,), "id-b")}
    state.deleted = [DeletedTopic(PAST, 8)]
    return ClusterSnapshot(state, PublishedWatermark("ours", 4, 9, 0), 1000)


def test_an_external_log_is_not_compared_with() -> None:
    """The controller's epoch is not that of the external log, so every object would seem to be above it."""
    check_log_is_ours(ControllerState("ours", 4, epoch=9))
    with pytest.raises(SafetyError, match="another system's"):
        check_log_is_ours(ControllerState("ours", 4, epoch=0, external_log=True))


def test_whose_an_l1_object_is_and_which_journal_names_it() -> None:
    topics = topics_of_two()
    assert topics.owner(parse_level_one(l1_key_of())) == (LIVE, 5)
    assert topics.owner(parse_level_one(l1_key_of(PartitionId("events", 3, 3)))) == (LIVE, 2)
    assert topics.owner(parse_level_one(l1_key_of(PartitionId("events", 3, 8)))) == (FOREIGN, -1)
    assert topics.owner(parse_level_one(l1_key_of(PartitionId("other", 3, 1)))) == (FOREIGN, -1)
    assert topics.owner(parse_level_one(l1_key_of(PartitionId("gone", 4, 1)))) == (DELETED, -1)
    assert topics.owner(parse_level_one(l1_key_of(PartitionId("events", 2, 1)))) == (FOREIGN, -1)
    assert topics.owner(parse_level_one(l1_key_of(PartitionId("later", 10, 1)))) == (LATER, -1)
    assert topics.owner(None) == (FOREIGN, -1)


@given(st.from_regex(r"[A-Za-z0-9._-]{1,9}", fullmatch=True), st.integers(0, 10**9), st.integers(0, 999_999))
def test_a_l1_key_of_l1_says_what_it_was_made_of(topic: str, revision: int, partition: int) -> None:
    p = PartitionId(topic, revision, partition)
    parsed = parse_level_one(level_one(p, 12, 5, 9, UUID))
    assert parsed is not None
    assert (parsed.id, parsed.epoch, parsed.base, parsed.last, parsed.name) == (p, 12, 5, 9, UUID)


@pytest.mark.parametrize(
    "key",
    [
        "level_one/data/x",
        l1_key_of() + "x",
        l1_key_of().replace("-3/", "-03/"),
        l1_key_of().replace("/00007/", "/000007/"),
        l1_key_of().replace("/000000000000000006/", "/0000000000000000006/"),
        l1_key_of().replace("/000000000000000006/", "/"),
    ],
)
def test_a_near_miss_is_no_l1_key_of_l1(key: str) -> None:
    assert parse_level_one(key) is None


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 1))
def test_the_ranges_cover_every_partition_of_every_topic_once(partitions: int, parts: int, many: int) -> None:
    last = 99_990 * many + partitions  # partition 100000 sorts before 20000
    topics = [Topic("events", 3, last, (0,), "id"), Topic("events-3.b", 5, 1, (0,), "id-b")]
    state = msgspec.structs.replace(topics_of_two().state, topics={t.name: t for t in topics})
    ranges = l1_ranges(state, parts)
    ids = [*(topics[0].id(p) for p in range(max(0, last - 40), last)), topics[1].id(0), PartitionId("gone", 4, 1)]
    for p in ids:
        key = l1_key_of(p)
        hits = [r for r in ranges if key.startswith(r.folder) and r.start < key and (r.end is None or key <= r.end)]
        assert len(hits) == 1, key
    assert len(ranges) <= parts + len(topics) + 1


# -- how findings are printed -------------------------------------------------------------------------------------------


def test_every_kind_has_a_severity_and_a_next_step() -> None:
    assert {k.severity for k in Kind} == {"loss", "danger", "waste", "unknown"}
    assert all(k.next_step for k in Kind)


def test_a_finding_is_one_line_with_its_place_and_its_next_step() -> None:
    f = finding_of(Suspect(Kind.L0_MISSING, 4, "events", 3, 7, "some/key", 12, detail="gone,\nand a\tline"))
    assert (f.journal, f.topic, f.partition, f.offset, f.severity) == (4, "events", 7, 12, "loss")
    assert f.line == f"l0_missing events/7 at record 12: some/key: gone, and a line; {f.next_step}"


def test_a_field_that_does_not_apply_is_none() -> None:
    f = finding_of(Suspect(Kind.WATERMARK_UNREADABLE, key="published.json", detail="no JSON"))
    assert (f.journal, f.topic, f.partition, f.offset) == (None, None, None, None)
    assert f.line.startswith("watermark_unreadable: published.json: no JSON; ")


def test_a_finding_about_a_topic_as_a_whole_names_no_partition() -> None:
    f = finding_of(Suspect(Kind.TOPIC_MISPLACED, 4, "events", 3, key="l0gc/journal/0004/", detail="it is elsewhere"))
    assert (f.topic, f.partition) == ("events", None)
    assert f.line.startswith("topic_misplaced events: l0gc/journal/0004/: ")
