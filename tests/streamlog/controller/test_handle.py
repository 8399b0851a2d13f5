"""The controller's handle: several processes on one store see one cluster, whichever replies are lost."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.errors import (
    ClusterMismatchError,
    EpochRegressionError,
    InvalidProducerEpochError,
    L0gcError,
    NotFoundError,
    NotInitialisedError,
    ProtocolError,
    UsageError,
)
from l0gc.keys import CONTROLLER_LOG, FORMAT, KeyLayout
from l0gc.runtime import Runtime
from l0gc.storage.entry import Entry, encode_entry
from l0gc.storage.log import SharedLog
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.decisions import RetentionSettings, tick_is_due
from l0gc.streamlog.controller.handle import Controller
from l0gc.streamlog.controller.state import NAME_EXPIRY_MS, RUN_LIMIT_MS, Producer, TopicTable
from tests.support.memory_store import (
    Call,
    FakeClock,
    MemoryStore,
    lose_reply,
    memory_cluster,
    once,
    publish_m,
    store_of,
)
from tests.support.tries import tries


def another(cluster: ClusterHandles, seed: int = 1, **kwargs: object) -> ClusterHandles:
    """Open the store in another process."""
    assert isinstance(cluster.store, MemoryStore)
    return ClusterHandles(cluster.store, Runtime(cluster.store.clock, random.Random(seed)), **kwargs)  # type: ignore[arg-type]


def two() -> tuple[ClusterHandles, ClusterHandles]:
    """Return two processes of one cluster."""
    a = memory_cluster()
    return a, another(a)


def during_next_append(action: Callable[[], object]) -> Callable[[Call], None]:
    """Return a fault that runs `action` just before the next controller entry is created."""
    return once(action, "put_if_absent", CONTROLLER_LOG)


def test_without_a_cluster_every_question_is_answered_with_init() -> None:
    controller = memory_cluster(bootstrap=False).controller
    questions: list[Callable[[], object]] = [
        controller.snapshot,
        controller.epoch,
        controller.layout,
        controller.advance,
        controller.tick_if_due,
        lambda: controller.create_topic("t", 1),
        lambda: controller.delete_topic("t"),
        lambda: controller.init_producer("p"),
    ]
    for ask in questions:
        with pytest.raises(NotInitialisedError, match="run l0gc init first"):
            ask()
    assert store_of(memory_cluster(bootstrap=False)).objects == {}


def test_bootstrap_founds_a_cluster_once() -> None:
    cluster = memory_cluster(bootstrap=False)
    assert cluster.controller.bootstrap(shards=8)
    assert not cluster.controller.bootstrap(shards=8)
    assert not cluster.controller.bootstrap()
    assert not another(cluster).controller.bootstrap()
    assert another(cluster, 2).controller.snapshot() == cluster.controller.snapshot()
    assert cluster.controller.epoch() == 0
    assert cluster.controller.layout() == KeyLayout(shards=8)
    with pytest.raises(UsageError, match="initialised with 8 shards"):
        cluster.controller.bootstrap(shards=9)
    assert cluster.controller.snapshot().journals == 16
    with pytest.raises(UsageError, match="initialised with 16 journals"):
        cluster.controller.bootstrap(journals=17)


def test_init_again_keeps_the_clusters_key_template() -> None:
    cluster = memory_cluster(bootstrap=False)
    template = "data/{shard:02}/{epoch:018}/{uuid}"
    assert cluster.controller.bootstrap(shards=8, key_template=template)
    assert not another(cluster).controller.bootstrap()
    assert cluster.controller.layout() == KeyLayout(template, 8)


def test_two_that_bootstrap_at_once_found_one_cluster() -> None:
    a = memory_cluster(bootstrap=False)
    b = another(a)
    outcome: list[bool] = []
    store_of(a).fault = during_next_append(lambda: outcome.append(b.controller.bootstrap(shards=4)))
    outcome.append(a.controller.bootstrap(shards=4))
    assert outcome == [True, False]
    assert a.controller.snapshot() == b.controller.snapshot()
    assert a.controller.epoch() == 0


def test_a_bootstrap_without_a_reply_is_recognised() -> None:
    cluster = memory_cluster(bootstrap=False)
    store_of(cluster).fault = lose_reply(CONTROLLER_LOG)
    assert cluster.controller.bootstrap(shards=4)
    assert cluster.controller.epoch() == 0


def test_a_layout_that_cannot_be_is_refused_before_anything_is_written() -> None:
    cluster = memory_cluster(bootstrap=False)
    with pytest.raises(UsageError):
        cluster.controller.bootstrap(shards=1001)
    with pytest.raises(UsageError):
        cluster.controller.bootstrap(key_template="{uuid}")
    with pytest.raises(UsageError):
        cluster.controller.bootstrap(journals=10_000)
    assert store_of(cluster).objects == {}


def test_a_process_that_expects_another_cluster_is_refused_everything() -> None:
    """Hazard 11: two clusters may share a bucket by mistake, so every call compares the cluster id."""
    cluster = memory_cluster()
    store = store_of(cluster)
    before = dict(store.objects)
    stranger = another(cluster, expected_cluster_id="somebody-else").controller
    questions: list[Callable[[], object]] = [
        stranger.snapshot,
        stranger.epoch,
        stranger.layout,
        stranger.advance,
        stranger.tick_if_due,
        stranger.bootstrap,
        lambda: stranger.create_topic("t", 1),
        lambda: stranger.init_producer("p"),
    ]
    for ask in questions:
        with pytest.raises(ClusterMismatchError, match="not somebody-else"):
            ask()
    assert store.objects == before


def test_a_process_that_expects_this_cluster_founds_it_and_is_served() -> None:
    cluster = memory_cluster(bootstrap=False)
    friend = another(cluster, expected_cluster_id="chosen")
    assert friend.controller.bootstrap(shards=4)
    assert friend.controller.snapshot().cluster_id == "chosen"


def test_a_topic_is_created_deleted_and_created_again_as_another() -> None:
    cluster = memory_cluster()
    controller = cluster.controller
    first, created = controller.create_topic("t", 2)
    assert (first.revision, created) == (1, True)
    assert controller.create_topic("t", 2) == (first, False)
    assert controller.epoch() == 1
    assert controller.delete_topic("t") == first
    with pytest.raises(NotFoundError, match="topic"):
        controller.delete_topic("t")
    again, created = controller.create_topic("t", 2)
    assert (again.revision, created) == (3, True)
    assert again.topic_id != first.topic_id
    assert another(cluster).controller.snapshot().topics == {"t": again}


def test_deletion_does_not_reach_a_concurrently_recreated_topic() -> None:
    a, b = two()
    a.controller.create_topic("t", 1)

    def anew() -> None:
        b.controller.delete_topic("t")
        b.controller.create_topic("t", 1)

    store_of(a).fault = during_next_append(anew)
    with pytest.raises(NotFoundError, match=r"topic 't' does not exist|was deleted, and created again with revision 3"):
        a.controller.delete_topic("t")
    assert a.controller.snapshot().topic("t").revision == 3


def test_two_that_create_one_topic_at_once_get_the_same() -> None:
    a, b = two()
    seen: list[object] = []
    store_of(a).fault = during_next_append(lambda: seen.append(b.controller.create_topic("t", 1)))
    topic, created = a.controller.create_topic("t", 1)
    assert seen == [(topic, True)]
    assert not created


def test_a_topic_created_after_a_snapshot_has_a_later_revision() -> None:
    """Hazard 5: a process that saw epoch E saw every topic with revision <= E."""
    a, b = two()
    snapshot = a.controller.snapshot()
    topic, _ = b.controller.create_topic("t", 1)
    assert topic.revision > snapshot.epoch
    assert snapshot.topics == {}


def test_a_snapshot_knows_every_topic_up_to_its_epoch() -> None:
    """Hazard 5: others create a topic before every second store call, and the snapshot's epoch and topics still match."""
    a, b = two()
    store, created = store_of(a), list[int]()
    calls = itertools.count()

    def fault(call: Call) -> None:
        if call.when == "before" and next(calls) % 2:
            store.fault = lambda call: None
            created.append(b.controller.create_topic(f"t{len(created)}", 1)[0].revision)
            store.fault = fault

    store.fault = fault
    for _ in range(5):
        snapshot = a.controller.snapshot()
        known = {t.revision for t in snapshot.topics.values()}
        assert known == {revision for revision in created if revision <= snapshot.epoch}
    assert created


