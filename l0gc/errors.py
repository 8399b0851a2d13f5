"""Every error that l0gc raises on purpose, and its exit code.

All errors form one tree, so that callers can catch a group of them, and the command line can turn each into one
sentence and an exit code. A message names the thing, the value and the way out. It never contains a secret.

Exit codes: 0 done, 1 unexpected, 2 usage, 3 some objects failed (the rest is done), 4 refused for safety, 5 not
initialised or not found, 6 the store lacks something that l0gc needs; 129, 130 and 143 stopped by a signal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

from l0gc.redaction import without_secrets

_NAMED: Final = 3


def suggestion(name: str, names: Iterable[str], otherwise: str) -> str:
    """Return a hint for a misspelt name: the nearest valid name, or `otherwise`, which says how to list the names."""
    import difflib

    near = difflib.get_close_matches(name, list(names), 1)
    return f"did you mean {near[0]!r}?" if near else otherwise


def fault_of(error: object, key: str = "") -> str:
    """Return an error's message without the remedy at its end, for a text that gives a different remedy.

    The message has "it" in place of the object's `key`, if the text has already named the key.
    """
    fault = str(error).partition("; restore ")[0]
    return f"it{fault.removeprefix(key)}" if key and fault.startswith(f"{key} ") else fault


def installing(extra: str = "") -> str:
    """Return advice to install l0gc, with an extra, from a checkout, since l0gc is not published."""
    package = f"'.[{extra}]'" if extra else "."
    return f"run pip install {package} in a checkout of l0gc"


class L0gcError(Exception):
    """Base class of all errors that l0gc raises on purpose.

    If a method of `l0gc.Cluster` raises the error after doing work, `result` holds that work. An error in the middle of a
    run that deletes has `so_far`: what the run had done by then.
    """

    exit_code: ClassVar[int] = 1
    result: object = None

    def __str__(self) -> str:
        """Return the message, with secrets removed from quoted text."""
        return without_secrets(super().__str__())

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the message and the attributes, whatever else `__init__` requires. A process that cannot unpickle an
        error waits for it for ever.
        """
        return rebuilt, (type(self), self.args), vars(self)


def rebuilt(kind: type[L0gcError], args: tuple[object, ...]) -> L0gcError:
    """Return an error with these arguments, the first of which is its message, without calling `__init__`."""
    return kind.__new__(kind, *args)


def unexpected(e: Exception) -> L0gcError:
    """Return an error whose cause is `e`, an exception that l0gc did not raise on purpose."""
    error = L0gcError(f"unexpected {type(e).__name__}: {e}")
    if isinstance(e, RuntimeError) and "can't start new thread" in str(e):
        error = L0gcError("this user may start no more threads: raise ulimit -u, or the container's limit of pids")
    error.__cause__ = e
    return error


# -- 2: what the caller requested cannot be meant ----------------------------------------------------------------------


class UsageError(L0gcError):
    """An argument, an option or an input record is invalid.

    Remedy: Correct what the message names.
    """

    exit_code = 2


# -- 3: partly done ---------------------------------------------------------------------------------------------------


class PartialFailureError(L0gcError):
    """Some objects failed and the rest is done; running the command again is safe.

    Remedy: Run the command again; if the same objects fail, the message gives the reason.
    """

    exit_code = 3

    @classmethod
    def of(cls, sentence: str, errors: Sequence[str]) -> PartialFailureError | None:
        """Return an error with the sentence and the first few of these errors, or None if `errors` is empty.

        The result holds all of them.
        """
        if not errors:
            return None
        more = f" (and {len(errors) - _NAMED} more)" if len(errors) > _NAMED else ""
        return cls(f"{sentence}: {'; '.join(errors[:_NAMED])}{more}")


# -- 4: refused for safety --------------------------------------------------------------------------------------------


class SafetyError(L0gcError):
    """Continuing could delete or hide a live object, so nothing was done.

    Remedy: Follow the message; until then, no other run deletes anything either.
    """

    exit_code = 4


