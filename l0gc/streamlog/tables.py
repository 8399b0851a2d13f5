"""The cluster's own records of tables: the topics that have one, and the pins that keep the objects of its snapshots.
Nothing here needs PyIceberg. Status and the library read these records, and `l0gc/integrations/iceberg/` syncs tables by
them.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from l0gc.errors import L0gcError, PartialFailureError, SafetyError, UsageError
from l0gc.formatting import Outcome
from l0gc.streamlog.controller.state import ControllerState, Pin, Topic, TopicTable

PINS_FOR_EACH_LIFE: Final = 4
"""A sync creates a new pin once the current snapshot's pin has a quarter of the age that snapshots reach."""
UNSYNCED_MS: Final = 7 * 86_400_000
"""If a table is not synced, the pin of its snapshot ends this long after it should have been replaced."""
_NOT_A_NAME: Final = re.compile(r"[^A-Za-z0-9_]")


def table_of(topic: Topic, catalog: str, table: str | None) -> TopicTable:
    """Return the table to create for a topic; by default it has the topic's name, in the namespace `l0gc`.

    Raises:
        UsageError: the name has no namespace, or an empty part.
    """
    name = table or f"l0gc.{_NOT_A_NAME.sub('_', topic.name)}"
    parts = name.split(".")
    if len(parts) < 2 or not all(map(str.strip, parts)):
        raise UsageError(f"table {name!r} needs a namespace: NAMESPACE.NAME")
    return TopicTable(topic.name, topic.revision, catalog, name)


def due_ms(pin: Pin) -> int:
    """Return the time by which a sync should have replaced this pin; see `iceberg/plan.py`, `pin_ms` and `is_fresh`."""
    return pin.created_ms + max(0, pin.end_ms - pin.created_ms - UNSYNCED_MS) // (PINS_FOR_EACH_LIFE + 1)


class TableView(msgspec.Struct, Outcome, frozen=True):
    """A topic's table.

    Attributes:
        topic: The topic.
        revision: Its revision.
        catalog: The catalog, by its name in PyIceberg's configuration.
        table: The table's name there.
        pinned_ms: When the newest pin of its snapshots was created: when a sync last ran, or up to a quarter of
            `--keep-snapshots` before. -1 if no pin keeps the objects that its snapshots name.
        expires_ms: When that pin ends, unless a sync follows.
    """

    topic: str
    revision: int
    catalog: str
    table: str
    pinned_ms: int = -1
    expires_ms: int = -1

    @classmethod
    def of(cls, table: TopicTable, state: ControllerState) -> TableView:
        pins = state.pins_of(table).values()
        newest = max(((p.created_ms, p.end_ms) for p in pins if p.in_effect), default=(-1, -1))
        return cls(table.topic, table.revision, table.catalog, table.table, *newest)


class TableList(list[TableView], Outcome):
    """The tables, by topic.

    Attributes:
        tables: The tables by topic, each with the fields of [`l0gc table create`](#l0gc-table-create).
    """

    derived = ("tables",)

    @property
    def tables(self) -> list[TableView]:
        return [*self]


class TableSynced(msgspec.Struct, Outcome):
    """The result of a sync of one table.

    Attributes:
        snapshot_id: the table's current snapshot afterwards; -1 if there is none.
        added, removed: how many L1 objects the new snapshot added, and how many it no longer names.
        files: how many L1 objects the new snapshot names.
        expired: how many snapshots ended.
        metadata_deleted: how many metadata files were deleted, because nothing named them any more.
        committed: whether anything was committed to the catalog.
    """

    topic: str
    table: str
    snapshot_id: int = -1
    added: int = 0
    removed: int = 0
    files: int = 0
    expired: int = 0
    metadata_deleted: int = 0
    committed: bool = False


class TableSyncResult(msgspec.Struct, Outcome):
    """The result of a sync of each table, and the tables that could not be synced.

    Attributes:
        tables: The result for each table: `snapshot_id`, its newest snapshot, or -1; `added` and `removed`, how many L1
            objects that snapshot added, and how many it no longer names; `files`, how many it names; `expired`, how many
            snapshots ended; `metadata_deleted`, how many metadata files were deleted, because nothing named them any more;
            `committed`, whether anything was committed.
        warnings: The tables that stay as they are, because their topics were deleted, each with the remedy.
        errors: The tables that were not synced, and why.
    """

    tables: list[TableSynced] = []
    warnings: list[str] = []
    errors: list[str] = []
    failures: list[L0gcError] = []

    def to_json(self) -> dict[str, Any]:
        return {"tables": [t.to_json() for t in self.tables], "warnings": self.warnings, "errors": self.errors}

    @property
    def problem(self) -> L0gcError | None:
        """Return the problem; for a single table, it is the error itself."""
        if len(self.failures) == 1 and not self.tables:
            return self.failures[0]
        if any(e.exit_code == SafetyError.exit_code for e in self.failures):
            return SafetyError("; ".join(self.errors))
        return PartialFailureError.of("some tables were not synced", self.errors)