def test_a_snapshot_does_not_move_with_the_cluster() -> None:
    controller = memory_cluster().controller
    snapshot = controller.snapshot()
    controller.create_topic("t", 1)
    assert (snapshot.epoch, snapshot.topics) == (0, {})


def test_an_advance_whose_reply_was_lost_advances_once() -> None:
    cluster = memory_cluster()
    store_of(cluster).fault = lose_reply(CONTROLLER_LOG)
    assert cluster.controller.advance() == 1
    assert another(cluster).controller.epoch() == 1


def test_of_two_that_expect_the_same_epoch_one_advances_it() -> None:
    a, b = two()
    store_of(a).fault = during_next_append(lambda: b.controller.advance(0, "b"))
    with pytest.raises(ProtocolError, match="is 1, not 0"):
        a.controller.advance(0, "a")
    assert b.controller.epoch() == 1


@pytest.mark.parametrize("local_ms", [0, 10**13])
def test_a_tick_is_due_by_the_stores_clock(local_ms: int) -> None:
    """Hazard 16: a local clock in 1970, or centuries ahead, changes nothing."""
    store = MemoryStore()
    cluster = ClusterHandles(store, Runtime(FakeClock(local_ms), random.Random(0)), epoch_interval_s=600)
    cluster.controller.bootstrap(shards=4)
    store.clock.sleep(569)
    assert cluster.controller.tick_if_due() == 0
    store.clock.sleep(1)
    assert cluster.controller.tick_if_due() == 1
    assert cluster.controller.tick_if_due() == 1


