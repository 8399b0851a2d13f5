"""The bucket's layout: L0 keys, and the paths under `l0gc/` and `level_one/`.

Deletion relies on this module: a key is an L0 key only if it has exactly the layout's shape (width, ASCII digits,
UUID). All other keys parse to None; they are counted and shown, but never deleted (hazard 13).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import Final, NamedTuple

import msgspec

from l0gc.epoch import MAX_EPOCH, is_epoch
from l0gc.errors import UsageError

DEFAULT_TEMPLATE: Final = "level_zero/data/{shard:03}/{epoch:018}/{uuid}"
DEFAULT_SHARDS: Final = 1000

_UUID: Final = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_FIELD: Final = re.compile(r"\{(\w+)(?::0([0-9]{1,2}))?\}")
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")

L1_DATA: Final = "level_one/data/"
_SHARED_KEY: Final = re.compile(rf"{L1_DATA}({_NAME.pattern})-([0-9]{{1,19}})/j([0-9]{{4,9}})/([0-9]{{18}})/({_UUID})")
_L1_KEY: Final = re.compile(
    rf"{L1_DATA}({_NAME.pattern})-([0-9]{{1,19}})/([0-9]{{5,7}})/([0-9]{{18}})/"
    rf"([0-9]{{20}})-([0-9]{{20}})-({_UUID})\.parquet"
)

_SAFE_DIGITS: Final = 18
"""A number of at most this many digits is always a valid epoch."""

JUMP: Final = "~"
"""A character that sorts after every digit and '/', so that `<shard>~` lies after all keys of a shard and before the
next shard. It cannot be the name of a "directory"; some stores skip a directory if a listing starts at its name (hazard
12).
"""


class L0Key(msgspec.Struct, frozen=True):
    """The fields of an L0 object's key."""

    shard: int
    epoch: int
    name: str


class KeyLayout(msgspec.Struct, frozen=True, dict=True):
    """The shape of L0 keys, as a template with `{shard}`, `{epoch}` and `{uuid}`; `:0N` fixes a width of N digits.

    Raises:
        UsageError: the template lacks a field, repeats one, or has a number without a fixed width.
    """

    template: str = DEFAULT_TEMPLATE
    shards: int = DEFAULT_SHARDS

    def __post_init__(self) -> None:
        names = [m.group(1) for m in _FIELD.finditer(self.template)]
        if re.search(r"[{}]", _FIELD.sub("", self.template)):
            raise UsageError(f"key template {self.template!r} has a brace that belongs to no field")
        if sorted(names) != ["epoch", "shard", "uuid"]:
            raise UsageError(
                f"key template {self.template!r} must hold {{shard}}, {{epoch}} and {{uuid}} once each, not {names}"
            )
        widths = [int(m.group(2) or 0) for m in _FIELD.finditer(self.template)]
        if names != ["shard", "epoch", "uuid"] or not widths[0] or not widths[1] or widths[2]:
            raise UsageError(
                f"key template {self.template!r} must order {{shard:0N}}, {{epoch:0N}}, {{uuid}}, with widths"
            )
        if self.template[self.template.index("}") + 1] >= JUMP:
            raise UsageError(
                f"key template {self.template!r} needs a separator that sorts before {JUMP!r} after the shard"
            )
        if not 1 <= self.shards <= 10 ** widths[0]:
            raise UsageError(f"{self.shards} shards do not fit {widths[0]} digits; use 1 to {10 ** widths[0]}")

    @cached_property
    def _parts(self) -> tuple[str, int, str, int, str, str]:
        """Return the parts of the template: text before the shard, its width, text before the epoch, its width, text
        before the name, and the rest.
        """
        before, _, shard, between, _, epoch, last, _, _, rest = _FIELD.split(self.template)
        return before, int(shard), between, int(epoch), last, rest

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        before, shard, between, epoch, last, rest = self._parts
        numbers = f"{re.escape(before)}[0-9]{{{shard}}}{re.escape(between)}[0-9]{{{epoch}}}"
        return re.compile(rf"{numbers}{re.escape(last)}{_UUID}{re.escape(rest)}\Z")

    @property
    def data_prefix(self) -> str:
        """Return the part of every L0 key before the shard, e.g. `level_zero/data/`."""
        return self._parts[0]

    def format(self, shard: int, epoch: int, name: str) -> str:
        """Return the key of the L0 object `name` (a UUID) at `epoch` in `shard`.

        Raises:
            UsageError: the epoch or the shard does not fit its field.
        """
        _, _, _, width, last, rest = self._parts
        if not is_epoch(epoch) or epoch >= 10**width or not 0 <= shard < self.shards:
            raise UsageError(f"shard {shard} of {self.shards} at epoch {epoch} does not fit the key layout")
        return f"{self._up_to_epoch(shard, epoch)}{last}{name}{rest}"

    def parse(self, key: str) -> L0Key | None:
        """Return the fields of `key`, or None if it is not an L0 key of this layout."""
        (epoch,) = self.epochs([key])
        if epoch < 0:
            return None
        (a, b, _, end), last, rest = self.field_bounds, self._parts[4], self._parts[5]
        return L0Key(int(key[a:b]), epoch, key[end + len(last) : len(key) - len(rest)])

    @cached_property
    def field_bounds(self) -> tuple[int, int, int, int]:
        """Return where the shard and the epoch begin and end in a key. Every field has a fixed width."""
        before, shard, between, epoch, _, _ = self._parts
        a, b, c, d = accumulate((len(before), shard, len(between), epoch))
        return a, b, c, d

    def epochs(self, keys: Sequence[str]) -> list[int]:
        """Return the epoch of each key, or -1 if `parse` returns None."""
        pattern, (a, b, c, d) = self._pattern, self.field_bounds
        epochs = [int(k[c:d]) if pattern.match(k) else -1 for k in keys]
        if self.shards < 10 ** (b - a) or d - c > _SAFE_DIGITS:
            for i, (key, epoch) in enumerate(zip(keys, epochs, strict=True)):
                if epoch > MAX_EPOCH or (epoch >= 0 and int(key[a:b]) >= self.shards):
                    epochs[i] = -1
        return epochs

    def shard_text(self, key: str) -> str:
        """Return the digits of the shard in `key` for display; for a foreign key, return the text at that place."""
        return key[self.field_bounds[0] : self.field_bounds[1]]

    def shard_prefix(self, shard: int) -> str:
        """Return the common prefix of all keys of `shard`, without the separator after the number."""
        return f"{self._parts[0]}{shard:0{self._parts[1]}}"

    def before_shard(self, shard: int) -> str:
        """Return a `StartAfter` between the keys of the previous shard and those of `shard`; empty for the first shard."""
        return self.shard_prefix(shard - 1) + JUMP if shard > 0 else ""

    def before_epoch(self, shard: int, epoch: int) -> str:
        """Return a `StartAfter` between the keys of `shard` below `epoch` and its other keys."""
        return self.before_shard(shard) if epoch <= 0 else f"{self._up_to_epoch(shard, epoch - 1)}{JUMP}"

    def before_name(self, shard: int, epoch: int, first: int) -> str:
        """Return a `StartAfter` before the keys of an epoch whose names begin with the byte `first` (0 to 255), in
        hexadecimal.
        """
        if first <= 0:
            return self.before_epoch(shard, epoch)
        return f"{self._up_to_epoch(shard, epoch)}{self._parts[4]}{first - 1:02x}{JUMP}"

    def _up_to_epoch(self, shard: int, epoch: int) -> str:
        return f"{self.shard_prefix(shard)}{self._parts[2]}{epoch:0{self._parts[3]}}"

    def shard_of(self, name: str) -> int:
        """Return the shard of the object `name`, spread by hash."""
        return zlib.crc32(name.encode()) % self.shards