class CorruptObjectError(SafetyError):
    """An object in the bucket does not hold what l0gc wrote there. Whatever depends on it stays unchanged.

    Remedy: Restore the object from a version or a backup.
    """


class ClusterMismatchError(SafetyError):
    """The bucket, a watermark or a report belongs to another cluster (hazard 11).

    Remedy: Correct the URL, or remove what was copied here from another cluster.
    """


class EpochRegressionError(SafetyError):
    """The bucket contains epochs that the controller has not reached: the controller's log is older than the data
    (hazard 10).

    Remedy: Restore the newest controller log, or jump above the highest epoch (`l0gc epoch advance --above`).
    """


class SetBackError(SafetyError):
    """A writer's log is older than when it was last read: it was restored from an older copy (hazard 38).

    Remedy: Restore the newest log, or accept the older one (`l0gc housekeep --accept-set-back`).
    """


class LostWatermarkError(SafetyError):
    """`published.json` is gone, though M was published before (hazard 38).

    Remedy: Restore it, or check the logs and compute M again (`l0gc compute-watermark --accept-lost`).
    """


class PinnedSinceError(SafetyError):
    """A pin was created after a computation of M had read the pins (hazard 36).

    Remedy: Compute M again.
    """


class PausedError(SafetyError):
    """An operator has paused sweeps; the message names who, why and since when.

    Remedy: Wait until the reason is gone, then run `l0gc resume`.
    """


# -- 5: not initialised, not found ------------------------------------------------------------------------------------


class NotFoundError(L0gcError):
    """The named thing does not exist.

    Remedy: Correct the name, or create the missing thing.
    """

    exit_code = 5


class NotInitialisedError(NotFoundError):
    """This URL does not hold an l0gc cluster.

    Remedy: Correct the URL, or run `l0gc init`.
    """


class BucketNotFoundError(NotFoundError):
    """The bucket does not exist.

    Remedy: Correct the URL, or run `l0gc init --create-bucket`.
    """


class PartitionClosedError(NotFoundError):
    """The partition's topic was deleted; the journal accepts no more entries for the topic.

    Remedy: Stop the writer, or create the topic again.
    """


class OffsetOutOfRangeError(NotFoundError):
    """The requested records lie below the log start offset, which retention or `delete-records` has moved, or above the
    next offset.

    Remedy: Read from an offset between the two that the message names.
    """


class RecordsLostError(NotFoundError):
    """The requested records were given up because they could not be read; their offsets are a hole.

    Remedy: Skip the hole (`--skip-holes`).
    """


class ObjectNotFoundError(NotFoundError):
    """The object does not exist; `date_ms` is the store's time in its answer, if it sent one.

    Remedy: Restore the object if a journal names it; `l0gc runs find KEY` shows which run deleted it.
    """

    date_ms: int | None = None


# -- 6: the store lacks something -------------------------------------------------------------------------------------


class StoreUnfitError(L0gcError):
    """The store lacks something that l0gc needs to be safe.

    Remedy: Run `l0gc doctor`, and use a store that passes.
    """

    exit_code = 6


class UnsupportedFormatError(StoreUnfitError):
    """This l0gc does not support the bucket's layout; it has read and written nothing there.

    Remedy: Upgrade l0gc, or restore `l0gc/format.json`.
    """


# -- 1: the store failed, or refused a request ------------------------------------------------------------------------


class StoreError(L0gcError):
    """The object store answered with an error, or did not answer.

    Remedy: Run the command again once the store answers.
    """


class StoreUnreachableError(StoreError):
    """The endpoint could not be reached.

    Remedy: Correct `--endpoint-url`, or start the server.
    """


class StoreSilentError(StoreUnreachableError):
    """The store left requests unanswered for as long as the run waits (`--store-timeout`); this one was not sent.

    Remedy: Check that the store and the network are up, or raise `--store-timeout`.
    """


class RequestRefusedError(StoreError):
    """The store refused a request with a specific error code; the same request would be refused again.

    Remedy: Change the value that the message names.
    """


class AccessDeniedError(RequestRefusedError):
    """The store refused the credentials, or they lack a permission.

    Remedy: Grant the permission that the message names.
    """


