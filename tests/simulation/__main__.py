"""`python -m tests.simulation [--seeds N] [--first S] [--jobs J] [--set-back | --losses]`: many seeds, or one.

`--seeds 1 --first S` replays S; `--set-back` runs the seeds in which parts of the bucket are set back (`set_back.py`), and
`--losses` those in which L0 objects are lost (`losses.py`).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Final

from tests.simulation.run import Outcome, simulate
from tests.simulation.set_back import set_back
from tests.simulation.watch import Violation

PROGRESS_S = 60.0


MODES: Final[dict[str, Callable[[int], Outcome]]] = {
    "": simulate, " --set-back": set_back, " --losses": partial(simulate, loses=True),
}  # fmt: skip
"""The function that runs a seed, by the option that selects it."""


def attempt(seed: int, *, mode: str = "") -> Outcome | str:
    """Return the seed's outcome, or the text of its violation."""
    try:
        return MODES[mode](seed)
    except Violation as violation:
        return str(violation)
    except Exception:  # noqa: BLE001 - a bug in the simulation itself ends its seed, not the run
        return f"seed {seed}: {traceback.format_exc()}"


def outcomes(first: int, seeds: int, jobs: int, *, mode: str = "") -> Iterator[tuple[int, Outcome | str]]:
    """Yield each seed with its outcome, in order."""
    todo, run = range(first, first + seeds), partial(attempt, mode=mode)
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
    help_ = "parts of the bucket are set back to an older copy"
    parser.add_argument("--set-back", dest="mode", action="store_const", const=" --set-back", default="", help=help_)
    parser.add_argument("--losses", dest="mode", action="store_const", const=" --losses", help="L0 objects are lost")
    options = parser.parse_args()
    started = last_shown = time.monotonic()
    steps = violations = 0
    happened: Counter[str] = Counter()
    states: set[int] = set()
    attempts = outcomes(options.first, options.seeds, min(options.jobs, options.seeds), mode=options.mode)
    for done, (seed, outcome) in enumerate(attempts, 1):
        if isinstance(outcome, str):
            violations += 1
            sys.stdout.write(f"{outcome}\nreplay: python -m tests.simulation{options.mode} --seeds 1 --first {seed}\n")
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
