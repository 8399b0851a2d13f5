"""Laggards: which partitions lag, what they keep of the others' garbage, and that lifting them costs and releases as
stated.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.collect.sweep import SweepRun
from l0gc.inspect import laggards
from l0gc.inspect.explain import explain_epoch, explain_key
from l0gc.inspect.laggards import Laggards, best_release, releases
from l0gc.inspect.overview_reader import read_overview
from l0gc.inspect.report.facts import gather
from l0gc.keys import journal_log
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.housekeep import housekeep
from l0gc.watermark.publication import publish, read_published
from tests.support.memory_store import Call, another_process, memory_cluster, store_of
from tests.support.reconcile import Records, put, reconcile, reconcile_but
from tests.support.verify import compute_and_publish, scan_and_publish

PAUSED: Records = {3: [b"paused"]}


def tick(cluster: ClusterHandles) -> None:
    cluster.controller.advance()
    housekeep(cluster)
    store_of(cluster).clock.ms += 600_000


def lagging(*paused: Records, topics: int = 1, garbage: int = 6, record: int = 400) -> ClusterHandles:
    """Create topics that are never reconciled, and one that is reconciled after each upload; each upload has its own
    epoch.
    """
    cluster = memory_cluster()
    cluster.controller.create_topic("events", 4)
    for n in range(topics):
        cluster.controller.create_topic(f"paused-{n}", 8)
        put(cluster, f"paused-{n}", *(paused or (PAUSED,)))
        tick(cluster)
    for _ in range(garbage):
        put(cluster, "events", {p: [random.Random(p).randbytes(record)] for p in range(4)})
        reconcile(cluster, "events")
        tick(cluster)
    tick(cluster)
    return cluster


def seen(cluster: ClusterHandles) -> Laggards:
    found = read_overview(cluster).laggards
    assert found is not None
    return found


def l0_of(cluster: ClusterHandles) -> dict[str, int]:
    """Return the size of each L0 object by its key."""
    return {k: len(o.body) for k, o in store_of(cluster).objects.items() if k.startswith("level_zero/data/")}


def test_it_says_who_lags_since_when_and_what_lifting_that_then_releases() -> None:
    cluster = lagging()
    scan_and_publish(cluster)
    found, began_ms = seen(cluster), read_overview(cluster).held_back_by[0].oldest_ms
    assert [(t.name, t.partitions, t.since_ms) for t in found.topics] == [("paused-0/3", 1, began_ms)]
    assert (found.partitions, found.topics_total, found.since_ms) == (1, 1, began_ms)
    assert found.garbage_bytes == found.released_bytes - found.lifted_bytes > 0
    assert found.sentence == (
        "paused-0/3 has lagged for 80 min and keeps 9.7 KiB of other partitions' garbage (listed 0 s ago); lifting 19 B "
        "releases 7 objects with 9.7 KiB of it: l0gc reconcile --up-to 8 && l0gc compute-watermark"
    )
    before = l0_of(cluster)
    SweepRun(cluster).run()
    assert l0_of(cluster) == before
    reconcile(cluster, up_to=found.up_to_epoch)
    scan_and_publish(cluster)
    SweepRun(cluster).run()
    gone = [n for key, n in before.items() if key not in l0_of(cluster) and int(key.split("/")[3]) <= found.up_to_epoch]
    assert (len(gone), sum(gone)) == (found.released_objects, found.released_bytes)
    assert seen(cluster) == Laggards()


def test_laggards_hold_the_epochs_that_lifting_them_releases_and_no_other() -> None:
    cluster = lagging()
    scan_and_publish(cluster)
    found = seen(cluster)
    first, last = found.first_epoch, found.up_to_epoch
    assert first < last
    assert [found.hold(epoch) for epoch in (first - 1, first, last, last + 1)] == [False, True, True, False]
    assert not Laggards().hold(-1)


def test_the_topics_that_have_lagged_longest_are_named_and_the_others_counted() -> None:
    cluster = lagging({0: [b"a"], 5: [b"b"]}, {5: [b"c"]}, topics=12)
    scan_and_publish(cluster)
    found = seen(cluster)
    assert (found.partitions, found.topics_total) == (24, 12)
    assert [(t.topic, t.partitions, t.partition) for t in found.topics] == [
        (f"paused-{n}", 2, 0) for n in range(laggards.TOPICS_SHOWN)
    ]
    assert found.sentence.startswith(
        "2 partitions of paused-0, 2 partitions of paused-1, 2 partitions of paused-2 and 9 more topics have lagged for "
    )
    assert " and keep " in found.sentence


def test_partitions_that_need_only_new_objects_do_not_lag() -> None:
    cluster = lagging()
    oldest_ms = read_overview(cluster).held_back_by[0].oldest_ms
    put(cluster, "paused-0", PAUSED, {4: [b"new"]})
    put(cluster, "events", {0: [bytes(range(99))]})
    scan_and_publish(cluster)
    found = seen(cluster)
    assert [(t.name, t.since_ms, t.bytes) for t in found.topics] == [("paused-0/3", oldest_ms, found.lifted_bytes)]
    reconcile(cluster, "events")
    for _ in range(3):
        tick(cluster)
    scan_and_publish(cluster)
    first = seen(cluster).topics[0]
    assert (first.topic, first.partitions, first.since_ms) == ("paused-0", 2, oldest_ms)


def test_the_little_that_holds_the_most_is_lifted_first() -> None:
    cluster = lagging()
    put(cluster, "paused-0", {4: [random.Random(9).randbytes(4_000_000)]})
    tick(cluster)
    put(cluster, "events", {0: [random.Random(8).randbytes(1_000)]})
    reconcile(cluster, "events")
    for _ in range(3):
        tick(cluster)
    scan_and_publish(cluster)
    found = seen(cluster)
    assert [(t.name, t.bytes) for t in found.topics] == [("paused-0/3", 19)]
    assert (found.lifted_bytes, found.released_objects) == (19, 7)
    assert found.garbage_bytes is not None
    assert found.garbage_bytes - (found.released_bytes - found.lifted_bytes) >= 1_000


def test_a_partition_whose_records_share_a_block_with_others_keeps_theirs() -> None:
    cluster = memory_cluster()
    cluster.controller.create_topic("events", 8)
    for _ in range(3):
        put(cluster, "events", {p: [random.Random(p).randbytes(100)] for p in range(8)})
        reconcile_but(cluster, {5})
        tick(cluster)
    tick(cluster)
    scan_and_publish(cluster)
    found = seen(cluster)
    assert [t.name for t in found.topics] == ["events/5"]
    assert found.released_objects == 3
    assert found.released_bytes // 8 - 3 <= found.lifted_bytes <= found.released_bytes // 8


# -- the function on two histograms -------------------------------------------------------------------------------------

EPOCHS = st.integers(0, 12)
HISTOGRAM = st.dictionaries(EPOCHS, st.integers(0, 1000))


@given(st.dictionaries(EPOCHS, st.tuples(st.integers(1, 9), st.integers(0, 1000))), HISTOGRAM, EPOCHS)
def test_each_lift_costs_and_releases_all_up_to_its_epoch(
    objects: dict[int, tuple[int, int]], unreconciled: dict[int, int], below: int
) -> None:
    choices, first = releases(objects, unreconciled, below), min(unreconciled, default=below)
    assert [c.epoch for c in choices] == sorted(e for e in {*objects, *unreconciled} if first <= e < below)
    for c in choices:
        inside = range(first, c.epoch + 1)
        there = [objects.get(e, (0, 0)) for e in inside]
        needed = [unreconciled.get(e, 0) for e in inside]
        assert c.lifted == sum(needed)
        assert (c.objects, c.bytes) == (sum(n for n, _ in there), sum(n for _, n in there))
        assert c.garbage == sum(max(0, size - n) for (_, size), n in zip(there, needed, strict=True))
    if choices:
        best = best_release(choices)
        assert all((c.garbage - c.lifted, c.epoch) <= (best.garbage - best.lifted, best.epoch) for c in choices)


def test_of_lifts_that_are_worth_the_same_the_highest_is_taken() -> None:
    choices = releases({3: (2, 100), 5: (1, 20), 7: (1, 9)}, {3: 10, 5: 10, 7: 9}, 9)
    assert [(c.epoch, c.lifted, c.objects, c.bytes, c.garbage) for c in choices] == [
        (3, 10, 2, 100, 90),
        (5, 20, 3, 120, 100),
        (7, 29, 4, 129, 100),
    ]
    assert best_release(choices).epoch == 5


def test_without_garbage_of_others_nobody_lags() -> None:
    """All partitions wait alike, or the records that they wait for are new."""
    cluster = lagging(garbage=0)
    scan_and_publish(cluster)
    assert (seen(cluster).partitions, seen(cluster).garbage_bytes, seen(cluster).sentence) == (0, 0, "")
    fresh = memory_cluster()
    fresh.controller.create_topic("events", 4)
    put(fresh, "events", {0: [b"new"]})
    assert seen(fresh) == Laggards()


def test_without_a_listing_laggards_are_named_and_sizes_unknown() -> None:
    cluster = lagging()
    found = seen(cluster)
    assert (found.partitions, found.garbage_bytes, found.listed_ms) == (1, None, -1)
    assert found.sentence == (
        "paused-0/3 has lagged for 80 min; how much garbage that keeps is unknown, since the bucket was never "
        "listed: l0gc compute-watermark"
    )


def test_an_older_listing_says_too_little_and_never_too_much() -> None:
    cluster = lagging()
    scan_and_publish(cluster)
    first = seen(cluster).garbage_bytes
    for _ in range(3):
        put(cluster, "events", {0: [b"x" * 50]})
        put(cluster, "paused-0", {0: [random.Random(2).randbytes(9000)]})
        reconcile(cluster, "events")
        tick(cluster)
    compute_and_publish(cluster)
    assert seen(cluster).garbage_bytes == first
    scan_and_publish(cluster)
    assert (seen(cluster).garbage_bytes or 0) > (first or 0)


@pytest.mark.parametrize("explained", [False, True])
def test_a_lost_object_is_restored_or_given_up_before_anything_is_lifted(explained: bool) -> None:
    cluster = lagging()
    scan_and_publish(cluster)
    (key,) = [h.key for h in read_overview(cluster).held_back_by]
    store_of(cluster).delete([key])
    s = read_overview(cluster)
    found = explain_epoch(cluster, s.watermark + 2).laggards if explained else s.laggards
    assert found is not None
    assert found.sentence.endswith(
        f"; that ends when the lost object is restored, or its records are given up: l0gc give-up --object {key}"
    )
    assert "l0gc reconcile" not in found.sentence
    assert s.next.startswith("restore that object from a version or a backup, or give up its records: l0gc give-up")


def spoil(cluster: ClusterHandles) -> None:
    for key in [k for k in store_of(cluster).objects if k.startswith(journal_log(0))]:
        store_of(cluster).put(key, b"nonsense")


def set_back(cluster: ClusterHandles) -> None:
    """Publish an M above the journal's needs, as if the journal had been set back."""
    known, _ = read_published(cluster.store, cluster.controller.snapshot().cluster_id)
    assert known is not None
    new = msgspec.structs.replace(known, watermark=known.watermark + 3, published_at_ms=known.published_at_ms + 1)
    publish(cluster.store, cluster.runtime, new)


