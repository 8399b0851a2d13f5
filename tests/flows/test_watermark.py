"""compute-watermark on Spark and SeaweedFS: reports, their compaction under writers, fresh logs, another system's log."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from l0gc.errors import ExternalLogError
from l0gc.keys import KeyLayout, PartitionId
from l0gc.runtime import Runtime
from l0gc.spark import listing, watermark_job
from l0gc.storage.parallel import Threads
from l0gc.storage.ranges import KeyRange
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.housekeep import housekeep
from l0gc.watermark.compute import PartitionReport
from l0gc.watermark.reports import publish_reports, read_report_file, report_keys, rows_of
from l0gc.watermark.scans import ScanRow, read_scan
from tests.support.cli import l0gc, l0gc_process
from tests.support.reports import fill, some_reports

pytestmark = [pytest.mark.weed, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "external_log"


@pytest.fixture
def cluster(store: S3Store) -> Iterator[Cluster]:
    store.create_bucket()
    with Threads(8) as threads:
        cluster = Cluster(store, Runtime(), threads)
        cluster.controller.bootstrap(shards=4)
        yield cluster


Seen = tuple[int, int, int]
"""Objects, bytes, and when the oldest was written."""


def plain_m(cluster: Cluster) -> tuple[int, dict[str, int]]:
    """M and every M(p), in a few lines of Python."""
    state = cluster.controller.snapshot()
    best: dict[PartitionId, PartitionReport] = {}
    for key in report_keys(cluster.store):
        for r in rows_of(read_report_file(cluster.store.get(key).body, key)):
            if r.id not in best or r.gc_epoch > best[r.id].gc_epoch:
                best[r.id] = r
    gc_epochs = {str(p): best[p].gc_epoch if p in best else p.revision - 1 for p in state.partitions()}
    return min([state.epoch, *gc_epochs.values()]), gc_epochs


def plain_histogram(cluster: Cluster) -> tuple[dict[int, Seen], list[str]]:
    """What lies at each epoch, and the keys that are no L0 keys, in a few lines of Python."""
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
    """Of the partitions that still may need an epoch, the one with the lowest M(p), and how many."""
    holding = [(e, p.rpartition("/")[0], int(p.rpartition("/")[2])) for p, e in gc_epochs.items() if e < epoch]
    return (f"{min(holding)[1]}/{min(holding)[2]}" if holding else ""), len(holding)


def random_cluster(cluster: Cluster, rng: random.Random) -> None:
    """Topics, reports of some of their partitions in many files, and objects at many epochs."""
    controller = cluster.controller
    topics = [controller.create_topic(f"t{i}", rng.randint(1, 40))[0] for i in range(rng.randint(1, 3))]
    if rng.random() < 0.5:
        topics.append(controller.create_topic("gone", 3)[0])
        controller.delete_topic("gone")
    for _ in range(rng.randint(0, 5)):
        controller.advance()
    state, layout = controller.snapshot(), controller.layout()
    ids = [p for t in topics for p in t.ids() if rng.random() < 0.95]
    for _ in range(rng.choice([1, 3, 40])):
        some = rng.sample(ids, rng.randint(0, len(ids)))
        publish_reports(
            cluster.store, cluster.runtime, "upload", some_reports(rng, state.cluster_id, some, state.epoch - 1)
        )
    for i in range(rng.randint(0, 60)):
        key = layout.format(rng.randrange(layout.shards), rng.randint(0, state.epoch), cluster.runtime.new_id())
        cluster.store.put(key if i % 7 else f"{layout.data_prefix}{i}/foreign", b"x" * rng.randrange(50))


@pytest.mark.slow
def test_what_spark_computes_is_what_a_plain_script_computes(
    one_spark: SparkSession, cluster: Cluster, store: S3Store
) -> None:
    @given(st.randoms(use_true_random=False))
    @settings(max_examples=5, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    def check(rng: random.Random) -> None:
        while keys := list(store.list("").modified_ms):
            store.delete(keys[:1000])
        fresh = Cluster(store, Runtime(), cluster.parallel)
        fresh.controller.bootstrap(shards=4)
        random_cluster(fresh, rng)
        compare(one_spark, fresh, store)

    check()


def compare(spark: SparkSession, cluster: Cluster, store: S3Store) -> None:
    """M and every sum, by Spark and by a plain script."""
    (m, gc_epochs), (rows, foreign) = plain_m(cluster), plain_histogram(cluster)
    result = watermark_job.run(spark, cluster, store.config)
    assert (result.watermark.watermark, result.watermark.partitions) == (m, len(gc_epochs))
    assert result.listing is not None
    assert result.listing.epochs == [ScanRow(e, *rows[e], *plain_holders(gc_epochs, e)) for e in sorted(rows)]
    totals = result.listing.totals
    assert (totals.unparsable, totals.unparsable_samples) == (len(foreign), sorted(foreign)[:5])
    eligible, held = [x for e, x in rows.items() if e <= m], [x for e, x in rows.items() if e > m]
    assert (totals.eligible_objects, totals.eligible_bytes) == (
        sum(x[0] for x in eligible),
        sum(x[1] for x in eligible),
    )
    assert totals.oldest_eligible_ms == min((x[2] for x in eligible), default=None)
    assert totals.oldest_held_ms == min((x[2] for x in held), default=None)
    assert totals.objects == sum(x[0] for x in rows.values()) + len(foreign)
    assert result.kept is not None
    assert read_scan(store, result.kept.key, totals.cluster_id) == result.listing
    assert plain_m(cluster) == (m, gc_epochs)  # behind a compaction, too


def test_a_bucket_with_all_keys_in_one_shard_is_read_by_several_tasks(
    one_spark: SparkSession, cluster: Cluster, store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, rounds = KeyLayout(shards=1000), list[list[KeyRange]]()
    keys = [layout.format(7, i % 6, cluster.runtime.new_id()) for i in range(2400)]
    foreign = {f"{k}.tmp" for k in keys[:6]}
    cluster.parallel.map(lambda k: store.put(k, b"xy"), [*keys[6:], *foreign])
    once = listing._sums_of

    def sums_of(spark: SparkSession, config: object, layout: KeyLayout, ranges: list[KeyRange], pages: int) -> object:
        rounds.append(ranges)
        return once(spark, store.config, layout, ranges, pages)

    monkeypatch.setattr(listing, "_sums_of", sums_of)
    rows = listing.epoch_histogram(one_spark, store.config, layout, 8, lambda: 5, first_pages=1)
    assert {r.epoch: (r.objects, r.bytes) for r in rows if r.epoch is not None} == dict.fromkeys(range(6), (399, 798))
    assert [(r.objects, len(r.samples)) for r in rows if r.epoch is None] == [(6, 5)]
    assert len(rounds) > 1
    assert sum("/007/" in r.start for r in rounds[1]) >= 8


def test_many_reports_become_one_file_and_m_is_what_it_was(
    one_spark: SparkSession, cluster: Cluster, store: S3Store
) -> None:
    lowest = fill(cluster, partitions=3000, files=50)
    first = watermark_job.run(one_spark, cluster, store.config, scan=False)
    assert first.watermark.watermark == lowest
    assert first.compacted is not None
    assert (first.compacted.files, first.compacted.rows, len(report_keys(store))) == (50, 3000, 1)
    again = watermark_job.run(one_spark, cluster, store.config, scan=False)
    assert (again.watermark, again.compacted) == (first.watermark, None)


def test_fresh_logs_move_m_where_reports_are_missing(one_spark: SparkSession, cluster: Cluster, store: S3Store) -> None:
    cluster.controller.create_topic("t", 70)
    for _ in range(3):
        housekeep(cluster, barrier=True)
    store.delete(report_keys(store))
    broken: list[str] = []
    assert watermark_job.run(one_spark, cluster, store.config, scan=False, publish_it=False).watermark.watermark == 0
    fresh = watermark_job.run(one_spark, cluster, store.config, scan=False, refresh=True, broken=broken.append)
    assert (fresh.watermark.watermark, fresh.refreshed) == (cluster.controller.snapshot().epoch - 1, 70)
    assert [k.split("/")[-2] for k in report_keys(store)] == ["refresh"]

    store.put("l0gc/partition/t-1/00007/log/00000000000000000003.json", b"damaged")
    store.delete(report_keys(store))
    held = watermark_job.run(
        one_spark, cluster, store.config, scan=False, refresh=True, publish_it=False, broken=broken.append
    )
    assert held.watermark.watermark == 0
    assert len(broken) == 1
    assert "00007" in broken[0]


WRITER = """
import os, random, sys, time
from pathlib import Path
from l0gc.streamlog.cluster import Cluster
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from l0gc.watermark.reports import publish_reports
from tests.support.reports import a_report
number, highest, stop = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
store = S3Store(StoreConfig.from_url(os.environ["L0GC_URL"], endpoint_url=os.environ["AWS_ENDPOINT_URL_S3"]))
cluster = Cluster(store)
state = cluster.controller.snapshot()
mine = state.partitions()[number::8]
rng = random.Random(number)
gc_epoch = -1
while not stop.exists():
    gc_epoch = min(gc_epoch + 1, highest)
    for p in rng.sample(mine, len(mine)):
        publish_reports(store, cluster.runtime, "upload", [a_report(state.cluster_id, p, gc_epoch)])
        time.sleep(rng.uniform(0.1, 0.4))
