"""Loses L0 objects, or has the store refuse them, and gives up records while all other processes run.

This search is separate, so that the other searches' seeds do not change: the same processes run, and one more that
deletes L0 objects by hand and gives up their records, or tries to give up readable ones. The store also refuses objects
of logs, and returns wrong contents of an L0 object once. In the end everything lost is given up, and refused objects
can be read again; then M passes it, and every other record is unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from l0gc.errors import L0gcError
from l0gc.keys import JOURNALS
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.ingest.extents import decode_block
from l0gc.streamlog.journal.topic import Extent
from l0gc.streamlog.level_one.give_up import give_up
from l0gc.streamlog.level_one.plan import has_work
from l0gc.streamlog.level_one.reconcile import reconcile

if TYPE_CHECKING:
    from tests.simulation.world import Process, World

LOST = "L0 objects lost"
GIVEN_UP = "ranges given up"
REFUSED = "ranges that could not be given up"
WITHHELD = "L0 objects that the store refused"
WITHHELD_LOGS = "objects of logs that the store refused"


@dataclass
class Losses:
    """The losses of a seed: the keys of lost objects, and the values of their records, which may be gone for good.

    `withheld` are the keys of objects that the store refuses but has: their records are never given up.
    """

    keys: set[str] = field(default_factory=set)
    withheld: set[str] = field(default_factory=set)
    values: set[bytes] = field(default_factory=set)


class Held(NamedTuple):
    """An unreconciled extent of a live topic, and its first offset that is not deleted."""

    topic: Topic
    extent: Extent
    first: int


def held(world: World) -> Iterator[Held]:
    """Yield all such extents, as the journals list them."""
    for topic in sorted(world.watch.controller.topics.values(), key=lambda t: t.name):
        for partition_range in topic.partition_ranges():
            known = world.watch.shadow(partition_range.journal).state.topic(topic.revision)
            if known.topic_id == topic.topic_id:
                for p in range(partition_range.first, partition_range.end):
                    start = known.view(p).log_start_offset
                    yield from (Held(topic, e, max(start, e.base_offset)) for e in known.extents(p))


def loser(world: World, process: Process) -> None:
    """Loses an object, or none, and gives up lost records, or tries to give up records that are not lost."""
    losses, chance = _losses(world), world.random
    world.sleep(chance.choice([0.1, 5.0, 60.0]))
    there = sorted({h.extent.key for h in held(world)} & world.store.objects.keys())
    if there and chance.random() < 0.6:
        _lose(world, losses, chance.choice(there))
    elif there and chance.random() < 0.8:
        of_log = chance.random() < 0.4
        logs = sorted(key for key in world.store.objects if key.startswith(JOURNALS))
        losses.withheld.add(chance.choice(logs if of_log else there))
        world.happened[WITHHELD_LOGS if of_log else WITHHELD] += 1
    if chance.random() < 0.5:
        world.sleep(chance.choice([1.0, 30.0]))
    cluster = world.cluster(process)
    for h in list(held(world)):
        if h.extent.key in losses.keys | losses.withheld or chance.random() < 0.1:
            _try(world, cluster, h)
    if chance.random() < 0.3:
        losses.withheld.clear()


def give_all_up(world: World, cluster: ClusterHandles) -> None:
    """Give up everything lost, and lift the rest, without faults.

    Each round removes at least the first waiting extent of each partition. Raises `Violation` after a round that
    removes none.
    """
    losses = _losses(world)
    losses.withheld.clear()
    while has_work(cluster):
        waiting = list(held(world))
        lifted = reconcile(cluster)
        following: dict[tuple[int, int], Held] = {}
        for h in held(world):
            following.setdefault((h.topic.revision, h.extent.partition), h)
        for h in following.values():
            if h.extent.key in losses.keys:
                _give_up(cluster, h)
                world.happened[GIVEN_UP] += 1
        if list(held(world)) == waiting:
            stuck = [
                f"{h.topic.name}/{h.extent.partition} from {h.first} on, in {h.extent.key}" for h in following.values()
            ]
            raise world.violation(f"neither lifted nor given up: {'; '.join(stuck)}; errors: {lifted.errors}")


def _losses(world: World) -> Losses:
    assert world.losses is not None
    return world.losses


def _lose(world: World, losses: Losses, key: str) -> None:
    body = world.store.objects[key].body
    for h in held(world):
        e = h.extent
        if e.key == key:
            block = decode_block(body[e.block.start : e.block.start + e.block.length], key, e.block)
            losses.values.update(block.column("value").slice(e.row, e.records).to_pylist())
    losses.keys.add(key)
    del world.store.objects[key]
    world.happened[LOST] += 1
    world.note(f"{key} is lost")


def _give_up(cluster: ClusterHandles, h: Held) -> None:
    place = h.topic.name, h.extent.partition
    give_up(cluster, "operator", topic=place[0], partition=place[1], offsets=(h.first, h.extent.last_offset))


def _try(world: World, cluster: ClusterHandles, h: Held) -> None:
    try:
        if world.random.random() < 0.5:
            give_up(cluster, "operator", objects=[h.extent.key])
        else:
            _give_up(cluster, h)
    except L0gcError:
        world.happened[REFUSED] += 1
    else:
        world.happened[GIVEN_UP] += 1


def given_up(world: World, topic: Topic, partition: int) -> set[int]:
    """Return all offsets of a partition that were ever given up."""
    shadow = world.watch.shadow(topic.journal_of(partition)).topics.get(topic.revision)
    part = None if shadow is None else shadow.parts.get(partition)
    return set() if part is None else part.given_up
