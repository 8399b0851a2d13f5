"""The options of each operation, each described once.

These structs determine the commands' options, the library's keywords (`api/keywords.py`, generated), what `gc` passes
to its steps, the sections of the settings file, and the tables of the documents. A field is an option: its default is
the option's default, and its line under `Attributes` is the option's help. If an option has a unit, its name ends with
it: `_s` for seconds, `_bytes` for bytes. Only the command line parses texts like `7d` or `4MiB`; the library also
accepts a `timedelta` for seconds. A value that is out of bounds is refused, whatever its source.
"""

import inspect
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Final, Literal, Self, get_args, get_origin, get_type_hints

import msgspec

from l0gc.errors import UsageError
from l0gc.limits import MAX_BATCH_BYTES

HOUR_S: Final = 3600
DAY_S: Final = 24 * HOUR_S
FOLLOW_S: Final = 1.0
"""How long a follower of a topic waits between two checks for new records."""
PARTITIONS_SHOWN: Final = 20
"""How many partitions of a topic are shown by default."""
PIN_TTL_S: Final = DAY_S
"""How long a pin lasts by default: longer than a backup takes."""
LEASE_S: Final = 600
"""How long a pin that a process renews lasts after its last renewal."""
MIB: Final = 1 << 20

TimestampUnit = Literal["s", "ms", "us", "ns"]
LENGTH_BYTES: Final = 4
"""The bytes of the length before a record in the format length-prefixed, the highest byte first."""
EARLY_MS: Final = 631_152_000_000
"""The beginning of 1990. A lower time in milliseconds is refused: it was probably given in seconds and would mean a day
in 1970.
"""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SHOWN: Final = 60
"""How many characters of a refused value a message shows."""