sys.stdout.write(str(gc_epoch))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_eight_writers_lose_no_report_while_compactors_run_in_a_loop(
    one_spark: SparkSession, cluster: Cluster, store: S3Store, tmp_path: Path
) -> None:
    highest, stop = 40, tmp_path / "stop"
    cluster.controller.create_topic("t", 16)
    for _ in range(highest + 1):
        cluster.controller.advance()
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(i), str(highest), str(stop)],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for i in range(8)
    ]  # fmt: skip
    compactions, last = 0, -1
    try:
        while compactions < 4 and all(w.poll() is None for w in writers):
            result = watermark_job.run(one_spark, cluster, store.config, scan=False)
            compactions += result.compacted is not None
            assert result.watermark.watermark >= last
            last = result.watermark.watermark
        stop.touch()
        ended = [w.communicate() for w in writers]
    finally:
        for w in writers:
            w.kill()
    assert [w.returncode for w in writers] == [0] * 8, ended
    told = [int(out) for out, _ in ended]
    end = watermark_job.run(one_spark, cluster, store.config, scan=False)
    assert end.watermark.watermark == min(told)
    held = {h.partition for h in end.watermark.held_back_by}
    assert held == set([p for p in range(16) if told[p % 8] == min(told)][:10])


def test_a_bucket_that_something_else_writes_is_swept_by_that_systems_external_log(
    store: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worked example in examples/external_log, as its README runs it."""

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

    with pytest.raises(ExternalLogError, match="nothing to compare the bucket"):
        l0gc("verify")
    assert l0gc("explain", "--epoch", str(computed["cluster_epoch"]))["verdict"] == "held"

    refused = l0gc_process("compute-watermark")
    assert refused.code == 4
    assert "--reports" in refused.stderr
    refused = l0gc_process("topic", "create", "t", "--partitions", "1")
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
    assert l0gc("compute-watermark", *flags, "--cluster-epoch", "9")["watermark"] == 7
    assert report_keys(store) == []
