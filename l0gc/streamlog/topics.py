"""Creating and deleting topics, beyond the controller's entry.

A topic is created only above everything that sweeps may delete: behind a controller log that was restored from an old
backup, a new topic would take data at epochs that a published M has long released (hazard 10). A deleted topic's
partitions are closed, so that a writer with an old view is refused.
"""

from __future__ import annotations

from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.housekeep import Broken, close_partitions
from l0gc.watermark.publication import refuse_if_behind


def create_topic(cluster: Cluster, name: str, partitions: int) -> tuple[Topic, bool]:
    """The topic, and whether it was created now. See `decide_create_topic`.

    Raises:
        EpochRegressionError: the published M is above the cluster epoch.
    """
    refuse_if_behind(cluster)
    return cluster.controller.create_topic(name, partitions)


def delete_topic(cluster: Cluster, name: str) -> tuple[Topic, list[Broken]]:
    """Delete the topic and close its partitions; names those that could not be closed. Raises `TopicNotFoundError`."""
    topic = cluster.controller.delete_topic(name)
    return topic, close_partitions(cluster, topic.ids())[1]
