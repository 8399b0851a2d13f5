"""Check the options of `format("l0gc")` when Spark plans, so that an impossible query fails before it reads.

Options have the names of those in Spark's Kafka connector if they mean the same. Options that name the bucket are
resolved here, on the driver, since an executor may lack the driver's environment; no option contains a secret.

Options that would have no effect are refused, because their user expects an effect: misspelt options, options of
Spark's Kafka connector that l0gc replaces, and a path. Options that Spark adds, and options of the Kafka connector that
only control its connection to Kafka, are allowed.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import msgspec

from l0gc.errors import UsageError
from l0gc.limits import MAX_BATCH_BYTES
from l0gc.operations import refuse_early
from l0gc.spark.handles import CORES, ClusterAddress
from l0gc.storage.config import REGION_VARIABLES, StoreConfig, first_of
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.journal.rows import MAX_OFFSET

_PLACE: Final = ("url", "endpointUrl", "region", "profile", "clusterId")
_TOPICS: Final = ("topic", "subscribe", "subscribePattern", "assign")
_READ: Final = (
    *_PLACE,
    *_TOPICS,
    "startingOffsets",
    "endingOffsets",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestampStrategy",
    "columns",
    "minPartitions",
    "failOnDataLoss",
    "includeHeaders",
    "pin",
    "minOffsetsPerTrigger",
    "maxOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
)
_WRITE: Final = (*_PLACE, "topic", "producerName", "batchId", "objectBytes")
_OBJECT_BYTES: Final = 8 << 20
"""The size of an L0 object, which gives a batch few objects although many tasks run at once."""
_LONG: Final = 2**63 - 1
MAX_BATCH_ID: Final = 2**38 - 1
"""The largest number of a batch. A journal stores it above 24 bits for the batch's objects, in 62 bits in total."""
_TRIGGER_DELAY_MS: Final = 15 * 60_000
"""The default of `maxTriggerDelay`, as in Spark's Kafka connector."""
_ASSIGNED: Final = msgspec.json.Decoder(dict[str, list[int]])
EARLIEST: Final = -2
LATEST: Final = -1
"""The numbers for the first and the last offset of a partition in the JSON form of offsets."""

_SPARKS: Final = {"checkpointlocation", "queryname"}
"""The options that Spark adds to a stream's sink."""
_OF_A_TABLE: Final = "provider"
"""The option that Spark adds when it creates a table."""
_NO_TABLE: Final = (
    "a table of Spark's catalog keeps no options for format l0gc: name them in each query, as in SELECT … FROM NAME WITH "
    "(url = '…', topic = '…'), or make a view of them, with CREATE TEMPORARY VIEW NAME USING l0gc OPTIONS (…)"
)
_WITHOUT_EFFECT: Final = {
    "groupidprefix",
    "kafkaconsumer.polltimeoutms",
    "fetchoffset.numretries",
    "fetchoffset.retryintervalms",
}
_INSTEAD: Final = {
    "path": "a topic has no path: name it with option topic",
    "paths": "a topic has no path: name several with option subscribe",
    "maxrecordsperpartition": "option minPartitions sets how many tasks read at least",
    "kafka.bootstrap.servers": "option url names the cluster",
    "kafka.group.id": "the checkpoint holds how far a query has read",
    "kafka.auto.offset.reset": "option startingOffsets sets where a query begins",
    "kafka.isolation.level": "all records of a topic are committed",
    "kafka.transactional.id": "option producerName names a sink's producer, which writes each batch once",
}
"""The reason why an option is refused, or its replacement."""
_KAFKAS: Final = "kafka."
_KAFKA_CLIENT: Final = "options that begin with kafka. are for Kafka's clients, and l0gc has none"
_NEAR: Final = 0.85
_BY_PARTITION: Final = msgspec.json.Decoder(dict[str, dict[int, int]])
_BOOLEANS: Final = {"true": True, "false": False}
_SPAN: Final = re.compile(r"([0-9]+)\s*([a-z]*)")
_MILLISECONDS: Final = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
"""The units of durations in Spark, except microseconds."""
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}


