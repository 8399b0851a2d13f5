"""compute-watermark: on a small bucket, and its listing beside a plain boto3 loop.

The time shown is the one that the command reports (`seconds` of --json), or the wall time of its process without
Spark's start, which is the same whatever there is to do.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Final

from benchmarks.measure import BenchmarkFailedError, Goal, Result, Sample, Spread, interleave
from benchmarks.scenarios.basic import small_cluster, wall_goal
from benchmarks.setting import BENCHMARKS, Setting
from benchmarks.support.buckets import DATA, Filling, filled, url, warm_up
from benchmarks.support.goals import ratio
from l0gc.embedded.seaweedfs import SeaweedFS

SMALL_GOAL: Final = 12.0
SCAN_GOAL: Final = 0.6
OURS: Final = "l0gc compute-watermark"
PLAIN: Final = "boto_scan.py"


def small(setting: Setting) -> Result:
    """The watermark job on a small bucket: what Spark costs before there is any work."""
    prefix = small_cluster(setting)

    def run(_: int) -> Sample:
        sample = setting.l0gc(prefix, "compute-watermark")
        if not sample.output["published"] or not sample.output["listing"]["objects"]:
            raise BenchmarkFailedError(f"compute-watermark was to publish M and see objects, but: {sample.output}")
        return sample

    samples = interleave({OURS: run}, setting.runs)
    title = "compute-watermark on a small bucket, from start to exit"
    return Result("watermark-small", title, samples, [wall_goal(samples, OURS, SMALL_GOAL)], [_timings(samples[OURS])])


def scan_beside(setting: Setting) -> Result:
    """The scan of a large bucket beside a plain boto3 paginator that adds up the same in one process."""
    half = 2_000 if setting.quick else 100_000
    filling = Filling("scan", 1000, half, half)

    def ours(server: SeaweedFS) -> Sample:
        sample = _compute(setting, server, filling.bucket)
        return replace(sample, job=sample.wall - sample.output["seconds"]["spark"])

    def plain(server: SeaweedFS) -> Sample:
        script = BENCHMARKS / "peers" / "boto_scan.py"
        sample = setting.bench.run([sys.executable, script, filling.bucket, DATA], server.environment())
        return replace(sample, job=sample.wall)

    with filled(setting, filling) as buckets, buckets.server() as server:
        warm_up(server, filling.bucket)
        samples = interleave({OURS: lambda _: ours(server), PLAIN: lambda _: plain(server)}, setting.runs)
    expected = samples[PLAIN][0].output["epochs"]
    for sample in samples[OURS]:
        found = {str(r["epoch"]): [r["objects"], r["bytes"]] for r in sample.output["listing"]["epochs"]}
        if found != {e: sums for e, sums in expected.items() if e != "none"}:
            raise BenchmarkFailedError(f"compute-watermark was to find {expected}, and says {found}")
    job = ratio(samples, OURS, PLAIN, lambda s: s.job or 0.0)
    goal = Goal("l0gc without Spark's start / plain, wall", job.of_medians, SCAN_GOAL, job.text())
    title = f"{2 * half:,} objects over {filling.shards:,} shards; job: the process without Spark's start"
    return Result("scan-beside", title, samples, [goal], [_timings(samples[OURS])])


def _compute(setting: Setting, server: SeaweedFS, bucket: str, *flags: str) -> Sample:
    command = [setting.program("l0gc"), "compute-watermark", "--json", *flags]
    return setting.bench.run(command, server.environment() | {"L0GC_URL": url(bucket)})


def _timings(samples: list[Sample]) -> str:
    """Where the time goes: the median of each part."""
    timings = {
        part: Spread.of([s.output["seconds"][part] for s in samples]).median for part in samples[0].output["seconds"]
    }
    rest = Spread.of([s.wall - sum(s.output["seconds"].values()) for s in samples]).median
    median_parts = ", ".join(f"{part} {seconds:.2f}" for part, seconds in timings.items())
    return f"medians, s: {median_parts}, Python and the end of Spark {rest:.2f}"
