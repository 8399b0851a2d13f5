"""The commands that are killed: their clusters, their arguments, and the results that they must achieve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from l0gc.collect.dropped_l1 import GRACE_EPOCHS
from l0gc.errors import L0gcError, NotFoundError, UsageError
from l0gc.keys import CONTROLLER_LOG, L1_DATA, journal_log
from l0gc.streamlog.controller.entries import CreateTopic, decode_controller_entry
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.pins import create_pin
from tests.crash.checks import BrokenError, View
from tests.crash.scenes import (
    AGE_S,
    DELETED,
    INPUT,
    LIFTS,
    MANY,
    PARTITIONS,
    TOPIC,
    Build,
    Records,
    Scene,
    in_turn,
    mergeable,
    overdue,
    pinned,
    quiet,
    reconciled,
    sharing,
    sweepable,
    too_old,
    unfinished,
    vacuumable,
)
from tests.crash.tables import CATALOG, SYNC, table_is_readable, table_is_synced
from tests.support.reconcile import named

NEW: Final = "fresh"
BEFORE: Final = 4
"""The first offset that `delete-records` leaves: in the middle of an L1 object."""
HOLE: Final = (0, 2)
"""The offsets of a partition in one L0 object, for `give-up`."""
VACUUM: Final = ["vacuum", "--l1-grace", "0s", "--orphan-age", "0s", "--engine", "local"]
VACUUMED: Final = (*[["epoch", "advance"]] * (GRACE_EPOCHS + 1), ["housekeep"], VACUUM)
"""Commands that delete everything in L1 that no journal names, without grace."""
RECONCILE: Final = ["reconcile", "--engine", "local"]
MERGE: Final = ["merge", "--fan-in", "2", "--engine", "local"]
BEFORE_S: Final = 60
"""How many seconds the store's clock moves while the commands of `before` run."""
FILE: Final = "FILE"
"""Stands for the path of a file with `INPUT` in a command's arguments."""


def _want(truth: bool, text: str) -> None:
    if not truth:
        raise BrokenError(text)


def only_named_is_left(view: View) -> None:
    """Raise `BrokenError` unless the L1 objects are exactly those that journals name, and all dropped ones are purged."""
    listed = set().union(*(named(view.cluster, topic) for topic in view.state.topics))
    there = {k for k in view.keys if k.startswith("level_one/")}
    _want(there >= listed, f"gone are {sorted(listed - there)}")
    _want(there <= listed, f"left over are {sorted(there - listed)}")
    for journal in range(view.state.journals):
        _want(not len(view.cluster.journal(journal).catch_up().dropped), f"journal {journal} has not purged all")


@dataclass(frozen=True)
class Case:
    """A command.

    `shared` ones run in this process, with one Spark session. `clock_ahead_s` moves the store's clock for the command.
    `before` are commands that run first, undisturbed; the store's clock reaches `clock_ahead_s` with the last of them.
    `cleaned` are commands that run after the killed command, and once more after the repeated one, while others read;
    after them `left` must hold. `done` are errors by which a repeated command reports that nothing is left to do.
    `may_go` are the topics whose records it deletes, and `hole` is what it gives up.
    """

    name: str
    args: list[str]
    build: Build
    achieved: Callable[[View, Scene], None]
    shared: bool = False
    clock_ahead_s: int = 0
    coming: Records = field(default_factory=dict)
    done: tuple[type[L0gcError], ...] = ()
    may_go: frozenset[str] = frozenset()
    before: Sequence[list[str]] = ()
    cleaned: Sequence[list[str]] = ()
    left: Callable[[View], None] = only_named_is_left
    hole: tuple[str, int, int, int] | None = None


def _uploaded(view: View, scene: Scene) -> None:
    """Check the producer; other checks cover that the records are there once, and in order."""
    _want(set(view.state.producers) == {"nightly"}, f"producers are {sorted(view.state.producers)}")


def _reconciled(view: View, scene: Scene) -> None:
    extents = {str(p): j.topic(p.revision).extents(p.partition) for p, j in view.partitions.items()}
    left = {p: len(some) for p, some in extents.items() if some}
    _want(not left, f"unreconciled are {left}")


def _computed(view: View, scene: Scene) -> None:
    _want(view.watermark == scene.watermark, f"M is {view.watermark}, not {scene.watermark}")


