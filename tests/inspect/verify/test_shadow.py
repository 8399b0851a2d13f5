"""verify --shadow: it finds each object of a shadow run that a partition or reader still needed, and no other."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from l0gc.collect.record import RunSummary, folder, read_summary, summary_key, write_summary
from l0gc.collect.sweep import SweepResult, SweepRun
from l0gc.errors import NotFoundError, UsageError
from l0gc.inspect.verify.findings import VerifyResult
from l0gc.inspect.verify.shadow import AccessLogs, verify_shadow
from l0gc.keys import journal_log
from l0gc.operations import Sweep
from l0gc.storage.entry import Entry, encode_entry
from l0gc.storage.objectstore import LocalFolder
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.pins import create_pin
from tests.support.memory_store import another_process, copy_of, put_back, store_of, topic_in_memory
from tests.support.verify import compute_and_publish, handle_of, lift, put
from tests.test_api import over

GET = "REST.GET.OBJECT"


def lifted() -> ClusterHandles:
    """Create a cluster with records in L1, whose three L0 objects are garbage, and records that wait in L0."""
    cluster = topic_in_memory(2)
    for _ in range(3):
        put(cluster, {0: 3, 1: 2})
    lift(cluster)
    housekeep(cluster, barrier=True)
    put(cluster, {0: 1})
    compute_and_publish(cluster)
    store_of(cluster).clock.sleep(60)
    return cluster


def shadow(cluster: ClusterHandles) -> SweepResult:
    result = SweepRun(cluster, Sweep(shadow=True)).run(1)
    store_of(cluster).clock.sleep(60)
    return result


def kinds(result: VerifyResult) -> list[str]:
    return [f.kind for f in result.findings]


def summary(cluster: ClusterHandles, run: SweepResult, **changes: object) -> None:
    """Change fields of the run's summary."""
    there: RunSummary = read_summary(cluster.store, run.run_id)
    write_summary(cluster.store, msgspec.structs.replace(there, **changes))


def test_nothing_is_found_where_nothing_was_needed() -> None:
    cluster = lifted()
    run = shadow(cluster)
    put(cluster, {0: 1})
    result = verify_shadow(another_process(cluster))
    assert (run.deleted, result.total, result.problem) == (3, 0, None)
    assert result.shadow is not None
    assert (result.shadow.runs, result.shadow.objects, result.shadow.bytes) == (1, 3, run.bytes)
    assert (result.shadow.entries, result.shadow.entries_gone, result.shadow.log_lines) == (1, 0, None)
    said = f"3 objects ({run.bytes} B) would have gone in 60 s, by 1 shadow run; none was needed"
    assert result.shadow.sentence == said


def test_without_a_shadow_run_there_is_nothing_to_verify() -> None:
    with pytest.raises(NotFoundError, match="no shadow run is on record"):
        verify_shadow(lifted())


def test_an_object_that_a_partition_still_needs_is_found() -> None:
    """A sweep with an M that is too high would have lost it; shadow runs exist to find this mistake."""
    cluster = lifted()
    needed = put(cluster, {0: 4, 1: 4})
    before = store_of(cluster).objects
    plan_m = cluster.controller.snapshot().epoch
    run = wrongly(cluster, plan_m)
    result = verify_shadow(cluster)
    found = [f for f in result.findings if f.kind == "shadow_needed" and f.key == needed]
    assert [(f.topic, f.partition, f.offset, f.severity) for f in found] == [("events", 0, 10, "danger")]
    assert run.run_id in found[0].detail
    assert found[0].next_step.startswith("stop: run l0gc pause --why TEXT until")
    assert result.problem is not None
    assert result.problem.exit_code == 4
    assert result.shadow is not None
    assert result.shadow.sentence.endswith("; stop: 2 findings of l0gc verify --shadow")
    assert store_of(cluster).objects == before


def wrongly(cluster: ClusterHandles, bound: int) -> SweepResult:
    """Make a shadow run with an M that is too high, as a defect in l0gc could publish it."""
    from l0gc.collect import sweep
    from l0gc.collect.plan import plan_sweep

    def too_high(*args: object) -> object:
        return msgspec.structs.replace(plan_sweep(*args), bound=bound)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "plan_sweep", too_high)
        return shadow(cluster)


