"""An S3 Inventory in place of the listing, beside DuckDB on the same files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.measure import BenchmarkFailedError, Goal, Result, Sample, Spread, interleave
from benchmarks.setting import BENCHMARKS, Setting
from benchmarks.support.goals import ratio
from benchmarks.support.inventories import write_inventory

INVENTORY_GOAL: Final = 5.0
ROWS: Final = 10_000_000
FILES: Final = 40
QUICK_ROWS: Final = 200_000

OURS: Final = "l0gc"
CUT: Final = "DuckDB, keys cut"
CHECKED: Final = "DuckDB, keys checked"


def histogram(setting: Setting) -> Result:
    """The epochs of a Parquet inventory of 10,000,000 rows, by the job's Spark and by DuckDB."""
    rows = QUICK_ROWS if setting.quick else ROWS
    manifest = write_inventory(setting.bench.scratch / "inventory", rows, FILES)
    files = sorted((manifest.parent / "data").iterdir())

    def program(script: Path, *arguments: str | Path) -> Callable[[int], Sample]:
        def run(_: int) -> Sample:
            sample = setting.bench.run([sys.executable, script, *arguments])
            if sample.output.get("objects") != rows:
                raise BenchmarkFailedError(f"{script.name} was given {rows} objects and says {sample.output}")
            return sample

        return run

    peer = BENCHMARKS / "peers" / "duckdb_inventory.py"
    programs = {
        OURS: program(BENCHMARKS / "drivers" / "inventory.py", manifest),
        CUT: program(peer, "no", *files),
        CHECKED: program(peer, "yes", *files),
    }
    samples = interleave(programs, setting.runs)
    sums = {(s.output["epochs"], s.output["eligible_bytes"]) for runs in samples.values() for s in runs}
    if len(sums) > 1:
        raise BenchmarkFailedError(f"the programs do not agree on epochs and eligible bytes: {sums}")
    against = {name: ratio(samples, OURS, name, lambda s: s.job or 0.0) for name in (CUT, CHECKED)}
    size = sum(f.stat().st_size for f in files) / (1 << 20)
    session = Spread.of([s.output["session_seconds"] for s in samples[OURS]]).median
    return Result(
        "inventory",
        f"{rows:,} rows in {FILES} Parquet files of {size:.0f} MiB, on this disk",
        samples,
        [Goal(f"{OURS} / {name}, job", r.of_medians, INVENTORY_GOAL, r.text()) for name, r in against.items()],
        [
            f"Spark's session is up in {session:.2f} s before the job, with 1 GiB of driver heap and two cores",
            "l0gc compares the MD5 of each file first; DuckDB does not",
        ],
    )