def _swept(view: View, scene: Scene) -> None:
    there = view.l0_epochs(scene)
    eligible = [k for k, e in there.items() if e <= view.watermark]
    _want(not eligible, f"left over are {eligible}")
    kept = {k for k in scene.objects if (p := scene.layout.parse(k)) is not None and p.epoch > view.watermark}
    _want(bool(kept) and kept == set(there), f"kept are {sorted(there)}, not {sorted(kept)}")


def _created(view: View, scene: Scene) -> None:
    _want(set(view.state.topics) == {*PARTITIONS, NEW}, f"topics are {sorted(view.state.topics)}")
    _want(view.state.topic(NEW).partitions == 2, "it has another number of partitions")
    log = view.cluster.controller.replica.log
    offsets = [int(k[-20:]) for k in view.keys if k.startswith(f"{CONTROLLER_LOG}log/")]
    entries = [decode_controller_entry(offset, log.get(offset).payload) for offset in offsets]
    made = sum(isinstance(e, CreateTopic) and e.name == NEW for e in entries)
    _want(made == 1, f"it was created {made} times")


def _deleted(view: View, scene: Scene) -> None:
    _want(TOPIC not in view.state.topics, "the topic is still there")
    housekeep(view.cluster)  # closes what the deleter had left open
    _closed(view, TOPIC)


def _closed(view: View, topic: str) -> None:
    gone = [d for d in view.cluster.controller.snapshot().deleted if d.topic.name == topic]
    _want(bool(gone), f"the controller does not know that {topic} was deleted")
    for d in gone:
        for partition_range in d.topic.partition_ranges():
            closed = view.cluster.journal(partition_range.journal).catch_up().closed(d.topic.revision)
            _want(closed, f"{topic} is open in journal {partition_range.journal}")


def _kept_house(view: View, scene: Scene) -> None:
    _want(view.state.epoch > 50, "the epoch went back")
    for p, j in view.partitions.items():
        _want(j.max_applied_epoch == view.state.epoch, f"the window of {p} ends at {j.max_applied_epoch}")
    _closed(view, DELETED)
    first = journal_log(view.state.topic(TOPIC).journals[0])
    for log, old in ((CONTROLLER_LOG, 50), (first, 40)):
        left = [k for k in view.keys if k.startswith(f"{log}log/") and int(k[-20:]) < old]
        _want(not left, f"not truncated: {left}")
        _want(f"{log}boundary.json" in view.keys, f"{log} was truncated without a boundary")


def _merged(view: View, scene: Scene) -> None:
    for p, j in view.partitions.items():
        named = j.topic(p.revision).files(p.partition)
        _want(p.topic != TOPIC or len(named) < LIFTS, f"{p} still has {len(named)} L1 objects")


def _merged_and_nothing_deleted(view: View, scene: Scene) -> None:
    _merged(view, scene)
    for p in view.partitions:
        files = [f for f in view.keys if f.startswith(f"{L1_DATA}{p.path}/")]
        lost = p.topic == TOPIC and len(files) <= LIFTS
        _want(not lost, f"{p} has lost L1 objects that readers may still need: {files}")


def _drained(view: View, scene: Scene) -> None:
    for p, j in view.partitions.items():
        known = j.topic(p.revision)
        _want(not known.shared, f"{p.topic} still has {len(known.shared)} shared L1 objects")
        _want(p.topic != MANY or len(known.files(p.partition)) == 1, f"{p} has {known.files(p.partition)}")


def _expired(view: View, scene: Scene) -> None:
    for p, j in view.partitions.items():
        got = j.topic(p.revision).view(p.partition)
        wanted = got.last_reconciled_offset + 1 if p.topic == TOPIC else 0
        _want(got.log_start_offset == wanted, f"{p} begins at {got.log_start_offset}, not at {wanted}")
        _want(got.next_offset > wanted, f"{p} has lost what is not in L1")


def _records_deleted(view: View, scene: Scene) -> None:
    for p, j in view.partitions.items():
        got = j.topic(p.revision).view(p.partition).log_start_offset
        wanted = BEFORE if p.topic == TOPIC else 0
        _want(got == wanted, f"{p} begins at {got}, not at {wanted}")


def _given_up(view: View, scene: Scene) -> None:
    """Check for a single hole; other checks cover its offsets."""
    holes = [f for p, j in view.partitions.items() for f in j.topic(p.revision).files(p.partition) if f.is_hole]
    _want(len(holes) == 1, f"its holes are {holes}, not one")


