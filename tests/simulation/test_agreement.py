"""Every process that reads a journal computes the same state, whenever it reads and wherever it begins (hazard 23)."""

from __future__ import annotations

import random

import pytest

from l0gc.runtime import Runtime
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.journal.checkpoint import JournalMachine
from tests.support.journal import journal_of, of_topic
from tests.support.memory_store import MemoryStore


@pytest.mark.parametrize("late_ms", [0, 1])
def test_every_reader_assigns_the_same_offsets(late_ms: int) -> None:
    store = MemoryStore()
    cluster, topic, handle = journal_of(3, store=store)
    epoch = cluster.controller.epoch()
    for n in range(4):
        objects = [of_topic(topic, epoch, {0: 1 + i, 1: 2}, key=f"object-{n}-{i}") for i in range(3)]
        assert handle.append(objects).error is None
        if n == 1:
            handle.replica.write_checkpoint()
    store.clock.ms += late_ms
    reader = ClusterHandles(store, Runtime(store.clock, random.Random(5))).journal(handle.journal)
    assert JournalMachine(0).encode(reader.catch_up()) == JournalMachine(0).encode(handle.state)
    landed = [(e.key, e.base_offset) for e in reader.state.topic(topic.revision).extents(0)]
    assert landed == [(f"object-{n}-{i}", 6 * n + i * (i + 1) // 2) for n in range(4) for i in range(3)]
