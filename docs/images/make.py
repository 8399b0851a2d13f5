"""Make docs/images/report.png: a bucket on SeaweedFS with some history, `l0gc report`, and Chromium's picture of the page.

    .venv/bin/python docs/images/make.py           the picture in the README
    .venv/bin/python docs/images/make.py --all DIR three widths in light and dark, and a PDF, to look at

Needs Chromium, and l0gc's own extra `server`. The partitions and their logs are real; of the scans and the runs, which take
days to come together, only the records are written.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from l0gc.collect.record import RunSummary, write_summary
from l0gc.embedded.seaweedfs import SeaweedFS
from l0gc.storage.config import StoreConfig
from l0gc.storage.parallel import Threads
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import Cluster
from l0gc.watermark.publication import PublishedWatermark, publish
from l0gc.watermark.scans import ScanRow, ScanSnapshot, ScanTotals, write_scan

PICTURE = Path(__file__).with_name("report.png")
URL = "s3://streams/prod"
EPOCHS = 160
BEHIND = {("orders", 3): 131, ("clicks", 7): 138, ("clicks", 11): 138, ("orders", 0): 150}
"""Partitions with unreconciled records, and from which epoch on."""
HOUR = 3_600_000
MIB = 1 << 20


def l0gc(*args: str, stdin: str = "") -> None:
    """Run a command."""
    command = [sys.executable, "-c", "from l0gc.cli.main import main; main()", *args]
    subprocess.run(command, input=stdin.encode(), stdout=subprocess.DEVNULL, check=True)


def build(store: S3Store) -> None:
    """A cluster that has run for five days, with a reconciler that is behind on some partitions."""
    l0gc("init", "--create-bucket", "--shards", "16")
    l0gc("topic", "create", "orders", "--partitions", "8")
    l0gc("topic", "create", "clicks", "--partitions", "24")
    with Threads(16) as threads:
        cluster = Cluster(store, parallel=threads)
        for epoch in range(cluster.controller.snapshot().epoch, EPOCHS):
            for (topic, partition), since in BEHIND.items():
                if since == epoch:
                    l0gc("upload", topic, "-", "--partition", str(partition), stdin="one\ntwo\nthree\n" * 400)
            if epoch >= EPOCHS - 2:
                l0gc("housekeep")
            while cluster.controller.snapshot().epoch <= epoch:
                cluster.controller.advance()
        l0gc("housekeep")
        l0gc("pause", "--why", "moving the orders topic to its own bucket", "--by", "ann@ops1")
        state = cluster.controller.snapshot()
        m = min(BEHIND.values()) - 1
        publish(
            store, cluster.runtime, PublishedWatermark(state.cluster_id, m, state.epoch, store.now_ms() - 9 * 60_000)
        )
        write_history(cluster, state.cluster_id, m, state.epoch)


def write_history(cluster: Cluster, cluster_id: str, m: int, epoch: int) -> None:
    """Scans every two hours, a sweep after most of them, and one scan just now."""
    rng, now = random.Random(7), cluster.store.now_ms()
    garbage = 200_000
    for n in range(60, -1, -1):
        taken = now - n * 2 * HOUR - 8 * 60_000
        garbage += int(rng.uniform(30_000, 70_000) * (1.6 + math.sin(n / 3)))
        average = int(MIB * rng.uniform(1.6, 2.6))
        rows = rows_at(rng, m, epoch, taken, garbage, average) if n == 0 else []
        objects = sum(r.objects for r in rows if r.epoch is not None and r.epoch <= m) or garbage
        totals = ScanTotals(
            cluster_id=cluster_id, run_ms=taken, taken_ms=taken, watermark=m, cluster_epoch=epoch, source="listing",
            objects=objects + 9_000, bytes=(objects + 9_000) * average, eligible_objects=objects,
            eligible_bytes=objects * average, unparsable=2 if n == 0 else 0,
            unparsable_samples=["level_zero/data/README.txt", "level_zero/data/007/backup-2026-11-02.tar"],
        )  # fmt: skip
        write_scan(cluster.store, cluster.runtime, ScanSnapshot(totals, rows))
        if n and rng.random() < 0.8 and not 8 < n < 16:
            garbage -= (deleted := int(garbage * rng.uniform(0.7, 1)))
            write_run(cluster, rng, taken + 120_000, m, epoch, deleted)


def rows_at(rng: random.Random, m: int, epoch: int, now: int, garbage: int, average: int) -> list[ScanRow]:
    first = m - 28
    weights = [rng.uniform(0.2, 1) * (1.4 + math.sin(e / 5)) for e in range(first, epoch + 1)]
    rows = []
    for e, weight in zip(range(first, epoch + 1), weights, strict=True):
        objects = int(garbage / 28 * weight)
        held = ("orders/3", 1 + sum(since <= e for since in BEHIND.values())) if e > m else ("", 0)
        rows.append(ScanRow(e, objects, objects * average, now - (epoch - e) * 600_000, *held))
    return rows


def write_run(cluster: Cluster, rng: random.Random, at: int, m: int, epoch: int, deleted: int) -> None:
    run_id = f"{datetime.fromtimestamp(at / 1000, UTC):%Y%m%dT%H%M%SZ}-{rng.randrange(1 << 32):08x}"
    outcome = "stopped" if rng.random() < 0.06 else "done"
    summary = RunSummary(
        run_id, at, m - 20, epoch, "local", "off", False, 0, 16, at + 40_000, outcome,
        deleted=deleted, bytes=deleted * 2 * MIB, failed=3 if outcome == "stopped" else 0, seconds=40.0,
    )  # fmt: skip
    write_summary(cluster.store, summary)


def chromium(*args: str) -> None:
    """Run a browser without a window and without the network."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        raise SystemExit("there is no Chromium on the PATH")
    with tempfile.TemporaryDirectory(prefix="l0gc-chromium-") as profile:
        quiet = ["quic", "gpu", "background-networking", "component-update", "sync"]
        command = [
            program,
            "--headless",
            "--no-sandbox",
            "--no-first-run",
            "--hide-scrollbars",
            f"--user-data-dir={profile}",
        ]
        subprocess.run(
            [*command, *(f"--disable-{name}" for name in quiet), *args], capture_output=True, check=True, timeout=120
        )


def shoot(page: Path, picture: Path, width: int, height: int, *, dark: bool = False) -> None:
    """A picture of the top of the page."""
    look = ["--blink-settings=preferredColorScheme=0"] if dark else []
    chromium(*look, f"--screenshot={picture}", f"--window-size={width},{height}", page.as_uri())


def main() -> None:
    """Make what the options ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", type=Path, metavar="DIR", help="pictures of all widths, and a PDF")
    directory = parser.parse_args().all
    with tempfile.TemporaryDirectory(prefix="l0gc-report-") as temporary, SeaweedFS() as server:
        os.environ |= server.environment() | {"L0GC_URL": URL}
        build(S3Store(StoreConfig.from_url(URL, endpoint_url=server.endpoint_url, region=server.region)))
        page = Path(temporary) / "report.html"
        l0gc("report", "-o", str(page))
        shoot(page, PICTURE, 1100, 1160)
        if directory is None:
            return
        directory.mkdir(parents=True, exist_ok=True)
        shutil.copy(page, directory)
        for width in (360, 800, 1400):
            for dark in (False, True):
                name = f"{width}-{'dark' if dark else 'light'}.png"
                shoot(page, directory / name, width, 9000 if width == 360 else 4200, dark=dark)
        chromium(f"--print-to-pdf={directory / 'report.pdf'}", "--no-pdf-header-footer", page.as_uri())


if __name__ == "__main__":
    main()
