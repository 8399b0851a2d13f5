"""Every way in which M or the sweep can be stuck: status names the cause, and its remedy, run to the letter, ends it."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import l0gc as library
from l0gc.cli.main import cli
from l0gc.cli.output import taking_results
from l0gc.errors import (
    L0gcError,
    PartialFailureError,
    PausedError,
    SafetyError,
)
from l0gc.keys import CONTROLLER_LOG, PUBLISHED_WATERMARK, KeyLayout, journal_log
from l0gc.runtime import Runtime, SystemClock
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.entries import Tick
from l0gc.watermark.publication import PublishedWatermark, encode_published
from tests.support.cli import founded, l0gc, start

pytestmark = [pytest.mark.weed, pytest.mark.spark, pytest.mark.thorough, pytest.mark.usefixtures("one_spark")]

LAYOUT = KeyLayout(shards=4)
Status = dict[str, Any]


@pytest.fixture
def cluster(store: S3Store, tmp_path: Path) -> S3Store:
    """Create the topic events with two partitions, and garbage at epochs that M has passed; nothing is stuck."""
    founded()
    upload(tmp_path)
    with library.open(store.config.url) as opened:
        opened.reconcile()
    ticks(2)
    compute()
    assert status_now()["causes"] == []
    return store


def upload(tmp_path: Path) -> None:
    path = tmp_path / "in.ndjson"
    path.write_bytes(b"".join(b"%d\n" % n for n in range(100)))
    l0gc("upload", "events", str(path))


def ticks(count: int) -> None:
    """Tick this many times, each followed by housekeeping."""
    for _ in range(count):
        assert l0gc("housekeep", "--epoch-interval", "0")["ticked"]


def compute() -> Status:
    """Compute M without a Spark job; a remedy's own commands are run to the letter."""
    return l0gc("compute-watermark", "--engine", "local")


def refused(kind: type[L0gcError], *command: str) -> None:
    with pytest.raises(kind):
        l0gc(*command)


def shown() -> tuple[Status, str]:
    """Return what status prints, in both forms."""
    with taking_results() as results:
        cli.main(["status"], prog_name="l0gc", standalone_mode=False)
    # Folded lines are joined, so that assertions do not depend on where they were folded.
    return results[-1].data, " ".join(" ".join(results[-1].text).split())


def status_now() -> Status:
    return shown()[0]


def named(cause: str) -> tuple[str, str]:
    """Assert that status names the cause first, in both forms, and the next command; return its detail and remedy.

    The next command is a sweep if garbage can already be deleted and the cause only holds M.
    """
    data, text = shown()
    first = data["causes"][0]
    assert first["cause"] == cause, data["causes"]
    assert f"why {cause}: {' '.join(first['detail'].split())}" in text
    garbage = data["garbage"] is not None and data["garbage"]["left_objects"] > 0
    only_holds_m = cause in {"housekeep_overdue", "unreconciled", "idle_window", "pinned", "not_computed"}
    assert data["next"] == ("l0gc sweep" if garbage and only_holds_m else first["remedy"])
    assert first["remedy"] in text
    assert text.endswith(f"next {data['next']}")
    return first["detail"], first["remedy"]


def follow(remedy: str) -> None:
    """Run the commands of a remedy and confirm their questions; the test does any manual steps before it calls this."""
    commands = re.split("[,;] then ", remedy)[-1].split(" && ")
    assert all(command.startswith("l0gc ") for command in commands)
    for command in commands:
        l0gc(*command.split()[1:], *(["--yes"] if "--accept-lost" in command else []))


def moves(cause: str, by_hand: Callable[[str], None] = lambda detail: None) -> None:
    """Check that status names the cause, and that its remedy moves M and ends it. A window that is far behind may need
    it twice.
    """
    after, found = status_now(), {cause}
    by_hand(named(cause)[0])
    for _ in range(2):
        if cause in found:
            before = after["watermark"]
            follow(next(c["remedy"] for c in after["causes"] if c["cause"] == cause))
            after = status_now()
            found = {c["cause"] for c in after["causes"]}
            assert after["watermark"] > before
    assert cause not in found


