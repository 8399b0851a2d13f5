"""The commands that are killed: in which cluster, with which arguments, and what they must have done in the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from l0gc.errors import L0gcError, TopicNotFoundError
from l0gc.keys import CONTROLLER_LOG
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.journal.state import PartitionState
from tests.crash.checks import BrokenError, View
from tests.crash.scenes import (
    AGE_S,
    DELETED,
    INPUT,
    PARTITIONS,
    TOPIC,
    Build,
    Records,
    Scene,
    in_turn,
    overdue,
    quiet,
    reconciled,
    sweepable,
)

NEW: Final = "fresh"
FILE: Final = "FILE"
"""Stands for the path of a file with `INPUT` in a command's arguments."""


@dataclass(frozen=True)
class Case:
    """A command.

    `shared` ones run in this process, with one Spark session. `clock_ahead_s` moves the store's clock for the command.
    `done` is an error that tells a repeated command that nothing is left to do.
    """

    name: str
    args: list[str]
    build: Build
    achieved: Callable[[View, Scene], None]
    shared: bool = False
    clock_ahead_s: int = 0
    coming: Records = field(default_factory=dict)
    done: tuple[type[L0gcError], ...] = ()


def _want(truth: bool, text: str) -> None:
    if not truth:
        raise BrokenError(text)


def _uploaded(view: View, scene: Scene) -> None:
    """That the records are there once, and in order, has been checked."""
    _want(set(view.state.producers) == {"nightly"}, f"producers are {sorted(view.state.producers)}")


def _reconciled(view: View, scene: Scene) -> None:
    left = {str(p): s.unreconciled_records for p, s in view.partitions.items() if s.placeholders}
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
    entries = [view.cluster.store.get(k).body for k in view.keys if k.startswith(f"{CONTROLLER_LOG}log/")]
    made = sum(b"create_topic" in e and NEW.encode() in e for e in entries)
    _want(made == 1, f"it was created {made} times")


def _deleted(view: View, scene: Scene) -> None:
    _want(TOPIC not in view.state.topics, "the topic is still there")
    housekeep(view.cluster)  # closes what the deleter did not get to
    _closed(view, TOPIC)


def _closed(view: View, topic: str) -> None:
    gone = [p for p in view.cluster.controller.snapshot().to_be_closed() if p.topic == topic]
    _want(bool(gone), f"the controller does not know that {topic} was deleted")
    for p in gone:
        _want(view.cluster.partition(p).catch_up().closed, f"{p} is open")


def _kept_house(view: View, scene: Scene) -> None:
    _want(view.state.epoch > 50, "the epoch went back")
    for p, s in view.partitions.items():
        _want(s.max_applied_epoch == view.state.epoch, f"the window of {p} ends at {s.max_applied_epoch}")
    _closed(view, DELETED)
    first = view.state.topic(TOPIC).ids()[0]
    for log, old in ((CONTROLLER_LOG, 50), (view.cluster.partition(first).replica.log.folder, 40)):
        left = [k for k in view.keys if k.startswith(f"{log}log/") and int(k[-25:-5]) < old]
        _want(not left, f"not truncated: {left}")
        _want(f"{log}boundary.json" in view.keys, f"{log} was truncated without a boundary")


def _barred(view: View, scene: Scene) -> None:
    def is_closed_to(s: PartitionState) -> bool:
        return s.previous_applied_epoch == s.max_applied_epoch == view.state.epoch

    for p, s in view.partitions.items():
        _want(is_closed_to(s), f"the window of {p} is {s.window} at epoch {view.state.epoch}")


CASES: Final = {
    c.name: c
    for c in (
        Case("topic-create", ["topic", "create", NEW, "--partitions", "2"], quiet, _created),
        Case("topic-delete", ["topic", "delete", TOPIC], quiet, _deleted, done=(TopicNotFoundError,)),
        Case(
            "upload",
            ["upload", TOPIC, FILE, "--producer", "nightly", "--batch-bytes", "200"],
            quiet,
            _uploaded,
            coming={TOPIC: [in_turn(INPUT, p, PARTITIONS[TOPIC]) for p in range(PARTITIONS[TOPIC])]},
        ),
        Case("housekeep", ["housekeep"], overdue, _kept_house, clock_ahead_s=AGE_S),
        Case("housekeep-barrier", ["housekeep", "--barrier"], quiet, _barred),
        Case("reconcile", ["reconcile"], quiet, _reconciled, shared=True),
        Case("compute-watermark", ["compute-watermark"], reconciled, _computed, shared=True),
        Case("sweep", ["sweep"], sweepable, _swept),
    )
}
