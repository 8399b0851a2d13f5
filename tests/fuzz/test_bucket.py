"""A whole bucket in which one object has changed: nothing that is needed goes, M is no higher, the rest goes on.

What runs over it is the jobs of an operator's schedule: housekeep, compute-watermark, sweep, as the commands run them, but
for Spark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.collect.local import LocalSweep
from l0gc.errors import CorruptObjectError, L0gcError
from l0gc.keys import PUBLISHED_WATERMARK, REPORTS, KeyLayout
from l0gc.storage.parallel import Inline, InlineExecutor
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.housekeep import HousekeepResult, housekeep
from l0gc.streamlog.ingest.inputs import Input
from l0gc.streamlog.ingest.partitioner import InTurn
from l0gc.streamlog.ingest.uploader import Uploader
from l0gc.watermark import job
from l0gc.watermark.compute import PartitionReport
from l0gc.watermark.job import EpochRow
from l0gc.watermark.publication import decode_published
from l0gc.watermark.reports import read_report_file
from tests.fuzz.mutations import fuzzing, hostile
from tests.support.memory_store import FakeClock, MemoryStore, memory_cluster
from tests.support.reconcile import reconcile

PARTITIONS = 3


def upload(cluster: Cluster, lines: list[bytes]) -> None:
    topic = cluster.controller.snapshot().topic("events")
    inline = InlineExecutor()
    uploader = Uploader(cluster, topic, InTurn(topic.partitions), packers=inline, committer=inline, batch_bytes=100)
    uploader.run([Input("lines", "", lambda: io.BytesIO(b"".join(line + b"\n" for line in lines)))])


def compute_watermark(cluster: Cluster) -> int:
    def reports() -> list[PartitionReport]:
        tables = [read_report_file(cluster.store.get(k).body, k) for k in cluster.store.list(REPORTS).modified_ms]
        return [msgspec.convert(row, PartitionReport) for t in tables for row in t.to_pylist()]

    def histogram(layout: KeyLayout) -> list[EpochRow]:
        keys = [k for page in cluster.store.scan(layout.data_prefix) for k in page.keys]
        parsed = [(k, layout.parse(k)) for k in keys]
        return [EpochRow(None if p is None else p.epoch, 1, 0, k) for k, p in parsed]

    return job.run(cluster, reports, histogram).watermark.watermark


def a_bucket() -> MemoryStore:
    """Reconciled and unreconciled data of several epochs, checkpoints, a truncated log, reports, a published M."""
    store = MemoryStore()
    for n in range(6):
        cluster = memory_cluster(store, seed=10 * n)
        cluster.controller.create_topic("events", PARTITIONS)
        cluster.controller.advance()
        upload(cluster, [b"line %d of round %d" % (i, n) for i in range(12)])
        if n in {1, 3}:
            reconcile(cluster)
        if n in {2, 4}:
            store.clock.sleep(16 * 60)
            housekeep(cluster, checkpoint_entries=3)
            compute_watermark(cluster)
        store.clock.sleep(30)
    assert {k.split("/")[-1] for k in store.objects if "boundary" in k} == {"boundary.json"}
    return store


BUCKET = a_bucket()
KEYS = sorted(BUCKET.objects)


def copy_of_bucket() -> MemoryStore:
    store = MemoryStore(FakeClock(BUCKET.clock.ms))
    store.objects = {k: replace(o) for k, o in BUCKET.objects.items()}
    store._version = BUCKET._version
    return store


@dataclass
class Ran:
    """What became of the bucket: M as it is published at the end, and what the housekeep said if it came to its end."""

    store: MemoryStore
    watermark: int
    housekept: HousekeepResult | None
    errors: list[L0gcError]


def run_all(store: MemoryStore) -> Ran:
    """The schedule, each command in a process of its own. Only errors of l0gc's end a command."""
    errors: list[L0gcError] = []
    housekept: list[HousekeepResult] = []

    def attempt(command: Callable[[Cluster], object], seed: int) -> None:
        try:
            command(memory_cluster(store, seed=seed, bootstrap=False))
        except L0gcError as e:
            errors.append(e)

    store.clock.sleep(16 * 60)
    attempt(lambda c: housekept.append(housekeep(c, checkpoint_entries=3)), 901)
    attempt(compute_watermark, 902)
    attempt(lambda c: LocalSweep(c).run(Inline(), ranges=2), 903)
    try:
        watermark = decode_published(store.objects[PUBLISHED_WATERMARK].body).watermark
    except CorruptObjectError:
        watermark = -1
    return Ran(store, watermark, housekept[0] if housekept else None, errors)