@pytest.mark.parametrize("interval_s", [60, 600, 86_400])
def test_a_job_once_per_interval_ticks_each_time(interval_s: int) -> None:
    store = MemoryStore()
    cluster = ClusterHandles(store, Runtime(FakeClock(0), random.Random(0)), epoch_interval_s=interval_s)
    cluster.controller.bootstrap(shards=4)
    ticks = []
    for late_s in (1, -1, 1, -1, 0, 0):
        store.clock.sleep(interval_s + late_s)
        ticks.append(cluster.controller.tick_if_due())
    assert ticks == [1, 2, 3, 4, 5, 6]


def test_an_interval_that_is_no_schedule_is_kept_to_the_millisecond() -> None:
    assert not tick_is_due(29_999, 30_000)
    assert tick_is_due(30_000, 30_000)
    assert tick_is_due(0, 0)


def test_of_two_that_find_a_tick_due_one_ticks() -> None:
    a, b = two()
    store_of(a).clock.sleep(600)
    store_of(a).fault = during_next_append(b.controller.tick_if_due)
    assert a.controller.tick_if_due() == 1
    assert b.controller.epoch() == 1


def test_the_epoch_is_looked_up_at_most_once_in_the_cache_time() -> None:
    a, b = two()
    store = store_of(a)
    assert b.controller.epoch() == 0
    a.controller.advance()
    store.clock.sleep(9)
    requests_before = store.requests.total()
    assert b.controller.epoch() == 0
    assert store.requests.total() == requests_before
    assert b.controller.epoch(at_least=1) == 1
    a.controller.advance()
    store.clock.sleep(10)
    assert b.controller.epoch() == 2


