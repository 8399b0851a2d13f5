"""compute-watermark on Spark and SeaweedFS: journals, the listing, and another system's log."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from l0gc.errors import SafetyError
from l0gc.keys import KeyLayout, journal_log
from l0gc.runtime import Runtime
from l0gc.spark.handles import ClusterAddress
from l0gc.spark.workers import SparkWorkers
from l0gc.storage.parallel import Parallel
from l0gc.storage.ranges import KeyRange
from l0gc.storage.s3 import S3Store
from l0gc.storage.workers import LocalWorkers
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.epoch_source import JournalSource
from l0gc.watermark.histogram import read_listing
from l0gc.watermark.pipeline import run_pipeline
from l0gc.watermark.scans import ScanReport, ScanRow, read_scan
from tests.support.cli import ended_here, l0gc
from tests.support.journal import gc_epoch_of, of_topic

pytestmark = [pytest.mark.weed, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "external_log"


@pytest.fixture
def cluster(store: S3Store) -> Iterator[ClusterHandles]:
    store.create_bucket()
    with Parallel(8) as threads:
        cluster = ClusterHandles(store, Runtime(), threads)
        cluster.controller.bootstrap(shards=4)
        yield cluster


Seen = tuple[int, int, int]
"""Objects, bytes, and the time of the oldest write."""


def plain_m(cluster: ClusterHandles) -> tuple[int, dict[str, int]]:
    """Return M and every M(p), partition by partition, in a few lines of Python."""
    state = cluster.controller.snapshot()
    gc_epochs = {}
    for topic in state.topics.values():
        for p in range(topic.partitions):
            journal = cluster.journal(topic.journal_of(p)).catch_up()
            gc_epochs[f"{topic.name}/{p}"] = gc_epoch_of(journal, topic.revision, p)
    return min([state.epoch, *gc_epochs.values()]), gc_epochs


def plain_histogram(cluster: ClusterHandles) -> tuple[dict[int, Seen], list[str]]:
    """Return what is stored at each epoch, and the keys that are not L0 keys, in a few lines of Python."""
    rows: dict[int, Seen] = {}
    foreign: list[str] = []
    layout = cluster.controller.layout()
    for page in cluster.store.scan(layout.data_prefix):
        for key, size, written in zip(page.keys, page.sizes, page.modified_ms, strict=True):
            parsed = layout.parse(key)
            if parsed is None:
                foreign.append(key)
            else:
                objects, so_far, oldest = rows.get(parsed.epoch, (0, 0, written))
                rows[parsed.epoch] = objects + 1, so_far + size, min(oldest, written)
    return rows, foreign


def plain_holders(gc_epochs: dict[str, int], epoch: int) -> tuple[str, int]:
    """Return the partition with the lowest M(p) among those that may still need an epoch, and how many these are."""
    holding = [(e, p.rpartition("/")[0], int(p.rpartition("/")[2])) for p, e in gc_epochs.items() if e < epoch]
    return (f"{min(holding)[1]}/{min(holding)[2]}" if holding else ""), len(holding)


def random_cluster(cluster: ClusterHandles, rng: random.Random) -> None:
    """Create topics, objects in some of their partitions, windows anywhere, and objects at many epochs."""
    controller = cluster.controller
    topics = [
        controller.create_topic(f"t{i}", n := rng.randint(1, 40), min(n, rng.choice([1, 1, 3])))[0]
        for i in range(rng.randint(1, 3))
    ]
    if rng.random() < 0.5:
        gone, _ = controller.create_topic("gone", 3)
        land(cluster, gone, rng)
        controller.delete_topic("gone")
    for _ in range(rng.randint(0, 5)):
        epoch = controller.advance()
        for topic in topics:
            if rng.random() < 0.5:
                land(cluster, topic, rng)
            elif rng.random() < 0.7:
                cluster.journal(rng.choice(topic.journals)).advance(epoch)
    state, layout = controller.snapshot(), controller.layout()
    for i in range(rng.randint(0, 60)):
        key = layout.format(rng.randrange(layout.shards), rng.randint(0, state.epoch), cluster.runtime.new_id())
        cluster.store.put(key if i % 7 else f"{layout.data_prefix}{i}/foreign", b"x" * rng.randrange(50))


def land(cluster: ClusterHandles, topic: Topic, rng: random.Random) -> None:
    """Land an object of some partitions of one journal."""
    partition_range = rng.choice(topic.partition_ranges())
    some = rng.sample(range(partition_range.first, partition_range.end), rng.randint(1, partition_range.count))
    o = of_topic(topic, cluster.controller.snapshot().epoch, dict.fromkeys(some, 2))
    assert cluster.journal(partition_range.journal).append([o]).error is None


@pytest.mark.slow
def test_what_spark_computes_is_what_a_plain_script_computes(
    one_spark: SparkSession, cluster: ClusterHandles, store: S3Store
) -> None:
    @given(st.randoms(use_true_random=False))
    @settings(max_examples=2, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    def check(rng: random.Random) -> None:
        while keys := list(store.list("").modified_ms):
            store.delete(keys[:1000])
        fresh = ClusterHandles(store, Runtime(), cluster.parallel)
        fresh.controller.bootstrap(shards=4)
        random_cluster(fresh, rng)
        compare(one_spark, fresh, store)

    check()


def compare(spark: SparkSession, cluster: ClusterHandles, store: S3Store) -> None:
    """Compare M and every sum of Spark with those of a plain script."""
    (m, gc_epochs), (rows, foreign) = plain_m(cluster), plain_histogram(cluster)
    workers = SparkWorkers(spark, ClusterAddress(store.config))
    result = run_pipeline(cluster, JournalSource(cluster, workers), partial(read_listing, workers))
    assert (result.watermark, result.partitions) == (m, len(gc_epochs))
    assert result.listing is not None
    assert result.listing.epochs == [ScanRow(e, *rows[e], *plain_holders(gc_epochs, e)) for e in sorted(rows)]
    assert result.scan is not None
    kept = read_scan(store, result.scan, cluster.identity().cluster_id)
    assert ScanReport.of(kept) == result.listing
    totals = kept.totals
    assert (totals.unparsable, totals.unparsable_samples) == (len(foreign), sorted(foreign)[:5])
    eligible, held = [x for e, x in rows.items() if e <= m], [x for e, x in rows.items() if e > m]
    assert (totals.eligible_objects, totals.eligible_bytes) == (
        sum(x[0] for x in eligible),
        sum(x[1] for x in eligible),
    )
    assert totals.oldest_eligible_ms == min((x[2] for x in eligible), default=None)
    assert totals.oldest_held_ms == min((x[2] for x in held), default=None)
    assert totals.objects == sum(x[0] for x in rows.values()) + len(foreign)
    local = LocalWorkers(cluster)
    here = run_pipeline(cluster, JournalSource(cluster, local), partial(read_listing, local), dry_run=True)
    assert here.listing is not None
    assert (here.watermark, here.held_back_by, here.listing.epochs) == (m, result.held_back_by, result.listing.epochs)
    assert (here.listing.unparsable, here.listing.bytes) == (totals.unparsable, totals.bytes)


@pytest.mark.thorough
def test_several_tasks_read_a_bucket_with_one_shard(
    one_spark: SparkSession, cluster: ClusterHandles, store: S3Store
) -> None:
    layout, rounds = KeyLayout(shards=1000), list[Sequence[object]]()
    keys = [layout.format(7, i % 6, cluster.runtime.new_id()) for i in range(2400)]
    foreign = {f"{k}.tmp" for k in keys[:6]}
    cluster.parallel.map(lambda k: store.put(k, b"xy"), [*keys[6:], *foreign])

    class Counting(SparkWorkers):
        def reduce(self, work, items, merge):  # type: ignore[no-untyped-def]
            rounds.append(items)
            return super().reduce(work, items, merge)

    workers = Counting(one_spark, ClusterAddress(store.config))
    found = read_listing(workers, layout, lambda: 5, first_pages=1)
    assert {r.epoch: (r.objects, r.bytes) for r in found.rows.values() if r.epoch is not None} == dict.fromkeys(
        range(6), (399, 798)
    )
    assert (found.rows[None].objects, found.samples) == (6, sorted(foreign)[:5])
    assert len(rounds) > 1
    assert sum("/007/" in cast(KeyRange, r).start for r in rounds[1]) >= 8
    assert max(map(len, rounds)) > 16  # so many that they are merged on the executors


@pytest.mark.thorough
def test_many_partitions_and_many_journals_are_summed_up_where_they_are_read(
    one_spark: SparkSession, cluster: ClusterHandles, store: S3Store
) -> None:
    topic, _ = cluster.controller.create_topic("wide", 100_000, 12)
    partition_range = topic.partition_ranges()[3]
    at = cluster.controller.advance()
    cluster.journal(partition_range.journal).append([of_topic(topic, at, {partition_range.first + 7: 3})])
    for _ in range(2):
        epoch = cluster.controller.advance()
        for j in topic.journals:
            cluster.journal(j).advance(epoch)
    result = run_pipeline(cluster, JournalSource(cluster, SparkWorkers(one_spark, ClusterAddress(store.config))))
    assert (result.watermark, result.partitions) == (at - 1, 100_000)
    assert [(h.name, h.unreconciled_records) for h in result.held_back_by] == [(f"wide/{partition_range.first + 7}", 3)]


def test_a_damaged_journal_is_named_by_the_executors_and_holds_m(
    one_spark: SparkSession, cluster: ClusterHandles, store: S3Store
) -> None:
    topics = [cluster.controller.create_topic(name, 70)[0] for name in ("a", "b")]
    for _ in range(2):
        epoch = cluster.controller.advance()
        for t in topics:
            cluster.journal(t.journals[0]).advance(epoch)
    source = JournalSource(cluster, SparkWorkers(one_spark, ClusterAddress(store.config)))
    assert run_pipeline(cluster, source, dry_run=True).watermark == epoch - 2
    broken = f"{journal_log(topics[1].journals[0])}log/{0:020}"
    store.put(broken, b"damaged")
    held = run_pipeline(cluster, source)
    assert held.watermark == topics[1].revision - 1
    assert [(u.unit, broken in u.error) for u in held.unreadable] == [(f"journal {topics[1].journals[0]}", True)]


@pytest.mark.thorough
def test_an_external_logs_bucket_is_swept(store: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the worked example in examples/external_log as its README does."""

    def example(*args: str) -> dict[str, object]:
        ended = subprocess.run(
            [sys.executable, str(EXAMPLE / "segment_store.py"), *args, "--export", str(tmp_path)],
            capture_output=True, text=True, check=True, cwd=ROOT,
        )  # fmt: skip
        result = json.loads(ended.stdout)
        assert isinstance(result, dict)
        return result

    template = "segments/{shard:02}-{epoch:020}-{uuid}.seg"
    founded = l0gc("init", "--create-bucket", "--external-log", "--shards", "16", "--key-template", template)
    assert (founded["external_log"], founded["key_template"]) == (True, template)
    written = example("write", "--epochs", "12")
    assert written["objects"] == 12 * 3
    flags = ["--reports", str(tmp_path / "reports"), "--partitions", str(tmp_path / "partitions.csv")]
    computed = l0gc("compute-watermark", *flags, "--no-scan")
    assert computed["cluster_epoch"] == written["epoch"]
    assert computed["watermark"] == written["needed_from"] - 1  # type: ignore[operator]
    shown = l0gc("status")
    assert (shown["lag_epochs"], shown["causes"]) == (computed["cluster_epoch"] - computed["watermark"], [])
    assert l0gc("sweep")["deleted"] == written["garbage"]
    assert example("verify")["missing"] == 0

    with pytest.raises(SafetyError, match="nothing to compare the bucket"):
        l0gc("verify")
    assert l0gc("explain", "--epoch", str(computed["cluster_epoch"]))["verdict"] == "held"

    refused = ended_here("compute-watermark")
    assert refused.code == 4
    assert "--reports" in refused.stderr
    refused = ended_here("topic", "create", "t", "--partitions", "1")
    assert refused.code == 4
    scanned = l0gc("compute-watermark", *flags)
    assert scanned["listing"]["eligible_objects"] == 0
    assert scanned["listing"]["objects"] == 12 * 3 - written["garbage"]  # type: ignore[operator]


def test_a_report_of_s3_is_read_from_s3(store: S3Store, bucket: object) -> None:
    l0gc("init", "--create-bucket", "--external-log")
    place = S3Store(type(store.config)(store.config.bucket, "theirs/", store.config.endpoint_url, store.config.region))
    place.put("reports/1.ndjson", b'{"topic":"t","partition":0,"gc_epoch":7}\n')
    place.put("partitions.csv", b"topic,partition,revision\nt,0,2\n")
    base = f"s3://{store.config.bucket}/theirs"
    flags = ["--reports", f"{base}/reports", "--partitions", f"{base}/partitions.csv", "--no-scan"]
    refused = ended_here("compute-watermark", *flags, "--cluster-epoch", "9")
    assert refused.code == 4
    assert "reports is not complete" in refused.stderr
    place.put("reports/_SUCCESS", b"")
    assert l0gc("compute-watermark", *flags, "--cluster-epoch", "9")["watermark"] == 7
