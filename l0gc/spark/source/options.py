"""The options of `format("l0gc")`, checked where Spark plans: a query that cannot be meant fails before it reads.

They are called as those of Spark's Kafka connector where that has the same thing. What names the bucket is resolved here,
on the driver, since an executor need not have the driver's environment; no option holds a secret. An option that nobody
knows is left to Spark, unless it looks like one of these misspelt.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from l0gc.errors import UsageError
from l0gc.spark.handles import CORES, ClusterAddress
from l0gc.storage.config import ENDPOINT_VARIABLES, REGION_VARIABLES, StoreConfig, first_of

EARLIEST: Final = -2
LATEST: Final = -1
"""What the JSON form of offsets says for the two ends of a partition."""

_PLACE: Final = ("url", "endpointUrl", "region", "profile", "clusterId")
_TOPICS: Final = ("topic", "subscribe", "assign")
_READ: Final = (
    *_PLACE,
    *_TOPICS,
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "columns",
    "minPartitions",
    "failOnDataLoss",
    "pushFilters",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
)
_WRITE: Final = (*_PLACE, "topic", "producerName", "batchId", "objectBytes")
_OBJECT_BYTES: Final = 8 << 20
"""With tasks side by side, a batch has few L0 objects of that size."""
_NEAR: Final = 0.85
_ASSIGNED: Final = msgspec.json.Decoder(dict[str, list[int]])
_OFFSETS: Final = msgspec.json.Decoder(dict[str, dict[int, int]])
_BOOLEANS: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading begins or ends.

    Attributes:
        everywhere: `EARLIEST` or `LATEST`, for the partitions that nothing else is said of.
        offsets: by topic and partition; `EARLIEST` and `LATEST` may be among them.
        timestamp_ms: at the first record that is not older, in each partition; milliseconds since 1970.
    """

    everywhere: int
    offsets: Mapping[str, Mapping[int, int]] | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What is to be read, and how. A stream ignores `ending`; a batch ignores the limits of a trigger.

    Attributes:
        assigned: of some topics the only partitions that are read.
        cores: of the executors, as far as this process was told (`handles.CORES`).
        push_filters: whether Spark's filters are taken.
    """

    place: ClusterAddress
    topics: tuple[str, ...]
    assigned: Mapping[str, frozenset[int]]
    starting: Bound
    ending: Bound
    min_partitions: int | None
    cores: int
    fail_on_data_loss: bool
    push_filters: bool
    max_offsets: int | None
    max_bytes: int | None


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What is to be written where. `topic` is that of all rows, or else each names its own; `batch_id` is set with a
    producer's name.
    """

    place: ClusterAddress
    topic: str | None
    producer: str | None
    batch_id: int | None
    object_bytes: int