class PartitionId(msgspec.Struct, frozen=True):
    """One partition of one incarnation of a topic; a topic that is created anew has another revision."""

    topic: str
    revision: int
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"

    @property
    def path(self) -> str:
        """Return `{topic}-{revision}/{partition:05}`, as in every key of the partition."""
        return f"{self.topic}-{self.revision}/{self.partition:05}"


class L1Key(NamedTuple):
    """The fields of an L1 object's key.

    The key of a shared object, which has records of many partitions, names their `journal`; its `partition`, `base` and
    `last` are -1. In other keys, `journal` is -1.
    """

    topic: str
    revision: int
    partition: int
    epoch: int
    base: int
    last: int
    name: str
    journal: int = -1

    @property
    def id(self) -> PartitionId:
        return PartitionId(self.topic, self.revision, self.partition)


FORMAT: Final = "l0gc/format.json"
CONTROLLER_LOG: Final = "l0gc/controller/"
JOURNALS: Final = "l0gc/journal/"
PUBLISHED_WATERMARK: Final = "l0gc/watermarks/published.json"
PUBLISHED_COPY: Final = "l0gc/controller/published.json"
"""A copy of M in the controller's folder, which exists in every cluster."""
SCANS: Final = "l0gc/watermarks/scans/"
RUNS: Final = "l0gc/runs/"
SHADOW: Final = "shadow/"
"""The prefix of a shadow run's id, and of its record's folder below `RUNS`, which keeps it apart from real deletions."""
GC_NOTE: Final = "l0gc/gc/last.json"
PAUSED: Final = "l0gc/paused.json"
ATTEMPTS: Final = "l0gc/attempts/"


def journal_log(journal: int) -> str:
    """Return the folder of a journal's log."""
    return f"{JOURNALS}{journal:04}/"


def level_one(p: PartitionId, epoch: int, base: int, last: int, name: str) -> str:
    """Return the key of an L1 object with the records `base` to `last`, inclusive, written by a run at `epoch`."""
    return f"{L1_DATA}{p.path}/{epoch:018}/{base:020}-{last:020}-{name}.parquet"


def level_one_shared(topic: str, revision: int, journal: int, epoch: int, name: str) -> str:
    """Return the key of a shared L1 object, which has records of many of the topic's partitions in one journal. The key
    names the journal, so that a search for orphans reads no other journal. It sorts after the keys of single
    partitions.
    """
    return f"{L1_DATA}{topic}-{revision}/j{journal:04}/{epoch:018}/{name}"


def parse_level_one(key: str) -> L1Key | None:
    """Return the fields of `key`, or None if it is not the key of an L1 object."""
    if (m := _SHARED_KEY.fullmatch(key)) is not None:
        journal = int(m[3])
        if m[3] != f"{journal:04}" or m[2] != str(int(m[2])):
            return None
        return L1Key(m[1], int(m[2]), -1, int(m[4]), -1, -1, m[5], journal)
    m = _L1_KEY.fullmatch(key)
    if m is None:
        return None
    partition = int(m[3])
    if m[3] != f"{partition:05}" or m[2] != str(int(m[2])):
        return None
    return L1Key(m[1], int(m[2]), partition, int(m[4]), int(m[5]), int(m[6]), m[7])


def check_topic_name(name: str) -> str:
    """Return `name`, if it is a valid name of a topic.

    Raises:
        UsageError: it is empty, too long, begins with '-', or has characters other than letters, digits, '.', '_' and '-'.
    """
    if not _NAME.fullmatch(name) or name in {".", ".."} or name.startswith("-"):
        raise UsageError(
            f"topic name {name!r} must be 1 to 200 letters, digits, '.', '_' or '-', and not begin with '-'"
        )
    return name