def test_a_snapshot_is_never_from_the_cache() -> None:
    a, b = two()
    assert b.controller.epoch() == 0
    a.controller.create_topic("t", 1)
    assert b.controller.snapshot().epoch == 1


def test_an_epoch_that_the_cluster_has_not_reached_stays_unknown() -> None:
    assert memory_cluster().controller.epoch(at_least=99) == 0


def test_a_producers_new_instance_fences_the_old_one() -> None:
    a, b = two()
    old = a.controller.init_producer("p")
    assert a.controller.producer_is_current(old.producer_id, old.epoch, old.run)
    new = b.controller.init_producer("p")
    assert (new.producer_id, new.epoch) == (old.producer_id, 1)
    assert not a.controller.producer_is_current(old.producer_id, old.epoch, old.run)
    with pytest.raises(InvalidProducerEpochError, match="fenced"):
        a.controller.init_producer("p", old.producer_id, old.epoch, old.run)


def test_a_producer_expires_by_the_stores_clock() -> None:
    cluster = memory_cluster()
    p = cluster.controller.init_producer("p")
    store_of(cluster).clock.sleep(RUN_LIMIT_MS / 1000 - 1)
    assert cluster.controller.producer_is_current(p.producer_id, p.epoch, p.run)
    store_of(cluster).clock.sleep(1)
    # The clock decides, not the time of a later entry.
    assert not cluster.controller.producer_is_current(p.producer_id, p.epoch, p.run)
    assert cluster.controller.init_producer("p").producer_id == p.producer_id
    store_of(cluster).clock.sleep(NAME_EXPIRY_MS / 1000)
    cluster.controller.advance()
    again = cluster.controller.init_producer("p")
    assert again.producer_id not in (-1, p.producer_id)
    assert (again.epoch, again.last_epoch) == (0, -1)


def test_an_init_whose_reply_is_lost_on_the_way_lands_once() -> None:
    """Hazard 8: an init without a reply must not be appended again."""
    a = memory_cluster()
    store_of(a).fault = lose_reply(CONTROLLER_LOG)
    assert a.controller.init_producer("p").epoch == 0
    assert a.controller.epoch() == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_next_init_fences_a_process_that_died(when: str) -> None:
    """A restarted process has no id and no epoch, so it bumps again, whether or not its first bump landed."""
    at = 0
    while True:
        at += 1
        cluster = memory_cluster()
        first = cluster.controller.init_producer("p")
        left = [at]

        def fault(call: Call, left: list[int] = left) -> None:
            left[0] -= call.when == when
            if left[0] <= 0 and call.when == when:
                raise RuntimeError("it dies")

        store_of(cluster).fault = fault
        reached: list[Producer] = []
        with contextlib.suppress(RuntimeError):
            reached.append(another(cluster, at).controller.init_producer("p"))
        store_of(cluster).fault = lambda call: None
        died = left[0] <= 0
        again = another(cluster, 1000 + at).controller.init_producer("p")
        assert again.producer_id == first.producer_id
        assert all(again.epoch > p.epoch for p in [first, *reached])
        assert not cluster.controller.producer_is_current(first.producer_id, first.epoch, first.run)
        if not died:
            break
    assert at > 3


def test_two_that_begin_at_once_get_two_epochs() -> None:
    a, b = two()
    got: list[Producer] = []
    store_of(a).fault = during_next_append(lambda: got.append(b.controller.init_producer("p")))
    mine = a.controller.init_producer("p")
    assert [p.epoch for p in got] == [0]
    assert (mine.producer_id, mine.epoch) == (got[0].producer_id, 1)


def test_concurrent_bumps_of_an_epoch_fence_or_coincide() -> None:
    """One instance retries while another one begins: the retry is fenced."""
    a, b = two()
    p = a.controller.init_producer("p")
    store_of(a).fault = during_next_append(lambda: b.controller.init_producer("p"))
    with pytest.raises(InvalidProducerEpochError, match="fenced epoch 0"):
        a.controller.init_producer("p", p.producer_id, p.epoch, p.run)
    store_of(a).fault = lambda call: None
    q = a.controller.init_producer("q")
    store_of(a).fault = during_next_append(lambda: b.controller.init_producer("q", q.producer_id, q.epoch, q.run))
    assert a.controller.init_producer("q", q.producer_id, q.epoch, q.run).epoch == 1  # a retry gets the same bump


