"""A process of the search: a short program whose every step is l0gc's own code, and its state between two steps.

Between two steps, the whole state of a process is its `Local`, so two histories that end in the same `Local` are one.
Within a step its state is the answers that the step has got. A process may die at any time: a search of every state
includes those from which the process takes no further step.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast

from l0gc.errors import L0gcError
from l0gc.keys import journal_log
from l0gc.runtime import Runtime
from l0gc.storage.log import Folder, SharedLog
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.store_time import StoreTime
from l0gc.streamlog.controller.handle import Controller
from l0gc.streamlog.journal.admission import EpochWindow
from l0gc.streamlog.journal.checkpoint import JournalMachine
from l0gc.streamlog.journal.handle import JournalHandle
from tests.exhaustive.store import Answer, AnsweredStore, Call, LocalClock, Stands

REVISION: Final = 1
TOPIC_ID: Final = "t"
EPOCHS: Final = (1, 2, 3)
"""All cluster epochs. The cluster is at the last one; a process may take any of them for the newest."""
JOURNALS: Final = (0, 1)
MACHINES: Final = tuple(JournalMachine(j) for j in JOURNALS)


class Listing(NamedTuple):
    """A `Folder` of a log, in a form that can be compared."""

    entries: tuple[tuple[int, int], ...]
    checkpoints: tuple[int, ...]
    date_ms: int


class Replica(NamedTuple):
    """What a process keeps of a log between two steps: the fields of its `Replica`, and its fence's seen window.

    Only processes that truncate use `folder`, so it is kept only for them.
    """

    state: bytes
    offset: int
    time_ms: int
    as_of_ms: int | None
    whole: bool
    checkpoint_offset: int
    checkpoint_weight: int
    charges: tuple[int, ...]
    behind: int
    folder: Listing
    ids: tuple[tuple[int, str], ...]
    seen: EpochWindow | None


class Reply(NamedTuple):
    """The reply of one journal to an upload: where it landed, and its first offset in each partition if these are
    known.

    `offset` is -1 if it was refused, and is not in the log.
    """

    upload: str
    key: str
    journal: int
    offset: int
    bases: tuple[int, ...] = ()


class Local(NamedTuple):
    """A process between two steps. `step` is its next step; '' when it has ended.

    The rest belongs to the program: its progress, the epoch at which it works, the journals that are still pending,
    those that refused it, and the least epoch that these take.
    """

    step: str
    turn: int = 0
    replicas: tuple[Replica | None, ...] = (None,) * len(JOURNALS)
    number: int = 0
    epoch: int = 0
    tries: int = 0
    pending: tuple[int, ...] = ()
    refused: tuple[int, ...] = ()
    least: int = 0
    partitions: tuple[int, ...] = ()
    entry: bytes = b""
    replies: tuple[Reply, ...] = ()
    trouble: str = ""


class View(NamedTuple):
    """What a process holds of a journal."""

    journal: int
    offset: int
    state: bytes


class Seen(NamedTuple):
    """A process at its present position: the call that it waits for (None between two steps), and what it holds of the
    journals.
    """

    local: Local
    call: Call | None
    views: tuple[View, ...]


class RightTime(StoreTime):
    """A store's time without wrong dates, which are left to the simulation."""

    def settle(self, date_ms: int) -> int:
        return date_ms


class _Controller:
    """The cluster epoch, always the newest; the journal's own window decides admission."""

    def __init__(self, store: ObjectStore) -> None:
        self.store_time = RightTime(store)

    def epoch(self, at_least: int = -1) -> int:
        return EPOCHS[-1]

    def producer_is_current(self, producer_id: int, epoch: int, run: str) -> bool:
        return True