class _Options:
    """Options by their lower-case names, as Spark keeps them."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        by_lower = {name.lower(): name for name in known}
        for name in self._given.keys() - by_lower.keys():
            near = difflib.get_close_matches(name, by_lower, 1, _NEAR)
            if near and near[0] not in self._given:
                raise UsageError(f"option {name!r} does not exist: did you mean {by_lower[near[0]]!r}?")

    def text(self, name: str) -> str | None:
        return self._given.get(name.lower()) or None

    def number(self, name: str, least: int) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        try:
            number = int(value)
        except ValueError:
            number = least - 1
        if number < least:
            raise UsageError(f"option {name} must be a whole number from {least} on, not {value!r}")
        return number

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in _BOOLEANS:
            raise UsageError(f"option {name} must be true or false, not {value!r}")
        return _BOOLEANS[value.lower()]

    def place(self) -> ClusterAddress:
        url = self.text("url") or os.environ.get("L0GC_URL")
        if not url:
            raise UsageError("option url is missing: say where the cluster is, as s3://bucket/prefix")
        endpoint = self.text("endpointUrl") or first_of(os.environ, ENDPOINT_VARIABLES)
        region = self.text("region") or first_of(os.environ, REGION_VARIABLES)
        config = StoreConfig.from_url(url, endpoint_url=endpoint, region=region, profile=self.text("profile"))
        return ClusterAddress(config, self.text("clusterId"))

    def bound(self, end: str, default: int, *, streaming: bool = False) -> Bound:
        """`startingOffsets` and `startingTimestamp`, or those of the other end."""
        offsets, timestamp = self.text(f"{end}Offsets"), self.number(f"{end}Timestamp", 0)
        if timestamp is not None:
            if offsets is not None:
                raise UsageError(f"options {end}Offsets and {end}Timestamp exclude each other")
            return Bound(LATEST, timestamp_ms=timestamp)
        words = {"earliest": EARLIEST, "latest": LATEST}
        wrong = None if streaming else (LATEST if end == "starting" else EARLIEST)
        if offsets is None:
            return Bound(default)
        if offsets.lower() in words:
            if words[offsets.lower()] == wrong:
                raise UsageError(f"option {end}Offsets of a batch cannot be {offsets}: nothing would be read")
            return Bound(words[offsets.lower()])
        try:
            found = _OFFSETS.decode(offsets)
        except msgspec.MsgspecError as e:
            raise UsageError(
                f'option {end}Offsets must be earliest, latest, or JSON like {{"topic":{{"0":23,"1":-2}}}}: {e}'
            ) from e
        for topic, of_topic in found.items():
            for partition, offset in of_topic.items():
                if partition < 0 or offset < EARLIEST or offset == wrong:
                    raise UsageError(f"option {end}Offsets has {offset} for partition {partition} of topic {topic!r}")
        return Bound(EARLIEST if end == "starting" else LATEST, offsets=found)

    def topics(self) -> tuple[tuple[str, ...], dict[str, frozenset[int]]]:
        """The topics, and of some of them the only partitions that are meant."""
        named = [name for name in _TOPICS if self.text(name)]
        if len(named) != 1:
            raise UsageError(
                "name what to read with one of the options topic, subscribe (topics with commas between) and assign "
                '(partitions, as {"topic":[0,1]})'
            )
        text = self.text(named[0]) or ""
        if named == ["assign"]:
            try:
                assigned = {topic: frozenset(some) for topic, some in _ASSIGNED.decode(text).items()}
            except msgspec.MsgspecError as e:
                raise UsageError(f'option assign must be JSON like {{"topic":[0,1]}}: {e}') from e
            return tuple(assigned), assigned
        topics = tuple(dict.fromkeys(t.strip() for t in text.split(",") if t.strip()))
        if not topics or (named == ["topic"] and len(topics) > 1):
            raise UsageError(f"option {named[0]} is {text!r}: several topics go into option subscribe")
        return topics, {}


def columns_wanted(given: Mapping[str, str], known: Sequence[str]) -> list[str]:
    """The columns that option `columns` names, in its order; all of them without it.

    Raises:
        UsageError: it names one that a topic does not have.
    """
    text = _Options(given, _READ).text("columns")
    if text is None:
        return list(known)
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    if not set(names) <= set(known):
        raise UsageError(f"option columns is {text!r}: name some of {', '.join(known)}, with commas between")
    return names


def read_options(given: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """The options of a source. Raises `UsageError`."""
    o = _Options(given, _READ)
    if streaming and (o.text("endingOffsets") or o.text("endingTimestamp")):
        raise UsageError("a stream has no end: options endingOffsets and endingTimestamp are a batch's")
    topics, assigned = o.topics()
    options = ReadOptions(
        o.place(),
        topics,
        assigned,
        o.bound("starting", LATEST if streaming else EARLIEST, streaming=streaming),
        o.bound("ending", LATEST),
        o.number("minPartitions", 1),
        int(os.environ.get(CORES, "1")),
        o.flag("failOnDataLoss", True),
        o.flag("pushFilters", False),
        o.number("maxOffsetsPerTrigger", 1),
        o.number("maxBytesPerTrigger", 1),
    )
    for bound in (options.starting, options.ending):
        for topic in bound.offsets or ():
            if topic not in topics:
                raise UsageError(f"offsets are given for topic {topic!r}, which is not read")
    return options


def write_options(given: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """The options of a sink. Raises `UsageError`."""
    o = _Options(given, _WRITE)
    producer, batch_id = o.text("producerName"), o.number("batchId", 0)
    if streaming and batch_id is not None:
        raise UsageError("option batchId is a batch's; a stream's batches have their own ids")
    if not streaming and (producer is None) != (batch_id is None):
        raise UsageError(
            "options producerName and batchId go together: a batch is written once for each name and id, and ids must rise"
        )
    size = o.number("objectBytes", 1 << 10)
    return WriteOptions(o.place(), o.text("topic"), producer, batch_id, size or _OBJECT_BYTES)
