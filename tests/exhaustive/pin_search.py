"""Every interleaving of pins with what must not pass them: computations of M, vacuums, truncations, and their own end.

The controller's log, `published.json` and the decisions by both are l0gc's own: `ControllerMachine`, the decisions
about pins, `publish`, `require_seen`, `pins_of`, `compute`, `JournalGarbage`'s rule, `Folder.ripe`. A journal is what
the other searches have proved it to be: a window that only moves up, admission against it, entries that drop objects
and count with at least the window's epoch. A step is one read or write of the store; a conditional write and the read
before it are one step, since the write fails if anything came in between.

A pin in effect promises three things: the L0 objects that the journal named as of the pin, or has named since, are
above the published M; its L1 objects of that time and since are not purged; and the journal can be replayed as of the
pin.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, cast

import msgspec
import numpy as np

from l0gc.collect.dropped_l1 import GRACE_EPOCHS
from l0gc.epoch import prev
from l0gc.errors import NotFoundError, ObjectNotFoundError, PinnedSinceError, SafetyError, UsageError
from l0gc.keys import PUBLISHED_COPY, PUBLISHED_WATERMARK
from l0gc.runtime import Runtime
from l0gc.storage.entry import Place, StoredEntry
from l0gc.storage.log import Folder
from l0gc.storage.objectstore import PutResult, StoredObject
from l0gc.streamlog import epoch_source, garbage, pins
from l0gc.streamlog.controller import entries
from l0gc.streamlog.controller.entries import ControllerMachine
from l0gc.streamlog.controller.state import ALL_TOPICS, ControllerState
from l0gc.streamlog.controller.state import Pin as PinState
from l0gc.watermark import publication
from l0gc.watermark.compute import compute
from l0gc.watermark.publication import PublishedWatermark, decode_published
from l0gc.watermark.source import IDLE, ClusterView, Holder, UnitSummary
from tests.exhaustive.breadth import NO_LIMITS, Found, Limits, search

MACHINE: Final = ControllerMachine()
TTL_MS: Final = 1_000
FOUNDED: Final = (entries.Bootstrap("c", 4, journals=1), entries.CreateTopic("events", 1, 1, "id"))
AGE_MS: Final = 1_000_000


class L0(NamedTuple):
    """Records that are not in L1: the epoch of their object; `topic` is a revision."""

    epoch: int
    topic: int = 1


class L1(NamedTuple):
    """An L1 object: `dropped` is the epoch with which its dropping counts, -1 while it is named; `topic` is a revision."""

    name: int
    dropped: int = -1
    topic: int = 1


class Promise(NamedTuple):
    """What a pin in effect has promised so far: L0 objects, names of L1 objects, and the end of the journal."""

    revision: int
    l0: frozenset[L0]
    l1: frozenset[int]
    end: int


class World(NamedTuple):
    """The store and the true state. `window` and `live` are the journal's; its log has the entries from `first` to
    `last`.
    """

    controller: bytes
    offset: int = 1
    published: bytes = b""
    now_ms: int = 0
    window: int = 1
    live: frozenset[L0] = frozenset({L0(1)})
    l1: frozenset[L1] = frozenset()
    there: frozenset[int] = frozenset()
    first: int = 0
    last: int = 0
    checkpoints: tuple[int, ...] = ()
    promises: tuple[Promise, ...] = ()

    @property
    def state(self) -> ControllerState:
        return _state(self.controller)

    def waiting(self, topic: int) -> frozenset[L0]:
        """Return the objects of a topic, or of all, that are not in L1."""
        return frozenset(o for o in self.live if topic in {o.topic, ALL_TOPICS})

    def needs(self, topic: int = ALL_TOPICS) -> UnitSummary:
        m = prev(min([self.window, *(o.epoch for o in self.waiting(topic))]))
        return UnitSummary(
            unit="journal 0", gc_epochs={m: 1}, lowest=[Holder("events", 0, m, IDLE, "")], end=(0, Place(self.last))
        )

    @property
    def watermark(self) -> int:
        return decode_published(self.published).watermark if self.published else -1

    def listed(self, topic: int) -> frozenset[int]:
        """Return the L1 objects of a topic, or of all, that the journal names."""
        return frozenset(o.name for o in self.l1 if o.dropped < 0 and topic in {o.topic, ALL_TOPICS})

    def named(self) -> World:
        """Return the world after a change: every pin in effect also promises what the journal then names."""
        alive = {p.revision: p for p in self.state.pins.values() if p.in_effect}
        promises = [p for p in self.promises if p.revision in alive]
        live = [
            frozenset[L0]() if alive[p.revision].level_one else self.waiting(alive[p.revision].topic) for p in promises
        ]
        listed = [self.listed(alive[p.revision].topic) for p in promises]
        kept = (p._replace(l0=p.l0 | l0, l1=p.l1 | l1) for p, l0, l1 in zip(promises, live, listed, strict=True))
        return self._replace(promises=tuple(kept))

    def grown(self, **changed: Any) -> World:
        """Return the world with one more entry of the journal."""
        return self._replace(last=self.last + 1, **changed).named()

    def appended(self, entry: entries.ControllerEntry) -> World:
        after = _applied(self.controller, self.offset + 1, msgspec.msgpack.encode(entry), self.now_ms)
        return self._replace(controller=after, offset=self.offset + 1).named()


@cache
def _state(encoded: bytes) -> ControllerState:
    return MACHINE.decode(encoded, "the state") if encoded else MACHINE.initial()


@cache
def _applied(encoded: bytes, offset: int, entry: bytes, now_ms: int) -> bytes:
    state = MACHINE.decode(encoded, "the state") if encoded else MACHINE.initial()
    MACHINE.apply(state, StoredEntry(offset, now_ms, entry, now_ms))
    return MACHINE.encode(state)


class _Store:
    """Holds `published.json` for one step of one process."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    def get(self, key: str) -> StoredObject:
        if key != PUBLISHED_WATERMARK or not self.body:
            raise ObjectNotFoundError(key)
        return StoredObject(self.body, "1", 0, 0)

    def put_if_absent(self, key: str, body: bytes) -> PutResult:
        return self.put_if_match(key, body, "")

    def put_if_match(self, key: str, body: bytes, etag: str) -> PutResult:
        assert key == PUBLISHED_WATERMARK
        self.body = body
        return PutResult("2", 0)

    def put(self, key: str, body: bytes) -> PutResult:
        assert key == PUBLISHED_COPY  # only read if published.json is missing, which it never is here
        return PutResult("1", 0)


