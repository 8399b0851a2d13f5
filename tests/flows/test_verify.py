"""`l0gc verify` on a real server: nothing on a bucket that is well, in use or not, and each kind of damage by its name."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from l0gc.cli.main import cli
from l0gc.cli.output import taking_results
from l0gc.embedded import sample
from l0gc.embedded.seaweedfs import SeaweedFS
from l0gc.errors import SafetyError
from l0gc.keys import PUBLISHED_WATERMARK, REPORTS, KeyLayout, level_one
from l0gc.runtime import Runtime
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.ingest.partitioner import InTurn
from l0gc.streamlog.journal.entries import Closed, L1File, PartitionEntry, Placeholder, Placeholders, Reconciled
from l0gc.streamlog.journal.handle import PartitionHandle
from l0gc.streamlog.journal.state import PartitionState
from l0gc.streamlog.topics import delete_topic
from l0gc.watermark.publication import PublishedWatermark, publish
from l0gc.watermark.reports import publish_reports, report_of
from tests.support.cli import l0gc, l0gc_process, start
from tests.support.ingest import upload
from tests.support.reconcile import reconcile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.weed, pytest.mark.spark, pytest.mark.slow, pytest.mark.usefixtures("one_spark")]

LAYOUT = KeyLayout(shards=4)
UUID = "01234567-89ab-cdef-0123-456789abcdef"
NEIGHBOUR = "events-1.b"
"""A topic whose folder S3 lists before that of events, and SeaweedFS behind it."""


@dataclass
class Kept:
    """A bucket that is well, and what is in it."""

    config: StoreConfig
    objects: dict[str, bytes]
    watermark: int

    def cluster(self) -> Cluster:
        """A process of its own."""
        return Cluster(S3Store(self.config))


class Bucket:
    """The bucket of one test, to be damaged."""

    def __init__(self, cluster: Cluster, watermark: int) -> None:
        self.cluster, self.store, self.watermark = cluster, cluster.store, watermark
        topic = cluster.controller.snapshot().topic("events")
        self.handle: PartitionHandle = cluster.partition(topic.ids()[0])
        self.state: PartitionState = self.handle.catch_up()

    @property
    def placeholder(self) -> Placeholder:
        return self.state.placeholders[0].placeholder

    @property
    def l1(self) -> L1File:
        return self.state.l1[0]

    def change(self, key: str, how: Callable[[bytes], bytes]) -> None:
        self.store.put(key, how(self.store.get(key).body))

    def append(self, entry: PartitionEntry) -> None:
        """An entry that nobody has decided on."""
        replica = self.handle.replica
        assert replica.as_of_ms is not None
        replica.log.append(
            replica.offset + 1, msgspec.json.encode(entry), time_ms=replica.time_ms, as_of_ms=replica.as_of_ms
        )

    def checkpoint(self, ahead: int = 0, **changes: object) -> None:
        body = msgspec.json.encode(msgspec.structs.replace(self.state, **changes))
        assert self.handle.replica.log.write_checkpoint(self.handle.replica.offset + ahead, body)

    def report(self, cluster_id: str | None = None, revision: int | None = None, more: int = 0) -> None:
        state = self.cluster.controller.snapshot()
        p, offset = self.handle.partition, self.handle.replica.offset
        report = report_of(cluster_id or state.cluster_id, p, self.state, offset)
        report = msgspec.structs.replace(report, gc_epoch=report.gc_epoch + more, revision=revision or p.revision)
        publish_reports(self.store, self.cluster.runtime, "forged", [report])

    def publish(self, watermark: int) -> None:
        publish_m(self.cluster, watermark)


def put(cluster: Cluster, topic: str, directory: Path, records: int) -> None:
    path = directory / "in"
    path.write_bytes(b"".join(b"record-%05d\n" % n for n in range(records)))
    partitions = cluster.controller.snapshot().topic(topic).partitions
    upload(cluster, topic, [path], partitioner=InTurn(partitions))


def publish_m(cluster: Cluster, watermark: int | None = None) -> int:
    """Publish this M, or what the logs allow."""
    state = cluster.controller.snapshot()
    if watermark is None:
        watermark = min(cluster.partition(p).catch_up().gc_epoch for p in state.partitions())
    new = PublishedWatermark(state.cluster_id, watermark, max(watermark, state.epoch), 0)
    publish(cluster.store, cluster.runtime, new)
    return watermark


def contents(store: S3Store) -> dict[str, bytes]:
    return {k: store.get(k).body for page in store.scan("") for k in page.keys}


@pytest.fixture(scope="module")
def kept(weed: SeaweedFS, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    """Topics with records in L1 and, one of them, in L0; a topic that was deleted; garbage above and below M."""
    config = StoreConfig("t-verify", "some/prefix/", weed.endpoint_url, weed.region)
    directory = tmp_path_factory.mktemp("verify")
    with pytest.MonkeyPatch.context() as patch:
        for key, value in weed.environment().items():
            patch.setenv(key, value)
        store = S3Store(config)
        store.create_bucket()
        cluster = Cluster(store)
        cluster.controller.bootstrap(shards=LAYOUT.shards)
        for name, partitions in (("events", 1), (NEIGHBOUR, 3), ("gone", 2)):
            cluster.controller.create_topic(name, partitions)
            put(cluster, name, directory, 30)
        reconcile(cluster)
        delete_topic(cluster, "gone")
        put(cluster, "events", directory, 10)
        reconcile(cluster)
        for _ in range(2):
            cluster.controller.advance()
            housekeep(cluster)
        put(cluster, "events", directory, 10)
        store.put(LAYOUT.format(0, cluster.controller.epoch(), UUID), b"never committed")
        watermark = publish_m(cluster)
        assert 0 < watermark < cluster.controller.epoch()
        yield Kept(config, contents(store), watermark)


@pytest.fixture
def bucket_of_events(kept: Kept, weed: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """The bucket, put back in order when the test ends."""
    for key, value in weed.environment().items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("L0GC_URL", kept.config.url)
    cluster = kept.cluster()
    yield Bucket(cluster, kept.watermark)
    store = S3Store(kept.config)
    now = contents(store)
    store.delete([k for k in now if k not in kept.objects])
    for key, body in kept.objects.items():
        if now.get(key) != body:
            store.put(key, body)


def verify(*args: str) -> dict[str, Any]:
    """What the command gives; that it refuses exactly when there are findings is checked here."""
    refused = False
    with taking_results() as results:
        try:
            cli.main(["verify", *args], prog_name="l0gc", standalone_mode=False)
        except SafetyError:
            refused = True
    data = results[-1].data
    assert refused == bool(data["total"])
    assert data["total"] == sum(data["counts"].values())
    assert all("\n" not in line for line in results[-1].text)
    return data


def kinds(data: dict[str, Any]) -> list[str]:
    return sorted(f["kind"] for f in data["findings"])


def test_a_bucket_that_is_well_gives_nothing_and_is_not_changed(bucket_of_events: Bucket, kept: Kept) -> None:
    data = verify("--deep")
    assert data["findings"] == []
    assert data["counts"] == {}
    assert data["checked"] == {
        "partitions": 4,
        "placeholders": 1,
        "l0_objects": 6,
        "l1_objects": 7,
        "reports": 2,
        "bytes_read": sum(len(b) for k, b in kept.objects.items() if k.startswith("level_one/") and "/gone-" not in k)
        + bucket_of_events.placeholder.length,
    }
    assert (data["waiting_objects"], data["eligible_objects"]) == (1, 4)
    assert (data["deleted_topic_objects"], data["young_l1_objects"], data["unparsable_keys"]) == (2, 0, 0)
    assert data["watermark"] == kept.watermark
    assert contents(S3Store(kept.config)) == kept.objects


Damage = Callable[[Bucket], object]


def _flip(body: bytes) -> bytes:
    """Change a byte behind the beginning of the first piece of compressed data."""
    at = body.index(b"\x28\xb5\x2f\xfd") + 12
    return body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]


def _wrong_epoch(b: Bucket) -> None:
    """A placeholder of the next epoch for an object that says its own."""
    p = msgspec.structs.replace(b.placeholder, base_offset=b.state.next_offset)
    b.append(Placeholders(b.state.max_applied_epoch + 1, [p]))
    b.cluster.controller.advance()
    b.cluster.controller.advance()


def _reconciled_twice(b: Bucket) -> None:
    b.append(Reconciled(b.l1.base_offset, b.l1.last_offset, 1, [b.l1]))


def _lose_entries(b: Bucket) -> None:
    """The end of the log, and with it the entry that names the second L1 object."""
    b.store.delete([b.handle.replica.log.entry_key(n) for n in range(3, b.handle.replica.offset + 1)])


DAMAGES: dict[str, tuple[Damage, list[str], Sequence[str]]] = {
    "an L0 object is gone": (lambda b: b.store.delete([b.placeholder.key]), ["l0_missing"], []),
    "an L0 object is cut off": (lambda b: b.change(b.placeholder.key, lambda body: body[:-9]), ["l0_short"], []),
    "an L0 object is empty": (lambda b: b.change(b.placeholder.key, lambda body: b""), ["l0_short"], ["--deep"]),
    "an extent has changed": (lambda b: b.change(b.placeholder.key, _flip), ["l0_corrupt"], ["--deep"]),
    "nobody looks into extents": (lambda b: b.change(b.placeholder.key, _flip), [], []),
    "an L1 object is gone": (lambda b: b.store.delete([b.l1.key]), ["l1_missing"], ["--deep"]),
    "an L1 object is cut off": (lambda b: b.change(b.l1.key, lambda body: body[:-9]), ["l1_size"], ["--deep"]),
    "an L1 object has grown": (lambda b: b.change(b.l1.key, lambda body: body + b"x"), ["l1_size"], []),
    "an L1 object has changed": (lambda b: b.change(b.l1.key, _flip), ["l1_corrupt"], ["--deep"]),
    "an L1 object is nobody's": (
        lambda b: b.store.put(level_one(b.handle.partition, 50, 59, UUID), b"x"),
        ["l1_orphan"],
        ["--min-age", "0s"],
    ),
    "an L1 object may be somebody's yet": (
        lambda b: b.store.put(level_one(b.handle.partition, 50, 59, UUID), b"x"),
        [],
        [],
    ),
    "M is above a live placeholder": (
        lambda b: b.publish(b.state.placeholders[0].epoch),
        ["live_below_watermark", *["watermark_ahead"] * 3],
        [],
    ),
    "M is above the cluster epoch": (
        lambda b: b.publish(99),
        ["live_below_watermark", *["watermark_ahead"] * 4],
        [],
    ),
    "M cannot be read": (lambda b: b.store.put(PUBLISHED_WATERMARK, b"{"), ["watermark_unreadable"], []),
    "a log entry cannot be read": (
        lambda b: b.store.put(b.handle.replica.log.entry_key(1), b"{"),
        ["log_unreadable"],
        ["--min-age", "0s"],
    ),
    "a log entry is gone": (
        lambda b: b.store.delete([b.handle.replica.log.entry_key(1)]),
        ["log_unreadable"],
        [],
    ),
    "the log ends early": (
        _lose_entries,
        ["live_below_watermark", "report_ahead"],
        ["--min-age", "0s"],
    ),
    "an entry overlaps L1": (_reconciled_twice, ["log_unreadable"], []),
    "L1 has a gap": (
        lambda b: b.checkpoint(l1=[b.state.l1[1]]),
        ["l1_orphan", "l1_range"],
        ["--min-age", "0s"],
    ),
    "L1 overlaps": (lambda b: b.checkpoint(l1=[b.state.l1[0], b.state.l1[0], b.state.l1[1]]), ["l1_range"], []),
    "a bound is above a placeholder": (
        lambda b: b.checkpoint(
            min_epoch_lower_bound=b.state.max_applied_epoch,
            previous_applied_epoch=b.state.max_applied_epoch,
            placeholders=[msgspec.structs.replace(u, epoch=u.epoch - 1) for u in b.state.placeholders],
        ),
        ["l0_wrong_epoch", "state_broken"],
        [],
    ),
    "a checkpoint is ahead of its log": (lambda b: b.checkpoint(ahead=3), ["checkpoint_ahead"], []),
    "a placeholder is of another epoch": (_wrong_epoch, ["l0_wrong_epoch"], []),
    "a topic's partition has ended": (lambda b: b.append(Closed()), ["state_broken"], []),
    "a report says more than its log": (lambda b: b.report(more=5), ["report_ahead"], []),
    "a report is another cluster's": (lambda b: b.report(cluster_id="another"), ["report_foreign"], []),
    "a report is of a topic that never was": (lambda b: b.report(revision=5), ["report_foreign"], []),
    "a report cannot be read": (
        lambda b: b.store.put(f"{REPORTS}x/y.parquet", b"x"),
        ["report_unreadable"],
        [],
    ),
    "an L0 key is above the cluster epoch": (
        lambda b: b.store.put(LAYOUT.format(1, 99, UUID), b"x"),
        ["epoch_ahead"],
        [],
    ),
}


IN_SHORT = {
    "an L0 object is gone",
    "an extent has changed",
    "an L1 object is nobody's",
    "M is above a live placeholder",
    "a log entry cannot be read",
    "the log ends early",
    "a report says more than its log",
}
"""What `make test` tries; `make thorough` tries all of them."""


@pytest.mark.parametrize("name", [n if n in IN_SHORT else pytest.param(n, marks=pytest.mark.thorough) for n in DAMAGES])
def test_each_kind_of_damage_is_found_and_nothing_else(bucket_of_events: Bucket, name: str) -> None:
    damage, expected, args = DAMAGES[name]
    damage(bucket_of_events)
    data = verify(*args)
    assert kinds(data) == expected, data["findings"]
    for f in data["findings"]:
        assert f["detail"]
        assert f["next_step"]
        if not f["kind"].startswith(("watermark", "epoch", "report")):
            assert (f["topic"], f["partition"]) == ("events", 0)


def test_the_command_ends_with_4_and_a_line_for_each_finding(bucket_of_events: Bucket) -> None:
    b = bucket_of_events
    b.store.delete([b.placeholder.key, b.l1.key])
    ended = l0gc_process("verify", "--conf", "spark.sql.shuffle.partitions=2")
    assert ended.code == 4
    assert ended.stderr == "l0gc: 2 findings; nothing was changed\n"
    lines = ended.stdout.decode().splitlines()
    assert lines[0].startswith(f"l0_missing events/0 at record {b.placeholder.base_offset}: {b.placeholder.key}: ")
    assert lines[1].startswith(f"l1_missing events/0 at record 0: {b.l1.key}: the object is missing; restore it ")
    assert lines[2].startswith("2 findings: 4 partitions, ")
    assert len(lines) == 5


def test_every_finding_is_counted_and_some_are_listed(
    one_spark: SparkSession, bucket_of_events: Bucket, kept: Kept
) -> None:
    from l0gc.spark.verify_job import run

    b = bucket_of_events
    for n in range(30):
        b.store.put(level_one(b.handle.partition, 50 + n, 59 + n, UUID), b"x")
    result = run(one_spark, b.cluster, kept.config, min_age_ms=0, max_findings=7)
    assert (result.total, result.counts) == (30, {"l1_orphan": 30})
    assert [f.key for f in result.findings] == [level_one(b.handle.partition, 50 + n, 59 + n, UUID) for n in range(7)]


@pytest.mark.timeout(600)
def test_a_bucket_in_use_gives_nothing(store: S3Store, tmp_path: Path) -> None:
    """Uploaders, a reconciler, housekeeping, M, sweeps, and topics that come and go, while verify looks."""
    l0gc("init", "--create-bucket", "--shards", "4")
    l0gc("topic", "create", "flights", "--partitions", "3")
    (path,) = sample.write_files(tmp_path, 1, 40_000)
    stop, failures, swept = threading.Event(), list[BaseException](), [0, 0]
    looks: list[dict[str, Any]] = []
    command = ["upload", "flights", "-", "--key-field", "carrier", "--batch-bytes", "16KiB"]
    lines = path.read_bytes().splitlines(keepends=True)
    uploads = [start(command, {"L0GC_EPOCH_CACHE": "0.2"}) for _ in range(2)]

    def feed(number: int) -> None:
        stdin = uploads[number].stdin
        assert stdin is not None
        for at in range(0, len(lines), 200):
            if stop.wait(0.1):
                break
            stdin.writelines(lines[at : at + 200])
            stdin.flush()
        stdin.close()

    def churn() -> None:
        """What drops references and objects, as fast as it goes."""
        n = 0
        while not stop.is_set():
            n += 1
            cluster = Cluster(S3Store(store.config), Runtime())
            cluster.controller.advance()
            housekeep(cluster)
            reconcile(cluster, "flights")
            housekeep(cluster)
            publish_m(cluster)
            ended = l0gc_process("sweep", "--json")
            assert ended.code == 0, ended.stderr
            swept[0] += json.loads(ended.stdout)["deleted"]
            swept[1] += 1
            if n % 2:
                cluster.controller.create_topic(f"short-{n}", 2)
                put(cluster, f"short-{n}", tmp_path, 20)
                reconcile(cluster, f"short-{n}")
                put(cluster, f"short-{n}", tmp_path, 20)
                delete_topic(cluster, f"short-{n}")

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def body() -> None:
            try:
                work()
            except BaseException as e:  # noqa: BLE001 - told by the test's own thread
                failures.append(e)

        return body

    threads = [threading.Thread(target=guarded(w)) for w in (lambda: feed(0), lambda: feed(1), churn)]
    try:
        for t in threads:
            t.start()
        deadline = time.monotonic() + 120
        while not looks or not swept[0] or swept[1] < 2:  # a slow machine may look before anything could be swept
            assert time.monotonic() < deadline, (looks, swept, failures)
            looks.append(verify("--deep"))
            assert looks[-1]["findings"] == []
            assert looks[-1]["checked"]["partitions"] >= 3
    finally:
        stop.set()
        for t in threads:
            t.join(timeout=120)
        ends = [u.wait(timeout=60) for u in uploads]
        for u in uploads:
            u.kill()
    assert failures == []
    assert ends == [0, 0], [u.stderr.read().decode() for u in uploads if u.stderr]
    assert verify("--deep")["findings"] == []
