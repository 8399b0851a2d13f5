"""The example that embeds the library does on a real server what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from l0gc.storage.s3 import S3Store
from tests.support.cli import l0gc

EMBED = Path(__file__).parents[2] / "examples" / "embed.py"


@pytest.mark.weed
def test_the_library_founds_uploads_looks_and_would_sweep_nothing_that_is_live(store: S3Store) -> None:
    ended = subprocess.run([sys.executable, str(EMBED)], capture_output=True, text=True, check=True)
    told = json.loads(ended.stdout)
    assert (told["uploaded"], told["read"], told["unreconciled"], told["would_delete"]) == (100, 100, 100, 0)
    shown = l0gc("status")
    assert (shown["cluster_id"], shown["records"]) == (told["cluster_id"], 100)
    assert len(store.list("level_zero/data/").modified_ms) == 1
