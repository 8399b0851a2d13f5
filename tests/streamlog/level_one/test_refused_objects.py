"""An object that the store refuses, in any way, holds up its own partitions and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from l0gc.collect.record import Attempt, write_attempt
from l0gc.errors import (
    AccessDeniedError,
    CorruptObjectError,
    PreconditionFailedError,
    RefusedObjectError,
    RequestRefusedError,
    SafetyError,
    StoreError,
    StoreTimeoutError,
    StoreUnreachableError,
    ThrottledError,
    UnansweredObjectError,
)
from l0gc.inspect.explain import explain_key
from l0gc.inspect.overview_reader import read_overview
from l0gc.inspect.verify.run import verify
from l0gc.keys import journal_log
from l0gc.operations import Read
from l0gc.storage.workers import LocalWorkers
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.journal.topic import l1_key
from l0gc.streamlog.level_one.give_up import give_up
from l0gc.streamlog.level_one.reconcile import ReconcileResult, reconcile
from l0gc.streamlog.reader import read_topic
from l0gc.watermark.publication import refuse_if_set_back
from tests.support.memory_store import Call, another_process, copy_of, failing, publish_m, store_of, topic_in_memory
from tests.support.merge import merge
from tests.support.reconcile import files, partition_of, put, unreconciled

PARTITIONS = 4
BAD = 2
"""The partition whose object is refused."""

Way = Callable[[ClusterHandles, str], object]


def refused(error: StoreError) -> Way:
    """Return a way in which every read of the object fails with this error."""

    def way(cluster: ClusterHandles, key: str) -> None:
        store_of(cluster).fault = failing(error, "[gh]e[ta]*", key)

    return way


def replaced(body: Callable[[bytes], bytes]) -> Way:
    def way(cluster: ClusterHandles, key: str) -> None:
        o = store_of(cluster).objects[key]
        o.body = body(o.body)

    return way


BY_NAME: dict[str, Way] = {
    "403 AccessDenied": refused(AccessDeniedError("the store refused access to it (AccessDenied)")),
    "403 InvalidObjectState": refused(RequestRefusedError("it was archived (InvalidObjectState)")),
    "400 KMS.DisabledException": refused(RequestRefusedError("the key that encrypts it cannot be used")),
    "416": refused(RequestRefusedError("416 InvalidRange")),
}
"""Answers that the store would repeat for the same request."""
AT_PRESENT: dict[str, Way] = {
    "500": refused(StoreError("500 InternalError")),
    "503 for good": refused(ThrottledError("the store asks to slow down")),
    "409": refused(StoreError("409 OperationAborted")),
    "412": refused(PreconditionFailedError("it is not what the write expected")),
    "no answer": refused(StoreTimeoutError("no answer within 30 s")),
    "connection cut in the body": refused(StoreError("reading it failed")),
}
"""Answers after which the object may come back, however long they last."""
DAMAGED: dict[str, Way] = {
    "404": lambda cluster, key: store_of(cluster).objects.pop(key),
    "body truncated": replaced(lambda body: body[:-1]),
    "another body": replaced(
        lambda body: body[: len(body) // 2] + bytes([body[len(body) // 2] ^ 1]) + body[len(body) // 2 + 1 :]
    ),
}
WAYS = BY_NAME | AT_PRESENT | DAMAGED
REFUSED = sorted(BY_NAME | AT_PRESENT)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    return WAYS[request.param]


@pytest.fixture(params=BY_NAME | DAMAGED)
def fault(request: pytest.FixtureRequest) -> Way:
    return WAYS[request.param]


@pytest.fixture(params=AT_PRESENT)
def unanswered(request: pytest.FixtureRequest) -> Way:
    return AT_PRESENT[request.param]


def uploaded(times: int = 1) -> tuple[ClusterHandles, list[str]]:
    """Create a topic of four partitions with `times` objects for each; return the cluster and their keys."""
    cluster = topic_in_memory(PARTITIONS)
    keys = []
    for n in range(times):
        keys += put(cluster, "events", *({p: [b"%d/%d" % (p, n)]} for p in range(PARTITIONS)))
    return cluster, keys


def lifted(cluster: ClusterHandles) -> list[int]:
    return [p for p in range(PARTITIONS) if not unreconciled(cluster, "events", p)]


def run(cluster: ClusterHandles) -> ReconcileResult:
    return reconcile(another_process(cluster))


def test_healthy_partitions_are_lifted_despite_a_refused_object(fault: Way) -> None:
    cluster, keys = uploaded()
    fault(cluster, keys[BAD])
    result = run(cluster)
    (error,) = result.errors
    assert f"it holds events/{BAD}" in error
    assert f"l0gc give-up --object {keys[BAD]}" in error
    assert (result.records, lifted(cluster)) == (PARTITIONS - 1, [0, 1, 3])
    assert result.problem is not None
    assert result.problem.exit_code == 3


def test_giving_up_is_not_advised_for_what_may_come_back(unanswered: Way) -> None:
    """Hazard 42: throttling or a time-out of an object is not a refusal."""
    cluster, keys = uploaded()
    unanswered(cluster, keys[BAD])
    result = run(cluster)
    (error,) = result.errors
    assert error.endswith(f"; it holds events/{BAD}")
    assert (result.records, lifted(cluster)) == (PARTITIONS - 1, [0, 1, 3])
    assert result.problem is not None
    assert result.problem.exit_code == 3
    write_attempt(cluster.store, Attempt("reconcile", 3, str(result.problem)))
    o = read_overview(another_process(cluster))
    assert (o.damaged, o.giving_up) == ("", "")
    assert not any("give" in f"{c.detail} {c.remedy}" for c in o.causes)
    e = explain_key(another_process(cluster), keys[BAD])
    assert (e.verdict, "give" in e.next) == ("needed", False)
    other = another_process(cluster)
    verified = verify(other, LocalWorkers(other), deep=True, min_age_ms=0)
    assert [(f.kind, f.key) for f in verified.findings] == [("unanswered", keys[BAD])]
    assert verified.problem is not None
    assert verified.problem.exit_code == 3
    topic = other.controller.snapshot().topic("events")
    with pytest.raises(UnansweredObjectError) as e_read:
        list(read_topic(other, topic, Read(partition=BAD)))
    assert (e_read.value.exit_code, "give" in str(e_read.value)) == (1, False)
    with pytest.raises(StoreError, match=r"nothing was given up$") as e_give:
        give_up(another_process(cluster), "ann", objects=[keys[BAD]])
    assert not isinstance(e_give.value, SafetyError)
    store_of(cluster).fault = lambda call: None
    assert run(cluster).errors == []


def test_every_view_goes_on_and_names_the_object(fault: Way) -> None:
    cluster, keys = uploaded()
    fault(cluster, keys[BAD])
    failed = run(cluster).problem
    write_attempt(cluster.store, Attempt("reconcile", 3, str(failed)))
    assert f"object {keys[BAD]}: " in read_overview(another_process(cluster)).damaged
    assert explain_key(another_process(cluster), keys[BAD]).subject == keys[BAD]
    other = another_process(cluster)
    found = verify(other, LocalWorkers(other), deep=True, min_age_ms=0).findings
    assert [(f.key, f.partition) for f in found] == [(keys[BAD], BAD)]


def test_the_records_of_the_other_partitions_can_be_read(way: Way) -> None:
    cluster, keys = uploaded()
    way(cluster, keys[BAD])
    other = another_process(cluster)
    topic = other.controller.snapshot().topic("events")
    assert [r.partition for p in (0, 1, 3) for r in read_topic(other, topic, Read(partition=p))] == [0, 1, 3]
    with pytest.raises(CorruptObjectError):
        list(read_topic(other, topic, Read(partition=BAD)))


def test_a_merge_leaves_the_partition_as_it_is(way: Way) -> None:
    cluster, _ = uploaded(0)
    for n in range(5):
        put(cluster, "events", {p: [b"%d/%d" % (p, n)] for p in range(PARTITIONS)})
        reconcile(cluster)
    before = files(cluster, "events", BAD)
    way(cluster, l1_key(partition_of(cluster, "events", BAD), before[1]))
    result = merge(another_process(cluster))
    assert [e.partition(":")[0] for e in result.errors] == [f"partition events/{BAD}"]
    assert result.partitions == PARTITIONS - 1
    assert files(cluster, "events", BAD) == before


@pytest.mark.parametrize("how", REFUSED)
def test_a_refused_object_is_given_up_only_on_request(how: str) -> None:
    cluster, keys = uploaded()
    WAYS[how](cluster, keys[BAD])
    if how in BY_NAME:
        with pytest.raises(SafetyError, match=r"it is not known whether its records are lost.*--force-readable"):
            give_up(another_process(cluster), "ann", objects=[keys[BAD]])
    assert give_up(another_process(cluster), "ann", objects=[keys[BAD]], force_readable=True).records == 1
    assert run(cluster).errors == []


@pytest.mark.parametrize(
    "error", [AccessDeniedError("the credentials have expired"), StoreUnreachableError("away"), StoreError("500")]
)
def test_a_store_that_refuses_everything_ends_the_run_at_once(error: StoreError) -> None:
    cluster, _ = uploaded()
    other = another_process(cluster)
    other.journal(0).catch_up()
    other.controller.snapshot()

    def fault(call: Call) -> None:
        if call.kind in ("get", "head") and call.key.startswith(("level_zero/", "l0gc/format")):
            raise error

    store_of(cluster).fault = fault
    with pytest.raises(type(error), match=str(error)) as caught:
        reconcile(other)
    assert not isinstance(caught.value, RefusedObjectError)
    assert lifted(cluster) == []
    assert store_of(cluster).requests["get"] < 100


def test_a_policy_that_denies_all_of_l0_ends_the_run_at_once() -> None:
    """Otherwise a hundred objects would be named one by one, as if each were damaged."""
    cluster, _ = uploaded(25)
    other = another_process(cluster)
    denied = AccessDeniedError("check that they allow s3:GetObject")
    store_of(cluster).fault = failing(denied, "[gh]e[ta]*", "level_zero/")
    with pytest.raises(AccessDeniedError, match=r"s3:GetObject, for all of .*level_zero/data/$") as caught:
        reconcile(other)
    assert not isinstance(caught.value, RefusedObjectError)
    assert lifted(cluster) == []
    assert store_of(cluster).requests["get"] < 100


@pytest.mark.parametrize("part", ["log", "checkpoint"])
@pytest.mark.parametrize("how", REFUSED)
def test_a_refused_object_of_a_log_holds_up_its_own_journal_alone(how: str, part: str) -> None:
    cluster = topic_in_memory(1)
    cluster.controller.create_topic("others", 1)
    for topic in ("events", "others"):
        put(cluster, topic, {0: [b"a"]})
    if part == "checkpoint":
        cluster.journal(0).replica.write_checkpoint()
    (key,) = copy_of(store_of(cluster), f"{journal_log(0)}{part}/")
    publish_m(cluster, 0)
    WAYS[how](cluster, key)
    result = run(cluster)
    assert result.records == 1
    assert not unreconciled(cluster, "others", 0)
    assert len(result.errors) == 1
    assert result.problem is not None
    assert result.problem.exit_code == 3
    other = another_process(cluster)
    assert [(f.kind, f.journal) for f in verify(other, LocalWorkers(other), min_age_ms=0).findings] == [
        ("log_unreadable" if how in BY_NAME else "unanswered", 0)
    ]
    assert [e for e in read_overview(another_process(cluster)).errors if e.startswith("journal 0")]
    with pytest.raises(StoreError, match="it is unknown whether journal 0 was set back"):
        refuse_if_set_back(another_process(cluster), by_m=True)
    store_of(cluster).fault = lambda call: None
    assert run(cluster).errors == []


def test_a_replica_that_is_bad_once_makes_nothing_a_hole() -> None:
    """Hazard 34: one reading is not enough for a decision that cannot be undone."""
    cluster, keys = uploaded()
    body = store_of(cluster).objects[keys[BAD]].body
    for bad in (1, 2):
        reads = [0]

        def replica(call: Call, bad: int = bad, reads: list[int] = reads) -> None:
            if (call.kind, call.key, call.when) == ("get", keys[BAD], "before"):
                store_of(cluster).objects[keys[BAD]].body = b"?" * len(body) if reads[0] < bad else body
                reads[0] += 1

        store_of(cluster).fault = replica
        began = store_of(cluster).clock.ms
        with pytest.raises(SafetyError, match="can be read"):
            give_up(another_process(cluster), "ann", objects=[keys[BAD]])
        assert store_of(cluster).clock.ms - began >= 2000 * bad
    store_of(cluster).fault = lambda call: None
    assert run(cluster).errors == []


def test_a_hole_that_the_store_keeps_otherwise_is_not_named() -> None:
    cluster, keys = uploaded()
    store_of(cluster).objects.pop(keys[BAD])

    def changed(call: Call) -> None:
        if call.kind == "put" and call.when == "after":
            store_of(cluster).objects[call.key].body = b"?"

    store_of(cluster).fault = changed
    with pytest.raises(
        CorruptObjectError, match="does not hold the bytes that were written to it; nothing was given up"
    ):
        give_up(another_process(cluster), "ann", objects=[keys[BAD]])
    store_of(cluster).fault = lambda call: None
    assert lifted(cluster) == []
    assert give_up(another_process(cluster), "ann", objects=[keys[BAD]]).records == 1
