"""The options that a user gave to `format("l0gc")`: which of them there are, and what their text says (pure).

An option that would be ignored is refused, since whoever gave it means something by it: misspelt ones, those of Spark's
Kafka connector that l0gc has something else for, and a path. Let through are those that Spark adds by itself, and those of
the Kafka connector that only say how it talks to Kafka.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from l0gc.errors import UsageError

EARLIEST: Final = -2
LATEST: Final = -1
"""What the JSON form of offsets says for the two ends of a partition."""

_SPARKS: Final = {"checkpointlocation", "queryname", "owner", "provider"}
"""What Spark adds by itself: to a stream's sink, and where a table is created."""
_WITHOUT_EFFECT: Final = {
    "groupidprefix",
    "kafkaconsumer.polltimeoutms",
    "fetchoffset.numretries",
    "fetchoffset.retryintervalms",
}
_INSTEAD: Final = {
    "path": "a topic has no path: name it with option topic",
    "paths": "a topic has no path: name several with option subscribe",
    "maxrecordsperpartition": "option minPartitions says how many tasks read at least",
    "kafka.bootstrap.servers": "option url says where the cluster is",
    "kafka.group.id": "the checkpoint holds how far a query has read",
    "kafka.auto.offset.reset": "option startingOffsets says where a query begins",
    "kafka.isolation.level": "what is in a topic is committed",
    "kafka.transactional.id": "option producerName names a sink's producer, which writes each batch once",
}
"""Why an option is refused, and what to use instead."""
_KAFKAS: Final = "kafka."
_KAFKA_CLIENT: Final = "options that begin with kafka. are for Kafka's clients, and l0gc has none"
_NEAR: Final = 0.85
_BY_PARTITION: Final = msgspec.json.Decoder(dict[str, dict[int, int]])
_BOOLEANS: Final = {"true": True, "false": False}
_SPAN: Final = re.compile(r"([0-9]+)\s*([a-z]*)")
_MILLISECONDS: Final = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
"""The units of Spark's own spans of time, but for microseconds."""


class GivenOptions:
    """Options by their names, of which Spark does not keep the case.

    Args:
        known: the names of those that mean something.

    Raises:
        UsageError: one does not exist here.
    """

    def __init__(self, given: Mapping[str, str], known: Collection[str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        by_lower = {name.lower(): name for name in known}
        for name in sorted(self._given.keys() - by_lower.keys() - _SPARKS - _WITHOUT_EFFECT):
            if name.startswith("option."):
                continue
            if name in _INSTEAD or name.startswith(_KAFKAS):
                raise UsageError(f"option {name} is not supported: {_INSTEAD.get(name, _KAFKA_CLIENT)}")
            near = difflib.get_close_matches(name, by_lower, 1, _NEAR)
            raise UsageError(
                f"option {name!r} does not exist" + (f": did you mean {by_lower[near[0]]!r}?" if near else "")
            )

    def text(self, name: str) -> str | None:
        return self._given.get(name.lower(), "").strip() or None

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

    def milliseconds(self, name: str, default: int) -> int:
        """A span of time, which is in milliseconds without a unit."""
        value = self.text(name)
        if value is None:
            return default
        found = _SPAN.fullmatch(value.lower())
        if found is None or found[2] not in _MILLISECONDS:
            raise UsageError(f"option {name} must be a span of time such as 15m or 30s, not {value!r}")
        return int(found[1]) * _MILLISECONDS[found[2]]

    def by_partition(self, name: str, least: int, words: str = "") -> dict[str, dict[int, int]]:
        """A number for each of some partitions, by topic.

        Args:
            words: what else the option may say, for messages.
        """
        try:
            found = _BY_PARTITION.decode(self.text(name) or "")
        except msgspec.MsgspecError as e:
            raise UsageError(f'option {name} must be {words}JSON like {{"topic":{{"0":23,"1":42}}}}: {e}') from None
        for topic, of_topic in found.items():
            for partition, value in of_topic.items():
                if partition < 0 or value < least:
                    raise UsageError(f"option {name} has {value} for partition {partition} of topic {topic!r}")
        return found
