"""Topics that a restored controller log has forgotten: they hold up everything until an operator gives them up."""

from __future__ import annotations

import pytest

from l0gc.errors import EpochRegressionError
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.epoch_source import JournalSource
from l0gc.streamlog.topics import close_unknown_topics
from l0gc.watermark.pipeline import run_pipeline
from tests.support.memory_store import MemoryStore, copy_of, memory_cluster, put_back
from tests.support.reconcile import put


def compute(cluster: ClusterHandles) -> int:
    return run_pipeline(cluster, JournalSource(cluster)).watermark


def restored() -> ClusterHandles:
    """Restore the controller log to before a topic that has records, after an M was published."""
    store = MemoryStore()
    cluster = memory_cluster(store)
    cluster.controller.create_topic("kept", 1)
    backup = copy_of(store, "l0gc/controller/")
    cluster.controller.create_topic("forgotten", 2, 2)
    put(cluster, "forgotten", {0: [b"a"], 1: [b"b"]})
    compute(cluster)
    put_back(store, "l0gc/controller/", backup)
    return memory_cluster(store, seed=1, bootstrap=False)


def test_a_forgotten_topic_is_closed_only_above_the_published_m() -> None:
    cluster = restored()
    with pytest.raises(EpochRegressionError):
        close_unknown_topics(cluster)
    cluster.controller.advance_above(5)
    with pytest.raises(EpochRegressionError, match="does not list"):
        compute(cluster)
    closed = close_unknown_topics(cluster)
    assert [(journal, revision) for journal, revision, _ in closed] == [(1, 2), (2, 2)]
    assert compute(cluster) >= 0
    assert close_unknown_topics(cluster) == []


def test_what_the_controller_knows_is_never_closed() -> None:
    cluster = memory_cluster()
    topic, _ = cluster.controller.create_topic("kept", 1)
    put(cluster, "kept", {0: [b"a"]})
    assert close_unknown_topics(cluster) == []
    assert not cluster.journal(topic.journals[0]).catch_up().closed(topic.revision)
