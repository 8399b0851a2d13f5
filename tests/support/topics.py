"""Creates topics as the library does, with its guards."""

from __future__ import annotations

from l0gc.api.groups import Topics
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import Topic


def topics_of(cluster: ClusterHandles) -> Topics:
    return Topics(lambda: cluster)


def create_topic(cluster: ClusterHandles, name: str, partitions: int, journals: int | None = None) -> Topic:
    """Create a topic, and return the controller's record of it."""
    topics_of(cluster).create(name, partitions, journals)
    return cluster.controller.replica.state.topic(name)
