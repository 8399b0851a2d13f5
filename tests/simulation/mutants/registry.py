"""All mutants, by hazard."""

from __future__ import annotations

from tests.simulation.mutants import (
    of_holes,
    of_isolation,
    of_journals,
    of_l1,
    of_limits,
    of_logs,
    of_objects,
    of_pins,
    of_set_back,
    of_sinks,
    of_tables,
    of_the_cluster,
)
from tests.simulation.mutants.tools import Mutant

_MODULES = (
    of_journals,
    of_logs,
    of_the_cluster,
    of_objects,
    of_l1,
    of_set_back,
    of_isolation,
    of_sinks,
    of_tables,
    of_holes,
    of_pins,
    of_limits,
)
MUTANTS: list[Mutant] = sorted(
    (m for module in _MODULES for m in vars(module).values() if isinstance(m, Mutant)), key=lambda m: m.hazard
)
BY_NAME: dict[str, Mutant] = {m.name: m for m in MUTANTS}
