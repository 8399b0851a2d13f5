"""The tests that are named for a guard find that it is switched off.

This file is separate, so that it runs next to the search of the seeds.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.simulation.mutants import table


@pytest.mark.thorough
@pytest.mark.timeout(3600)
def test_the_named_tests_of_every_mutant_fail_under_it() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.simulation.mutants", "--tests"],
        capture_output=True,
        text=True,
        check=False,
        cwd=table.ROOT,
    )
    assert json.loads(ended.stdout) == {}, ended.stderr
