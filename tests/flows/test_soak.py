"""Runs everything at once for less than a minute, and kills a process every few seconds (`make soak MINUTES=60` runs
longer).
"""

from __future__ import annotations

import pytest

from l0gc.embedded.seaweedfs import SeaweedFS
from l0gc.storage.config import StoreConfig
from tests.flows.soak import Soak


@pytest.mark.weed
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_nothing_is_lost_or_doubled_and_little_is_left(weed: SeaweedFS, bucket: StoreConfig) -> None:
    soak = Soak(weed, seconds=30, bucket=bucket.bucket)
    soak.run()
    assert all("is under way" not in f for f in soak.failures)