def test_producers_outlive_a_truncation_of_the_controllers_log() -> None:
    a = memory_cluster()
    p = a.controller.init_producer("p")
    bumped = a.controller.init_producer("p", p.producer_id, p.epoch, p.run)
    store_of(a).clock.sleep(3600)
    a.controller.replica.write_checkpoint()
    assert a.controller.replica.log.truncate(a.controller.replica.log.list_folder()) == 2
    b = another(a)
    assert b.controller.init_producer("p", p.producer_id, p.epoch, p.run) == bumped
    assert b.controller.producer_is_current(p.producer_id, 1, bumped.run)
    assert not b.controller.producer_is_current(p.producer_id, 0, p.run)


def test_an_instance_has_id_epoch_and_run_or_none() -> None:
    cluster = memory_cluster()
    p = cluster.controller.init_producer("p")
    for some in [(p.producer_id, None, None), (None, p.epoch, p.run), (p.producer_id, p.epoch, None)]:
        with pytest.raises(UsageError, match="give the id, epoch and run"):
            cluster.controller.init_producer("p", *some)
    assert cluster.controller.epoch() == 1


def restored(cluster: ClusterHandles, entries: int, seed: int) -> ClusterHandles:
    """Open a store whose controller log was permanently restored to its first entries, in another process."""
    store = MemoryStore(store_of(cluster).clock)
    objects = sorted(store_of(cluster).objects.items())
    store.objects = dict([(k, o) for k, o in objects if k.startswith(CONTROLLER_LOG)][:entries] + objects[-1:])
    assert FORMAT in store.objects
    return another(ClusterHandles(store, Runtime(store.clock, random.Random(0))), seed)


def test_a_restored_log_reissues_no_id_run_or_topic() -> None:
    a = memory_cluster()
    p, q = a.controller.init_producer("p"), a.controller.init_producer("q")
    bumped = a.controller.init_producer("p", p.producer_id, p.epoch, p.run)
    topic, _ = a.controller.create_topic("t", 1)
    b = restored(a, 2, seed=9)  # the cluster, and the first run of p
    assert b.controller.epoch() == 1
    other = b.controller.init_producer("q")
    again = b.controller.init_producer("p")
    twin, _ = b.controller.create_topic("t", 1)
    b.controller.advance()
    assert other.producer_id != q.producer_id
    assert (again.producer_id, again.epoch) == (bumped.producer_id, bumped.epoch)
    assert again.run != bumped.run
    assert not b.controller.producer_is_current(bumped.producer_id, bumped.epoch, bumped.run)
    with pytest.raises(InvalidProducerEpochError):
        b.controller.init_producer("p", bumped.producer_id, bumped.epoch, bumped.run)
    assert (twin.revision, twin.name) == (topic.revision, topic.name)
    assert twin.topic_id != topic.topic_id
    assert not b.controller.snapshot().has_created(topic.revision, topic.topic_id)


def guarded(cluster: ClusterHandles, guard: Callable[[], None]) -> Controller:
    """Return another process's controller with this guard."""
    store = store_of(cluster)
    runtime = Runtime(store.clock, random.Random(5))
    return Controller(SharedLog(store, CONTROLLER_LOG, runtime), runtime, guard=guard)


