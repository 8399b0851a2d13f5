"""A month in which one of 100 topics is paused, with a daily `gc`: what L0 keeps of garbage, and what is copied.

Journals, their entries, `gc` with its own choice, its copies and its sweeps are the real ones, on a store in memory whose
clock a test moves. Made by hand are the uploads, of which only those of the paused topic hold records, and the commits of
reconcile, which `gc` leaves to another job. A day has 1,000 objects, each in the place of ten, since what is compared are
bytes; and the other 99 topics are the partitions of three, since M is a minimum over partitions, whoever's they are.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest

from l0gc.api.gc import Cluster as Library
from l0gc.storage.objectstore import ListedPage
from l0gc.streamlog.evacuation.choice import STEP_RATIO
from l0gc.streamlog.journal.rows import BLOCK, pack
from tests.support.generated_store import PagedStore
from tests.support.ingest import stored_values
from tests.support.journal import of_topic, reconciled
from tests.support.memory_store import another_process, memory_cluster, store_of
from tests.support.reconcile import put, reconcile
from tests.test_api import over

DAYS = 30
EACH = 10
"""Objects of a partition in a day; the paused topic has one."""
BUSY = 33
"""Partitions of each of the three other topics."""
TICKS = 12
DAY_MS = 86_400_000
BODY = bytes(1000)
L0 = "level_zero/data/"


class SortedStore(PagedStore):
    """Sorts its keys once for a listing, and not for each page."""

    def scan(self, prefix: str, start_after: str = "") -> Iterator[ListedPage]:
        keys = [k for k in sorted(self.objects) if k.startswith(prefix) and k > start_after]
        for at in range(0, max(1, len(keys)), self.page_size):
            self._enter("scan", prefix)
            page = [(k, o) for k in keys[at : at + self.page_size] if (o := self.objects.get(k)) is not None]
            if page:
                modified = [o.modified_ms for _, o in page]
                yield ListedPage([k for k, _ in page], [len(o.body) for _, o in page], modified)


@dataclass
class Day:
    """In bytes. `needed` and `garbage` are what L0 holds before the daily work begins, and so the most: for records that are
    not in L1, and the rest. `lagging` is the paused topic's share of `needed`."""

    uploaded: int
    needed: int
    lagging: int
    garbage: int
    copied: int


class Month:
    """The cluster, and who works there."""

    def __init__(self) -> None:
        self.cluster = memory_cluster(SortedStore(), bootstrap=False)
        self.cluster.controller.bootstrap(shards=4, journals=4)
        create = self.cluster.controller.create_topic
        self.paused, self.busy = create("paused", 1)[0], [create(f"busy-{n}", BUSY)[0] for n in range(3)]
        self.values: list[bytes] = []

    def live(self, library: Library, days: int, *, still_uploaded: bool = False, **limits: Any) -> list[Day]:
        """A daily `gc`. The paused topic has a day's records, or with `still_uploaded` more each day."""
        found = []
        for day in range(days):
            at_first = self.l0()
            self.upload(paused=still_uploaded or not day)
            before, (needed, lagging) = self.l0(), self.needed()
            self.lift()
            result = library.gc(reconcile=False, barrier=True, **limits)
            assert not result.errors
            uploaded, copied = added(at_first, before), added(before, self.l0())
            found.append(Day(uploaded, needed, lagging, sum(before.values()) - needed, copied))
        return found

    def l0(self) -> dict[str, int]:
        """The objects, and how large each is."""
        return {k: len(o.body) for k, o in store_of(self.cluster).objects.items() if k.startswith(L0)}

    def needed(self) -> tuple[int, int]:
        """Bytes of blocks that hold unreconciled records, in all and of the paused topic."""
        states = [self.cluster.journal(j).catch_up() for j in self.cluster.controller.snapshot().journals_in_use()]
        of_topic = {r: sum(o.bytes for o in t.objects) for s in states for r, t in s.topics.items()}
        return sum(of_topic.values()), of_topic[self.paused.revision]

    def upload(self, *, paused: bool) -> None:
        """A day's objects."""
        blocks = pack(np.array([(len(BODY), 0, 1, len(BODY))], BLOCK))
        for tick in range(TICKS):
            store_of(self.cluster).clock.ms += DAY_MS // TICKS
            epoch = self.cluster.controller.advance()
            times = EACH * (tick + 1) // TICKS - EACH * tick // TICKS
            for topic in self.busy:
                ones = [msgspec.structs.replace(of_topic(topic, epoch, {p: 1}), blocks=blocks) for p in range(BUSY)]
                objects = [msgspec.structs.replace(one, key=self.cluster.write_l0(BODY, epoch)) for one in ones * times]
                assert self.cluster.journal(topic.journals[0]).append(objects).error is None
            for _ in range(times if paused else 0):
                self.values.append(random.Random(len(self.values)).randbytes(len(BODY) - 40))
                put(self.cluster, "paused", {0: self.values[-1:]})

    def lift(self) -> None:
        """Commit all that is not in L1, but for what is paused."""
        epoch = self.cluster.controller.epoch()
        for topic in self.busy:
            handle, r = self.cluster.journal(topic.journals[0]), topic.revision
            state = handle.catch_up()
            last = {p: state.topic(r).view(p).next_offset - 1 for p in range(BUSY)}
            entry = reconciled(state, last, handle.replica.offset, revision=r, epoch=epoch)
            assert not handle.commit_reconciled(entry)

    def check(self) -> None:
        """Nothing of the paused topic is lost, out of place or there twice, before it is reconciled and afterwards."""
        for _ in range(2):
            assert stored_values(self.cluster, "paused") == [self.values]
            reconcile(self.cluster, "paused")


def added(old: dict[str, int], new: dict[str, int]) -> int:
    return sum(size for key, size in new.items() if key not in old)


def copied_share(days: list[Day]) -> float:
    return sum(d.copied for d in days) / sum(d.uploaded for d in days)


@pytest.mark.thorough
@pytest.mark.slow
def test_one_paused_topic_of_100_keeps_a_days_garbage_and_not_a_months(monkeypatch: pytest.MonkeyPatch) -> None:
    month, without = Month(), Month()
    with over(another_process(without.cluster), monkeypatch) as library:
        days = without.live(library, 10, evacuate_max_bytes=0)
        for day, before in zip(days[1:], days, strict=False):  # all that was uploaded since
            assert day.garbage - before.garbage >= 0.98 * before.uploaded
        assert days[-1].garbage >= 8 * days[-1].needed
    with over(another_process(month.cluster), monkeypatch) as library:
        days = month.live(library, DAYS)
        assert max(d.garbage / d.needed for d in days) <= 1.25
        assert 0 < copied_share(days) <= 0.02
    month.check()


@pytest.mark.thorough
@pytest.mark.slow
def test_a_topic_that_is_uploaded_and_not_reconciled_keeps_so_much_for_each_byte_that_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it needs grows, and so does what a copy of it costs."""
    month = Month()
    with over(another_process(month.cluster), monkeypatch) as library:
        days = month.live(library, DAYS, still_uploaded=True)
        for day in days:
            assert day.garbage <= STEP_RATIO * day.lagging + 2 * day.uploaded
        assert 0 < copied_share(days) <= 0.02
    month.check()
