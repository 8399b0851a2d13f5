"""One seed, one clock, one store, many actors: who goes on at each store call, and what happens to it, the seed decides.

Every actor is a greenlet that runs the real handles. A store call is a step: the actor stops there, the scheduler picks who
goes on, and draws a fault for the call. The world watches the store from below: it replays every partition's log as it is
written, and checks after each step that nothing live was deleted and nothing went down.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from greenlet import getcurrent, greenlet

from l0gc.cluster import Cluster
from l0gc.controller.state import ControllerEntry, DeleteTopic
from l0gc.errors import AmbiguousWriteError, L0gcError, StoreError, ThrottledError
from l0gc.keys import PUBLISHED_WATERMARK, KeyLayout, PartitionId
from l0gc.partition.entries import PartitionEntry, Placeholders
from l0gc.partition.state import PartitionMachine, PartitionState
from l0gc.runtime import Runtime
from l0gc.storage.log import Entry, Landed
from l0gc.storage.objectstore import Written
from l0gc.watermark.publication import PublishedWatermark
from tests.support.memory_store import Call, FakeClock, MemoryStore

_PARTITION_ENTRY = re.compile(r"l0gc/partition/(.+)-(\d+)/(\d{5})/log/(\d{20})\.json")
_CONTROLLER_ENTRY = re.compile(r"l0gc/controller/log/(\d{20})\.json")
LAYOUT = KeyLayout(shards=4)


class Violation(AssertionError):
    """An invariant does not hold. The seed replays it."""


class Crashed(BaseException):
    """The actor's process has died; it says nothing more to the store."""


@dataclass(frozen=True)
class Faults:
    """How likely each fault is, for each store call."""

    before: float = 0.01
    after: float = 0.01
    throttled: float = 0.005
    pause: float = 0.01
    crash: float = 0.004


NONE = Faults(0, 0, 0, 0, 0)


@dataclass
class Shadow:
    """What a partition's log says, as the world saw it written."""

    partition: PartitionId
    state: PartitionState
    offset: int = -1
    records: list[tuple[str, int, int]] = field(default_factory=list)


@dataclass
class Actor:
    name: str
    body: Callable[[], None]
    greenlet: greenlet
    wakes_ms: int = 0
    dead: bool = False


class SimulatedStore(MemoryStore):
    """Tells the world what takes effect, as it takes effect."""

    def __init__(self, clock: FakeClock, world: World) -> None:
        super().__init__(clock, world.at_call)
        self._world = world

    def _write(self, key: str, body: bytes) -> Written:
        written = super()._write(key, body)
        self._world.written(key, body)
        return written

    def delete(self, keys):  # type: ignore[no-untyped-def]
        failures = super().delete(keys)
        for key in keys:
            self._world.deleted(key)
        return failures


