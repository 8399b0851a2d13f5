"""Writers whose garbage a test chooses: an implementation of `collect.vacuum.GarbageSource`."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from l0gc.collect.deletion import Deletable
from l0gc.collect.dropped_l1 import Amounts
from l0gc.collect.orphans import Fact, FactsReader, KeyFacts
from l0gc.keys import L1_DATA
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.ranges import KeyRange

DATA = L1_DATA


def key_of(epoch: int, name: str, prefix: str = DATA) -> str:
    return f"{prefix}{epoch:03}/{name}"


@dataclass(frozen=True)
class FakeLook:
    """The objects that the writers named when the look was taken."""

    named: frozenset[str]
    fence: int

    def facts(self, keys: Sequence[str]) -> list[Fact]:
        facts = []
        for key in keys:
            epoch = key.removeprefix(DATA)[:3]
            facts.append(Fact(int(epoch) if epoch.isdigit() else -1, self.fence, key in self.named))
        return facts


@dataclass
class FakeGarbage:
    """Two units; `events` lists the calls in order, with the store's contents if they matter."""

    batches: dict[int, list[tuple[int, int, list[Deletable]]]] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)
    fence_at: int = 0
    cuts: tuple[str, ...] = ()
    broken: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    purged_keys: list[str] = field(default_factory=list)
    fences: list[int] = field(default_factory=list)
    left: Collection[str] | None = ()
    l1: Amounts = field(default_factory=Amounts)

    @property
    def objects(self) -> int:
        return len(self.named)

    def refresh(self) -> None:
        self.events.append("look")

    def units(self) -> Sequence[int]:
        return sorted(self.batches)

    def drop(self, unit: int, at_ms: int, epoch: int, batch: list[Deletable]) -> None:
        self.batches.setdefault(unit, []).append((at_ms, epoch, batch))

    def dropped(self, unit: int, before_ms: int, epoch: int) -> Iterator[list[Deletable]]:
        for at_ms, at_epoch, batch in self.batches.get(unit, []):
            if at_ms <= before_ms and at_epoch <= epoch:
                yield batch

    def purged(self, unit: int, objects: Sequence[Deletable]) -> None:
        self.purged_keys += [o.key for o in objects]

    def amounts(self) -> Amounts:
        return self.l1

    def fence(self, before_ms: int, dropped_before_ms: int, *, dry_run: bool) -> int:
        self.events.append("fence")
        if not dry_run:
            self.fences.append(self.fence_at)
        return self.fence_at

    def parts(self, prefix: str, count: int) -> Sequence[KeyRange]:
        cuts = [c for c in self.cuts if c.startswith(prefix)]
        return [KeyRange(start, end, prefix) for start, end in zip(["", *cuts], [*cuts, None], strict=True)]

    def facts_reader(self, *, remote: bool) -> FactsReader:
        if remote:
            return functools.partial(_look_elsewhere, frozenset(self.named), self.fence_at)

        def read_facts(store: ObjectStore, part: KeyRange) -> KeyFacts:
            self.events.append("look at a part")
            return FakeLook(frozenset(self.named), self.fence_at).facts

        return read_facts

    def scanned(self, fence: int, left: Collection[str] | None) -> None:
        self.left = left
        self.events.append("scanned")


def _look_elsewhere(named: frozenset[str], fence: int, store: ObjectStore, part: KeyRange) -> KeyFacts:
    return FakeLook(named, fence).facts
