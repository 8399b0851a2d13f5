"""The processes of the search: they upload, reconcile and run housekeeping."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import Final

import msgspec
import numpy as np

from l0gc.errors import AppendOutcomeUnknownError, L0gcError, StaleClusterEpochError, StoreError
from l0gc.streamlog.journal.entries import RECONCILE, Edit, EditedTopic, ObjectExtents
from l0gc.streamlog.journal.handle import JournalHandle, LandedObject
from l0gc.streamlog.journal.producers import ProducerBatch
from l0gc.streamlog.journal.rows import L1_ROW
from l0gc.streamlog.journal.state import JournalState
from tests.exhaustive.process import EPOCHS, REVISION, TOPIC_ID, Actor, ClusterHandles, Local, Reply
from tests.support.journal import extents_of

_EDIT: Final = msgspec.msgpack.Decoder(Edit)
Parts = tuple[tuple[int, tuple[int, ...]], ...]
"""For each journal, the partitions that get one record each from an upload."""
ONE: Final[Parts] = ((0, (0,)),)
BOTH: Final[Parts] = ((0, (0, 1)),)
SECOND: Final[Parts] = ((0, (1,)),)
TWO_JOURNALS: Final[Parts] = ((0, (0,)), (1, (1,)))


@lru_cache
def _object(key: str, epoch: int, partitions: tuple[int, ...]) -> ObjectExtents:
    return extents_of(epoch, dict.fromkeys(partitions, 1), key=key, revision=REVISION, topic_id=TOPIC_ID)


class Uploader(Actor):
    """Appends the objects of its uploads, each stamped with any epoch, since its cached epoch may be stale.

    An object that a journal has refused as stale is stamped anew only for that journal.

    Args:
        uploads: how many, one after another, by the same handles.
        parts: where the records of each go.
        together: how many it offers at once, which the log then takes in one entry.
        restamps: how often an upload that is refused as stale is stamped anew.
        epochs: the epochs that it may take for the newest.
        producer: whether it sends sequences, and repeats objects that may not have landed.
    """

    def __init__(
        self,
        name: str,
        uploads: int = 1,
        *,
        parts: Parts = ONE,
        together: int = 1,
        restamps: int = 1,
        epochs: tuple[int, ...] = EPOCHS,
        producer: bool = False,
    ) -> None:
        super().__init__(name)
        self._epochs = epochs
        self._uploads, self._parts, self._together = uploads, dict(parts), together
        self._restamps, self._producer = restamps, producer

    def begin(self) -> Local:
        return Local("stamp", pending=tuple(self._parts))

    def choices(self, local: Local) -> list[tuple[str, Local]]:
        if local.step != "stamp":
            return []
        return [
            (f"stamps {e}", local._replace(step=self._next_step(local), epoch=e))
            for e in self._epochs
            if e >= local.epoch
        ]

    @staticmethod
    def _next_step(local: Local) -> str:
        return "read" if local.replicas[local.pending[0]] is None else "append"

    def is_content(self, local: Local) -> bool:
        landed = sum(t.offset >= 0 for t in local.replies)
        return not local.step and landed == self._uploads * len(self._parts)

    def act(self, handles: ClusterHandles, local: Local) -> Local:
        journal = local.pending[0]
        handle = handles(journal)
        if local.step == "read":
            _ = handle.state
            return local._replace(step="append")
        uploads = [f"{self.name}.{n}" for n in range(local.number, local.number + self._together)]
        keys = [f"{upload}.{local.epoch}.{local.tries}" for upload in uploads]
        offered = [_object(key, local.epoch, self._parts[journal]) for key in keys]
        if self._producer:
            batches = (ProducerBatch(ord(self.name[0]), 0, "run", local.number + i) for i in range(len(offered)))
            offered = [msgspec.structs.replace(o, producer=b) for o, b in zip(offered, batches, strict=True)]
        landed, error = _offer(handle, offered)
        if isinstance(error, AppendOutcomeUnknownError):
            return local._replace(step="append" if self._producer else "", tries=local.tries + 1)
        replies = local.replies
        for i, (upload, key) in enumerate(zip(uploads, keys, strict=True)):
            if i < len(landed):
                bases = landed[i].bases
                first = () if bases is None else tuple(bases.tolist())
                replies = (*replies, Reply(upload, key, journal, landed[i].log_offset, first))
            else:
                replies = (*replies, Reply(upload, key, journal, -1))
        local = local._replace(replies=replies, pending=local.pending[1:])
        if isinstance(error, StaleClusterEpochError):
            local = local._replace(refused=(*local.refused, journal), least=max(local.least, error.window[0]))
        elif isinstance(error, StoreError):
            return local._replace(step="")
        elif error is not None:
            raise error
        return self._following(local)

    def _following(self, local: Local) -> Local:
        if local.pending:
            return local._replace(step=self._next_step(local))
        if local.refused:
            again = local._replace(tries=local.tries + 1, pending=local.refused, refused=(), least=0)
            return again._replace(step="stamp" if local.tries < self._restamps else "", epoch=local.least)
        number = local.number + self._together
        more = number < self._uploads
        following = local._replace(number=number, epoch=0, tries=0, pending=tuple(self._parts))
        return following._replace(step="stamp" if more else "")


def _offer(handle: JournalHandle, offered: Sequence[ObjectExtents]) -> tuple[list[LandedObject], L0gcError | None]:
    """Return what landed, and why the rest did not."""
    try:
        appended = handle.append(offered)
    except L0gcError as e:
        return [], e
    return appended.landed, appended.error


class Reconciler(Actor):
    """Lifts a journal's unreconciled records, and commits them later: the L1 objects are always durable by then.

    Args:
        lifts: the sets of partitions that a round may take.
    """

    def __init__(self, name: str, rounds: int, *, journal: int = 0, lifts: Sequence[tuple[int, ...]] = ((0,),)) -> None:
        super().__init__(name)
        self._rounds, self._journal, self._lifts = rounds, journal, list(lifts)

    def begin(self) -> Local:
        return self._round(Local("choose"), 0)

    def _round(self, local: Local, number: int) -> Local:
        following = local._replace(number=number, entry=b"", partitions=self._lifts[0])
        step = "" if number >= self._rounds else "plan" if len(self._lifts) == 1 else "choose"
        return following._replace(step=step)

    def choices(self, local: Local) -> list[tuple[str, Local]]:
        if local.step != "choose":
            return []
        return [(f"takes partitions {lift}", local._replace(step="plan", partitions=lift)) for lift in self._lifts]

    def act(self, handles: ClusterHandles, local: Local) -> Local:
        handle = handles(self._journal)
        following = self._round(local, local.number + 1)
        if local.step == "plan":
            entry = _commit_of(handle.catch_up(), local.partitions, f"{self.name}{local.number}")
            return following if entry is None else local._replace(step="commit", entry=msgspec.msgpack.encode(entry))
        try:
            handle.land(_EDIT.decode(local.entry))
        except (AppendOutcomeUnknownError, StoreError):
            return following
        return following


def _commit_of(state: JournalState, partitions: tuple[int, ...], name: str) -> Edit | None:
    """Return the commit of all unreconciled records of these partitions, with one L1 object each."""
    files = []
    for p in partitions:
        extents = state.topic(REVISION).extents(p)
        if extents:
            ends = (p, extents[0].base_offset, extents[-1].last_offset)
            files.append((*ends, 1, 0, EPOCHS[0], uuid.uuid5(uuid.NAMESPACE_OID, f"{name}/{ends}").bytes, 0))
    if not files:
        return None
    topic = EditedTopic.of(REVISION, state.topic(REVISION).topic_id, added=np.array(files, L1_ROW))
    return Edit(RECONCILE, EPOCHS[0], [topic])


class Housekeeper(Actor):
    """Moves the window to an epoch, or closes it there; if it `truncates`, it then writes a checkpoint and truncates.

    Args:
        moves: what it may do to a window.
        relists: whether it lists the log anew before it truncates, and does not use its replay's listing.
    """

    def __init__(
        self,
        name: str,
        rounds: int,
        *,
        truncates: bool,
        journals: tuple[int, ...] = (0,),
        moves: Sequence[tuple[str, int]] = tuple(product(("advance", "barrier"), EPOCHS[1:])),
        relists: bool = True,
    ) -> None:
        super().__init__(name)
        self._rounds, self.deletes, self._journals = rounds, truncates, journals
        self._moves, self._relists = moves, relists

    def begin(self) -> Local:
        return Local("choose")

    def choices(self, local: Local) -> list[tuple[str, Local]]:
        if local.step != "choose":
            return []
        return [
            (f"{step}s journal {j} to {e}", local._replace(step=step, epoch=e, pending=(j,)))
            for j in self._journals
            for step, e in self._moves
        ]

    def act(self, handles: ClusterHandles, local: Local) -> Local:
        handle = handles(local.pending[0])
        following = local._replace(step="choose", number=local.number + 1, epoch=0, pending=())
        if following.number >= self._rounds:
            following = following._replace(step="")
        try:
            if local.step in {"advance", "barrier"}:
                (handle.advance if local.step == "advance" else handle.barrier)(local.epoch)
                return local._replace(step="checkpoint") if self.deletes else following
            if local.step == "checkpoint":
                handle.replica.write_checkpoint()
                return local._replace(step="truncate")
            if self._relists:
                handle.replica.log.truncate()
            else:
                handle.replica.truncate()
        except (AppendOutcomeUnknownError, StoreError):
            return local._replace(step="")
        return following
