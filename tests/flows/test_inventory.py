"""compute-watermark with an S3 Inventory, on Spark and SeaweedFS: it says what the listing says, or is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from l0gc.cli.main import cli
from l0gc.cli.output import taking_results
from l0gc.errors import CorruptObjectError, EpochRegressionError, L0gcError, NotFoundError, UsageError
from l0gc.spark import workers
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import Handles
from l0gc.watermark.publication import read_published
from l0gc.watermark.scans import read_scan
from tests.support.cli import l0gc
from tests.support.inventory import MANIFEST, SYMLINK, TAKEN_MS, Made, Row, made

pytestmark = [pytest.mark.weed, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]

EPOCH = 6


@pytest.fixture
def cluster(store: S3Store) -> Handles:
    """A cluster at epoch 6 without topics, so that everything is eligible, with objects at some epochs."""
    l0gc("init", "--create-bucket", "--shards", "4")
    cluster = Handles(store)
    while cluster.controller.snapshot().epoch < EPOCH:
        cluster.controller.advance()
    layout = cluster.controller.layout()
    for i in range(20):
        store.put(layout.format(i % 4, i % EPOCH, cluster.runtime.new_id()), b"x" * i)
    store.put(f"{layout.data_prefix}001/a file+%C3%A9 é", b"foreign")
    return cluster


@pytest.fixture
def inventories(store: S3Store) -> S3Store:
    """Another bucket."""
    other = S3Store(replace(store.config, bucket=f"{store.config.bucket}-inv", prefix=""))
    other.create_bucket()
    return other


def rows_of(store: S3Store) -> list[Row]:
    """The whole bucket, as an inventory has it."""
    pages = store.below("").scan("")
    return [Row(k, n, m) for p in pages for k, n, m in zip(p.keys, p.sizes, p.modified_ms, strict=True)]


def put(inventories: S3Store, inventory: Made, at: str = MANIFEST) -> str:
    """Put an inventory, and return the URL of its manifest."""
    for key, body in inventory.objects.items():
        inventories.put(key, body)
    return f"{inventories.config.url}{at}"


def an_inventory(store: S3Store, inventories: S3Store, kind: str = "Parquet", more: tuple[Row, ...] = ()) -> Made:
    """Of the bucket as it is, and some rows more."""
    source, destination = store.config.bucket, inventories.config.bucket
    return made(kind, [*rows_of(store), *more], source=source, destination=destination, versions=True, files=5)


def listing(*args: str) -> dict[str, Any]:
    return dict(l0gc("compute-watermark", "--engine", "spark", "--dry-run", *args)["listing"])


@pytest.mark.thorough
def test_an_inventory_of_any_format_says_what_the_listing_says(
    cluster: Handles, store: S3Store, inventories: S3Store
) -> None:
    live = listing()
    assert (live["objects"], live["unparsable"], live["source"]) == (21, 1, "listing")
    assert abs(live["taken_ms"] - store.now_ms()) < 120_000
    for kind, at in (("CSV", MANIFEST), ("ORC", SYMLINK), ("Parquet", MANIFEST)):
        url = put(inventories, an_inventory(store, inventories, kind), at)
        ages = {name: 0.0 for name in live if name.endswith("_age_s") and live[name] is not None}
        assert listing("--inventory", url) == live | ages | {"source": "inventory", "taken_ms": TAKEN_MS}
    bare = an_inventory(store, inventories)
    del bare.objects[MANIFEST]
    inventories.delete([MANIFEST])
    assert listing("--inventory", put(inventories, bare, SYMLINK))["epochs"] == live["epochs"]


def test_sums_of_many_tasks_are_merged_by_tasks_to_the_same(
    cluster: Handles, store: S3Store, inventories: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = put(inventories, an_inventory(store, inventories))
    few = listing("--inventory", url)
    monkeypatch.setattr(workers, "_FEW", 0)
    assert listing("--inventory", url) == few


def test_m_is_what_it_is_without_one_and_sweeps_get_no_counts(
    cluster: Handles, store: S3Store, inventories: S3Store
) -> None:
    layout = cluster.controller.layout()
    gone = Row(f"{store.config.prefix}{layout.format(1, 2, cluster.runtime.new_id())}", 1000, latest=False)
    url = put(inventories, an_inventory(store, inventories, more=(gone, replace(gone, latest=True, marker=True))))
    with taking_results() as results:
        cli.main(["compute-watermark", "--inventory", url], prog_name="l0gc", standalone_mode=False)
    data, text = results[-1].data, "\n".join(results[-1].text)
    assert (data["watermark"], data["published"], data["listing"]["objects"]) == (EPOCH, True, 21)
    assert (data["listing"]["noncurrent_objects"], data["listing"]["noncurrent_bytes"]) == (1, 1000)
    assert "counted from an inventory made" in text
    scan = read_scan(store, data["scan"], cluster.controller.snapshot().cluster_id).totals
    assert (scan.source, scan.taken_ms, scan.noncurrent_bytes) == ("inventory", TAKEN_MS, 1000)
    assert abs(scan.run_ms - store.now_ms()) < 120_000
    assert "1 noncurrent version (1000 B)" in text
    published, _ = read_published(store, cluster.controller.snapshot().cluster_id)
    assert published is not None
    assert (published.watermark, published.eligible_objects, published.listed_objects) == (EPOCH, -1, -1)
    with pytest.raises(L0gcError, match="without --no-scan and --inventory"):
        l0gc("sweep", "--max-delete-ratio", "0.5")


def test_an_inventory_that_is_not_what_it_should_be_is_refused(
    cluster: Handles, store: S3Store, inventories: S3Store
) -> None:
    layout, good = cluster.controller.layout(), an_inventory(store, inventories, "CSV")
    key = good.data_keys[1]

    def refused(error: type[L0gcError], message: str, *args: str) -> None:
        with pytest.raises(error, match=message):
            l0gc("compute-watermark", "--engine", "spark", "--inventory", f"{inventories.config.url}{MANIFEST}", *args)

    refused(UsageError, "give one of the two", "--no-scan")
    refused(NotFoundError, "the inventory manifest .* does not exist")
    put(inventories, made("CSV", [], source="another"))
    refused(UsageError, "inventory of bucket 'another'")
    put(inventories, good)
    body = good.objects[key]
    inventories.put(key, body[:-1] + bytes([body[-1] ^ 1]))
    refused(CorruptObjectError, f"{key} is not the file that its manifest means")
    inventories.put(key, body[:-5])
    refused(CorruptObjectError, f"{key} is not the file that its manifest means")
    inventories.delete([key])
    refused(NotFoundError, f"the inventory file .*{key}, which its manifest names, does not exist")
    above = Row(f"{store.config.prefix}{layout.format(0, EPOCH + 1, cluster.runtime.new_id())}", 1)
    put(inventories, an_inventory(store, inventories, more=(above,)))
    refused(EpochRegressionError, f"above the cluster epoch {EPOCH}")
    assert read_published(store, cluster.controller.snapshot().cluster_id)[0] is None


def test_an_inventory_of_another_systems_bucket_may_be_copied_here(
    store: S3Store, inventories: S3Store, tmp_path: Path
) -> None:
    l0gc("init", "--create-bucket", "--external-log", "--shards", "4")
    layout = Handles(store).controller.layout()
    for epoch in (3, 5):
        store.put(layout.format(0, epoch, "01234567-89ab-cdef-0123-456789abcdef"), b"xyz")
    for key, body in an_inventory(store, inventories).objects.items():
        path = tmp_path / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    (tmp_path / "reports.ndjson").write_text(json.dumps({"topic": "t", "partition": 0, "gc_epoch": 4}) + "\n")
    (tmp_path / "partitions.csv").write_text("topic,partition,revision\nt,0,1\n")
    flags = ["--reports", str(tmp_path / "reports.ndjson"), "--partitions", str(tmp_path / "partitions.csv")]
    done = l0gc("compute-watermark", *flags, "--cluster-epoch", "5", "--inventory", str(tmp_path / MANIFEST))
    assert (done["watermark"], done["listing"]["source"], done["listing"]["taken_ms"]) == (4, "inventory", TAKEN_MS)
    assert (done["listing"]["objects"], done["listing"]["eligible_bytes"]) == (2, 3)