class ClusterHandles:
    """A process's handles on the journals, in the state of its `Local`."""

    def __init__(self, local: Local, store: ObjectStore, runtime: Runtime, min_age_ms: int) -> None:
        self._local, self._store, self._runtime, self._min_age_ms = local, store, runtime, min_age_ms
        self._made: dict[int, JournalHandle] = {}

    def __call__(self, journal: int) -> JournalHandle:
        if journal not in self._made:
            controller = _Controller(self._store)
            log = SharedLog(
                self._store,
                journal_log(journal),
                self._runtime,
                truncate_min_age_ms=self._min_age_ms,
                store_time=controller.store_time,
            )
            handle = JournalHandle(journal, log, cast(Controller, controller), self._runtime)
            kept = self._local.replicas[journal]
            if kept is not None:
                _restore(handle, kept)
            self._made[journal] = handle
        return self._made[journal]

    def views(self) -> tuple[View, ...]:
        """Return what it holds of each journal that it has used in this step."""
        return tuple(
            View(j, h.replica.offset, MACHINES[j].encode(h.replica.peek())) for j, h in sorted(self._made.items())
        )

    def kept(self, *, truncates: bool) -> tuple[Replica | None, ...]:
        """Return the replicas that it continues with."""
        return tuple(
            _keep(self._made[j], truncates=truncates) if j in self._made else self._local.replicas[j] for j in JOURNALS
        )


def _restore(handle: JournalHandle, kept: Replica) -> None:
    replica: Any = handle.replica
    replica._state = MACHINES[handle.journal].decode(kept.state, "the replica")
    replica.offset, replica.time_ms, replica.as_of_ms = kept.offset, kept.time_ms, kept.as_of_ms
    replica._whole = kept.whole
    replica._charges, replica._behind = list(kept.charges), kept.behind
    replica.checkpoint_offset, replica.checkpoint_weight = kept.checkpoint_offset, kept.checkpoint_weight
    listing = kept.folder
    replica._folder = Folder(dict(listing.entries), list(listing.checkpoints), listing.date_ms)
    replica._ids = dict(kept.ids)
    replica._read_at = replica._as_of_at = 0.0  # its clock has not moved: a process may be stopped between two steps
    handle.fence._seen = kept.seen


def _keep(handle: JournalHandle, *, truncates: bool) -> Replica:
    replica: Any = handle.replica
    folder: Folder = replica._folder if truncates else Folder()
    return Replica(
        MACHINES[handle.journal].encode(replica._state),
        replica.offset,
        replica.time_ms,
        replica.as_of_ms,
        replica._whole,
        replica.checkpoint_offset,
        replica.checkpoint_weight,
        tuple(replica._charges),
        replica._behind,
        Listing(tuple(sorted(folder.entries.items())), tuple(folder.checkpoints), folder.date_ms),
        tuple(sorted(replica._ids.items())),
        handle.fence._seen,
    )


class Actor:
    """A process and its program."""

    deletes = False
    """Whether it may delete from a log."""

    def __init__(self, name: str) -> None:
        self.name = name

    def begin(self) -> Local:
        raise NotImplementedError

    def choices(self, local: Local) -> list[tuple[str, Local]]:
        """Return what the process may decide here, whatever others do; nothing if it continues with its step."""
        return []

    def act(self, handles: ClusterHandles, local: Local) -> Local:
        """Do one step by l0gc's own code; return what follows, without the replicas."""
        raise NotImplementedError

    def is_content(self, local: Local) -> bool:
        """Return whether it has ended with all its work done."""
        return not local.step

    def run(self, local: Local, answers: Sequence[Answer], min_age_ms: int) -> Seen:
        """Return the process `answers` after the beginning of its step."""
        clock = LocalClock()
        runtime = Runtime(clock, random.Random(f"{self.name}/{local.turn}"))
        handles = ClusterHandles(local, cast(ObjectStore, AnsweredStore(answers, clock)), runtime, min_age_ms)
        call: Call | None = None
        after = local
        try:
            after = self.act(handles, local)
        except Stands as stands:
            call = stands.call
        except L0gcError as e:
            after = local._replace(step="", trouble=f"{type(e).__name__}: {e}")
        views = handles.views()
        if call is None:
            kept = handles.kept(truncates=self.deletes) if after.step else Local("").replicas
            after = after._replace(turn=local.turn + 1, replicas=kept)
        return Seen(after, call, views)
