"""Switches a guard off: replaces a name of l0gc, wherever l0gc has imported it, for a while."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

Switch = Callable[[], AbstractContextManager[Any]]
"""A function that switches a guard off while its context holds."""


@dataclass(frozen=True)
class Mutant:
    """A guard that is switched off.

    Args:
        hazard: its number in the table of docs/why/hazards.md.
        guard: where it is, as `file.py::Name`.
        what: what the code does without it, in a phrase.
        off: switches it off.
        tests: node ids of tests that then fail.
        simulated: whether the simulation must find it, too.
        set_back: whether it is hunted by the seeds of `set_back.py`, in which parts of the bucket go back.
    """

    hazard: int
    name: str
    guard: str
    what: str
    off: Switch
    tests: tuple[str, ...]
    simulated: bool
    set_back: bool


def mutant(
    hazard: int, guard: str, what: str, *tests: str, simulated: bool = True, set_back: bool = False
) -> Callable[[Switch], Mutant]:
    """Make a `Mutant` of the function that switches the guard off, under its name."""

    def made(off: Switch) -> Mutant:
        return Mutant(hazard, off.__name__.replace("_", "-"), guard, what, off, tests, simulated, set_back)

    return made


def instead(
    hazard: int, guard: str, what: str, *tests: str, simulated: bool = True, set_back: bool = False, place: str = ""
) -> Callable[[Callable[..., Any]], Mutant]:
    """Make a `Mutant` of a function that replaces the guard itself, or the function at `place`."""
    file, _, name = (place or guard).partition("::")
    owner, _, attribute = name.rpartition(".")
    module = file.removesuffix(".py").replace("/", ".")

    def made(other: Callable[..., Any]) -> Mutant:
        def off() -> AbstractContextManager[Any]:
            if owner:
                return method(getattr(importlib.import_module(module), owner), attribute, other)
            return everywhere(module, attribute, other)

        off.__name__ = other.__name__
        return mutant(hazard, guard, what, *tests, simulated=simulated, set_back=set_back)(off)

    return made


@contextmanager
def everywhere(module: str, name: str, instead: Any) -> Iterator[None]:
    """Replace `module.name`, there and in every module that has imported it from there."""
    original = getattr(importlib.import_module(module), name)
    with ExitStack() as stack:
        for key, m in list(sys.modules.items()):
            if key.startswith(("l0gc.", "tests.simulation.")) and m.__dict__.get(name) is original:
                stack.enter_context(mock.patch.object(m, name, instead))
        yield


def method(owner: type, name: str, instead: Any) -> AbstractContextManager[Any]:
    """Replace the method of a class."""
    return mock.patch.object(owner, name, instead)


@contextmanager
def together(*switches: AbstractContextManager[Any]) -> Iterator[None]:
    """Apply all of them while the context holds."""
    with ExitStack() as stack:
        for switch in switches:
            stack.enter_context(switch)
        yield


class Wrapped:
    """A store of which a mutant changes a part."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)
