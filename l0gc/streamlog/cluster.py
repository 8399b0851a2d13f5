"""One process's handles on a cluster: the store, the controller, and one handle for each partition that it touches.

Nothing is decided here; it is where the pieces are put together, so that commands, executors and tests do it alike.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from l0gc.keys import PartitionId
from l0gc.runtime import Runtime
from l0gc.storage.log import TRUNCATE_MIN_AGE_MS
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.parallel import Inline, Parallel
from l0gc.streamlog.controller.handle import EPOCH_CACHE_S, EPOCH_INTERVAL_S, Controller
from l0gc.streamlog.journal.handle import PartitionHandle


@dataclass
class Cluster:
    """The handles. Safe for use by several threads."""

    store: ObjectStore
    runtime: Runtime = field(default_factory=Runtime)
    parallel: Parallel = field(default_factory=Inline)
    expected_cluster_id: str | None = None
    epoch_cache_s: float = EPOCH_CACHE_S
    epoch_interval_s: float = EPOCH_INTERVAL_S
    truncate_min_age_ms: int = TRUNCATE_MIN_AGE_MS

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._partitions: dict[PartitionId, PartitionHandle] = {}
        self.controller = Controller(
            self.store,
            self.runtime,
            expected_cluster_id=self.expected_cluster_id,
            epoch_cache_s=self.epoch_cache_s,
            epoch_interval_s=self.epoch_interval_s,
            parallel=self.parallel,
            truncate_min_age_ms=self.truncate_min_age_ms,
        )

    def partition(self, partition: PartitionId) -> PartitionHandle:
        """The process's handle on a partition; always the same one, so that its threads share one fence."""
        with self._lock:
            if partition not in self._partitions:
                self._partitions[partition] = PartitionHandle(
                    partition,
                    self.store,
                    self.controller,
                    self.runtime,
                    parallel=self.parallel,
                    truncate_min_age_ms=self.truncate_min_age_ms,
                )
            return self._partitions[partition]
