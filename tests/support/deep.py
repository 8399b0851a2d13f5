"""Runs the rules and readers of `l0gc verify --deep` one after another in this process."""

from __future__ import annotations

from l0gc.inspect.verify.findings import ClusterSnapshot, check_journal, needed_end, placed
from l0gc.inspect.verify.replay import block_faults, controller_faults, l1_fault, read_copy
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.journal.topic import TopicState, l1_key
from l0gc.watermark.publication import read_published


def deep_findings(cluster: ClusterHandles) -> list[str]:
    """Return everything that is wrong with what the journals list, and with every block and L1 object that they need.

    No other process may be active, since nothing is read a second time.
    """
    state = cluster.controller.snapshot()
    published = read_published(cluster.store, state.cluster_id)[0]
    snapshot = ClusterSnapshot(state, published, 0)
    found = [str(fault) for fault in controller_faults(cluster, deep=True)]
    for journal in range(state.journals):
        copy = read_copy(cluster, journal, deep=True)
        found += [str(s) for s in check_journal(copy, snapshot)]
        for topic, of_topic in placed(copy, snapshot):
            found += _objects(cluster, of_topic)
            found += _l1(cluster, topic, of_topic)
    return found


def _objects(cluster: ClusterHandles, state: TopicState) -> list[str]:
    found = []
    for o in state.objects:
        faults = block_faults(cluster.store, o)
        if faults is None:
            found.append(f"{o.key} is not there, or has not {needed_end(o)} bytes")
        found += [str(fault) for fault in faults or ()]
    return found


def _l1(cluster: ClusterHandles, topic: Topic, state: TopicState) -> list[str]:
    found: list[str] = []
    for number in state.partitions.tolist():
        for file in state.files(number):
            key = l1_key(topic.id(number), file)
            fault = l1_fault(cluster.store, key, file.bytes)
            if fault != "":
                found.append(f"{key}: {fault or 'it is not there, or has another size'}")
    return found
