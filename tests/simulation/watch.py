"""Checks invariants after every step: the watch sees everything that takes effect in the store.

The watch keeps a replay of every log, of what is published and of what was acknowledged, and shares no decision with
the code that it watches: it counts what a partition may still need by separate rules (`shadow.py`), and has its own
definition of an L0 key.
"""

from __future__ import annotations

import re
from collections import ChainMap, Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from l0gc.errors import L0gcError
from l0gc.keys import CONTROLLER_LOG, PUBLISHED_WATERMARK, KeyLayout, journal_log
from l0gc.storage.entry import StoredEntry, decode_checkpoint, decode_entry
from l0gc.storage.store_time import JUMP_MS
from l0gc.streamlog.controller.entries import ControllerEntry, ControllerMachine, InitProducer, RenewPin, Tick
from l0gc.streamlog.controller.state import ControllerState, Topic
from l0gc.streamlog.journal.checkpoint import JournalMachine
from l0gc.streamlog.journal.entries import EXPIRE, Edit, ObjectExtents, Objects
from l0gc.streamlog.journal.handle import LandedObject
from l0gc.streamlog.journal.rows import L1_ROW, unpack
from l0gc.streamlog.journal.state import JournalState
from l0gc.watermark.publication import PublishedWatermark, decode_published
from tests.simulation import typed
from tests.simulation.promises import Promises
from tests.simulation.retention import Retentions, check_expiry
from tests.simulation.shadow import LandingWorld, Shadow, fingerprint
from tests.simulation.shadow_l1 import Wrong, is_shared, spans_of_files

if TYPE_CHECKING:
    from tests.simulation.world import World

