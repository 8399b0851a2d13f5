"""What a look at a partition, at a report or at a key gives."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.errors import ExternalLogError
from l0gc.inspect.verify import findings as kinds
from l0gc.inspect.verify.rules import (
    DELETED,
    FOREIGN,
    LIVE,
    Basis,
    PartitionLook,
    ReportTop,
    Topics,
    basis_of,
    check_log_is_ours,
    check_partition,
    l1_ranges,
    orphan_text,
    parse_l1,
    report_fault,
    report_says_more,
)
from l0gc.keys import KeyLayout, PartitionId, level_one
from l0gc.streamlog.controller.state import ControllerState, DeletedTopic, Topic
from l0gc.streamlog.journal.entries import L1File, Placeholder, Unreconciled
from l0gc.streamlog.journal.state import PartitionState
from l0gc.watermark.compute import PartitionReport

P = PartitionId("events", 3, 7)
LAYOUT = KeyLayout(shards=4)
UUID = "01234567-89ab-cdef-0123-456789abcdef"


def l0_key(epoch: int) -> str:
    return LAYOUT.format(1, epoch, UUID)


def unreconciled(base: int, epoch: int, log_offset: int, *, key: str = "") -> Unreconciled:
    return Unreconciled(Placeholder(key or l0_key(epoch), 0, 10, 5, 1, base), epoch, log_offset)


def l1(base: int, last: int, partition: PartitionId = P) -> L1File:
    return L1File(level_one(partition, base, last, UUID), base, last, 100)


def healthy() -> PartitionState:
    """Records 0 to 9 in L1, 10 to 19 in L0 at the epochs 5 and 6."""
    return PartitionState(
        revision=3,
        max_applied_epoch=6,
        previous_applied_epoch=5,
        min_epoch_lower_bound=5,
        next_offset=20,
        last_reconciled_offset=9,
        last_reconciled_log_offset=1,
        placeholders=[unreconciled(10, 5, 2), unreconciled(15, 6, 3)],
        l1=[l1(0, 4), l1(5, 9)],
    )


def check(state: PartitionState, *, watermark: int = 4, epoch: int = 9, beyond: bool = False) -> list[tuple[str, int]]:
    look = PartitionLook(P, state, 3, beyond)
    return [(s.kind, s.offset) for s in check_partition(look, LAYOUT, watermark, epoch)]


def test_a_healthy_partition_gives_nothing() -> None:
    assert check(healthy()) == []
    assert check(PartitionState.new(3), watermark=2) == []


def test_a_live_placeholder_at_or_below_m_is_found_by_its_records() -> None:
    assert check(healthy(), watermark=5) == [(kinds.LIVE_BELOW_WATERMARK, 10)]
    assert check(healthy(), watermark=6) == [(kinds.LIVE_BELOW_WATERMARK, 10), (kinds.LIVE_BELOW_WATERMARK, 15)]


def test_an_m_above_what_the_log_allows_is_found_also_where_nothing_is_live() -> None:
    state = msgspec.structs.replace(healthy(), placeholders=[], next_offset=10)
    assert check(state, watermark=4) == []
    assert check(state, watermark=5) == [(kinds.WATERMARK_AHEAD, -1)]


def test_a_key_of_another_epoch_or_of_another_shape_is_found() -> None:
    other = [unreconciled(10, 5, 2, key=l0_key(6)), unreconciled(15, 6, 3, key="level_zero/data/foreign")]
    assert check(msgspec.structs.replace(healthy(), placeholders=other)) == [
        (kinds.L0_WRONG_EPOCH, 10),
        (kinds.L0_WRONG_EPOCH, 15),
    ]


def test_a_key_below_m_is_live_below_m_whatever_epoch_the_log_says() -> None:
    state = msgspec.structs.replace(healthy(), placeholders=[unreconciled(10, 5, 2, key=l0_key(3))], next_offset=15)
    assert check(state, watermark=3) == [(kinds.L0_WRONG_EPOCH, 10), (kinds.LIVE_BELOW_WATERMARK, 10)]


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ([l1(5, 9)], [5]),
        ([l1(0, 4), l1(6, 9)], [6]),
        ([l1(0, 4), l1(4, 9)], [4]),
        ([l1(0, 4), l1(0, 4), l1(5, 9)], [0]),
        ([l1(0, 4)], [5]),
        ([l1(0, 4), l1(5, 12)], [13]),
        ([], [0]),
    ],
)
def test_a_gap_and_an_overlap_in_l1_are_found_where_they_are(files: list[L1File], found: list[int]) -> None:
    look = PartitionLook(P, msgspec.structs.replace(healthy(), l1=files), 3)
    suspects = check_partition(look, LAYOUT, 4, 9)
    assert [s.kind for s in suspects] == [kinds.L1_RANGE] * len(found)
    base = [parsed.base_offset for s in suspects if (parsed := parse_l1(s.key)) is not None]
    assert [s.offset for s in suspects] == found or base == found


def test_an_l1_object_whose_name_says_other_records_or_another_partition_is_found() -> None:
    renamed = msgspec.structs.replace(l1(5, 9), key=l1(5, 8).key)
    moved = l1(0, 4, PartitionId("events", 3, 8))
    state = msgspec.structs.replace(healthy(), l1=[moved, renamed])
    assert check(state) == [(kinds.L1_RANGE, 0), (kinds.L1_RANGE, 5)]


@pytest.mark.parametrize(
    "changes",
    [
        {"min_epoch_lower_bound": 2},
        {"previous_applied_epoch": 7},
        {"min_epoch_lower_bound": 6, "previous_applied_epoch": 6},
        {"max_applied_epoch": 5},
        {"next_offset": 21},
        {"placeholders": [unreconciled(10, 5, 2)]},
        {"placeholders": [unreconciled(10, 5, 3), unreconciled(15, 6, 2)]},
        {"placeholders": [unreconciled(10, 5, 2), unreconciled(15, 6, 4)]},
        {"placeholders": [unreconciled(10, 5, 0), unreconciled(15, 6, 3)]},
    ],
)
def test_a_state_that_no_log_leads_to_is_found(changes: dict[str, object]) -> None:
    found = check(msgspec.structs.replace(healthy(), **changes), watermark=-1)
    assert {kind for kind, _ in found} == {kinds.STATE_BROKEN}


def test_a_closed_partition_of_a_live_topic_a_short_log_and_a_high_window_are_found() -> None:
    assert check(msgspec.structs.replace(healthy(), closed=True)) == [(kinds.STATE_BROKEN, -1)]
    assert check(healthy(), beyond=True) == [(kinds.CHECKPOINT_AHEAD, -1)]
    assert check(healthy(), epoch=5) == [(kinds.EPOCH_AHEAD, -1)]


def test_another_systems_log_is_not_compared_with() -> None:
    """Its epoch is not the controller's, so every object would seem to be above it."""
    check_log_is_ours(ControllerState("ours", 4, epoch=9))
    with pytest.raises(ExternalLogError, match="another system's"):
        check_log_is_ours(ControllerState("ours", 4, epoch=0, external_log=True))


