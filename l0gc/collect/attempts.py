"""Record what runs leave for later runs: how the last run of each job ended, and what `gc` saw.

`l0gc status` reads the attempts to explain why M does not move; `gc` reads its note (`gc_steps.GcNote`) to skip steps.
Each is one small object. No deletion depends on it, so it has no checksum, the last writer wins, and a failed write is
not an error. If a note is lost, a step runs that could have been skipped. The time of a run's end is when its object was
written, by the store's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

import msgspec

from l0gc.collect.gc_steps import STEPS, GcNote
from l0gc.decoding import UNDECODABLE
from l0gc.errors import (
    L0gcError,
    NotInitialisedError,
    ObjectNotFoundError,
    OutputFailedError,
    PausedError,
    StoreError,
    StoreUnreachableError,
    UsageError,
    unexpected,
)
from l0gc.keys import ATTEMPTS, GC_NOTE
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.parallel import Parallel
from l0gc.watermark.source import ClusterHandle

_NOT_RECORDED: Final = (UsageError, NotInitialisedError, PausedError, StoreUnreachableError, OutputFailedError)
"""Errors that do not concern the cluster, are recorded elsewhere (a pause), or leave no store to write to."""
_LONGEST: Final = 1000
_STOPPED: Final = 130
_SIGNALS: Final = (129, _STOPPED, 143)
"""The exit codes of runs that a signal stopped."""


class Attempt(msgspec.Struct, frozen=True):
    """A run that ended: `error` is what it ended with, empty if all went well. `ended_ms` is the store's clock.

    `part` means that it covered a part of the cluster, and that no run for the whole is on record.
    """

    command: str
    exit_code: int
    error: str
    ended_ms: int = 0
    part: bool = False

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @property
    def ended(self) -> str:
        """Return how the run ended: `ended`, `failed`, or `stopped` by a signal, which is not a failure."""
        return "ended" if self.ok else "stopped" if self.exit_code in _SIGNALS else "failed"


_ATTEMPT: Final = msgspec.json.Decoder(Attempt)
_NOTE: Final = msgspec.json.Decoder(GcNote)


def attempt_key(command: str) -> str:
    """Return where the last run of a command is recorded."""
    return f"{ATTEMPTS}{command}.json"


def write_attempt(store: ObjectStore, attempt: Attempt) -> None:
    """Record the attempt, if the store accepts it."""
    with suppress(StoreError):
        store.put(attempt_key(attempt.command), msgspec.json.encode(attempt))


class Attempts(NamedTuple):
    """The last recorded run of each job, and why the store refused the records of others."""

    known: dict[str, Attempt]
    refused: dict[str, StoreError]


def read_attempts(store: ObjectStore, parallel: Parallel, jobs: Sequence[str] = STEPS) -> Attempts:
    """Return the last recorded run of each of the jobs; ignore records that hold something else.

    Nothing else depends on a record that the store refuses, so that is not raised.
    """

    def read(command: str) -> Attempt | StoreError | None:
        try:
            stored = store.get(attempt_key(command))
            return msgspec.structs.replace(_ATTEMPT.decode(stored.body), ended_ms=stored.modified_ms)
        except (ObjectNotFoundError, *UNDECODABLE):
            return None
        except StoreError as e:
            return e

    found = dict(zip(jobs, parallel.map(read, jobs), strict=True))
    known = {job: a for job, a in found.items() if isinstance(a, Attempt)}
    return Attempts(known, {job: e for job, e in found.items() if isinstance(e, StoreError)})


def read_gc_note(store: ObjectStore) -> GcNote:
    """Return the note of `gc`, or an empty one if it does not exist or cannot be read: steps then run."""
    try:
        return _NOTE.decode(store.get(GC_NOTE).body)
    except (ObjectNotFoundError, StoreError, *UNDECODABLE):
        return GcNote()


def write_gc_note(store: ObjectStore, note: GcNote) -> None:
    """Write the note, if the store accepts it."""
    with suppress(StoreError):
        store.put(GC_NOTE, msgspec.json.encode(note))


@contextmanager
def recorded_attempt(
    cluster: ClusterHandle, command: str, *, whole: bool | Callable[[], bool] = True, dry_run: bool = False
) -> Iterator[None]:
    """Record how a block ended, unless the cluster was never identified: nothing is written into a foreign bucket.

    Args:
        whole: False for a run that covers only a part of the cluster. It is recorded only if it succeeded and no run for
            the whole is on record. A function is called when the block has ended.
        dry_run: whether it writes nothing, and so is not recorded.
    """
    error: BaseException | None = None
    try:
        yield
    except BaseException as e:
        error = e
        raise
    finally:
        # If the reader of the output has gone, that does not concern the run.
        unconcerned = isinstance(error, _NOT_RECORDED) or isinstance(getattr(error, "__cause__", None), BrokenPipeError)
        if not dry_run and cluster.identified and not unconcerned:
            if whole if isinstance(whole, bool) else whole():
                write_attempt(cluster.store, Attempt(command, *_outcome(error)))
            elif error is None:
                _record_part(cluster, command)


def _record_part(cluster: ClusterHandle, command: str) -> None:
    """Record a run for a part of the cluster, so that the job is not reported as never run."""
    with suppress(StoreError):
        read = read_attempts(cluster.store, cluster.parallel, [command])
        last = read.known.get(command)
        if not read.refused and (last is None or last.part):
            write_attempt(cluster.store, Attempt(command, 0, "", part=True))


def _outcome(error: BaseException | None) -> tuple[int, str]:
    if error is None:
        return 0, ""
    if isinstance(error, L0gcError):
        return error.exit_code, str(error)[:_LONGEST]
    if isinstance(error, KeyboardInterrupt):
        return _STOPPED, "it was stopped"
    if isinstance(error, Exception):
        return _outcome(unexpected(error))
    return 1, f"it was ended by {type(error).__name__}"