LAYOUT = KeyLayout(shards=4)
L0_KEY = re.compile(r"level_zero/data/00[0-3]/([0-9]{18})/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_JOURNAL = re.compile(r"l0gc/journal/(\d{4})/(log|checkpoint)/(\d{20})")
_L1_KEY = re.compile(r"level_one/data/(.+)-(\d+)/(j\d{4}|\d{5})/(\d{18})/[^/]+")
_CONTROLLER = re.compile(r"l0gc/controller/(log|checkpoint)/(\d{20})")
_CONTROLLER_ENTRY = msgspec.msgpack.Decoder(ControllerEntry)

GROUPED = "entries of several objects"
EXPIRED = "entries that retention wrote"
GRACE_EPOCHS = 2
Place = tuple[str, int]
"""A topic's id, and a partition of it."""


class Violation(AssertionError):
    """An invariant that does not hold; its seed replays it."""

    def __init__(self, seed: int, step: int, text: str) -> None:
        super().__init__(f"seed {seed}, step {step}: {text}")
        self.seed, self.step, self.text = seed, step, text

    def __reduce__(self) -> tuple[type[Violation], tuple[int, int, str]]:
        return Violation, (self.seed, self.step, self.text)


def _journal_in(m: re.Match[str], topic: Topic) -> int:
    """Return the journal of an L1 key: the one that it names, or that of its partition."""
    return int(m[3][1:]) if m[3].startswith("j") else topic.journal_of(int(m[3]))


class Watch:
    """The invariants of one world.

    If a log was set back, `protected` are the objects that the newest logs need, or all objects if `published.json` is
    lost. `strays` are L1 objects whose topic only a lost controller log had. `went_back` are the journals with an older
    log, until the newest is back or, if that is gone for good, until everything that they need is in L1. `raised` are
    the times at which M was raised, `published` all watermarks that were ever published.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.shadows: dict[int, Shadow] = {}
        self.live: Counter[str] = Counter()
        self.topics_ever: dict[tuple[str, int], list[Topic]] = {}
        self.controller: ControllerState = ControllerMachine().initial()
        self.newest: ControllerState | None = None
        self.highest_epoch = -1
        self.gone: set[str] = set()
        self.names: dict[str, str] = {}
        self.watermark = -1
        self.raised: list[tuple[int, int]] = []
        self.published_epoch = -1
        self.published: set[bytes] = set()
        self.foreign: dict[str, bytes] = {}
        self.foreign_watermark = False
        self.superseded: dict[tuple[int, int, str], int] = {}
        self.offered: dict[tuple[int, str], int] = {}
        self.refused: set[tuple[int, str]] = set()
        self.acknowledged: dict[Place, dict[int, bytes]] = {}
        self.states: set[int] = set()
        self.numbers: dict[str, int] = {}
        self.places: dict[str, dict[int, int]] = {}
        self.protected: frozenset[str] = frozenset()
        self.strays: frozenset[str] = frozenset()
        self.went_back: frozenset[int] = frozenset()
        self.was_put_back = False
        self.promises = Promises()

    # -- the present state ----------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The highest cluster epoch that any log ever had."""
        return max(self.controller.epoch, self.highest_epoch, self.published_epoch)

    def topics(self) -> dict[str, Topic]:
        """Return every topic whose data must stay, by id, including one that an old backup does not know for a while."""
        known = list(self.controller.topics.values())
        if self.newest is not None:
            known += self.newest.topics.values()
        return {t.topic_id: t for t in known if t.topic_id not in self.gone}

    def is_live(self, topic: Topic) -> bool:
        return topic.topic_id in self.topics()

    def log_start(self, topic: Topic, partition: int) -> int:
        """Return the first offset that a partition still has."""
        shadow = self.shadow(topic.journal_of(partition)).topics.get(topic.revision)
        part = shadow.parts.get(partition) if shadow is not None else None
        return part.start if part is not None else 0

    def is_kept(self, key: str) -> bool:
        """Return whether the lost part of an accepted log may have named an L1 object."""
        m = _L1_KEY.fullmatch(key)
        topics = self.topics_ever.get((m[1], int(m[2])), []) if m is not None else []
        return m is not None and any(
            self.is_live(t) and int(m[4]) < self.shadow(_journal_in(m, t)).kept_below for t in topics
        )

    def named(self) -> set[str]:
        """Return the L1 objects that journals name."""
        return {key for s in self.shadows.values() for key in s.l1.named}

    def shadow(self, journal: int) -> Shadow:
        return self.shadows.setdefault(journal, Shadow(journal))

    @property
    def _latest_ms(self) -> int:
        """The latest time that a process may rely on: a date that is ahead by minutes counts as right (hazard 16)."""
        return self._world.clock.ms + (JUMP_MS if self._world.weather.late_dates else 0)

    def _fail(self, text: str) -> None:
        raise self._world.violation(text)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except Wrong as wrong:
            self._fail(str(wrong))

    def _count_state(self) -> None:
        """Count the overall state: the abstract state of each journal, without order, and how far M is behind."""
        lag = min(self.controller.epoch - self.watermark, 20)
        journals = sorted(s.abstract(self.epoch) for s in self.shadows.values())
        self.states.add(hash((lag, len(self.controller.topics), *journals)))

    # -- writes ---------------------------------------------------------------------------------------------------------

    def written(self, key: str, body: bytes) -> None:
        if key.startswith("level_"):
            return
        if (m := _JOURNAL.fullmatch(key)) is not None:
            (self._landed if m[2] == "log" else self._checkpoint)(int(m[1]), int(m[3]), body)
        elif (m := _CONTROLLER.fullmatch(key)) is not None:
            if m[1] == "log":
                self._controller(int(m[2]), body)
            elif self.controller.epoch_at(int(m[2])) > self.controller.epoch:
                self._fail(f"{key} was written, though the log ends at {self.controller.epoch}")
        elif key == PUBLISHED_WATERMARK:
            self._published(decode_published(body))

    def _landed(self, journal: int, offset: int, body: bytes) -> None:
        shadow = self.shadow(journal)
        if offset <= shadow.offset:
            return  # re-created below the boundary: `agrees` checks that no reader takes it for an entry
        if decode_entry(f"{journal_log(journal)}log/{offset:020}", body).time_ms > self._latest_ms:
            self._fail(f"journal {journal} has an entry at {offset} of a time that is to come")
        known = set(shadow.producers)
        before = self._references(shadow)
        try:
            self._check_retention(shadow, journal, offset, body)
            losses = self._world.losses
            lost = frozenset[str]() if losses is None else frozenset(losses.keys)
            there: Mapping[str, Any] = self._world.store.objects
            if lost:
                there = ChainMap(dict.fromkeys(lost), self._world.store.objects)
            seen = LandingWorld(there, self.epoch, self.watermark, self.names, self.topics(), lost)
            entry = shadow.land(offset, body, seen)
            if isinstance(entry, Edit) and self._world.weather.schemas:
                self._check_numbers(entry)
        except Wrong as wrong:
            self._fail(f"journal {journal} {wrong}")
            raise
        thread = self._world.thread
        if isinstance(entry, Edit) and entry.kind == EXPIRE and thread is not None and thread.retains is not None:
            self._world.happened[EXPIRED] += 1
        objects = entry.objects if isinstance(entry, Objects) else []
        for o in objects:
            self._check_object(journal, o, known)
        happened = self._world.happened
        happened[f"entries: {entry.kind if isinstance(entry, Edit) else type(entry).__name__.lower()}"] += 1
        happened[GROUPED] += len(objects) > 1
        self.live.subtract(before)
        self.live.update(self._references(shadow))
        self.live = +self.live
        self.promises.see(self)
        self._count_state()

    def _check_numbers(self, edit: Edit) -> None:
        """Raise `Wrong` if typed columns are wrong or lost."""
        for t in edit.topics:
            name, places = self.names[t.topic_id], self.places.get(t.topic_id, {})
            added, removed = (dict(spans_of_files(name, t.revision, unpack(r, L1_ROW))) for r in (t.added, t.removed))
            self.numbers |= {
                key: typed.check_columns(key, self._world.store.objects[key].body, places) for key in added
            }
            typed.check_merged(self.numbers, added, removed)

    def _check_retention(self, shadow: Shadow, journal: int, offset: int, body: bytes) -> None:
        """Raise `Wrong` if an entry expires records that no retention lets go; manual deletions are not restricted."""
        thread = self._world.thread
        if thread is None or thread.retains is None:
            return
        payload = decode_entry(f"{journal_log(journal)}log/{offset:020}", body).payload
        check_expiry(shadow, payload, thread.retains, self._world.clock.ms)

    def retentions(self) -> Retentions:
        """Return the present retention of each topic, by id."""
        state = self.controller
        return {t.topic_id: {state.retention(t)} for t in state.topics.values()}

    def _references(self, shadow: Shadow) -> Counter[str]:
        return Counter(key for topic_id in self.topics() for key in shadow.keys(topic_id))

    def _check_object(self, journal: int, o: ObjectExtents, known: set[int]) -> None:
        if (journal, o.key) in self.refused:
            self._fail(f"journal {journal} took {o.key}, though it was reported as not landed")
        b = o.producer
        if b is None or b.producer_id in known:
            return
        since = self.superseded.get((b.producer_id, b.epoch, b.run))
        if since is not None and since < self.offered.get((journal, o.key), 0):
            self._fail(f"journal {journal} took an object of a producer that was fenced at step {since}")

    def _checkpoint(self, journal: int, offset: int, body: bytes) -> None:
        shadow, key = self.shadow(journal), f"{journal_log(journal)}checkpoint/{offset:020}"
        if offset > shadow.offset:
            self._fail(f"{key} was written, though the log ends at {shadow.offset}")
        state = JournalMachine(journal).decode(decode_checkpoint(key, body).state, key)
        if fingerprint(state) != shadow.prints[offset]:
            self._fail(f"{key} says something else than its log")

    def agrees(self, journal: int, offset: int, state: JournalState) -> None:
        """Check that a process's state of a journal is the log's own at that offset (hazard 23)."""
        shadow = self.shadow(journal)
        if offset > shadow.offset or not fingerprint(state).agrees(shadow.prints[offset]):
            self._fail(f"a process holds a state of journal {journal} at {offset} that the log does not have there")

    def _controller(self, offset: int, body: bytes) -> None:
        state = self.controller
        if state.epoch_at(offset) <= state.epoch:
            return
        e = decode_entry(f"{CONTROLLER_LOG}log/{offset:020}", body)
        entry = _CONTROLLER_ENTRY.decode(e.payload)
        before = {name: (p.producer_id, p.epoch, p.run) for name, p in state.producers.items()}
        topics = dict(state.topics)
        # An append in progress while the newest log was put back was decided on the older one (docs/why/safety.md).
        oldest_ms = 0 if self.was_put_back else state.time_ms
        if not oldest_ms <= e.time_ms <= self._latest_ms:
            self._fail(f"the controller log has an entry at {offset} that is older than the one before, or not of now")
        thread, published = self._world.thread, max(self.watermark, self.published_epoch)
        if published > state.epoch and thread is not None and not (isinstance(entry, Tick) and thread.process.recovers):
            self._fail(f"the controller log took {entry} at {offset}, though {published} is published")
        if isinstance(entry, RenewPin) and entry.revision not in (p.revision for p in state.pins.values()):
            self._fail(f"the controller log took {entry} at {offset}, though that pin has ended")
        try:
            ControllerMachine().apply(state, StoredEntry(offset, e.time_ms, e.payload, 0))
        except L0gcError as error:
            self._fail(f"the controller log took an entry that it should have refused: {error}")
        for retains in (t.retains for t in self._world.threads if t.retains is not None):
            for topic_id, now in self.retentions().items():
                retains.setdefault(topic_id, set()).update(now)
        if isinstance(entry, InitProducer) and entry.name in before:
            self.superseded.setdefault(before[entry.name], self._world.steps)
        for name, topic in state.topics.items():
            if topic.value_schema is not None:
                self.places.setdefault(topic.topic_id, {})[topic.value_schema.number] = typed.place_of(
                    topic.value_schema
                )
            if name not in topics:
                self.names[topic.topic_id] = name
                self.topics_ever.setdefault((name, topic.revision), []).append(topic)
                if topic.revision <= self.watermark:
                    self._fail(
                        f"{name} was created at epoch {topic.revision}, though M = {self.watermark} is published"
                    )
        for name, topic in topics.items():
            if name not in state.topics:
                self.forget([topic])
        self.promises.see(self)
        self._count_state()

    def forget(self, topics: Sequence[Topic]) -> None:
        """Forget topics that are gone for good, whose records may be deleted."""
        self.gone.update(t.topic_id for t in topics)
        self.live = Counter()
        for shadow in self.shadows.values():
            self.live.update(self._references(shadow))

    def _published(self, published: PublishedWatermark) -> None:
        m = published.watermark
        if m < self.watermark:
            self._fail(f"M went down from {self.watermark} to {m}")
        for topic in self.topics().values():
            heard_of = any(topic.revision in self.shadow(j).topics for j in topic.journals)
            if topic.name not in self.controller.topics and not heard_of:
                continue  # only the newest log has it, and nothing has landed there, so no process could know
            for partition_range in topic.partition_ranges():
                if m == self.watermark and partition_range.journal in self.went_back:
                    continue  # what it needs below M is kept, while it cannot be read or once it is accepted
                for p in range(partition_range.first, partition_range.end):
                    needs = self.shadow(partition_range.journal).needs(topic.revision, p)
                    if m >= needs:
                        self._fail(
                            f"M = {m} was published, though {topic.name}/{p} (revision {topic.revision}) may still need "
                            f"{needs}"
                        )
        if published.cluster_epoch < self.published_epoch:
            self._fail(f"the published epoch went down from {self.published_epoch} to {published.cluster_epoch}")
        if m > self.controller.epoch:
            self._fail(f"M = {m} was published at cluster epoch {self.controller.epoch}")
        if self.foreign_watermark:
            self._fail(f"M = {m} was published beside what another cluster has left in the bucket")
        # Noting a pin or a value schema keeps an earlier computation, if any, so it publishes no M. It starts no new
        # grace either, so the date and the history may have changed.
        about_m = msgspec.json.encode(
            msgspec.structs.replace(published, cluster_epoch=-1, pinned=-1, given=(0, 0), published_at_ms=0, history=[])
        )
        computed = published.partitions >= 0 and about_m not in self.published
        self.published.add(about_m)
        if self.highest_epoch > self.controller.epoch and computed:
            for key in self._world.store.objects:
                k = L0_KEY.fullmatch(key)
                if k is not None and int(k[1]) > self.controller.epoch:
                    self._fail(
                        f"M = {m} was published, though {key} is above the cluster epoch {self.controller.epoch}"
                    )
        with self._failing():
            self.promises.check_published(self, m)
        if m > self.watermark:
            self.raised.append((self._world.clock.ms, m))
        self.watermark, self.published_epoch = m, published.cluster_epoch
        self._count_state()

    # -- deletions ------------------------------------------------------------------------------------------------------

    def deleted(self, key: str, modified_ms: int) -> None:
        """Check the deletion of an object."""
        with self._failing():
            self.promises.check_deleted(self, key, self._world.store.objects)
        if key in self.live:
            self._fail(f"{key} was deleted, though an unreconciled extent lies in it")
        if key in self.protected:
            self._fail(f"{key} was deleted, though a log was set back that needs it, or published.json is lost")
        if key in self.foreign:
            self._fail(f"{key} was deleted, which is not l0gc's")
        if key.startswith(LAYOUT.data_prefix):
            self._swept(key, modified_ms)
        elif key.startswith("level_one/"):
            self._vacuumed(key)
        elif (m := _JOURNAL.fullmatch(key)) is not None and m[2] == "log":
            self._truncated(journal_log(int(m[1])), key, int(m[3]))
        elif (m := _CONTROLLER.fullmatch(key)) is not None and m[1] == "log":
            self._truncated(CONTROLLER_LOG, key, int(m[2]))

    def _swept(self, key: str, modified_ms: int) -> None:
        k = L0_KEY.fullmatch(key)
        if k is None or int(k[1]) > self.watermark:
            self._fail(f"{key} was deleted, though M = {self.watermark}")
        published = max(self.watermark, self.published_epoch)
        if published > self.controller.epoch:
            self._fail(f"{key} was deleted, though {published} is published at cluster epoch {self.controller.epoch}")
        if self.foreign_watermark:
            self._fail(f"{key} was deleted, though what is published is another cluster's")
        thread = self._world.thread
        if thread is None:
            return
        if self._latest_ms - modified_ms < thread.min_age_ms:
            self._fail(f"{key} was deleted at an age of {self._world.clock.ms - modified_ms} ms, below --min-age")
        before_ms = self._latest_ms - thread.grace_ms
        if k is not None and int(k[1]) > max((m for at_ms, m in self.raised if at_ms <= before_ms), default=-1):
            self._fail(f"{key} was deleted less than --grace {thread.grace_ms} ms after M has passed it")

    def _vacuumed(self, key: str) -> None:
        """Check a deletion of L1: a journal dropped the object long enough ago, or no journal has named it and its
        stamp is below the fence.
        """
        shadows = self.shadows.values()
        if any(key in s.l1.named for s in shadows):
            self._fail(f"{key} was deleted, though it holds records of a partition")
        thread = self._world.thread
        for journal, dropped in ((s.l1, s.l1.dropped[key]) for s in shadows if key in s.l1.dropped):
            if is_shared(key) and int(key.split("/")[-2]) >= journal.fence:
                self._fail(f"{key} was deleted, though a commit may still name it: the L1 fence is at {journal.fence}")
            age_ms = self._latest_ms - dropped.time_ms
            if thread is not None and age_ms < thread.min_age_ms:
                self._fail(f"{key} was deleted {age_ms} ms after it was dropped, within the time of grace")
            self._world.happened["dropped L1 objects deleted"] += 1
            if dropped.epoch > self.controller.epoch - GRACE_EPOCHS:
                self._fail(f"{key} was deleted at epoch {self.controller.epoch}, and dropped at {dropped.epoch}")
            return
        m = _L1_KEY.fullmatch(key)
        if m is None:
            self._fail(f"{key} was deleted, which is no L1 key")
            return
        if self.is_kept(key):
            self._fail(f"{key} was deleted, though the lost part of a log that was set back may have named it")
        self._world.happened["orphaned L1 objects deleted"] += 1
        for topic in self.topics_ever[m[1], int(m[2])]:
            fence = self.shadow(_journal_in(m, topic)).l1.fence
            if int(m[4]) >= fence:
                self._fail(f"{key} was deleted, though a run may still commit it: the L1 fence is at {fence}")

    def _truncated(self, folder: str, key: str, offset: int) -> None:
        """Check that a deleted entry is below an existing boundary, and covered by a checkpoint."""
        objects = self._world.store.objects
        boundary = objects.get(f"{folder}boundary.json")
        if boundary is None or msgspec.json.decode(boundary.body.split(b"\n", 1)[0])["boundary"] <= offset:
            self._fail(f"{key} was deleted before the boundary was raised")
        if not any(k > f"{folder}checkpoint/{offset:020}" for k in objects if k.startswith(f"{folder}checkpoint/")):
            self._fail(f"{key} was deleted, though no checkpoint covers it")

    # -- reports to clients -----------------------------------------------------------------------------------------------

    def offers(self, journal: int, objects: Sequence[ObjectExtents]) -> set[str]:
        """Note that a journal is offered these objects; return those that it has taken before."""
        for o in objects:
            self.offered[journal, o.key] = self._world.steps
            self.refused.discard((journal, o.key))
        return {o.key for o in objects if o.key in self.shadow(journal).landed}

    def reported_landed(self, journal: int, objects: Sequence[ObjectExtents], landed: Sequence[LandedObject]) -> None:
        """Check that objects reported as landed, in order, to the process that offered them did land."""
        shadow = self.shadow(journal)
        for o, answer in zip(objects, landed, strict=False):
            there = shadow.landed.get(o.key)
            if answer.bases is not None and (
                there is None or (answer.log_offset, tuple(answer.bases.tolist())) != there
            ):
                self._fail(f"journal {journal} reported that {o.key} is at {answer}, and it is at {there}")
            if there is None and o.producer is None:
                self._fail(f"journal {journal} reported that {o.key} landed, and it did not")

    def reported_refused(self, journal: int, objects: Sequence[ObjectExtents]) -> None:
        """Note that objects were reported as not landed: they have not landed, and never will (hazard 27)."""
        for o in objects:
            if o.key in self.shadow(journal).landed:
                self._fail(f"journal {journal} reported that {o.key} did not land, and it did")
            self.refused.add((journal, o.key))

    def acknowledge(self, topic: Topic, partition: int, base_offset: int, batch: int, values: list[bytes]) -> None:
        """Note that an uploader was informed of a landed batch of `batch` records at this offset; `values` are its own."""
        shadow = self.shadow(topic.journal_of(partition)).topics.get(topic.revision)
        if self.is_live(topic):
            part = None if shadow is None else shadow.parts.get(partition)
            if part is None or part.batches.get(base_offset) != batch:
                self._fail(
                    f"{topic.name}/{partition}: {batch} records were acknowledged at {base_offset}, where the log has no "
                    "such batch"
                )
        known = self.acknowledged.setdefault((topic.topic_id, partition), {})
        for i, value in enumerate(values, base_offset):
            if known.setdefault(i, value) != value:
                self._fail(
                    f"{topic.name}/{partition} offset {i} was acknowledged twice, as {known[i]!r} and as {value!r}"
                )