def _vacuumed(view: View, scene: Scene) -> None:
    only_named_is_left(view)
    there = {k for k in scene.objects if k.startswith("level_one/")}
    _want(len(there - view.keys) > LIFTS, "there was little to vacuum")


def _pinned(view: View, scene: Scene) -> None:
    """Check the windows, after replacing a pin whose command was killed before it took effect."""
    pin = view.state.pin("backup")
    if not pin.in_effect:
        view.cluster.controller.delete_pin("backup")
        pin = create_pin(view.cluster, "backup", 3_600_000)
    journals = {view.cluster.journal(j).catch_up().max_applied_epoch for j, _ in pin.ends or ()}
    _want(bool(journals) and min(journals) >= pin.revision, "a journal's window has not reached the pin")


def _unpinned(view: View, scene: Scene) -> None:
    _want(not view.state.pins, f"pins are {sorted(view.state.pins)}")


def _barred(view: View, scene: Scene) -> None:
    for p, j in view.partitions.items():
        closed = j.previous_applied_epoch == j.max_applied_epoch == view.state.epoch
        _want(closed, f"the window of {p} is {j.window} at epoch {view.state.epoch}")


CASES: Final = {
    c.name: c
    for c in (
        Case("topic-create", ["topic", "create", NEW, "--partitions", "2"], quiet, _created),
        Case("topic-delete", ["topic", "delete", TOPIC, "--yes"], quiet, _deleted, done=(NotFoundError,)),
        Case(
            "upload",
            ["upload", TOPIC, FILE, "--producer", "nightly", "--batch-bytes", "200"],
            quiet,
            _uploaded,
            coming={TOPIC: [in_turn(INPUT, p, PARTITIONS[TOPIC]) for p in range(PARTITIONS[TOPIC])]},
        ),
        Case("housekeep", ["housekeep"], overdue, _kept_house, clock_ahead_s=AGE_S),
        Case("housekeep-barrier", ["housekeep", "--barrier"], quiet, _barred),
        Case("reconcile", ["reconcile", "--engine", "spark"], quiet, _reconciled, shared=True),
        Case("compute-watermark", ["compute-watermark", "--engine", "spark"], reconciled, _computed, shared=True),
        Case("sweep", ["sweep"], sweepable, _swept),
        Case("merge", MERGE, mergeable, _merged_and_nothing_deleted),
        Case("expire", ["expire"], too_old, _expired, may_go=frozenset({TOPIC})),
        Case(
            "delete-records",
            ["delete-records", TOPIC, "--all-partitions", "--before-offset", str(BEFORE), "--yes"],
            reconciled,
            _records_deleted,
            may_go=frozenset({TOPIC}),
        ),
        Case(
            "give-up",
            ["give-up", TOPIC, "--partition", "1", "--offsets", f"{HOLE[0]}-{HOLE[1]}", "--force-readable", "--yes"],
            quiet,
            _given_up,
            done=(UsageError,),
            hole=(TOPIC, 1, *HOLE),
        ),
        Case("pin-create", ["pin", "create", "backup", "--ttl", "1h"], quiet, _pinned, done=(UsageError,)),
        Case("pin-delete", ["pin", "delete", "backup"], pinned, _unpinned, done=(NotFoundError,)),
        Case("vacuum", VACUUM, vacuumable, _vacuumed),
        Case(
            "reconcile-vacuum",
            ["reconcile", "--engine", "spark"],
            unfinished,
            _reconciled,
            shared=True,
            cleaned=VACUUMED,
        ),
        Case(
            "merge-vacuum",
            MERGE,
            unfinished,
            _merged,
            cleaned=VACUUMED,
        ),
        Case("share-vacuum", RECONCILE, sharing, _reconciled, cleaned=VACUUMED),
        Case("drain-vacuum", MERGE, sharing, _drained, cleaned=(*VACUUMED, VACUUM)),  # the first raises the L1 fence
        Case(
            "table-sync",
            SYNC,
            unfinished,
            table_is_synced,
            clock_ahead_s=BEFORE_S,
            before=(["table", "create", TOPIC, "--catalog", CATALOG], SYNC, RECONCILE, SYNC, MERGE),
            cleaned=VACUUMED,
            left=table_is_readable,
        ),
    )
}