def test_the_guard_refuses_every_entry_before_it_is_appended() -> None:
    """Hazard 10: an entry in a restored log takes an offset that a later, better restore needs."""

    def refuse() -> None:
        raise EpochRegressionError("the log went back")

    cluster = memory_cluster()
    cluster.controller.create_topic("t", 1)
    p = cluster.controller.init_producer("p")
    store_of(cluster).clock.sleep(601)  # a tick is due
    before = dict(store_of(cluster).objects)
    controller = guarded(cluster, refuse)
    attempts: list[Callable[[], object]] = [
        lambda: controller.create_topic("u", 1),
        lambda: controller.delete_topic("t"),
        lambda: controller.init_producer("p"),
        lambda: controller.init_producer("p", p.producer_id, p.epoch, p.run),
        lambda: controller.init_producer("q"),
        controller.advance,
        lambda: controller.advance(2, "me"),
        controller.tick_if_due,
    ]
    for attempt in attempts:
        with pytest.raises(EpochRegressionError, match="went back"):
            attempt()
    assert store_of(cluster).objects == before
    assert controller.create_topic("t", 1)[1] is False  # a call that appends nothing succeeds
    assert not controller.bootstrap()
    assert controller.advance_above(5) == 6
    assert controller.tick_if_due() == 6


def test_the_guard_is_not_called_where_nothing_would_be_appended() -> None:
    epochs: list[int] = []
    cluster = memory_cluster()
    controller = guarded(cluster, lambda: epochs.append(controller.epoch()))
    controller.tick_if_due()
    controller.snapshot()
    with pytest.raises(NotFoundError, match="topic"):
        controller.delete_topic("t")
    assert epochs == []
    controller.advance()
    assert epochs == [0]


def test_an_operator_advances_above_an_epoch_and_no_further() -> None:
    cluster = memory_cluster()
    assert cluster.controller.advance_above(7) == 8
    assert cluster.controller.advance_above(7) == 8
    assert another(cluster).controller.advance_above(3) == 8
    with pytest.raises(UsageError, match="cannot be advanced to"):
        cluster.controller.advance_above(10**18 - 1)
    assert cluster.controller.epoch() == 8


def test_an_entry_created_again_below_the_boundary_began_no_epoch() -> None:
    cluster = memory_cluster()
    controller = cluster.controller
    for _ in range(4):
        controller.advance()
    log = controller.replica.log
    assert controller.began_ms(3) == log.get(3).time_ms
    payload = log.get(3).payload
    controller.replica.write_checkpoint()
    store_of(cluster).clock.sleep(3600)
    assert another(cluster).controller.replica.truncate() > 0
    assert controller.began_ms(3) is None
    key = log.entry_key(3)
    store_of(cluster).put(key, encode_entry(key, Entry("stale", 7, payload)))
    assert controller.began_ms(3) is None
    assert controller.began_ms(4) is not None


def test_a_far_epoch_jump_is_one_entry() -> None:
    cluster = memory_cluster()
    controller = cluster.controller
    old, _ = controller.create_topic("old", 1)
    far = 10**17
    assert controller.advance_above(far) == far + 1
    assert controller.replica.offset == 2
    began = store_of(cluster).clock.ms
    new, _ = controller.create_topic("new", 1)
    assert (old.revision, new.revision, controller.advance()) == (1, far + 2, far + 3)
    assert controller.advance_above(far + 10) == far + 11
    assert controller.advance(far + 11, "me") == controller.advance(far + 11, "me") == far + 12
    for _ in range(2):
        other = another(cluster)
        assert other.controller.epoch() == far + 12
        assert other.controller.began_ms(far + 12) is not None
        assert other.controller.began_ms(far + 11) is not None
        assert [other.controller.began_ms(e) for e in (1, far + 2, far + 10)] == [None] * 3
        controller.replica.write_checkpoint()
    controller.delete_topic("new")
    assert another(cluster).controller.snapshot().deleted[0].deleted_epoch == far + 13
    assert began == store_of(cluster).clock.ms


def test_an_insufficient_epoch_is_refused_before_writing() -> None:
    cluster = memory_cluster()
    publish_m(cluster, 4, 20)
    before = dict(store_of(cluster).objects)
    with pytest.raises(EpochRegressionError, match="--above 18 is too low"):
        cluster.controller.advance_above(18)
    assert store_of(cluster).objects == before
    assert cluster.controller.advance_above(19) == 20