@dataclass(frozen=True, slots=True)
class Bound:
    """A start or an end of reading.

    Attributes:
        option: the option that sets it, for messages.
        everywhere: `EARLIEST` or `LATEST`, for partitions without an offset or a timestamp.
        offsets: the offsets by topic and partition, which may include `EARLIEST` and `LATEST`.
        timestamps: the lowest time of the first record, in milliseconds since 1970, by topic and partition.
        timestamp_ms: the lowest time of the first record for all partitions.
        must_match: whether a partition without a record at this time or later is an error.
        is_end: whether this is the end of reading.
    """

    option: str
    everywhere: int
    offsets: Mapping[str, Mapping[int, int]] | None = None
    timestamps: Mapping[str, Mapping[int, int]] | None = None
    timestamp_ms: int | None = None
    must_match: bool = False
    is_end: bool = False

    @property
    def named(self) -> Mapping[str, Mapping[int, int]]:
        """Return the partitions that the option names, by topic."""
        return self.offsets or self.timestamps or {}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read. A stream ignores `ending`; a batch ignores a trigger's limits.

    Attributes:
        topics: the names of the topics.
        pattern: if there are no `topics`, a regular expression that a topic's whole name must match.
        assigned: the only partitions to read, for some topics.
        cores: the number of the executors' cores, if this process knows it (`handles.CORES`).
        include_headers: whether the default columns include those that not all records have.
        pin: the name of the pin as of which a batch reads.
        min_offsets: the lowest number of records in a micro-batch, unless it begins `trigger_delay_ms` after the
            previous one.
    """

    address: ClusterAddress
    topics: tuple[str, ...]
    pattern: str | None
    assigned: Mapping[str, frozenset[int]]
    starting: Bound
    ending: Bound
    min_partitions: int | None
    cores: int
    fail_on_data_loss: bool
    include_headers: bool
    min_offsets: int | None
    max_offsets: int | None
    max_bytes: int | None
    trigger_delay_ms: int
    pin: str | None


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write. `topic` applies to all rows; without it, each row names its topic. `batch_id` needs a
    producer's name.
    """

    address: ClusterAddress
    topic: str | None
    producer: str | None
    batch_id: int | None
    object_bytes: int