def level_zero(store: S3Store) -> list[str]:
    return sorted(k for page in store.scan(LAYOUT.data_prefix) for k in page.keys)


def test_an_idle_partition(cluster: S3Store) -> None:
    l0gc("topic", "create", "idle", "--partitions", "1")
    for _ in range(4):
        l0gc("epoch", "advance")
    compute()
    held = status_now()["held_back_by"]
    assert {h["kind"] for h in held} == {"idle"}
    moves("idle_window")


def test_reconcile_does_not_run(cluster: S3Store, tmp_path: Path) -> None:
    upload(tmp_path)
    ticks(2)
    compute()
    (first, *_) = status_now()["held_back_by"]
    assert (first["kind"], first["unreconciled_records"]) == ("unreconciled", 50)
    assert status_now()["as_of_ms"] >= first["oldest_ms"] > 0
    moves("unreconciled")
    assert l0gc("sweep")["deleted"] > 0


@pytest.mark.parametrize("missing", [True, False], ids=["missing", "damaged"])
def test_reconcile_fails_on_an_object(cluster: S3Store, tmp_path: Path, *, missing: bool) -> None:
    l0gc("sweep")
    upload(tmp_path)
    (key,) = level_zero(cluster)
    body = cluster.get(key).body
    cluster.delete([key])
    if not missing:
        at = len(body) // 2
        cluster.put(key, body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :])
    refused(PartialFailureError, "reconcile")
    ticks(2)
    compute()

    def restore(detail: str) -> None:
        assert f"reconcile fails on object {key}: it" in detail
        assert "reconcile failed" in shown()[1]
        cluster.put(key, body)

    moves("damaged_object", restore)
    assert status_now()["attempts"][1]["ok"]


