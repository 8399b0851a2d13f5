"""Objects that cannot be deleted or read, and a deleter that dies: what each of them may hold up, which is itself alone.

Legal holds keep some L0, L1 and index objects, for good or until the faults stop. Whatever else is garbage goes, and what
leads to a held object stays with it. A topic whose deleter dies between the controller's entry and those of the
journals is closed by the housekeeping that follows, however late. A dropped index object that is damaged keeps what it
lists, until somebody removes it.

All of it is drawn from the seed apart from everything else, so that seeds without it stay what they are.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from unittest import mock

import l0gc.streamlog.garbage
from l0gc.keys import level_one
from l0gc.storage.objectstore import DeleteFailure
from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.topics import delete_topic

if TYPE_CHECKING:
    from tests.simulation.world import World

EPOCHS = 1100
"""So many epochs pass after a deleter has died."""
_FAR = 10**9
"""A record that no partition has."""
HELD = "deletions refused because of a legal hold"
DIED = "topics whose deleter died"
DAMAGED = "dropped index objects that were damaged"


@dataclass
class Holds:
    """What a seed holds: so many of 100 keys for good, and as many until `lift`."""

    seed: int
    share: int = 0
    deleter_dies: bool = False
    damages: bool = False
    lifted: bool = False

    @classmethod
    def draw(cls, seed: int) -> Holds:
        chance = random.Random(f"holds of seed {seed}")
        share = chance.choice([0, 0, 5, 20])
        return cls(seed, share, chance.random() < 0.15, chance.random() < 0.3)

    def applied(self) -> AbstractContextManager[object]:
        """Where objects are held, a vacuum takes few at once, so that others come after them."""
        return mock.patch.object(l0gc.streamlog.garbage, "BATCH", 2) if self.share else nullcontext()

    def for_good(self, key: str) -> bool:
        """Whether nobody ever deletes that object."""
        return self._number(key) < self.share

    def keeps(self, key: str) -> bool:
        """Whether the object cannot be deleted now."""
        return self._number(key) < (self.share if self.lifted else 2 * self.share)

    def _number(self, key: str) -> int:
        data = key.startswith(("level_zero/data/", "level_one/"))
        return zlib.crc32(f"{self.seed} {key}".encode()) % 100 if data else 100

    def refuse(self, world: World, keys: Sequence[str]) -> list[DeleteFailure]:
        """The keys of a request that the store keeps."""
        held = [key for key in keys if key in world.store.objects and self.keeps(key)]
        world.happened[HELD] += len(held)
        return [DeleteFailure(key, "AccessDenied", "a legal hold") for key in held]

    def stay(self, world: World, keys: Iterable[str]) -> set[str]:
        """Which of the keys may stay in the end: those that are held, and index objects that lead to one."""
        dropped = {key: d for s in world.watch.shadows.values() for key, d in s.l1.dropped.items()}
        return {
            key
            for key in keys
            if self.for_good(key) or (key in dropped and any(map(self.for_good, dropped[key].leads_to)))
        }


def a_deleter_dies(world: World, cluster: Handles) -> None:
    """A topic is deleted in the controller's log and closed in no journal; thousands of epochs later somebody housekeeps."""
    topics = sorted(world.watch.controller.topics)
    if world.holds.deleter_dies and topics:
        cluster.controller.delete_topic(topics[world.seed % len(topics)])
        cluster.controller.advance_above(world.watch.epoch + EPOCHS)
        housekeep(cluster)
        world.happened[DIED] += 1


def a_topic_with_indexes_goes(world: World, cluster: Handles) -> None:
    """In seeds that damage an index object: a topic that has some is deleted, and a killed run has left an orphan of it."""
    known = {t.revision: t for t in world.watch.controller.topics.values()}
    places = [
        place
        for shadow in world.watch.shadows.values()
        for place, lists in shadow.l1.lists.items()
        if lists.indexes and place[0] in known
    ]
    if not world.holds.damages or not places:
        return
    revision, partition = min(places)
    topic = known[revision]
    orphan = level_one(topic.id(partition), revision, _FAR, _FAR, cluster.runtime.new_id())
    cluster.store.put(orphan, b"of a run that was killed")
    delete_topic(cluster, topic.name)


def vacuum(world: World, once: Callable[[], object]) -> None:
    """Vacuum by `once`: in some seeds next to a damaged index object, and again once somebody has removed that."""
    objects = world.store.objects
    dropped = {key: d for s in world.watch.shadows.values() for key, d in s.l1.dropped.items()}
    trees = sorted(k for k, d in dropped.items() if k in objects and any(f in objects for f in d.leads_to))
    trees = [k for k in trees if not world.holds.keeps(k)][: 1 if world.holds.damages else 0]
    for key in trees:
        objects[key].body = b"damaged"
        world.happened[DAMAGED] += 1
    once()
    if trees:
        check_vacuumed(world, {key for key in objects for tree in trees if _may_list(tree, key)})
        for key in trees:
            _remove_by_hand(world, key)
        once()
    check_vacuumed(world, set())


def _may_list(tree: str, key: str) -> bool:
    """Whether an index object that nobody can read may list an object: any of its partition, with records that there are."""
    partition = tree.split("/")[2:4]
    return key.startswith("level_one/") and key.split("/")[2:4] == partition and f"/{_FAR:020}-" not in key


def _remove_by_hand(world: World, key: str) -> None:
    """What a damaged index object listed is found by the listing from now on, and has to be below the fence."""
    del world.store.objects[key]
    for shadow in world.watch.shadows.values():
        tree = shadow.l1.dropped.get(key)
        if tree is not None:
            for file in tree.leads_to:
                shadow.l1.dropped.pop(file, None)
            shadow.l1.dropped[key] = replace(tree, leads_to=())


def check_vacuumed(world: World, unread: set[str]) -> None:
    """Nothing of L1 is left that no journal names, and every deleted topic is forgotten; but for what is held, or unread."""
    left = {key for key in world.store.objects if key.startswith("level_one/")} - world.watch.named() - unread
    kept = {key for key in left if key in world.watch.strays or world.watch.is_kept(key)}
    for key in sorted(left - world.holds.stay(world, left) - kept):
        raise world.violation(f"{key}, which no journal names, is left over")
    held = {key.split("/")[2] for key in [*left, *unread]}
    for d in world.watch.controller.deleted:
        if f"{d.topic.name}-{d.topic.revision}" not in held:
            raise world.violation(
                f"topic {d.topic.name} (revision {d.topic.revision}) was deleted, and is not forgotten"
            )