def lose_the_topic(cluster: ClusterHandles) -> None:
    """Give the topics in the journal another id, as after a restored controller log."""
    for topic in cluster.journal(0).catch_up().topics.values():
        topic.topic_id = "another"


@pytest.mark.parametrize("happened", [spoil, set_back, lose_the_topic])
def test_nothing_is_said_where_a_journal_holds_m_itself(happened: Callable[[ClusterHandles], None]) -> None:
    cluster = lagging()
    scan_and_publish(cluster)
    here = another_process(cluster) if happened is spoil else cluster
    happened(here)
    assert read_overview(here).laggards is None


# -- explain, the report, and cost --------------------------------------------------------------------------------------


def test_explain_says_who_keeps_an_object_that_no_journal_names() -> None:
    cluster = lagging()
    kept = [k for k in store_of(cluster).objects if k.startswith("level_zero/data/") and "/000000000000000005/" in k]
    scan_and_publish(cluster)
    e = explain_key(cluster, kept[0])
    assert (e.verdict, e.next) == ("held", "l0gc reconcile")
    assert e.laggards == seen(cluster)
    assert e.explanation[-1] == seen(cluster).sentence
    assert e.to_json()["laggards"]["sentence"] == e.explanation[-1]


def test_explain_leaves_them_out_where_only_a_window_holds_the_epoch() -> None:
    cluster = lagging()
    scan_and_publish(cluster)
    newest = read_overview(cluster).cluster_epoch
    assert explain_epoch(cluster, newest).laggards is None
    reconcile(cluster)
    e = explain_epoch(cluster, newest)
    assert (e.verdict, e.laggards) == ("held", None)