class Node(NamedTuple):
    """The position of a process, and what it has read. It has ended at step -1."""

    step: int = 0
    read: tuple[Any, ...] = ()


After = tuple[str, World, Node]
ENDED: Final = Node(-1)


class Actor:
    """A process, each step of which is one read or write."""

    def __init__(self, name: str) -> None:
        self.name = name

    def act(self, w: World, at: Node) -> Iterator[After]:
        """Yield what it may do next."""
        raise NotImplementedError


class Pin(Actor):
    """Creates a pin as `create_pin` does, step by step.

    Args:
        held_of: the topic whose partitions give the M that it holds; this has to be its own topic.
        twice: whether it reads the journal again for that M, which it must not: the promise is of the first reading.
    """

    def __init__(
        self,
        name: str,
        *,
        level_one: bool = False,
        topic: int = ALL_TOPICS,
        held_of: int | None = None,
        twice: bool = False,
    ) -> None:
        super().__init__(name)
        self._level_one, self._topic, self._twice = level_one, topic, twice
        self._held_of = topic if held_of is None else held_of

    def act(self, w: World, at: Node) -> Iterator[After]:
        match at.step:
            case 0:
                entry = entries.CreatePin(self.name, TTL_MS, self._level_one, topic=self._topic)
                try:
                    entry.check(w.state)
                except UsageError:
                    return
                after = w.appended(entry)
                yield "creates the pin", after, Node(2 if self._level_one else 1, (after.state.epoch,))
            case 1:
                store = _Store(w.published)
                cluster = SimpleNamespace(store=store, runtime=Runtime(), now_ms=lambda: w.now_ms)
                publication.require_seen(cast(ClusterView, cluster), "c", at.read[0])
                yield "raises what must be seen", w._replace(published=store.body), Node(2, at.read)
            case 2:
                yield "reads the controller", w, Node(3, (*at.read, w.state.epoch))
            case 3:
                reached = [w]

                def advance(epoch: int) -> None:
                    if epoch > w.window:
                        reached[0] = w.grown(window=epoch)

                handles = SimpleNamespace(
                    journal=lambda j: SimpleNamespace(advance=advance),
                    parallel=SimpleNamespace(map=lambda fn, items: [fn(i) for i in items]),
                )
                pins.reach(cast(Any, handles), [0], at.read[0])
                yield "moves the window", reached[0], Node(4, at.read)
            case 4:
                m = compute(at.read[1], [w.needs(self._held_of)]).watermark
                live = frozenset[L0]() if self._level_one else w.waiting(self._topic)
                promise = Promise(at.read[0], live, w.listed(self._topic), w.last)
                read = (-1 if self._level_one else m, promise)
                yield "reads the journal", w, Node(6 if self._twice else 5, read)
            case 6:
                m = compute(w.state.epoch, [w.needs(self._held_of)]).watermark
                yield "reads the journal again", w, Node(5, (m, at.read[1]))
            case 5:
                m, promise = at.read
                effect = entries.PinTookEffect(self.name, promise.revision, m, [(0, Place(promise.end))])
                try:
                    effect.check(w.state)
                except NotFoundError:
                    return
                yield "has taken effect", w._replace(promises=(*w.promises, promise)).appended(effect), ENDED


