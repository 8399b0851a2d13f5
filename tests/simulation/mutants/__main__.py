"""`python -m tests.simulation.mutants`: find mutants, and keep docs/safety.md true.

--find [NAME ...]   search the seeds for these mutants (all of them without a name), and write the table anew
--tests [NAME ...]  run the tests that are named for these mutants, under them; a JSON object of those that pass
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from tests.simulation.mutants import table
from tests.simulation.mutants.hunt import Caught, hunt_all, range_of, tests_that_pass
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
    missed = 0
    if options.find is not None:
        names = [n for n in options.find or BY_NAME if BY_NAME[n].simulated]
        found: dict[str, list[Caught]] = {}
        for name, caught in hunt_all(names, options.jobs):
            found[name] = caught
            missed += not range_of(caught)
            sys.stdout.write(f"{name}: {', '.join(str(c.seed) for c in caught) or 'not found'}\n")
            sys.stdout.write("".join(f"  seed {c.seed}, step {c.steps}: {c.said}\n" for c in caught[:2]))
            sys.stdout.flush()
        text = table.DOCUMENT.read_text()
        table.DOCUMENT.write_text(table.written(text, MUTANTS, found))
    if options.tests is not None:
        passing = {n: p for n in options.tests or BY_NAME if (p := tests_that_pass(BY_NAME[n]))}
        sys.stdout.write(json.dumps(passing) + "\n")
        missed += len(passing)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
