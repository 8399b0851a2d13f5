"""Decides a table's sync (pure): a snapshot's summary, which snapshots end, and which objects are new or gone.

What makes it safe (hazard 37):

- A snapshot names only what its journals listed at one offset each, so a merge's output never stands next to its input. Its
  summary records these places, the cluster, its URL, and the topic. Where they differ, nothing is done.
- Before the journals are read, a pin of L1 has taken effect, and the summary names it. What a journal drops later counts
  with the pin's epoch or a later one, so vacuum leaves it while the pin lives. Neighbouring snapshots share a pin.
- A pin is deleted only when no kept snapshot names it, and a snapshot whose pin has ended is not kept. A sync uses the pin
  of the current snapshot or takes a new one, and commits only if the table is as it was when that was decided.
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
"""A pin that no snapshot has named for this long belongs to a sync that died, or whose commit failed."""
UNTHINNED_MS: Final = 3_600_000
"""All snapshots are kept for this long after they were replaced, unless `--keep-snapshots` is shorter."""
SLOTS: Final = 96
"""The number of slots in `--keep-snapshots`, each of which keeps one of its older snapshots."""
THINNED: Final = 50
"""How many superfluous snapshots end together: each time, the files that they share with others have to be looked up."""
NOTE: Final = "l0gc"
"""The key in a snapshot's summary."""


class SnapshotNote(msgspec.Struct, frozen=True):
    """The content of a snapshot's summary.

    Attributes:
        url: where the cluster is.
        ends: the place of the last entry of each journal's log that is in it.
        time_ms: when, by the store's clock.
        pin: what keeps its objects.
        files: how many L1 objects it names, and in `names` the sum of the low halves of their names.
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
    """Return the content of a snapshot's summary; None if l0gc did not commit it."""
    try:
        return msgspec.json.decode(summary.get(NOTE, ""), type=SnapshotNote)
    except msgspec.DecodeError:
        return None


def check_head(note: SnapshotNote | None, table: TopicTable, cluster_id: str, url: str) -> SnapshotNote:
    """Return the note of the table's current snapshot.

    Raises:
        SafetyError: another program committed it.
        ClusterMismatchError: it belongs to another cluster, or to another topic of that name.
    """
    if note is None:
        raise SafetyError(
            f"the newest snapshot of table {table.table} is not l0gc's: another program has written to it; roll the table "
            "back to l0gc's last snapshot, or end it with l0gc table drop"
        )
    check_owner(note.cluster_id, note.url, note.revision, table, cluster_id, url)
    return note


def check_owner(owner: str, theirs: str, revision: int, table: TopicTable, cluster_id: str, url: str) -> None:
    """Raise `ClusterMismatchError` if a table belongs to another cluster, a copy of it, or another topic of that name.

    A copy of a cluster has its id, its topics and its objects' names, but not its paths.
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
    """Raise `SafetyError` if a journal's log does not have the entry as of which the table has its objects.

    Args:
        holds: whether a journal has the entry at a place, see `Replica.holds`.
    """
    for journal, place in note.ends.items():
        if not holds(journal, place):
            raise SafetyError(
                f"table {table.table} has the objects of journal {journal} as of offset {place.offset}, but that log does "
                "not have that entry: it was set back. Put its newest log back, or drop the table with l0gc table drop "
                f"{table.topic} and create it again; see l0gc help operate-logs"
            )


def pin_ms(keep_ms: int) -> int:
    """Return how long a pin of a table lives. Raises `UsageError`: snapshots cannot be kept for so long."""
    if not 0 <= keep_ms <= MAX_PIN_MS - 2 * UNSYNCED_MS:
        raise UsageError(f"snapshots cannot be kept for {span(keep_ms)}; use for example 1d")
    return keep_ms + keep_ms // PINS_FOR_EACH_LIFE + UNSYNCED_MS


def is_fresh(note: SnapshotNote, pins: Mapping[str, Pin], now_ms: int, keep_ms: int) -> bool:
    """Return whether the pin of the current snapshot may keep the next one, too."""
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
    """Return the snapshots that end when another one follows the current one.

    A snapshot ends if what it names may be gone, or if it is old. An hour after snapshots were replaced, only the first of
    each slot (a 96th of `keep_ms`) stays, and the others end together, at least `THINNED` at a time: a table that is synced
    each minute would otherwise have 1,440 snapshots, and each commit writes them all. The first of a slot has an older pin
    or the same one, so the pins of the kept snapshots still hold all that was dropped since the oldest of them.

    Args:
        notes: the note in each snapshot's summary, by its id; None if the snapshot is not l0gc's.
        parents: the snapshot before each of them.
        pins: the names of those that have not ended.
        keep_ms: so long a snapshot can be read after another one took its place.
    """
    followed_ms = {current: now_ms}
    for at, note in notes.items():
        parent = parents[at]
        if note is not None and parent is not None and parent != current:
            followed_ms[parent] = min(followed_ms.get(parent, note.time_ms), note.time_ms)
    slot_ms = keep_ms // SLOTS + 1

    def replaced_for_ms(at: int, note: SnapshotNote) -> int:
        # One whose follower has ended was followed within its slot.
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

    A young pin that none of the loaded snapshots named may belong to a running sync, which will commit a snapshot that
    names it (hazard 32).
    """
    before, named = ({note.pin for note in notes if note is not None} for notes in (loaded, kept))
    old = {name for name, p in pins.items() if now_ms - p.created_ms >= PENDING_MS}
    return [name for name in pins if name in (before | old) - named]


def note_without(note: SnapshotNote, names: Collection[bytes]) -> SnapshotNote:
    """Return the snapshot's note without objects of these names, which it has, according to their rows."""
    low = int(name_low(np.frombuffer(b"".join(names), NAME)).sum(dtype=np.uint64))
    return msgspec.structs.replace(note, files=note.files - len(names), names=(note.names - low) % 2**64)


def held_before(note: SnapshotNote, rows: Rows) -> Rows | None:
    """Return which of the rows the snapshot has; None if it may have others, which only its manifests show.

    If nothing was dropped since, or all of that is removed from the note, the snapshot has the objects with the lowest
    epochs, in this number and with this sum. Names stand for paths, since the note is of this URL (`check_owner`).

    Args:
        rows: of `L1_ROW`, without holes.
    """
    order = np.argsort(rows["epoch"], kind="stable")
    was_held = np.zeros(len(rows), np.bool_)
    was_held[order[: note.files]] = True
    if note.files > len(rows) or name_sum(rows[was_held]) != note.names:
        return None
    return was_held
