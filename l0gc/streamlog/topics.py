"""Creating and deleting topics, beyond the controller's entry.

A topic is created only above everything that sweeps may delete: behind a controller log that was restored from an old
backup, a new topic would take data at epochs that a published M has long released (hazard 10). The controller's guard sees
to that, before anything is written. A deleted topic is closed in its journals, so that a writer with an old view is refused.
"""

from __future__ import annotations

from l0gc.errors import CorruptObjectError, PartialFailureError, ProtocolError, StoreError
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.housekeep import Broken
from l0gc.watermark.publication import refuse_if_behind


def create_topic(cluster: Cluster, name: str, partitions: int, journals: int | None = None) -> tuple[Topic, bool]:
    """The topic, and whether it was created now. See `decide_create_topic`.

    Raises:
        EpochRegressionError: what is published is above the cluster epoch.
    """
    return cluster.controller.create_topic(name, partitions, journals)


def delete_topic(cluster: Cluster, name: str) -> tuple[Topic, list[Broken]]:
    """Delete the topic and close it in its journals; names those in which that failed, where housekeeping tries again.

    Raises:
        TopicNotFoundError: there is none.
        EpochRegressionError: what is published is above the cluster epoch.
    """
    topic = cluster.controller.delete_topic(name)

    def close(journal: int) -> Broken | None:
        try:
            cluster.journal(journal).close(topic.revision, topic.topic_id)
        except (CorruptObjectError, StoreError, ProtocolError) as e:
            return Broken(journal, str(e))
        return None

    return topic, [b for b in cluster.parallel.map(close, topic.journals) if b is not None]


def close_unknown_topics(cluster: Cluster) -> list[tuple[int, int, str]]:
    """Close what journals hold of topics that the controller does not know, and give their records up.

    Only a controller log that was restored from a backup leaves such topics behind: they were created after it. Until they
    are closed, no M is computed. It is for an operator who has decided that the newer log is lost for good.

    Returns:
        The journal, revision and id of each topic that was closed.

    Raises:
        EpochRegressionError: the cluster epoch is not above all that is published; advance it first.
    """
    refuse_if_behind(cluster)
    state = cluster.controller.snapshot()
    closed = []
    for journal in range(state.journals):
        handle = cluster.journal(journal)
        for topic in list(handle.catch_up().topics.values()):
            unknown = not topic.closed and not state.knows(topic.revision, topic.topic_id)
            if unknown and topic.revision <= state.epoch and handle.close(topic.revision, topic.topic_id):
                closed.append((journal, topic.revision, topic.topic_id))
    return closed


def problem_of(broken: list[Broken]) -> PartialFailureError | None:
    """What went wrong when a topic was deleted, in one sentence."""
    if not broken:
        return None
    return PartialFailureError(
        f"the topic is deleted, but could not be closed in journal {broken[0].journal}: {broken[0].error}"
    )
