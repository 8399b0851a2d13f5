"""A process's view of the cluster, and its way to change it.

The epoch may be served from a cache: a stale one costs a refused append and a second upload at worst, never safety, since
every partition decides admission against its own window. A snapshot that a watermark is computed from is never cached.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from l0gc.errors import NotInitialisedError, ObjectNotFoundError, TopicNotFoundError
from l0gc.keys import CONTROLLER_LOG, DEFAULT_SHARDS, DEFAULT_TEMPLATE, KeyLayout
from l0gc.runtime import Runtime
from l0gc.storage.log import TRUNCATE_MIN_AGE_MS, SharedLog
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.parallel import Parallel
from l0gc.storage.replica import Replica
from l0gc.streamlog.controller.state import (
    Bootstrap,
    ControllerEntry,
    ControllerMachine,
    ControllerState,
    DeleteTopic,
    Producer,
    Tick,
    Topic,
    check_cluster,
    check_no_external_log,
    decide_advance,
    decide_bootstrap,
    decide_create_topic,
    decide_init_producer,
)

EPOCH_CACHE_S: Final = 10.0
EPOCH_INTERVAL_S: Final = 600.0


class Controller:
    """The handle; safe for use by several threads."""

    def __init__(
        self,
        store: ObjectStore,
        runtime: Runtime,
        *,
        expected_cluster_id: str | None = None,
        epoch_cache_s: float = EPOCH_CACHE_S,
        epoch_interval_s: float = EPOCH_INTERVAL_S,
        parallel: Parallel | None = None,
        truncate_min_age_ms: int = TRUNCATE_MIN_AGE_MS,
    ) -> None:
        self._runtime = runtime
        self._expected = expected_cluster_id
        self._epoch_cache_s = epoch_cache_s
        self._epoch_interval_ms = int(epoch_interval_s * 1000)
        self._looked_at: float | None = None
        log = SharedLog(store, CONTROLLER_LOG, runtime, parallel=parallel, truncate_min_age_ms=truncate_min_age_ms)
        self.replica = Replica(log, ControllerMachine(), runtime)

    # -- reading ------------------------------------------------------------------------------------------------------

    def snapshot(self) -> ControllerState:
        """The cluster as the log has it now; a copy, all of one epoch.

        Raises:
            NotInitialisedError: there is no cluster here.
            ClusterMismatchError: it is another cluster than the expected one.
        """
        with self.replica.lock:
            state = self.replica.catch_up()
            self._check(state)
            self._looked_at = self._runtime.clock.monotonic()
            machine = ControllerMachine()
            return machine.decode(machine.encode(state), "the snapshot")

    @property
    def looked(self) -> bool:
        """Whether this process has seen that there is a cluster here, and that it is the expected one."""
        return self._looked_at is not None

    def began_ms(self, epoch: int) -> int | None:
        """When an epoch began, by the store's clock: the time of its entry; None where that is no longer in the log."""
        try:
            return self.replica.log.get(epoch).time_ms
        except ObjectNotFoundError:
            return None

    def epoch(self, at_least: int = -1) -> int:
        """The cluster epoch, perhaps as of a few seconds ago; looked up if the cached one is below `at_least`."""
        with self.replica.lock:
            fresh = (
                self._looked_at is not None
                and self._runtime.clock.monotonic() - self._looked_at < self._epoch_cache_s
                and self.replica.state.epoch >= at_least
            )
            if not fresh:
                self._check(self.replica.catch_up())
                self._looked_at = self._runtime.clock.monotonic()
            return self.replica.state.epoch

    def layout(self) -> KeyLayout:
        """The shape of this cluster's L0 keys."""
        self.epoch()
        return KeyLayout(self.replica.state.key_template, self.replica.state.shards)

    def _check(self, state: ControllerState) -> None:
        if state.epoch < 0:
            raise NotInitialisedError("there is no l0gc cluster under this URL; run l0gc init first")
        check_cluster(state, self._expected)

    # -- changing -----------------------------------------------------------------------------------------------------

    def _propose(
        self, decide: Callable[[ControllerState], ControllerEntry | None], *, initialised: bool = True
    ) -> bool:
        def encoded(state: ControllerState, offset: int) -> bytes | None:
            if initialised:
                self._check(state)
                check_no_external_log(state)
            entry = decide(state)
            return None if entry is None else msgspec.json.encode(entry)

        with self.replica.lock:
            self.replica.catch_up()
            landed = self.replica.propose(encoded) is not None
            self._looked_at = self._runtime.clock.monotonic()
            return landed

    def bootstrap(
        self,
        cluster_id: str | None = None,
        shards: int | None = None,
        key_template: str | None = None,
        *,
        external_log: bool = False,
    ) -> bool:
        """Found the cluster; False if it exists. See `decide_bootstrap`."""
        expected = self._expected if cluster_id is None else cluster_id
        new_id = expected or self._runtime.new_id()

        def decide(state: ControllerState) -> Bootstrap | None:
            wanted = shards if shards is not None else (state.shards or DEFAULT_SHARDS)
            template = key_template or (state.key_template if state.epoch >= 0 else DEFAULT_TEMPLATE)
            entry = Bootstrap(new_id, wanted, template, external_log or state.external_log)
            KeyLayout(entry.key_template, entry.shards)
            return decide_bootstrap(state, entry, expected)

        return self._propose(decide, initialised=False)

    def create_topic(self, name: str, partitions: int) -> tuple[Topic, bool]:
        """The topic, and whether it was created now. See `decide_create_topic`."""
        with self.replica.lock:
            created = self._propose(lambda s: decide_create_topic(s, name, partitions))
            return self.replica.state.topic(name), created

    def delete_topic(self, name: str) -> Topic:
        """Delete the topic; its partitions are then to be closed.

        Raises:
            TopicNotFoundError: there is none, or it was deleted meanwhile and created again: the new one stays.
        """
        topics: list[Topic] = []

        def decide(state: ControllerState) -> DeleteTopic:
            topics.append(state.topic(name))
            if topics[-1].revision != topics[0].revision:
                raise TopicNotFoundError(
                    f"topic {name!r} (revision {topics[0].revision}) was deleted meanwhile, and created again with "
                    f"revision {topics[-1].revision}; that one was left as it is"
                )
            return DeleteTopic(name, topics[-1].revision)

        self._propose(decide)
        return topics[-1]

    def advance(self, expected: int | None = None, caller: str = "") -> int:
        """Advance the epoch and return it. See `decide_advance`."""
        with self.replica.lock:
            self._propose(lambda s: decide_advance(s, expected, caller))
            return self.replica.state.epoch

    def tick_if_due(self) -> int:
        """Advance the epoch if its last change is older than the epoch interval, by the store's clock; returns it."""

        def decide(state: ControllerState) -> Tick | None:
            as_of_ms = self.replica.as_of_ms
            assert as_of_ms is not None
            return Tick() if as_of_ms - state.time_ms >= self._epoch_interval_ms else None

        with self.replica.lock:
            self._propose(decide)
            return self.replica.state.epoch

    def init_producer(self, name: str, producer_id: int | None = None, epoch: int | None = None) -> Producer:
        """The producer with its new epoch; a retry after a lost reply gives both and is answered alike.

        See `decide_init_producer`. A new process has neither, so what it does after a crash is another bump, which is safe.
        """
        with self.replica.lock:
            self._propose(lambda s: decide_init_producer(s, name, producer_id, epoch))
            return self.replica.state.producers[name]

    def producer_is_current(self, producer_id: int, epoch: int) -> bool:
        """Whether this run may begin at a partition that does not know it, as the log has it now, by the store's clock.

        KIP-360's unknown producer fencing; see `ControllerState.may_begin`.
        """
        with self.replica.lock:
            state = self.replica.catch_up()
            as_of_ms = self.replica.as_of_ms
            assert as_of_ms is not None
            return state.may_begin(producer_id, epoch, as_of_ms)
