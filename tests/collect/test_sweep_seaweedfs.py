"""SeaweedFS's listings from the first key of a shard."""

from __future__ import annotations

import pytest

from l0gc.collect.plan import DeletionPlan
from l0gc.collect.skip_scan import SkipScan
from l0gc.keys import KeyLayout
from l0gc.operations import Sweep
from l0gc.storage.s3 import S3Store

pytestmark = pytest.mark.weed


def test_a_scan_that_begins_at_a_shard_misses_none_of_its_keys(store: S3Store) -> None:
    """Hazard 12: from `level_zero/data/001` on, this store's listing skips the whole folder of that name."""
    layout = KeyLayout(shards=4)
    names = [f"{i:08x}-0000-4000-8000-000000000000" for i in range(3)]
    keys = sorted(layout.format(shard, epoch, n) for shard in range(4) for epoch in (1, 5) for n in names)
    store.create_bucket()
    for key in keys:
        store.put(key, b"x")
    for first in range(4):
        inside = [k for k in keys if (parsed := layout.parse(k)) and first <= parsed.shard < first + 1]
        scan = SkipScan(store, DeletionPlan(options=Sweep(), layout=layout, bound=1), first, first + 1)
        assert [o.key for batch in scan.batches() for o in batch] == [k for k in inside if f"/{1:018}/" in k]
