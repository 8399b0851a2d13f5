"""Fills buckets that every program finds alike, and checks what it left.

A bucket is filled once. Each run starts its own server on a copy of the data folder, so that no program works on
another one's leftovers, and no server still cleans up after the one before. The whole bucket is listed before and after
a run: what had to be deleted is gone, everything else has the same ETag.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import obstore
from obstore.store import S3Store as Obstore

from benchmarks.drivers.fill import WATERMARK
from benchmarks.measure import BenchmarkFailedError, Sample
from benchmarks.setting import BENCHMARKS, Setting
from l0gc.embedded.seaweedfs import SeaweedFS

PREFIX: Final = "cluster/"
DATA: Final = f"{PREFIX}level_zero/data/"
RUNS: Final = f"{PREFIX}l0gc/runs/"
ATTEMPT: Final = f"{PREFIX}l0gc/attempts/sweep.json"
_L0: Final = re.compile(r"[0-9]{3}/([0-9]{18})/[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True)
class Filling:
    """A bucket with one cluster in it; `made_up` are the garbage and the live objects that its store generates."""

    bucket: str
    shards: int
    garbage: int
    live: int
    made_up: tuple[int, int] = (0, 0)


class Filled:
    """Buckets that are filled once and found alike by each run."""

    def __init__(self, setting: Setting, folder: Path, fillings: Sequence[Filling]) -> None:
        self._setting, self._folder = setting, folder
        self.fillings = {f.bucket: f for f in fillings}

    @contextmanager
    def server(self) -> Iterator[SeaweedFS]:
        """Start a server on a copy of the buckets."""
        copy = Path(tempfile.mkdtemp(dir=self._setting.bench.scratch, prefix="copy-"))
        try:
            shutil.copytree(self._folder, copy, dirs_exist_ok=True)
            with SeaweedFS(copy) as server:
                yield server
                os.kill(server.pid, signal.SIGKILL)  # the copy is not needed any more, and a polite stop takes a second
        finally:
            shutil.rmtree(copy, ignore_errors=True)

    def run(self, bucket: str, who: str, program: Callable[[SeaweedFS], Sample]) -> Sample:
        """Run a program on a copy of the buckets, and check that it swept `bucket`.

        Raises:
            BenchmarkFailedError: it left garbage, or touched something else.
        """
        with self.server() as server:
            warm_up(server, bucket)
            before = contents(server, bucket)
            sample = program(server)
            check_swept(who, before, contents(server, bucket), self.fillings[bucket])
        return sample


@contextmanager
def filled(setting: Setting, *fillings: Filling) -> Iterator[Filled]:
    """Fill buckets, with a cluster at `PREFIX` of each."""

    def fill(server: SeaweedFS) -> None:
        for f in fillings:
            print(f"filling {f.bucket}: {f.garbage:,} garbage and {f.live:,} live objects", file=sys.stderr)
            found(setting, server.environment(), f)

    with prepared(setting, fill) as folder:
        yield Filled(setting, folder, fillings)


@contextmanager
def prepared(setting: Setting, fill: Callable[[SeaweedFS], None]) -> Iterator[Path]:
    """Yield a server's data folder as `fill` left it; it is deleted afterwards."""
    folder = Path(tempfile.mkdtemp(dir=setting.bench.scratch, prefix="filled-"))
    try:
        with SeaweedFS(folder) as server:
            fill(server)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def warm_up(server: SeaweedFS, bucket: str) -> None:
    """Write once, because the first write of a new server takes seconds, and only l0gc's sweep writes (its record)."""
    server.client().put_object(Bucket=bucket, Key="warm", Body=b"up")


def found(setting: Setting, environment: dict[str, str], filling: Filling) -> None:
    """Found a cluster on a server and fill it."""
    setting.bench.run(
        [
            sys.executable,
            BENCHMARKS / "drivers" / "fill.py",
            *map(str, (filling.shards, filling.garbage, filling.live, *filling.made_up)),
        ],
        environment | {"L0GC_URL": url(filling.bucket)},
    )


def url(bucket: str) -> str:
    """Return the URL of a bucket's cluster."""
    return f"s3://{bucket}/{PREFIX}"


def contents(server: SeaweedFS, bucket: str) -> dict[str, str]:
    """Return every key of a bucket, with its ETag."""
    store = Obstore(
        bucket,
        endpoint=server.endpoint_url,
        region=server.region,
        access_key_id=server.access_key,
        secret_access_key=server.secret_key,
        client_options={"allow_http": True},
    )
    etags: dict[str, str] = {}
    for batch in obstore.list(store, chunk_size=1000, return_arrow=True):
        etags.update(zip(batch.column("path").to_pylist(), batch.column("e_tag").to_pylist(), strict=True))
    return etags


def is_garbage(key: str) -> bool:
    """Return whether a key is that of an L0 object at or below M; decided without l0gc's own code."""
    match = _L0.fullmatch(key[len(DATA) :]) if key.startswith(DATA) else None
    return match is not None and int(match[1]) <= WATERMARK


def check_swept(who: str, before: dict[str, str], after: dict[str, str], filling: Filling) -> None:
    """Check that nothing eligible is left, and nothing else was touched; only a run's record and its end may be new.

    Raises:
        BenchmarkFailedError: one of these does not hold.
    """
    garbage = {k for k in before if is_garbage(k)}
    if len(garbage) != filling.garbage:
        raise BenchmarkFailedError(
            f"{filling.bucket} was to hold {filling.garbage} garbage objects, not {len(garbage)}"
        )
    left = [k for k in after if is_garbage(k)]
    if left:
        raise BenchmarkFailedError(f"{who} left {len(left)} garbage objects, e.g. {left[0]}")
    touched = [k for k in before.keys() - garbage if after.get(k) != before[k]]
    if touched:
        raise BenchmarkFailedError(f"{who} touched {len(touched)} objects that were none of its business: {touched[0]}")
    new = [k for k in after.keys() - before.keys() if not k.startswith(RUNS) and k != ATTEMPT]
    if new:
        raise BenchmarkFailedError(f"{who} made {len(new)} objects that nobody requested, e.g. {new[0]}")
