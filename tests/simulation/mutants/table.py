"""Reads and rewrites the table of hazards in docs/why/hazards.md, with a line for each mutant."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.simulation.mutants.hunt import SEVERAL, Caught
from tests.simulation.mutants.tools import Mutant

ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "docs/why/hazards.md"
REGENERATE = "python -m tests.simulation.mutants --find"
_HEAD = "| # | hazard | guard | mutant | seeds | test |\n| --- | --- | --- | --- | --- | --- |\n"
_TABLE = re.compile(re.escape(_HEAD) + r"((?:\|.*\|\n)+)")
_NEVER = "none"


@dataclass(frozen=True)
class Row:
    """A line of the table; `number` and `hazard` are empty except for the first mutant of a hazard."""

    number: str
    hazard: str
    guard: str
    mutant: str
    seeds: str
    tests: str

    @property
    def name(self) -> str:
        return self.mutant.split("`")[1]

    @property
    def found_by(self) -> list[int]:
        """The seeds that found the mutant; none if the simulation does not find it, or too rarely."""
        return [] if self.seeds == _NEVER else [int(seed) for seed in self.seeds.split(", ")]

    def __str__(self) -> str:
        cells = (self.number, self.hazard, self.guard, self.mutant, self.seeds, self.tests)
        return "|" + "".join(f" {c} |" if c else " |" for c in cells) + "\n"


def rows(text: str) -> list[Row]:
    """Return the lines of the table."""
    m = _TABLE.search(text)
    assert m is not None, f"{DOCUMENT} has no table of hazards"
    return [Row(*(cell.strip() for cell in line[1:-1].split("|"))) for line in m[1].splitlines()]


def hazards(text: str) -> dict[int, str]:
    """Return the description of each hazard."""
    return {int(row.number): row.hazard for row in rows(text) if row.number}


def row_of(mutant: Mutant, hazard: str, seeds: Sequence[int]) -> Row:
    return Row(
        str(mutant.hazard) if hazard else "",
        hazard,
        f"`{mutant.guard}`",
        f"`{mutant.name}`: {mutant.what}",
        ", ".join(map(str, seeds)) or _NEVER,
        "<br>".join(f"`{t}`" for t in mutant.tests),
    )


def written(text: str, mutants: list[Mutant], found: dict[str, list[Caught]]) -> str:
    """Return the document with a line for each mutant, from `found` or else from the document's present line."""
    before = {row.name: row.found_by for row in rows(text)}
    about = hazards(text)
    lines, last = [], -1
    for m in mutants:
        seeds = before.get(m.name, []) if m.simulated else []
        if m.name in found:
            seeds = [c.seed for c in found[m.name]] if len(found[m.name]) == SEVERAL else []
        lines.append(str(row_of(m, about[m.hazard] if m.hazard != last else "", seeds)))
        last = m.hazard
    return _TABLE.sub(lambda _: _HEAD + "".join(lines), text, count=1)
