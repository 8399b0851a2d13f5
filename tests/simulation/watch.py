"""What must hold after every step, seen from below: whatever takes effect in the store comes by here.

The watch keeps a replay of every log, of what is published and of what was acknowledged, and shares no decision with what
it watches: what a partition may still need it counts itself (`shadow.py`), what an L0 key is it says itself.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from l0gc.errors import L0gcError
from l0gc.keys import CONTROLLER_LOG, PUBLISHED_WATERMARK, REPORTS, KeyLayout, PartitionId, partition_log
from l0gc.storage.log import Landed
from l0gc.streamlog.controller.state import ControllerMachine, ControllerState, InitProducer
from l0gc.streamlog.journal.state import PartitionMachine, PartitionState
from l0gc.watermark.compute import PartitionReport
from l0gc.watermark.publication import PublishedWatermark, decode_published
from l0gc.watermark.reports import read_report_file
from tests.simulation.shadow import Shadow, content, logged

if TYPE_CHECKING:
    from tests.simulation.world import World

LAYOUT = KeyLayout(shards=4)
_L0_KEY = re.compile(r"level_zero/data/00[0-3]/([0-9]{18})/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PARTITION = re.compile(r"l0gc/partition/(.+)-(\d+)/(\d{5})/(log|checkpoint)/(\d{20})\.json")
_CONTROLLER = re.compile(r"l0gc/controller/(log|checkpoint)/(\d{20})\.json")
_INIT_PRODUCER = msgspec.json.Decoder(dict)


class Violation(AssertionError):
    """An invariant does not hold. The seed replays it."""

    def __init__(self, seed: int, step: int, text: str) -> None:
        super().__init__(f"seed {seed}, step {step}: {text}")
        self.seed, self.step, self.text = seed, step, text

    def __reduce__(self) -> tuple[type[Violation], tuple[int, int, str]]:
        return Violation, (self.seed, self.step, self.text)


class Watch:
    """The invariants of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.shadows: dict[PartitionId, Shadow] = {}
        self.live: Counter[str] = Counter()
        self.l1: set[str] = set()
        self.controller: ControllerState = ControllerMachine().initial()
        self.truth: ControllerState | None = None
        self.watermark = -1
        self.foreign: dict[str, bytes] = {}
        self.superseded: dict[tuple[int, int], int] = {}
        self.acknowledged: dict[PartitionId, dict[int, bytes]] = {}
        self.rows: dict[str, list[PartitionReport]] = {}
        self.states: set[int] = set()
        self._abstract: dict[PartitionId, tuple[int, ...]] = {}
        self.looking = True

    # -- what there is --------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The highest cluster epoch that there ever was."""
        return max(self.controller.epoch, -1 if self.truth is None else self.truth.epoch)

    def partitions(self) -> set[PartitionId]:
        """Every partition whose data must stay: also of topics that an old backup of the controller does not know."""
        known = set(self.controller.partitions())
        if self.truth is None:
            return known
        gone = {(d.topic.name, d.topic.revision) for d in self.truth.deleted}  # and back, as far as the backup goes
        return {p for p in known if (p.topic, p.revision) not in gone} | set(self.truth.partitions())

    def _fail(self, text: str) -> None:
        raise self._world.violation(text)

    def _count_state(self) -> None:
        """The state of the whole: each live partition in the abstract, in no order, and how far M is behind."""
        lag = min(self.controller.epoch - self.watermark, 20)
        self.states.add(hash((lag, len(self.controller.topics), *sorted(self._abstract.values()))))

    # -- writes ---------------------------------------------------------------------------------------------------------

    def written(self, key: str, body: bytes) -> None:
        if not self.looking or key.startswith("level_"):
            return
        if (m := _PARTITION.fullmatch(key)) is not None:
            p = PartitionId(m[1], int(m[2]), int(m[3]))
            (self._landed if m[4] == "log" else self._checkpoint)(p, int(m[5]), body)
        elif (m := _CONTROLLER.fullmatch(key)) is not None:
            if m[1] == "log":
                self._controller(int(m[2]), body)
            elif int(m[2]) > self.controller.epoch:
                self._fail(f"{key} was written, though the log ends at {self.controller.epoch}")
        elif key == PUBLISHED_WATERMARK:
            self._published(decode_published(body))
        elif key.startswith(REPORTS):
            table = read_report_file(body, key)
            self.rows[key] = [msgspec.convert(row, PartitionReport) for row in table.to_pylist()]
            for row in self.rows[key]:
                self._report(row)

    def _landed(self, p: PartitionId, offset: int, body: bytes) -> None:
        if p not in self.partitions() and p not in self.shadows:
            return  # the topic was deleted
        shadow = self.shadows.setdefault(p, Shadow(p, PartitionState.new(p.revision)))
        if offset <= shadow.offset:
            return  # re-created below the boundary: no reader may take it for an entry, or the reads will tell
        self._check_producers(shadow, body)
        for u in shadow.state.placeholders:
            self._unreference(u.placeholder.key)
        wrong = shadow.land(offset, body, self._world.store.objects, self.epoch, self.watermark)  # type: ignore[arg-type]
        if wrong is not None:
            self._fail(f"{p} {wrong}")
        for u in shadow.state.placeholders:
            self.live[u.placeholder.key] += 1
        self.l1.update(f.key for f in shadow.state.l1[-2:])
        self._abstract[p] = shadow.abstract(self.epoch)
        self._count_state()

    def _unreference(self, key: str) -> None:
        self.live[key] -= 1
        if not self.live[key]:
            del self.live[key]

    def _check_producers(self, shadow: Shadow, body: bytes) -> None:
        """A run that was superseded before it began to append may not begin where it is not known."""
        thread = self._world.thread
        entry = msgspec.json.decode(logged(body).entry)
        for x in entry.get("placeholders", ()) if thread is not None else ():
            batch = x.get("producer")
            if batch is None or batch["producer_id"] in shadow.state.producers:
                continue
            since = self.superseded.get((batch["producer_id"], batch["epoch"]))
            if since is not None and thread is not None and since < thread.append_began:
                self._fail(f"{shadow.partition} took a batch of a producer that was fenced at step {since}")

    def _checkpoint(self, p: PartitionId, offset: int, body: bytes) -> None:
        shadow = self.shadows.get(p)
        if shadow is None:
            return
        if offset > shadow.offset:
            self._fail(f"{p} has a checkpoint at {offset}, though its log ends at {shadow.offset}")
        if offset == shadow.offset and content(body) != PartitionMachine(p).encode(shadow.state):
            self._fail(f"{p} has a checkpoint at {offset} that says something else than its log")

    def _controller(self, offset: int, body: bytes) -> None:
        state = self.controller
        if offset <= state.epoch:
            return
        e = logged(body)
        entry = _INIT_PRODUCER.decode(e.entry)
        before = {name: (p.producer_id, p.epoch) for name, p in state.producers.items()}
        topics = set(state.partitions())
        try:
            ControllerMachine().apply(state, Landed(offset, e.time_ms, bytes(e.entry), 0))
        except L0gcError as error:
            self._fail(f"the controller log took an entry that it should have refused: {error}")
        if entry["type"] == InitProducer.__struct_config__.tag and entry["name"] in before:
            self.superseded.setdefault(before[entry["name"]], self._world.steps)
        now = set(state.partitions())
        for p in sorted(now - topics, key=str):
            if p.revision <= self.watermark:
                self._fail(f"{p} was created at epoch {p.revision}, though M = {self.watermark} is published")
        for p in sorted(topics - self.partitions(), key=str):
            self.forget(p)
        self._count_state()

    def forget(self, p: PartitionId) -> None:
        """The topic is gone, and its records may go."""
        self._abstract.pop(p, None)
        shadow = self.shadows.pop(p, None)
        if shadow is not None:
            for u in shadow.state.placeholders:
                self._unreference(u.placeholder.key)
            self.l1.difference_update(f.key for f in shadow.state.l1)

    def _published(self, published: PublishedWatermark) -> None:
        m = published.watermark
        if m < self.watermark:
            self._fail(f"M went down from {self.watermark} to {m}")
        for p in sorted(self.partitions(), key=str):
            shadow = self.shadows.get(p)
            needs = p.revision if shadow is None else shadow.needs
            if m >= needs:
                self._fail(f"M = {m} was published, though {p} (revision {p.revision}) may still need {needs}")
        if m > self.controller.epoch:
            self._fail(f"M = {m} was published at cluster epoch {self.controller.epoch}")
        if self.foreign_watermark or self.foreign_report:
            self._fail(f"M = {m} was published beside what another cluster has left in the bucket")
        if self.truth is not None:
            for key in self._world.store.objects:
                k = _L0_KEY.fullmatch(key)
                if k is not None and int(k[1]) > self.controller.epoch:
                    self._fail(
                        f"M = {m} was published, though {key} is above the cluster epoch {self.controller.epoch}"
                    )
        self.watermark = m
        self._count_state()

    foreign_watermark = False
    foreign_report = False

    def _report(self, row: PartitionReport) -> None:
        """A report says no more than the log holds."""
        shadow = self.shadows.get(row.id)
        if shadow is None:
            if row.id in self.partitions() and (row.log_offset >= 0 or row.gc_epoch >= row.revision):
                self._fail(f"a report of {row.id} is as of {row.log_offset}, though nothing is in its log")
            return
        s = shadow.state
        said = (row.log_offset, row.max_applied_epoch, row.next_offset, row.last_reconciled_offset)
        if any(
            a > b
            for a, b in zip(
                said, (shadow.offset, s.max_applied_epoch, s.next_offset, s.last_reconciled_offset), strict=True
            )
        ):
            self._fail(f"a report of {row.id} says more than its log holds: {row}")
        if row.gc_epoch >= shadow.needs:
            self._fail(f"a report of {row.id} is done with {row.gc_epoch}, though it may still need {shadow.needs}")

    # -- deletions ------------------------------------------------------------------------------------------------------

    def deleted(self, key: str, modified_ms: int) -> None:
        if not self.looking:
            return
        if key in self.live:
            self._fail(f"{key} was deleted, though an unreconciled placeholder names it")
        if key in self.l1:
            self._fail(f"{key} was deleted, though it holds records of a partition")
        if key in self.foreign:
            self._fail(f"{key} was deleted, which is not l0gc's")
        if key.startswith(LAYOUT.data_prefix):
            self._swept(key, modified_ms)
        elif (m := _PARTITION.fullmatch(key)) is not None and m[4] == "log":
            folder = partition_log(PartitionId(m[1], int(m[2]), int(m[3])))
            self._truncated(folder, key, int(m[5]))
        elif (m := _CONTROLLER.fullmatch(key)) is not None and m[1] == "log":
            self._truncated(CONTROLLER_LOG, key, int(m[2]))

    def _swept(self, key: str, modified_ms: int) -> None:
        k = _L0_KEY.fullmatch(key)
        if k is None or int(k[1]) > self.watermark:
            self._fail(f"{key} was deleted, though M = {self.watermark}")
        if self.watermark > self.controller.epoch:
            self._fail(f"{key} was deleted, though the cluster epoch {self.controller.epoch} is below M")
        if self.foreign_watermark:
            self._fail(f"{key} was deleted, though what is published is another cluster's")
        thread = self._world.thread
        if thread is not None and self._world.clock.ms - modified_ms < thread.min_age_ms:
            self._fail(f"{key} was deleted at an age of {self._world.clock.ms - modified_ms} ms, below --min-age")

    def _truncated(self, folder: str, key: str, offset: int) -> None:
        """An entry goes only below a boundary that is there, and inside a checkpoint."""
        objects = self._world.store.objects
        boundary = objects.get(f"{folder}boundary.json")
        if boundary is None or msgspec.json.decode(content(boundary.body))["boundary"] <= offset:
            self._fail(f"{key} was deleted before the boundary was raised")
        if not any(
            k > f"{folder}checkpoint/{offset:020}.json" for k in objects if k.startswith(f"{folder}checkpoint/")
        ):
            self._fail(f"{key} was deleted, though no checkpoint covers it")

    # -- what clients are told --------------------------------------------------------------------------------------------

    def acknowledge(self, p: PartitionId, base_offset: int, batch: int, values: list[bytes]) -> None:
        """An uploader was told that the batch of `batch` records at this offset landed, of which these were its own."""
        shadow = self.shadows.get(p)
        if p in self.partitions() and (shadow is None or shadow.batches.get(base_offset) != batch):
            self._fail(f"{p}: {batch} records were acknowledged at {base_offset}, where the log has no such batch")
        told = self.acknowledged.setdefault(p, {})
        for i, value in enumerate(values, base_offset):
            if told.setdefault(i, value) != value:
                self._fail(f"{p} offset {i} was acknowledged twice, as {told[i]!r} and as {value!r}")
