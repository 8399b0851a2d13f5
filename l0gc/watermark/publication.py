"""`published.json`: the watermark that sweeps use.

Changed by compare-and-swap only, and never lowered: a run that computed a lower one is slower or knows less, and is refused
(hazard 15). It carries the cluster id, so that a sweep never uses another cluster's (hazard 11), and the cluster epoch,
so that a controller log that was restored from a backup is found out at once, and not only once M is above it (hazard 10).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from l0gc.decoding import UNDECODABLE, json_decoder
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
from l0gc.watermark.compute import check_cluster_id, check_epochs
from l0gc.watermark.source import WAY_OUT, ClusterHandle, ClusterIdentity

_TRIES: Final = 20


class PublishedWatermark(msgspec.Struct, frozen=True):
    """What is published. `published_at_ms` is the store's clock; the counts are -1 where nothing was counted."""

    cluster_id: str
    watermark: int
    cluster_epoch: int
    published_at_ms: int
    eligible_objects: int = -1
    eligible_bytes: int = -1
    listed_objects: int = -1
    partitions: int = -1


_PUBLISHED: Final = json_decoder(PublishedWatermark)


def encode_published(published: PublishedWatermark) -> bytes:
    """What `published.json` holds: one changed digit must not let live objects go, so it carries a checksum."""
    return seal(PUBLISHED_WATERMARK, msgspec.json.encode(published))


def decode_published(body: bytes) -> PublishedWatermark:
    """Read `published.json`. Raises `CorruptObjectError` if it is not what was written."""
    try:
        return _PUBLISHED.decode(unseal(PUBLISHED_WATERMARK, body))
    except (CorruptObjectError, *UNDECODABLE) as e:
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


def check_published(cluster_epoch: int, published: PublishedWatermark | None, way_out: str = WAY_OUT) -> None:
    """Refuse when what is published is ahead of the cluster epoch, as it was read after it (hazard 10).

    Raises:
        EpochRegressionError: the cluster has forgotten epochs at which objects were uploaded, or deleted.
    """
    if published is not None:
        check_epochs(cluster_epoch, published.watermark, f"the watermark in {PUBLISHED_WATERMARK}", way_out)
        check_epochs(cluster_epoch, published.cluster_epoch, f"the cluster epoch in {PUBLISHED_WATERMARK}", way_out)


def refuse_if_behind(cluster: ClusterHandle) -> tuple[ClusterIdentity, PublishedWatermark | None]:
    """Refuse to admit or delete data where what is published is ahead of the cluster epoch (hazard 10).

    Data that was admitted there would lie at or below M, and go with the first sweep after the epoch has caught up; and
    what the controller gives out there, it has given out before.

    Where epochs come from an external log, its epoch is what was published with M. l0gc cannot read that log, and
    admits no data there; a log that went back is found out when M is computed next.

    Returns:
        The identity and what is published: the very ones that were compared.

    Raises:
        EpochRegressionError: it is.
        ClusterMismatchError: another cluster's watermark is published.
    """
    identity = cluster.identity()
    published, _ = read_published(cluster.store, identity.cluster_id)
    if published is None:
        return identity, None
    if identity.external_log:
        identity = identity._replace(cluster_epoch=published.cluster_epoch)  # it never goes down
    elif max(published.watermark, published.cluster_epoch) > identity.cluster_epoch:  # perhaps published since
        identity = cluster.identity()
    check_published(identity.cluster_epoch, published)
    return identity, published


def publish(
    store: ObjectStore,
    runtime: Runtime,
    new: PublishedWatermark,
    *,
    epoch_now: Callable[[], int] | None = None,
    way_out: str = WAY_OUT,
) -> PublishedWatermark | None:
    """Publish `new` and return what was published before. The cluster epoch that is published never goes down either.

    Args:
        epoch_now: reads the cluster epoch anew, for a run that meets the publication of a faster one.
        way_out: see `check_epochs`.

    Raises:
        WatermarkRegressionError: a higher watermark is published.
        ClusterMismatchError: another cluster's watermark is published.
        EpochRegressionError: what is published is ahead of the cluster epoch (hazard 10).
        StoreError: it changed under every try.
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
            if current.cluster_epoch > new.cluster_epoch and epoch_now is not None:
                new = msgspec.structs.replace(new, cluster_epoch=epoch_now())
            check_published(new.cluster_epoch, current, way_out)
            if current.watermark > new.watermark:
                raise WatermarkRegressionError(
                    f"computed M = {new.watermark}, but M = {current.watermark} is published, and it never goes down: "
                    "a faster run was first, or a journal was restored from a backup; the published one stays. Run it again"
                )
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