class _Options:
    """The options by name, ignoring case, which Spark does not keep.

    Args:
        known: the names of supported options.

    Raises:
        UsageError: an option is not supported.
    """

    def __init__(self, given: Mapping[str, str], names: Collection[str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        by_lower = {name.lower(): name for name in names}
        for name in sorted(self._given.keys() - by_lower.keys() - _SPARKS - _WITHOUT_EFFECT):
            if name in _INSTEAD or name.startswith(_KAFKAS):
                raise UsageError(f"option {name} is not supported: {_INSTEAD.get(name, _KAFKA_CLIENT)}")
            near = difflib.get_close_matches(name, by_lower, 1, _NEAR)
            raise UsageError(
                f"option {name!r} does not exist" + (f": did you mean {by_lower[near[0]]!r}?" if near else "")
            )

    def text(self, name: str) -> str | None:
        return self._given.get(name.lower(), "").strip() or None

    def missing(self, message: str) -> UsageError:
        """Return the error for a missing option. A table in Spark's catalog lacks all options."""
        return UsageError(message if self._given else _NO_TABLE)

    def number(self, name: str, least: int, most: int = _LONG) -> int | None:
        """Return a whole number; None if the option is missing or is the largest `long`, which Spark's own programs use
        for "no limit".
        """
        value = self.text(name)
        if value is None:
            return None
        try:
            number = int(value)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise UsageError(f"option {name} must be a whole number from {least} to {most}, not {value!r}")
        return min(number, MAX_OFFSET)

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in _BOOLEANS:
            raise UsageError(f"option {name} must be true or false, not {value!r}")
        return _BOOLEANS[value.lower()]

    def milliseconds(self, name: str, default: int) -> int:
        """Return a duration in milliseconds, which are also the unit of a plain number."""
        value = self.text(name)
        if value is None:
            return default
        match = _SPAN.fullmatch(value.lower())
        if match is None or match[2] not in _MILLISECONDS:
            raise UsageError(f"option {name} must be a span of time such as 15m or 30s, not {value!r}")
        return int(match[1]) * _MILLISECONDS[match[2]]

    def by_partition(self, name: str, least: int, words: str = "") -> dict[str, dict[int, int]]:
        """Return a number for each of some partitions, by topic.

        Args:
            words: other valid values of the option, for messages.
        """
        try:
            offsets = _BY_PARTITION.decode(self.text(name) or "")
        except msgspec.MsgspecError as e:
            raise UsageError(f'option {name} must be {words}JSON like {{"topic":{{"0":23,"1":42}}}}: {e}') from None
        for topic, of_topic in offsets.items():
            for partition, value in of_topic.items():
                if partition < 0 or value < least:
                    raise UsageError(f"option {name} has {value} for partition {partition} of topic {topic!r}")
        return offsets

    def address(self) -> ClusterAddress:
        url = self.text("url") or os.environ.get("L0GC_URL")
        if not url:
            raise self.missing("option url is missing: say where the cluster is, as s3://bucket/prefix")
        endpoint, profile = self.text("endpointUrl"), self.text("profile")
        region = self.text("region") or first_of(os.environ, REGION_VARIABLES)
        config = StoreConfig.from_url(url, endpoint_url=endpoint, region=region, profile=profile)
        return ClusterAddress(_settled(config, frozenset(os.environ.items())), self.text("clusterId"))

    def bound(self, end: str, default: int, wrong: int | None) -> Bound:
        """Return the start (`starting`) or the end (`ending`) of reading.

        Args:
            wrong: the value, `EARLIEST` or `LATEST`, with which nothing would be read.
        """
        names = (f"{end}Offsets", f"{end}OffsetsByTimestamp", f"{end}Timestamp")
        given = [name for name in names if self.text(name)]
        if len(given) > 1:
            raise UsageError(f"options {given[0]} and {given[1]} exclude each other")
        option = given[0] if given else names[0]
        text = self.text(option)
        others = EARLIEST if end == "starting" else LATEST
        strategy = (self.text("startingOffsetsByTimestampStrategy") or "error").lower()
        if strategy not in {"error", "latest"}:
            raise UsageError(f"option startingOffsetsByTimestampStrategy must be error or latest, not {strategy!r}")
        is_end = end == "ending"
        strict = not is_end and strategy == "error"
        if option == names[2]:
            return Bound(option, others, None, None, _as_time(option, self.number(option, 0)), strict, is_end)
        if option == names[1]:
            times = self.by_partition(option, 0)
            for time in (t for of_topic in times.values() for t in of_topic.values()):
                _as_time(option, time)
            return Bound(option, others, None, times, None, strict, is_end)
        if text is None or text.lower() in _WORDS:
            everywhere = default if text is None else _WORDS[text.lower()]
            if everywhere == wrong:
                raise UsageError(f"option {option} of a batch cannot be {text}: nothing would be read")
            return Bound(option, everywhere)
        offsets = self.by_partition(option, EARLIEST, "earliest, latest, or ")
        for topic, of_topic in offsets.items():
            for partition, offset in of_topic.items():
                if offset == wrong:
                    raise UsageError(f"option {option} has {offset} for partition {partition} of topic {topic!r}")
        return Bound(option, others, offsets=offsets)

    def topics(self) -> tuple[tuple[str, ...], str | None, dict[str, frozenset[int]]]:
        """Return the topics, or the pattern of their names, and the only partitions to read of some topics."""
        named = [name for name in _TOPICS if self.text(name)]
        if len(named) != 1:
            raise self.missing(
                "name what to read with one of the options topic, subscribe (topics with commas between), subscribePattern "
                '(a regular expression for their names) and assign (partitions, as {"topic":[0,1]})'
            )
        text = self.text(named[0]) or ""
        if named == ["assign"]:
            try:
                assigned = {topic: frozenset(partitions) for topic, partitions in _ASSIGNED.decode(text).items()}
            except msgspec.MsgspecError as e:
                raise UsageError(f'option assign must be JSON like {{"topic":[0,1]}}: {e}') from None
            if not all(assigned.values()) or not assigned:
                raise UsageError(f"option assign is {text}: name a partition of each topic that it has")
            return tuple(assigned), None, assigned
        if named == ["subscribePattern"]:
            try:
                re.compile(text)
            except re.error as e:
                raise UsageError(
                    f"option subscribePattern is {text!r}, which is not a regular expression: {e}"
                ) from None
            return (), text, {}
        topics = tuple(dict.fromkeys(t.strip() for t in text.split(",") if t.strip()))
        if not topics or (named == ["topic"] and len(topics) > 1):
            raise UsageError(f"option {named[0]} is {text!r}: name several topics with option subscribe")
        return topics, None, {}


def _as_time(option: str, time_ms: int | None) -> int | None:
    """Return a time in milliseconds. Raises `UsageError` if it is probably in another unit."""
    try:
        refuse_early(time_ms or 0, "give milliseconds")
    except ValueError as e:
        raise UsageError(f"option {option}: {e}") from e
    return time_ms


@lru_cache(maxsize=2)
def _settled(config: StoreConfig, environment: frozenset[tuple[str, str]]) -> StoreConfig:
    """Return the resolved address of the bucket in this environment. The result is cached, since boto3 takes 25 ms of
    CPU time and Spark calls this often.
    """
    return S3Store(config).access.settled()


def creates_table(given: Mapping[str, str]) -> bool:
    """Return whether Spark requests the columns for a table that it creates.

    Raises:
        UsageError: the table is created with options, which Spark would lose.
    """
    names = {name.lower() for name in given}
    if _OF_A_TABLE in names and any(name.startswith("option.") for name in names):
        raise UsageError(_NO_TABLE)
    return _OF_A_TABLE in names


def columns_wanted(given: Mapping[str, str]) -> list[str]:
    """Return the columns that the option `columns` names, in its order; empty without the option."""
    text = _Options(given, _READ).text("columns")
    return [] if text is None else list(dict.fromkeys(name.strip() for name in text.split(",")))


def read_options(given: Mapping[str, str], *, streaming: bool | None) -> ReadOptions:
    """Return the options of a source.

    Args:
        streaming: None if it is not known yet, so that options of batches and of streams are allowed.

    Raises:
        UsageError: an option is invalid, or options contradict each other.
    """
    o = _Options(given, _READ)
    ending = [name for name in _READ if name.startswith("ending") and o.text(name)]
    if streaming and ending:
        raise UsageError(f"a stream has no end: option {ending[0]} is for batches only")
    topics, pattern, assigned = o.topics()
    batch = streaming is False
    options = ReadOptions(
        o.address(),
        topics,
        pattern,
        assigned,
        o.bound("starting", LATEST if streaming else EARLIEST, LATEST if batch else None),
        o.bound("ending", LATEST, EARLIEST if batch else None),
        o.number("minPartitions", 1),
        int(os.environ.get(CORES, "1")),
        o.flag("failOnDataLoss", True),
        o.flag("includeHeaders", False),
        o.number("minOffsetsPerTrigger", 1),
        o.number("maxOffsetsPerTrigger", 1),
        o.number("maxBytesPerTrigger", 1),
        o.milliseconds("maxTriggerDelay", _TRIGGER_DELAY_MS),
        o.text("pin"),
    )
    if streaming and options.pin is not None:
        raise UsageError("a stream reads the newest state: option pin is for batches only")
    least, most = options.min_offsets, options.max_offsets
    if least is not None and most is not None and least > most:
        raise UsageError(f"option minOffsetsPerTrigger is {least}, and maxOffsetsPerTrigger is less: {most}")
    for bound in (options.starting, options.ending):
        for topic in bound.named if topics else ():
            if topic not in topics:
                raise UsageError(f"option {bound.option} names topic {topic!r}, which is not read")
    _check_order(options.starting, options.ending)
    return options


def _check_order(starting: Bound, ending: Bound) -> None:
    """Raise `UsageError` if reading would end before it begins, or if start and end name different partitions."""
    option, end = starting.option, ending.option
    if starting.timestamp_ms is not None and ending.timestamp_ms is not None:
        if starting.timestamp_ms > ending.timestamp_ms:
            raise UsageError(f"option {option} is {starting.timestamp_ms}, after {end} at {ending.timestamp_ms}")
        return
    for first, last in ((starting.offsets, ending.offsets), (starting.timestamps, ending.timestamps)):
        if first is None or last is None:
            continue
        if {topic: set(of) for topic, of in first.items()} != {topic: set(of) for topic, of in last.items()}:
            raise UsageError(f"options {option} and {end} name different partitions: name the same in both")
        for topic, of_topic in first.items():
            for partition, value in of_topic.items():
                if value > last[topic][partition] >= 0:
                    raise UsageError(
                        f"option {option} has {value} for partition {partition} of topic {topic!r}, after {end} at "
                        f"{last[topic][partition]}"
                    )


def write_options(given: Mapping[str, str], *, topic_column: bool, streaming: bool) -> WriteOptions:
    """Return the options of a sink.

    Args:
        topic_column: whether each row names its topic.

    Raises:
        UsageError: an option is missing or invalid.
    """
    o = _Options(given, _WRITE)
    topic = o.text("topic")
    if topic is None and not topic_column:
        raise o.missing("name the topic to write to with option topic, or in a column topic")
    producer, batch_id = o.text("producerName"), o.number("batchId", 0, MAX_BATCH_ID)
    if streaming and batch_id is not None:
        raise UsageError("option batchId is for batches only; a stream's batches have their own ids")
    if not streaming and (producer is None) != (batch_id is None):
        raise UsageError(
            "options producerName and batchId go together: a batch is written once for each name and id, and ids must rise"
        )
    size = o.number("objectBytes", 1 << 10, MAX_BATCH_BYTES)
    return WriteOptions(o.address(), topic, producer, batch_id, size or _OBJECT_BYTES)
