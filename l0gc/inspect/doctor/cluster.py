"""Checks of the cluster that is in the bucket, if one is there."""

from __future__ import annotations

from collections.abc import Iterator

from l0gc.errors import NotInitialisedError, SafetyError
from l0gc.inspect.doctor.checkup import Check, failure, ok, warning
from l0gc.streamlog.cluster import Cluster
from l0gc.watermark.publication import read_published, watermark_of


def cluster(handles: Cluster) -> Iterator[Check]:
    """Whether there is one, and whether M and its epoch fit together (hazards 10 and 11)."""
    try:
        state = handles.controller.snapshot()
    except NotInitialisedError:
        yield warning("cluster", "there is none here yet", "l0gc init")
        return
    n = len(state.topics)
    topics = f"{n} topic{'' if n == 1 else 's'}"
    log = "the log of another system" if state.external_log else f"epoch {state.epoch}, {topics}"
    yield ok("cluster", f"{state.cluster_id}, {log}, {state.shards} shards")
    try:
        published, _ = read_published(handles.store, state.cluster_id)
    except SafetyError as e:
        yield failure("watermark", str(e), "stop sweeps until it is known who wrote it")
        return
    # Of another system's log the epoch that it told last is all that is known; it is published beside M.
    epoch = published.cluster_epoch if state.external_log and published is not None else state.epoch
    if watermark_of(published) > epoch:
        yield failure(
            "watermark",
            f"M = {watermark_of(published)} is above the cluster epoch {epoch}",
            "the controller log is older than M: restore the newest one (docs/operations.md)",
        )
    elif published is None:
        yield ok("watermark", "nothing is published yet")
    else:
        yield ok("watermark", f"M = {published.watermark}")
