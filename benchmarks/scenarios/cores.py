"""Measures upload, reconcile, read and merge in one process on all cores, next to programs that promise nothing."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.measure import BenchmarkFailedError, Goal, Ratio, Result, Sample, Spread, interleave
from benchmarks.scenarios.basic import check
from benchmarks.scenarios.sweep_beside import s5cmd_binary
from benchmarks.setting import BENCHMARKS, BUCKET, Setting
from benchmarks.support.goals import ratio

TOPIC: Final = "flights"
UPLOAD: Final = "l0gc upload"
COPY: Final = "s5cmd cp"
RECONCILE: Final = "l0gc reconcile"
READ: Final = "l0gc read"
READ_ARROW: Final = "read_arrow"
MERGE: Final = "l0gc merge"
LINES: Final = "duckdb_lines.py"
UPLOAD_GOAL: Final = 1.3
RECONCILE_GOAL: Final = 1.5
CORES_GOAL: Final = 0.65


def cores(setting: Setting) -> Result:
    """Compare `l0gc upload` with `s5cmd cp`, `l0gc reconcile` with DuckDB; run `l0gc read`, `read_arrow`, `l0gc merge`."""
    records = 80_000 if setting.quick else 2_000_000
    file = _lines(setting.bench.scratch / "lines.ndjson", records)
    prefixes: dict[int, str] = {}

    def upload(number: int) -> Sample:
        prefixes[number] = setting.new_cluster()
        return setting.l0gc(prefixes[number], "upload", TOPIC, file, "--key-field", "user")

    def copy(_: int) -> Sample:
        target = f"s3://{BUCKET}/{setting.new_prefix()}/lines.ndjson"
        endpoint = setting.bench.environment["AWS_ENDPOINT_URL_S3"]
        return setting.bench.run([s5cmd_binary(setting), "--endpoint-url", endpoint, "cp", file, target])

    def reconcile(number: int) -> Sample:
        return setting.l0gc(prefixes[number], "reconcile", "--engine", "local")

    def lines(_: int) -> Sample:
        target = setting.bench.scratch / "lines.parquet"
        script = BENCHMARKS / "peers" / "duckdb_lines.py"
        return setting.bench.run([setting.program("python"), script, file, target])

    def read(number: int) -> Sample:
        target = setting.bench.scratch / "read.ndjson"
        target.unlink(missing_ok=True)  # to replace a file, ext4 writes the new one to the disk first
        sample = setting.l0gc(prefixes[number], "read", TOPIC, "--output", target, json=False)
        if target.stat().st_size != file.stat().st_size:
            raise BenchmarkFailedError(f"{READ} gave {target.stat().st_size} bytes of {file.stat().st_size}")
        return sample

    def read_arrow(number: int) -> Sample:
        return driver("read_arrow", prefixes[number])

    def merge(_: int) -> Sample:
        prefix = setting.new_cluster()
        driver("fill", prefix, file)
        sample = setting.l0gc(prefix, "merge", "--engine", "local")
        if sample.output["merged"]["records"] != records:
            raise BenchmarkFailedError(f"{MERGE} joined {sample.output['merged']['records']} records of {records}")
        return sample

    def driver(job: str, prefix: str, *arguments: str | Path) -> Sample:
        command = [sys.executable, BENCHMARKS / "drivers" / "cores.py", job, TOPIC, *arguments]
        return setting.bench.run(command, {"L0GC_URL": f"s3://{BUCKET}/{prefix}"})

    def checked(name: str, run: Callable[[int], Sample]) -> Callable[[int], Sample]:
        def program(number: int) -> Sample:
            sample = run(number)
            if name not in (COPY, READ, MERGE):
                check(name, sample, records)
            return sample

        return program

    programs = {
        UPLOAD: upload, COPY: copy, RECONCILE: reconcile, LINES: lines, READ: read, READ_ARROW: read_arrow, MERGE: merge,
    }  # fmt: skip
    samples = interleave({name: checked(name, run) for name, run in programs.items()}, setting.runs)
    goals = []
    for ours, theirs, limit in ((UPLOAD, COPY, UPLOAD_GOAL), (RECONCILE, LINES, RECONCILE_GOAL)):
        wall, cpu = ratio(samples, ours, theirs), ratio(samples, ours, theirs, lambda s: s.cpu)
        text = f"{wall.text()}, user + sys {cpu.of_medians:.2f}"
        goals.append(Goal(f"{ours} / {theirs}, wall", wall.of_medians, limit, text))
    for name in (RECONCILE, READ, READ_ARROW, MERGE):
        share = Ratio.of([s.wall for s in samples[name]], [s.cpu for s in samples[name]])
        goals.append(Goal(f"{name}, wall / user + sys", share.of_medians, CORES_GOAL, share.text()))
    notes = [
        f"{name}: {Spread.of([s.cpu / s.wall for s in samples[name]]).median:.2f} cores in use" for name in programs
    ]
    title = f"{records:,} lines, {file.stat().st_size / (1 << 20):.0f} MiB, as whole processes with their start"
    return Result("cores", title, samples, goals, notes)


def _lines(file: Path, records: int) -> Path:
    """Write lines of about 110 bytes, by 5,000 users."""
    with file.open("w") as out:
        for n in range(records):
            text = f"{hashlib.md5(b'%d' % n).hexdigest()} a text that is about as long"
            out.write(f'{{"user": "user-{n * 7919 % 5000}", "n": {n}, "text": "{text}"}}\n')
    return file