def test_report_and_status_have_the_same() -> None:
    cluster = lagging()
    scan_and_publish(cluster)
    facts = gather(cluster, "s3://b/")
    assert facts.overview.laggards == seen(cluster)
    assert facts.to_json()["overview"]["laggards"] == read_overview(cluster).to_json()["laggards"]
    assert facts.to_json()["overview"]["laggards"]["topics"][0]["topic"] == "paused-0"


def test_requests_do_not_go_with_the_partitions_and_the_text_stays_short() -> None:
    asked, sentences = list[int](), list[str]()
    for partitions in (10, 5_000):
        cluster = memory_cluster()
        cluster.controller.create_topic("events", 4)
        cluster.controller.create_topic("wide", partitions, 2)
        put(cluster, "wide", *({p: [b"x"] for p in range(n, partitions, 5)} for n in range(5)))
        for _ in range(4):
            put(cluster, "events", {0: [random.Random(1).randbytes(9_000_000)]})
            reconcile(cluster, "events")
            tick(cluster)
        scan_and_publish(cluster)
        calls = list[Call]()
        store_of(cluster).fault = calls.append
        found = seen(another_process(cluster))
        assert (found.partitions, found.topics_total) == (partitions, 1)
        asked.append(len(calls))
        sentences.append(found.sentence)
    assert asked[0] == asked[1]
    assert "5,000 partitions of wide have lagged" in sentences[1]
    assert max(map(len, sentences)) < 250
