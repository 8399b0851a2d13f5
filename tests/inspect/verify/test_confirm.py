"""The second look: a suspect is a finding only if nothing that goes on beside explains it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from l0gc.inspect.verify import findings as kinds
from l0gc.inspect.verify.confirm import confirm
from l0gc.inspect.verify.findings import Suspect, suspect
from l0gc.inspect.verify.rules import Basis, ReportTop, basis_of
from l0gc.keys import level_one, partition_log
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.topics import delete_topic
from l0gc.watermark.reports import publish_reports, report_of
from tests.support.memory_store import Call
from tests.support.reconcile import reconcile
from tests.support.verify import another_process, handle_of, loaded_cluster, put, state_of, store_of

UUID = "01234567-89ab-cdef-0123-456789abcdef"


def basis(cluster: Cluster, watermark: int = -1) -> Basis:
    return basis_of(cluster.controller.snapshot(), watermark, cluster.store.now_ms())


def found(cluster: Cluster, *suspects: Suspect, seen: Basis | None = None) -> list[tuple[str, str]]:
    """What is left of the suspects, as kind and detail. The second look is another process's."""
    confirmed = confirm(cluster.store, another_process(cluster).runtime, seen or basis(cluster), suspects)
    return [(s.kind, s.detail) for s in confirmed]


def of_l0(cluster: Cluster, kind: str, index: int = 0) -> Suspect:
    u = state_of(cluster).placeholders[index]
    ref = msgspec.json.encode(u).decode()
    return suspect(kind, handle_of(cluster).partition, u.placeholder.key, u.placeholder.base_offset, "", ref)


def of_l1(cluster: Cluster, kind: str) -> Suspect:
    (f,) = state_of(cluster).l1
    return suspect(kind, handle_of(cluster).partition, f.key, f.base_offset, "", msgspec.json.encode(f).decode())


def cut(cluster: Cluster, key: str) -> None:
    cluster.store.put(key, store_of(cluster).objects[key].body[:-1])


def flip(cluster: Cluster, key: str) -> None:
    body = store_of(cluster).objects[key].body
    cluster.store.put(key, body[:300] + bytes([body[300] ^ 1]) + body[301:])


def remove(cluster: Cluster, key: str) -> None:
    cluster.store.delete([key])


DAMAGE: list[tuple[str, Callable[[Cluster, str], Suspect], Callable[[Cluster, str], None]]] = [
    (kinds.L0_MISSING, of_l0, remove),
    (kinds.L0_SHORT, of_l0, cut),
    (kinds.L0_CORRUPT, of_l0, flip),
    (kinds.L1_MISSING, of_l1, remove),
    (kinds.L1_SIZE, of_l1, cut),
    (kinds.L1_CORRUPT, of_l1, flip),
]


@pytest.mark.parametrize(("kind", "suspected", "damage"), DAMAGE)
def test_an_object_that_is_as_the_log_says_is_no_finding_and_a_damaged_one_is(
    tmp_path: Path,
    kind: str,
    suspected: Callable[[Cluster, str], Suspect],
    damage: Callable[[Cluster, str], None],
) -> None:
    cluster = loaded_cluster(tmp_path)
    s = suspected(cluster, kind)
    assert found(cluster, s) == []
    damage(cluster, s.key)
    ((again, detail),) = found(cluster, s)
    assert again == kind
    assert detail


@pytest.mark.parametrize(("kind", "suspected", "damage"), DAMAGE)
def test_an_object_of_a_topic_that_was_deleted_meanwhile_is_no_finding(
    tmp_path: Path,
    kind: str,
    suspected: Callable[[Cluster, str], Suspect],
    damage: Callable[[Cluster, str], None],
) -> None:
    cluster = loaded_cluster(tmp_path)
    s, seen = suspected(cluster, kind), basis(cluster)
    damage(cluster, s.key)
    another_process(cluster).controller.delete_topic("events")  # the deleter dies before it closes the partition
    assert found(cluster, s, seen=seen) == []


