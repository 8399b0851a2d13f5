"""Hunts a mutant: seed by seed in the simulation, or by the tests that are named for it."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

import hypothesis  # noqa: F401 - and what else most tests import, so that each child has it
import pytest

from tests.simulation.mutants.registry import BY_NAME
from tests.simulation.mutants.tools import Mutant
from tests.simulation.run import simulate
from tests.simulation.set_back import set_back
from tests.simulation.watch import Violation

T = TypeVar("T")

SEEDS = range(100)
"""The seeds in which a mutant is searched."""
SEVERAL = 2
"""At least this many seeds find a mutant of the table, so that one still does after the simulated code takes other
steps.
"""


@dataclass(frozen=True)
class Caught:
    """Where the simulation found a mutant, and its message."""

    seed: int
    steps: int
    said: str


def run(mutant: Mutant, seed: int) -> Caught | None:
    """Run the seed under the mutant; return None if it ends well."""
    with mutant.off():
        try:
            (set_back if mutant.set_back else simulate)(seed)
        except Violation as v:
            return Caught(v.seed, v.step, v.text.split("\n")[0])
    return None


def hunt(mutant: Mutant, first: Sequence[int] = ()) -> Iterator[Caught]:
    """Yield the seeds that find the mutant.

    Args:
        first: the seeds that found it before: they still do, unless the simulated code has changed its steps.
    """
    seeds = dict.fromkeys([*first, *SEEDS])
    return (caught for seed in seeds if (caught := run(mutant, seed)) is not None)


def _hunt_by_name(name: str) -> list[Caught]:
    """Hunt by seeds that end well without the mutant, so that they show the mutant's harm."""
    mutant = BY_NAME[name]
    own = (caught for caught in hunt(mutant) if run(replace(mutant, off=contextlib.nullcontext), caught.seed) is None)
    return list(islice(own, SEVERAL))


def hunt_all(names: list[str], jobs: int) -> Iterator[tuple[str, list[Caught]]]:
    """Yield the first seeds that find each mutant, as many as the table names."""
    return _for_each(_hunt_by_name, names, jobs)


def check_all(names: list[str], jobs: int) -> Iterator[tuple[str, list[str]]]:
    """Yield the tests of each mutant that do not fail under it."""
    return _for_each(_check_by_name, names, jobs)


def _check_by_name(name: str) -> list[str]:
    return tests_that_pass(BY_NAME[name])


def _for_each(work: Callable[[str], list[T]], names: list[str], jobs: int) -> Iterator[tuple[str, list[T]]]:
    if jobs == 1:
        yield from ((name, work(name)) for name in names)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from zip(names, pool.map(work, names), strict=True)


class _Failed:
    """Records which tests failed, all parameters of a test under its one name: after one has failed, the others do not
    run.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        return True if item.nodeid.split("[")[0] in self.names else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.names.add(report.nodeid.split("[")[0])


def tests_that_pass(mutant: Mutant) -> list[str]:
    """Return which of the mutant's tests pass under it; they run in a child, since a test's module keeps what it
    imports.
    """
    if not mutant.tests:
        return []
    sys.stdout.flush()
    from_child, to_parent = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(from_child)
            gc.freeze()  # pytest collects garbage at the end, and need not search the parent's objects
            failed = _Failed()
            with (
                mutant.off(),
                contextlib.redirect_stdout(io.StringIO()),
                tempfile.TemporaryDirectory() as scratch,  # pytest's own would remove those of the enclosing session
            ):
                # A test that waits forever counts as failed, too.
                options = ["-q", "-p", "no:cacheprovider", "--tb=no", "--assert=plain", "--timeout=60"]
                options += ["-m", "not thorough", f"--basetemp={scratch}/tests"]
                pytest.main([*options, *mutant.tests], plugins=[failed])
            os.write(to_parent, "\n".join(failed.names).encode())
        finally:
            os._exit(0)
    os.close(to_parent)
    with os.fdopen(from_child) as pipe:
        names = set(pipe.read().splitlines())
    os.waitpid(child, 0)
    return sorted(set(mutant.tests) - names)
