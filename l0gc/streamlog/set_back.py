"""Accept a journal whose newest log is permanently lost: an operator's decision, which nothing here makes
automatically.

One entry in the older log accepts it as it is (`entries.SetBack`), at a fresh tick. Nothing lands below that tick from
then on, so no new data is at or below M. L1 objects stamped below it can no longer be listed, but do not count as orphans,
since the lost part may have listed them. M stays. Extents of the older log at or below M are lifted first. Until they are
in L1, M is not published, and nothing is deleted by it (`publication.check_set_back`).

After that, the log's end counts as above every earlier end, so the lost log is refused by name if it reappears.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from l0gc.errors import CorruptObjectError, LostWatermarkError, SetBackError, UsageError
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.watermark.publication import PublishedWatermark, check_set_back, ends_of, publish, refuse_if_behind
from l0gc.watermark.source import UnitSummary


def set_back(cluster: ClusterHandles, journal: int) -> str:
    """Return a sentence that states why a journal counts as set back.

    Raises:
        UsageError: it was not set back, or does not exist, so there is nothing to accept.
        CorruptObjectError: it cannot be read.
        EpochRegressionError, ClusterMismatchError: see `refuse_if_behind`.
    """
    return _looked_at(cluster, journal)[2]


def _looked_at(cluster: ClusterHandles, journal: int) -> tuple[PublishedWatermark, UnitSummary, str]:
    _, published = refuse_if_behind(cluster)
    unit = next(iter(cluster.units([journal], noted=ends_of(published))), None)
    if unit is None:
        raise UsageError(
            f"journal {journal} does not exist in this cluster; l0gc topic list --json shows which journals are in use"
        )
    if unit.error:
        raise CorruptObjectError(f"{unit.unit} cannot be read, so it cannot be accepted: {unit.error}")
    if published is not None:
        try:
            check_set_back(published, unit)
        except SetBackError as e:
            return published, unit, str(e)
    raise UsageError(f"{unit.unit} was not set back, according to published.json: there is nothing to accept")


def accept_set_back(cluster: ClusterHandles, journal: int) -> int:
    """Accept a journal that was set back; return the tick below which nothing lands there any more.

    If `published.json` is lost, its copy shows that the journal was set back. That loss is accepted separately and later,
    since no M is published while a journal is set back.

    Raises:
        See `set_back`.
        CorruptObjectError: the boundary belongs to the newer log.
    """
    published, unit, _ = _looked_at(cluster, journal)
    assert unit.end is not None
    handle = cluster.journal(journal)
    key, boundary = handle.replica.log.boundary.key, handle.replica.log.boundary.read()[0]
    if boundary > unit.end[1].offset + 1:
        raise CorruptObjectError(
            f"{key} belongs to the newer log: according to it, entries below {boundary} may be gone, and the last one is at "
            f"offset {unit.end[1].offset}. Restore it from the copy that the log came from, or move it elsewhere if that "
            "has none, and run this again"
        )
    epoch = cluster.controller.advance()
    times = max(end[0] for end in (unit.end, published.ends.get(unit.unit, unit.end))) + 1
    handle.accept_set_back(epoch, times)
    ends = {unit.unit: (times, handle.replica.end)}
    new = msgspec.structs.replace(published, cluster_epoch=epoch, ends=ends)
    with suppress(LostWatermarkError):  # the publication that accepts that loss includes this end
        publish(cluster.store, cluster.runtime, new, pins_as_of=published.pinned)  # M stays, whatever the pins hold
    return epoch
