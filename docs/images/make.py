"""Make docs/images/report.png: a cluster with some history, its report, and Chromium's picture of the page.

    .venv/bin/python docs/images/make.py           the picture in the README
    .venv/bin/python docs/images/make.py --all DIR three widths in light and dark, and a PDF, to look at

Needs Chromium. The cluster is on a store in memory, whose clock is set: five days of ticks, uploads, reconciling and
housekeeping run as usual. Scans and sweeps would need the objects themselves, so only their records are written, from one
account of what lies at each epoch: a scan sees what was uploaded and not yet swept.
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from l0gc.collect.record import Attempt, RunSummary, write_attempt, write_summary  # noqa: E402 - after the path on which it is found
from l0gc.inspect.report.facts import gather  # noqa: E402
from l0gc.inspect.report.page import render  # noqa: E402
from l0gc.streamlog.cluster import ClusterHandles  # noqa: E402
from l0gc.streamlog.housekeep import housekeep  # noqa: E402
from l0gc.watermark.publication import PublishedWatermark, publish  # noqa: E402
from l0gc.watermark.scans import ScanRow, ScanSnapshot, ScanTotals, write_scan  # noqa: E402
from tests.support.memory_store import FakeClock, MemoryStore, memory_cluster  # noqa: E402
from tests.support.verify import lift, put  # noqa: E402

PICTURE = Path(__file__).with_name("report.png")
URL = "s3://streams/prod/"
MINUTE = 60_000
NOW = int(datetime(2026, 11, 18, 9, 30, tzinfo=UTC).timestamp() * 1000)
EPOCHS = 720
"""Ten minutes each: five days."""
EACH_RUN = 12
"""A scan and a sweep every two hours: at so many epochs."""
BEHIND = {("orders", 3): 712, ("clicks", 7): 714, ("clicks", 11): 714, ("orders", 0): 717}
"""Partitions with unreconciled records, and from which epoch on."""
OUTAGE = range(330, 420)
"""Epochs in which the reconciler was down: M stood still."""
MIB = 1 << 20


class History:
    """What lies in the bucket at each epoch, and what became of it."""

    def __init__(self, cluster: ClusterHandles) -> None:
        self.cluster = cluster
        self.rng = random.Random(7)
        self.objects: dict[int, int] = {}
        self.size = {e: int(MIB * self.rng.uniform(1.2, 2.4)) for e in range(EPOCHS + 1)}
        self.held_at = min(BEHIND.values()) - 1

    def watermark(self, epoch: int) -> int:
        """M as the journals have it when `epoch` is the newest."""
        held = OUTAGE[0] - 1 if epoch in OUTAGE else epoch - 2
        return min(held, self.held_at)

    def upload(self, epoch: int) -> None:
        """An epoch's objects: more by day than by night."""
        self.objects[epoch] = int(900 * (1.3 + math.sin(2 * math.pi * epoch / 144)) * self.rng.uniform(0.8, 1.2))

    def scan(self, epoch: int, *, whole: bool) -> None:
        m, now = self.watermark(epoch), self.cluster.store.now_ms()
        eligible = {e: n for e, n in self.objects.items() if e <= m}
        everything, may_go = self._amount(self.objects), self._amount(eligible)
        totals = ScanTotals(
            cluster_id=self.cluster.controller.snapshot().cluster_id, taken_ms=now, watermark=m,
            cluster_epoch=epoch, objects=everything[0] + 2, bytes=everything[1],
            eligible_objects=may_go[0], eligible_bytes=may_go[1], unparsable=2,
            unparsable_samples=["level_zero/data/README.txt", "level_zero/data/007/backup-2026-11-02.tar"],
        )  # fmt: skip
        rows = [self._row(e, epoch, now) for e in sorted(self.objects)] if whole else []
        write_scan(self.cluster.store, self.cluster.runtime, ScanSnapshot(totals, rows))

    def sweep(self, epoch: int) -> None:
        m, at = self.watermark(epoch), self.cluster.store.now_ms()
        gone = {e: self.objects.pop(e) for e in sorted(self.objects) if e <= m}
        objects, size = self._amount(gone)
        run_id = f"{datetime.fromtimestamp(at / 1000, UTC):%Y%m%dT%H%M%SZ}-{self.rng.randrange(1 << 32):08x}"
        summary = RunSummary(
            run_id=run_id, started_ms=at, ended_ms=at + 40_000, outcome="done", watermark=m, cluster_epoch=epoch,
            end_shard=16, objects=objects, bytes=size, seconds=round(objects / 2400, 1),
        )  # fmt: skip
        write_summary(self.cluster.store, summary)

    def _amount(self, objects: Mapping[int, int]) -> tuple[int, int]:
        return sum(objects.values()), sum(n * self.size[e] for e, n in objects.items())

    def _row(self, e: int, epoch: int, now: int) -> ScanRow:
        held = ("orders/3", sum(since <= e for since in BEHIND.values())) if e > self.watermark(epoch) else ("", 0)
        return ScanRow(e, self.objects[e], self.objects[e] * self.size[e], now - (epoch - e) * 10 * MINUTE, *held)


def build() -> ClusterHandles:
    """A cluster that has run for five days, with a reconciler that is behind on some partitions."""
    clock = FakeClock(NOW - (EPOCHS * 10 + 4) * MINUTE)
    cluster = memory_cluster(MemoryStore(clock))
    cluster.controller.create_topic("orders", 8)
    cluster.controller.create_topic("clicks", 24)
    history = History(cluster)
    for epoch in range(cluster.controller.snapshot().epoch, EPOCHS + 1):
        clock.ms = NOW - ((EPOCHS - epoch) * 10 + 4) * MINUTE
        while cluster.controller.snapshot().epoch < epoch:
            cluster.controller.advance()
        history.upload(epoch)
        if epoch % EACH_RUN == 0 and epoch < min(BEHIND.values()):
            put(cluster, dict.fromkeys(range(8), 700), "orders")
            put(cluster, dict.fromkeys(range(24), 1_900), "clicks")
            if epoch not in OUTAGE:
                lift(cluster, "orders")
                lift(cluster, "clicks")
                write_attempt(cluster.store, Attempt("reconcile", 0, ""))
        for (topic, partition), since in BEHIND.items():
            if since == epoch:
                put(cluster, {partition: 1_200 + 37 * partition}, topic)
        housekeep(cluster)
        write_attempt(cluster.store, Attempt("housekeep", 0, ""))
        if epoch % EACH_RUN == 0 and epoch:
            clock.ms += MINUTE
            history.scan(epoch, whole=epoch == EPOCHS)
            clock.ms += MINUTE
            if epoch < EPOCHS:
                history.sweep(epoch)
    m, newest = history.watermark(EPOCHS), cluster.controller.snapshot()
    publish(cluster.store, cluster.runtime, PublishedWatermark(newest.cluster_id, m, newest.epoch, clock.ms - MINUTE))
    clock.ms = NOW
    return cluster


def chromium(*args: str) -> None:
    """Run a browser without a window and without the network."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        raise SystemExit("Chromium is not on the PATH")
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
    with tempfile.TemporaryDirectory(prefix="l0gc-report-") as temporary:
        page = Path(temporary) / "report.html"
        page.write_text(render(gather(build(), URL)), encoding="utf-8")
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