def test_two_that_advance_above_the_same_epoch_at_once_do_it_once() -> None:
    a, b = two()
    store_of(a).fault = during_next_append(lambda: b.controller.advance_above(4))
    assert a.controller.advance_above(4) == 5


def test_the_controller_survives_a_truncation_of_its_log() -> None:
    a, b = two()
    assert b.controller.epoch() == 0
    topic, _ = a.controller.create_topic("t", 2)
    for _ in range(5):
        a.controller.advance()
    store_of(a).clock.sleep(3600)
    a.controller.replica.write_checkpoint()
    assert a.controller.replica.log.truncate(a.controller.replica.log.list_folder()) == 6
    assert b.controller.advance() == 7
    assert b.controller.snapshot() == another(a, 2).controller.snapshot()
    assert b.controller.snapshot().topic("t") == topic


ANY = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 20),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.floats(0, 9).map(round).map(float),
    st.text(max_size=3),
    st.sampled_from(["t", "p", "pin", "lake", "l0gc.t", "\udc80", b"t", (1, 2)]),
)
CALLS: dict[str, Callable[..., object]] = {
    "create_topic": lambda c, a, b, d, e, f: c.create_topic(a, b, d, RetentionSettings(e, f)),
    "alter_topic": lambda c, a, b, d, *_: c.alter_topic(a, RetentionSettings(b, d)),
    "alter_defaults": lambda c, a, b, *_: c.alter_defaults(RetentionSettings(a, b)),
    "delete_topic": lambda c, a, *_: c.delete_topic(a),
    "forget_topics": lambda c, a, b, *_: c.forget_topics([a, b]),
    "create_pin": lambda c, a, b, d, e, f: c.create_pin(a, b, level_one=d, why=e, topic=f),
    "pin_took_effect": lambda c, a, b, d, *_: c.pin_took_effect(c.snapshot().pin("pin"), a, [(b, d)]),
    "delete_pin": lambda c, a, b, *_: c.delete_pin(a, b),
    "create_table": lambda c, a, b, d, e, *_: c.create_table(TopicTable(a, b, d, e)),
    "drop_table": lambda c, a, b, d, e, *_: c.drop_table(TopicTable(a, b, d, e)),
    "advance": lambda c, a, b, *_: c.advance(a, b),
    "advance_above": lambda c, a, *_: c.advance_above(a),
    "init_producer": lambda c, a, b, d, e, f: c.init_producer(a, b, d, e, above=f),
    "bootstrap": lambda c, a, b, d, e, _: c.bootstrap(a, b, journals=d, external_log=e),
}


@pytest.mark.parametrize("name", CALLS)
@tries(20)
@given(st.tuples(ANY, ANY, ANY, ANY, ANY), st.booleans())
def test_no_value_of_any_call_becomes_an_entry_that_a_reader_refuses(
    name: str, values: tuple[object], valid: bool
) -> None:
    """Hazard 31: each call either fails before its first write, or lands an entry that every process can read."""
    cluster = memory_cluster(bootstrap=name != "bootstrap")
    if name != "bootstrap":
        cluster.controller.create_topic("t", 1)
        cluster.controller.create_pin("pin", 60_000)
        cluster.controller.init_producer("p")
    arguments = ["t" if valid and name != "bootstrap" else values[0], *values[1:]]
    before = dict(store_of(cluster).objects)
    try:
        CALLS[name](cluster.controller, *arguments)
    except (L0gcError, TypeError, ValueError, OverflowError):
        assert store_of(cluster).objects == before
    other = another(cluster).controller
    if any(key.startswith(CONTROLLER_LOG) for key in store_of(cluster).objects):
        state = other.snapshot()
        assert state == cluster.controller.snapshot()
        other.replica.write_checkpoint()
        assert another(cluster, 2).controller.snapshot() == state