class AmbiguousWriteError(StoreError):
    """A write may or may not have landed: timeout, lost connection, or a server error.

    Remedy: Run the command again.
    """


class PreconditionFailedError(StoreError):
    """A conditional write found the object in another state than expected (412 or 409) and did not land.

    Remedy: Run the command again.
    """


class ThrottledError(StoreError):
    """The store asks for fewer requests (503 SlowDown).

    Remedy: Run the command again, later or with a lower `--max-rate`.
    """


class StoreTimeoutError(StoreError):
    """The store did not answer in time; like `ThrottledError`, a reason to send fewer requests.

    Remedy: Run the command again.
    """


class RefusedObjectError(CorruptObjectError, StoreError):
    """The store refuses one object and serves others: the object is archived, or its encryption key is disabled.

    Code that continues past a damaged object continues past this one too. The object may be intact, so it is never
    reported as lost.

    Remedy: Make the object readable, or give up its records (`l0gc give-up --force-readable`).
    """


class UnansweredObjectError(CorruptObjectError, StoreError):
    """The store does not serve one object at present (5xx, 429, no answer) and serves others: it may come back (hazard 42).

    Code that continues past a damaged object continues past this one too, but nothing is concluded about the object, so it
    is never reported as damaged or lost.

    Remedy: Run the command again later.
    """

    exit_code = 1


class OutputFailedError(L0gcError):
    """Stdout or the output file cannot be written, because its disk is full or it is closed. The work may be done.

    Remedy: Free the disk, or name another file.
    """


# -- a separate exit code ----------------------------------------------------------------------------------------------


class EndedError(L0gcError):
    """A command ends with an exit code that depends on the outcome.

    Remedy: Follow the message.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # of this one, and not of the class


class StoppedError(EndedError):
    """The user stopped the run. Work in progress was finished and reported; another run does the rest.

    Remedy: Run the command again.
    """


# -- 1: the protocol refuses ------------------------------------------------------------------------------------------


class ProtocolError(L0gcError):
    """The shared log, a partition or the controller refused a proposed entry.

    Remedy: Run the command again.
    """


class LogConflictError(ProtocolError):
    """Another writer owns the log offset; replay, then decide again.

    Remedy: Run the command again.
    """


class LogOvertakenError(LogConflictError):
    """The log was truncated past this writer's position while it slept (hazard 7); replay, then decide again."""


class AppendOutcomeUnknownError(ProtocolError):
    """It is unknown whether an append landed. It is not reported as landed, and not repeated at another offset.

    Remedy: Run the command again; repeat an upload with its `--producer`.
    """


class StaleClusterEpochError(ProtocolError):
    """The epoch lies below a partition's window, so the data needs a fresh epoch.

    Remedy: Upload the data again.
    """

    epoch: int = -1
    window: tuple[int, int] = (-1, -1)

    def __init__(self, message: str, *, epoch: int, window: tuple[int, int]) -> None:
        super().__init__(message)
        self.epoch = epoch
        self.window = window


class InvalidProducerEpochError(ProtocolError):
    """A newer instance of the producer exists; this one is fenced permanently (KIP-360).

    Remedy: Stop this instance, or begin a new run of the producer.
    """


class UnknownProducerError(ProtocolError):
    """The journal has no state that the producer's sequence could continue; the only remedy is a bumped epoch (KIP-360).

    Remedy: Begin a new run of the producer.
    """


class InputPositionMovedError(ProtocolError):
    """Another run of the same upload has landed more of this input; continue after `landed` records.

    Remedy: Repeat the upload under the same `--producer`.
    """

    landed: int = 0

    def __init__(self, message: str, *, landed: int) -> None:
        super().__init__(message)
        self.landed = landed


class BatchMismatchError(ProtocolError):
    """A sink's batch has already landed with other rows, or a later batch has landed (hazard 30).

    Remedy: Restore the query's newest checkpoint.
    """


UNREADABLE: Final = (CorruptObjectError, ObjectNotFoundError)
"""The errors that concern a single object: it is damaged or gone, or the store refuses it."""
