"""Decide a table's sync (pure): a snapshot's summary, which snapshots are removed, and which objects are new or gone.

A sync is safe for these reasons (hazard 37):

- A snapshot names only objects that each journal listed at one offset, so a merge's output never appears next to its
  input. The snapshot's summary records these places, the cluster, its URL, and the topic. If they differ from the
  current ones, nothing is done.
- Before the journals are read, a pin of L1 has taken effect, and the summary names it. Objects that a journal drops
  later have the pin's epoch or a later one, so a vacuum keeps them while the pin lasts. Neighbouring snapshots share a
  pin.
- A pin is deleted only if no kept snapshot names it, and a snapshot whose pin has ended is not kept. A sync uses the
  pin of the current snapshot or creates a new one, and commits only if the table has not changed since that decision.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import msgspec
import numpy as np

from l0gc.errors import ClusterMismatchError, SafetyError, UsageError
from l0gc.formatting import span
from l0gc.storage.entry import Place
from l0gc.streamlog.controller.entries import MAX_PIN_MS
from l0gc.streamlog.controller.state import Pin, TopicTable
from l0gc.streamlog.journal.rows import NAME, Rows, name_low, name_sum
from l0gc.streamlog.tables import PINS_FOR_EACH_LIFE, UNSYNCED_MS

PENDING_MS: Final = 3_600_000
"""How long a new pin may have no snapshot before it counts as left by a sync that died or whose commit failed."""
UNTHINNED_MS: Final = 3_600_000
"""How long all replaced snapshots are kept, unless `--keep-snapshots` is shorter."""
SLOTS: Final = 96
"""The number of slots in `--keep-snapshots`. In each slot, one of the older snapshots is kept."""
THINNED: Final = 50
"""How many superfluous snapshots are removed together, since each removal has to look up files that they share with
others.
"""
NOTE: Final = "l0gc"
"""The key of l0gc's note in a snapshot's summary."""


class SnapshotNote(msgspec.Struct, frozen=True):
    """l0gc's note in a snapshot's summary.

    Attributes:
        url: the URL of the cluster.
        ends: for each journal, the place of the last entry that the snapshot includes.
        time_ms: when the snapshot was created, by the store's clock.
        pin: the pin that keeps its objects.
        files: the number of L1 objects that it names; `names` is the sum of the low halves of their names.
    """

    cluster_id: str
    url: str
    revision: int
    ends: dict[int, Place]
    time_ms: int
    pin: str
    files: int
    names: int

    def to_summary(self) -> dict[str, str]:
        return {NOTE: msgspec.json.encode(self).decode()}


def note_of(summary: Mapping[str, str]) -> SnapshotNote | None:
    """Return the note in a snapshot's summary; None if l0gc did not commit the snapshot."""
    try:
        return msgspec.json.decode(summary.get(NOTE, ""), type=SnapshotNote)
    except msgspec.DecodeError:
        return None


def check_head(note: SnapshotNote | None, table: TopicTable, cluster_id: str, url: str) -> SnapshotNote:
    """Return the note of the table's current snapshot.

    Raises:
        SafetyError: another program committed the snapshot.
        ClusterMismatchError: the snapshot belongs to another cluster, or to another topic of this name.
    """
    if note is None:
        raise SafetyError(
            f"the newest snapshot of table {table.table} is not l0gc's: another program has written to it; roll the table "
            "back to l0gc's last snapshot, or end it with l0gc table drop"
        )
    check_owner(note.cluster_id, note.url, note.revision, table, cluster_id, url)
    return note


def check_owner(owner: str, theirs: str, revision: int, table: TopicTable, cluster_id: str, url: str) -> None:
    """Raise `ClusterMismatchError` if a table belongs to another cluster, to a copy of this one, or to another topic of
    this name.

    A copy of a cluster has the same id, topics and names of objects, but different paths.
    """
    if owner != cluster_id:
        raise ClusterMismatchError(
            f"table {table.table} belongs to cluster {owner}, and this one is {cluster_id}; give the table another name "
            "with --table"
        )
    if theirs != url:
        raise ClusterMismatchError(
            f"table {table.table} in catalog {table.catalog!r} belongs to the cluster at {theirs}, and this one, at {url}, "
            "has the same id: one is a copy of the other. Nothing was changed; end it here with l0gc table drop "
            f"{table.topic} --forget, and create a table with another name (--table)"
        )
    if revision != table.revision:
        raise ClusterMismatchError(
            f"table {table.table} belongs to a topic of revision {revision}, and topic {table.topic!r} has revision "
            f"{table.revision}: it is another topic, or was created again; give its table another name with "
            "--table, or drop the old one in its catalog"
        )


def check_not_ahead(note: SnapshotNote, holds: Callable[[int, Place], bool], table: TopicTable) -> None:
    """Raise `SafetyError` if a journal's log lacks the entry as of which the table lists the journal's objects.

    Args:
        holds: returns whether a journal has the entry at a place; see `Replica.holds`.
    """
    for journal, place in note.ends.items():
        if not holds(journal, place):
            raise SafetyError(
                f"table {table.table} has the objects of journal {journal} as of offset {place.offset}, but that log does "
                "not have that entry: it was set back. Put its newest log back, or drop the table with l0gc table drop "
                f"{table.topic} and create it again; see l0gc help operate-logs"
            )


