"""`python -m tests.exhaustive [--scope NAME] [--depth N] [--seconds S]`: every interleaving; exits 1 on a violation."""

from __future__ import annotations

import argparse
import sys

from tests.exhaustive.breadth import NO_LIMITS, Found, Limits
from tests.exhaustive.l1_scopes import L1_WHOLE
from tests.exhaustive.l1_search import L1Scope, L1Search
from tests.exhaustive.pin_search import PIN_WHOLE, PinScope, PinSearch
from tests.exhaustive.scopes import ALL, WHOLE
from tests.exhaustive.search import Scope, Search


def summary(found: Found) -> str:
    """Return the figures, and the shortest way to the violation if there is one."""
    lines = [
        f"{found.scope}: {found.states:,} states, {found.transitions:,} transitions, depth {found.depth}"
        f"{' (all there is)' if found.complete else ''}, {found.ends:,} ends, {found.content:,} of them content, "
        f"{found.executions:,} executions, {found.seconds:.1f} s"
    ]
    if found.wrong:
        lines += [f"VIOLATION after {len(found.trace)} steps: {found.wrong}", *(f"  {label}" for label in found.trace)]
    return "\n".join(lines) + "\n"


def _search_of(scope: Scope | L1Scope | PinScope) -> Search | L1Search | PinSearch:
    if isinstance(scope, PinScope):
        return PinSearch(scope)
    return L1Search(scope) if isinstance(scope, L1Scope) else Search(scope)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.exhaustive", description=__doc__)
    every: dict[str, Scope | L1Scope | PinScope] = {**ALL, **L1_WHOLE, **PIN_WHOLE}
    parser.add_argument("--scope", choices=sorted(every), help="this one alone; by default all but `everything`")
    parser.add_argument("--depth", type=int, help="no more steps than these")
    parser.add_argument(
        "--seconds",
        type=float,
        default=60.0,
        help="of processor time, for each scope; the depth that is begun is ended; `inf` for all of it",
    )
    options = parser.parse_args()
    scopes: list[Scope | L1Scope | PinScope] = (
        [*WHOLE.values(), *L1_WHOLE.values(), *PIN_WHOLE.values()] if options.scope is None else [every[options.scope]]
    )
    limits = Limits(options.depth or NO_LIMITS.depth, seconds=options.seconds)
    all_found = []
    for scope in scopes:
        all_found.append(_search_of(scope).run(limits))
        sys.stdout.write(summary(all_found[-1]))
        sys.stdout.flush()
    states, seconds = sum(f.states for f in all_found), sum(f.seconds for f in all_found)
    violations = sum(bool(f.wrong) for f in all_found)
    sys.stdout.write(f"{states:,} states in {seconds:.0f} s, {violations} violations\n")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
