"""The library's methods for a cluster's topics, producers, runs, pins and tables, and for errors of results."""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from functools import cache, partial, reduce, wraps
from operator import or_
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeVar, Union, Unpack, cast, get_args, get_origin

from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from l0gc.collect.record import recorded_attempt
from l0gc.errors import NotFoundError, UsageError, installing
from l0gc.events import Progress, quiet
from l0gc.formatting import Outcome
from l0gc.operations import PARTITIONS_SHOWN, PIN_TTL_S, Count, TableSync, checked_value
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.decisions import RetentionSettings
from l0gc.streamlog.controller.state import ALL_TOPICS, TABLE_PINS, ControllerState, Topic
from l0gc.streamlog.controller.value_schema import ValueColumn, changes
from l0gc.watermark.publication import refuse_if_set_back

if TYPE_CHECKING:
    from l0gc.api.keywords import TableSyncKeywords
    from l0gc.api.results import *
    from l0gc.collect.history import KeyInRun
    from l0gc.collect.record import RecordedObject, Records
    from l0gc.streamlog.topics import Alteration

R = TypeVar("R", bound=Outcome)
C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])


def checks_arguments(kind: C) -> C:
    """Make each public method of a class check the types of its arguments first (hazard 31)."""
    for name, member in list(vars(kind).items()):
        if inspect.isfunction(member) and not name.startswith("_"):
            setattr(kind, name, checking(member))
    return kind


def checking(method: F) -> F:
    """Make a function check the types of its arguments first."""
    signature = cache(partial(inspect.signature, method))
    kinds = cache(partial(_kinds_of, inspect.unwrap(method)))

    @wraps(method)
    def call(*args: Any, **keywords: Any) -> Any:
        given = signature().bind(*args, **keywords)
        for name in given.arguments.keys() & kinds().keys():
            if given.arguments[name] is not UNSET:
                given.arguments[name] = checked_value(name, given.arguments[name], kinds()[name])
        return method(*given.args, **given.kwargs)

    return cast(F, call)


def _kinds_of(method: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of a method's arguments, except those that are imported only on use."""
    kinds, names = dict[str, Any](), _Names(method.__globals__)
    for name, parameter in inspect.signature(method).parameters.items():
        if name != "self" and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            kind = eval(parameter.annotation, {}, names)  # noqa: S307 - it is in this package
            if Any not in (get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)):
                kinds[name] = kind
    taken = {name: kind for name, kind in kinds.items() if kind != str | Path}  # msgspec does not support this union
    return {name: _as_number(kind) for name, kind in taken.items()}


class _Names(dict[str, Any]):
    """The names of a module, in which a type that is imported only on use is `Any`, also within another type."""

    def __missing__(self, name: str) -> Any:
        return vars(builtins).get(name, Any)


def _as_number(kind: Any) -> Any:
    """Return the type of an argument after `checked_value` has converted durations and times to numbers."""
    parts = get_args(kind)
    others = [k for k in parts if k not in (timedelta, datetime)]
    return reduce(or_, others) if len(others) < len(parts) else kind


class Group:
    """A cluster's methods for one kind of thing. `handles` returns the cluster's handles, or raises an error after it
    was closed.
    """

    def __init_subclass__(cls) -> None:
        checks_arguments(cls)

    def __init__(self, handles: Callable[[], ClusterHandles]) -> None:
        self._handles = handles


def _retention(ms: int | timedelta | UnsetType | None, size: int | UnsetType | None) -> RetentionSettings:
    return RetentionSettings(cast("int | UnsetType | None", ms), size)  # the check converted it to a number


def _columns(value_schema: dict[str, Any] | str | None) -> Sequence[ValueColumn]:
    if value_schema is None:
        return ()
    from l0gc.streamlog.values.schema_formats import columns_of

    return columns_of(value_schema)


def _confirmed(
    cluster: ClusterHandles,
    name: str | None,
    retention: RetentionSettings,
    columns: Sequence[ValueColumn],
    confirm: Callable[[Alteration], object] | None,
) -> ControllerState | None:
    """Ask the caller to confirm an alteration, and return the state to which the answer applies; None without
    `confirm`.
    """
    if confirm is None:
        return None
    from l0gc.streamlog import topics

    alteration = topics.planned_alteration(cluster, name, retention, columns)
    confirm(alteration)
    return alteration.state


