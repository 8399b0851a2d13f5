"""Create pins: a pin keeps a state of the cluster readable until it ends.

Once a pin has taken effect, every object that any later state of a journal names stays while the pin lives (hazard 36);
for a pin of one topic, every object of that topic. The order of its steps ensures that:

1. The pin becomes an entry of the controller's log. Every process that reads the log from then on respects it.
2. `published.json` is raised to the entry's epoch, so that only a process that has read the pin can publish M.
3. Each journal's window reaches that epoch. So an object that is dropped later is recorded with that epoch or a later one,
and an object with an earlier one was dropped before (`ControllerState.pinned_from`).
4. The journals are read once: the pin's M, and the ends as of which it promises a replay, belong to the same states. No
   later state needs an epoch at or below that M, since M(p) never goes down. So the pin holds this M, which is at least
   the published one. A pin of one topic takes it from that topic's partitions alone.
5. A second entry records that the pin has taken effect, with this M and the end of each journal.

A pin whose creation stopped in between has promised nothing; until it ends, it keeps everything from its first entry on.

A reader's pin is a lease of some minutes, which its process renews (`renewed`). If the process dies, the lease ends soon.
An entry renews a pin only if no entry has ended it, so an ended pin never comes back (`RenewPin`).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import ClassVar, Final

from l0gc.epoch import NO_WATERMARK
from l0gc.errors import AccessDeniedError, L0gcError, NotFoundError, StoreError, UsageError
from l0gc.events import event
from l0gc.formatting import Outcome, moment
from l0gc.operations import LEASE_S
from l0gc.runtime import user_at_host
from l0gc.storage.parallel import check_process
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.handle import Controller
from l0gc.streamlog.controller.state import ALL_TOPICS, Pin
from l0gc.watermark.compute import compute
from l0gc.watermark.publication import refuse_if_set_back, require_seen

_RENEWALS: Final = 3
"""The number of renewals within a lease, since some may fail."""
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PinView(Outcome):
    """A pin.

    Attributes:
        name: The pin.
        epoch: The epoch of its creation.
        watermark: The epoch that M does not pass; null for a pin of L1 only, and until the pin has taken effect.
        level_one: Whether it keeps only L1 objects.
        topic: The revision of the only topic to which it applies; null for all topics.
        in_effect: Whether it has taken effect. A pin whose command was killed has promised nothing; M does not move until
            it ends or is deleted.
        created_ms: When it was created, by the store's clock, in milliseconds since 1970.
        expires_ms: When it ends.
        expires: When it ends, as text.
        why: The given reason.
    """

    name: str
    epoch: int
    watermark: int | None
    level_one: bool
    topic: int | None
    in_effect: bool
    created_ms: int
    expires_ms: int
    why: str
    derived: ClassVar[tuple[str, ...]] = ("expires",)

    @classmethod
    def of(cls, p: Pin) -> PinView:
        watermark = p.watermark if p.in_effect and not p.level_one else None
        topic = None if p.topic == ALL_TOPICS else p.topic
        return cls(p.name, p.revision, watermark, p.level_one, topic, p.in_effect, p.created_ms, p.end_ms, p.why)

    @property
    def expires(self) -> str:
        """Return its end in RFC 3339."""
        return moment(self.expires_ms, "T")


class PinList(list[PinView], Outcome):
    """The pins, by name.

    Attributes:
        pins: The pins by name, each with the fields of [`l0gc pin create`](#l0gc-pin-create).
    """

    derived = ("pins",)

    @property
    def pins(self) -> list[PinView]:
        return [*self]


def create_pin(
    cluster: ClusterHandles, name: str, ttl_ms: int, *, level_one: bool = False, why: str = "", topic: int = ALL_TOPICS
) -> Pin:
    """Create a pin and return it once it has taken effect; if that fails, delete it again.

    Args:
        level_one: keep only L1 objects, and let M move.
        topic: the revision of the only topic to which it applies.

    Raises:
        UsageError, NotFoundError: see `CreatePin.check`.
        SafetyError: a log was set back, or a journal is damaged.
        StoreError: a journal cannot be read.
        AccessDeniedError: the credentials may only read.
        NotFoundError: the pin ended before it took effect.
    """
    refuse_if_set_back(cluster, by_m=not level_one)
    try:
        pin = cluster.controller.create_pin(name, ttl_ms, level_one=level_one, why=why, topic=topic)
        try:
            return _take_effect(cluster, pin)
        except BaseException:
            with suppress(L0gcError):
                cluster.controller.delete_pin(name, pin.revision)
            raise
    except AccessDeniedError as e:
        raise AccessDeniedError(
            f"pin {name!r} cannot be created, since a pin appends to the logs and these credentials may not: read without a "
            f"pin, or use a pinner's permissions ({e})"
        ) from e


@contextmanager
def renewed(handles: Callable[[], ClusterHandles], name: str, revision: int, ttl_ms: int) -> Iterator[None]:
    """Renew a pin in a thread during a `with` block, and delete it at the end.

    Args:
        handles: returns the cluster; raises `UsageError` once the cluster is closed, and the pin then ends with its lease.
        ttl_ms: how long the pin lives after a renewal.
    """
    over, opened = threading.Event(), os.getpid()

    def controller() -> Controller:
        check_process(opened)  # a forked child leaves the pin to its parent
        return handles().controller

    def renew() -> None:
        while not over.wait(ttl_ms / 1000 / _RENEWALS):
            try:
                controller().renew_pin(name, revision, ttl_ms)
            except (NotFoundError, UsageError):
                return
            except L0gcError as e:
                _log.warning("pin %r was not renewed: %s", name, e, extra=event("pin_not_renewed"))

    threading.Thread(target=renew, name="l0gc-lease", daemon=True).start()
    try:
        yield
    finally:
        over.set()
        with suppress(L0gcError):
            controller().delete_pin(name, revision)


@contextmanager
def leased_for_reader(
    handles: Callable[[], ClusterHandles], what: str, topic: int = ALL_TOPICS, *, level_one: bool = False
) -> Iterator[Pin]:
    """Create a pin with a new name for a `with` block in which `what` is read. Raises the errors of `create_pin`."""
    cluster, ttl_ms, why = handles(), LEASE_S * 1000, f"{user_at_host()} reads {what}"[:200]
    pin = create_pin(cluster, f"read-{cluster.runtime.new_id()[:8]}", ttl_ms, level_one=level_one, why=why, topic=topic)
    with renewed(handles, pin.name, pin.revision, ttl_ms):
        yield pin


@contextmanager
def while_pinned(cluster: ClusterHandles, pin: Pin, remedy: str) -> Iterator[None]:
    """Raise `NotFoundError`, with the remedy, instead of an error in the block if the pin has ended."""
    try:
        yield
    except L0gcError as e:
        current = cluster.controller.snapshot().pins.get(pin.name)
        if isinstance(e, UsageError) or (current is not None and current.revision == pin.revision):
            raise
        raise NotFoundError(f"pin {pin.name!r}, as of which records are read, has ended: {remedy}") from e


def _take_effect(cluster: ClusterHandles, pin: Pin) -> Pin:
    if not pin.level_one:
        require_seen(cluster, cluster.identity().cluster_id, pin.revision)
    state = cluster.controller.snapshot()
    used = sorted({*state.journals_in_use(), *state.deleted_of()})
    reach(cluster, used, pin.revision)
    units = cluster.units(used, topic=pin.topic)
    for unit in units:
        if unit.error:
            raise StoreError(f"pin {pin.name!r} was not created: {unit.unit} cannot be read: {unit.error}")
    ends = [(j, unit.end[1]) for j, unit in zip(used, units, strict=True) if unit.end is not None]
    watermark = NO_WATERMARK if pin.level_one else compute(state.epoch, units).watermark
    return cluster.controller.pin_took_effect(pin, watermark, ends)


def reach(cluster: ClusterHandles, journals: Sequence[int], epoch: int) -> None:
    """Advance the window of each journal to an epoch, so that later drops are recorded with that epoch or a later one."""
    cluster.parallel.map(lambda j: cluster.journal(j).advance(epoch), journals)