class Unpin(Actor):
    """Deletes the pin that has the name."""

    def act(self, w: World, at: Node) -> Iterator[After]:
        if (pin := w.state.pins.get(self.name)) is not None:
            yield "deletes the pin", w.appended(entries.DeletePin(self.name, pin.revision)), ENDED


class Renewer(Actor):
    """Renews a pin that it has seen in effect.

    Args:
        brings_back: whether it also renews a pin that has ended, which it must not.
    """

    def __init__(self, name: str, *, brings_back: bool = False) -> None:
        super().__init__(name)
        self._brings_back = brings_back

    def act(self, w: World, at: Node) -> Iterator[After]:
        if at.step == 0:
            if (pin := w.state.pins.get(self.name)) is not None and pin.in_effect:
                (promise,) = (p for p in w.promises if p.revision == pin.revision)
                yield "sees the pin", w, Node(1, (msgspec.msgpack.encode(pin), promise))
            return
        pin = msgspec.msgpack.decode(at.read[0], type=PinState)
        entry = entries.RenewPin(pin.name, pin.revision, 4 * TTL_MS)
        try:
            entry.check(w.state)
        except NotFoundError:
            if self._brings_back:
                state = w.state.copy()
                state.pins[pin.name] = msgspec.structs.replace(pin, end_ms=w.now_ms + TTL_MS)
                after = w._replace(controller=MACHINE.encode(state), promises=(*w.promises, at.read[1]))
                yield "brings the pin back", after, ENDED
        else:
            yield "renews the pin", w.appended(entry), ENDED


class Computer(Actor):
    """Computes M and publishes it, as the pipeline does.

    Args:
        asks_first: whether it reads the pins with the controller's epoch, before the journal. That is safe, too, since
            the published watermark shows that a pin was created since.
    """

    def __init__(self, name: str, *, asks_first: bool = False) -> None:
        super().__init__(name)
        self._asks_first = asks_first

    def act(self, w: World, at: Node) -> Iterator[After]:
        match at.step:
            case 0:
                yield "reads what is published", w, Node(1, (w.watermark,))
            case 1:
                found = self._pins(w, at.read[0]) if self._asks_first else ()
                yield "reads the controller", w, Node(2, (*at.read, w.state.epoch, *found))
            case 2:
                read = (*at.read[:2], w.needs().gc_epoch, *at.read[2:])
                yield "reads the journal", w, Node(4 if self._asks_first else 3, read)
            case 3:
                yield "reads the pins", w, Node(4, (*at.read[:3], *self._pins(w, at.read[0])))
            case 4:
                _, cap, needed, as_of, held = at.read
                m = min([cap, needed, *held])
                store = _Store(w.published)
                new = PublishedWatermark("c", m, as_of, 0)
                try:
                    publication.publish(
                        cast(Any, store), Runtime(), new, pins_as_of=as_of, epoch_now=lambda: w.state.epoch
                    )
                except PinnedSinceError:
                    yield "is refused", w, Node(3, at.read[:3])
                except SafetyError as e:
                    if "never goes down" not in str(e):
                        raise
                    yield "is too late", w, ENDED
                else:
                    yield f"publishes {m}", w._replace(published=store.body), ENDED

    @staticmethod
    def _pins(w: World, published: int) -> tuple[int, tuple[int | None, ...]]:
        found = epoch_source.pins_of(w.state, published)
        return found.as_of, tuple(u.gc_epoch for u in found.held)


class Lifter(Actor):
    """Lifts all records of a topic, or of all, that are not in L1."""

    def __init__(self, name: str, topic: int = ALL_TOPICS) -> None:
        super().__init__(name)
        self._topic = topic

    def act(self, w: World, at: Node) -> Iterator[After]:
        if waiting := w.waiting(self._topic):
            lifted = {L1(o.epoch + 100 * (o.topic - 1), topic=o.topic) for o in waiting}
            there = w.there | {o.name for o in lifted}
            yield "lifts", w.grown(live=w.live - waiting, l1=w.l1 | lifted, there=there), ENDED