class Topics(Group):
    """The methods that create, change and show topics: `cluster.topics`.

    A topic is created only above everything that sweeps may delete, and above each epoch in a journal. If the
    controller log was restored from an old backup, a new topic could otherwise admit data at epochs that a published M
    has already passed (hazard 10). Nothing is changed while a journal is set back to an older copy.
    """

    def create(
        self,
        name: str,
        partitions: int,
        journals: int | None = None,
        *,
        retention_ms: int | timedelta | UnsetType | None = UNSET,
        retention_bytes: int | UnsetType | None = UNSET,
        value_schema: dict[str, Any] | str | None = None,
    ) -> CreatedTopic:
        """Create a topic. A repeated call with the same arguments changes nothing. See `l0gc topic create`.

        Args:
            journals: the number of journals over which the partitions are spread; by default one.
            retention_ms: how long records are kept, in milliseconds or as a `timedelta`; -1 means for ever, None the
                cluster's default.
            retention_bytes: how many bytes of L1 each partition keeps; -1 means all, None the cluster's default.
            value_schema: the columns of L1 into which JSON values are also parsed: a schema of Iceberg or Arrow as
                JSON, or a JSON Schema, parsed or as text.

        Raises:
            EpochRegressionError: the published epoch or a journal is above the cluster epoch, so the topic could get
                the revision of an existing topic with records.
            SetBackError: a journal was set back to an older copy.
        """
        from l0gc.streamlog.topics import CreatedTopic

        columns = _columns(value_schema)
        cluster, retention = self._handles(), _retention(retention_ms, retention_bytes)
        refuse_if_set_back(cluster, names=True)
        topic, created = cluster.controller.create_topic(name, partitions, journals, retention, columns)
        return CreatedTopic(**asdict(topic), created=created)

    def alter(
        self,
        name: str,
        *,
        retention_ms: int | timedelta | UnsetType | None = UNSET,
        retention_bytes: int | UnsetType | None = UNSET,
        value_schema: dict[str, Any] | str | None = None,
        confirm: Callable[[Alteration], object] | None = None,
    ) -> AlteredTopic:
        """Change the given settings of a topic. See `l0gc topic alter`.

        Args:
            retention_ms: how long records are kept, in milliseconds or as a `timedelta`; -1 means for ever, None the
                cluster's default.
            retention_bytes: how many bytes of L1 each partition keeps; -1 means all, None the cluster's default.
            value_schema: the new columns, as for `create`. Existing columns that it does not name are dropped. A column
                keeps its values if its type widens: int to long, float to double, a decimal to more digits. A column
                with any other new type is replaced.
            confirm: called with the effect. If it raises an error, nothing is changed. Nothing is changed either if the
                topic or the default retention is altered in the meantime.
        """
        from l0gc.streamlog.topics import AlteredTopic

        columns = _columns(value_schema)
        retention = _retention(retention_ms, retention_bytes)
        cluster = self._handles()
        confirmed = _confirmed(cluster, name, retention, columns, confirm)
        refuse_if_set_back(cluster)
        topic, before = cluster.controller.alter_topic(name, retention, columns, confirmed)
        schema = topic.value_schema
        done = changes(before.value_schema, schema) if before is not None and schema is not None else []
        return AlteredTopic(**asdict(topic), altered=before is not None, changes=done)

    def alter_defaults(
        self,
        *,
        retention_ms: int | timedelta | UnsetType | None = UNSET,
        retention_bytes: int | UnsetType | None = UNSET,
        confirm: Callable[[Alteration], object] | None = None,
    ) -> AlteredDefaults:
        """Change the default retention, for topics without their own; the arguments are those of `alter`. See `l0gc
        topic alter --defaults`.
        """
        from l0gc.streamlog.topics import AlteredDefaults

        cluster, retention = self._handles(), _retention(retention_ms, retention_bytes)
        confirmed = _confirmed(cluster, None, retention, (), confirm)
        refuse_if_set_back(cluster)
        now, altered = cluster.controller.alter_defaults(retention, confirmed)
        return AlteredDefaults(now.ms, now.bytes, altered)

    def delete(self, name: str, *, confirm: Callable[[Topic], object] | None = None) -> RemovedTopic:
        """Delete a topic, which then accepts no more records and no longer holds M back. See `l0gc topic delete`.

        Args:
            confirm: called with the topic. If it raises an error, nothing is deleted. A new topic of the same name is
                not deleted in its place.
        """
        from l0gc.streamlog import topics

        revision = None
        if confirm is not None:
            confirm(present := self._handles().controller.snapshot().topic(name))
            revision = present.revision
        topic, broken = topics.delete_topic(self._handles(), name, revision)
        return checked(topics.RemovedTopic(**asdict(topic), broken=broken))

    def list(self) -> TopicList:
        """Return the topics, by name. See `l0gc topic list`."""
        from l0gc.streamlog.topics import TopicList

        topics_by_name = self._handles().controller.snapshot().topics
        return TopicList(topics_by_name[name] for name in sorted(topics_by_name))

    def describe(self, name: str, partition: int | None = None, limit: int = PARTITIONS_SHOWN) -> TopicDescription:
        """Return a topic with its retention, its totals, and the offsets of its first partitions. See `l0gc topic
        describe`.

        Args:
            partition: return the offsets of only this partition.
            limit: the largest number of partitions whose offsets are returned.
        """
        from l0gc.streamlog.topics import describe_topic

        return describe_topic(self._handles(), name, partition, limit)

    def infer(self, name: str, records: Count = 10_000) -> InferredSchema:
        """Propose a value schema from the first `records` records of a topic. See `l0gc topic infer`.

        Raises:
            NotFoundError: no record is a JSON object with fields that are suitable as columns.
        """
        from l0gc.streamlog.topics import infer_schema

        return infer_schema(self._handles(), name, records)


