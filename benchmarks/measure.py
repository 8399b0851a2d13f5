"""Measures whole processes from outside, alternating (A B A B ...), and describes the figures.

Noise on a busy machine comes in stretches, so programs that are compared take turns, and each round gives one ratio.
The result is the median of the runs and of the rounds' ratios; both are shown, with the extremes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LAUNCH = Path(__file__).with_name("launch.py")
RUN_SECONDS = 900.0
"""How many seconds one process may take."""


class BenchmarkFailedError(Exception):
    """A program failed, took too long, or did not do its task."""


@dataclass(frozen=True)
class Sample:
    """One run of one program. `job` is the part that the program timed itself, if that is compared.

    `failed` describes the program's failure, if a failure counts as a result.
    """

    wall: float
    cpu: float
    rss_mib: float
    job: float | None = None
    output: dict[str, Any] = field(default_factory=dict)
    failed: str = ""


class Bench:
    """Runs programs: holds their environment, a scratch folder, and the remaining time for all of them."""

    def __init__(self, environment: Mapping[str, str], scratch: Path, seconds: float) -> None:
        self.environment = dict(environment)
        self.scratch = scratch
        self._deadline = time.monotonic() + seconds

    def run(
        self,
        command: Sequence[str | Path],
        environment: Mapping[str, str] | None = None,
        *,
        may_fail: bool = False,
        seconds: float = RUN_SECONDS,
    ) -> Sample:
        """Run a program and measure it; its stdout is one JSON object, or text that is ignored.

        Args:
            may_fail: a failure is a result, and not the end of the benchmark.
            seconds: how long it may take.

        Raises:
            BenchmarkFailedError: it failed, or the time is up.
        """
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise BenchmarkFailedError("the benchmarks' time is up; --time-limit gives them more")
        timeout = min(seconds, left)
        failed = ""
        with tempfile.NamedTemporaryFile(dir=self.scratch, suffix=".json") as result:
            done = subprocess.run(
                [sys.executable, "-I", "-S", LAUNCH, result.name, f"{timeout:.0f}", *command],
                check=False,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                env=self.environment | dict(environment or {}),
                cwd=self.scratch,
            )
            written = Path(result.name).read_text()
            if done.returncode:
                said = (done.stderr.strip() or done.stdout.strip() or "(it said nothing)")[-2000:]
                what = "took too long" if done.returncode == 124 else f"exited with {done.returncode}"
                if not (may_fail and written):
                    raise BenchmarkFailedError(f"{' '.join(map(str, command))} {what}: {said}")
                failed = f"{what}: {said.splitlines()[-1]}"
            used = json.loads(written)
        output = json.loads(done.stdout) if done.stdout.startswith("{") else {}
        return Sample(used["wall"], used["cpu"], used["rss"] / (1 << 20), output.get("job_seconds"), output, failed)


def cpu_of(pid: int) -> float:
    """Return the user + sys of a running process, in seconds; 0 if /proc does not have it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def interleave(programs: Mapping[str, Callable[[int], Sample]], runs: int) -> dict[str, list[Sample]]:
    """Return each program's samples: all programs run once, then all of them again, `runs` times."""
    samples: dict[str, list[Sample]] = {name: [] for name in programs}
    for number in range(runs):
        for name, program in programs.items():
            samples[name].append(program(number))
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return samples


@dataclass(frozen=True)
class Spread:
    """The smallest, middle and largest of some figures."""

    min: float
    median: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(min(values), statistics.median(values), max(values))

    def text(self, digits: int) -> str:
        return " / ".join(f"{v:.{digits}f}" for v in (self.min, self.median, self.max))


@dataclass(frozen=True)
class Ratio:
    """How two programs compare: the ratio of their medians, and the median of the rounds' ratios."""

    of_medians: float
    pairwise: float

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
        medians = statistics.median(ours) / statistics.median(theirs)
        return cls(medians, statistics.median(a / b for a, b in zip(ours, theirs, strict=True)))

    def text(self) -> str:
        return f"{self.of_medians:.2f} (round by round {self.pairwise:.2f})"


@dataclass(frozen=True)
class Goal:
    """A goal, its result, and whether the result is good enough."""

    what: str
    value: float
    limit: float
    text: str

    @property
    def met(self) -> bool:
        return self.value <= self.limit


@dataclass
class Result:
    """One benchmark's outcome."""

    name: str
    title: str
    samples: dict[str, list[Sample]]
    goals: list[Goal]
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the result as human-readable lines."""
        width = max(20, *(len(name) + 2 for name in self.samples))
        jobs = any(s.job is not None for runs in self.samples.values() for s in runs)
        head = f"  {'min / median / max':{width}}{'job, s' if jobs else 'wall, s':24}"
        head += f"{'wall, s':24}" if jobs else ""
        lines = [f"{self.name}: {self.title}", f"{head}{'user + sys, s':24}peak RSS, MiB"]
        for name, runs in self.samples.items():
            row = f"  {name:{width}}"
            if jobs:
                row += f"{Spread.of([s.job or 0 for s in runs]).text(2):24}"
            row += f"{Spread.of([s.wall for s in runs]).text(2):24}{Spread.of([s.cpu for s in runs]).text(2):24}"
            lines.append(row + Spread.of([s.rss_mib for s in runs]).text(0))
        lines += [f"  {g.what}: {g.text}; goal <= {g.limit:g}: {'met' if g.met else 'MISSED'}" for g in self.goals]
        return lines + [f"  {note}" for note in self.notes]

    def record(self) -> dict[str, Any]:
        """Return the result as JSON."""
        return {
            "name": self.name,
            "title": self.title,
            "programs": {
                name: [
                    {"wall": s.wall, "cpu": s.cpu, "rss_mib": s.rss_mib, "job": s.job, "failed": s.failed} for s in runs
                ]
                for name, runs in self.samples.items()
            },
            "goals": [{"what": g.what, "value": g.value, "limit": g.limit, "met": g.met} for g in self.goals],
            "notes": self.notes,
        }
