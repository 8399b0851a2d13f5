"""Measures how a sweep grows with the bucket: requests and time at constant garbage, and memory.

A bucket that is too large to fill is generated as it is listed (`benchmarks.support.generated`), behind its own S3
server, so that the whole process is measured with its usual client. Smaller ones are on SeaweedFS, too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from benchmarks.measure import BenchmarkFailedError, Goal, Ratio, Result, Sample, Spread, interleave
from benchmarks.scenarios.sweep_beside import OURS, l0gc_sweep
from benchmarks.setting import Setting
from benchmarks.support.buckets import Filled, Filling, filled, found
from benchmarks.support.fake_s3 import BUCKET, FakeS3
from benchmarks.support.generated import GeneratedBucket
from benchmarks.support.goals import PAGE, delete_bound, list_bound, ratio

FLAT_GOAL: Final = 1.1
MEMORY_GOAL: Final = 1.05
SHARDS: Final = 1_000
LIVE_GARBAGE: Final = 1_000
"""Garbage objects in a bucket whose other objects are live."""
COUNTED: Final = "counted"


def growth(setting: Setting) -> Result:
    """Measure requests and time of a sweep as the bucket grows at constant garbage."""
    garbage = 200 if setting.quick else 2_000
    sizes = (1_000, 10_000, 100_000) if setting.quick else (10_000, 100_000, 1_000_000, 10_000_000)
    shards = (4, 50) if setting.quick else (16, 1_000)
    real_up_to = 1_000 if setting.quick else 100_000
    real = [Filling(f"keys-{n}-{s}", s, garbage, n - garbage) for s in shards for n in sizes if n <= real_up_to]
    cases = [(s, n) for s in shards for n in sizes]
    with ExitStack() as stack:
        buckets = stack.enter_context(filled(setting, *real))
        programs = {_name(f.shards, f.garbage + f.live, "SeaweedFS"): _on_seaweedfs(setting, buckets, f) for f in real}
        programs |= {_name(s, n, "generated"): _on_generated(setting, n, garbage, s) for s, n in cases}
        samples = interleave(programs, setting.runs)
    goals: list[Goal] = []
    head = f"{'shards':>8}{'keys':>12}  {'store':10}{'LIST':>7}{'bound':>7}{'DELETE':>8}{'bound':>7}{'wall, s':>9}"
    notes, over = [head], 0
    for s, n in cases:
        bounds = list_bound(n, garbage, s), delete_bound(garbage)
        for store in ("SeaweedFS", "generated"):
            if (runs := samples.get(_name(s, n, store))) is None:
                continue
            lists, deletes = _requests(runs[0])
            wall = Spread.of([r.wall for r in runs]).median
            over += lists > bounds[0] or deletes > bounds[1]
            notes.append(f"{s:8,}{n:12,}  {store:10}{lists:7,}{bounds[0]:7,}{deletes:8,}{bounds[1]:7,}{wall:9.2f}")
        larger = [m for m in sizes if m > n]
        if n >= s * PAGE and larger:
            at, to = (samples[_name(s, k, "generated")] for k in (n, larger[0]))
            what = f"{s:,} shards, {larger[0]:,} / {n:,} keys"
            sent = Ratio.of([sum(_requests(r)) for r in to], [sum(_requests(r)) for r in at])
            goals.append(Goal(f"{what}, LIST + DELETE", sent.of_medians, FLAT_GOAL, sent.text()))
            wall_ratio = Ratio.of([r.wall for r in to], [r.wall for r in at])
            goals.append(Goal(f"{what}, wall", wall_ratio.of_medians, FLAT_GOAL, wall_ratio.text()))
    goals.append(Goal("buckets with more requests than the bound", over, 0, str(over)))
    notes.append(
        "a goal is set where the smaller bucket has shards x 1,000 keys already: from there on it is to be flat"
    )
    return Result("sweep-growth", f"a growing bucket with {garbage:,} garbage objects", samples, goals, notes)


def memory(setting: Setting) -> Result:
    """Measure the peak memory of a sweep, for a small and for a large bucket."""
    small, large = (2_000, 20_000) if setting.quick else (10_000, 1_000_000)
    programs = {
        f"{what}, {n:,} keys": _on_generated(setting, n, n if what == "garbage" else LIVE_GARBAGE, SHARDS)
        for what in ("garbage", "live")
        for n in (small, large)
    }
    samples = interleave(programs, setting.runs)
    goals = []
    for what in ("garbage", "live"):
        r = ratio(samples, f"{what}, {large:,} keys", f"{what}, {small:,} keys", lambda s: s.rss_mib)
        apart = max(r.of_medians, 1 / r.of_medians)
        goals.append(Goal(f"{what}, peak RSS, large / small bucket", apart, MEMORY_GOAL, r.text()))
    title = f"peak memory of a sweep does not depend on the bucket; all garbage, or all but {LIVE_GARBAGE:,} live"
    return Result("sweep-memory", title, samples, goals)


def _name(shards: int, keys: int, store: str) -> str:
    return f"{keys:,} keys, {shards:,} shards, {store}"


def _on_seaweedfs(setting: Setting, buckets: Filled, filling: Filling) -> Callable[[int], Sample]:
    sweep = l0gc_sweep(setting)

    def run(_: int) -> Sample:
        return buckets.run(
            filling.bucket, OURS, lambda server: sweep(filling.bucket, server.endpoint_url, server.environment())
        )

    return run


def _on_generated(setting: Setting, keys: int, garbage: int, shards: int) -> Callable[[int], Sample]:
    sweep = l0gc_sweep(setting)

    def run(_: int) -> Sample:
        bucket = GeneratedBucket(keys, garbage, shards)
        with FakeS3(bucket) as server:
            found(setting, server.environment(), Filling(BUCKET, shards, 0, 0, (garbage, keys - garbage)))
            before = bucket.left()
            if before != (garbage, keys - garbage):
                raise BenchmarkFailedError(
                    f"the generated bucket was to hold {garbage} garbage objects, not {before[0]}"
                )
            server.begin()
            sample = sweep(BUCKET, server.endpoint_url, server.environment())
            sample.output[COUNTED] = dict(server.counts)
        check_generated(OURS, bucket)
        return sample

    return run


def check_generated(who: str, bucket: GeneratedBucket) -> None:
    """Check that nothing eligible is left, and nothing else was touched.

    Raises:
        BenchmarkFailedError: one of the two does not hold.
    """
    left = bucket.left()
    if left != (0, bucket.keys - bucket.garbage) or bucket.wronged:
        raise BenchmarkFailedError(
            f"{who} left {left[0]} garbage and {left[1]} of {bucket.keys - bucket.garbage} live objects, and named "
            f"{bucket.wronged} keys that were none of its business"
        )


def _requests(sample: Sample) -> tuple[int, int]:
    """Return LIST requests of the data prefix, and DELETE requests: those that the server counted, else those that l0gc
    reports.

    One of the LIST requests that l0gc reports lists unfinished uploads.
    """
    counted = sample.output.get(COUNTED)
    if counted is not None:
        return counted.get("LIST", 0), counted.get("DELETE", 0)
    reported = sample.output["requests"]
    return reported["list"] - 1, reported["delete"]