def test_an_object_named_since_the_shadow_run_is_found() -> None:
    cluster = lifted()
    run = wrongly(cluster, cluster.controller.snapshot().epoch)
    needed = put(cluster, {0: 4})
    rerun = wrongly(cluster, cluster.controller.snapshot().epoch)  # the first run has it on record
    # The rerun then looks as old as the first run.
    summary(cluster, rerun, ends=read_summary(cluster.store, run.run_id).ends)
    lift(cluster)
    result = verify_shadow(cluster)
    assert [(f.kind, f.topic, f.journal) for f in result.findings if f.key == needed] == [
        ("shadow_needed", "events", 0)
    ]
    assert "names it, and run" in result.findings[0].detail


def test_entries_before_the_run_named_its_objects_and_are_no_findings() -> None:
    cluster = lifted()
    shadow(cluster)
    for _ in range(3):
        put(cluster, {0: 2})
        lift(cluster)
        housekeep(cluster, barrier=True)
        compute_and_publish(cluster)
        store_of(cluster).clock.sleep(60)
        shadow(cluster)
    result = verify_shadow(cluster)
    assert (result.total, result.shadow and (result.shadow.runs, result.shadow.objects)) == (0, (4, 7))


def test_a_run_that_was_killed_is_verified_by_what_partitions_need() -> None:
    cluster = lifted()
    run = shadow(cluster)
    store_of(cluster).objects.pop(summary_key(run.run_id))
    assert verify_shadow(cluster).total == 0


def test_entries_that_were_truncated_since_are_counted() -> None:
    cluster = lifted()
    run = shadow(cluster)
    put(cluster, {0: 2})
    ends = read_summary(cluster.store, run.run_id).ends
    first = ends["journal 0"][1].offset + 1
    keys = [k for k in store_of(cluster).objects if k.startswith(f"{journal_log(0)}log/")]
    handle_of(cluster).replica.write_checkpoint()
    for key in keys:
        if int(key.rpartition("/")[2]) == first:
            store_of(cluster).objects.pop(key)
    result = verify_shadow(cluster)
    assert result.shadow is not None
    assert (result.shadow.entries, result.shadow.entries_gone) == (0, 1)


def test_an_entry_created_again_below_the_boundary_is_not_a_finding() -> None:
    cluster = lifted()
    log = handle_of(cluster).replica.log
    named = log.get(min(log.list_folder().entries)).payload  # it names an object that is now garbage
    run = shadow(cluster)
    put(cluster, {0: 2})
    first = read_summary(cluster.store, run.run_id).ends["journal 0"][1].offset + 1
    lift(cluster)
    put(cluster, {0: 2})
    handle_of(cluster).replica.write_checkpoint()
    store_of(cluster).clock.sleep(3600)
    assert handle_of(another_process(cluster)).replica.truncate() > 0
    key = log.entry_key(first)
    assert key not in store_of(cluster).objects
    cluster.store.put(key, encode_entry(key, Entry("stale", 0, named)))
    assert verify_shadow(another_process(cluster)).total == 0


def test_a_journal_that_was_set_back_proves_nothing() -> None:
    cluster = lifted()
    copy = copy_of(store_of(cluster))
    put(cluster, {0: 2})
    compute_and_publish(cluster)
    shadow(cluster)
    put_back(store_of(cluster), journal_log(0), copy)
    assert "journal_set_back" in kinds(verify_shadow(another_process(cluster)))


def test_a_pin_that_a_run_would_have_passed_is_found() -> None:
    cluster = lifted()
    pin = create_pin(cluster, "backup", 86_400_000)
    wrongly(cluster, pin.watermark + 1)
    result = verify_shadow(cluster)
    found = next(f.detail for f in result.findings if "backup" in f.detail)
    assert found.startswith(f"pin 'backup' holds M at {pin.watermark}, and run shadow/")


# -- access logs ---------------------------------------------------------------------------------------------------------


