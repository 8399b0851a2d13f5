"""Runs the whole loop on a real server: upload, reconcile, housekeep, compute-watermark, sweep, read."""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from l0gc.embedded import sample
from l0gc.keys import KeyLayout
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.ingest.placement import by_field
from tests.support.cli import founded, l0gc, l0gc_process, printed, start

pytestmark = [pytest.mark.weed, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]

SHARDS = 16
LAYOUT = KeyLayout(shards=SHARDS)


def l0_objects(store: S3Store) -> dict[str, int]:
    """Return every L0 object with its epoch."""
    found: dict[str, int] = {}
    for page in store.scan(LAYOUT.data_prefix):
        for key in page.keys:
            parsed = LAYOUT.parse(key)
            assert parsed is not None
            found[key] = parsed.epoch
    return found


def read_back(topic: str, partitions: int) -> dict[int, list[bytes]]:
    """Return a topic's records by partition, as the command prints them."""
    return {p: printed("read", topic, "--partition", str(p)).split(b"\n")[:-1] for p in range(partitions)}


def expected(lines: Iterable[bytes], field: str, partitions: int) -> dict[int, list[bytes]]:
    """Return the lines of each partition, in order."""
    place = by_field(field, partitions).start("test")
    records: dict[int, list[bytes]] = {p: [] for p in range(partitions)}
    all_lines = list(lines)
    for line, partition in zip(all_lines, place(all_lines).partitions.tolist(), strict=True):
        records[partition].append(line)
    return records


def lines_of(*paths: Path) -> list[bytes]:
    return [line for path in paths for line in path.read_bytes().splitlines()]


def drain() -> dict[str, Any]:
    """Empty L0 in the way that an operator does."""
    l0gc("housekeep", "--barrier")
    l0gc("reconcile", "--engine", "spark")
    l0gc("compute-watermark", "--engine", "spark")
    return l0gc("sweep")


@pytest.mark.parametrize(("files", "flights"), [(4, 4_000), pytest.param(10, 80_000, marks=pytest.mark.thorough)])
def test_all_flights_survive_and_exactly_what_m_allows_is_deleted(
    files: int, flights: int, store: S3Store, tmp_path: Path
) -> None:
    founded(8, "flights", shards=SHARDS)
    l0gc("topic", "create", "idle", "--partitions", "2")
    paths = sample.write_files(tmp_path, files, flights)
    for path in paths:
        l0gc("upload", "flights", str(path), "--key-field", "carrier", "--batch-bytes", f"{flights // 80}KiB")
        l0gc("epoch", "advance")
    before = l0_objects(store)
    l0gc("reconcile", "--engine", "spark")
    l0gc("housekeep")
    computed = l0gc("compute-watermark", "--engine", "spark")
    watermark = computed["watermark"]
    assert 0 <= watermark < max(before.values())
    assert computed["listing"]["objects"] == len(before)
    assert computed["listing"]["eligible_objects"] == sum(e <= watermark for e in before.values())

    dry, swept = l0gc("sweep", "--dry-run"), l0gc("sweep")
    assert {k: v for k, v in dry.items() if k not in {"dry_run", "seconds", "run_id"}} == {
        k: v for k, v in swept.items() if k not in {"dry_run", "seconds", "run_id"}
    }
    assert l0_objects(store) == {k: e for k, e in before.items() if e > watermark}

    # The idle topic holds M back for at most two ticks.
    for _ in range(2):
        l0gc("epoch", "advance")
        l0gc("housekeep")
    later = l0gc("compute-watermark", "--no-scan")
    assert later["watermark"] >= max(before.values())
    assert later["listing"] is None
    l0gc("sweep")
    assert l0_objects(store) == {}
    assert read_back("flights", 8) == expected(lines_of(*paths), "carrier", 8)
    assert read_back("idle", 2) == {0: [], 1: []}
    assert l0gc("sweep")["deleted"] == 0


@pytest.mark.thorough
def test_without_a_reconcile_nothing_referenced_is_ever_eligible(store: S3Store, tmp_path: Path) -> None:
    founded(3, "flights", shards=SHARDS)
    (path,) = sample.write_files(tmp_path, 1, 3000)
    for _ in range(3):
        l0gc("upload", "flights", str(path), "--key-field", "carrier", "--batch-bytes", "128KiB")
        for _ in range(2):
            l0gc("epoch", "advance")
            l0gc("housekeep")
    before = l0_objects(store)
    l0gc("housekeep", "--barrier")
    l0gc("housekeep", "--barrier")
    assert l0gc("compute-watermark")["listing"]["eligible_objects"] == 0
    assert l0gc("sweep")["deleted"] == 0
    assert l0_objects(store) == before


