"""`published.json`: the watermark that sweeps go by.

Changed by compare-and-swap only, and never lowered: whoever computed a lower one is slower or knows less, and is refused
(hazard 15). It carries the cluster id, so that a sweep never goes by another cluster's (hazard 11).
"""

from __future__ import annotations

from typing import Final

import msgspec

from l0gc.epoch import NO_WATERMARK
from l0gc.errors import (
    AmbiguousWriteError,
    CorruptObjectError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreError,
    WatermarkRegressionError,
)
from l0gc.keys import PUBLISHED_WATERMARK
from l0gc.runtime import Runtime
from l0gc.storage.checksum import seal, unseal
from l0gc.storage.objectstore import ObjectStore
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.controller.state import ControllerState
from l0gc.watermark.compute import check_cluster_id, check_epochs

_TRIES: Final = 20

THEIR_EPOCH: Final = f"the system whose epoch is recorded in {PUBLISHED_WATERMARK}"
EXTERNAL_LOG_BEHIND: Final = (
    "this snapshot is older than that, or the log it comes from was restored from a backup; nothing was published or "
    "deleted. Take a newer snapshot; if the log went back, stop sweeping and move its epoch up first"
)


class PublishedWatermark(msgspec.Struct, frozen=True):
    """What is published. `published_at_ms` is the store's clock; the counts are -1 where nothing was scanned."""

    cluster_id: str
    watermark: int
    cluster_epoch: int
    published_at_ms: int
    eligible_objects: int = -1
    eligible_bytes: int = -1
    listed_objects: int = -1


# Built at import, by one thread: msgspec learns a type at its first use, and two threads doing that at once crash it.
_PUBLISHED: Final = msgspec.json.Decoder(PublishedWatermark)


def encode_published(published: PublishedWatermark) -> bytes:
    """What `published.json` holds: one changed digit must not let live objects go, so it carries a checksum."""
    return seal(PUBLISHED_WATERMARK, msgspec.json.encode(published))


def decode_published(body: bytes) -> PublishedWatermark:
    """Read `published.json`. Raises `CorruptObjectError` if it is not what was written."""
    try:
        return _PUBLISHED.decode(unseal(PUBLISHED_WATERMARK, body))
    except (CorruptObjectError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        raise CorruptObjectError(
            f"{PUBLISHED_WATERMARK} cannot be read ({e}); remove it and run l0gc compute-watermark"
        ) from e


def read_published(store: ObjectStore, cluster_id: str) -> tuple[PublishedWatermark | None, str]:
    """What is published, and its ETag; (None, '') if nothing is.

    Raises:
        ClusterMismatchError: it is another cluster's.
        CorruptObjectError: it cannot be read.
    """
    try:
        stored = store.get(PUBLISHED_WATERMARK)
    except ObjectNotFoundError:
        return None, ""
    published = decode_published(stored.body)
    check_cluster_id(cluster_id, published.cluster_id, PUBLISHED_WATERMARK)
    return published, stored.etag


def watermark_of(published: PublishedWatermark | None) -> int:
    """M, or the watermark below every epoch."""
    return published.watermark if published is not None else NO_WATERMARK


def refuse_if_behind(cluster: Cluster) -> tuple[ControllerState, PublishedWatermark | None]:
    """Refuse to admit or delete data where the published M is above the cluster epoch (hazard 10).

    Data that was admitted there would lie at or below M, and go with the first sweep after the epoch has caught up.

    Where epochs come from another system's log, its epoch is what was told with the published watermark. l0gc cannot look
    at that log, and admits no data there; a log that went back is found out when M is computed next.

    Returns:
        The snapshot and what is published: the very ones that were compared.

    Raises:
        EpochRegressionError: it is.
        ClusterMismatchError: another cluster's watermark is published.
    """
    state = cluster.controller.snapshot()
    published, _ = read_published(cluster.store, state.cluster_id)
    if state.external_log and published is not None:
        state.epoch = published.cluster_epoch  # what the other system told last; it never goes down
    elif watermark_of(published) > state.epoch:  # perhaps published since the snapshot
        state = cluster.controller.snapshot()
    check_epochs(state.epoch, watermark_of(published), f"the watermark in {PUBLISHED_WATERMARK}")
    return state, published


def publish(
    store: ObjectStore, runtime: Runtime, new: PublishedWatermark, *, external_log: bool = False
) -> PublishedWatermark | None:
    """Publish `new` and return what was published before. The cluster epoch that is published never goes down either.

    Args:
        external_log: the cluster epoch is another system's; an older one than is published is refused, since what is published
            is all that l0gc knows of that system's past.

    Raises:
        WatermarkRegressionError: a higher watermark is published.
        ClusterMismatchError: another cluster's watermark is published.
        EpochRegressionError: the published watermark is above the cluster epoch (hazard 10).
    """
    before: PublishedWatermark | None = None
    unsure: PublishedWatermark | None = None
    for attempt in range(_TRIES):
        if attempt:
            runtime.clock.sleep(runtime.jitter(0.05 * attempt))
        current, etag = read_published(store, new.cluster_id)
        if current is not None and current == unsure:
            return before  # the try whose reply was lost has landed
        before = current
        if current is not None:
            check_epochs(new.cluster_epoch, current.watermark, f"the watermark in {PUBLISHED_WATERMARK}")
            if external_log:
                check_epochs(new.cluster_epoch, current.cluster_epoch, THEIR_EPOCH, EXTERNAL_LOG_BEHIND)
            if current.watermark > new.watermark:
                raise WatermarkRegressionError(
                    f"computed M = {new.watermark}, but M = {current.watermark} is published, and it never goes down: "
                    "a faster run was first, or reports were lost; the published one stays. Run it again"
                )
            new = msgspec.structs.replace(new, cluster_epoch=max(new.cluster_epoch, current.cluster_epoch))
        body = encode_published(new)
        try:
            if current is None:
                store.put_if_absent(PUBLISHED_WATERMARK, body)
            else:
                store.put_if_match(PUBLISHED_WATERMARK, body, etag)
        except AmbiguousWriteError:
            unsure = new
            continue
        except PreconditionFailedError:
            continue
        return current
    raise StoreError(f"{PUBLISHED_WATERMARK} changed under every one of {_TRIES} tries to publish; run it again")