class World:
    """The whole simulation of one seed."""

    def __init__(self, seed: int, faults: Faults) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.faults = faults
        self.clock = _SimulatedClock(self)
        self.store = SimulatedStore(self.clock, self)
        self.steps = 0
        self.crashes = 0
        self.shadows: dict[PartitionId, Shadow] = {}
        self.live: dict[str, int] = {}
        self.watermark = -1
        self.epoch = -1
        self.actors: list[Actor] = []
        self.trace: list[str] = []
        self._main = getcurrent()
        self._current: Actor | None = None
        self.acknowledged: dict[tuple[PartitionId, int], bytes] = {}
        self.deleted_topics: set[tuple[str, int]] = set()
        self.failed: Violation | None = None

    # -- actors and steps -------------------------------------------------------------------------------------------------

    def spawn(self, name: str, body: Callable[[], None]) -> None:
        """Add an actor; when its process crashes, it begins again from `body`."""

        def life() -> None:
            while True:
                try:
                    body()
                    return
                except Crashed:
                    self.crashes += 1
                    if self.faults is NONE:
                        return

        self.actors.append(Actor(name, body, greenlet(life)))

    def run(self, max_steps: int) -> None:
        """Let the actors go on until all have ended or the steps are used up."""
        end = self.steps + max_steps
        while self.steps < end:
            ready = [a for a in self.actors if not a.greenlet.dead and a.wakes_ms <= self.clock.ms]
            if not ready:
                waiting = [a.wakes_ms for a in self.actors if not a.greenlet.dead]
                if not waiting:
                    return
                self.clock.ms = min(waiting)
                continue
            self._resume(self.random.choice(ready))

    def finish(self) -> None:
        """Kill what still runs."""
        for a in self.actors:
            if not a.greenlet.dead:
                a.dead = True
                self.faults = NONE
                self._resume(a)
        self.actors = [a for a in self.actors if not a.greenlet.dead]

    def _resume(self, actor: Actor) -> None:
        self._current = actor
        try:
            actor.greenlet.switch()
        finally:
            self._current = None
        if self.failed is not None:
            raise self.failed

    def at_call(self, call: Call) -> None:
        """A store call: the actor stops here, and something may happen to it."""
        if self._current is None:
            return  # the world itself is looking
        actor = self._current
        if call.when == "before":
            self.steps += 1
            self.clock.ms += self.random.randrange(1, 50)
            self._main.switch()
        if actor.dead:
            raise Crashed
        self._strike(actor, call)

    def _strike(self, actor: Actor, call: Call) -> None:
        f, draw = self.faults, self.random.random()
        conditional = call.kind.startswith("put_if")
        if call.when == "after":
            if draw < f.after:
                self._log(actor, call, "reply lost")
                if conditional:
                    raise AmbiguousWriteError(f"{call.key}: the reply was lost")
                if call.kind in {"put", "get", "list"}:
                    raise StoreError(f"{call.key}: the reply was lost")
            elif draw < f.after + f.crash:
                self._log(actor, call, "crash after it")
                raise Crashed
            return
        if draw < f.before:
            self._log(actor, call, "failed before it landed")
            if conditional:
                raise AmbiguousWriteError(f"{call.key}: no answer")
            raise StoreError(f"{call.key}: no answer")
        draw -= f.before
        if draw < f.throttled:
            raise ThrottledError(f"{call.key}: slow down")
        draw -= f.throttled
        if draw < f.pause:
            actor.wakes_ms = self.clock.ms + self.random.choice([1_000, 60_000, 20 * 60_000])
            self._log(actor, call, f"pauses until {actor.wakes_ms}")
            self._main.switch()
            if actor.dead:
                raise Crashed
            return
        draw -= f.pause
        if draw < f.crash:
            self._log(actor, call, "crash before it")
            raise Crashed

    def sleep(self, seconds: float) -> None:
        if self._current is None:
            self.clock.ms += max(1, int(seconds * 1000))
            return
        actor = self._current
        actor.wakes_ms = self.clock.ms + max(1, int(seconds * 1000))
        self._main.switch()
        if actor.dead:
            raise Crashed

    def _log(self, actor: Actor, call: Call, what: str) -> None:
        self.trace.append(f"{self.steps} {actor.name} {call.kind} {call.key}: {what}")

    def cluster(self, *, epoch_cache_s: float = 10.0, epoch_interval_s: float = 30.0) -> Cluster:
        """The handles of a new process. Truncation keeps to no minimum age: the boundary alone has to hold."""
        return Cluster(
            self.store,
            Runtime(self.clock, random.Random(self.random.getrandbits(64))),
            epoch_cache_s=epoch_cache_s,
            epoch_interval_s=epoch_interval_s,
            truncate_min_age_ms=0,
        )

    # -- what takes effect, and what must hold -----------------------------------------------------------------------------

    def written(self, key: str, body: bytes) -> None:
        m = _PARTITION_ENTRY.fullmatch(key)
        if m is not None:
            self._landed(PartitionId(m[1], int(m[2]), int(m[3])), int(m[4]), body)
        elif (c := _CONTROLLER_ENTRY.fullmatch(key)) is not None:
            if int(c[1]) > self.epoch:
                self.epoch = int(c[1])
                self._controller(body)
        elif key == PUBLISHED_WATERMARK:
            published = msgspec.json.decode(body, type=PublishedWatermark)
            if published.watermark < self.watermark:
                raise self.violation(f"M went down from {self.watermark} to {published.watermark}")
            self.watermark = published.watermark

    def _landed(self, p: PartitionId, offset: int, body: bytes) -> None:
        if (p.topic, p.revision) in self.deleted_topics:
            return
        shadow = self.shadows.setdefault(p, Shadow(p, PartitionState.new(p.revision)))
        if offset <= shadow.offset:
            return  # re-created below the boundary: no reader may take it for an entry, or the reads will tell
        if offset != shadow.offset + 1:
            raise self.violation(f"{p} has an entry at {offset}, the one before was {shadow.offset}")
        e = msgspec.json.decode(body, type=Entry)
        entry = msgspec.json.decode(e.entry, type=PartitionEntry)
        before = (shadow.state.gc_epoch, shadow.state.window)
        if isinstance(entry, Placeholders):
            if entry.epoch < shadow.state.previous_applied_epoch:
                raise self.violation(f"{p} took epoch {entry.epoch} below its window {shadow.state.window}")
            for x in entry.placeholders:
                if x.key not in self.store.objects:
                    raise self.violation(f"{p} took a placeholder of {x.key}, which is gone")
        for u in shadow.state.placeholders:
            self._unreference(u.placeholder.key)
        try:
            PartitionMachine(p).apply(shadow.state, Landed(offset, e.time_ms, bytes(e.entry), 0))
        except L0gcError as error:
            raise self.violation(f"{p} took an entry that it should have refused: {error}") from error
        for u in shadow.state.placeholders:
            self.live[u.placeholder.key] = self.live.get(u.placeholder.key, 0) + 1
        if isinstance(entry, Placeholders):
            shadow.records += [(x.key, x.start, x.records) for x in entry.placeholders]
        shadow.offset = offset
        after = (shadow.state.gc_epoch, shadow.state.window)
        if after[0] < before[0] or after[1].oldest < before[1].oldest or after[1].newest < before[1].newest:
            raise self.violation(f"{p} went back from {before} to {after}")

    def _unreference(self, key: str) -> None:
        self.live[key] -= 1
        if not self.live[key]:
            del self.live[key]

    def _controller(self, body: bytes) -> None:
        """A deleted topic's records may go, from the entry on that deletes it."""
        entry = msgspec.json.decode(msgspec.json.decode(body, type=Entry).entry, type=ControllerEntry)
        if not isinstance(entry, DeleteTopic):
            return
        self.deleted_topics.add((entry.name, entry.revision))
        for p in [p for p in self.shadows if (p.topic, p.revision) == (entry.name, entry.revision)]:
            for u in self.shadows.pop(p).state.placeholders:
                self._unreference(u.placeholder.key)

    def deleted(self, key: str) -> None:
        if key in self.live:
            raise self.violation(f"{key} was deleted, though an unreconciled placeholder names it")

    def acknowledge(self, p: PartitionId, base_offset: int, values: list[bytes]) -> None:
        """An uploader was told that these records are at these offsets."""
        for i, value in enumerate(values, base_offset):
            known = self.acknowledged.setdefault((p, i), value)
            if known != value:
                raise self.violation(f"{p} offset {i} was acknowledged twice, as {known!r} and as {value!r}")

    def violation(self, text: str) -> Violation:
        """The error for an invariant that does not hold; the world stops, whatever the actor makes of it."""
        last = "\n  ".join(self.trace[-25:])
        self.failed = self.failed or Violation(
            f"seed {self.seed}, step {self.steps}: {text}\nthe last faults:\n  {last}"
        )
        return self.failed


class _SimulatedClock(FakeClock):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def sleep(self, seconds: float) -> None:
        self._world.sleep(seconds)
