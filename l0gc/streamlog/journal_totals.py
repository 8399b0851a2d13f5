"""Where the journals stand, for finding out cheaply whether M could move: a process that has read them asks what is new.

Nothing is decided by it but whether a run is worth starting: M is computed from journals that are read for that.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

import msgspec

from l0gc.errors import L0gcError
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.journal.summary import summary_of


class JournalTotals(NamedTuple):
    """`lowest` is where M could be, None if a journal cannot be read. `landed` stands for all that has landed so far."""

    lowest: int | None
    landed: int


def journal_totals(cluster: Cluster) -> JournalTotals:
    """As of now: other processes, executors among them, may have appended since this one read them."""
    state = cluster.controller.snapshot()
    try:
        cluster.parallel.map(lambda journal: cluster.journal(journal).catch_up(), state.journals_in_use())
    except L0gcError:
        return JournalTotals(None, -1)
    epochs: list[int] = [state.epoch]
    landed: list[tuple[int, int]] = []
    for journal in state.journals_in_use():
        runs = state.topics_of(journal)
        handle = cluster.journal(journal)
        with handle.replica.lock:
            known = handle.state
            summary = summary_of(journal, runs, known, handle.replica.offset)
            landed += [(t.revision, known.topic(t.revision).totals().records) for t, _ in runs]
        if summary.gc_epoch is not None:
            epochs.append(summary.gc_epoch)
    return JournalTotals(min(epochs), zlib.crc32(msgspec.msgpack.encode(sorted(landed))))
