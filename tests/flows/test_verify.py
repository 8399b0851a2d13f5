"""`l0gc verify` on a real server: it finds nothing in a healthy bucket, in use or not, and each kind of damage by its
name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

import msgspec
import numpy as np
import pytest

from l0gc.api.engine import Engine
from l0gc.cli.main import cli
from l0gc.cli.output import Output, taking_results
from l0gc.cli.status import verified
from l0gc.embedded.seaweedfs import SeaweedFS
from l0gc.errors import SafetyError, StaleClusterEpochError
from l0gc.inspect.verify.findings import Kind, ReadCounts, Suspect, VerifyResult, finding_of
from l0gc.keys import PUBLISHED_WATERMARK, KeyLayout, PartitionId, journal_log, level_one
from l0gc.runtime import Runtime
from l0gc.settings import Settings
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.journal import rows
from l0gc.streamlog.journal.entries import RECONCILE, Closed, ClosedTopic, JournalEntry, ObjectExtents, Objects
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.row_list import RowList
from l0gc.streamlog.journal.rows import NUMBER
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.journal.topic import TopicState
from l0gc.streamlog.topics import delete_topic
from l0gc.watermark.publication import PublishedWatermark, publish
from tests.support.journal import edit
from tests.support.verify import events_of, handle_of, l1_of, lift, object_of, put, topic_of

if TYPE_CHECKING:
    pass

pytestmark = [pytest.mark.weed, pytest.mark.slow]

LAYOUT = KeyLayout(shards=4)
JOURNALS = 4
UUID = "01234567-89ab-cdef-0123-456789abcdef"
NEIGHBOUR = "events-1.b"
"""A topic whose folder S3 lists before that of events, and SeaweedFS after it; it is in two journals."""
WITHOUT = 3
"""A journal without a topic."""


@dataclass
class Kept:
    """A healthy bucket, and its contents."""

    config: StoreConfig
    objects: dict[str, bytes]
    watermark: int

    def cluster(self) -> ClusterHandles:
        """Return the handles of a new process."""
        return ClusterHandles(S3Store(self.config))


class Bucket:
    """The bucket of one test, which damages it."""

    def __init__(self, cluster: ClusterHandles, watermark: int) -> None:
        self.cluster, self.store, self.watermark = cluster, cluster.store, watermark
        self.handle: JournalHandle = handle_of(cluster)
        self.events: TopicState = events_of(cluster)
        self.l0 = object_of(cluster)
        self.l1_key, self.l1 = l1_of(cluster)
        self.shared = object_of(cluster, name=NEIGHBOUR).key
        self.p = topic_of(cluster).id(0)

    def change(self, key: str, how: Callable[[bytes], bytes]) -> None:
        self.store.put(key, how(self.store.get(key).body))

    def append(self, entry: JournalEntry, journal: int | None = None) -> None:
        """Append an entry without the journal's decision."""
        replica = (self.handle if journal is None else self.cluster.journal(journal)).replica
        replica.catch_up()
        assert replica.as_of_ms is not None
        body = msgspec.msgpack.encode(entry)
        replica.log.append(replica.offset + 1, body, time_ms=replica.time_ms, as_of_ms=replica.as_of_ms)

    def land(self, topic: tuple[int, str], journal: int) -> None:
        """Land the live object once more, as if it had records of that topic for that journal."""
        o = self.l0
        blocks = o.blocks[:1].copy()
        blocks["extents"] = 1
        partitions, records = (rows.pack(np.array([n], NUMBER)) for n in (0, 10))
        extents = ObjectExtents(o.key, o.epoch, *topic, o.start, rows.pack(blocks), partitions, records)
        self.append(Objects([extents]), journal)

    def checkpoint(self, change: Callable[[JournalState], object] = lambda state: None, ahead: int = 0) -> None:
        replica = self.handle.replica
        state = replica._machine.decode(replica._machine.encode(replica.state), "a copy")
        change(state)
        replica.log.write_checkpoint(replica.offset + ahead, replica._machine.encode(state), replica.time_ms)

    def of_events(self, change: Callable[[TopicState], object]) -> None:
        """Write a checkpoint with another state of events."""
        self.checkpoint(lambda state: change(state.topics[self.p.revision]))

    def publish(self, watermark: int, epoch: int = 0) -> None:
        publish_m(self.cluster, watermark, epoch)


