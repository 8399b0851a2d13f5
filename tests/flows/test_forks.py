"""No call waits forever if its cluster is closed or forked, or if Python ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

from l0gc.storage.config import StoreConfig
from tests.support.cli import founded

pytestmark = [pytest.mark.weed, pytest.mark.thorough, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("programs", [5, pytest.param(200, marks=pytest.mark.release)])
def test_programs_that_fork_close_and_exit_at_any_moment_end(programs: int, bucket: StoreConfig) -> None:
    founded(topic="t")
    command = [sys.executable, "-m", "tests.flows.forks", "0", str(programs)]
    ended = subprocess.run(command, check=False, timeout=1800, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