# -- reports --------------------------------------------------------------------------------------------------------------


def basis() -> Basis:
    state = ControllerState("ours", 4, epoch=9)
    state.topics = {"events": Topic("events", 3, 8), "events-3.b": Topic("events-3.b", 5, 1)}
    state.deleted = [DeletedTopic(Topic("gone", 4, 2), 8)]
    return basis_of(state, 4, 1000)


def report(topic: str, revision: int, cluster: str = "ours") -> PartitionReport:
    return PartitionReport(cluster, topic, revision, 0, 4, 6, 5, 20, 9, 5, 3, 0)


def test_a_report_of_another_cluster_or_of_an_unknown_topic_is_found() -> None:
    topics = Topics(basis())
    for known in (report("events", 3), report("gone", 4), report("later", 10)):
        assert report_fault(known, basis(), topics) == ""
    assert "another" in report_fault(report("events", 3, "another"), basis(), topics)
    assert "does not know" in report_fault(report("events", 4), basis(), topics)


@pytest.mark.parametrize(
    "field", ["gc_epoch", "max_applied_epoch", "next_offset", "last_reconciled_offset", "log_offset"]
)
def test_a_report_may_say_as_much_as_the_log_and_no_more(field: str) -> None:
    look = PartitionLook(P, healthy(), 3)
    top = ReportTop(P.topic, P.revision, P.partition, 4, 6, 20, 9, 3, "report")
    assert report_says_more(top, look) == ""
    more = msgspec.structs.replace(top, **{field: getattr(top, field) + 1})
    assert str(getattr(more, field)) in report_says_more(more, look)


# -- keys of L1 -----------------------------------------------------------------------------------------------------------


def test_whose_an_l1_object_is() -> None:
    topics = Topics(basis())
    assert topics.owner(parse_l1(l1(0, 4).key)) == LIVE
    assert topics.owner(parse_l1(l1(0, 4, PartitionId("events", 3, 8)).key)) == FOREIGN
    assert topics.owner(parse_l1(l1(0, 4, PartitionId("gone", 4, 1)).key)) == DELETED
    assert topics.owner(parse_l1(l1(0, 4, PartitionId("events", 2, 1)).key)) == FOREIGN
    assert topics.owner(parse_l1(l1(0, 4, PartitionId("later", 10, 1)).key)) == LIVE
    assert topics.owner(None) == FOREIGN


@given(st.from_regex(r"[A-Za-z0-9._-]{1,9}", fullmatch=True), st.integers(0, 10**9), st.integers(0, 99_999))
def test_a_key_of_l1_says_what_it_was_made_of(topic: str, revision: int, partition: int) -> None:
    p = PartitionId(topic, revision, partition)
    parsed = parse_l1(level_one(p, 5, 9, UUID))
    assert parsed is not None
    assert (parsed.id, parsed.base_offset, parsed.last_offset) == (p, 5, 9)


@pytest.mark.parametrize(
    "key",
    [
        "level_one/data/x",
        l1(0, 4).key + "x",
        l1(0, 4).key.replace("-3/", "-03/"),
        l1(0, 4).key.replace("/00007/", "/000007/"),
    ],
)
def test_a_near_miss_is_no_key_of_l1(key: str) -> None:
    assert parse_l1(key) is None


@given(st.integers(1, 40), st.integers(1, 12))
def test_the_ranges_cover_every_partition_of_every_topic_once(partitions: int, parts: int) -> None:
    topics = [Topic("events", 3, partitions), Topic("events-3.b", 5, 1)]
    ranges = l1_ranges(msgspec.structs.replace(basis(), topics=topics), parts)
    ids = [*(p for t in topics for p in t.ids()), PartitionId("gone", 4, 1)]
    for p in ids:
        key = l1(0, 4, p).key
        hits = [r for r in ranges if key.startswith(r[0]) and key > r[1] and (not r[2] or key <= r[2])]
        assert len(hits) == 1, key
    assert len(ranges) <= parts + len(topics) + 1


def test_what_is_said_of_an_orphan_depends_on_whether_its_records_are_reconciled() -> None:
    assert "other L1 objects" in orphan_text(0, 9, healthy())
    assert "9 is the last reconciled" in orphan_text(5, 10, healthy())