def publish_m(cluster: ClusterHandles, watermark: int | None = None, epoch: int = 0) -> int:
    """Publish this M, or the one that the journals allow."""
    state = cluster.controller.snapshot()
    if watermark is None:
        watermark = state.epoch
        for topic in state.topics.values():
            for partition_range in topic.partition_ranges():
                journal_state = cluster.journal(partition_range.journal).catch_up()
                (low,) = journal_state.lowest(topic.revision, partition_range.first, partition_range.count, 1)
                watermark = min(watermark, low.gc_epoch)
    new = PublishedWatermark(state.cluster_id, watermark, max(watermark, state.epoch, epoch), 0)
    publish(cluster.store, cluster.runtime, new)
    return watermark


def tick(cluster: ClusterHandles) -> None:
    """Begin a new epoch in every journal."""
    epoch = cluster.controller.advance()
    for journal in cluster.controller.snapshot().journals_in_use():
        cluster.journal(journal).advance(epoch)


def sweep(store: S3Store, watermark: int) -> int:
    keys = [k for page in store.scan(LAYOUT.data_prefix) for k in page.keys]
    gone = [k for k in keys if (parsed := LAYOUT.parse(k)) is not None and parsed.epoch <= watermark]
    for at in range(0, len(gone), 1000):
        assert store.delete(gone[at : at + 1000]) == []
    return len(gone)


def contents(store: S3Store) -> dict[str, bytes]:
    return {k: store.get(k).body for page in store.scan("") for k in page.keys}


@pytest.fixture(scope="module")
def kept(weed: SeaweedFS) -> Iterator[Kept]:
    """Create topics with records in L1 and in L0, a partition with many L1 objects, a deleted topic, garbage above and
    below M.
    """
    config = StoreConfig("t-verify", "some/prefix/", weed.endpoint_url, weed.region)
    with pytest.MonkeyPatch.context() as patch:
        for key, value in weed.environment().items():
            patch.setenv(key, value)
        store = S3Store(config)
        store.create_bucket()
        cluster = ClusterHandles(store)
        cluster.controller.bootstrap(shards=LAYOUT.shards, journals=JOURNALS)
        records = {"events": {0: 66, 1: 5}, NEIGHBOUR: {0: 3, 2: 4, 3: 5}, "gone": {0: 9}}
        for name, journals in (("events", 1), (NEIGHBOUR, 2), ("gone", 1)):
            cluster.controller.create_topic(name, {"gone": 1, "events": 2}.get(name, 4), journals)
            put(cluster, records[name], name)
            lift(cluster, name, per_file=1 if name == "events" else 100)
        assert cluster.controller.snapshot().topic("gone").journals == (WITHOUT,)
        delete_topic(cluster, "gone")
        put(cluster, {0: 10}, "events")
        lift(cluster)
        for _ in range(2):
            tick(cluster)
        put(cluster, {0: 10, 1: 3}, "events")
        put(cluster, {1: 3, 3: 2}, NEIGHBOUR)
        store.put(LAYOUT.format(0, cluster.controller.epoch(), UUID), b"never committed")
        watermark = publish_m(cluster)
        assert 0 < watermark < cluster.controller.epoch()
        yield Kept(config, contents(store), watermark)


@pytest.fixture
def bucket_of_events(kept: Kept, weed: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """Yield the bucket, and restore it when the test ends."""
    for key, value in weed.environment().items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("L0GC_URL", kept.config.url)
    yield Bucket(kept.cluster(), kept.watermark)
    store = S3Store(kept.config)
    now = contents(store)
    store.delete([k for k in now if k not in kept.objects])
    for key, body in kept.objects.items():
        if now.get(key) != body:
            store.put(key, body)


def verify(*args: str) -> dict[str, Any]:
    """Return the JSON of the command, and check that it fails exactly when there are findings."""
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
    """Verify runs without Spark, since the bucket is small."""
    with mock.patch.object(Engine, "session", side_effect=AssertionError):
        nothing_is_wrong(bucket_of_events, kept)


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.usefixtures("one_spark")
def test_a_bucket_that_is_well_gives_nothing_on_spark_either(bucket_of_events: Bucket, kept: Kept) -> None:
    nothing_is_wrong(bucket_of_events, kept, "--engine", "spark")


def nothing_is_wrong(bucket_of_events: Bucket, kept: Kept, *args: str) -> None:
    data = verify("--deep")
    assert data["findings"] == []
    assert data["counts"] == {}
    l1_bytes = sum(len(b) for k, b in kept.objects.items() if k.startswith("level_one/data/") and "/gone-" not in k)
    live = [bucket_of_events.l0.key, bucket_of_events.shared]
    assert data["checked"] == {
        "journals": JOURNALS,
        "partitions": 6,
        "extents": 4,
        "l0_objects": 7,
        "l1_objects": 66 + 1 + 5 + 3 + 1,
        "bytes_read": l1_bytes + sum(len(kept.objects[k]) for k in live),
        "holes": 0,
    }
    assert (data["waiting_objects"], data["eligible_objects"]) == (1, 4)
    assert (data["deleted_topic_objects"], data["young_l1_objects"], data["unparsable_keys"]) == (1, 0, 0)
    assert data["watermark"] == kept.watermark
    assert contents(S3Store(kept.config)) == kept.objects


Damage = Callable[[Bucket], object]


def _flip(body: bytes) -> bytes:
    """Change a byte after the beginning of the first piece of compressed data."""
    packed = body.find(b"\x28\xb5\x2f\xfd")
    at = packed + 12 if packed >= 0 else len(body) // 2  # a small block is not compressed
    return body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]


