"""Pins: a state of the cluster that stays readable until the pin ends.

What makes it safe (hazard 36): once a pin has taken effect, whatever any state of a journal from then on names stays while
the pin lives; if the pin is of one topic, what is named of that. The order of the steps is what makes it true:

1. The pin becomes an entry of the controller's log. Every process that reads the log from then on respects it.
2. `published.json` is raised to the entry's epoch, so that nobody publishes M who has not read the pin.
3. Each journal's window reaches that epoch. So what is dropped later counts with that epoch or a later one, and what
   counts with an earlier one was dropped before (`ControllerState.pinned_from`).
4. The journals are read, once: the pin's M and the ends as of which it promises a replay are of the same states. No state
   from then on needs an epoch at or below the M that follows from them, since M(p) never goes down; that is what the pin
   holds, and it is at least what is published. For a pin of one topic it follows from that topic's partitions alone.
5. A second entry records that the pin has taken effect, with this M and the end of each journal.

A pin that stopped in between has promised nothing, and holds all from its first entry on until it ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import ClassVar, Final

from l0gc.epoch import NO_WATERMARK
from l0gc.errors import AccessDeniedError, L0gcError, NotFoundError, StoreError, UsageError
from l0gc.formatting import Outcome, moment
from l0gc.runtime import user_at_host
from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.controller.state import ALL_TOPICS, Pin
from l0gc.watermark.compute import compute
from l0gc.watermark.publication import refuse_if_set_back, require_seen

PIN_TTL_S: Final = 86_400
"""How long a pin lives by default: longer than a backup takes."""


@dataclass(frozen=True, slots=True)
class PinView(Outcome):
    """A pin.

    Attributes:
        name: The pin.
        epoch: The epoch of its creation.
        watermark: M does not pass it; null for a pin of L1 alone, and until the pin has taken effect.
        level_one: Whether it keeps what is in L1 alone.
        topic: The revision of the only topic that it is for; null for all.
        in_effect: Whether it has taken effect. A pin whose command was killed has promised nothing; M does not move
            until it ends or is deleted.
        created_ms: When it was created, by the store's clock, in milliseconds since 1970.
        expires_ms: When it ends.
        expires: The end as text.
        why: The reason that was given.
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
        held = p.watermark if p.in_effect and not p.level_one else None
        topic = None if p.topic == ALL_TOPICS else p.topic
        return cls(p.name, p.revision, held, p.level_one, topic, p.in_effect, p.created_ms, p.end_ms, p.why)

    @property
    def expires(self) -> str:
        """Its end, as RFC 3339 has it."""
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
    cluster: Handles, name: str, ttl_ms: int, *, level_one: bool = False, why: str = "", topic: int = ALL_TOPICS
) -> Pin:
    """Create a pin; when this returns, it has taken effect. If it cannot, it is deleted again.

    Args:
        level_one: keep what is in L1, and let M move.
        topic: the revision of the only topic that it is for.

    Raises:
        UsageError, NotFoundError: see `CreatePin.check`.
        SafetyError: a log was set back, or a journal is damaged.
        StoreError: a journal cannot be read.
        NotFoundError: it ended before it took effect.
    """
    refuse_if_set_back(cluster, by_m=not level_one)
    pin = cluster.controller.create_pin(name, ttl_ms, level_one=level_one, why=why, topic=topic)
    try:
        return _take_effect(cluster, pin)
    except BaseException:
        with suppress(L0gcError):
            cluster.controller.delete_pin(name, pin.revision)
        raise


def pin_for_reader(cluster: Handles, what: str, ttl_ms: int = PIN_TTL_S * 1000) -> Pin:
    """A pin under a new name, for somebody who reads; `what` they read is its reason.

    Raises as `create_pin`, and:
        AccessDeniedError: the credentials may only read.
    """
    try:
        return create_pin(
            cluster, f"read-{cluster.runtime.new_id()[:8]}", ttl_ms, why=f"{user_at_host()} reads {what}"[:200]
        )
    except AccessDeniedError as e:
        raise AccessDeniedError(
            "a reader that pins appends to the logs, and these credentials may not: read without a pin, or with a pinner's "
            f"permissions ({e})"
        ) from e


@contextmanager
def while_pinned(cluster: Handles, name: str, remedy: str) -> Iterator[None]:
    """Take what goes wrong inside for the end of the pin, if that has ended. Raises `NotFoundError`, with the remedy."""
    try:
        yield
    except L0gcError as e:
        if isinstance(e, UsageError) or name in cluster.controller.snapshot().pins:
            raise
        raise NotFoundError(f"pin {name!r}, as of which records are read, has ended: {remedy}") from e


def _take_effect(cluster: Handles, pin: Pin) -> Pin:
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
    held = NO_WATERMARK if pin.level_one else compute(state.epoch, units).watermark
    return cluster.controller.pin_took_effect(pin, held, ends)


def reach(cluster: Handles, journals: Sequence[int], epoch: int) -> None:
    """Have the window of each journal reach an epoch, so that what is dropped from then on counts with that or more."""
    cluster.parallel.map(lambda j: cluster.journal(j).advance(epoch), journals)
