"""The benchmarks' command line: starts an S3 server, runs the given scenarios, prints the results and keeps them as
JSON.

The exit code shows whether everything ran, not whether the goals were met: a busy machine must not look like a defect.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.measure import Bench, BenchmarkFailedError
from benchmarks.scenarios import SCENARIOS, describe
from benchmarks.setting import BENCHMARKS, BUCKET, Setting
from l0gc import __version__
from l0gc.embedded.seaweedfs import SeaweedFS
from l0gc.errors import L0gcError

RESULTS = Path(__file__).with_name("results")
TIME_LIMIT = 14400.0
QUICK_FLIGHTS = 40_000


def main() -> int:
    """Run the benchmarks; return 0 if all of them ran."""
    options = _options()
    if options.quick:
        print("quick: a small input and few runs; the figures show that it works, and nothing more")
    records: list[dict[str, Any]] = []
    failures = 0
    with tempfile.TemporaryDirectory(prefix="l0gc-bench-") as scratch, SeaweedFS(Path(scratch) / "s3") as server:
        server.client().create_bucket(Bucket=BUCKET)
        bench = Bench(_environment() | server.environment(), Path(scratch), options.time_limit)
        setting = Setting(bench, options.runs, QUICK_FLIGHTS if options.quick else None, itertools.count(1))
        for name in options.benchmark or SCENARIOS:
            try:
                result = SCENARIOS[name](setting)
            except (BenchmarkFailedError, L0gcError, OSError) as error:
                failures += 1
                print(f"\n{name}: FAILED: {error}\n", flush=True)
                continue
            print("\n" + "\n".join(result.lines()) + "\n", flush=True)
            records.append(result.record())
    print(f"results in {_keep(records, options)}")
    return 1 if failures else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks/run",
        description="Measure l0gc, beside programs that do the same without its promises, on an embedded S3 server.",
        epilog="\n".join(f"{name:17} {text}" for name, text in describe().items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "benchmark", nargs="*", choices=[[], *SCENARIOS], metavar="BENCHMARK", help="default: all of them"
    )
    parser.add_argument("--runs", type=int, help="how often each program runs (default: 5)")
    parser.add_argument("--quick", action="store_true", help="a small input and 2 runs, to see that it works")
    parser.add_argument(
        "--time-limit", type=float, default=TIME_LIMIT, metavar="SECONDS", help="for all of it (default: %(default)g)"
    )
    options = parser.parse_args()
    options.runs = options.runs or (2 if options.quick else 5)
    if options.runs < 1 or options.time_limit <= 0:
        parser.error("--runs and --time-limit must be above 0")
    return options


def _environment() -> dict[str, str]:
    """Return this environment without variables that change l0gc, Spark or an S3 client.

    The measured l0gc is the one in the checkout of these benchmarks, wherever the console script comes from.
    """
    foreign = ("L0GC_", "AWS_", "SPARK_", "PYSPARK_", "PYTHON")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(foreign) and k != "MASTER"}
    folder = str(Path(sys.executable).parent)
    path = f"{folder}{os.pathsep}{kept.get('PATH', os.defpath)}"
    return kept | {"PATH": path, "PYTHONPATH": str(BENCHMARKS.parent)}


def _keep(records: list[dict[str, Any]], options: argparse.Namespace) -> Path:
    now = datetime.now(UTC)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{now:%Y%m%dT%H%M%SZ}.json"
    about = {
        "at": now.isoformat(timespec="seconds"),
        "l0gc": __version__,
        "python": platform.python_version(),
        "machine": platform.platform(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "runs": options.runs,
        "quick": options.quick,
        "clock": time.get_clock_info("monotonic").implementation,
    }
    path.write_text(json.dumps({**about, "benchmarks": records}, indent=1) + "\n")
    return path


if __name__ == "__main__":
    sys.exit(main())
