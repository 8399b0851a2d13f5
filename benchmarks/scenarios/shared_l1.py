"""Measures many partitions with few records: their shared L1 objects, and the drains of these."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from benchmarks.measure import Goal, Result, Sample
from benchmarks.setting import BENCHMARKS, BUCKET, Setting

PARTITIONS: Final = 10_000
PUTS_GOAL: Final = 5
ROUNDS: Final = 32
HISTORY_PARTITIONS: Final = 1_000
HISTORY_PUTS_GOAL: Final = 42_000 / 25
HISTORY_GETS_GOAL: Final = 50_032 / 50
"""The goals are shares of what separate objects for each partition and round would cost."""


def shared_l1(setting: Setting) -> Result:
    """Reconcile ten records of 100 bytes in each of 10,000 partitions; and 32 rounds of 1,000 partitions with merges."""
    rounds = 4 if setting.quick else ROUNDS

    def run(*arguments: object) -> Sample:
        script: list[str | Path] = [sys.executable, BENCHMARKS / "drivers" / "shared_l1.py", *map(str, arguments)]
        return setting.bench.run(script, {"L0GC_URL": f"s3://{BUCKET}/{setting.new_prefix()}"})

    one, history = run("round", PARTITIONS), run("history", HISTORY_PARTITIONS, rounds)
    puts = one.output["steps"]["reconcile"]["l1_puts"]
    steps = [history.output["steps"][name] for name in ("reconcile", "merge")]
    all_puts, gets = (sum(step.get(kind, 0) for step in steps) for kind in ("put", "get"))
    goals = [
        Goal("PUTs of L1 in a round", puts, PUTS_GOAL, f"{puts}"),
        Goal("PUTs of reconciles and merges", all_puts, HISTORY_PUTS_GOAL, f"{all_puts}"),
        Goal("GETs of reconciles and merges", gets, HISTORY_GETS_GOAL, f"{gets}"),
    ]
    cpu = one.output["cpu_seconds"]["reconcile"]
    notes = [
        f"the round's reconcile took {cpu:.2f} s of CPU, and wrote {one.output['steps']['reconcile']['l1_bytes']:,} bytes"
    ]
    return Result("shared-l1", f"{rounds} rounds", {"round": [one], "history": [history]}, goals, notes)
