"""Measures what merges leave of a history of small reconciles, what they write for that, and how fast it is read."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.measure import BenchmarkFailedError, Goal, Ratio, Result, Sample, interleave
from benchmarks.setting import BENCHMARKS, BUCKET, PARTITIONS, Setting

BATCHES: Final = 200
OBJECTS_GOAL: Final = 24
AMPLIFICATION_GOAL: Final = 5.0
READ_GOAL: Final = 1.3
CHECKPOINT_GOAL: Final = 1.1


def merges(setting: Setting) -> Result:
    """Reconcile 200 times 200 flights into 8 partitions, with a merge after each; then read them all."""
    batches = 40 if setting.quick else BATCHES
    found: dict[str, Sample] = {}
    prefixes = {way: setting.new_prefix() for way in ("merged", "once")}
    for way, prefix in prefixes.items():
        script: list[str | Path] = [sys.executable, BENCHMARKS / "drivers" / "merges.py", way, str(batches)]
        found[way] = setting.bench.run(script, {"L0GC_URL": f"s3://{BUCKET}/{prefix}"})
    if found["once"].output["objects"] != PARTITIONS:
        raise BenchmarkFailedError(f"one reconcile left {found['once'].output['objects']} L1 objects")

    def read(way: str, _: int) -> Sample:
        target = setting.bench.scratch / "read.ndjson"
        command = f"exec {setting.program('l0gc')} read flights >{target}"
        sample = setting.bench.run(["sh", "-c", command], {"L0GC_URL": f"s3://{BUCKET}/{prefixes[way]}"})
        if sum(1 for _ in target.open("rb")) != found[way].output["records"]:
            raise BenchmarkFailedError("l0gc read gave another number of records than were uploaded")
        return sample

    samples = interleave({f"read, {way}": partial(read, way) for way in prefixes}, setting.runs)
    ours, theirs = ([s.wall for s in samples[f"read, {way}"]] for way in ("merged", "once"))
    apart = Ratio.of(ours, theirs)
    o = found["merged"].output
    lifted, merged = o["reconciled_bytes"], o["merged_bytes"]
    amplification, times = (lifted + merged) / lifted, o["rewritten"] / o["records"]
    early, late = o["early_checkpoint"], o["late_checkpoint"]
    goals = [
        Goal("L1 objects behind any merge", o["most"], OBJECTS_GOAL, f"{o['most']}"),
        Goal("bytes of reconcile and merges / of reconcile", amplification, AMPLIFICATION_GOAL, f"{amplification:.2f}"),
        Goal("read / read of one object for each partition", apart.of_medians, READ_GOAL, apart.text()),
        Goal("largest checkpoint / largest of the first 20", late / early, CHECKPOINT_GOAL, f"{late} / {early} bytes"),
    ]
    notes = [f"a record was rewritten {times:.2f} times; {o['objects']} L1 objects were left to read"]
    return Result("merges", f"{batches} reconciles of {o['records'] // batches} flights each", samples, goals, notes)