class Pins(Group):
    """The methods that create, show and delete pins: `cluster.pins`."""

    def create(
        self,
        name: str,
        *,
        ttl_s: float | timedelta = PIN_TTL_S,
        topic: str | None = None,
        level_one: bool = False,
        why: str = "",
    ) -> PinView:
        """Keep the cluster's current state readable until the pin ends. See `l0gc pin create`, and `cluster.pin` for a
        `with` block.

        Args:
            ttl_s: how long the pin lasts, in seconds or as a `timedelta`.
            topic: keep only this topic, that is its L1 and the L0 objects that it needs.
            level_one: keep only L1, and let M move.
            why: the reason, which is shown to others.
        """
        from l0gc.streamlog.pins import PinView, create_pin

        if name.startswith(TABLE_PINS):
            raise UsageError(f"pin names that begin with {TABLE_PINS!r} are reserved for tables; use another name")
        cluster = self._handles()
        revision = ALL_TOPICS if topic is None else cluster.controller.snapshot().topic(topic).revision
        pin = create_pin(cluster, name, int(cast(float, ttl_s) * 1000), level_one=level_one, why=why, topic=revision)
        return PinView.of(pin)

    def list(self) -> PinList:
        """Return the pins, by name. See `l0gc pin list`."""
        from l0gc.streamlog.pins import PinList, PinView

        pins_by_name = self._handles().controller.snapshot().pins
        return PinList(PinView.of(pins_by_name[name]) for name in sorted(pins_by_name))

    def delete(self, name: str, *, epoch: int | None = None) -> PinView:
        """Delete a pin, so that the objects that it kept may be deleted. See `l0gc pin delete`.

        Args:
            epoch: delete only the pin created at this epoch, not a different one with its name.
        """
        from l0gc.streamlog.pins import PinView

        return PinView.of(self._handles().controller.delete_pin(name, epoch))


class Tables(Group):
    """The methods that create, sync, show and drop Iceberg tables of topics: `cluster.tables`. All except `list` need
    the extra `iceberg`.
    """

    def create(self, topic: str, *, catalog: str, table: str | None = None) -> TableView:
        """Create an Iceberg table of a topic's L1, which syncs keep current. A repeated call changes nothing. See `l0gc
        table create`.

        Records in shared L1 objects are first moved to objects of single partitions, since a table cannot name shared
        objects.

        Args:
            catalog: the name of the catalog in PyIceberg's configuration.
            table: the name of the table, with a namespace; by default, the topic's name in the namespace `l0gc`.
        """
        from l0gc.streamlog.tables import TableView, table_of

        cluster = self._handles()
        new = table_of(cluster.controller.snapshot().topic(topic), catalog, table)
        _syncing().create_table(cluster, new)
        from l0gc.streamlog.level_one.drain import drain_topic

        drain_topic(cluster, cluster.controller.snapshot().topic(topic))  # the next merge drains the rest if this fails
        return TableView.of(new, cluster.controller.replica.state)

    def sync(
        self, topic: str | None = None, *, progress: Progress = quiet, **options: Unpack[TableSyncKeywords]
    ) -> TableSyncResult:
        """Update a topic's table, or all tables, so that they list the current L1 objects. See `l0gc table sync`.

        Args:
            progress: called with the next step.
        """
        cluster, keep_ms = self._handles(), int(TableSync.of(options).keep_snapshots_s * 1000)
        with recorded_attempt(cluster, "table-sync", whole=topic is None):
            progress("reading the journals and the tables")
            result: TableSyncResult = _syncing().sync_tables(cluster, topic, keep_ms)
            return checked(result)

    def list(self) -> TableList:
        """Return the tables, by topic. See `l0gc table list`."""
        from l0gc.streamlog.tables import TableList, TableView

        state = self._handles().controller.snapshot()
        return TableList(TableView.of(state.tables[topic], state) for topic in sorted(state.tables))

    def drop(self, topic: str, *, forget: bool = False) -> TableView:
        """Drop a topic's table, but keep its data objects. See `l0gc table drop`.

        Args:
            forget: leave the catalog unchanged.
        """
        from l0gc.streamlog.tables import TableView

        cluster = self._handles()
        table = cluster.controller.snapshot().table(topic)
        _syncing().drop_table(cluster, table, forget=forget)
        return TableView.of(table, cluster.controller.replica.state)