def test_what_was_reconciled_and_swept_meanwhile_is_no_finding(tmp_path: Path) -> None:
    cluster = loaded_cluster(tmp_path)
    suspects = [of_l0(cluster, k) for k in (kinds.L0_MISSING, kinds.L0_SHORT)]
    reconcile(another_process(cluster))
    remove(cluster, suspects[0].key)
    assert found(cluster, *suspects) == []


def reconcile_and_sweep(cluster: Cluster, key: str) -> None:
    reconcile(cluster)
    remove(cluster, key)


def delete_and_sweep(cluster: Cluster, key: str) -> None:
    cluster.controller.delete_topic("events")
    remove(cluster, key)


@pytest.mark.parametrize("event", [reconcile_and_sweep, delete_and_sweep])
def test_whenever_an_object_goes_rightly_during_the_second_look_it_is_no_finding(
    tmp_path: Path, event: Callable[[Cluster, str], None]
) -> None:
    happened = 0
    for moment in range(40):
        cluster = loaded_cluster(tmp_path)
        s, seen, other = of_l0(cluster, kinds.L0_MISSING), basis(cluster), another_process(cluster)
        left = [moment]

        def at_the_moment(
            call: Call, cluster: Cluster = cluster, other: Cluster = other, left: list[int] = left, key: str = s.key
        ) -> None:
            left[0] -= 1
            if left[0] < 0:
                store_of(cluster).fault = lambda call: None
                event(other, key)

        store_of(cluster).fault = at_the_moment
        assert found(cluster, s, seen=seen) == [], moment
        happened += left[0] < 0
    assert 2 <= happened < 40


# -- L1 objects that no log names -----------------------------------------------------------------------------------------


def orphan(cluster: Cluster, base: int = 10, last: int = 19) -> Suspect:
    p = handle_of(cluster).partition
    key = level_one(p, base, last, UUID)
    cluster.store.put(key, b"x")
    return suspect(kinds.L1_ORPHAN, p, key)


def test_an_l1_object_that_no_log_names_is_a_finding(tmp_path: Path) -> None:
    cluster = loaded_cluster(tmp_path)
    assert [kind for kind, _ in found(cluster, orphan(cluster))] == [kinds.L1_ORPHAN]


def test_an_l1_object_that_was_committed_or_removed_meanwhile_is_no_orphan(tmp_path: Path) -> None:
    cluster = loaded_cluster(tmp_path)
    reconcile(another_process(cluster))
    committed = state_of(cluster).l1[-1]
    removed = orphan(cluster, 20, 21)
    remove(cluster, removed.key)
    assert found(cluster, suspect(kinds.L1_ORPHAN, removed.id, committed.key), removed) == []


def test_while_a_log_cannot_be_read_that_is_the_finding_and_nothing_is_an_orphan(tmp_path: Path) -> None:
    cluster = loaded_cluster(tmp_path)
    p = handle_of(cluster).partition
    unreadable = suspect(kinds.LOG_UNREADABLE, p, partition_log(p))
    suspects = [orphan(cluster), of_l0(cluster, kinds.L0_MISSING), unreadable]
    assert [kind for kind, _ in found(cluster, *suspects)] == [kinds.L1_ORPHAN]
    cluster.store.put(f"{partition_log(p)}log/{1:020}.json", b"{")
    ((kind, detail),) = found(cluster, *suspects)
    assert kind == kinds.LOG_UNREADABLE
    assert f"{1:020}.json" in detail


# -- the log by itself ----------------------------------------------------------------------------------------------------


def test_what_was_live_below_m_stays_a_finding_though_it_was_reconciled_since(tmp_path: Path) -> None:
    cluster = loaded_cluster(tmp_path)
    suspects = [of_l0(cluster, kinds.LIVE_BELOW_WATERMARK)]
    reconcile(another_process(cluster))
    assert len(found(cluster, *suspects)) == 1
    delete_topic(another_process(cluster), "events")
    assert found(cluster, *suspects) == []


