"""Objects that cannot be deleted or read, and a deleter that dies: each may delay only itself.

Legal holds keep some L0 and L1 objects, for good or until the faults stop. All other garbage is deleted. If the deleter
of a topic dies between the controller's entry and those of the journals, the next housekeeping closes the topic,
however late it runs.

All of it is drawn independently of the rest of the seed, so that seeds without it do not change.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING
from unittest import mock

import l0gc.streamlog.garbage
from l0gc.storage.objectstore import DeleteFailure
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.housekeep import housekeep

if TYPE_CHECKING:
    from tests.simulation.world import World

EPOCHS = 1100
"""How many epochs pass after a deleter has died."""
HELD = "deletions refused because of a legal hold"
DIED = "topics whose deleter died"


@dataclass
class Holds:
    """What a seed holds: `share` of 100 keys for good, and as many more until `lifted`."""

    seed: int
    share: int = 0
    deleter_dies: bool = False
    lifted: bool = False

    @classmethod
    def draw(cls, seed: int) -> Holds:
        chance = random.Random(f"holds of seed {seed}")
        share = chance.choice([0, 0, 5, 20])
        return cls(seed, share, chance.random() < 0.15)

    def applied(self) -> AbstractContextManager[object]:
        """Make vacuums take few objects at once if objects are held, so that others come after the held ones."""
        return mock.patch.object(l0gc.streamlog.garbage, "BATCH", 2) if self.share else nullcontext()

    def for_good(self, key: str) -> bool:
        """Return whether the object is never deleted."""
        return self._number(key) < self.share

    def keeps(self, key: str) -> bool:
        """Return whether the object cannot be deleted at this time."""
        return self._number(key) < (self.share if self.lifted else 2 * self.share)

    def _number(self, key: str) -> int:
        data = key.startswith(("level_zero/data/", "level_one/"))
        return zlib.crc32(f"{self.seed} {key}".encode()) % 100 if data else 100

    def refuse(self, world: World, keys: Sequence[str]) -> list[DeleteFailure]:
        """Return the failures for the keys of a request that the store keeps."""
        held = [key for key in keys if key in world.store.objects and self.keeps(key)]
        world.happened[HELD] += len(held)
        return [DeleteFailure(key, "AccessDenied", "a legal hold") for key in held]


def a_deleter_dies(world: World, cluster: ClusterHandles) -> None:
    """Delete a topic in the controller's log without closing it in any journal; housekeeping runs a thousand epochs
    later.
    """
    topics = sorted(world.watch.controller.topics)
    if world.holds.deleter_dies and topics:
        cluster.controller.delete_topic(topics[world.seed % len(topics)])
        cluster.controller.advance_above(world.watch.epoch + EPOCHS)
        housekeep(cluster)
        world.happened[DIED] += 1


def check_vacuumed(world: World) -> None:
    """Check that L1 has only objects that journals name and that every deleted topic is forgotten, except for what is
    held.
    """
    left = {key for key in world.store.objects if key.startswith("level_one/")} - world.watch.named()
    kept = {key for key in left if key in world.watch.strays or world.watch.is_kept(key)}
    for key in sorted(key for key in left - kept if not world.holds.for_good(key)):
        raise world.violation(f"{key}, which no journal names, is left over")
    held = {key.split("/")[2] for key in left}
    for d in world.watch.controller.deleted:
        if f"{d.topic.name}-{d.topic.revision}" not in held:
            raise world.violation(
                f"topic {d.topic.name} (revision {d.topic.revision}) was deleted, and is not forgotten"
            )
