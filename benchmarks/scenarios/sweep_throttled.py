"""Sweeps a store that answers 503 above a set rate: the sweep settles at that rate, and nothing fails.

The store is a generated bucket behind its own S3 server (`benchmarks.support.fake_s3`), which counts objects as S3
does. Throughput is what the server admitted from the first five seconds on. s5cmd and a boto3 loop meet the same limit,
once. The store may also be far away.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

from benchmarks.measure import BenchmarkFailedError, Goal, Result, Sample, Spread
from benchmarks.scenarios.sweep_beside import OURS, Program, boto_sweep, l0gc_sweep, s5cmd_rm
from benchmarks.scenarios.sweep_scale import MEMORY_GOAL, check_generated
from benchmarks.setting import Setting
from benchmarks.support.buckets import Filling, found
from benchmarks.support.fake_s3 import BUCKET, FakeS3, Tokens
from benchmarks.support.generated import GeneratedBucket

SETTLE_S: Final = 5.0
RUN_S: Final = 45
"""For how many seconds the garbage lasts at the limit."""
APART_GOAL: Final = 0.1
LIMITS: Final = (500, 2_000, 5_000)
FAR_LIMITS: Final = (3_500, 20_000)
FAR_DELAYS_S: Final = (0.005, 0.05, 0.3)
FAR_RUN_S: Final = 30
FAR_GOAL: Final = 0.9
SHARDS: Final = 1_000


def throttled(setting: Setting) -> Result:
    """Compare a sweep of a store that answers 503 above a set rate with s5cmd and a boto3 loop."""
    limits, seconds = ((2_000,), 8) if setting.quick else (LIMITS, RUN_S)
    ours = {OURS: l0gc_sweep(setting, may_fail=True)}
    peers = {"s5cmd rm": s5cmd_rm(setting, may_fail=True), "boto_sweep.py": boto_sweep(setting, may_fail=True)}
    samples: dict[str, list[Sample]] = {}
    outcomes: dict[str, list[_Outcome]] = {}
    for number in range(setting.runs):
        for limit in limits:
            for who, program in (ours | (peers if number == 0 else {})).items():
                sample, result = _run(setting, who, program, limit, limit * seconds)
                samples.setdefault(f"{who}, {limit:,}/s", []).append(sample)
                outcomes.setdefault(f"{who}, {limit:,}/s", []).append(result)
    goals = [g for limit in limits for g in _goals(limit, outcomes[f"{OURS}, {limit:,}/s"])]
    notes = [
        f"objects a second from {SETTLE_S:g} s on (min / median / max), refused requests, garbage left, how it ended:"
    ]
    for name, runs in outcomes.items():
        rates, refused = (Spread.of(v).text(0) for v in ([r.rate for r in runs], [r.refused for r in runs]))
        ends = ", ".join(sorted({r.ended for r in runs}))
        notes.append(f"  {name}: {rates}; {refused} refused; {max(r.left for r in runs):,} left; {ends}")
    title = f"a store that takes so many objects a second, with garbage for {seconds} s, {SHARDS:,} shards"
    return Result("sweep-throttled", title, samples, goals, notes)


def far(setting: Setting) -> Result:
    """Sweep a store that takes a fixed number of objects a second, however long it needs for each request."""
    limits, seconds = ((2_000,), 8) if setting.quick else (FAR_LIMITS, FAR_RUN_S)
    sweep = l0gc_sweep(setting, may_fail=True)
    cases = {f"{limit:,}/s, {delay_s * 1000:g} ms": (limit, delay_s) for limit in limits for delay_s in FAR_DELAYS_S}
    samples: dict[str, list[Sample]] = {name: [] for name in cases}
    outcomes: dict[str, list[_Outcome]] = {name: [] for name in cases}
    for _ in range(setting.runs):
        for name, (limit, delay_s) in cases.items():
            sample, result = _run(setting, OURS, sweep, limit, limit * seconds, delay_s)
            samples[name].append(sample)
            outcomes[name].append(result)
    goals = []
    for name, (limit, _) in cases.items():
        rates = Spread.of([r.rate for r in outcomes[name]])
        goals.append(Goal(f"{name}, limit / rate", limit / rates.median, 1 / FAR_GOAL, f"{rates.text(0)} a second"))
        goals.append(_none_failed(name, outcomes[name]))
    peaks = [Spread.of([s.rss_mib for s in runs]).median for runs in samples.values()]
    apart = max(peaks) / min(peaks)
    goals.append(Goal("highest / lowest peak RSS", apart, MEMORY_GOAL, f"{apart:.3f}"))
    title = f"stores that take so many objects a second and wait before each answer, with garbage for {seconds} s"
    return Result("sweep-far", title, samples, goals, [f"rates are from {SETTLE_S:g} s on"])


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The outcome of a run: objects per second once settled, requests refused, garbage left, and how it ended."""

    rate: float
    refused: int
    left: int
    ended: str


def _run(
    setting: Setting, who: str, program: Program, limit: int, garbage: int, delay_s: float = 0.0
) -> tuple[Sample, _Outcome]:
    bucket = GeneratedBucket(garbage, garbage, SHARDS)
    with FakeS3(bucket, limit, delay_s) as server:
        found(setting, server.environment(), Filling(BUCKET, SHARDS, 0, 0, (garbage, 0)))
        server.begin()
        sample = program(BUCKET, server.endpoint_url, server.environment())
        tokens = server.tokens
    if not sample.failed:
        check_generated(who, bucket)
    elif bucket.wronged:
        raise BenchmarkFailedError(f"{who} named {bucket.wronged} keys that were none of its business")
    if sample.output.get("failed"):
        raise BenchmarkFailedError(f"{who} says that it could not delete everything, and ended well: {sample.output}")
    print(".", end="", file=sys.stderr, flush=True)
    return sample, _Outcome(settled(tokens), tokens.refused, bucket.left()[0], sample.failed or "done")


def settled(tokens: Tokens) -> float:
    """Return objects per second from `SETTLE_S` after the first one on: from one admission to the last, without the
    first.

    Returns 0 if there were not two of them.
    """
    if not tokens.taken:
        return 0.0
    late = [(at, n) for at, n in tokens.taken if at >= tokens.taken[0][0] + SETTLE_S]
    if len(late) < 2:
        return 0.0
    return sum(n for _, n in late[1:]) / (late[-1][0] - late[0][0])


def _goals(limit: int, runs: list[_Outcome]) -> list[Goal]:
    rates = Spread.of([r.rate for r in runs])
    apart = Spread.of([abs(r.rate / limit - 1) for r in runs]).median
    return [
        Goal(
            f"{OURS}, {limit:,}/s, apart from the limit", apart, APART_GOAL, f"{apart:.3f} ({rates.text(0)} a second)"
        ),
        _none_failed(f"{OURS}, {limit:,}/s", runs),
    ]


def _none_failed(what: str, runs: list[_Outcome]) -> Goal:
    failed = sum(r.ended != "done" for r in runs)
    return Goal(f"{what}, runs that failed", failed, 0, str(failed))
