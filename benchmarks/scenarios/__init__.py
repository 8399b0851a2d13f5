"""The benchmarks, by their names on the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from benchmarks.measure import Result
from benchmarks.scenarios import (
    basic,
    cores,
    journals,
    merges,
    rates,
    shared_l1,
    spark_source,
    sweep_beside,
    sweep_scale,
    sweep_throttled,
    tables,
    typed,
    watermark,
)
from benchmarks.setting import Setting

SCENARIOS: Final[dict[str, Callable[[Setting], Result]]] = {
    "upload": basic.upload,
    "reconcile": basic.reconcile,
    "memory": basic.memory,
    "cores": cores.cores,
    "startup": basic.startup,
    "journals-partitions": journals.partitions,
    "journals-idle": journals.idle,
    "journals-replay": journals.replay,
    "journals-rows": journals.rows,
    "journals-contention": journals.contention,
    "merges": merges.merges,
    "shared-l1": shared_l1.shared_l1,
    "scan-beside": watermark.scan_beside,
    "scan-far": watermark.scan_far,
    "engines": watermark.engines,
    "spark-executors": watermark.executors,
    "sweep-garbage": sweep_beside.garbage,
    "sweep-garbage-40k": sweep_beside.garbage_40k,
    "sweep-mostly-live": sweep_beside.mostly_live,
    "sweep-growth": sweep_scale.growth,
    "sweep-memory": sweep_scale.memory,
    "sweep-throttled": sweep_throttled.throttled,
    "sweep-far": sweep_throttled.far,
    "spark-read": spark_source.read,
    "spark-beside": spark_source.beside,
    "spark-shared": spark_source.shared,
    "spark-write": spark_source.write,
    "tables": tables.tables,
    "typed": typed.typed,
    "rates": rates.rates,
}


def describe() -> dict[str, str]:
    """Return each benchmark's name, and what it measures."""
    return {name: (f.__doc__ or "").strip().splitlines()[0] for name, f in SCENARIOS.items()}
