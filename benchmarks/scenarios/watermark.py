"""Compares compute-watermark's listing with a plain boto3 loop, and tests whether `auto` takes the faster engine.

The time shown is the one that the command reports (`seconds` of --json), or the wall time of its process without
Spark's start, which does not depend on the work.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from benchmarks.measure import BenchmarkFailedError, Goal, Result, Sample, Spread, interleave
from benchmarks.scenarios.rates import SHARDS, on_generated
from benchmarks.setting import BENCHMARKS, Setting
from benchmarks.support.buckets import DATA, Filling, filled, url, warm_up
from benchmarks.support.fake_s3 import BUCKET, FakeS3
from benchmarks.support.generated import GeneratedBucket
from benchmarks.support.goals import ratio
from l0gc.api.estimate import LISTING, START_S, EngineEstimate, SparkTarget
from l0gc.embedded.seaweedfs import SeaweedFS
from l0gc.storage.workers import LOCAL, SPARK

SCAN_GOAL: Final = 0.6
SCAN_FAR_GOAL: Final = 0.25
OURS: Final = "l0gc compute-watermark"
PLAIN: Final = "boto_scan.py"
ENGINES: Final = (LOCAL, SPARK)
JOURNALS: Final = 16
AUTO_GOAL: Final = 1.2
FAR_S: Final = 0.05
EXECUTOR_KEYS: Final = 1_000_000
"""In the measured sweep half of them are garbage, since a sweep jumps over live objects."""
EXECUTOR_GOALS: Final = {2: 1.8, 4: 3.4}
"""How many times as fast as a single task this number of tasks must be."""


def scan_beside(setting: Setting) -> Result:
    """Compare the scan of a large bucket with a plain boto3 paginator that adds up the same in one process."""
    half = 2_000 if setting.quick else 100_000
    filling = Filling("scan", 1000, half, half)

    def ours(server: SeaweedFS) -> Sample:
        sample = _compute(setting, server, filling.bucket)
        return replace(sample, job=sample.wall - sample.output["seconds"].get("spark", 0.0))

    def plain(server: SeaweedFS) -> Sample:
        sample = _boto_scan(setting, server.environment(), filling.bucket)
        return replace(sample, job=sample.wall)

    with filled(setting, filling) as buckets, buckets.server() as server:
        warm_up(server, filling.bucket)
        samples = interleave({OURS: lambda _: ours(server), PLAIN: lambda _: plain(server)}, setting.runs)
    _check_sums(samples)
    job = ratio(samples, OURS, PLAIN, lambda s: s.job or 0.0)
    goal = Goal("l0gc without Spark's start / plain, wall", job.of_medians, SCAN_GOAL, job.text())
    title = f"{2 * half:,} objects over {filling.shards:,} shards; job: the process without Spark's start"
    return Result("scan-beside", title, samples, [goal], [_timings(samples[OURS])])


def scan_far(setting: Setting) -> Result:
    """Compare the listing of a bucket in a store that takes 50 ms to answer with a plain boto3 paginator."""
    keys = 20_000 if setting.quick else 400_000

    def plain(_: int) -> Sample:
        with FakeS3(GeneratedBucket(keys, 0, SHARDS), delay_s=FAR_S) as server:
            server.begin()
            return _boto_scan(setting, server.environment(), BUCKET)

    ours = on_generated(setting, keys, 0, "compute-watermark", "--dry-run", "--engine", "local", delay_s=FAR_S)
    samples = interleave({OURS: ours, PLAIN: plain}, setting.runs)
    _check_sums(samples)
    wall = ratio(samples, OURS, PLAIN)
    goal = Goal("l0gc / plain, wall", wall.of_medians, SCAN_FAR_GOAL, wall.text())
    return Result("scan-far", f"{keys:,} made-up keys, {FAR_S * 1000:g} ms before each answer", samples, [goal])


def _boto_scan(setting: Setting, environment: dict[str, str], bucket: str) -> Sample:
    script = BENCHMARKS / "peers" / "boto_scan.py"
    return setting.bench.run([sys.executable, script, bucket, DATA], environment)


def _check_sums(samples: dict[str, list[Sample]]) -> None:
    """Raise `BenchmarkFailedError` if the two programs report different sums for the bucket."""
    expected = samples[PLAIN][0].output["epochs"]
    for sample in samples[OURS]:
        found = {str(r["epoch"]): [r["objects"], r["bytes"]] for r in sample.output["listing"]["epochs"]}
        if found != {e: sums for e, sums in expected.items() if e != "none"}:
            raise BenchmarkFailedError(f"compute-watermark was to find {expected}, and says {found}")


def engines(setting: Setting) -> Result:
    """Compare `--engine auto` with the better of one process and Spark on this machine, and measure their rates."""
    sizes = (SHARDS, 5_000, 20_000) if setting.quick else (SHARDS, 100_000, 1_000_000)
    programs = {
        _of_engine(engine, keys): on_generated(
            setting, keys, 0, "compute-watermark", "--dry-run", "--engine", engine, delay_s=FAR_S
        )
        for keys in sizes
        for engine in ENGINES
    }
    samples = interleave(programs, setting.runs)
    cores = os.cpu_count() or 1
    estimate = EngineEstimate(LISTING, JOURNALS, cores, SparkTarget("local[*]", cores))
    goals, at = [], dict[str, dict[int, float]]()
    for engine in ENGINES:
        walls = {keys: Spread.of([s.wall for s in samples[_of_engine(engine, keys)]]).median for keys in sizes}
        a_key = (walls[sizes[-1]] - walls[sizes[0]]) / (sizes[-1] - sizes[0])
        at[engine] = walls | {10 * sizes[-1]: walls[sizes[-1]] + 9 * sizes[-1] * a_key}
    for keys in (*sizes, 10 * sizes[-1]):
        chosen = SPARK if keys >= estimate.break_even else LOCAL
        slower = at[chosen][keys] / min(at[engine][keys] for engine in ENGINES)
        extrapolated = "" if keys in sizes else ", extrapolated"
        goals.append(Goal(f"auto / better, {keys:,} keys", slower, AUTO_GOAL, f"{slower:.2f} ({chosen}{extrapolated})"))
    rate = {e: (sizes[-1] - sizes[0]) / (at[e][sizes[-1]] - at[e][sizes[0]]) for e in ENGINES}
    notes = [
        f"Spark's start: {at[SPARK][sizes[0]] - at[LOCAL][sizes[0]]:.1f} s (l0gc/api/estimate.py has {START_S})",
        f"keys a second: {rate[LOCAL]:,.0f} in one process, {rate[SPARK] / cores:,.0f} on each core of Spark "
        f"(l0gc/api/estimate.py has {LISTING.here:,} and {LISTING.core:,})",
    ]
    title = f"one process and Spark on this machine, from start to exit; {FAR_S * 1000:g} ms before each answer"
    return Result("engines", title, samples, goals, notes)


def _of_engine(engine: str, keys: int) -> str:
    return f"{engine}, {keys:,} keys"


def executors(setting: Setting) -> Result:
    """Measure the scan and a sweep on Spark with one, two and four tasks, in a store that takes 50 ms to answer."""
    keys, counts = (20_000, (1, 2)) if setting.quick else (EXECUTOR_KEYS, (1, *EXECUTOR_GOALS))
    commands: dict[str, tuple[int, tuple[str, ...], Callable[[Sample], float]]] = {
        "scan": (0, ("compute-watermark", "--dry-run"), lambda s: float(s.output["seconds"]["listing"])),
        "sweep": (keys // 2, ("sweep",), lambda s: float(s.output["seconds"])),
    }

    def program(what: str, count: int) -> Callable[[int], Sample]:
        garbage, command, seconds = commands[what]
        on_spark = (*command, "--engine", "spark", "--master", f"local[{count}]")
        run = on_generated(setting, keys, garbage, *on_spark, delay_s=FAR_S)

        def job(number: int) -> Sample:
            sample = run(number)
            return replace(sample, job=seconds(sample))

        return job

    samples = interleave({_tasks(what, c): program(what, c) for what in commands for c in counts}, setting.runs)
    goals = []
    for what in commands:
        for count in counts[1:]:
            one = ratio(samples, _tasks(what, count), _tasks(what, 1), lambda s: s.job or 0.0)
            text = f"{one.text()}, {1 / one.of_medians:.2f} times"
            goals.append(Goal(f"{what}, {count} at once / one, job", one.of_medians, 1 / EXECUTOR_GOALS[count], text))
    title = f"{keys:,} made-up keys, {FAR_S * 1000:g} ms before each answer; job: without Spark's start"
    return Result("spark-executors", title, samples, goals)


def _tasks(what: str, count: int) -> str:
    return f"{what}, {count} at once"


def _compute(setting: Setting, server: SeaweedFS, bucket: str, *flags: str) -> Sample:
    command = [setting.program("l0gc"), "compute-watermark", "--json", *flags]
    return setting.bench.run(command, server.environment() | {"L0GC_URL": url(bucket)})


def _timings(samples: list[Sample]) -> str:
    """Describe how the time is spent: the median of each part."""
    timings = {
        part: Spread.of([s.output["seconds"][part] for s in samples]).median for part in samples[0].output["seconds"]
    }
    rest = Spread.of([s.wall - sum(s.output["seconds"].values()) for s in samples]).median
    median_parts = ", ".join(f"{part} {seconds:.2f}" for part, seconds in timings.items())
    return f"medians, s: {median_parts}, Python and the end of Spark {rest:.2f}"