class Uploader(Actor):
    """Lands an object at an epoch that it has read earlier."""

    def act(self, w: World, at: Node) -> Iterator[After]:
        if at.step == 0:
            yield "looks at the epoch", w, Node(1, (w.state.epoch,))
        elif at.read[0] >= w.window and L0(at.read[0]) not in w.live:
            yield "lands", w.grown(live=w.live | {L0(at.read[0])}), ENDED


class Mover(Actor):
    """Closes the window to an epoch that it has read earlier."""

    def act(self, w: World, at: Node) -> Iterator[After]:
        if at.step == 0:
            yield "looks at the epoch", w, Node(1, (w.state.epoch,))
        elif at.read[0] > w.window:
            yield "closes the window", w.grown(window=at.read[0]), ENDED


class Dropper(Actor):
    """Drops what is named in L1, by an entry with the epoch that it has read earlier."""

    def act(self, w: World, at: Node) -> Iterator[After]:
        if at.step == 0:
            yield "looks at the epoch", w, Node(1, (w.state.epoch,))
        elif any(o.dropped < 0 for o in w.l1):
            counts = max(at.read[0], w.window)
            dropped = frozenset(o._replace(dropped=counts) if o.dropped < 0 else o for o in w.l1)
            yield "drops", w.grown(l1=dropped), ENDED


class Vacuum(Actor):
    """Purges dropped objects, without grace."""

    def act(self, w: World, at: Node) -> Iterator[After]:
        match at.step:
            case 0:
                yield "reads the controller", w, Node(1, (w.controller,))
            case 1:
                known, objects = _state(at.read[0]), sorted(w.l1)
                topics = np.array([o.topic for o in objects])
                limits = garbage.unpinned(known, known.epoch - GRACE_EPOCHS, topics)
                gone = frozenset(o.name for o, most in zip(objects, limits, strict=True) if 0 <= o.dropped <= most)
                yield "reads the journal", w, Node(2, (gone,))
            case 2 if at.read[0]:
                left = frozenset(o for o in w.l1 if o.name not in at.read[0])
                yield "purges", w.grown(l1=left, there=w.there - at.read[0]), ENDED


class Keeper(Actor):
    """Keeps the journal's log short: writes a checkpoint, lists, reads the pins, and truncates.

    Args:
        asks_first: whether it reads the pins before it lists, which it must not.
    """

    def __init__(self, name: str, *, asks_first: bool = False) -> None:
        super().__init__(name)
        self._order = ("pins", "keep", "list") if asks_first else ("keep", "list", "pins")

    def act(self, w: World, at: Node) -> Iterator[After]:
        match self._order[at.step] if at.step < len(self._order) else "":
            case "keep":
                kept = tuple(sorted({*w.checkpoints, w.last}))
                yield "keeps the state", w._replace(checkpoints=kept), Node(at.step + 1, (*at.read, ()))
            case "list":
                listed = (w.first, w.last, w.checkpoints)
                yield "lists", w, Node(at.step + 1, (*at.read, listed))
            case "pins":
                yield "reads the pins", w, Node(at.step + 1, (*at.read, (w.state.pinned_at(0),)))
            case _:
                (as_of,) = at.read[self._order.index("pins")]
                first, last, checkpoints = at.read[self._order.index("list")]
                folder = Folder(dict.fromkeys(range(first, last + 1), 0), list(checkpoints), AGE_MS)
                ripe, spent = folder.ripe(1, min(as_of, default=None)), folder.spent(1, as_of)
                if ripe or spent:
                    left = tuple(c for c in w.checkpoints if c not in spent)
                    yield "truncates", w._replace(first=max([w.first, *(o + 1 for o in ripe)]), checkpoints=left), ENDED


@dataclass(frozen=True)
class PinScope:
    """The scope of a search. `ticks`: how many entries without effect the controller's log gets; `ends`: whether time
    passes until pins have ended; `lifted`: the topics with an object in L1; `waiting`: the topics with an object in L0.
    """

    name: str
    actors: tuple[Actor, ...]
    ticks: int = 1
    ends: bool = False
    lifted: tuple[int, ...] = ()
    waiting: tuple[int, ...] = (1,)


class State(NamedTuple):
    world: World
    nodes: tuple[Node, ...]
    ticks: int


