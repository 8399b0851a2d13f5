"""The topics of a cluster, as the library gives them, and how a result with a problem becomes an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from l0gc.errors import L0gcError
from l0gc.streamlog import topics
from l0gc.streamlog.cluster import Cluster as Handles
from l0gc.streamlog.controller.decisions import NOT_SET, NotSet, RetentionSettings
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.topics import PARTITIONS_SHOWN, TopicDescription

R = TypeVar("R")


class Topics:
    """The topics of a cluster: `cluster.topics`."""

    def __init__(self, handles: Callable[[], Handles]) -> None:
        self._handles = handles

    def create(
        self,
        name: str,
        partitions: int,
        journals: int | None = None,
        *,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
    ) -> Topic:
        """Create a topic; repeated with the same numbers, change nothing. As `l0gc topic create`.

        Args:
            journals: spread the partitions over so many journals; by default they are in one.
            retention_ms: keep records for so many milliseconds; -1 for ever. By default as the cluster does.
            retention_bytes: keep so many bytes of L1 of each partition, in the same way.
        """
        retention = RetentionSettings(
            NOT_SET if retention_ms is None else retention_ms, NOT_SET if retention_bytes is None else retention_bytes
        )
        return topics.create_topic(self._handles(), name, partitions, journals, retention)[0]

    def alter(
        self, name: str, *, retention_ms: int | NotSet | None = NOT_SET, retention_bytes: int | NotSet | None = NOT_SET
    ) -> Topic:
        """Change a topic's retention; what is not given stays. As `l0gc topic alter`.

        Args:
            retention_ms: how many milliseconds records are kept; -1 for ever, None as long as the cluster's default says.
            retention_bytes: how many bytes of L1 of each partition are kept, in the same way.
        """
        return topics.alter_topic(self._handles(), name, RetentionSettings(retention_ms, retention_bytes))[0]

    def delete(self, name: str) -> Topic:
        """Delete a topic: it takes nothing more, and no longer holds M back. As `l0gc topic delete`."""
        topic, broken = topics.delete_topic(self._handles(), name)
        return checked(topic, topics.problem_of(broken))

    def list(self) -> list[Topic]:
        """The topics, by name."""
        known = self._handles().controller.snapshot().topics
        return [known[name] for name in sorted(known)]

    def describe(self, name: str, partition: int | None = None, limit: int = PARTITIONS_SHOWN) -> TopicDescription:
        """A topic with its retention, its sums, and the offsets of its first partitions. As `l0gc topic describe`.

        Args:
            partition: the offsets of this one alone.
            limit: of how many partitions the offsets are given.
        """
        return topics.describe_topic(self._handles(), name, partition, limit)


def checked(result: R, problem: L0gcError | None) -> R:
    """The result of work that was done whole; else its problem is raised, and has what was done as `error.result`."""
    if problem is None:
        return result
    problem.result = result
    raise problem
