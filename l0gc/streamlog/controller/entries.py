"""The entries of the controller's log: what each one says, and how it is written down.

MessagePack, each entry an array that opens with its kind. A field is only ever added at the end and with a default, so a
newer l0gc reads what an older one wrote. What no l0gc wrote is refused where it is read.
"""

from __future__ import annotations

from typing import Final

import msgspec

from l0gc.decoding import decoded
from l0gc.errors import UsageError
from l0gc.formatting import span
from l0gc.keys import DEFAULT_TEMPLATE, KeyLayout, check_topic_name

DEFAULT_JOURNALS: Final = 16
MAX_JOURNALS: Final = 9_999
"""What the four digits of a journal's folder hold."""
MAX_PARTITIONS: Final = 1_000_000
"""Of one topic. Nothing that the controller keeps or does grows with a topic's partitions; a journal's state does."""
MAX_PRODUCER_ID: Final = 1 << 53
"""Ids are random and below this: JSON's readers keep so many bits of a number."""
MAX_TEXT: Final = 200
"""Characters of a name, of an id or of the caller that advances the epoch."""
MAX_TEMPLATE: Final = 500
UNLIMITED: Final = -1
"""A retention that keeps everything, as Kafka writes it."""
MAX_RETENTION: Final = 2**62
"""Milliseconds, or bytes."""
MAX_PIN_MS: Final = 366 * 24 * 3_600_000
"""The longest life of a pin: what it holds is garbage to everybody else."""
MAX_PINS: Final = 1_000
"""Each keeps an offset for each journal in the controller's state."""
ALL_TOPICS: Final = -1
"""In place of a topic's revision, where a pin keeps what is in L1 of every topic."""


class Bootstrap(msgspec.Struct, frozen=True, array_like=True, tag="b"):
    """The cluster's first entry, at offset 0.

    `external_log`: epochs and partitions are those of another system, which keeps its own log. The controller log then holds
    only this entry, and no journal is used.
    """

    cluster_id: str
    shards: int
    key_template: str = DEFAULT_TEMPLATE
    external_log: bool = False
    journals: int = DEFAULT_JOURNALS


