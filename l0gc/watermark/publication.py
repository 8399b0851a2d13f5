"""`published.json`: the watermark that sweeps use.

It is changed only by compare-and-swap, and M is never lowered. A run whose M is lower than the M published when it
began has older data, and is refused (hazard 15). A run whose M is lower than an M published since is only slower, and
publishes nothing. The file contains the cluster id, so that a sweep never uses another cluster's M (hazard 11). It
contains the cluster epoch, so that a controller log restored from a backup is detected at once, and not only if M is
above its epoch (hazard 10).

It also records where the log of each unit (a journal, or the controller log) ended when it was read. A unit was set
back to an older copy if its log no longer has that entry, or if the unit may still need an epoch that M covers. It has
lost entries on which others relied when they deleted objects (hazard 38). Every operation that deletes, commits or
advances calls `refuse_if_set_back`. A log only grows, and `published.json` is read before the logs, so a log that was
not set back is never refused.

It also records the epoch of the newest pin. A computation that read the pins before that pin was created is refused,
since its M may be above the epoch that the pin holds (hazard 36). `require_seen` raises this epoch before the pin takes
effect.

After each publication, a copy is written to the controller's folder. If `published.json` is gone, everything is
compared with the copy, nothing is deleted, and the file is not replaced until an operator accepts the loss: everything
published since the copy is lost, including where logs ended (hazard 38).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

import msgspec

from l0gc.decoding import UNDECODABLE
from l0gc.epoch import NO_WATERMARK
from l0gc.errors import (
    AmbiguousWriteError,
    ClusterMismatchError,
    CorruptObjectError,
    EpochRegressionError,
    LostWatermarkError,
    PinnedSinceError,
    PreconditionFailedError,
    SafetyError,
    SetBackError,
    StoreError,
    UsageError,
    fault_of,
)
from l0gc.formatting import count, moment
from l0gc.keys import PUBLISHED_COPY, PUBLISHED_WATERMARK
from l0gc.runtime import Runtime
from l0gc.storage.entry import seal, unseal
from l0gc.storage.objectstore import ObjectStore, if_there
from l0gc.watermark.compute import check_cluster_id, check_epochs
from l0gc.watermark.source import CONTROLLER_REMEDY, ClusterIdentity, ClusterView, LogEnd, UnitSummary

HISTORY_STEP_MS: Final = 600_000
"""The minimum time between remembered publications."""
_TRIES: Final = 20
_SET_BACK: Final = (
    "it was set back to an older copy, and has forgotten what it named since; nothing was written or deleted. Put its "
    "newest log back, or see l0gc help operate-logs"
)


class PublishedWatermark(msgspec.Struct, frozen=True):
    """The content of `published.json`.

    Attributes:
        cluster_id: The cluster.
        watermark: M. Never decreases.
        cluster_epoch: The cluster epoch, read after everything that M was computed from. Never decreases.
        published_at_ms: When M was published, by the store's clock. A writer may be suspended before it writes, so
            readers use the time at which the store received the file if that is later.
        eligible_objects: The number of eligible objects in the listing; -1 if no listing was read.
        eligible_bytes: Their size.
        listed_objects: The number of all objects in the listing.
        partitions: The number of partitions from which M was computed; -1 if unknown.
        ends: For each unit, by its name (`journal 3`), `[accepted, [offset, id]]`: how often its log was set back and
            accepted, and the place of the last entry read. The pair `(accepted, offset)` never decreases.
        pinned: The epoch of the newest pin that holds M; -1 if there was never one. A publisher must have read the pins
            at that epoch or later. Never decreases.
        given: The highest number of a value schema, and the highest field id, that a topic may have received after its
            creation. They never decrease.
        history: Older values of M, oldest first, each as `[M, when it was first published]`, more sparsely the older
            they are. `sweep --grace` reads it.
    """

    cluster_id: str
    watermark: int
    cluster_epoch: int
    published_at_ms: int
    eligible_objects: int = -1
    eligible_bytes: int = -1
    listed_objects: int = -1
    partitions: int = -1
    ends: dict[str, LogEnd] = {}
    pinned: int = -1
    history: list[tuple[int, int]] = []
    given: tuple[int, int] = (0, 0)


_PUBLISHED: Final = msgspec.json.Decoder(PublishedWatermark)


def encode_published(published: PublishedWatermark, key: str = PUBLISHED_WATERMARK) -> bytes:
    """Return the content of `published.json`, with a checksum, so that a changed digit cannot release live objects."""
    return seal(key, msgspec.json.encode(published))


def decode_published(body: bytes, key: str = PUBLISHED_WATERMARK) -> PublishedWatermark:
    """Decode `published.json` or its copy. Raises `CorruptObjectError` if it was changed."""
    try:
        return _PUBLISHED.decode(unseal(key, body))
    except (CorruptObjectError, *UNDECODABLE) as e:
        also = "" if key == PUBLISHED_WATERMARK else f", or {PUBLISHED_WATERMARK}, which is gone,"
        raise CorruptObjectError(
            f"{key} cannot be read ({fault_of(e, key)}); restore it{also} from a version or a backup. If there is none, run "
            "l0gc compute-watermark --accept-lost; a log that was set back before then may no longer be noticed"
        ) from e


def read_published(store: ObjectStore, cluster_id: str) -> tuple[PublishedWatermark | None, str]:
    """Return the content of `published.json` and its ETag; (None, '') if M was never published. If the file is gone,
    return its copy and an empty ETag.

    Raises:
        ClusterMismatchError: the file belongs to another cluster.
        CorruptObjectError: the file cannot be read.
    """
    published, etag = read_any(store)
    if published is not None:
        check_cluster_id(cluster_id, published.cluster_id, PUBLISHED_WATERMARK)
    return published, etag


def read_any(store: ObjectStore) -> tuple[PublishedWatermark | None, str]:
    """Return the same as `read_published` before the cluster is known. The caller compares the cluster ids."""
    copy = None
    for _ in range(2):  # the copy is written second, so the first publication may have happened between two reads
        stored = if_there(store.get, PUBLISHED_WATERMARK)
        if stored is not None:
            return _as_stored(decode_published(stored.body), stored.modified_ms), stored.etag
        copy = copy or if_there(store.get, PUBLISHED_COPY)
        if copy is None:
            return None, ""
    assert copy is not None
    return _as_stored(decode_published(copy.body, PUBLISHED_COPY), copy.modified_ms), ""


def _as_stored(published: PublishedWatermark, stored_ms: int) -> PublishedWatermark:
    return msgspec.structs.replace(published, published_at_ms=max(published.published_at_ms, stored_ms))


def lost(published: PublishedWatermark | None, etag: str) -> str:
    """Return a sentence about the loss if `read_any` returned the copy of a lost `published.json`; otherwise an empty
    text.
    """
    if published is None or etag:
        return ""
    return (
        f"{PUBLISHED_WATERMARK} is lost. Its copy of {moment(published.published_at_ms)} has M = {published.watermark} and "
        f"where {count(len(published.ends), 'log')} ended; a log that was set back to a later state is no longer noticed"
    )


def refuse_if_lost(published: PublishedWatermark | None, etag: str) -> None:
    """Refuse to delete or publish without `published.json`. The arguments are the result of `read_any`.

    Raises:
        LostWatermarkError: `published.json` is lost.
    """
    if loss := lost(published, etag):
        raise LostWatermarkError(
            f"{loss}. Nothing was deleted or published: restore it from a version or a backup, or make sure that no journal "
            "was restored from a backup, and run l0gc compute-watermark --accept-lost (l0gc help operate-logs)"
        )


def what_is_lost(cluster: ClusterView) -> str:
    """Return a sentence about the loss; an empty text if this cluster has never published anything.

    Raises:
        UsageError: `published.json` exists and is usable.
    """
    cluster_id = cluster.identity().cluster_id
    try:
        published, etag = read_published(cluster.store, cluster_id)
    except (CorruptObjectError, ClusterMismatchError) as e:
        copy, _ = _usable(cluster.store, PUBLISHED_COPY, cluster_id)
        instead = "no usable copy exists" if copy is None else lost(copy, "").partition(". ")[2]
        return f"{PUBLISHED_WATERMARK} is not usable: {str(e).partition(';')[0]}; {instead}"
    if etag:
        raise UsageError(f"{PUBLISHED_WATERMARK} exists: run l0gc compute-watermark without --accept-lost")
    return lost(published, etag)


def replace_unusable(cluster: ClusterView) -> None:
    """Replace a `published.json` that is damaged or belongs to another cluster with the copy, after an operator
    accepted the loss.

    The operator thus need not delete the file, and M never falls below the copy's. If the copy is not usable either,
    the new file has no M, and the next computation begins anew. A file that was restored in the meantime stays.

    Raises:
        StoreError: it changed in the meantime.
    """
    identity, store = cluster.identity(), cluster.store
    published, etag = _usable(store, PUBLISHED_WATERMARK, identity.cluster_id)
    copy, copied = _usable(store, PUBLISHED_COPY, identity.cluster_id)
    if published is not None or not (etag or copied) or (copy is not None and not etag):
        return
    new = copy or PublishedWatermark(identity.cluster_id, NO_WATERMARK, identity.cluster_epoch, cluster.now_ms())
    try:
        if etag:
            store.put_if_match(PUBLISHED_WATERMARK, encode_published(new), etag)
        else:
            store.put_if_absent(PUBLISHED_WATERMARK, encode_published(new))
    except PreconditionFailedError as e:
        raise StoreError(f"{PUBLISHED_WATERMARK} changed since it was read; run the command again") from e


def _usable(store: ObjectStore, key: str, cluster_id: str) -> tuple[PublishedWatermark | None, str]:
    """Return the content of `published.json` or its copy (None if it is not usable), and its ETag (empty if it is
    gone).
    """
    stored = if_there(store.get, key)
    if stored is None:
        return None, ""
    try:
        published = decode_published(stored.body, key)
        check_cluster_id(cluster_id, published.cluster_id, key)
    except (CorruptObjectError, ClusterMismatchError):
        return None, stored.etag
    return published, stored.etag


def watermark_of(published: PublishedWatermark | None) -> int:
    """Return M; the watermark below every epoch if none is published."""
    return published.watermark if published is not None else NO_WATERMARK


def ends_of(published: PublishedWatermark | None) -> Mapping[str, LogEnd]:
    """Return where the logs ended when M was published."""
    return {} if published is None else published.ends


def watermark_at(published: PublishedWatermark | None, time_ms: int) -> int:
    """Return the M that was published at a time of the store's clock, or a lower one, since the history is thinned out.

    M only grows, so an object at or below it was already garbage then.
    """
    if published is None:
        return NO_WATERMARK
    publications = [*published.history, (published.watermark, published.published_at_ms)]
    return max((m for m, at_ms in publications if at_ms <= time_ms), default=NO_WATERMARK)


def remembered(current: PublishedWatermark, now_ms: int) -> list[tuple[int, int]]:
    """Return the history that the next publication takes over from `current`: when each M was first published.

    The history thins out with age, so that it grows with the logarithm of time: the last publication in each span
    stays. A span is `HISTORY_STEP_MS` long or, if that is more, up to an eighth of the age. A missing publication only
    makes `watermark_at` return a lower M.
    """
    history = list(current.history)
    if not history or history[-1][0] != current.watermark:
        history.append((current.watermark, current.published_at_ms))
    last = dict[int, tuple[int, int]]()
    for m, at_ms in history:
        step_ms = HISTORY_STEP_MS
        while 16 * step_ms <= now_ms - at_ms:
            step_ms *= 2
        last[at_ms - at_ms % step_ms] = m, at_ms
    return list(last.values())


def check_published(cluster_epoch: int, published: PublishedWatermark | None, remedy: str = CONTROLLER_REMEDY) -> None:
    """Refuse if the published epochs, which were read before the cluster epoch, are above it (hazard 10).

    Raises:
        EpochRegressionError: the cluster has lost epochs at which objects were uploaded or deleted.
    """
    if published is not None:
        check_epochs(cluster_epoch, published.watermark, f"the watermark in {PUBLISHED_WATERMARK}", remedy)
        check_epochs(cluster_epoch, published.cluster_epoch, f"the cluster epoch in {PUBLISHED_WATERMARK}", remedy)


def refuse_if_not_above(cluster: ClusterView, epoch: int) -> None:
    """Refuse to advance the cluster epoch to one above `epoch` if the published epoch would still be ahead.

    Raises:
        EpochRegressionError: the published epoch would still be ahead, so everything up to it would be refused.
    """
    published, _ = read_published(cluster.store, cluster.identity().cluster_id)
    highest = -1 if published is None else max(published.watermark, published.cluster_epoch)
    if highest > epoch + 1:
        raise EpochRegressionError(
            f"--above {epoch} is too low: {PUBLISHED_WATERMARK} has epoch {highest}, and everything up to it is "
            f"refused. Nothing was written; give the highest epoch in the bucket (l0gc help operate-logs "
            f"shows how to find it)"
        )


def refuse_if_behind(cluster: ClusterView) -> tuple[ClusterIdentity, PublishedWatermark | None]:
    """Refuse to admit or delete data if the published epochs are above the cluster epoch (hazard 10).

    Data admitted at the cluster epoch would be at or below M, and the first sweep after the epoch has caught up would
    delete it. The controller would also assign ids that it has assigned before.

    With an external log, the epoch is the one published with M. l0gc cannot read that log, and admits no data; the next
    computation of M detects a log that was set back.

    Returns:
        The identity and the content of `published.json`, exactly as they were compared.

    Raises:
        EpochRegressionError: a published epoch is above the cluster epoch.
        ClusterMismatchError: another cluster's watermark is published.
    """
    return _refuse_if_behind(cluster, read_any(cluster.store)[0])


def _refuse_if_behind(
    cluster: ClusterView, published: PublishedWatermark | None
) -> tuple[ClusterIdentity, PublishedWatermark | None]:
    identity = cluster.identity()
    if published is None:
        return identity, None
    check_cluster_id(identity.cluster_id, published.cluster_id, PUBLISHED_WATERMARK)
    if identity.external_log:
        identity = identity._replace(cluster_epoch=published.cluster_epoch)  # it never decreases
    check_published(identity.cluster_epoch, published)
    check_controller(cluster, published)
    return identity, published


def check_controller(cluster: ClusterView, published: PublishedWatermark) -> None:
    """Refuse if the controller log, as of the last `identity`, does not have the entry at which M was published.

    Its epoch alone does not show this, since a log that was set back can grow past the published epoch.

    Raises:
        EpochRegressionError: the log was set back, and no operator has since advanced its epoch above the lost epochs.
    """
    if (log := cluster.controller_unit(published.ends)) is not None and log.rewritten:
        raise EpochRegressionError(
            f"{log.unit} has another entry than the one at which M was published, though it has grown past it: "
            f"{CONTROLLER_REMEDY}"
        )


def check_set_back(published: PublishedWatermark | None, unit: UnitSummary, *, by_m: bool = False) -> None:
    """Refuse a unit that was set back to an older copy of its log (hazard 38). The unit was read after `published`.

    A unit that an operator accepted may have extents at or below M that its newer log had lifted. The unit continues to
    work, but deletions and publications by M wait until these extents are in L1 again.

    Args:
        by_m: whether the caller deletes or publishes by M.

    Raises:
        SetBackError: the unit was set back.
    """
    if published is None or unit.end is None:
        return
    before = published.ends.get(unit.unit, unit.end)
    if _order(unit.end) < _order(before):
        raise SetBackError(f"{unit.unit} {_end(unit.end)}, and {_end(before)} when it was read before: {_SET_BACK}")
    if unit.rewritten and unit.end[0] == before[0]:
        raise SetBackError(
            f"{unit.unit} has another entry at offset {before[1].offset} than when it was read before: {_SET_BACK}"
        )
    needed = unit.gc_epoch
    if needed is None or needed >= published.watermark:
        return
    needs = f"{unit.unit} may still need epoch {needed + 1}, though M = {published.watermark} is published"
    if not unit.end[0]:
        raise SetBackError(f"{needs}: {_SET_BACK}")
    if by_m:
        raise SetBackError(
            f"{needs}: it was set back, and accepted as it was. Nothing is published or deleted by M until its records are "
            "in L1 again: run l0gc reconcile first"
        )


def _order(end: LogEnd) -> tuple[int, int]:
    return end[0], end[1].offset


def _end(end: LogEnd) -> str:
    accepted, (offset, _) = end
    ends = f"ended at offset {offset}" if offset >= 0 else "was empty"
    return f"{ends} after it was accepted {accepted} times" if accepted else ends


class LogCheck(NamedTuple):
    """The confirmation that no log was set back. `unread` has the error of each unit that could not be read and
    checked.
    """

    identity: ClusterIdentity
    published: PublishedWatermark | None
    unread: dict[str, str]


def refuse_if_set_back(
    cluster: ClusterView,
    units: Collection[int] | None = None,
    *,
    keep: bool = True,
    by_m: bool = False,
    names: bool = False,
    deletes: bool = False,
) -> LogCheck:
    """Refuse to delete, commit or advance anything if the controller log or the log of a unit was set back.

    The caller must skip a unit that cannot be read, even if it becomes readable later: nothing may be committed to it,
    and none of its objects counts as an orphan. If the process keeps the unit's state, nothing lands there. M allows
    deletions in all units, so for these each unit must be readable, or be known as damaged, which holds M.

    Args:
        units: the only units that the caller changes; by default, any unit.
        keep: see `ClusterView.units`.
        by_m: see `check_set_back`.
        names: whether the caller permanently assigns names by the next epoch. No unit may have seen that epoch, since
            the name would then already belong to something in the lost, newer controller log.
        deletes: whether the caller deletes data objects, for which `published.json` must not be lost.

    Raises:
        LostWatermarkError: the caller `deletes`, and `published.json` is lost.
        EpochRegressionError, ClusterMismatchError: see `refuse_if_behind`.
        EpochRegressionError: the caller `names`, and a unit has seen an epoch that the cluster has not reached.
        SetBackError: a unit was set back.
        StoreError: the caller deletes by M, and an error of the store kept a unit from being read.
    """
    stored = read_any(cluster.store)
    identity, published = _refuse_if_behind(cluster, stored[0])
    if deletes:
        refuse_if_lost(*stored)
    unread: dict[str, str] = {}
    noted = ends_of(published)
    for unit in cluster.units(units, keep=keep, noted=noted) if published is not None or names else ():
        if unit.error:
            unread[unit.unit] = f"{unit.unit} cannot be read: {unit.error}"
        if names and unit.highest_epoch > identity.cluster_epoch:  # unless that epoch has begun since
            check_epochs(cluster.identity().cluster_epoch, unit.highest_epoch, unit.highest_in)
        if by_m and unit.error and not unit.damaged:
            raise StoreError(f"it is unknown whether {unit.unit} was set back: {unit.error}; nothing was deleted")
        check_set_back(published, unit, by_m=by_m)
    return LogCheck(identity, published, unread)


def newest_ends(*readings: Mapping[str, LogEnd]) -> dict[str, LogEnd]:
    """Return the highest end of each unit in all readings."""
    return {
        unit: max((ends[unit] for ends in readings if unit in ends), key=_order)
        for unit in sorted({u for ends in readings for u in ends})
    }


def publish(
    store: ObjectStore,
    runtime: Runtime,
    new: PublishedWatermark,
    *,
    accept_lost: bool = False,
    began_at: int | None = None,
    pins_as_of: int = -1,
    epoch_now: Callable[[], int] | None = None,
    remedy: str = CONTROLLER_REMEDY,
) -> PublishedWatermark | None:
    """Publish `new`, and return the previous content. The published cluster epoch never decreases either.

    If a faster run has published a higher M since this one began, that M stays, and nothing is published.

    Args:
        accept_lost: whether the copy may replace a lost `published.json`.
        began_at: the M that was published when the run began; None if the caller did not read it.
        pins_as_of: the epoch at which the pins that `new` respects were read; -1 if no pins were read.
        epoch_now: reads the cluster epoch again if a faster run has published a higher one.
        remedy: see `check_epochs`.

    Raises:
        PinnedSinceError: a pin was created since the pins were read.
        LostWatermarkError: `published.json` is lost, and the loss is not accepted.
        SafetyError: a higher watermark was published when the run began.
        ClusterMismatchError: another cluster's watermark is published.
        EpochRegressionError: a published epoch is above the cluster epoch (hazard 10).
        StoreError: the file changed during every attempt.
    """

    def change(current: PublishedWatermark | None) -> PublishedWatermark | None:
        if current is None:
            return new
        if current.pinned > pins_as_of:
            raise PinnedSinceError(
                f"a pin was created at epoch {current.pinned}, and the pins were read at epoch {pins_as_of}: M may not "
                "pass what it holds, so nothing was published. Run it again"
            )
        epoch = new.cluster_epoch
        if current.cluster_epoch > epoch and epoch_now is not None:
            epoch = epoch_now()
        check_published(epoch, current, remedy)
        if current.watermark > new.watermark:
            if began_at is not None and began_at <= new.watermark:
                return None
            raise SafetyError(
                f"computed M = {new.watermark}, but M = {current.watermark} is published, and it never goes down: "
                "a journal or a report is older than when that was computed. The published one stays; find out what was "
                "restored from a backup"
            )
        ends = newest_ends(current.ends, new.ends)
        history = remembered(current, new.published_at_ms)
        return msgspec.structs.replace(
            new, cluster_epoch=epoch, ends=ends, pinned=current.pinned, history=history, given=current.given
        )

    return _swap(store, runtime, new.cluster_id, change, accept_lost=accept_lost)


def require_seen(cluster: ClusterView, cluster_id: str, epoch: int) -> None:
    """Require publishers of M to have read the pins at `epoch` or later. M itself stays unchanged.

    Raises:
        ClusterMismatchError, CorruptObjectError: see `read_published`.
        LostWatermarkError: see `publish`.
        StoreError: it changed during every attempt.
    """

    def change(current: PublishedWatermark | None) -> PublishedWatermark | None:
        if current is None:
            return PublishedWatermark(cluster_id, NO_WATERMARK, epoch, cluster.now_ms(), pinned=epoch)
        if current.pinned >= epoch:
            return None
        return _noting(current, pinned=epoch, cluster_epoch=max(current.cluster_epoch, epoch))

    _swap(cluster.store, cluster.runtime, cluster_id, change)


def reserve_numbers(cluster: ClusterView, numbers: tuple[int, int]) -> tuple[int, int]:
    """Record that numbers up to these may have been given (`PublishedWatermark.given`), and return the previous
    numbers.

    A log restored from a backup lacks the last numbers that it gave, although objects and tables have them (hazard 43).

    Raises:
        EpochRegressionError, ClusterMismatchError: see `refuse_if_behind`; nothing was reserved.
        StoreError: it changed during every attempt.
    """
    identity, published = refuse_if_behind(cluster)

    def change(current: PublishedWatermark | None) -> PublishedWatermark | None:
        before = (0, 0) if current is None else current.given
        given = max(before[0], numbers[0]), max(before[1], numbers[1])
        if given == before:
            return None
        if current is None:
            epoch = identity.cluster_epoch
            return PublishedWatermark(identity.cluster_id, NO_WATERMARK, epoch, cluster.now_ms(), given=given)
        return _noting(current, given=given)

    reserved = (0, 0) if published is None else published.given
    if reserved[0] < numbers[0] or reserved[1] < numbers[1]:
        _swap(cluster.store, cluster.runtime, identity.cluster_id, change)
    return reserved


def _noting(current: PublishedWatermark, **changes: object) -> PublishedWatermark:
    """Return the published content with changes that do not concern M. The grace of M does not restart with the new
    file.
    """
    history = remembered(current, current.published_at_ms)
    return msgspec.structs.replace(current, history=history, **changes)


def _swap(
    store: ObjectStore,
    runtime: Runtime,
    cluster_id: str,
    change: Callable[[PublishedWatermark | None], PublishedWatermark | None],
    *,
    accept_lost: bool = False,
) -> PublishedWatermark | None:
    """Replace the published content with the result of `change`, unless that is None. Return the previous content."""
    before: PublishedWatermark | None = None
    unsure: PublishedWatermark | None = None
    failure: StoreError | None = None
    for attempt in range(_TRIES):
        if attempt:
            runtime.clock.sleep(runtime.jitter(0.05 * attempt))
        current, etag = read_published(store, cluster_id)
        if (
            etag
            and current is not None
            and unsure is not None
            and _as_stored(unsure, current.published_at_ms) == current
        ):
            store.put(PUBLISHED_COPY, encode_published(current, PUBLISHED_COPY))
            return before  # the attempt whose reply was lost has landed
        if not accept_lost:
            refuse_if_lost(current, etag)
        before, new = current, change(current)
        if new is None:
            return current
        try:
            if not etag:
                store.put_if_absent(PUBLISHED_WATERMARK, encode_published(new))
            else:
                store.put_if_match(PUBLISHED_WATERMARK, encode_published(new), etag)
        except AmbiguousWriteError as e:
            unsure, failure = new, e
        except PreconditionFailedError:
            failure = None
        else:
            store.put(PUBLISHED_COPY, encode_published(new, PUBLISHED_COPY))
            return current
    if failure is not None:
        raise StoreError(f"{PUBLISHED_WATERMARK} could not be written in {_TRIES} attempts: {failure}") from failure
    raise StoreError(
        f"{PUBLISHED_WATERMARK} changed during each of {_TRIES} attempts to write it; run the command again"
    )
