"""A soak: `python -m tests.flows.soak --minutes 12`.

Uploaders, `gc` and `vacuum` in loops, topics that are deleted and made again, each a command of its own process, and every
few seconds one of them is killed. A killed command is run again with the same arguments. Then all topics but one are
deleted, the store's clock goes on by some 20 minutes, and everything is collected without grace: what is left must be a few
objects and the L1 of that topic, which has every acknowledged record, once and in order.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from l0gc.embedded.seaweedfs import SeaweedFS
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.reader import read_topic
from tests.support.cli import BIN
from tests.support.proxy import Proxy

UPLOADERS = 2
CHURNED = 3
RECORDS = 40
AHEAD_S = 20 * 60
SCANS_ARE_OLD_S = 91 * 86_400
KEPT = "kept"
MOST_LEFT = 150
_PATIENCE_S = 300
_OFTEN = {"L0GC_EPOCH_INTERVAL": "2s"}


@dataclass
class Soak:
    """One run.

    Attributes:
        acknowledged: the records of each uploader that the command reported as landed.
        ended: how commands ended, by their name and exit code.
    """

    server: SeaweedFS
    seconds: float
    seed: int = 0
    kill_every_s: float = 4.0
    bucket: str = "soak"
    acknowledged: dict[int, list[bytes]] = field(default_factory=dict)
    ended: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "L0GC_"))},
            **self.server.environment(),
            "L0GC_URL": f"s3://{self.bucket}/cluster",
            **_OFTEN,
        }

    # -- commands -----------------------------------------------------------------------------------------------------

    def command(self, *args: str, stdin: bytes = b"", environment: Mapping[str, str] | None = None) -> int:
        """Run a command that the killer may kill, and return its exit code."""
        process = subprocess.Popen(
            [*BIN, *args],
            env={**self._environment, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        with self._lock:
            self._running[process.pid] = process
        try:
            _, err = process.communicate(stdin, timeout=_PATIENCE_S)
        finally:
            process.kill()
            with self._lock:
                del self._running[process.pid]
                self.ended[f"{args[0]} {process.returncode}"] += 1
        if process.returncode not in (0, -9):
            self.failures.append(f"{' '.join(args)}: {process.returncode} {err.decode().strip()[-500:]}")
        return process.returncode

    def until_done(self, *args: str, stdin: bytes = b"") -> None:
        """Run a command until it is not killed, or ten times."""
        for _ in range(10):
            if self.command(*args, stdin=stdin) == 0:
                return
        raise AssertionError(f"{args} never succeeded: {self.failures[-1:]}")

    # -- the actors ---------------------------------------------------------------------------------------------------

    def _upload(self, uploader: int) -> None:
        self.acknowledged[uploader] = []
        while not self._over.is_set():
            there = self.acknowledged[uploader]
            new = [b"%d:%06d" % (uploader, len(there) + i) for i in range(RECORDS)]
            args = ("upload", KEPT, "-", "--partition", str(uploader), "--producer", f"uploader-{uploader}")
            self.until_done(*args, "--batch-bytes", "200", stdin=b"".join(r + b"\n" for r in new))
            there += new

    def _gc(self) -> None:
        while not self._over.is_set():
            self.command("gc", "--engine", "local", "--vacuum-l1-grace", "0s", "--vacuum-orphan-age", "5s")

    def _vacuum(self) -> None:
        while not self._over.is_set():
            self.command("vacuum", "--l1-grace", "0s", "--orphan-age", "5s")

    def _churn(self) -> None:
        while not self._over.is_set():
            name = f"churned-{self._chance.randrange(CHURNED)}"
            if self.command("topic", "create", name, "--partitions", "2") == 0:
                self.command("upload", name, "-", stdin=b"x\n" * RECORDS)
                self.command("gc", "--engine", "local")
                self.command("topic", "delete", name, "--yes")

    def _kill(self) -> None:
        while not self._over.wait(self.kill_every_s):
            with self._lock:
                if self._running:
                    self._running[self._chance.choice(sorted(self._running))].kill()

    # -- the soak -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run everything, and raise `AssertionError` if something is lost, doubled or left over."""
        self.until_done("init", "--create-bucket", "--shards", "4")
        self.until_done("topic", "create", KEPT, "--partitions", str(UPLOADERS))
        workers = [threading.Thread(target=self._upload, args=(u,)) for u in range(UPLOADERS)]
        workers += [threading.Thread(target=work) for work in (self._gc, self._vacuum, self._churn, self._kill)]
        for worker in workers:
            worker.start()
        time.sleep(self.seconds)
        self._over.set()
        for worker in workers:
            worker.join(2 * _PATIENCE_S)
            assert not worker.is_alive()
        self.collect()
        self.check()

    def collect(self) -> None:
        """Delete all topics except one, and collect everything while time passes."""
        cluster = ClusterHandles(self._store())
        for name in sorted(set(cluster.controller.snapshot().topics) - {KEPT}):
            self.until_done("topic", "delete", name, "--yes")
        self.until_done("gc", "--engine", "local", "--housekeep-barrier")
        with Proxy(self.server.endpoint_url, clock_ahead_s=AHEAD_S) as proxy:
            later = {"AWS_ENDPOINT_URL_S3": proxy.endpoint_url}
            keep = ("--keep-runs", "0s", "--l1-grace", "0s", "--orphan-age", "0s")
            keep_in_gc = [a.replace("--", "--vacuum-", 1) for a in keep]
            for args in (
                ("housekeep",),
                ("epoch", "advance"),
                ("epoch", "advance"),
                ("gc", "--engine", "local", "--housekeep-barrier", *keep_in_gc),
                ("epoch", "advance"),
                ("epoch", "advance"),
                ("vacuum", *keep),
                ("housekeep",),
                ("vacuum", *keep),
            ):
                assert self.command(*args, environment=later) == 0, self.failures
        with Proxy(self.server.endpoint_url, clock_ahead_s=SCANS_ARE_OLD_S) as proxy:
            later = {"AWS_ENDPOINT_URL_S3": proxy.endpoint_url}
            assert self.command("vacuum", *keep, environment=later) == 0, self.failures

    def check(self) -> None:
        """Check what must hold at the end."""
        store = self._store()
        keys = [k for page in store.scan("") for k in page.keys]
        cluster = ClusterHandles(store)
        topic = cluster.controller.snapshot().topic(KEPT)
        kept = [k for k in keys if f"/{KEPT}-{topic.revision}/" in k]
        rest = Counter("/".join(k.split("/")[:2]) for k in keys if k not in set(kept))
        assert rest.total() <= MOST_LEFT, rest
        assert not [k for k in keys if k.startswith("level_one/") and k not in set(kept)]
        values: dict[int, list[bytes]] = {p: [] for p in range(UPLOADERS)}
        for r in read_topic(cluster, topic):
            assert r.offset == len(values[r.partition])
            values[r.partition].append(r.value)
        assert values == self.acknowledged
        killed = sum(n for name, n in self.ended.items() if name.endswith("-9"))
        sys.stdout.write(
            f"{sum(map(len, values.values())):,} records, {killed} commands killed, {rest.total()} objects left beside "
            f"{len(kept)} of L1; {dict(rest)}; {dict(self.ended)}\n"
        )
        assert killed

    def _store(self) -> S3Store:
        return S3Store(
            StoreConfig(
                self.bucket, "cluster/", self.server.endpoint_url, self.server.region,
            )
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.flows.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kill-every", type=float, default=20, metavar="SECONDS")
    options = parser.parse_args()
    with SeaweedFS() as server:
        os.environ.update(server.environment())
        soak = Soak(server, options.minutes * 60, options.seed, options.kill_every)
        try:
            soak.run()
        finally:
            for failure in soak.failures:
                sys.stdout.write(f"{failure}\n")


if __name__ == "__main__":
    main()
