"""How much a micro-batch takes: about the limit, and of every partition that has something."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from l0gc.spark.source.offsets import Ranges, limited
from tests.support.ingest import topic_in_memory

TOPIC = topic_in_memory(8).controller.snapshot().topic("events")


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=8), st.integers(1, 20_000))
def test_a_limit_is_kept_but_for_one_record_of_each_partition(sizes: list[int], limit: int) -> None:
    starts = np.arange(len(sizes)) * 7
    ranges = {"events": Ranges(TOPIC, starts, starts + sizes)}
    taken = limited(ranges, sum(sizes), limit)["events"] - starts
    assert (taken <= sizes).all()
    assert ((taken > 0) == (np.array(sizes) > 0)).all()
    assert taken.sum() <= max(limit, 0) + len(sizes)
    if sum(sizes) <= limit:
        assert (taken == sizes).all()