def test_reconcile_fails_for_another_reason(cluster: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upload(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("l0gc.streamlog.level_one.reconcile.reconcile", fails_with("no space left on this machine"))
        refused(PartialFailureError, "reconcile")
    ticks(2)
    compute()
    assert "no space left on this machine" in named("reconcile_failed")[0]
    moves("reconcile_failed")


def fails_with(text: str) -> Callable[..., None]:
    def fail(cluster: ClusterHandles, *args: object, **kwargs: object) -> None:
        cluster.identity()  # a run fails only after it has identified the cluster
        raise PartialFailureError(text)

    return fail


def test_the_stores_clock_went_back(cluster: S3Store) -> None:
    """The last entry is dated in the future, so no tick is due. A writer whose store was two hours ahead leaves such an
    entry.
    """
    controller = ClusterHandles(cluster, Runtime()).controller
    now_ms, offset = cluster.now_ms(), controller.snapshot().epoch + 1
    tick = msgspec.msgpack.encode(Tick())
    controller.replica.log.append(offset, tick, time_ms=now_ms + 2 * 3_600_000, as_of_ms=now_ms)
    assert not l0gc("housekeep", "--epoch-interval", "1s")["ticked"]
    before, (detail, remedy) = status_now()["watermark"], named("store_clock")
    assert "ahead of the store's clock, which went back" in detail
    follow(remedy)
    assert status_now()["watermark"] > before  # until the clock is right, each tick has to be requested


def test_a_wrong_local_clock_holds_nothing_and_is_reported(cluster: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = SystemClock.now_ms
    monkeypatch.setattr(SystemClock, "now_ms", lambda self: now_ms(self) - 2 * 3_600_000)
    before = status_now()["watermark"]
    for _ in range(2):
        assert l0gc("housekeep", "--epoch-interval", "0")["ticked"]
    assert compute()["watermark"] == before + 2
    data, text = shown()
    (warning,) = data["warnings"]
    assert warning["cause"] == "local_clock"
    # The numbers agree to the second only if `status` and the store both answer within a second.
    skew = re.search(r"warning local_clock: this machine's clock is ([\d,]+) s behind the store's", text)
    assert skew is not None
    assert 7_199 <= int(skew[1].replace(",", "")) <= 7_260
    assert "-> set the clock (NTP)" in text
    assert data["causes"] == []


def test_sweeps_are_paused(cluster: S3Store) -> None:
    l0gc("pause", "--why", "disk audit", "--by", "ann")
    refused(PausedError, "sweep")
    detail, remedy = named("paused")
    assert "disk audit (ann, since" in detail
    assert status_now()["paused"]["by"] == "ann"
    assert level_zero(cluster) != []
    follow(remedy)
    assert status_now()["next"] == "l0gc sweep"
    follow(status_now()["next"])
    assert level_zero(cluster) == []
    after = status_now()
    assert after["causes"] == []
    assert after["garbage"]["deleted_objects"] == after["garbage"]["eligible_objects"] > 0
    assert after["garbage"]["dollars_month"] == 0


@pytest.mark.parametrize("cause", ["foreign_watermark", "damaged_watermark"])
def test_what_is_published_is_another_clusters_or_damaged(cluster: S3Store, cause: str) -> None:
    body = encode_published(PublishedWatermark("somebody-else", 3, 3, 0))
    cluster.put(PUBLISHED_WATERMARK, body if cause == "foreign_watermark" else body[:-9])
    refused(SafetyError, "sweep")
    moves(cause)


def remove(store: S3Store, key: str) -> None:
    assert store.delete([key]) == []


def test_a_journal_is_damaged(cluster: S3Store) -> None:
    objects = [k for k in cluster.list(journal_log(0)).modified_ms if k[-20:].isdigit()]
    key = max(objects, key=lambda k: (k[-20:], "/checkpoint/" in k))  # the last entry, or the checkpoint that covers it
    body = cluster.get(key).body
    cluster.put(key, body[:-1] + bytes([body[-1] ^ 1]))
    l0gc("epoch", "advance")
    refused(PartialFailureError, "housekeep")

    def restore(detail: str) -> None:
        assert key in detail
        assert "unreadable" in {h["kind"] for h in status_now()["held_back_by"]}
        cluster.put(key, body)

    moves("damaged_journal", restore)


def test_a_key_claims_an_epoch_that_never_was(cluster: S3Store) -> None:
    key = LAYOUT.format(2, 10**12, Runtime().new_id())
    cluster.put(key, b"foreign")
    ticks(2)
    refused(SafetyError, "compute-watermark")

    def take_away(detail: str) -> None:
        assert key in detail
        remove(cluster, key)

    moves("poisoned_key", take_away)


def test_the_controller_is_restored_from_a_backup(cluster: S3Store) -> None:
    backup = set(cluster.list(CONTROLLER_LOG).modified_ms)
    ticks(2)
    compute()
    ticks(2)
    newer = {k: cluster.get(k).body for k in cluster.list(CONTROLLER_LOG).modified_ms if k not in backup}
    cluster.delete(list(newer))
    refused(SafetyError, "compute-watermark")
    assert "the controller log went back" in named("old_controller")[0]

    def restore(detail: str) -> None:
        for key, body in newer.items():
            cluster.put(key, body)

    moves("old_controller", restore)


def test_watching_prints_one_object_each_time_and_ends_with_ctrl_c(store: S3Store) -> None:
    l0gc("init", "--create-bucket", "--shards", "4")
    process = start(["status", "--json", "--watch", "1s"])
    assert process.stdout is not None
    statuses = [msgspec.json.decode(process.stdout.readline()) for _ in range(3)]
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (130, b"")
    assert statuses[0]["as_of_ms"] <= statuses[2]["as_of_ms"]
    assert {s["watermark"] for s in statuses} == {-1}
