"""Copies of a bucket, of which parts are put back: the store's contents then, and what the watch compares them with.

A copy has all objects of one moment. If a log is put back, its newer entries vanish. If data is put back, the copy's
objects return; in some seeds newer ones vanish, too, until the newest state is put back.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection
from copy import deepcopy
from dataclasses import dataclass

from l0gc.keys import CONTROLLER_LOG, PUBLISHED_COPY, PUBLISHED_WATERMARK, journal_log
from l0gc.streamlog.controller.state import ControllerState
from l0gc.watermark.publication import decode_published, lost, read_any, watermark_of
from l0gc.watermark.source import LogEnd
from tests.simulation.actors import Job
from tests.simulation.events import Work, copy_of, plant
from tests.simulation.shadow import Shadow
from tests.simulation.watch import Place
from tests.simulation.world import World

LOGS = "journals"
BOUNDARIES = "boundaries of journals"
PUBLISHED = "published.json"
FILES = "L1 objects"
CONTROLLER = "the controller log"
L0 = "L0 objects"
PARTS = (LOGS, BOUNDARIES, PUBLISHED, FILES, CONTROLLER, L0)
DATA = {FILES: "level_one/data/", L0: "level_zero/"}
OLDER, REMOVED, LOST = "older", "removed with its copy", "lost, but for its copy"
"""What happens to `published.json` if it is put back; its copy in the controller's folder shows that it is lost."""


@dataclass(frozen=True)
class Copy:
    """The bucket at one moment, and what the watch had counted by then."""

    objects: dict[str, bytes]
    shadows: dict[int, Shadow]
    controller: ControllerState
    watermark: int
    published_epoch: int
    acknowledged: dict[Place, dict[int, bytes]]
    finished: set[tuple[str, Job]]
    gone: set[str]

    @classmethod
    def of(cls, world: World, work: Work) -> Copy:
        watch = world.watch
        return cls(
            {k: o.body for k, o in world.store.objects.items()},
            deepcopy(watch.shadows),
            copy_of(watch.controller),
            watch.watermark,
            watch.published_epoch,
            deepcopy(watch.acknowledged),
            set(work.finished.jobs),
            set(watch.gone),
        )

    def put_back(self, world: World, mine: str, *, newer_vanish: bool) -> None:
        """Replace the objects whose keys match the pattern `mine` by those of the copy."""
        pattern = re.compile(mine)
        objects = world.store.objects
        for key in [k for k in objects if pattern.match(k) and k not in self.objects and newer_vanish]:
            del objects[key]
        for key, body in self.objects.items():
            if pattern.match(key) and (key not in objects or objects[key].body != body):
                plant(world, key, body)

    def put_log_back(self, world: World, journal: int) -> None:
        """Put a journal's entries and checkpoints back, but not its boundary; from then on the watch follows them."""
        self.put_back(world, f"{journal_log(journal)}(log|checkpoint)/", newer_vanish=True)
        world.watch.shadows[journal] = deepcopy(self.shadows.get(journal, Shadow(journal)))

    def put_boundary_back(self, world: World, journal: int) -> None:
        self.put_back(world, f"{journal_log(journal)}boundary.json", newer_vanish=True)

    def put_controller_back(self, world: World) -> None:
        """Put the controller's log back, with its boundary."""
        watch = world.watch
        watch.highest_epoch = max(watch.highest_epoch, watch.controller.epoch)
        self.put_back(world, CONTROLLER_LOG, newer_vanish=True)
        watch.controller = copy_of(self.controller)

    def put_data_back(self, world: World) -> None:
        """Put back the data objects that are missing."""
        for folder in DATA.values():
            self.put_back(world, folder, newer_vanish=False)

    def needs(self) -> frozenset[str]:
        """The objects that its logs name: unreconciled L0 objects, and L1 objects, including those of deleted topics."""
        live = {key for s in self.shadows.values() for t in s.topics.values() for key in s.keys(t.topic_id)}
        return frozenset(live.union(*(s.l1.named for s in self.shadows.values())))


