"""`python -m tests.crash`: kill each command at each of its requests; `--command C --point N --when W` replays one point."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from l0gc.embedded.seaweedfs import SeaweedFS
from tests.crash.cases import CASES, Case
from tests.crash.checks import BrokenError
from tests.crash.points import WHEN, Bench, points_of

VERIFY_EVERY = 20
"""`verify` reads the whole bucket with Spark and takes as long as several points; the readers' checks run at every
point.
"""


@dataclass
class Row:
    """A line of the table. `missed` points had more requests in the undisturbed run than in the one that was to die."""

    points: int = 0
    tried: int = 0
    missed: int = 0
    verified: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--command", choices=CASES, action="append", help="only this one; may be repeated")
    parser.add_argument("--point", type=int, help="only this request")
    parser.add_argument("--when", choices=WHEN, help="only before the server, or after it")
    parser.add_argument("--verify-every", type=int, default=VERIFY_EVERY, help="0 leaves l0gc verify out")
    options = parser.parse_args()
    rows: dict[str, Row] = {}
    with SeaweedFS() as server, tempfile.TemporaryDirectory() as scratch, Bench(server, Path(scratch)) as bench:
        for name in options.command or CASES:
            rows[name] = row = Row()
            began = time.monotonic()
            _run(bench, CASES[name], row, options)
            row.seconds = time.monotonic() - began
            sys.stdout.write(f"{name}: {row.tried} points in {row.seconds:.0f} s, {len(row.failures)} failures\n")
            sys.stdout.flush()
    _table(rows)
    return 1 if any(r.failures for r in rows.values()) else 0


def _run(bench: Bench, case: Case, row: Row, options: argparse.Namespace) -> None:
    try:
        every = points_of(bench.requests_of(case))
    except BrokenError as e:
        row.failures.append(f"{case.name}, undisturbed: {e}")
        return
    row.points = len(every)
    chosen = [p for p in every if options.point in (None, p[0]) and options.when in (None, p[1])]
    for i, (n, when) in enumerate(chosen, start=1):
        verify = bool(options.verify_every) and (i % options.verify_every == 0 or i == len(chosen))
        try:
            died_at = bench.try_point(case, n, when, verify=verify)
        except BrokenError as e:
            again = f"python -m tests.crash --command {case.name} --point {n} --when {when}"
            row.failures.append(f"{e}\n  replay: {again}")
            sys.stdout.write(f"{row.failures[-1]}\n")
            continue
        finally:
            row.tried += 1
            row.verified += verify
        row.missed += died_at is None


def _table(rows: dict[str, Row]) -> None:
    names = ("points", "tried", "not reached", "verified", "failures", "seconds")
    sys.stdout.write(f"\n{'command':<18}" + "".join(f"{n:>13}" for n in names) + "\n")
    totals = [0] * len(names)
    for name, r in rows.items():
        values = [r.points, r.tried, r.missed, r.verified, len(r.failures), round(r.seconds)]
        totals = [a + b for a, b in zip(totals, values, strict=True)]
        sys.stdout.write(f"{name:<18}" + "".join(f"{v:>13,}" for v in values) + "\n")
    sys.stdout.write(f"{'all':<18}" + "".join(f"{v:>13,}" for v in totals) + "\n")
    sys.stdout.write("".join(f"{f}\n" for r in rows.values() for f in r.failures))


if __name__ == "__main__":
    sys.exit(main())