class PinSearch:
    """A search of one scope."""

    def __init__(self, scope: PinScope) -> None:
        self._scope = scope

    def run(self, limits: Limits = NO_LIMITS) -> Found:
        """Search by `breadth.search`."""
        encoded = b""
        for offset, entry in enumerate(FOUNDED):
            encoded = _applied(encoded, offset, msgspec.msgpack.encode(entry), 0)
        world = World(encoded, live=frozenset(L0(1, topic) for topic in self._scope.waiting))
        if self._scope.lifted:
            objects = frozenset(L1(topic, topic=topic) for topic in self._scope.lifted)
            world = world._replace(live=frozenset(), l1=objects, there=frozenset(self._scope.lifted))
        first = State(world, (Node(),) * len(self._scope.actors), self._scope.ticks)
        return search(self._scope.name, first, self._steps, _wrong, lambda state: True, limits=limits)

    def _steps(self, state: State) -> Iterator[tuple[str, State, str]]:
        w = state.world
        for i, (actor, at) in enumerate(zip(self._scope.actors, state.nodes, strict=True)):
            if at.step < 0:
                continue
            for label, after, node in actor.act(w, at):
                nodes = (*state.nodes[:i], node, *state.nodes[i + 1 :])
                yield f"{actor.name} {label}", State(after, nodes, state.ticks), ""
        if state.ticks:
            yield "an epoch begins", state._replace(world=w.appended(entries.Tick()), ticks=state.ticks - 1), ""
        if self._scope.ends and not w.now_ms and w.state.pins:
            yield "time passes", state._replace(world=w._replace(now_ms=2 * TTL_MS)), ""


def _wrong(state: State) -> str:
    w = state.world
    if any(o.epoch <= w.watermark for o in w.live):
        return f"M = {w.watermark} passes what the journal needs"
    for p in w.promises:
        if lost := [o for o in p.l0 if o.epoch <= w.watermark]:
            return f"M = {w.watermark} passes {lost}, which the pin of epoch {p.revision} has promised"
        if gone := p.l1 - w.there:
            return f"{sorted(gone)} was purged, which the pin of epoch {p.revision} has promised"
        start = max((c for c in w.checkpoints if c <= p.end), default=-1)
        if w.first > start + 1:
            return f"no replay as of {p.end} is possible, which the pin of epoch {p.revision} has promised"
    return ""


A, B = Computer("computes"), Computer("asks first", asks_first=True)
PIN_SCOPES: Final = (
    PinScope("pinned-and-computed", (Pin("p"), A, B, Lifter("reconciler"), Mover("housekeeper")), ticks=1),
    PinScope("pinned-lifted-and-uploaded", (Pin("p"), A, Lifter("reconciler"), Uploader("uploader"), Mover("housekeeper"))),
    PinScope("two-pins", (Pin("p"), Pin("q"), A, Lifter("reconciler"))),
    PinScope("pinned-and-unpinned", (Pin("p"), Pin("p"), Unpin("p"), A, Lifter("reconciler")), 0),
    PinScope("pinned-and-ended", (Pin("p"), A, Lifter("reconciler"), Mover("housekeeper")), ends=True),
    PinScope("renewed-and-computed", (Pin("p"), Renewer("p"), A, Lifter("reconciler")), ends=True),
    PinScope(
        "renewed-and-vacuumed",
        (Pin("p", level_one=True), Renewer("p"), Dropper("merge"), Vacuum("vacuum")), 4, ends=True, lifted=(1,),
    ),
    PinScope("pinned-and-vacuumed", (Pin("p", level_one=True), Dropper("merge"), Vacuum("vacuum")), 4, lifted=(1,)),
    PinScope(
        "pinned-twice-and-vacuumed",
        (Pin("p", level_one=True), Pin("q"), Dropper("merge"), Vacuum("vacuum"), Unpin("p")), 1, lifted=(1,),
    ),
    PinScope("ended-and-vacuumed", (Pin("p"), Dropper("merge"), Vacuum("vacuum")), 4, ends=True, lifted=(1,)),
    PinScope(
        "topic-pinned-and-vacuumed",
        (Pin("p", level_one=True, topic=1), Dropper("merge"), Vacuum("vacuum")), 4, lifted=(1, 2),
    ),
    PinScope(
        "topic-pinned-and-computed",
        (Pin("p", topic=1), A, Lifter("reconciler", 1), Lifter("another", 2), Mover("housekeeper")), waiting=(1, 2),
    ),
    PinScope(
        "topic-pinned-and-uploaded",
        (Pin("p", topic=1), A, Lifter("reconciler"), Uploader("uploader"), Mover("housekeeper")), waiting=(2,),
    ),
    PinScope(
        "pinned-and-truncated", (Pin("p"), Keeper("keeper"), Keeper("another"), Lifter("reconciler")), 0
    ),
)  # fmt: skip
PIN_WHOLE: Final = {s.name: s for s in PIN_SCOPES}
"""All scopes; each is searched to its end."""
