"""A process's view of the cluster, and its way to change it.

The epoch may be served from a cache: a stale one costs a refused append and a second upload at worst, never safety, since
every journal decides admission against its own window. A snapshot that a watermark is computed from is never cached.

Check first, write after. Nothing is appended before the decision, the entry's check and the guard have been asked. The guard
is given by the code that builds the handle. It refuses where the log went back behind what is published (hazard 10): an
entry there would take an offset that a better recovery needs, and hide that the log went back. Only `advance_above` does
without it, since that is how an operator recovers.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from l0gc.errors import NotInitialisedError, ObjectNotFoundError, UsageError
from l0gc.keys import DEFAULT_SHARDS, DEFAULT_TEMPLATE, KeyLayout
from l0gc.runtime import Runtime
from l0gc.storage.log import SharedLog
from l0gc.storage.replica import Replica
from l0gc.streamlog.controller import entries
from l0gc.streamlog.controller.decisions import (
    NOT_GIVEN,
    RetentionSettings,
    check_cluster,
    check_no_external_log,
    decide_advance,
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
    UNLIMITED,
    ControllerState,
    Pin,
    Producer,
    Retention,
    Topic,
    TopicTable,
)
from l0gc.streamlog.controller.value_schema import ValueColumn
from l0gc.streamlog.format import Format, check_format, refuse_without_format, write_format

EPOCH_CACHE_S: Final = 10.0
EPOCH_INTERVAL_S: Final = 600.0


class Controller:
    """The handle; safe for use by several threads."""

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
    ) -> None:
        """`guard` raises where nothing may be appended; it is called before an append, and only before one.

        `check_above` raises where advancing above an epoch would not be far enough.
        """
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
        """The cluster as the log has it now; a copy, all of one epoch.

        Raises:
            NotInitialisedError: no cluster exists here.
            ClusterMismatchError: it is not the expected cluster.
        """
        with self.replica.lock:
            return self._look_here().copy()

    @property
    def looked(self) -> bool:
        """Whether this process has seen that there is a cluster here, and that it is the expected one."""
        return self._looked_at is not None

    def began_ms(self, epoch: int) -> int | None:
        """When an epoch began, by the store's clock: the time of its entry; None where that is no longer in the log."""
        jump = self.replica.state.jump
        if epoch < jump.epoch:
            return None  # of an epoch before the last jump the offset is forgotten
        try:
            return self.replica.log.get(jump.offset + epoch - jump.epoch).time_ms
        except ObjectNotFoundError:
            return None

    def epoch(self, at_least: int = -1) -> int:
        """The cluster epoch, perhaps as of a few seconds ago; read anew if the cached one is below `at_least`."""
        with self.replica.lock:
            fresh = (
                self._looked_at is not None
                and self._runtime.clock.monotonic() - self._looked_at < self._epoch_cache_s
                and self.replica.state.epoch >= at_least
            )
            if not fresh:
                self._look_here()
            return self.replica.state.epoch

    def layout(self) -> KeyLayout:
        self.epoch()
        return KeyLayout(self.replica.state.key_template, self.replica.state.shards)

    def _look(self) -> ControllerState:
        """The state as the log has it now; before the first reading, whether this l0gc may read it at all."""
        if self._format is None:
            self._format = check_format(self._store)
        state = self.replica.catch_up()
        if self._format is None and state.epoch >= 0:  # the cluster was founded since, format first
            self._format = check_format(self._store)
            if self._format is None:
                raise refuse_without_format()
        return state

    def _look_here(self) -> ControllerState:
        state = self._look()
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
    ) -> bool:
        def decide_here(state: ControllerState, offset: int) -> entries.ControllerEntry | None:
            if initialised:
                self._check(state)
                check_no_external_log(state)
            return decide(state)

        with self.replica.lock:
            state = self._look()
            landed = False
            if (entry := decide_here(state, self.replica.offset + 1)) is not None:
                self.replica.payload(entry)
                if not initialised:
                    self._format = write_format(self._store)
                if guarded and self._guard is not None:
                    self._guard()
                landed = self.replica.propose(decide_here) is not None
            self._looked_at = self._runtime.clock.monotonic()
            return landed

    def _new_name(self) -> str:
        """A random UUID as 22 letters, as Kafka writes its topics' ids."""
        return base64.urlsafe_b64encode(self._runtime.random.getrandbits(128).to_bytes(16, "big")).decode()[:22]

    def bootstrap(
        self,
        shards: int | None = None,
        key_template: str | None = None,
        *,
        journals: int | None = None,
        external_log: bool = False,
    ) -> bool:
        """Found the cluster; False if it exists. See `decide_bootstrap`."""
        new_id = self._expected or self._runtime.new_id()

        def decide(state: ControllerState) -> entries.Bootstrap | None:
            wanted = shards if shards is not None else (state.shards or DEFAULT_SHARDS)
            template = key_template or (state.key_template if state.epoch >= 0 else DEFAULT_TEMPLATE)
            in_all = journals if journals is not None else (state.journals or entries.DEFAULT_JOURNALS)
            entry = entries.Bootstrap(new_id, wanted, template, external_log or state.external_log, in_all)
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
        """The topic, and whether it was created now. See `decide_create_topic`."""
        topic_id = self._new_name()
        with self.replica.lock:
            created = self._propose(
                lambda s: decide_create_topic(s, name, partitions, journals, topic_id, retention, columns)
            )
            return self.replica.state.topic(name), created

    def alter_topic(
        self, name: str, retention: RetentionSettings, columns: Sequence[ValueColumn] = ()
    ) -> tuple[Topic, bool]:
        """The topic as it is then, and whether it was altered now. See `decide_alter_topic`."""
        with self.replica.lock:
            altered = self._propose(lambda s: decide_alter_topic(s, name, retention, columns))
            return self.replica.state.topic(name), altered

    def alter_defaults(self, retention: RetentionSettings) -> tuple[Retention, bool]:
        """The cluster's retention as it is then, and whether it was altered now. Its default is unlimited."""

        def decide(state: ControllerState) -> entries.AlterDefaults | None:
            settings = state.retention_ms, state.retention_bytes
            ms, size = (UNLIMITED if value is None else value for value in retention.over(*settings))
            return None if (ms, size) == settings else entries.AlterDefaults(ms, size)

        with self.replica.lock:
            altered = self._propose(decide)
            state = self.replica.state
            return Retention(state.retention_ms, state.retention_bytes), altered

    def forget_topics(self, revisions: Iterable[int]) -> bool:
        """Forget deleted topics of which nothing is left in any journal, nor in the bucket; False if they are forgotten.

        What lands in a journal at a revision that this log does not know looks like a log that was restored (hazard 10). So
        each journal of the topic must have closed it, which it remembers for ever.
        """
        wanted = set(revisions)

        def decide(state: ControllerState) -> entries.ForgetTopics | None:
            known = sorted(wanted & {d.topic.revision for d in state.deleted})
            return entries.ForgetTopics(known) if known else None

        return self._propose(decide)

    def delete_topic(self, name: str) -> Topic:
        """Delete the topic; its journals still need their `closed` entry.

        Raises:
            NotFoundError: it does not exist, or was deleted and created again during the call: the new one stays.
        """
        topics: list[Topic] = []

        def decide(state: ControllerState) -> entries.DeleteTopic:
            topics.append(state.topic(name, topics[0].revision if topics else None))
            return entries.DeleteTopic(name, topics[0].revision)

        self._propose(decide)
        return topics[-1]

    def create_pin(
        self, name: str, ttl_ms: int, *, level_one: bool = False, why: str = "", topic: int = ALL_TOPICS
    ) -> Pin:
        """Create a pin, which has not taken effect. See `CreatePin.check`."""
        self.tick_if_due()  # a pin of that name that is past its end has then ended
        with self.replica.lock:
            self._propose(lambda s: entries.CreatePin(name, ttl_ms, level_one, why, topic))
            return self.replica.state.pin(name)

    def pin_took_effect(self, pin: Pin, watermark: int, ends: Sequence[tuple[int, int]]) -> Pin:
        """Record that a pin has taken effect, and return it. Raises `NotFoundError`: it has ended."""
        with self.replica.lock:
            self._propose(lambda s: entries.PinTookEffect(pin.name, pin.revision, watermark, list(ends)))
            return self.replica.state.pin(pin.name)

    def renew_pin(self, name: str, revision: int, ttl_ms: int) -> None:
        """Move a pin's end on. Raises `NotFoundError`: it has ended."""
        self._propose(lambda s: entries.RenewPin(name, revision, ttl_ms))

    def delete_pin(self, name: str, revision: int | None = None) -> Pin:
        """Delete a pin, and return it as it was.

        Args:
            revision: the only one of that name that is meant; None for any.

        Raises:
            NotFoundError: it does not exist, or has ended, also if another pin has its name now.
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
        """Have a topic kept as a table no more; nothing, if it is not."""
        known = entries.DropTable(table.topic, table.revision)
        self._propose(lambda s: known if s.tables.get(table.topic) == table else None)

    def advance(self, expected: int | None = None, caller: str = "") -> int:
        """Advance the epoch and return it. See `decide_advance`."""
        with self.replica.lock:
            self._propose(lambda s: decide_advance(s, expected, caller))
            return self.replica.state.epoch

    def advance_above(self, epoch: int) -> int:
        """Advance the epoch above `epoch`, by one entry, and return it: an operator's recovery of a log that went back.

        No guard is asked. If repeated, or done by two at the same time, it advances once.

        Raises:
            UsageError: too few epochs lie above it.
            EpochRegressionError: it would leave the cluster behind what is published; nothing was written.
        """
        if self._check_above is not None:
            self._check_above(epoch)
        with self.replica.lock:
            self._propose(lambda s: entries.Tick(to=epoch + 1) if s.epoch <= epoch else None, guarded=False)
            return self.replica.state.epoch

    def tick_if_due(self) -> int:
        """Advance the epoch if that is due by the store's clock (see `tick_is_due`), or ends a pin; returns it."""

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
        """The producer with its new epoch and run; a retry after a lost reply gives all three and is answered alike.

        See `decide_init_producer`. A new process has none, so what it does after a crash is another bump, which is safe.

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
            # Random, so that a log that was restored from a backup gives no id a second time.
            taken = {p.producer_id for p in state.producers.values()}
            while (new_id := self._runtime.random.randrange(entries.MAX_PRODUCER_ID)) in taken:
                pass
            return decide_init_producer(state, name, instance, new_id=new_id, new_run=new_run, above=above)

        with self.replica.lock:
            self._propose(decide)
            return self.replica.state.producers[name]

    def producer_is_current(self, producer_id: int, epoch: int, run: str) -> bool:
        """Whether this run may begin at a journal that does not know it, as the log has it now, by the store's clock.

        KIP-360's unknown producer fencing; see `ControllerState.may_begin`.
        """
        with self.replica.lock:
            state = self._look()
            as_of_ms = self.replica.as_of_ms
            assert as_of_ms is not None
            return state.may_begin(producer_id, epoch, run, self.store_time.settle(as_of_ms))
