"""`python -m tests.simulation.mutants`: find mutants, and keep docs/why/hazards.md true.

--find [NAME ...]   search the seeds for these mutants (all of them without a name), and write the table anew
--tests [NAME ...]  run the tests that are named for these mutants, under them; a JSON object of those that pass

Both end: no mutant is searched in more than 100 seeds, and a test has a minute. Each tells what it could not find, and
exits with 1 then. All of it takes about half an hour of processor time to find, and a quarter of an hour to test.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from tests.simulation.mutants import table
from tests.simulation.mutants.hunt import SEVERAL, check_all, hunt_all
from tests.simulation.mutants.registry import BY_NAME, MUTANTS


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--find", nargs="*", metavar="NAME")
    parser.add_argument("--tests", nargs="*", metavar="NAME")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if options.find is None and options.tests is None:
        parser.error("say what to do: --find or --tests")
    missed: list[str] = []
    if options.find is not None:
        names = [n for n in options.find or BY_NAME if BY_NAME[n].simulated]
        for name, caught in hunt_all(names, options.jobs):
            text = table.DOCUMENT.read_text()
            table.DOCUMENT.write_text(table.written(text, MUTANTS, {name: caught}))
            missed += [] if len(caught) == SEVERAL else [name]
            sys.stdout.write(f"{name}: {', '.join(str(c.seed) for c in caught) or 'not found'}\n")
            sys.stdout.write("".join(f"  seed {c.seed}, step {c.steps}: {c.said}\n" for c in caught[:2]))
            sys.stdout.flush()
        sys.stdout.write(f"not found: {', '.join(missed) or 'none'}\n")
    if options.tests is not None:
        passing: dict[str, list[str]] = {}
        for name, passed in check_all(list(options.tests or BY_NAME), options.jobs):
            sys.stderr.write(f"{name}: {', '.join(passed) or 'its tests fail'}\n")
            passing |= {name: passed} if passed else {}
        sys.stdout.write(json.dumps(passing) + "\n")
        missed += passing
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
