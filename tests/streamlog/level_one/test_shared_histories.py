"""Random histories of shared and own L1 objects, compared with a model: no record is lost, doubled or out of place.

Uploads, reconciles, drains in pieces, merges, expiries, deletions of records, lost objects that are given up, vacuums,
pins and new processes follow in any order. At the end the bucket holds exactly the L1 objects that the journals list.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final
from unittest import mock

import pytest

from l0gc.errors import L0gcError, NotFoundError, UsageError
from l0gc.keys import L1_DATA, parse_level_one
from l0gc.operations import Read
from l0gc.storage.workers import LocalWorkers
from l0gc.streamlog.controller.decisions import RetentionSettings
from l0gc.streamlog.controller.state import UNLIMITED
from l0gc.streamlog.delete_records import delete_records
from l0gc.streamlog.journal.rows import name_text
from l0gc.streamlog.journal.topic import TopicState
from l0gc.streamlog.level_one import merge_plan, share
from l0gc.streamlog.level_one.expire import expire
from l0gc.streamlog.level_one.give_up import give_up
from l0gc.streamlog.level_one.merge import plan_merge, run_merge
from l0gc.streamlog.level_one.merge_plan import MergeRule
from l0gc.streamlog.level_one.reconcile import commit_round, reconcile
from l0gc.streamlog.level_one.write import WrittenL1
from l0gc.streamlog.reader import read_topic
from tests.support.memory_store import memory_cluster, store_of
from tests.support.reconcile import put
from tests.support.vacuum import tick, vacuum

PARTITIONS: Final = 12
STEPS: Final = 60
_RULE: Final = MergeRule(2000, 2)


class History:
    """A cluster and a model of each partition: its records from the first one on, None for one that was given up."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.cluster = memory_cluster()
        journals = self.chance.choice([1, 2])
        self.topic, _ = self.cluster.controller.create_topic("events", PARTITIONS, journals)
        self.records: list[list[bytes | None]] = [[] for _ in range(PARTITIONS)]
        self.starts = [0] * PARTITIONS
        self.commits: list[tuple[object, WrittenL1]] = []
        self.pins: list[str] = []
        self.drained = self.shared = 0

    def run(self) -> None:
        steps: list[tuple[Callable[[], None], int]] = [
            (self.upload, 10), (self.reconcile, 8), (self.merge, 5), (self.delete_records, 2), (self.expire, 1),
            (self.lose, 1), (self.vacuum, 3), (self.pin, 1), (self.restart, 2), (self.commit_again, 2), (self.check, 1),
        ]  # fmt: skip
        for _ in range(STEPS):
            (step,) = self.chance.choices([s for s, _ in steps], [w for _, w in steps])
            step()
        self.check()
        self.finish()

    def state(self, journal: int) -> TopicState:
        return self.cluster.journal(journal).catch_up().topic(self.topic.revision)

    # -- steps ------------------------------------------------------------------------------------------------------------

    def upload(self) -> None:
        batch: dict[int, list[bytes]] = {}
        for p in self.chance.sample(range(PARTITIONS), self.chance.randint(1, PARTITIONS)):
            large = self.chance.random() < 0.15
            n = len(self.records[p])
            batch[p] = [b"%d:%d%s" % (p, n + i, b"x" * (400 if large else 3)) for i in range(self.chance.randint(1, 4))]
            self.records[p] += batch[p]
        put(self.cluster, "events", batch)

    def reconcile(self) -> None:
        def remembered(*arguments: object) -> object:
            self.commits.append((arguments[1], arguments[2]))  # type: ignore[arg-type]
            return commit_round(*arguments)  # type: ignore[arg-type]

        with mock.patch("l0gc.streamlog.level_one.reconcile.commit_round", remembered):
            result = reconcile(self.cluster, round_bytes=self.chance.choice([1, 300, 1 << 20]))
        assert not result.errors
        self.shared += sum(len(self.state(j).shared) for j in self.topic.journals)

    def commit_again(self) -> None:
        """Repeat a commit that landed, as Spark repeats a task whose reply was lost."""
        if self.commits:
            r, written = self.chance.choice(self.commits[-4:])
            before = [len(self.state(j).all_rows()) for j in self.topic.journals]
            commit_round(self.cluster, r, written)  # type: ignore[arg-type]
            assert before == [len(self.state(j).all_rows()) for j in self.topic.journals]

    def merge(self) -> None:
        with mock.patch.object(merge_plan, "DRAINED_ROWS", self.chance.choice([1, 3, 100])):
            plan = plan_merge(self.cluster, rule=_RULE)
            for drains in plan.drains.values():  # some pieces only, as if the run were killed
                del drains[self.chance.randint(1, len(drains)) :]
            result = run_merge(self.cluster, plan, LocalWorkers(self.cluster))
        assert not result.errors
        self.drained += result.drained

    def delete_records(self) -> None:
        p = self.chance.randrange(PARTITIONS)
        start = self.chance.randint(self.starts[p], len(self.records[p]))
        assert not delete_records(self.cluster, "events", p, before_offset=start).errors
        self.starts[p] = max(start, self.starts[p])

    def expire(self) -> None:
        self.cluster.controller.alter_topic("events", RetentionSettings(bytes=self.chance.choice([300, 2000])))
        assert not expire(self.cluster).errors
        self.cluster.controller.alter_topic("events", RetentionSettings(bytes=UNLIMITED))
        for journal in self.topic.journals:
            known = self.state(journal)
            for p, start in zip(known.partitions.tolist(), known.log_start.tolist(), strict=True):
                assert self.starts[p] <= start
                self.starts[p] = start

    def lose(self) -> None:
        """Lose an L0 object, and give up its records."""
        keys = sorted({o.key for j in self.topic.journals for o in self.state(j).objects})
        if not keys:
            return
        key = self.chance.choice(keys)
        lost = [
            (p, e.base_offset, e.last_offset)
            for p in range(PARTITIONS)
            for e in self.state(self.topic.journal_of(p)).extents(p)
            if e.key == key
        ]
        body = store_of(self.cluster).objects.pop(key)
        try:
            assert not give_up(self.cluster, "a test", objects=[key]).errors
        except (UsageError, NotFoundError):  # earlier records must be given up first
            store_of(self.cluster).objects[key] = body
            return
        for p, first, last in lost:
            self.records[p][first : last + 1] = [None] * (last + 1 - first)

    def vacuum(self) -> None:
        self.restart()
        tick(self.cluster, self.chance.randint(1, 3))
        assert vacuum(self.cluster).problem is None

    def pin(self) -> None:
        if self.pins and self.chance.random() < 0.6:
            self.cluster.controller.delete_pin(self.pins.pop())
            return
        name = f"pin-{self.chance.randrange(10**9)}"
        self.cluster.controller.create_pin(name, 30 * 86_400_000, level_one=True)
        self.pins.append(name)

    def restart(self) -> None:
        if self.chance.random() < 0.5:
            for journal in self.topic.journals:
                self.cluster.journal(journal).replica.write_checkpoint()
        self.cluster = memory_cluster(store_of(self.cluster), seed=self.chance.randrange(1 << 30), bootstrap=False)

    # -- invariants -------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        self.check_read(Read(skip_holes=True), range(PARTITIONS))
        p = self.chance.randrange(PARTITIONS)
        self.check_read(Read(partition=p, skip_holes=True), [p])

    def check_read(self, wanted: Read, partitions: range | list[int]) -> None:
        found: dict[int, list[tuple[int, bytes]]] = {p: [] for p in partitions}
        for r in read_topic(self.cluster, self.topic, wanted):
            found[r.partition].append((r.offset, r.value))
        for p in partitions:
            kept = enumerate(self.records[p][self.starts[p] :], self.starts[p])
            assert found[p] == [(offset, value) for offset, value in kept if value is not None], p

    def finish(self) -> None:
        """Lift everything, end all pins and graces; the bucket must then hold exactly what the journals list."""
        for name in self.pins:
            self.cluster.controller.delete_pin(name)
        assert not reconcile(self.cluster).errors
        for _ in range(2):
            self.restart()
            tick(self.cluster, 3)
            assert vacuum(self.cluster).problem is None
        self.check()
        names = set[str]()
        for journal in self.topic.journals:
            known = self.state(journal)
            names |= {name_text(name) for name in known.all_rows()["name"]}
            assert not len(self.cluster.journal(journal).state.dropped)
        keys = [k for k in store_of(self.cluster).objects if k.startswith(L1_DATA)]
        there = [parsed.name for key in keys if (parsed := parse_level_one(key)) is not None]
        assert sorted(there) == sorted(names)


