"""What `l0gc vacuum` prints of a run."""

from __future__ import annotations

import pytest

from l0gc.cli.sweep import vacuumed
from l0gc.collect.plan import Removal
from l0gc.collect.vacuum import VacuumResult
from l0gc.storage.objectstore import ENABLED, OFF, SUSPENDED


@pytest.mark.parametrize(
    ("versioning", "said"),
    [(OFF, ""), (ENABLED, "the bucket keeps versions: the bytes stay"), (SUSPENDED, "what was written since is gone")],
)
@pytest.mark.parametrize("dry_run", [False, True])
def test_what_is_said_of_versions_is_true_of_the_bucket(versioning: str, said: str, *, dry_run: bool) -> None:
    plan = Removal(run_id="RUN", watermark=3, cluster_epoch=5, started_ms=0, dry_run=dry_run, versioning=versioning)
    result = VacuumResult(plan=plan, objects=2)
    lines = [line for line in vacuumed(result) if "version" in line]
    assert len(lines) == bool(said)
    assert all(said in line and ("l0gc undelete --run RUN" in line) is not dry_run for line in lines)
