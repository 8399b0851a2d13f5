"""`python -m tests.simulation [--seeds N] [--first S]`: many seeds, or one (`--seeds 1 --first S` replays seed S)."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.run import simulate
from tests.simulation.world import Violation


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    started, steps, records, swept, violations = time.monotonic(), 0, 0, 0, 0
    for seed in range(options.first, options.first + options.seeds):
        try:
            outcome = simulate(seed)
        except Violation as violation:
            violations += 1
            sys.stdout.write(f"{violation}\nreplay: python -m tests.simulation --seeds 1 --first {seed}\n")
            continue
        steps, records, swept = steps + outcome.steps, records + outcome.acknowledged, swept + outcome.swept
    seconds = time.monotonic() - started
    sys.stdout.write(
        f"{options.seeds} seeds, {steps:,} steps in {seconds:.0f} s ({steps / seconds:,.0f} a second), "
        f"{records:,} records acknowledged, {swept:,} objects swept in the end, violations: {violations or 'none'}\n"
    )
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
