"""The processes that run the tests: the crash of one is a failure, and the others run its remaining tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCHEDULER = "from tests.conftest import pytest_xdist_make_scheduler\n"
PASSES = "import pytest\n@pytest.mark.parametrize('n', range(3))\ndef test_it(n): pass\n"
CRASHES = (
    "import os, pathlib\ndef test_one(): pass\ndef test_two(): pass\ndef test_three():\n"
    "  try: pathlib.Path('crashed').touch(exist_ok=False)\n  except FileExistsError: return\n  os._exit(9)\n"
)


@pytest.mark.thorough
def test_a_crashed_process_fails_one_test_and_stops_no_other(tmp_path: Path) -> None:
    """Each process has completed files by then, and so many that each of the others would be given one."""
    (tmp_path / "conftest.py").write_text(SCHEDULER)
    for n in range(40):
        (tmp_path / f"test_{n:02}.py").write_text(CRASHES if n == 20 else PASSES)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "--rootdir", str(tmp_path), "."]
    environment = {"PYTHONPATH": str(Path(__file__).parents[1]), "PATH": ""}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.returncode == 1
    assert "crashed while running" in ended.stdout
    assert "1 failed, " in ended.stdout.splitlines()[-1]
