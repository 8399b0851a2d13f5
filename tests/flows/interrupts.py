"""Sends Ctrl-C, SIGTERM and SIGHUP at moments spread over each long command: `python -m tests.flows.interrupts
--moments 40`.

Each command runs in its own process group, as a shell starts it, with the real Java, on a cluster with work for it. It
runs once to its end, which gives its duration, and then once for each moment. After each signal it must end with 128
plus the signal's number and one line, and nothing that it started may be left: no process, no temporary file, no
partial output. A run that ends before its moment ends with 0.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Final

from l0gc.embedded.seaweedfs import SeaweedFS
from l0gc.keys import PartitionId, level_one
from l0gc.storage.config import StoreConfig
from l0gc.storage.parallel import Parallel
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.level_one.reconcile import reconcile
from tests.support.ingest import upload
from tests.support.memory_store import publish_m
from tests.support.processes import marked, new_mark

BIN: Final = [sys.executable, "-c", "from l0gc.cli.entry import main; main()"]
SIGNALS: Final = (signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
NOTE: Final = re.compile("l0gc: (computing M|[a-z]+ing)(:|$|[a-z ]*:)|l0gc: stopping \\(a second signal")
"""Lines that appear on a machine that needs longer than a minute."""
TOPIC: Final = "events"
PARTITIONS: Final = 4
FIRST_S: Final = 0.3
_PATIENCE_S: Final = 180


@dataclass
class Bed:
    """The cluster of one command, and a folder for its files."""

    server: SeaweedFS
    bucket: str
    folder: Path
    cluster: ClusterHandles = field(init=False)
    _records: dict[int, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        config = StoreConfig(self.bucket, "", self.server.endpoint_url, self.server.region)
        env = self.server.environment()
        store = S3Store(config)
        os.environ.update(env)
        self.environment = {**env, "L0GC_URL": config.url}
        self.cluster = ClusterHandles(store)
        done = subprocess.run(
            [*BIN, "init", "--create-bucket", "--shards", "4"],
            env={**os.environ, **self.environment}, capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        self.cluster.controller.create_topic(TOPIC, PARTITIONS)

    def records(self, count: int) -> Path:
        """Return a file with this many records."""
        if count not in self._records:
            path = self._records[count] = self.folder / f"{count}.ndjson"
            path.write_bytes(b"".join(b'{"user": %d, "text": "%s"}\n' % (i, b"x" * 60) for i in range(count)))
        return self._records[count]

    def upload(self, count: int = 20_000) -> None:
        upload(self.cluster, TOPIC, [self.records(count)], batch_bytes=64 << 10)

    def put(self, keys: list[str]) -> None:
        with Parallel(16, "fill") as threads:
            threads.map(lambda key: self.cluster.store.put(key, b"x" * 100), keys)


# -- preparations of each command ------------------------------------------------------------------------------------------


def _uploaded(bed: Bed) -> None:
    bed.upload()


def _a_large_file(bed: Bed) -> None:
    bed.records(300_000)


def _garbage(bed: Bed) -> None:
    """Create a thousand L0 objects at epoch 0, with M at 0."""
    layout = bed.cluster.controller.layout()
    bed.put([layout.format(n % 4, 0, bed.cluster.runtime.new_id()) for n in range(1000)])
    publish_m(bed.cluster, 0)


def _small_l1(bed: Bed) -> None:
    for _ in range(6):
        bed.upload(2000)
        reconcile(bed.cluster)


def _orphans(bed: Bed) -> None:
    bed.cluster.controller.advance()
    revision = bed.cluster.controller.snapshot().topic(TOPIC).revision
    p = PartitionId(TOPIC, revision, 0)
    bed.put([level_one(p, revision, n, n, bed.cluster.runtime.new_id()) for n in range(800)])
    for _ in range(2):
        bed.cluster.controller.advance()


def _much_to_read(bed: Bed) -> None:
    if not bed.cluster.journal(0).catch_up().topics:
        bed.upload(300_000)
    (bed.folder / "out").unlink(missing_ok=True)


@dataclass(frozen=True)
class Long:
    """A long command: its arguments, in which FOLDER is the bed's folder, and the work that is prepared before each
    run.
    """

    arguments: tuple[str, ...]
    prepare: Callable[[Bed], None]

    def line(self, bed: Bed) -> list[str]:
        return [*BIN, *(a.replace("FOLDER", str(bed.folder)) for a in self.arguments)]


COMMANDS: Final = {
    "upload": Long(("upload", TOPIC, "FOLDER/300000.ndjson", "--batch-bytes", "256KiB"), _a_large_file),
    "reconcile": Long(("reconcile", "--engine", "spark"), _uploaded),
    "merge": Long(("merge", "--engine", "spark"), _small_l1),
    "compute-watermark": Long(("compute-watermark", "--engine", "spark"), _uploaded),
    "sweep": Long(("sweep", "--max-rate", "500"), _garbage),
    "vacuum": Long(("vacuum", "--l1-grace", "0s", "--orphan-age", "0s", "--max-rate", "400"), _orphans),
    "gc": Long(("gc", "--engine", "spark"), _uploaded),
    "verify": Long(("verify", "--deep", "--engine", "spark"), _uploaded),
    "read": Long(("read", TOPIC, "-o", "FOLDER/out"), _much_to_read),
}


# -- interrupts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """How a command ended after a signal, and what it left behind."""

    command: str
    after_s: float
    number: signal.Signals
    code: int
    err: str
    processes: list[str]
    files: list[str]

    def __str__(self) -> str:
        said = self.err.strip() or "nothing was said"
        left = [f"left: {x}" for x in (*self.processes, *self.files)]
        return " | ".join([f"{self.command} after {self.after_s:.1f} s, {self.number.name}: {self.code}", said, *left])

    @property
    def good(self) -> bool:
        lines = [line for line in self.err.splitlines() if not NOTE.match(line)]
        if self.code == 0:
            said = not lines
        else:
            said = (
                self.code == 128 + self.number
                and len(lines) == 1
                and re.match("l0gc: stopped[:;] ", lines[0]) is not None
            )
        return said and not self.processes and not self.files


def outcomes(server: SeaweedFS, name: str, bucket: str, folder: Path, moments: int) -> Iterator[Outcome]:
    """Interrupt a command at this many moments, evenly spread over the duration of a whole run."""
    command, bed = COMMANDS[name], Bed(server, bucket, folder)
    command.prepare(bed)
    began = time.monotonic()
    whole = subprocess.run(
        command.line(bed), env={**os.environ, **bed.environment}, capture_output=True, check=False, timeout=_PATIENCE_S
    )
    seconds = time.monotonic() - began
    assert whole.returncode == 0, whole.stderr.decode()
    size = (folder / "out").stat().st_size if (folder / "out").exists() else None
    for moment, number in enumerate(islice(cycle(SIGNALS), moments), 1):
        command.prepare(bed)
        after_s = FIRST_S + (seconds - FIRST_S) * moment / (moments + 1)
        outcome = _interrupted(name, command.line(bed), bed, after_s, number, size)
        if outcome.code == 0:
            seconds = min(seconds, after_s)  # it had ended by then: the first run was slower
        yield outcome


def _interrupted(
    name: str, line: list[str], bed: Bed, after_s: float, number: signal.Signals, size: int | None
) -> Outcome:
    mark = new_mark()
    before = {p.name for p in bed.folder.iterdir()}
    with tempfile.TemporaryDirectory(dir=bed.folder) as temporary:
        before.add(Path(temporary).name)
        process = subprocess.Popen(
            line,
            env={**os.environ, **bed.environment, **mark, "TMPDIR": temporary},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        time.sleep(after_s)
        if process.poll() is None:
            os.killpg(process.pid, number)
        _, err = process.communicate(timeout=_PATIENCE_S)  # no other process has its stdout, or this would hang
        left = marked(mark)
        files = [p.name for p in Path(temporary).iterdir()]
        for p in bed.folder.iterdir():
            if p.name not in before and not (p.name == "out" and p.stat().st_size == size):
                files.append(p.name)
    return Outcome(name, after_s, number, process.returncode, err.decode(), left, files)


def main() -> int:
    """Run what the arguments request; return 1 if a command ended wrongly."""
    arguments = argparse.ArgumentParser(description="Interrupt long commands at moments spread over each.")
    arguments.add_argument("--moments", type=int, default=40)
    arguments.add_argument("commands", nargs="*", metavar="COMMAND", help=f"of {', '.join(COMMANDS)}; all by default")
    options = arguments.parse_args()
    for number in (signal.SIGINT, signal.SIGHUP):  # a shell that starts this in the background ignores them
        signal.signal(number, signal.SIG_DFL)
    bad = 0
    with SeaweedFS() as server:
        for name in options.commands or COMMANDS:
            began = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="l0gc-interrupts-") as folder:
                found = []
                for o in outcomes(server, name, f"interrupts-{name}", Path(folder), options.moments):
                    found.append(o)
                    sys.stdout.write(f"{'ok ' if o.good else 'BAD'} {o}\n")
                    sys.stdout.flush()
            wrong = sum(not o.good for o in found)
            bad += wrong
            seconds = time.monotonic() - began
            sys.stdout.write(
                f"{name}: {len(found)} moments, {sum(o.code != 0 for o in found)} of them in time, {wrong} bad, "
                f"{seconds / max(1, len(found)):.1f} s each\n"
            )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
