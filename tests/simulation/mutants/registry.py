"""All mutants, by hazard."""

from __future__ import annotations

from tests.simulation.mutants import (
    of_isolation,
    of_journals,
    of_l1,
    of_logs,
    of_objects,
    of_set_back,
    of_sinks,
    of_the_cluster,
)
from tests.simulation.mutants.tools import Mutant

MUTANTS: list[Mutant] = sorted(
    [
        *of_journals.MUTANTS,
        *of_logs.MUTANTS,
        *of_the_cluster.MUTANTS,
        *of_objects.MUTANTS,
        *of_l1.MUTANTS,
        *of_set_back.MUTANTS,
        *of_isolation.MUTANTS,
        *of_sinks.MUTANTS,
    ],
    key=lambda m: m.hazard,
)
BY_NAME: dict[str, Mutant] = {m.name: m for m in MUTANTS}