def _syncing() -> Any:
    """Return the module that needs PyIceberg. Raises `UsageError` if it is not installed or not configured correctly."""
    try:
        from l0gc.integrations.iceberg.configuration import check_configuration

        check_configuration()
        from l0gc.integrations.iceberg import sync
    except ModuleNotFoundError as e:
        raise UsageError(f"tables need PyIceberg ({e}); {installing('iceberg')}") from e
    return sync


class Producers(Group):
    """The methods that show producers and begin their runs: `cluster.producers`."""

    def list(self) -> ProducerList:
        """Return the producers that the controller has recorded. See `l0gc producer list`."""
        from l0gc.streamlog.producers import list_producers

        return list_producers(self._handles())

    def describe(self, name: str) -> ProducerView:
        """Return the newest run of a producer, and its position in each journal. See `l0gc producer describe`."""
        from l0gc.streamlog.producers import describe_producer

        return describe_producer(self._handles(), name)

    def sender(self, topic: str, name: str) -> AbstractContextManager[Sender]:
        """Begin a run of a producer that sends each record of another system once, in a `with` block.

        The other system must number the records of each partition, and allow reading from any number on. The sender's
        `positions` have the number from which to begin, by partition; `send(records, positions)` lands records
        (`Record`) with the positions after them. A new run fences the previous one, which ends at its next `send` once
        it has read the controller's log again, some seconds later. If both send in that time, one of them ends with an
        error, and no record lands twice. Begin a run at least every 14 days, since names are kept for that long.
        """
        from l0gc.streamlog.ingest.sender import open_sender

        return open_sender(self._handles(), topic, name)


class Runs(Group):
    """The methods that show records of past sweeps and vacuums, in the bucket or in a folder of `--record-dir`:
    `cluster.runs`.
    """

    def list(self, last: int = 20, *, record_dir: Path | None = None) -> RunList:
        """Return the `last` newest runs. See `l0gc runs list`."""
        from l0gc.collect.history import RunList, list_runs

        cluster = self._handles()
        cluster.identity()
        return RunList(*list_runs(run_records(cluster, record_dir), last, parallel=cluster.parallel))

    def show(
        self,
        run_id: str,
        *,
        sample: int = 10,
        record_dir: Path | None = None,
        each: Callable[[RecordedObject], None] = lambda row: None,
    ) -> RunDetail:
        """Return the outcome of a run's objects. See `l0gc runs show`.

        Args:
            sample: the number of objects that the result contains.
            each: called with each object when it is read.
        """
        from l0gc.collect.history import show_run

        cluster = self._handles()
        cluster.identity()
        return show_run(cluster, run_id, sample, records=run_records(cluster, record_dir), each=each)

    def find(self, key: str, *, record_dir: Path | None = None) -> KeyInRun:
        """Return the run that deleted an object, and the object's outcome. See `l0gc runs find`.

        Raises:
            NotFoundError: no recorded run had the object.
        """
        from l0gc.collect.history import find_in_runs

        cluster = self._handles()
        cluster.identity()
        deletion = find_in_runs(cluster, key, records=run_records(cluster, record_dir))
        if deletion is None:
            raise NotFoundError(f"no recorded run deleted {key!r}: its record expired, or it was never there")
        return deletion


def run_records(cluster: ClusterHandles, record_dir: Path | None) -> Records:
    """Return the place of run records: a folder or the bucket."""
    from l0gc.collect.record import FolderRecords

    return FolderRecords(record_dir) if record_dir is not None else cluster.store


def checked(result: R) -> R:
    """Return a result if it has no problem. Otherwise raise the problem, with the result as the error's `result`."""
    problem = result.problem
    if problem is None:
        return result
    problem.result = result
    raise problem
