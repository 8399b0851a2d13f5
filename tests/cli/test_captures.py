"""The README's first session says what the commands say, but for ids, times and sizes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RECORD = Path(__file__).parents[2] / "docs/captures/record.py"


@pytest.mark.weed
@pytest.mark.spark
@pytest.mark.slow
def test_the_first_session_of_the_readme_is_true() -> None:
    ended = subprocess.run([sys.executable, str(RECORD), "--check"], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