def pin_ms(keep_ms: int) -> int:
    """Return how long a table's pin lasts. Raises `UsageError` if snapshots cannot be kept for so long."""
    if not 0 <= keep_ms <= MAX_PIN_MS - 2 * UNSYNCED_MS:
        raise UsageError(f"snapshots cannot be kept for {span(keep_ms)}; use for example 1d")
    return keep_ms + keep_ms // PINS_FOR_EACH_LIFE + UNSYNCED_MS


def is_fresh(note: SnapshotNote, pins: Mapping[str, Pin], now_ms: int, keep_ms: int) -> bool:
    """Return whether the pin of the current snapshot can also keep the next one."""
    pin = pins.get(note.pin)
    if pin is None or pin.end_ms - pin.created_ms < pin_ms(keep_ms):
        return False
    return now_ms - pin.created_ms < max(keep_ms // PINS_FOR_EACH_LIFE, 1)


def ended_snapshots(
    notes: Mapping[int, SnapshotNote | None],
    parents: Mapping[int, int | None],
    current: int,
    pins: Collection[str],
    *,
    now_ms: int,
    keep_ms: int,
) -> set[int]:
    """Return the snapshots to remove when the next one follows the current one.

    A snapshot is removed if its objects may be gone, or if it is old. An hour after snapshots were replaced, only the
    first of each slot (a 96th of `keep_ms`) is kept, and the others are removed together, at least `THINNED` at a time.
    Otherwise, a table that is synced every minute would have 1,440 snapshots, and each commit writes them all. The
    first snapshot of a slot has the same pin as the others or an older one, so the pins of the kept snapshots still
    keep all objects dropped since the oldest of them.

    Args:
        notes: the note of each snapshot, by the snapshot's id; None if l0gc did not commit it.
        parents: the previous snapshot of each snapshot.
        pins: the names of the pins that have not ended.
        keep_ms: how long a snapshot can be read after it was replaced.
    """
    followed_ms = {current: now_ms}
    for at, note in notes.items():
        parent = parents[at]
        if note is not None and parent is not None and parent != current:
            followed_ms[parent] = min(followed_ms.get(parent, note.time_ms), note.time_ms)
    slot_ms = keep_ms // SLOTS + 1

    def replaced_for_ms(at: int, note: SnapshotNote) -> int:
        # A snapshot whose successor was removed was replaced within its slot.
        return now_ms - followed_ms.get(at, note.time_ms + slot_ms)

    kept = {
        at: note
        for at, note in notes.items()
        if note is not None and note.pin in pins and (at == current or replaced_for_ms(at, note) < keep_ms)
    }
    firsts = dict[int, int]()
    for at, note in sorted(kept.items(), key=lambda item: (item[1].time_ms, item[0])):
        firsts.setdefault(note.time_ms // slot_ms, at)
    between = kept.keys() - firsts.values() - {current}
    thinned = {at for at in between if replaced_for_ms(at, kept[at]) >= UNTHINNED_MS}
    return notes.keys() - kept.keys() | (thinned if len(thinned) >= THINNED else set())


def unused_pins(
    pins: Mapping[str, Pin], loaded: Iterable[SnapshotNote | None], kept: Iterable[SnapshotNote | None], now_ms: int
) -> list[str]:
    """Return the pins that existed before the table was loaded and that no kept snapshot names.

    A young pin that no loaded snapshot names may belong to a running sync that will commit a snapshot with it (hazard
    32).
    """
    before, named = ({note.pin for note in notes if note is not None} for notes in (loaded, kept))
    old = {name for name, p in pins.items() if now_ms - p.created_ms >= PENDING_MS}
    return [name for name in pins if name in (before | old) - named]


def note_without(note: SnapshotNote, names: Collection[bytes]) -> SnapshotNote:
    """Return the snapshot's note without the objects with these names, which the snapshot has."""
    low = int(name_low(np.frombuffer(b"".join(names), NAME)).sum(dtype=np.uint64))
    return msgspec.structs.replace(note, files=note.files - len(names), names=(note.names - low) % 2**64)


def held_before(note: SnapshotNote, rows: Rows) -> Rows | None:
    """Return which rows the snapshot has; None if it may have others, which only its manifests show.

    If nothing was dropped since, or the note lacks all dropped objects, the snapshot has the objects with the lowest
    epochs, with the note's number and sum. Names identify paths, since the note has this URL (`check_owner`).

    Args:
        rows: rows of `L1_ROW`, without holes.
    """
    order = np.argsort(rows["epoch"], kind="stable")
    was_held = np.zeros(len(rows), np.bool_)
    was_held[order[: note.files]] = True
    if note.files > len(rows) or name_sum(rows[was_held]) != note.names:
        return None
    return was_held
