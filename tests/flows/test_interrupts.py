"""Sends Ctrl-C, SIGTERM and SIGHUP at a few moments of each long command; `tests/flows/interrupts.py` tries more."""

from __future__ import annotations

from pathlib import Path

import pytest

from l0gc.embedded.seaweedfs import SeaweedFS
from l0gc.storage.config import StoreConfig
from tests.flows.interrupts import COMMANDS, outcomes

pytestmark = [pytest.mark.thorough, pytest.mark.slow, pytest.mark.spark, pytest.mark.weed]

MOMENTS = 2
ALIKE = ("merge", "compute-watermark", "vacuum", "verify", "read")
"""Commands that end as reconcile, sweep and upload do: `make release` interrupts them, too."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "command", [pytest.param(c, marks=[pytest.mark.release] if c in ALIKE else []) for c in COMMANDS]
)
def test_nothing_is_left_whenever_a_signal_comes(
    weed: SeaweedFS, bucket: StoreConfig, tmp_path: Path, command: str
) -> None:
    found = list(outcomes(weed, command, bucket.bucket, tmp_path, MOMENTS))
    assert [str(o) for o in found if not o.good] == []
    assert sum(o.code != 0 for o in found) >= MOMENTS // 2  # a run can end before its moment, but most do not
