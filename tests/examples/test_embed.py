"""The example that embeds the library does on a real server what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from l0gc.storage.s3 import S3Store

EMBED = Path(__file__).parents[2] / "examples" / "embed.py"


@pytest.mark.weed
def test_the_example_runs_the_loop_and_deletes_nothing(store: S3Store) -> None:
    ended = subprocess.run([sys.executable, str(EMBED)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    uploaded, swept = ended.stdout.splitlines()
    assert uploaded == "100 records uploaded, 7 sensors, the sum is 4950"
    assert "a sweep would delete 1 of 1 objects" in swept
    assert len(store.list("level_zero/data/").modified_ms) == 1


def test_the_example_is_short() -> None:
    assert len(EMBED.read_text().splitlines()) <= 25