def needed(store: MemoryStore) -> set[str]:
    """Every object that the partitions' logs still name."""
    cluster = memory_cluster(store, seed=904, bootstrap=False)
    states = [cluster.partition(p).catch_up() for p in cluster.controller.snapshot().partitions()]
    return {u.placeholder.key for s in states for u in s.placeholders} | {f.key for s in states for f in s.l1}


SOUND = run_all(copy_of_bucket())
NEEDED = needed(copy_of_bucket())


def test_the_bucket_is_worth_changing() -> None:
    assert SOUND.errors == []
    assert SOUND.housekept is not None
    assert SOUND.housekept.broken == []
    assert len(SOUND.store.objects) < len(BUCKET.objects) + 5
    assert any(k.startswith("level_zero/") for k in NEEDED)
    swept = {k for k in BUCKET.objects if k.startswith("level_zero/")} - set(SOUND.store.objects)
    assert swept
    assert swept.isdisjoint(NEEDED)


@st.composite
def changed_object(draw: st.DrawFn) -> tuple[str, bytes]:
    """A key of the bucket, and what it holds now."""
    kind = draw(st.sampled_from(["l0gc/controller", "l0gc/partition", "l0gc/watermarks", "level_"]))
    key = draw(st.sampled_from([k for k in KEYS if k.startswith(kind)]))
    alike = [k for k in KEYS if k.split("/")[:2] == key.split("/")[:2] and k != key]
    body, other = BUCKET.objects[key].body, BUCKET.objects[draw(st.sampled_from(alike or KEYS))].body
    is_json = key.endswith(".json") and body.startswith(b"{") and b"\n" not in body
    return key, draw(hostile(body, other, is_json=is_json))


@fuzzing(250)
@given(changed_object())
def test_whatever_one_object_becomes_nothing_that_is_needed_goes(change: tuple[str, bytes]) -> None:
    key, body = change
    store = copy_of_bucket()
    store.put(key, body)
    ran = run_all(store)
    assert set(store.objects) >= NEEDED
    assert ran.watermark <= SOUND.watermark
    lost = {k for k in BUCKET.objects if k.startswith("level_")} - set(store.objects)
    assert lost <= {k for k in BUCKET.objects if k not in SOUND.store.objects}


LOG_KEYS = [k for k in KEYS if re.search(r"l0gc/partition/.*(log|checkpoint)/", k)]


def _is_read(key: str) -> bool:
    """Whether a replay reads the object: the newest checkpoint and what lies behind it."""
    folder, kind, name = re.fullmatch(r"(.*/)(log|checkpoint)/(\d+)\.json", key).groups()  # type: ignore[union-attr]
    newest = max((k for k in KEYS if k.startswith(f"{folder}checkpoint/")), default="")
    return key == newest if kind == "checkpoint" else name > newest.split("/")[-1].split(".")[0]


READ = [k for k in LOG_KEYS if _is_read(k)]


@fuzzing(150)
@given(st.sampled_from(READ), st.data())
def test_a_corrupt_entry_stops_its_partition_and_no_other(key: str, data: st.DataObject) -> None:
    original = BUCKET.objects[key].body
    other = BUCKET.objects[data.draw(st.sampled_from(READ))].body
    body = data.draw(hostile(original, other, is_json="/log/" in key))
    store = copy_of_bucket()
    store.put(key, body)
    ran = run_all(store)
    assert ran.housekept is not None
    sound = SOUND.housekept
    assert sound is not None
    before = decode_published(BUCKET.objects[PUBLISHED_WATERMARK].body).watermark
    if not ran.housekept.broken:  # nothing that is read has changed, but for blanks
        assert ran.housekept == sound
        assert ran.watermark == SOUND.watermark
        return
    assert len(ran.housekept.broken) == 1
    assert key in ran.housekept.broken[0].error
    assert f"/{ran.housekept.broken[0].partition:05}/" in key
    assert ran.housekept.advanced == sound.advanced - 1
    assert ran.watermark >= before
    assert ran.watermark <= SOUND.watermark
    assert set(store.objects) >= NEEDED
    held = memory_cluster(store, seed=905, bootstrap=False)
    for p in held.controller.snapshot().partitions():
        if p.partition == ran.housekept.broken[0].partition:
            with pytest.raises(CorruptObjectError, match=key):
                held.partition(p).catch_up()
        else:
            assert held.partition(p).catch_up() == memory_state(SOUND.store, p.partition)


def memory_state(store: MemoryStore, partition: int) -> object:
    cluster = memory_cluster(store, seed=906, bootstrap=False)
    return cluster.partition(cluster.controller.snapshot().partitions()[partition]).catch_up()