@pytest.mark.thorough
def test_a_barrier_drains_a_quiet_cluster_also_after_its_topics_are_deleted(store: S3Store, tmp_path: Path) -> None:
    l0gc("init", "--create-bucket", "--shards", str(SHARDS))
    (path,) = sample.write_files(tmp_path, 1, 2000)
    l0gc("topic", "create", "flights", "--partitions", "3")
    l0gc("upload", "flights", str(path), "--key-field", "carrier")
    assert drain()["deleted"] == 1
    assert l0_objects(store) == {}
    assert read_back("flights", 3) == expected(lines_of(path), "carrier", 3)

    l0gc("upload", "flights", str(path), "--key-field", "carrier")
    l0gc("topic", "delete", "flights", "--yes")
    assert drain()["deleted"] == 1
    assert l0_objects(store) == {}
    refused = l0gc_process("upload", "flights", str(path))
    assert refused.code == 5
    assert "flights" in refused.stderr

    l0gc("topic", "create", "flights", "--partitions", "3")
    l0gc("upload", "flights", str(path), "--key-field", "origin")
    assert read_back("flights", 3) == expected(lines_of(path), "origin", 3)
    drain()
    assert read_back("flights", 3) == expected(lines_of(path), "origin", 3)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_four_uploaders_lose_nothing_while_reconcile_and_sweep_run_in_a_loop(store: S3Store, tmp_path: Path) -> None:
    rounds = 3
    founded(4, "flights", shards=SHARDS)
    paths = sample.write_files(tmp_path, 4, 30_000)
    begun = [threading.Event() for _ in range(rounds)]
    command = ["upload", "flights", "-", "--key-field", "carrier", "--batch-bytes", "32KiB"]
    uploads = [start(command, {"L0GC_EPOCH_CACHE": "0.2"}) for _ in paths]

    def feed(upload: subprocess.Popen[bytes], lines: list[bytes]) -> None:
        """Write a part of the input for each round, so that every round meets uploads."""
        assert upload.stdin is not None
        share = -(-len(lines) // rounds)
        with suppress(BrokenPipeError):  # if an upload has failed, its exit code shows it
            for i, event in enumerate(begun):
                event.wait()
                upload.stdin.writelines(line + b"\n" for line in lines[i * share : (i + 1) * share])
                upload.stdin.flush()
            upload.stdin.close()

    def has_landed_since(before: Iterable[str]) -> None:
        """Wait for an object of this round's input: a process can take as long to start as a round takes."""
        while l0_objects(store).keys() <= set(before):
            assert not any(u.poll() for u in uploads)
            time.sleep(0.05)

    feeders = [
        threading.Thread(target=feed, args=(u, lines_of(p)), daemon=True) for u, p in zip(uploads, paths, strict=True)
    ]
    try:
        for feeder in feeders:
            feeder.start()
        swept = 0
        for event in begun:
            before = l0_objects(store)
            event.set()
            has_landed_since(before)
            l0gc("epoch", "advance")
            l0gc("housekeep")
            l0gc("reconcile")
            l0gc("compute-watermark")
            swept += l0gc("sweep")["deleted"]
        codes = [u.wait(timeout=600) for u in uploads]
        assert codes == [0] * 4, [u.stderr.read().decode() for u in uploads if u.stderr]
        assert swept > 0
    finally:
        for event in begun:
            event.set()
        for u in uploads:
            u.kill()
            u.wait()

    got = read_back("flights", 4)
    want: dict[int, list[list[bytes]]] = defaultdict(list)
    for path in paths:
        for p, lines in expected(lines_of(path), "carrier", 4).items():
            want[p].append(lines)
    for p in range(4):
        assert sorted(got[p]) == sorted(line for lines in want[p] for line in lines)
        for lines in want[p]:  # the order of each uploader's records is kept
            at = iter(got[p])
            assert all(line in at for line in lines)
    drain()
    assert l0_objects(store) == {}
    assert {p: sorted(r) for p, r in read_back("flights", 4).items()} == {p: sorted(r) for p, r in got.items()}


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_an_upload_killed_eight_times_and_repeated_loses_and_doubles_nothing(store: S3Store, tmp_path: Path) -> None:
    chance = random.Random(20)
    founded(4, "flights", shards=SHARDS)
    paths = sample.write_files(tmp_path, 2, 30_000)
    command = ["upload", "flights", *map(str, paths), "--key-field", "carrier", "--batch-bytes", "32KiB"]
    command += ["--producer", "nightly"]
    killed = 0
    while killed < 8:
        upload = start(command)
        time.sleep(chance.uniform(0.3, 1.6))
        if upload.poll() is None:
            killed += 1
        upload.kill()
        upload.communicate()
    last = l0gc_process(*command, "--json")
    assert last.code == 0, last.stderr
    assert last.data["records"] + last.data["skipped"] == 30_000
    assert read_back("flights", 4) == expected(lines_of(*paths), "carrier", 4)
    again = l0gc_process(*command, "--json")
    assert again.data["records"] == 0
    assert again.data["skipped"] == 30_000
    drain()
    assert read_back("flights", 4) == expected(lines_of(*paths), "carrier", 4)