def _wrong_epoch(b: Bucket) -> None:
    """Land an object that the journal lists at the next epoch, while the object contains its own epoch."""
    epoch = b.cluster.controller.advance()
    b.l0 = msgspec.structs.replace(b.l0, epoch=epoch)
    b.land((b.p.revision, topic_of(b.cluster).topic_id), b.handle.journal)


def _reconciled_twice(b: Bucket) -> None:
    f = b.l1
    again = b.events.l1[b.events.l1["base"] == f.base_offset]
    b.append(edit(RECONCILE, b.l1.epoch, b.p.revision, topic_of(b.cluster).topic_id, added=again))


def _lose_entries(b: Bucket) -> None:
    """Delete the end of the log, and with it the entry that names the newest L1 object."""
    log = b.handle.replica.log
    b.store.delete([log.entry_key(n) for n in range(2, b.handle.replica.offset + 1)])


def _gap_in_l1(t: TopicState) -> None:
    t.listed = RowList(t.l1[1:])


def _late_log_start(t: TopicState) -> None:
    t.log_start[0] = 1


def _extents_end_early(t: TopicState) -> None:
    t.next_offsets[0] += 1


DAMAGES: dict[str, tuple[Damage, list[str], Sequence[str]]] = {
    "an L0 object is gone": (lambda b: b.store.delete([b.l0.key]), ["l0_missing"], []),
    "an L0 object of two journals is gone": (lambda b: b.store.delete([b.shared]), ["l0_missing"] * 2, ["--deep"]),
    "an L0 object is cut off": (lambda b: b.change(b.l0.key, lambda body: body[:-9]), ["l0_short"], []),
    "an L0 object is empty": (lambda b: b.change(b.l0.key, lambda body: b""), ["l0_short"], ["--deep"]),
    "a block has changed": (lambda b: b.change(b.l0.key, _flip), ["l0_corrupt"], ["--deep"]),
    "nobody runs into blocks": (lambda b: b.change(b.l0.key, _flip), [], []),
    "an L1 object is gone": (lambda b: b.store.delete([b.l1_key]), ["l1_missing"], ["--deep"]),
    "an L1 object is cut off": (lambda b: b.change(b.l1_key, lambda body: body[:-9]), ["l1_size"], ["--deep"]),
    "an L1 object has grown": (lambda b: b.change(b.l1_key, lambda body: body + b"x"), ["l1_size"], []),
    "an L1 object has changed": (lambda b: b.change(b.l1_key, _flip), ["l1_corrupt"], ["--deep"]),
    "an old L1 object is gone": (
        lambda b: b.store.delete([k for k in contents_below(b, 0) if "/00000000000000000003-" in k]),
        ["l1_missing"],
        [],
    ),
    "an L1 object is nobody's": (
        lambda b: b.store.put(level_one(b.p, 1, 50, 59, UUID), b"x"),
        ["l1_orphan"],
        ["--min-age", "0s"],
    ),
    "an L1 object may be somebody's yet": (lambda b: b.store.put(level_one(b.p, 1, 50, 59, UUID), b"x"), [], []),
    "M is above live objects": (lambda b: b.publish(b.l0.epoch), ["live_below_watermark"] * 3, []),
    "M is above the cluster epoch": (
        lambda b: b.publish(99),
        [*["live_below_watermark"] * 3, "watermark_ahead"],
        [],
    ),
    "M is of an epoch that the cluster has not reached": (
        lambda b: b.publish(b.watermark, 99),
        ["watermark_ahead"],
        [],
    ),
    "M is above what the journals allow": (lambda b: b.publish(b.watermark + 1), ["watermark_ahead"] * 3, []),
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
    "the log ends early": (_lose_entries, ["watermark_ahead"], ["--min-age", "0s"]),
    "an entry overlaps L1": (_reconciled_twice, ["log_unreadable"], []),
    "L1 has a gap": (lambda b: b.of_events(_gap_in_l1), ["log_unreadable"], ["--min-age", "0s"]),
    "extents do not lead to the next offset": (
        lambda b: b.of_events(_extents_end_early),
        ["log_unreadable"],
        [],
    ),
    "a checkpoint says something else than its entries": (
        lambda b: b.of_events(_late_log_start),
        ["checkpoint_differs"],
        [],
    ),
    "a checkpoint is ahead of its log": (lambda b: b.checkpoint(ahead=3), ["log_gap"], []),
    "a boundary is above the checkpoint": (lambda b: b.handle.replica.log.boundary.lift(3), ["boundary_broken"], []),
    "the controller log has a gap": (
        lambda b: (
            b.cluster.controller.replica.write_checkpoint(),
            b.store.delete([b.cluster.controller.replica.log.entry_key(b.cluster.controller.replica.offset)]),
        ),
        ["log_gap"],
        [],
    ),
    "an object is of another epoch": (_wrong_epoch, ["l0_wrong_epoch"], []),
    "a live topic has ended": (lambda b: b.append(Closed([ClosedTopic(b.p.revision)])), ["state_broken"], []),
    "a journal holds a topic that is placed elsewhere": (
        lambda b: b.land((b.p.revision, topic_of(b.cluster).topic_id), WITHOUT),
        ["topic_misplaced"],
        [],
    ),
    "a journal holds a topic that the controller never created": (
        lambda b: b.land((b.p.revision, "another"), WITHOUT),
        ["topic_unknown"],
        [],
    ),
    "there is a journal that the cluster does not have": (
        lambda b: b.store.put(f"{journal_log(JOURNALS)}log/{0:020}", b"x"),
        ["journal_unknown"],
        [],
    ),
    "an L0 key is above the cluster epoch": (
        lambda b: b.store.put(LAYOUT.format(1, 99, UUID), b"x"),
        ["epoch_ahead"],
        [],
    ),
}