@dataclass(frozen=True)
class Restore:
    """What is put back to a copy.

    `published` is '' if `published.json` stays, and else what happens to it. With `newer_vanish`, newer data objects
    vanish. With `for_good`, the newest logs never return.
    """

    parts: frozenset[str]
    journals: frozenset[int]
    boundaries: frozenset[int]
    published: str
    newer_vanish: bool
    for_good: bool

    @classmethod
    def draw(cls, chance: random.Random, copy: Copy, newest: Copy) -> Restore:
        n = len(PARTS) if chance.random() < 0.1 else chance.choice([1, 1, 1, 2, 2, 3])
        parts = set(chance.sample(PARTS, n))
        everyone = sorted(newest.shadows)
        some = everyone if n == len(PARTS) or chance.random() < 0.3 else [chance.choice(everyone)]
        older = [j for j in some if j not in copy.shadows or copy.shadows[j].offset < newest.shadows[j].offset]
        if not older:
            parts.discard(LOGS)
        if copy.controller.epoch == newest.controller.epoch:
            parts.discard(CONTROLLER)
        goes = bool(parts & {LOGS, CONTROLLER})
        published = chance.choice([OLDER, REMOVED, LOST]) if PUBLISHED in parts else ""
        if published == OLDER and PUBLISHED_WATERMARK not in copy.objects:
            published = LOST  # nothing was published yet: the newest goes, and its copy stays
        blind = goes and not _shown(parts, published)
        vanish = chance.random() < 0.3
        for_good = blind or (goes and chance.random() < 0.4)
        return cls(
            frozenset(parts),
            frozenset(older if LOGS in parts else []),
            frozenset(some if BOUNDARIES in parts else []),
            published,
            vanish and not for_good,
            for_good,
        )

    @property
    def noticed(self) -> bool:
        """Whether a log went back and the published watermark shows it (docs/why/hazards.md lists what cannot be
        noticed).
        """
        return bool(self.parts & {LOGS, CONTROLLER}) and _shown(self.parts, self.published)

    def happen(self, world: World, copy: Copy, newest: Copy) -> None:
        """Put the parts back, while no process is active."""
        watch = world.watch
        watch.went_back = self.journals
        for journal in sorted(self.journals):
            copy.put_log_back(world, journal)
        for journal in sorted(self.boundaries):
            copy.put_boundary_back(world, journal)
        for part in sorted(self.parts & DATA.keys()):
            copy.put_back(world, DATA[part], newer_vanish=self.newer_vanish)
        if CONTROLLER in self.parts:
            copy.put_controller_back(world)
            watch.newest = copy_of(newest.controller)
        if self.published == OLDER:
            copy.put_back(world, PUBLISHED_WATERMARK, newer_vanish=True)
        elif self.published:
            for key in (PUBLISHED_WATERMARK, PUBLISHED_COPY)[: 2 if self.published == REMOVED else 1]:
                world.store.objects.pop(key, None)
        watch.forget([])
        if self.noticed and not self.for_good:
            watch.protected = newest.needs()
        if self.published:
            with world.quietly():
                published, etag = read_any(world.store)
            watch.watermark = watermark_of(published)
            watch.published_epoch = -1 if published is None else published.cluster_epoch
            if lost(published, etag):
                watch.protected = frozenset(k for k in world.store.objects if k.startswith(tuple(DATA.values())))
        world.note(f"put back: {', '.join(sorted(self.parts))}; journals {sorted(self.journals)}; {self.published}")

    def lose(self, world: World, work: Work, copy: Copy, newest: Copy) -> None:
        """Accept the loss of what only the newest logs had: the watch no longer expects it."""
        watch = world.watch
        if CONTROLLER in self.parts:
            watch.newest = None
            old = set(copy.controller.topics.values())
            lost = [t for t in newest.controller.topics.values() if t not in old]
            watch.forget([*lost, *(d.topic for d in newest.controller.deleted)])
            known = {*old, *(d.topic for d in copy.controller.deleted)}
            folders = tuple(
                f"{DATA[FILES]}{t.name}-{t.revision}/"
                for some in watch.topics_ever.values()
                for t in some
                if t not in known
            )
            watch.strays = frozenset(k for k in world.store.objects if k.startswith(folders))
        for topics in watch.topics_ever.values():
            for t in topics:
                for p in range(t.partitions):
                    if t.journal_of(p) in self.journals:
                        watch.acknowledged[t.topic_id, p] = dict(copy.acknowledged.get((t.topic_id, p), {}))
        work.finished.jobs &= copy.finished
        work.queries.clear()

    def undo(self, world: World, newest: Copy) -> None:
        """Put the newest state back: the logs that were set back, and the missing data."""
        watch = world.watch
        for journal in sorted(self.journals):
            newest.put_log_back(world, journal)
        if CONTROLLER in self.parts:
            newest.put_controller_back(world)
            watch.newest, watch.was_put_back = None, True
        newest.put_data_back(world)
        watch.forget([])
        watch.protected, watch.went_back = frozenset(), frozenset()
        world.note("the newest is back")


def _shown(parts: Collection[str], published: str) -> bool:
    """Return whether the newest published watermark, or its copy, is still there: the copy goes back with the
    controller's folder.
    """
    return not published or (published == LOST and CONTROLLER not in parts)


def ends(body: bytes) -> dict[str, LogEnd]:
    """Return where the logs of journals ended, according to the published watermark."""
    return decode_published(body).ends
