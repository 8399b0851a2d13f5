"""Measures keys per second of processor time, the figures with which docs/why/scaling.md computes.

Each is the difference between a large and a small bucket, which excludes the start. A server generates the buckets as
they are listed, and takes its share of the machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from statistics import median
from typing import Final

from benchmarks.measure import Result, Sample, interleave
from benchmarks.setting import Setting
from benchmarks.support.buckets import Filling, found, url
from benchmarks.support.fake_s3 import BUCKET, FakeS3
from benchmarks.support.generated import GeneratedBucket

SHARDS: Final = 1_000


def rates(setting: Setting) -> Result:
    """Measure keys listed and deleted in a second of processor time."""
    listed, deleted, scanned = (5_000, 2_000, 5_000) if setting.quick else (500_000, 200_000, 1_000_000)
    on_spark = ("compute-watermark", "--dry-run", "--engine", "spark")
    programs = {
        "sweep --dry-run, none": on_generated(setting, SHARDS, 0, "sweep", "--dry-run"),
        "sweep --dry-run, all garbage": on_generated(setting, listed, listed, "sweep", "--dry-run"),
        "sweep, all garbage": on_generated(setting, deleted, deleted, "sweep"),
        "compute-watermark, few": on_generated(setting, SHARDS, 0, *on_spark),
        "compute-watermark, many": on_generated(setting, scanned, 0, *on_spark),
    }
    samples = interleave(programs, setting.runs)

    def per_second(keys: int, large: str, small: str, seconds: Callable[[Sample], float]) -> float:
        taken = [median(map(seconds, samples[name])) for name in (large, small)]
        return keys / max(0.01, taken[0] - taken[1])

    sweep = "sweep --dry-run, none"
    cores = os.cpu_count() or 1
    spark = per_second(scanned, "compute-watermark, many", "compute-watermark, few", lambda s: s.wall) / cores
    notes = [
        f"sweep lists {per_second(listed, 'sweep --dry-run, all garbage', sweep, lambda s: s.cpu):,.0f} keys a second",
        f"sweep deletes {per_second(deleted, 'sweep, all garbage', sweep, lambda s: s.cpu):,.0f} objects a second",
        f"compute-watermark lists at least {spark:,.0f} keys a second on each of {cores} cores, by its wall time",
    ]
    return Result("rates", "keys for a second of processor time", samples, [], notes)


def on_generated(
    setting: Setting, keys: int, garbage: int, *command: str, delay_s: float = 0.0
) -> Callable[[int], Sample]:
    def run(_: int) -> Sample:
        with FakeS3(GeneratedBucket(keys, garbage, SHARDS), delay_s=delay_s) as server:
            environment = server.environment()
            found(setting, environment, Filling(BUCKET, SHARDS, 0, 0, (garbage, keys - garbage)))
            server.begin()
            return setting.bench.run(
                [setting.program("l0gc"), *command, "--json"], environment | {"L0GC_URL": url(BUCKET)}
            )

    return run