def contents_below(b: Bucket, partition: int) -> list[str]:
    """Return the L1 objects of a partition of events."""
    p = PartitionId("events", b.p.revision, partition)
    return [k for page in b.store.scan(f"level_one/data/{p.path}/") for k in page.keys]


NO_PARTITION = ("watermark", "epoch", "log", "checkpoint", "boundary", "topic", "journal")
"""The beginnings of kinds that do not concern one partition."""


@pytest.mark.thorough
@pytest.mark.parametrize("name", DAMAGES)
def test_each_kind_of_damage_is_found_and_nothing_else(bucket_of_events: Bucket, name: str) -> None:
    damage, expected, args = DAMAGES[name]
    damage(bucket_of_events)
    data = verify(*args)
    assert kinds(data) == expected, data["findings"]
    for f in data["findings"]:
        assert f["detail"]
        assert f["next_step"]
        if not f["kind"].startswith(NO_PARTITION) and f["key"] != bucket_of_events.shared and len(expected) == 1:
            assert f["topic"] == "events"
            assert f["partition"] in ((None,) if f["kind"] == "state_broken" else (0,))


TOGETHER: list[tuple[list[str], list[str], Sequence[str]]] = [
    (
        [
            "an L0 object of two journals is gone",
            "a block has changed",
            "an L1 object has changed",
            "an old L1 object is gone",
            "an L1 object is nobody's",
            "a journal holds a topic that is placed elsewhere",
            "there is a journal that the cluster does not have",
            "an L0 key is above the cluster epoch",
            "the controller log has a gap",
        ],
        [],
        ["--deep", "--min-age", "0s"],
    ),
    (
        ["a log entry cannot be read", "an L0 object is gone", "an L1 object is nobody's", "M is above live objects"],
        # The state of an unreadable journal is unknown, so nothing in it is checked.
        ["l0_missing", "l1_orphan", "live_below_watermark"],
        ["--min-age", "0s"],
    ),
]
"""Damages that are found in one run, the findings that other damages hide, and the options."""


HIDDEN = pytest.mark.parametrize(
    ("names", "hidden", "args"),
    [
        pytest.param(*TOGETHER[0], id="found together"),
        pytest.param(*TOGETHER[1], id="hidden by a broken log", marks=pytest.mark.thorough),
    ],
)


