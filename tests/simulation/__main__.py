"""`python -m tests.simulation [--seeds N] [--first S] [--jobs J] [--set-back]`: many seeds, or one.

`--seeds 1 --first S` replays S; `--set-back` runs the seeds in which parts of the bucket are set back (`set_back.py`).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.simulation.run import Outcome, simulate
from tests.simulation.set_back import set_back
from tests.simulation.watch import Violation

PROGRESS_S = 60.0


def attempt(seed: int, *, goes_back: bool = False) -> Outcome | str:
    """The seed's outcome, or what is wrong with it."""
    try:
        return (set_back if goes_back else simulate)(seed)
    except Violation as violation:
        return str(violation)
    except Exception:  # noqa: BLE001 - a bug in the simulation itself ends its seed, not the run
        return f"seed {seed}: {traceback.format_exc()}"


def outcomes(first: int, seeds: int, jobs: int, *, goes_back: bool = False) -> Iterator[tuple[int, Outcome | str]]:
    """Each seed with its outcome, in order."""
    todo, run = range(first, first + seeds), partial(attempt, goes_back=goes_back)
    if jobs == 1:
        yield from ((seed, run(seed)) for seed in todo)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from zip(todo, pool.map(run, todo, chunksize=4), strict=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; what a seed does is the same")
    parser.add_argument("--set-back", action="store_true", help="parts of the bucket are set back to an older copy")
    options = parser.parse_args()
    started = last_shown = time.monotonic()
    steps = violations = 0
    happened: Counter[str] = Counter()
    states: set[int] = set()
    attempts = outcomes(options.first, options.seeds, min(options.jobs, options.seeds), goes_back=options.set_back)
    for done, (seed, outcome) in enumerate(attempts, 1):
        if isinstance(outcome, str):
            violations += 1
            mode = " --set-back" if options.set_back else ""
            sys.stdout.write(f"{outcome}\nreplay: python -m tests.simulation{mode} --seeds 1 --first {seed}\n")
            sys.stdout.flush()
        else:
            steps += outcome.steps
            happened += outcome.happened
            states |= outcome.states
        if time.monotonic() - last_shown > PROGRESS_S:
            last_shown = time.monotonic()
            sys.stderr.write(f"{done} of {options.seeds} seeds, {steps:,} steps, violations: {violations or 'none'}\n")
    seconds = time.monotonic() - started
    for what in sorted(happened):
        sys.stdout.write(f"{happened[what]:>10,}  {what}\n")
    sys.stdout.write(
        f"{options.seeds} seeds, {steps:,} steps in {seconds:.0f} s ({steps / seconds:,.0f} a second, "
        f"{options.jobs} processes), {len(states):,} distinct states, violations: {violations or 'none'}\n"
    )
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
