"""Give a process its view of the cluster, and the methods that change it.

The epoch may come from a cache: a stale one costs at worst a refused append and a second upload, never safety, since each
journal decides admission against its own window. A snapshot for the computation of M is never cached.

Checks precede writes: the decision, the entry's check and the guard all run before an append. The code that builds the
handle passes the guard, which raises if the log is older than `published.json` (hazard 10). An entry appended to such a
log would take an offset that a better recovery needs, and would hide the fault. Only `advance_above`, an operator's
recovery, skips the guard.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

from l0gc.errors import NotInitialisedError, ObjectNotFoundError, UsageError
from l0gc.keys import DEFAULT_SHARDS, DEFAULT_TEMPLATE, KeyLayout
from l0gc.runtime import Runtime
from l0gc.storage.entry import Place
from l0gc.storage.log import SharedLog
from l0gc.storage.replica import Replica
from l0gc.streamlog.controller import entries
from l0gc.streamlog.controller.decisions import (
    NOT_GIVEN,
    RetentionSettings,
    check_cluster,
    check_no_external_log,
    decide_advance,
    decide_alter_defaults,
    decide_alter_topic,
    decide_bootstrap,
    decide_create_table,
    decide_create_topic,
    decide_init_producer,
    tick_is_due,
)
from l0gc.streamlog.controller.entries import ControllerMachine
from l0gc.streamlog.controller.state import (
    ALL_TOPICS,
    ControllerState,
    Pin,
    Producer,
    Retention,
    Topic,
    TopicTable,
)
from l0gc.streamlog.controller.value_schema import NOTHING_GIVEN, Numbers, ValueColumn, numbers_of
from l0gc.streamlog.format import Format, check_format, refuse_without_format, write_format

EPOCH_CACHE_S: Final = 10.0
EPOCH_INTERVAL_S: Final = 600.0


class Controller:
    """Reads and changes a cluster's controller log; several threads may use it."""

    def __init__(
        self,
        log: SharedLog,
        runtime: Runtime,
        *,
        expected_cluster_id: str | None = None,
        epoch_cache_s: float = EPOCH_CACHE_S,
        epoch_interval_s: float = EPOCH_INTERVAL_S,
        guard: Callable[[], object] | None = None,
        check_above: Callable[[int], object] | None = None,
        reserve: Callable[[Numbers], Numbers] = lambda numbers: NOTHING_GIVEN,
    ) -> None:
        """Create the handle without reading anything.

        Args:
            guard: raises if nothing may be appended; called only before an append.
            check_above: raises if an advance above the given epoch would leave the cluster epoch too low.
            reserve: see `publication.reserve_numbers`.
        """
        self._reserve = reserve
        self._check_above = check_above
        self._runtime = runtime
        self._guard = guard
        self._expected = expected_cluster_id
        self._epoch_cache_s = epoch_cache_s
        self._epoch_interval_ms = int(epoch_interval_s * 1000)
        self._looked_at: float | None = None
        self._store = log.store
        self._format: Format | None = None
        self.store_time = log.store_time
        self.replica = Replica(log, ControllerMachine(), runtime)

    # -- reading ------------------------------------------------------------------------------------------------------

    def snapshot(self) -> ControllerState:
        """Return a copy of the cluster's newest state, all of one epoch.

        Raises:
            NotInitialisedError: no cluster exists here.
            ClusterMismatchError: it is not the expected cluster.
        """
        with self.replica.lock:
            return self._catch_up_here().copy()

    @property
    def looked(self) -> bool:
        """Return whether this process has found the expected cluster here."""
        return self._looked_at is not None

    def began_ms(self, epoch: int) -> int | None:
        """Return the time of the entry that began an epoch, by the store's clock; None if the log no longer has it."""
        jump, log = self.replica.state.jump, self.replica.log
        if epoch < jump.epoch:
            return None  # the offsets of epochs before the last jump are forgotten
        offset = jump.offset + epoch - jump.epoch
        with suppress(ObjectNotFoundError):
            entry = log.get(offset)
            return None if log.is_re_created(offset) else entry.time_ms
        return None

    def epoch(self, at_least: int = -1) -> int:
        """Return the cluster epoch, at most a few seconds old; read it anew if the cached one is below `at_least`."""
        with self.replica.lock:
            fresh = (
                self._looked_at is not None
                and self._runtime.clock.monotonic() - self._looked_at < self._epoch_cache_s
                and self.replica.state.epoch >= at_least
            )
            if not fresh:
                self._catch_up_here()
            return self.replica.state.epoch

    def layout(self) -> KeyLayout:
        self.epoch()
        return KeyLayout(self.replica.state.key_template, self.replica.state.shards)

    def _catch_up(self) -> ControllerState:
        """Return the newest state; before the first reading, check that this l0gc supports the format."""
        if self._format is None:
            self._format = check_format(self._store)
        state = self.replica.catch_up()
        if self._format is None and state.epoch >= 0:  # the cluster was founded in the meantime, its format first
            self._format = check_format(self._store)
            if self._format is None:
                raise refuse_without_format()
        return state

    def _catch_up_here(self) -> ControllerState:
        state = self._catch_up()
        self._check(state)
        self._looked_at = self._runtime.clock.monotonic()
        return state

    def _check(self, state: ControllerState) -> None:
        if state.epoch < 0:
            raise NotInitialisedError(f"no l0gc cluster exists at {self._store.url}; run l0gc init first")
        check_cluster(state, self._expected)

    # -- changing -----------------------------------------------------------------------------------------------------

    def _propose(
        self,
        decide: Callable[[ControllerState], entries.ControllerEntry | None],
        *,
        initialised: bool = True,
        guarded: bool = True,
        reserve: Callable[[entries.ControllerEntry], object] = lambda entry: None,
    ) -> bool:
        """Append the entry that `decide` returns, after `reserve`, which may read the log; return whether one landed."""

        def decide_here(state: ControllerState) -> entries.ControllerEntry | None:
            if initialised:
                self._check(state)
                check_no_external_log(state)
            return decide(state)

        def reserved(state: ControllerState, offset: int) -> entries.ControllerEntry | None:
            if (entry := decide_here(state)) is not None:
                reserve(entry)
            return entry

        with self.replica.lock:
            state = self._catch_up()
            landed = False
            if (entry := decide_here(state)) is not None:
                self.replica.payload(entry)
                if not initialised:
                    self._format = write_format(self._store)
                if guarded and self._guard is not None:
                    self._guard()
                landed = self.replica.propose(reserved) is not None
            self._looked_at = self._runtime.clock.monotonic()
            return landed

    def _new_name(self) -> str:
        """Return a random UUID as 22 letters, as Kafka writes its topics' ids."""
        return base64.urlsafe_b64encode(self._runtime.random.getrandbits(128).to_bytes(16, "big")).decode()[:22]

    def bootstrap(
        self,
        shards: int | None = None,
        key_template: str | None = None,
        *,
        journals: int | None = None,
        external_log: bool = False,
    ) -> bool:
        """Create the cluster; return False if it exists. See `decide_bootstrap`."""
        new_id = self._expected or self._runtime.new_id()

        def decide(state: ControllerState) -> entries.Bootstrap | None:
            shard_count = shards if shards is not None else (state.shards or DEFAULT_SHARDS)
            template = key_template or (state.key_template if state.epoch >= 0 else DEFAULT_TEMPLATE)
            in_all = journals if journals is not None else (state.journals or entries.DEFAULT_JOURNALS)
            entry = entries.Bootstrap(new_id, shard_count, template, external_log or state.external_log, in_all)
            return decide_bootstrap(state, entry, self._expected)

        return self._propose(decide, initialised=False, guarded=False)

    def create_topic(
        self,
        name: str,
        partitions: int,
        journals: int | None = None,
        retention: RetentionSettings = NOT_GIVEN,
        columns: Sequence[ValueColumn] = (),
    ) -> tuple[Topic, bool]:
        """Return the topic, and whether this call created it. See `decide_create_topic`."""
        topic_id = self._new_name()
        with self.replica.lock:
            created = self._propose(
                lambda s: decide_create_topic(s, name, partitions, journals, topic_id, retention, columns)
            )
            return self.replica.state.topic(name), created

    def alter_topic(
        self,
        name: str,
        retention: RetentionSettings,
        columns: Sequence[ValueColumn] = (),
        confirmed: ControllerState | None = None,
    ) -> tuple[Topic, Topic | None]:
        """Return the altered topic, and its previous version if this call altered it. See `decide_alter_topic`.

        A new value schema's number and field ids are reserved before the entry is appended, so that a log restored from
        a backup does not assign them again.
        """
        given = self._reserve(NOTHING_GIVEN) if columns else NOTHING_GIVEN
        decided_on: list[Topic] = []

        def decide(state: ControllerState) -> entries.AlterTopic | None:
            entry = decide_alter_topic(state, name, retention, columns, given, confirmed)
            decided_on.append(state.topics[name])
            return entry

        def reserve(entry: entries.ControllerEntry) -> None:
            if columns and isinstance(entry, entries.AlterTopic) and entry.value_schema is not None:
                self._reserve(numbers_of(entry.value_schema))

        with self.replica.lock:
            altered = self._propose(decide, reserve=reserve)
            return self.replica.state.topic(name), decided_on[-1] if altered else None

    def alter_defaults(
        self, retention: RetentionSettings, confirmed: ControllerState | None = None
    ) -> tuple[Retention, bool]:
        """Return the cluster's altered retention, and whether this call altered it. See `decide_alter_defaults`."""
        with self.replica.lock:
            altered = self._propose(lambda s: decide_alter_defaults(s, retention, confirmed))
            state = self.replica.state
            return Retention(state.retention_ms, state.retention_bytes), altered

    def forget_topics(self, revisions: Iterable[int]) -> bool:
        """Forget deleted topics that have no open journal and no object left; return False if they are already
        forgotten.

        A journal with a topic that this log does not have suggests that this log was restored (hazard 10). So each
        journal of the topic must have closed it, and a journal never forgets that.
        """
        candidates = set(revisions)

        def decide(state: ControllerState) -> entries.ForgetTopics | None:
            deleted = sorted(candidates & {d.topic.revision for d in state.deleted})
            return entries.ForgetTopics(deleted) if deleted else None

        return self._propose(decide)

    def delete_topic(self, name: str, revision: int | None = None) -> Topic:
        """Delete the topic; its journals still need their `closed` entry.

        Raises:
            NotFoundError: it does not exist, or was deleted and created again during the call: the new one stays.
        """
        topics: list[Topic] = []

        def decide(state: ControllerState) -> entries.DeleteTopic:
            topics.append(state.topic(name, topics[0].revision if topics else revision))
            return entries.DeleteTopic(name, topics[0].revision)

        self._propose(decide)
        return topics[-1]

    def create_pin(
        self, name: str, ttl_ms: int, *, level_one: bool = False, why: str = "", topic: int = ALL_TOPICS
    ) -> Pin:
        """Create a pin that has not taken effect yet. See `CreatePin.check`."""
        self.tick_if_due()  # ends a pin of that name that is past its end
        with self.replica.lock:
            self._propose(lambda s: entries.CreatePin(name, ttl_ms, level_one, why, topic))
            return self.replica.state.pin(name)

    def pin_took_effect(self, pin: Pin, watermark: int, ends: Sequence[tuple[int, Place]]) -> Pin:
        """Record that a pin has taken effect, and return it. Raises `NotFoundError` if it has ended."""
        with self.replica.lock:
            self._propose(lambda s: entries.PinTookEffect(pin.name, pin.revision, watermark, list(ends)))
            return self.replica.state.pin(pin.name)

    def renew_pin(self, name: str, revision: int, ttl_ms: int) -> None:
        """Postpone a pin's end. Raises `NotFoundError` if it has ended."""
        self._propose(lambda s: entries.RenewPin(name, revision, ttl_ms))

    def delete_pin(self, name: str, revision: int | None = None) -> Pin:
        """Delete a pin, and return it as it was.

        Args:
            revision: delete only the pin of this revision; None for any.

        Raises:
            NotFoundError: it does not exist, or has ended, even if another pin now has its name.
        """
        pins: list[Pin] = []

        def decide(state: ControllerState) -> entries.DeletePin:
            pins.append(state.pin(name, pins[0].revision if pins else revision))
            return entries.DeletePin(name, pins[0].revision)

        self._propose(decide)
        return pins[-1]

    def create_table(self, table: TopicTable) -> None:
        self._propose(lambda s: decide_create_table(s, table))

    def drop_table(self, table: TopicTable) -> None:
        """End a topic's table, if it is this one."""
        entry = entries.DropTable(table.topic, table.revision)
        self._propose(lambda s: entry if s.tables.get(table.topic) == table else None)

    def advance(self, expected: int | None = None, caller: str = "") -> int:
        """Advance the epoch and return it. See `decide_advance`."""
        with self.replica.lock:
            self._propose(lambda s: decide_advance(s, expected, caller))
            return self.replica.state.epoch

    def advance_above(self, epoch: int) -> int:
        """Advance the epoch above `epoch` by one entry, and return it: an operator's recovery of a log that was set back.

        It skips the guard. Repeated, or called twice at the same time, it advances once.

        Raises:
            UsageError: too few epochs lie above it.
            EpochRegressionError: the cluster epoch would stay below a published epoch; nothing was written.
        """
        if self._check_above is not None:
            self._check_above(epoch)
        with self.replica.lock:
            self._propose(lambda s: entries.Tick(to=epoch + 1) if s.epoch <= epoch else None, guarded=False)
            return self.replica.state.epoch

    def tick_if_due(self) -> int:
        """Advance the epoch if that is due by the store's clock (see `tick_is_due`) or ends a pin; return the epoch."""

        def decide(state: ControllerState) -> entries.Tick | None:
            as_of_ms = self.replica.as_of_ms
            assert as_of_ms is not None
            due = tick_is_due(as_of_ms - state.time_ms, self._epoch_interval_ms)
            return entries.Tick() if due or any(p.end_ms <= as_of_ms for p in state.pins.values()) else None

        with self.replica.lock:
            self._propose(decide)
            return self.replica.state.epoch

    def init_producer(
        self,
        name: str,
        producer_id: int | None = None,
        epoch: int | None = None,
        run: str | None = None,
        *,
        above: int = -1,
    ) -> Producer:
        """Return the producer with its new epoch and run; a retry with the same id, epoch and run gets the same answer.

        See `decide_init_producer`. A new process has none of the three, so after a crash it bumps the epoch again,
        which is safe.

        Raises:
            UsageError: only some of the three are given.
        """
        if len({v is None for v in (producer_id, epoch, run)}) > 1:
            raise UsageError(
                f"give the id, epoch and run of an instance of producer {name!r}, or none of the three for a new one"
            )
        instance = (
            (producer_id, epoch, run) if producer_id is not None and epoch is not None and run is not None else None
        )
        new_run = self._new_name()

        def decide(state: ControllerState) -> entries.InitProducer | None:
            # Random, so that a log restored from a backup does not assign an id again.
            taken = {p.producer_id for p in state.producers.values()}
            while (new_id := self._runtime.random.randrange(entries.MAX_PRODUCER_ID)) in taken:
                pass
            return decide_init_producer(state, name, instance, new_id=new_id, new_run=new_run, above=above)

        with self.replica.lock:
            self._propose(decide)
            return self.replica.state.producers[name]

    def producer_is_current(self, producer_id: int, epoch: int, run: str) -> bool:
        """Return whether this run may begin at a journal without a record of it, according to the newest log and the
        store's clock.

        This is KIP-360's fencing of unknown producers; see `ControllerState.may_begin`.
        """
        with self.replica.lock:
            state = self._catch_up()
            as_of_ms = self.replica.as_of_ms
            assert as_of_ms is not None
            return state.may_begin(producer_id, epoch, run, self.store_time.settle(as_of_ms))