def line(key: str, ms: int, *, operation: str = GET, status: str = "200", bucket: str = "b") -> str:
    """Return a line in the format of Amazon's documentation."""
    when = datetime.fromtimestamp(ms / 1000, UTC)
    return (
        f"79a59df900b949e55d96a1e698fbacedfd6e09d98eacf8f8d5218e7cd47ef2be {bucket} [{when:%d/%b/%Y:%H:%M:%S} +0000] "
        f"192.0.2.3 arn:aws:sts::123456789012:assumed-role/reader/ann 3E57427F3EXAMPLE {operation} {key} "
        f'"GET /{bucket}/{key}?versioning HTTP/1.1" {status} - 113 - 7 - "-" "S3Console/0.4" - s9lzHYrFp76ZVxRcpX9+5cjAnEH2R'
        "OuNkd2BHfIa6UkFVdtjf5mKR3/eTPFvsiP/XV/VLi31234= SigV4 ECDHE-RSA AuthHeader b.s3.example TLSv1.2 -\n"
    )


@pytest.fixture
def access_logs(tmp_path: Path) -> Callable[..., AccessLogs]:
    def write(*lines: str, prefix: str = "") -> AccessLogs:
        (tmp_path / "2026-01-31-23-59-59-0123456789ABCDEF").write_text("".join(lines))
        return AccessLogs(LocalFolder(tmp_path), str(tmp_path), "b", prefix)

    return write


def keys_on_record(cluster: ClusterHandles, run: SweepResult) -> list[str]:
    from l0gc.collect.history import shadowed

    return sorted(r.key for r in shadowed(cluster.store, run.run_id, cluster.parallel))


def test_a_read_since_the_run_is_found_and_one_before_is_not(access_logs: Callable[..., AccessLogs]) -> None:
    cluster = lifted()
    run = shadow(cluster)
    first, second, third = keys_on_record(cluster, run)
    began = run.plan.started_ms
    lines = [
        line(first, began - 5000),
        line(second, began),  # the access log has whole seconds
        line(third, began + 5000, status="404"),
        line(third, began + 5000, operation="REST.HEAD.OBJECT"),
        line(third, began + 5000, bucket="another"),
        line("-", began + 9000, operation="REST.GET.BUCKET"),
        line(first, began + 7000, operation="REST.COPY.OBJECT_GET"),
    ]
    result = verify_shadow(cluster, access_logs(*lines))
    assert [(f.kind, f.key) for f in result.findings] == [("shadow_read", first), ("shadow_read", second)]
    assert "assumed-role/reader/ann read it at" in result.findings[1].detail
    assert result.shadow is not None
    assert (result.shadow.log_lines, result.shadow.logs_from_ms // 1000) == (7, (began - 5000) // 1000)


def test_keys_of_a_log_are_below_the_clusters_prefix_and_encoded(access_logs: Callable[..., AccessLogs]) -> None:
    cluster = lifted()
    run = shadow(cluster)
    key = keys_on_record(cluster, run)[0].replace("-", "%252D")
    ms = run.plan.started_ms + 5000
    logs = access_logs(line(f"a/b/{key}", ms), line(f"other/{key}", ms), prefix="a/b/")
    assert kinds(verify_shadow(cluster, logs)) == ["shadow_read"]


def test_logs_that_cannot_tell_are_refused(access_logs: Callable[..., AccessLogs]) -> None:
    cluster = lifted()
    shadow(cluster)
    with pytest.raises(UsageError, match="has no line of an S3 server access log"):
        verify_shadow(cluster, access_logs("no log\n"))
    for key in list(copy_of(store_of(cluster), "l0gc/runs/")):
        del store_of(cluster).objects[key]
    store_of(cluster).clock.ms = 4_000_000_000_000
    shadow(cluster)  # the access logs are older than this run
    with pytest.raises(UsageError, match="has no access log that is newer than the first shadow run"):
        verify_shadow(cluster, access_logs("no log\n"))


def test_the_option_needs_a_shadow(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = lifted()
    run = shadow(cluster)
    with over(cluster, monkeypatch) as opened:
        with pytest.raises(UsageError, match="--access-logs needs --shadow"):
            opened.verify(access_logs="logs")
        proof = opened.verify(shadow=True).shadow
        assert proof is not None
        assert proof.objects == run.deleted
    assert folder(run.run_id) == f"l0gc/runs/{run.run_id}/"