def broken_checkpoint(cluster: Cluster, **changes: object) -> None:
    replica, state = handle_of(cluster).replica, state_of(cluster)
    assert replica.log.write_checkpoint(replica.offset, msgspec.json.encode(msgspec.structs.replace(state, **changes)))


def test_a_state_is_judged_again_by_the_log_as_it_is_then(tmp_path: Path) -> None:
    cluster = loaded_cluster(tmp_path)
    p = handle_of(cluster).partition
    broken = suspect(kinds.STATE_BROKEN, p, partition_log(p), -1, "then")
    ranges = suspect(kinds.L1_RANGE, p, partition_log(p), 0, "then")
    assert found(cluster, broken, ranges) == []
    broken_checkpoint(cluster, next_offset=99, l1=[])
    assert {kind: "then" in detail for kind, detail in found(cluster, broken, ranges)} == {
        kinds.STATE_BROKEN: False,
        kinds.L1_RANGE: False,
    }


def test_two_things_wrong_with_one_state_are_two_findings(tmp_path: Path) -> None:
    cluster = loaded_cluster(tmp_path)
    p = handle_of(cluster).partition
    broken_checkpoint(cluster, next_offset=99, min_epoch_lower_bound=0)
    both = [suspect(kinds.STATE_BROKEN, p, partition_log(p), -1, text) for text in ("one", "two")]
    assert len(set(found(cluster, *both))) == len(found(cluster, *both)) == 2


# -- reports and epochs ---------------------------------------------------------------------------------------------------


def test_a_report_that_says_more_than_the_log_is_a_finding_until_the_log_has_it(tmp_path: Path) -> None:
    cluster = loaded_cluster(tmp_path)
    state, p = state_of(cluster), handle_of(cluster).partition
    top = ReportTop(
        p.topic, p.revision, p.partition, state.gc_epoch, state.max_applied_epoch, state.next_offset + 5,
        state.last_reconciled_offset, handle_of(cluster).replica.offset + 1, "report",
    )  # fmt: skip
    s = suspect(kinds.REPORT_AHEAD, p, "report", -1, "", msgspec.json.encode(top).decode())
    assert len(found(cluster, s)) == 1
    put(another_process(cluster), tmp_path, 5)
    assert found(cluster, s) == []


def test_an_unreadable_report_is_a_finding_while_it_is_there(tmp_path: Path) -> None:
    cluster = loaded_cluster(tmp_path)
    report = report_of("c", handle_of(cluster).partition, state_of(cluster), 0)
    good = publish_reports(cluster.store, cluster.runtime, "test", [report])
    assert good is not None
    cluster.store.put("l0gc/watermarks/reports/test/bad.parquet", b"x")
    keys = [good, "l0gc/watermarks/reports/test/bad.parquet", "l0gc/watermarks/reports/test/expired.parquet"]
    suspects = [suspect(kinds.REPORT_UNREADABLE, None, k) for k in keys]
    ((kind, detail),) = found(cluster, *suspects)
    assert kind == kinds.REPORT_UNREADABLE
    assert "bad.parquet" in detail


def test_an_epoch_that_the_cluster_has_reached_meanwhile_is_no_finding(tmp_path: Path) -> None:
    cluster = loaded_cluster(tmp_path)
    seen = basis(cluster)
    ahead = suspect(kinds.EPOCH_AHEAD, None, "level_zero/data/…", -1, "", str(seen.cluster_epoch + 1))
    assert len(found(cluster, ahead, seen=seen)) == 1
    another_process(cluster).controller.advance()
    assert found(cluster, ahead, seen=seen) == []


def test_the_window_of_an_upload_that_began_behind_the_snapshot_is_no_finding(tmp_path: Path) -> None:
    cluster = loaded_cluster(tmp_path)
    seen, other = basis(cluster), another_process(cluster)
    epoch = other.controller.advance()
    handle_of(other).advance(epoch)
    p = handle_of(cluster).partition
    s = suspect(kinds.EPOCH_AHEAD, p, partition_log(p), -1, "", str(epoch))
    assert found(cluster, s, seen=seen) == []
