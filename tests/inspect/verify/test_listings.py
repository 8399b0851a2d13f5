"""Topics, and the keys of L1 objects."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.errors import SafetyError
from l0gc.inspect.verify.listings import l1_ranges
from l0gc.inspect.verify.rules import DELETED, FOREIGN, LATER, LIVE, Basis
from l0gc.inspect.verify.run import check_log_is_ours
from l0gc.keys import PartitionId, level_one, parse_level_one
from l0gc.streamlog.controller.state import ControllerState, DeletedTopic, Topic
from l0gc.watermark.publication import PublishedWatermark

P = PartitionId("events", 3, 7)
UUID = "01234567-89ab-cdef-0123-456789abcdef"
EVENTS = Topic("events", 3, 8, (2, 5), "id-events")
GONE = Topic("gone", 4, 2, (0,), "id-gone")


def key_of(partition: PartitionId = P) -> str:
    return level_one(partition, 6, 0, 4, UUID)


def basis() -> Basis:
    state = ControllerState("ours", 4, epoch=9, journals=6)
    state.topics = {"events": EVENTS, "events-3.b": Topic("events-3.b", 5, 1, (0,), "id-b")}
    state.deleted = [DeletedTopic(GONE, 8)]
    return Basis(state, PublishedWatermark("ours", 4, 9, 0), 1000)


def test_an_external_log_is_not_compared_with() -> None:
    """Its epoch is not the controller's, so every object would seem to be above it."""
    check_log_is_ours(ControllerState("ours", 4, epoch=9))
    with pytest.raises(SafetyError, match="another system's"):
        check_log_is_ours(ControllerState("ours", 4, epoch=0, external_log=True))


def test_a_topic_that_a_journal_holds_is_live_deleted_later_or_foreign() -> None:
    topics = basis()
    assert topics.of(3, "id-events") == (LIVE, EVENTS)
    assert topics.of(3, "another") == (FOREIGN, None)
    assert topics.of(4, "id-gone") == (DELETED, None)
    assert topics.of(4, "another") == (FOREIGN, None)
    assert topics.of(2, "id") == (FOREIGN, None)
    assert topics.of(10, "id") == (LATER, None)


def test_a_topic_that_a_journal_knows_only_to_have_ended_needs_no_id() -> None:
    topics = basis()
    assert topics.of(3, "") == (LIVE, EVENTS)
    assert topics.of(4, "") == (DELETED, None)


def test_whose_an_l1_object_is_and_which_journal_names_it() -> None:
    topics = basis()
    assert topics.owner(parse_level_one(key_of())) == (LIVE, 5)
    assert topics.owner(parse_level_one(key_of(PartitionId("events", 3, 3)))) == (LIVE, 2)
    assert topics.owner(parse_level_one(key_of(PartitionId("events", 3, 8)))) == (FOREIGN, -1)
    assert topics.owner(parse_level_one(key_of(PartitionId("other", 3, 1)))) == (FOREIGN, -1)
    assert topics.owner(parse_level_one(key_of(PartitionId("gone", 4, 1)))) == (DELETED, -1)
    assert topics.owner(parse_level_one(key_of(PartitionId("events", 2, 1)))) == (FOREIGN, -1)
    assert topics.owner(parse_level_one(key_of(PartitionId("later", 10, 1)))) == (LATER, -1)
    assert topics.owner(None) == (FOREIGN, -1)


@given(st.from_regex(r"[A-Za-z0-9._-]{1,9}", fullmatch=True), st.integers(0, 10**9), st.integers(0, 999_999))
def test_a_key_of_l1_says_what_it_was_made_of(topic: str, revision: int, partition: int) -> None:
    p = PartitionId(topic, revision, partition)
    parsed = parse_level_one(level_one(p, 12, 5, 9, UUID))
    assert parsed is not None
    assert (parsed.id, parsed.epoch, parsed.base, parsed.last, parsed.name) == (p, 12, 5, 9, UUID)


@pytest.mark.parametrize(
    "key",
    [
        "level_one/data/x",
        key_of() + "x",
        key_of().replace("-3/", "-03/"),
        key_of().replace("/00007/", "/000007/"),
        key_of().replace("/000000000000000006/", "/0000000000000000006/"),
        key_of().replace("/000000000000000006/", "/"),
    ],
)
def test_a_near_miss_is_no_key_of_l1(key: str) -> None:
    assert parse_level_one(key) is None


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 1))
def test_the_ranges_cover_every_partition_of_every_topic_once(partitions: int, parts: int, many: int) -> None:
    last = 99_990 * many + partitions  # partition 100000 comes before 20000 in the order of keys
    topics = [Topic("events", 3, last, (0,), "id"), Topic("events-3.b", 5, 1, (0,), "id-b")]
    state = msgspec.structs.replace(basis().state, topics={t.name: t for t in topics})
    ranges = l1_ranges(state, parts)
    ids = [*(topics[0].id(p) for p in range(max(0, last - 40), last)), topics[1].id(0), PartitionId("gone", 4, 1)]
    for p in ids:
        key = key_of(p)
        hits = [r for r, k in ranges if key.startswith(r) and k.start < key and (k.end is None or key <= k.end)]
        assert len(hits) == 1, key
    assert len(ranges) <= parts + len(topics) + 1