class CreateTopic(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    """Creates a topic in so many `journals`; which ones they are is decided where the entry lands.

    `topic_id` is random. It distinguishes the topic from another one of the same name and revision, which a controller log
    that was restored from a backup can create.
    """

    name: str
    partitions: int
    journals: int
    topic_id: str
    retention_ms: int | None = None
    retention_bytes: int | None = None


class AlterTopic(msgspec.Struct, frozen=True, array_like=True, tag="a"):
    """Gives a topic these retention settings, see `state.Topic`."""

    name: str
    revision: int
    retention_ms: int | None
    retention_bytes: int | None


class AlterDefaults(msgspec.Struct, frozen=True, array_like=True, tag="r"):
    """Gives the cluster these retention settings, for topics without their own; -1 for unlimited."""

    retention_ms: int
    retention_bytes: int


class ForgetTopics(msgspec.Struct, frozen=True, array_like=True, tag="f"):
    """Deleted topics, by revision, of which nothing is left anywhere."""

    revisions: list[int]


class DeleteTopic(msgspec.Struct, frozen=True, array_like=True, tag="d"):
    name: str
    revision: int


class Tick(msgspec.Struct, frozen=True, array_like=True, tag="t"):
    """Advances the epoch by one, or to `to`, where that is not -1.

    `expected` and `caller` make a retry recognisable; -1 and '' where nobody expects anything.
    """

    expected: int = -1
    caller: str = ""
    to: int = -1


class InitProducer(msgspec.Struct, frozen=True, array_like=True, tag="p"):
    """Gives `name` a new producer epoch, or makes it a producer, with a `producer_id` that nobody has.

    `last_epoch` is the epoch that an instance bumped its own from, -1 if the instance is new. `run` is random: a log that
    was restored from a backup gives out the same producer epoch again, but never the same run.
    """

    name: str
    producer_id: int
    epoch: int
    last_epoch: int
    run: str


class CreatePin(msgspec.Struct, frozen=True, array_like=True, tag="n"):
    """Creates a pin that ends automatically, so many milliseconds after the log's time at this entry.

    `level_one`: it keeps what is in L1, and lets M move; and if `topic` is a topic's revision, that of this topic alone.
    """

    name: str
    ttl_ms: int
    level_one: bool = False
    why: str = ""
    topic: int = ALL_TOPICS


class PinTookEffect(msgspec.Struct, frozen=True, array_like=True, tag="h"):
    """The pin that the epoch `revision` created has taken effect: see `state.Pin`.

    `ends` has for each journal in use, by its number, the offset of its log's last entry then.
    """

    name: str
    revision: int
    watermark: int
    ends: list[tuple[int, int]]


class DeletePin(msgspec.Struct, frozen=True, array_like=True, tag="u"):
    name: str
    revision: int


class CreateTable(msgspec.Struct, frozen=True, array_like=True, tag="i"):
    """The topic that the epoch `revision` created has an Iceberg table from now on, in PyIceberg's catalog of that name."""

    topic: str
    revision: int
    catalog: str
    table: str


class DropTable(msgspec.Struct, frozen=True, array_like=True, tag="j"):
    """The topic `topic`, of that revision, has no table any more."""

    topic: str
    revision: int


ControllerEntry = (
    Bootstrap
    | CreateTopic
    | AlterTopic
    | AlterDefaults
    | DeleteTopic
    | ForgetTopics
    | Tick
    | InitProducer
    | CreatePin
    | PinTookEffect
    | DeletePin
    | CreateTable
    | DropTable
)

_ENTRY: Final[msgspec.msgpack.Decoder[ControllerEntry]] = msgspec.msgpack.Decoder(ControllerEntry)


def decode_controller_entry(offset: int, payload: bytes) -> ControllerEntry:
    """The entry that the log holds at `offset`. Raises `CorruptObjectError` if it cannot be decoded."""
    return decoded(_ENTRY, payload, f"controller log entry {offset} cannot be read")


def is_text(value: str) -> bool:
    """Whether `value` can be a name or an id: 1 to 200 characters that can be shown on a line."""
    return 0 < len(value) <= MAX_TEXT and value.isprintable()


def check_founded(cluster_id: str, shards: int, key_template: str, journals: int) -> None:
    """Raises `UsageError`: no cluster can be so."""
    if not is_text(cluster_id):
        raise UsageError(f"a cluster's id has 1 to {MAX_TEXT} printable characters, unlike {cluster_id[:50]!r}")
    if not 1 <= journals <= MAX_JOURNALS:
        raise UsageError(f"a cluster has 1 to {MAX_JOURNALS} journals, not {journals}")
    if len(key_template) > MAX_TEMPLATE:
        raise UsageError(f"the key template has more than {MAX_TEMPLATE} characters")
    KeyLayout(key_template, shards)


def check_topic(name: str, partitions: int, topic_id: str) -> None:
    """Raises `UsageError`: no topic can be so."""
    check_topic_name(name)
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise UsageError(f"a topic has 1 to {MAX_PARTITIONS} partitions, not {partitions}")
    if not is_text(topic_id):
        raise UsageError(f"the id of topic {name!r} cannot be one")


def check_retention(*settings: int | None) -> None:
    """Raises `UsageError`: a number cannot be."""
    for value in settings:
        if value is not None and not UNLIMITED <= value <= MAX_RETENTION:
            raise UsageError(f"a retention of {value} cannot be")


def check_pin(name: str, ttl_ms: int, why: str) -> None:
    """Raises `UsageError`: no pin can be so."""
    if not is_text(name):
        raise UsageError(f"pin name {name[:50]!r} must have 1 to {MAX_TEXT} printable characters")
    if not 0 < ttl_ms <= MAX_PIN_MS:
        raise UsageError(
            f"a pin ends by itself, after at most {span(MAX_PIN_MS)}; {span(ttl_ms)} is not possible: use for example 1d"
        )
    if why and not is_text(why):
        raise UsageError(f"the reason for pin {name!r} must have at most {MAX_TEXT} printable characters")


def check_table(topic: str, catalog: str, table: str) -> None:
    """Raises `UsageError`: no topic can have such a table."""
    check_topic_name(topic)
    for what, name in (("catalog", catalog), ("table", table)):
        if not is_text(name):
            raise UsageError(f"{what} name {name[:50]!r} must have 1 to {MAX_TEXT} printable characters")
    if not all(table.split(".")) or "." not in table:
        raise UsageError(f"table name {table!r} must look like namespace.name")
