"""Measures many partitions with few records each: `shared_l1.py round PARTITIONS`, or `shared_l1.py history PARTITIONS
ROUNDS`.

The environment names the cluster. `round` uploads ten records of 100 bytes for each partition, reconciles them and
reads them all; `history` does so round after round, with a merge after each. Prints, as JSON, the requests and the
bytes of each step, counted at the store, and the CPU time.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import l0gc
from l0gc.keys import L1_DATA

RECORDS: Final = 10
_KINDS: Final = ("view", "click", "buy")
_CALLS: Final = {
    "get": ("get", "get_ranges", "head"), "put": ("put", "put_bulk", "put_file", "put_if_absent", "put_if_match"),
}  # fmt: skip


class Counted:
    """Counts a store's requests by kind, and the PUTs and bytes of L1."""

    def __init__(self, store: Any) -> None:
        self.requests: Counter[str] = Counter()
        for kind, methods in _CALLS.items():
            for name in methods:
                setattr(store, name, self._counting(kind, getattr(store, name)))

    def _counting(self, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(key: str, *arguments: Any) -> Any:
            self.requests[kind] += 1
            if kind == "put" and key.startswith(L1_DATA):
                body = arguments[0]
                self.requests["l1_puts"] += 1
                self.requests["l1_bytes"] += len(body) if isinstance(body, bytes) else body.stat().st_size
            return call(key, *arguments)

        return counted

    def taken(self) -> dict[str, int]:
        """Return what was counted since the last call."""
        found = dict(self.requests)
        self.requests.clear()
        return found


def main(what: str, partitions: int, rounds: int = 1) -> dict[str, Any]:
    """Upload, reconcile, merge and read."""
    chance = random.Random(1)
    steps: dict[str, Counter[str]] = {"reconcile": Counter(), "merge": Counter(), "read": Counter()}
    cpu = dict.fromkeys(steps, 0.0)
    with l0gc.open(os.environ["L0GC_URL"]) as cluster:
        cluster.init(journals=1)
        topic = cluster.topics.create("events", partitions)
        counted = Counted(cluster.handles().store)

        def step(name: str, do: Callable[[], object]) -> None:
            counted.taken()
            began = time.process_time()
            do()
            cpu[name] += time.process_time() - began
            steps[name].update(counted.taken())

        for n in range(rounds):
            values = [_value(chance, n * RECORDS * partitions + i) for i in range(RECORDS * partitions)]
            cluster.upload("events", values)
            step("reconcile", cluster.reconcile)
            if what == "history":
                step("merge", cluster.merge)
        step("read", lambda: sum(1 for _ in cluster.read("events")))
        listed = cluster.handles().journal(0).state.topics[topic.revision].totals()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {"steps": steps, "cpu_seconds": cpu, "memory_mib": memory, "l1_objects": listed.l1_objects}


def _value(chance: random.Random, n: int) -> bytes:
    fields = {"id": n, "user": chance.randrange(10**6), "kind": chance.choice(_KINDS), "price": chance.randrange(10**4)}
    return json.dumps(fields).encode().ljust(100)[:100]


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], *(int(a) for a in sys.argv[2:]))))
