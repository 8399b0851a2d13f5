"""Create, sync and drop the tables of topics; `plan` explains why this is safe.

In a sync, the table is loaded, a pin is created or found, the journals are read, and all changes are committed at once.
If another commit came first, everything is decided anew. The next run finds the result of a killed run in the table's
summary, and adds nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import numpy as np
import pyiceberg.exceptions as failed
from msgspec.structs import replace
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from l0gc.errors import (
    AccessDeniedError,
    AmbiguousWriteError,
    CorruptObjectError,
    L0gcError,
    NotFoundError,
    ObjectNotFoundError,
    StoreError,
    StoreTimeoutError,
    unexpected,
)
from l0gc.integrations.iceberg import plan
from l0gc.integrations.iceberg.catalog import create_in_catalog, evolve, explained, load_table, open_catalog
from l0gc.integrations.iceberg.commit import (
    Entries,
    Statistics,
    commit_snapshot,
    data_files,
    end_metadata,
    ends_first,
    entries_of,
    manifests_of,
    metadata_files,
    name_in,
    named_by,
    path_of,
    typed_statistics,
    unnamed,
)
from l0gc.storage.entry import Place
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.decisions import decide_create_table
from l0gc.streamlog.controller.state import ControllerState, Pin, Topic, TopicTable
from l0gc.streamlog.journal.rows import NO_L1_ROWS, Rows, in_order, is_hole, name_sum
from l0gc.streamlog.journal.topic import l1_file, l1_key
from l0gc.streamlog.level_one.parquet import read_footer, schema_number
from l0gc.streamlog.pins import create_pin
from l0gc.streamlog.tables import TableSynced, TableSyncResult
from l0gc.streamlog.topic_view import topic_copy
from l0gc.watermark.publication import refuse_if_set_back

ATTEMPTS: Final = 5
"""How often a sync is tried if others commit in the meantime."""
DAY_MS: Final = 86_400_000
_CHANGED: Final = (failed.CommitFailedException, failed.NoSuchTableError)
"""The exceptions of a commit if the table was changed or dropped after it was loaded."""


def create_table(cluster: ClusterHandles, topic_table: TopicTable) -> None:
    """Create a topic's table in its catalog, and record it for syncs. A repeated call changes nothing.

    Raises:
        UsageError: a table that l0gc did not create has this name, or the topic has another table.
        NotFoundError: PyIceberg's configuration does not have the catalog.
        SafetyError, StoreError: see `load_table` and `explained`. `SafetyError` also means that a log was set back.
    """
    refuse_if_set_back(cluster)
    state = cluster.controller.snapshot()
    existing = state.tables.get(topic_table.topic)
    if existing is not None and replace(existing, location="") == topic_table:
        topic_table = existing
    if (entry := decide_create_table(state, topic_table)) is not None:
        entry.check(state)  # otherwise a table without a topic could stay in the catalog
    created = create_in_catalog(
        open_catalog(topic_table.catalog, cluster.store), topic_table, state.cluster_id, cluster.store.url
    )
    cluster.controller.create_table(replace(topic_table, location=created.location()))


def drop_table(cluster: ClusterHandles, table: TopicTable, *, forget: bool = False) -> None:
    """Drop a topic's table: remove it from its catalog, and delete its metadata files and pins. Data objects stay
    unchanged.

    Args:
        forget: leave the catalog unchanged; it need not answer.
    """
    state = cluster.controller.snapshot()
    if not forget:
        catalog = open_catalog(table.catalog, cluster.store)
        with suppress(NotFoundError), explained(table.catalog):
            iceberg_table = load_table(catalog, table, state.cluster_id, cluster.store.url)
            paths = metadata_files(iceberg_table) | set(unnamed(iceberg_table))
            catalog.drop_table(table.table)
            end_metadata(iceberg_table, paths, cluster.store.url)
    cluster.controller.drop_table(table)
    _end_pins(cluster, state.pins_of(table).values())


def sync_tables(cluster: ClusterHandles, topic: str | None, keep_ms: int) -> TableSyncResult:
    """Sync the table of a topic, or all tables. A failed table does not affect the others.

    If all tables are synced, a table whose topic was deleted stays unchanged and gives a warning each time.
    """
    plan.pin_ms(keep_ms)
    state = cluster.controller.snapshot()
    result = TableSyncResult()
    tables = [state.table(topic)] if topic is not None else [state.tables[name] for name in sorted(state.tables)]
    if tables:
        refuse_if_set_back(cluster)
    for table in tables:
        if topic is None and state.topic_of(table) is None:
            result.warnings.append(_without_topic(table))
            continue
        try:
            result.tables.append(sync_table(cluster, table, keep_ms))
        except Exception as e:  # noqa: BLE001 - a catalog and its warehouse may be anybody's plugin, which raises anything
            error = e if isinstance(e, L0gcError) else unexpected(e)
            result.failures.append(error)
            result.errors.append(f"topic {table.topic}: {error}")
    return result


def sync_table(cluster: ClusterHandles, table: TopicTable, keep_ms: int) -> TableSynced:
    """Make the table list the current L1 objects of the topic's journals, and remove old snapshots.

    Raises:
        NotFoundError: the topic was deleted.
        StoreError: others committed during each attempt; see `explained`, too.
        SafetyError: the table was changed by another program, or a journal is damaged.
    """
    catalog = open_catalog(table.catalog, cluster.store)
    for _ in range(ATTEMPTS):
        state = cluster.controller.snapshot()
        topic = state.topic_of(table)
        if topic is None:
            raise NotFoundError(_without_topic(table))
        iceberg_table = load_table(catalog, table, state.cluster_id, cluster.store.url)
        try:
            if topic.value_schema is not None:
                with explained(table.catalog):
                    evolve(iceberg_table, topic.value_schema)
            return _Sync(cluster, table, iceberg_table, state, keep_ms).run(topic)
        except _CHANGED:
            continue
    raise StoreError(f"table {table.table} was changed by others {ATTEMPTS} times while it was synced; sync it again")


def _without_topic(table: TopicTable) -> str:
    return (
        f"topic {table.topic!r} (revision {table.revision}) was deleted, and its table {table.table} stays as it is until "
        f"l0gc table drop {table.topic} (with --forget the catalog keeps it)"
    )


class _Sync:
    """An attempt to sync a table, in the state in which it was loaded."""

    def __init__(
        self, cluster: ClusterHandles, table: TopicTable, iceberg_table: Table, state: ControllerState, keep_ms: int
    ) -> None:
        self._cluster, self._table, self._there, self._state, self._keep_ms = (
            cluster,
            table,
            iceberg_table,
            state,
            keep_ms,
        )
        self._all_pins, self._now_ms = (
            state.pins_of(table),
            cluster.now_ms(),
        )  # the pins were read before the table was loaded
        now = cluster.controller.snapshot().pins_of(table)  # a loaded snapshot may name any of these
        self._pins = {name: pin for name, pin in now.items() if pin.in_effect}
        self._snapshots = {s.snapshot_id: s for s in iceberg_table.metadata.snapshots}
        self._notes = {at: _note(s) for at, s in self._snapshots.items()}
        self._head = iceberg_table.current_snapshot()
        self._note = None
        if self._head is not None:
            self._note = plan.check_head(
                self._notes[self._head.snapshot_id], table, state.cluster_id, cluster.store.url
            )

    def run(self, topic: Topic) -> TableSynced:
        """Sync the table. Raises `CommitFailedException` if the table was changed or its pin was deleted, so that the
        sync must be decided anew.
        """
        self._end_unused_pins()  # even if no commit ever succeeds
        note, made = self._note, None
        if note is not None and plan.is_fresh(note, self._pins, self._now_ms, self._keep_ms):
            pin = note.pin
        else:
            name = f"{self._table.pin_prefix}{self._cluster.runtime.new_id()}"
            ttl_ms, why = plan.pin_ms(self._keep_ms), f"table of topic {self._table.topic}"
            of_topic = self._table.revision
            made = create_pin(self._cluster, name, ttl_ms, level_one=True, why=why[:200], topic=of_topic)
            pin = made.name
        try:
            with explained(self._table.catalog):
                result, ended = self._commit(topic, pin)
        except (AmbiguousWriteError, StoreTimeoutError):
            raise  # if the snapshot was committed, it names the pin
        except (L0gcError, *_CHANGED):
            if made is not None:
                _end_pins(self._cluster, [made])
            raise
        if result.committed:
            if pin not in self._cluster.controller.snapshot().pins:
                raise failed.CommitFailedException(f"pin {pin} was deleted while its snapshot was committed")
            with explained(self._table.catalog):
                self._clean_up(result, ended)
        return result

    def _end_unused_pins(self) -> None:
        notes = [_note(s) for s in self._there.metadata.snapshots]
        unused = plan.unused_pins(self._all_pins, self._notes.values(), notes, self._now_ms)
        _end_pins(self._cluster, [self._all_pins[name] for name in unused])

    def _commit(self, topic: Topic, pin: str) -> tuple[TableSynced, set[int]]:
        """Commit all changes, if there are any. Return the result and the ids of the removed snapshots."""
        iceberg_table, note, url = self._there, self._note, self._cluster.store.url
        rows, ends = l1_rows(
            self._cluster, topic
        )  # read after the pin took effect, which keeps the objects from now on
        if note is not None:
            plan.check_not_ahead(note, lambda j, place: self._cluster.journal(j).replica.holds(place), self._table)
        objects = np.flatnonzero(~is_hole(rows))
        files, names = len(objects), name_sum(rows[objects])
        due = note is None or (note.files, note.names, note.pin) != (files, names, pin)
        ended = self._ended(due=due)
        result = TableSynced(self._table.topic, self._table.table, self._current(), files=files)
        if not due and not ended:
            return result, ended

        def path(row: Any) -> str:
            return path_of(url, topic.id(int(row["partition"])), row)

        if due:
            said = plan.SnapshotNote(self._state.cluster_id, url, topic.revision, ends, self._now_ms, pin, files, names)
            manifests = manifests_of(iceberg_table, self._head)
            was_held, gone, read = self._compared(manifests, rows[objects])
            new = objects[~was_held]
            new = new[np.argsort(rows["epoch"][new], kind="stable")]
            added = data_files(rows, new, path, iceberg_table.spec().spec_id, self._statistics(topic, rows[new]))
            result.added, result.removed = len(added), len(gone)
            commit = partial(commit_snapshot, iceberg_table, said.to_summary(), manifests, read, added, gone, ended)
        else:
            commit = partial(commit_snapshot, iceberg_table, None, expired=ended)
        with self._cluster.writing():
            commit()
        result.committed, result.snapshot_id, result.expired = True, self._current(), len(ended)
        return result, ended

    def _statistics(self, topic: Topic, rows: Rows) -> list[Statistics]:
        """Return the statistics of typed columns in the footers of new objects. They are empty, so that queries read
        the object, if it has no typed columns, cannot be read, or has a later value schema.
        """
        schema, store = topic.value_schema, self._cluster.store
        if schema is None:
            return [Statistics()] * len(rows)
        number, of_footer = schema.number, typed_statistics(self._there.schema())

        def statistics(row: Any) -> Statistics:
            file = l1_file(row)
            with suppress(AccessDeniedError, CorruptObjectError, ObjectNotFoundError):
                footer, _ = read_footer(store, l1_key(topic.id(file.partition), file), file.bytes)
                if 0 < schema_number(footer) <= number:
                    return of_footer(footer)
            return Statistics()

        return self._cluster.parallel.map(statistics, rows)

    def _compared(self, manifests: list[ManifestFile], rows: Rows) -> tuple[Rows, set[str], dict[str, Entries]]:
        """Compare the current snapshot with the rows.

        Returns which rows the snapshot has, the paths of its other objects, and the manifests that were read to find
        all dropped objects.
        """
        if self._note is None:
            return np.zeros(len(rows), np.bool_), set(), {}
        was_held = plan.held_before(self._note, rows)
        if was_held is not None:
            return was_held, set(), {}
        gone: dict[bytes, str] = {}
        read: dict[str, Entries] = {}
        table_names, unread = set[bytes](), ends_first(manifests)
        row_names = dict.fromkeys(rows["name"].tolist())
        while was_held is None and (group := next(unread, [])):
            for m, entries in zip(group, entries_of(self._there, group), strict=True):
                read[m.manifest_path] = entries
                names = {name_in(path, self._cluster.store.url, self._table.table): path for path in entries}
                table_names |= names.keys()
                gone |= {name: path for name, path in names.items() if name not in row_names}
            was_held = plan.held_before(plan.note_without(self._note, gone), rows)
        if was_held is None:  # there were several syncs in one epoch
            was_held = np.fromiter((name in table_names for name in row_names), np.bool_, len(rows))
        return was_held, set(gone.values()), read

    def _current(self) -> int:
        current = self._there.current_snapshot()
        return -1 if current is None else current.snapshot_id

    def _named(self) -> set[int]:
        """Return the snapshots that a tag or another branch names, which PyIceberg does not remove."""
        return {ref.snapshot_id for name, ref in self._there.metadata.refs.items() if name != MAIN_BRANCH}

    def _ended(self, *, due: bool) -> set[int]:
        """Return the snapshots that this commit removes. The current one stays unless a new one follows."""
        parents = {at: s.parent_snapshot_id for at, s in self._snapshots.items()}
        ended = plan.ended_snapshots(
            self._notes, parents, self._current(), self._pins, now_ms=self._now_ms, keep_ms=self._keep_ms
        )
        return ended - self._named() - (set() if due else {self._current()})

    def _clean_up(self, result: TableSynced, ended: set[int]) -> None:
        """Delete, after the commit, the pins and the metadata files that only removed snapshots named."""
        table, url = self._there, self._cluster.store.url
        kept = {s.snapshot_id: s for s in table.metadata.snapshots}
        self._end_unused_pins()
        if not ended:
            return
        gone = [self._snapshots[at] for at in ended if at not in kept]
        # A file that a removed snapshot shares with kept ones is also in a kept snapshot next to a removed one.
        beside = {s.parent_snapshot_id for s in gone} | self._named()
        near = [s for at, s in kept.items() if at in beside or s.parent_snapshot_id not in kept]
        paths = named_by(table, gone) - named_by(table, near)
        oldest_ms = min((note.time_ms for s in kept.values() if (note := _note(s))), default=-1)
        older_ms = [note.time_ms for at in ended if (note := self._notes[at]) is not None and note.time_ms < oldest_ms]
        if older_ms and max(older_ms) // DAY_MS != oldest_ms // DAY_MS:
            paths |= set(unnamed(table, max(self._keep_ms, DAY_MS)))
        result.metadata_deleted = end_metadata(table, paths, url)


def _note(snapshot: Snapshot) -> plan.SnapshotNote | None:
    return plan.note_of({} if snapshot.summary is None else snapshot.summary.additional_properties)


def _end_pins(cluster: ClusterHandles, pins: Iterable[Pin]) -> None:
    for pin in pins:
        with suppress(NotFoundError):  # it has ended, or another sync deleted it
            cluster.controller.delete_pin(pin.name, pin.revision)


def l1_rows(cluster: ClusterHandles, topic: Topic) -> tuple[Rows, dict[int, Place]]:
    """Return the L1 rows of a topic, including holes, by partition and offset, and where each journal ended at that
    time.

    A table cannot name shared objects, and must not lack records between others. Therefore rows above those of a shared
    object wait until a merge has drained it.
    """
    parts, ends = [NO_L1_ROWS], dict[int, Place]()
    for partition_range in topic.partition_ranges():
        handle = cluster.journal(partition_range.journal)
        handle.catch_up()
        with handle.replica.lock:
            state, ends[partition_range.journal] = topic_copy(handle, topic), handle.replica.end
        parts.append(state.l1_before_shared())
    return in_order(np.concatenate(parts)), ends