Count = Annotated[int, msgspec.Meta(ge=1)]
Number = Annotated[int, msgspec.Meta(ge=0)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Rate = Annotated[float, msgspec.Meta(gt=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]
TotalSize = Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]
"""The size of the data of a whole run, which is never in memory at once."""


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one operation. Raises `UsageError` for a value that is out of bounds."""

    def __post_init__(self) -> None:
        for name, kind in types_of(type(self)).items():
            msgspec.structs.force_setattr(self, name, checked_value(name, getattr(self, name), kind))

    @classmethod
    def of(cls, options: Mapping[str, object]) -> Self:
        """Return an operation with the options that a caller of the library gave; a duration may be a `timedelta`."""
        return cls(**options)

    @classmethod
    def command(cls) -> str:
        """Return the operation's name on the command line and in the settings file: `compute-watermark`."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", cls.__name__).lower()


def checked_value(name: str, value: object, kind: Any) -> Any:
    """Return the value of an option, or of an argument of a public method, converted to its type (hazard 31).

    Raises:
        UsageError: the value has another type, is out of bounds or beyond 64 bits, or is a text that is not Unicode or
            has a null byte.
    """
    try:
        converted = msgspec.convert(_in_its_unit(name, value), kind)
        _check_storable(converted)
        return str(converted) if isinstance(converted, str) else converted  # a plain str, which all encoders accept
    # msgspec raises the last two for an object of numpy that it mistakes for a mapping.
    except (msgspec.ValidationError, ValueError, AttributeError, LookupError) as e:
        shown = repr(value)
        shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
        why = f"its type is {type(value).__name__}" if isinstance(e, AttributeError | LookupError) else str(e)
        raise UsageError(f"{name} cannot be {shown}: {why[:1].lower()}{why[1:]}") from e


def _in_its_unit(name: str, value: object) -> object:
    """Return a duration in the unit in which the name ends, and a time as milliseconds since 1970."""
    match value:
        case timedelta() if name.endswith(("_s", "_ms")):
            if value < timedelta():
                raise ValueError("it must not be negative")
            return value.total_seconds() if name.endswith("_s") else value // timedelta(milliseconds=1)
        case datetime() if name.endswith("_time_ms"):
            if value.tzinfo is None:
                raise ValueError("it names no time zone; use for example datetime.now(UTC)")
            return (value - _EPOCH) // timedelta(milliseconds=1)
        case int() if name.endswith("_time_ms"):
            refuse_early(value, "give milliseconds, or a datetime")
    return value


def refuse_early(time_ms: float, way_out: str) -> None:
    """Raise `ValueError` for a time before 1990, except 0, which is the same time in every unit."""
    if 0 < time_ms < EARLY_MS:
        day = (_EPOCH + timedelta(milliseconds=time_ms)).date()
        raise ValueError(f"{time_ms} milliseconds are {day}, so it is probably in another unit; {way_out}")


def _check_storable(value: object) -> None:
    """Raise `ValueError` for a number or text that no entry can store, alone or in a sequence."""
    match value:
        case int() | float() if not -(2**63) <= value < 2**63:  # refuses NaN, too
            raise ValueError("it must fit into 64 bits")
        case str() | Path():
            text = str(value)
            text.encode(errors="surrogateescape" if isinstance(value, Path) else "strict")
            if "\0" in text:
                raise ValueError("it has a null byte")
        case list() | tuple():
            for part in value:
                _check_storable(part)


@cache
def types_of(operation: type[Operation]) -> dict[str, Any]:
    """Return the options' types, by name, with their bounds."""
    return get_type_hints(operation, include_extras=True)


def bounded(kind: Any) -> tuple[Any, msgspec.Meta]:
    """Return the type of an option's value if it is not None, and its bounds."""
    kind = next((k for k in get_args(kind) if k is not NoneType), kind) if NoneType in get_args(kind) else kind
    return get_args(kind) if get_origin(kind) is Annotated else (kind, msgspec.Meta())


def default_of(operation: type[Operation], name: str) -> Any:
    """Return an option's default."""
    return dict(zip(operation.__struct_fields__, operation.__struct_defaults__, strict=True))[name]


def step_of(kind: Any) -> type[Operation] | None:
    """Return the operation whose options a field of `Gc` holds; None for any other field."""
    return next((k for k in get_args(kind) if isinstance(k, type) and issubclass(k, Operation)), None)


def written(operation: type[Operation], name: str) -> str:
    """Return an option's name on the command line, in the environment and in the settings file, e.g. `min-age`,
    `no-record`.

    The values have units there, so the names have none. An option that is on by default has its negated name.
    """
    names = dict(zip(operation.__struct_fields__, operation.__struct_encode_fields__, strict=True))
    text = re.sub(r"_m?s$", "", names[name]).replace("_", "-")
    on = default_of(operation, name) is True or step_of(types_of(operation)[name])
    return f"no-{text}" if on else text


def texts_of(kind: type) -> dict[str, str]:
    """Return the descriptions of a class's attributes, by name, from the docstrings of the class and its bases; empty
    under `-OO`.
    """
    texts = dict[str, str]()
    for part in reversed(kind.__mro__):
        _, _, lines = inspect.cleandoc(part.__doc__ or "").partition("\nAttributes:\n")
        for entry in re.split(r"\n(?= {4}\w)", "\n" + lines.split("\n\n")[0])[1:]:
            name, _, text = entry.strip().partition(": ")
            texts[name] = " ".join(text.split())
    return texts


class Deletion(Operation, frozen=True, kw_only=True):
    """The options that all runs that delete have.

    Attributes:
        dry_run: Delete nothing, and report what the run would delete.
        max_objects: Delete no more objects than this.
        max_bytes: Delete at most this much, by the size of the objects.
        max_rate: Delete no more objects a second than this.
        max_delete_ratio: Stop before deleting more than this share of the L0 objects, or, in a vacuum, of the L1
            objects, for example 0.5.
        record: False to keep no run record; without one, nothing can be shown or undeleted.
        record_dir: Keep the run record in this folder instead of the bucket, for example if the store is full.
    """

    dry_run: bool = False
    max_objects: Count | None = None
    max_bytes: TotalSize | None = None
    max_rate: Rate | None = None
    max_delete_ratio: Share | None = None
    record: bool = True
    record_dir: Path | None = None

    @property
    def whole(self) -> bool:
        """Return whether the run may delete everything that is eligible."""
        return not self.dry_run

    @property
    def in_one_process(self) -> str:
        """Return the given options, if any, that only a run in one process can keep."""
        names = ("max_objects", "max_bytes", "max_delete_ratio", "record_dir", "record")
        given = [name for name in names if getattr(self, name) != default_of(type(self), name)]
        return ", ".join(f"--{written(type(self), name)}" for name in given)


class Sweep(Deletion, frozen=True, kw_only=True):
    """Delete the L0 objects that M allows.

    Attributes:
        min_age_s: Keep objects that are younger than this.
        shards: Sweep only these shards, including the first and the last, for example 000-249.
        shadow: Delete nothing, but keep a record of what would be deleted, for l0gc verify --shadow.
        grace_s: Delete only objects that an M published at least this long ago allows. This leaves time to notice a
            mistake.
        up_to: Delete nothing above this epoch, for example to try a low epoch first.
        purge_versions: Permanently remove every version of deleted objects.
    """

    min_age_s: Seconds = 0
    shards: tuple[int, int] | None = None
    shadow: bool = False
    grace_s: Seconds = 0
    up_to: Number | None = None
    purge_versions: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shadow:  # one field answers whether a run deletes
            msgspec.structs.force_setattr(self, "dry_run", True)

    @property
    def whole(self) -> bool:
        return (self.shadow or super().whole) and self.shards is None and self.up_to is None


class Vacuum(Deletion, frozen=True, kw_only=True):
    """Delete all other garbage.

    Attributes:
        l1_grace_s: How long merged or dropped L1 objects are kept for readers that still use them.
        orphan_age_s: Refuse and delete L1 objects that runs stamped this long ago but have not committed.
        orphans: False to skip the listing that finds orphans.
        keep_runs_s: Remove run records that are older than this.
    """

    l1_grace_s: Seconds = HOUR_S
    orphan_age_s: Seconds = DAY_S
    orphans: bool = True
    keep_runs_s: Seconds = 30 * DAY_S


class Housekeep(Operation, frozen=True, kw_only=True):
    """Keep the logs short and advance the windows.

    Attributes:
        barrier: Move every window to a fresh epoch, so that everything uploaded before can be deleted once it is
            reconciled.
    """

    barrier: bool = False


class Reconcile(Operation, frozen=True, kw_only=True):
    """Lift records from L0 to L1.

    Attributes:
        up_to: Lift only records at or below this epoch, and the records before them in their partitions.
        max_bytes: Lift at most this much of L0, the oldest epochs first, but at least one log entry's objects.
        round_bytes: How much of L0 is lifted and committed at once.
    """

    up_to: Number | None = None
    max_bytes: TotalSize | None = None
    round_bytes: Size = 4096 * MIB


class Merge(Operation, frozen=True, kw_only=True):
    """Merge small L1 objects into large ones.

    Attributes:
        dry_run: Merge nothing, and report what there is to merge.
        target_bytes: The largest size of a merged object. Objects of at least half this size are not merged.
        fan_in: A partition may keep one more small object each time its small objects have grown by this factor.
        max_bytes: Also rewrite about this much of L1 that has an older value schema than its topic, the oldest first.
    """

    dry_run: bool = False
    target_bytes: Annotated[int, msgspec.Meta(ge=2, le=1 << 40)] = 128 * MIB
    fan_in: Annotated[int, msgspec.Meta(ge=2)] = 4
    max_bytes: Size = 4096 * MIB


class Expire(Operation, frozen=True, kw_only=True):
    """Delete records beyond their topic's retention.

    Attributes:
        dry_run: Delete nothing, and report what a run would delete.
    """

    dry_run: bool = False


class TableSync(Operation, frozen=True, kw_only=True):
    """Update tables so that they list the current L1 objects.

    Attributes:
        keep_snapshots_s: How long a table's snapshot stays readable after a newer one replaces it.
    """

    keep_snapshots_s: Seconds = DAY_S


class ComputeWatermark(Operation, frozen=True, kw_only=True):
    """Compute M and publish it.

    Attributes:
        scan: False to skip the listing, so that objects are not counted.
        dry_run: Compute M and write nothing.
    """

    scan: bool = True
    dry_run: bool = False


class Gc(Operation, frozen=True, kw_only=True):
    """All steps of a garbage collection, each with its own options, or None to skip it.

    Attributes:
        dry_run: Change nothing: compute M, and report what a sweep at the published M and a vacuum would do.
        shadow: Delete no data: the sweep records what it would delete, and the vacuum is skipped.
    """

    dry_run: bool = False
    shadow: bool = False
    housekeep: Housekeep | None = Housekeep()
    reconcile: Reconcile | None = Reconcile()
    merge: Merge | None = Merge()
    expire: Expire | None = Expire()
    table_sync: TableSync | None = TableSync()
    compute_watermark: ComputeWatermark | None = ComputeWatermark()
    sweep: Sweep | None = Sweep()
    vacuum: Vacuum | None = Vacuum()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shadow:
            sweep = msgspec.structs.replace(self.sweep, shadow=True) if self.sweep is not None else None
            msgspec.structs.force_setattr(self, "sweep", sweep)
            msgspec.structs.force_setattr(self, "vacuum", None)


class Upload(Operation, frozen=True, kw_only=True):
    """Upload records into a topic.

    Attributes:
        partition: Send everything to this partition. Without this option and a key field, records are spread
            round-robin, starting at a random partition, or at the first one for a producer.
        key_field: Use this field of the JSON record as its key, and send the record to the partition that the key hashes to.
        timestamp_field: Use this field of the JSON record as its create time: milliseconds since 1970, or ISO 8601.
        timestamp_unit: The unit of numbers in the timestamp field and of whole numbers in a column create_time. By
            default milliseconds, in which a time before 1990 is refused, since it is probably in another unit.
        producer: Upload under this name, so that an interrupted upload can be repeated without losing or duplicating
            records.
        batch_bytes: Write one L0 object for about this many bytes of records.
        format: The format of the files. auto accepts lines of text, also in gzip and zstd, and refuses anything else;
            raw accepts any bytes and cuts them at newlines; length-prefixed accepts any bytes, each record after its
            length in 4 bytes, the highest byte first; parquet and arrow accept rows with a column value, or with the
            typed columns of the topic, and optionally with key, headers, create_time and partition.
    """

    partition: int | None = None
    key_field: str | None = None
    timestamp_field: str | None = None
    timestamp_unit: TimestampUnit | None = None
    producer: str | None = None
    batch_bytes: Annotated[int, msgspec.Meta(ge=1, le=MAX_BATCH_BYTES)] = 4 * MIB
    format: Literal["auto", "raw", "length-prefixed", "parquet", "arrow"] = "auto"


class Read(Operation, frozen=True, kw_only=True):
    """Read a topic's records.

    Attributes:
        partition: Read only this partition. By default, read all of them, one after another.
        start: Begin at this offset, in each partition, or at PARTITION:OFFSET. By default, begin at the first offset
            that exists.
        before_offset: End before this offset, in each partition.
        from_time_ms: Begin at the first record that landed at this time or later.
        before_time_ms: End before the first record that landed at this time or later.
        skip_holes: Skip records that were given up, with a warning. Without this option, reading ends with an error at
            such records.
        pin: Protect the records by a pin until they are read, also from retention and the topic's deletion.
        topic_id: Refuse the topic if it has a different id, because it was deleted and created again; l0gc topic
            describe prints the id.
    """

    partition: int | None = None
    start: Number | dict[Offset, Offset] | None = msgspec.field(default=None, name="from")
    before_offset: Number | None = None
    from_time_ms: Number | None = None
    before_time_ms: Number | None = None
    skip_holes: bool = False
    pin: bool = False
    topic_id: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start is not None and self.from_time_ms is not None:
            raise UsageError("--from and --from-time exclude each other")
        if self.before_offset is not None and self.before_time_ms is not None:
            raise UsageError("--before-offset and --before-time exclude each other")
        least = self.start if isinstance(self.start, int) else 0
        if self.before_offset is not None and self.before_offset < least:
            raise UsageError(f"--before-offset {self.before_offset} is below --from {self.start}")
        if self.before_time_ms is not None and self.before_time_ms < (self.from_time_ms or 0):
            raise UsageError(f"--before-time {self.before_time_ms} is before --from-time {self.from_time_ms}")


class Verify(Operation, frozen=True, kw_only=True):
    """Check that the bucket holds what the journals record.

    Attributes:
        deep: Read every block that a journal needs and every L1 object, and check their contents.
        min_age_s: Report an L1 object that no journal lists if it is older than this; a vacuum should have deleted it.
        shadow: Check only that nothing in the records of shadow runs has been needed since.
        access_logs: With --shadow, a folder of S3 server access logs, or s3://bucket/folder, to check that nothing was
            read either.
    """

    deep: bool = False
    min_age_s: Seconds = 3 * DAY_S
    shadow: bool = False
    access_logs: str | None = None


class Init(Operation, frozen=True, kw_only=True):
    """Create a cluster.

    Attributes:
        create_bucket: Create the bucket if it does not exist.
        shards: The number of folders that L0 keys are spread over; 1,000 by default.
        key_template: The shape of L0 keys; by default `level_zero/data/{shard:03}/{epoch:018}/{uuid}`.
        journals: The number of journals that topics are spread over; 16 by default.
        external_log: Take epochs and partitions from another system with its own log.
    """

    create_bucket: bool = False
    shards: Annotated[int, msgspec.Meta(ge=1, le=1000)] | None = None
    key_template: str | None = None
    journals: Count | None = None
    external_log: bool = False


OPERATIONS: Final[dict[str, type[Operation]]] = {
    kind.command(): kind for kind in (
        Init, Upload, Read, Housekeep, Reconcile, Merge, Expire, TableSync, ComputeWatermark, Sweep, Vacuum, Gc, Verify,
    )
}  # fmt: skip
"""All operations by the names of their sections in the settings file."""