@HIDDEN
def test_damages_are_found_in_one_run(
    bucket_of_events: Bucket, names: list[str], hidden: list[str], args: Sequence[str]
) -> None:
    all_are_found(bucket_of_events, names, hidden, args)


@pytest.mark.spark
@pytest.mark.usefixtures("one_spark")
@HIDDEN
def test_damages_are_found_in_one_run_on_spark(
    bucket_of_events: Bucket, names: list[str], hidden: list[str], args: Sequence[str]
) -> None:
    all_are_found(bucket_of_events, names, hidden, [*args, "--engine", "spark"])


def all_are_found(bucket_of_events: Bucket, names: list[str], hidden: list[str], args: Sequence[str]) -> None:
    expected = sorted(kind for name in names for kind in DAMAGES[name][1])
    for name in names:
        DAMAGES[name][0](bucket_of_events)
    for kind in hidden:
        expected.remove(kind)
    data = verify(*args)
    assert kinds(data) == expected, data["findings"]
    assert data["counts"] == {kind: expected.count(kind) for kind in sorted(set(expected))}


def test_the_command_refuses_and_prints_a_line_for_each_finding(capsys: pytest.CaptureFixture[str]) -> None:
    suspects = [
        Suspect(Kind.L0_MISSING, 0, "events", 1, 0, "some/key", 12, detail="the object is missing"),
        Suspect(Kind.LOG_GAP, 2, key="l0gc/journal/0002/", detail="entry 3 is missing"),
    ]
    result = VerifyResult(
        9,
        4,
        True,
        [finding_of(s) for s in suspects],
        3,
        {"l0_missing": 2, "log_gap": 1},
        ReadCounts(16, 4, 1, 2, 3, 5),
    )
    with pytest.raises(SafetyError, match=r"^3 findings; nothing was changed$"):
        Output(Settings()).finish(lambda: result, verified)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("l0_missing events/0 at record 12: some/key: the object is missing; restore it ")
    assert lines[1].startswith("log_gap: l0gc/journal/0002/: entry 3 is missing; run l0gc pause --why TEXT")
    assert lines[2:] == [
        "1 more finding like these",
        "3 findings: 16 journals, 4 partitions, 1 unreconciled extent, 2 L0 objects, 3 L1 objects; 5 B read and checked",
        "M = 4, cluster epoch 9; L0 objects that no journal needs: 0 waiting for M, 0 for the next sweep",
    ]


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_a_bucket_in_use_gives_nothing(store: S3Store) -> None:
    """Verify reads while uploads, a reconciler, ticks, M, sweeps and changes of topics run."""
    store.create_bucket()
    cluster = ClusterHandles(S3Store(store.config))
    cluster.controller.bootstrap(shards=LAYOUT.shards, journals=JOURNALS)
    cluster.controller.create_topic("events", 3, 2)
    stop, failures, swept, rounds = threading.Event(), list[BaseException](), [0], [0]

    def upload() -> None:
        mine = ClusterHandles(S3Store(store.config), Runtime(), epoch_cache_s=0.2)
        while not stop.wait(0.1):
            with suppress(StaleClusterEpochError):  # two ticks since it was stamped: it is uploaded again
                put(mine, {0: 20, 1: 5, 2: 40})

    def churn() -> None:
        """Drop references and objects as fast as possible."""
        while not stop.is_set():
            mine = ClusterHandles(S3Store(store.config), Runtime())
            tick(mine)
            lift(mine)
            tick(mine)
            handle_of(mine).replica.write_checkpoint()
            swept[0] += sweep(store, publish_m(mine))
            rounds[0] += 1
            if rounds[0] % 2:
                name = f"short-{rounds[0]}"
                mine.controller.create_topic(name, 2)
                put(mine, {0: 20}, name)
                lift(mine, name)
                put(mine, {1: 20}, name)
                delete_topic(mine, name)

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def body() -> None:
            try:
                work()
            except BaseException as e:  # noqa: BLE001 - raised by the test's own thread
                failures.append(e)

        return body

    threads = [threading.Thread(target=guarded(w)) for w in (upload, churn)]
    runs: list[dict[str, Any]] = []
    try:
        for t in threads:
            t.start()
        began = -1
        while not failures and (not swept[0] or rounds[0] < began + 2):  # until enough has happened during one run
            began = rounds[0]
            runs.append(verify("--deep"))
            assert runs[-1]["findings"] == []
    finally:
        stop.set()
        for t in threads:
            t.join()
    assert failures == []
    assert verify("--deep")["findings"] == []
    assert max(run["checked"]["l0_objects"] for run in runs) > 0