@contextmanager
def small() -> Iterator[None]:
    """Let three partitions share an object of at most five, count 800 bytes as large, and cut a drain into pieces."""
    with ExitStack() as stack:
        for module, name, value in (
            (share, "LEAST_PARTITIONS", 3), (share, "SMALL_BYTES", 800), (merge_plan, "_DRAIN_BYTES", 150),
            (merge_plan, "OBJECTS", 1),
        ):  # fmt: skip
            stack.enter_context(mock.patch.object(module, name, value))
        stack.enter_context(mock.patch("l0gc.streamlog.level_one.write.MOST_PARTITIONS", 5))
        yield


def run_histories(seeds: range) -> None:
    drained = shared = 0
    with small():
        for seed in seeds:
            history = History(seed)
            try:
                history.run()
            except (AssertionError, L0gcError) as e:
                raise AssertionError(f"seed {seed}: {e}") from e
            drained, shared = drained + history.drained, shared + history.shared
    assert drained > 10 * len(seeds)
    assert shared > 10 * len(seeds)


def test_every_record_of_a_random_history_is_read_once_and_in_order() -> None:
    run_histories(range(3))


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "seeds", [range(3, 40), *(pytest.param(range(n, n + 115), marks=pytest.mark.release) for n in range(40, 500, 115))]
)
def test_every_record_of_many_random_histories_is_read_once(seeds: range) -> None:
    run_histories(seeds)
