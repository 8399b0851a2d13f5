"""What everything in the bucket is compared with: M, the controller's topics, and what the keys of L1 objects say (pure).

M is read before the controller, the controller before the journals, and the journals before the listings. Each of them can
only be behind what is read after it, so whatever is ahead of a later one is wrong.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from l0gc.errors import ExternalLogError
from l0gc.keys import JUMP, L1_DATA, KeyLayout, L1Key
from l0gc.storage.ranges import KeyRange, cut
from l0gc.streamlog.controller.state import ControllerState, Topic

LIVE: Final = "live"
DELETED: Final = "deleted"
LATER: Final = "later"
"""Of a topic that was created after the controller was read."""
FOREIGN: Final = "foreign"


class Basis(msgspec.Struct, frozen=True):
    """M, and the controller's snapshot taken after it.

    L1 objects changed after `young_after_ms`, by the store's clock, may still be named by a journal. The deleted topics with
    the revisions `to_be_closed` were deleted so long ago that each of their journals has closed them.
    """

    cluster_id: str
    cluster_epoch: int
    key_template: str
    shards: int
    journals: int
    topics: list[Topic]
    deleted: list[Topic]
    watermark: int
    young_after_ms: int
    to_be_closed: list[int] = []

    @property
    def layout(self) -> KeyLayout:
        return KeyLayout(self.key_template, self.shards)


def check_log_is_ours(state: ControllerState) -> None:
    """Raises `ExternalLogError` where another system keeps the log: nothing in the bucket could be compared with it."""
    if state.external_log:
        raise ExternalLogError(
            "this cluster's log is another system's, which l0gc cannot read, so there is nothing to compare the bucket "
            "with: verify it with that system's own means"
        )


def basis_of(state: ControllerState, watermark: int, young_after_ms: int, now_ms: int = 0) -> Basis:
    """The basis for a snapshot of the controller. `now_ms` is by the store's clock; 0 where topics may still be unclosed."""
    return Basis(
        state.cluster_id,
        state.epoch,
        state.key_template,
        state.shards,
        state.journals,
        list(state.topics.values()),
        [d.topic for d in state.deleted],
        watermark,
        young_after_ms,
        [t.revision for t in state.to_be_closed_by(now_ms)] if now_ms else [],
    )


class KnownTopics:
    """The topics that there are and were."""

    def __init__(self, basis: Basis) -> None:
        self._epoch = basis.cluster_epoch
        self._live = {t.revision: t for t in basis.topics}
        self._deleted = {t.revision: t for t in basis.deleted}
        self._placed = {j: [t for t in basis.topics if j in t.journals] for t in basis.topics for j in t.journals}

    def of(self, revision: int, topic_id: str) -> tuple[str, Topic | None]:
        """The state of the topic that a journal holds, and the topic if it is live."""
        topic = self._live.get(revision)
        if topic is not None:
            # A journal that records a topic's end before anything of it landed does not have its id.
            return (LIVE, topic) if topic_id in {topic.topic_id, ""} else (FOREIGN, None)
        deleted = self._deleted.get(revision)
        if deleted is not None:
            return (DELETED if topic_id in {deleted.topic_id, ""} else FOREIGN), None
        return (LATER if revision > self._epoch else FOREIGN), None

    def placed_in(self, journal: int) -> list[Topic]:
        """The topics of which `journal` keeps partitions."""
        return self._placed.get(journal, [])

    def owner(self, key: L1Key | None) -> tuple[str, int]:
        """Whose an L1 object is, and the journal that names it; `FOREIGN` if no reconciler here can have written it."""
        if key is None:
            return FOREIGN, -1
        p = key.id
        topic = self._live.get(p.revision)
        if topic is not None:
            fits = topic.name == p.topic and p.partition < topic.partitions
            return (LIVE, topic.journal_of(p.partition)) if fits else (FOREIGN, -1)
        deleted = self._deleted.get(p.revision)
        if deleted is not None:
            return (DELETED if deleted.name == p.topic else FOREIGN), -1
        return (LATER if p.revision > self._epoch else FOREIGN), -1


class FolderRange(NamedTuple):
    """A range of the keys below a folder."""

    folder: str
    keys: KeyRange


def topic_folder(topic: Topic) -> str:
    """Where the L1 objects of a topic are."""
    return f"{L1_DATA}{topic.name}-{topic.revision}/"


def l1_ranges(basis: Basis, parts: int) -> list[FolderRange]:
    """Ranges that cover the L1 folders of every past or present topic.

    A range never spans two topics: stores that list folder by folder put `a-1/` before `a-1.b-2/`, others after it. Within
    a topic the bounds sort after one partition's folder and before the next one's, and do not equal a folder's name, since
    some stores would skip that folder (hazard 12).
    """
    ranges = []
    step = max(1, -(-sum(t.partitions for t in basis.topics) // parts))
    for t in basis.topics:
        folder = topic_folder(t)
        cuts = (f"{folder}{p - 1:05}{JUMP}" for p in range(step, t.partitions, step))
        ranges += [FolderRange(folder, keys) for keys in cut(KeyRange(), cuts)]
    return ranges + [FolderRange(topic_folder(t), KeyRange()) for t in basis.deleted]
