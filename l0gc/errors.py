"""Every error that l0gc raises on purpose, and the exit code that each one means.

One tree, so that a caller can catch by concern and the command line can turn any of them into one sentence and the
right exit code. A message names the thing, the value and the way out; it never holds a secret.

Exit codes: 0 done, 1 unexpected, 2 usage, 3 some objects failed (the rest is done), 4 refused for safety,
5 not initialised or not found, 6 the store lacks something that l0gc needs; 129, 130 and 143 stopped by a signal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

from l0gc.redaction import without_secrets

_NAMED: Final = 3


def suggestion(name: str, names: Iterable[str], otherwise: str) -> str:
    """Return the way out after a misspelt name: the nearest of the names, else what lists them."""
    import difflib

    near = difflib.get_close_matches(name, list(names), 1)
    return f"did you mean {near[0]!r}?" if near else otherwise


class L0gcError(Exception):
    """Base of all errors that l0gc raises on purpose.

    `result` is the work that was done, if a method of `l0gc.Cluster` raises the error after it. An error in the middle of
    a run that deletes has `so_far`, what the run did until then.
    """

    exit_code: ClassVar[int] = 1
    result: object = None

    def __str__(self) -> str:
        """Return the message; what it repeats of others holds no secret."""
        return without_secrets(super().__str__())


# -- 2: what the caller requested cannot be meant ----------------------------------------------------------------------


class UsageError(L0gcError):
    """An argument, an option or an input record that cannot be used as it is."""

    exit_code = 2


# -- 3: partly done ---------------------------------------------------------------------------------------------------


class PartialFailureError(L0gcError):
    """Some objects failed, the rest is done; running the command again is safe."""

    exit_code = 3

    @classmethod
    def of(cls, sentence: str, errors: Sequence[str]) -> PartialFailureError | None:
        """Return the sentence with the first few of these errors, since the result has them all; None without any."""
        if not errors:
            return None
        more = f" (and {len(errors) - _NAMED} more)" if len(errors) > _NAMED else ""
        return cls(f"{sentence}: {'; '.join(errors[:_NAMED])}{more}")


# -- 4: refused for safety --------------------------------------------------------------------------------------------


class SafetyError(L0gcError):
    """Going on could delete or hide a live object, so nothing was done."""

    exit_code = 4


class CorruptObjectError(SafetyError):
    """An object in the bucket does not hold what l0gc wrote there; what depends on it stays as it was."""


class ClusterMismatchError(SafetyError):
    """The bucket, a watermark or a report belongs to another cluster (hazard 11)."""


class EpochRegressionError(SafetyError):
    """The bucket knows epochs that the controller has not reached: its log is older than the data (hazard 10)."""


class SetBackError(SafetyError):
    """A writer's log is older than one that was read before: it was restored from an older copy (hazard 38)."""


class PinnedSinceError(SafetyError):
    """A pin was created that a computation of M has not seen (hazard 36)."""


class PausedError(SafetyError):
    """An operator has paused sweeps; the message says who, why and since when."""


# -- 5: not initialised, not found ------------------------------------------------------------------------------------


class NotFoundError(L0gcError):
    """The thing named does not exist."""

    exit_code = 5


class NotInitialisedError(NotFoundError):
    """This URL holds no l0gc cluster."""


class BucketNotFoundError(NotFoundError):
    """The bucket does not exist."""


class PartitionClosedError(NotFoundError):
    """The partition's topic was deleted; its log accepts nothing more."""


class OffsetOutOfRangeError(NotFoundError):
    """Records below the log start offset were requested; retention or `delete-records` has moved it."""


class RecordsLostError(NotFoundError):
    """Records that were requested were given up, because nobody could read them: they are a hole."""


class ObjectNotFoundError(NotFoundError):
    """The object does not exist; `date_ms` is the store's clock at that answer, if it sent one."""

    date_ms: int | None = None


# -- 6: the store lacks something -------------------------------------------------------------------------------------


class StoreUnfitError(L0gcError):
    """The store does not do something that l0gc's safety rests on."""

    exit_code = 6


class UnsupportedFormatError(StoreUnfitError):
    """The bucket is laid out in a way that this l0gc does not know; nothing was read of it, or written."""


# -- 1: the store failed, or did not let us ---------------------------------------------------------------------------


class StoreError(L0gcError):
    """The object store answered with an error, or not at all."""


class StoreUnreachableError(StoreError):
    """No connection to the endpoint."""


class AccessDeniedError(StoreError):
    """The store refused the credentials, or they lack a permission."""


class AmbiguousWriteError(StoreError):
    """A write may or may not have landed: time-out, connection cut, or a server error."""


class PreconditionFailedError(StoreError):
    """A conditional write found the object other than expected (412 or 409): it did not land."""


class ThrottledError(StoreError):
    """The store asks for fewer requests (503 SlowDown)."""


class StoreTimeoutError(StoreError):
    """The store did not answer in time; like `ThrottledError`, a reason to ask for less."""


class RefusedObjectError(CorruptObjectError, StoreError):
    """The store refuses one object, and answers for others: archived, its encryption key is disabled, a broken disk.

    Whatever goes on without a damaged object goes on without this one, but it may be whole: nobody calls it lost.
    """


class OutputFailedError(L0gcError):
    """Stdout, or the file in its place, cannot be written: its disk is full, or it is closed. The work may be done."""


# -- a separate exit code ----------------------------------------------------------------------------------------------


class EndedError(L0gcError):
    """What a command ends with where the code depends on what happened."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # of this one, and not of the class


class StoppedError(EndedError):
    """The user stopped the run; work in progress is finished and reported, the rest is for another run."""


# -- 1: the protocol says no ------------------------------------------------------------------------------------------


class ProtocolError(L0gcError):
    """The shared log, a partition or the controller refused what was proposed."""


class LogConflictError(ProtocolError):
    """Another writer owns the log offset; replay, then decide again."""


class LogOvertakenError(LogConflictError):
    """The log was truncated past this writer's position while it slept (hazard 7); replay, then decide again."""


class AppendOutcomeUnknownError(ProtocolError):
    """It could not be learned whether an append landed; it is neither reported as landed nor tried elsewhere."""


class StaleClusterEpochError(ProtocolError):
    """The epoch lies below a partition's window: stamp the data with a fresh epoch and upload it again."""

    def __init__(self, message: str, *, epoch: int, window: tuple[int, int]) -> None:
        super().__init__(message)
        self.epoch = epoch
        self.window = window


class InvalidProducerEpochError(ProtocolError):
    """A newer instance of the producer exists; this one is fenced for good (KIP-360)."""


class UnknownProducerError(ProtocolError):
    """Nothing is known that a producer's sequence could continue; the only remedy is a bumped epoch (KIP-360)."""


class InputPositionMovedError(ProtocolError):
    """Another run of the same upload job has landed more of this input; continue after `landed` records."""

    def __init__(self, message: str, *, landed: int) -> None:
        super().__init__(message)
        self.landed = landed


class BatchMismatchError(ProtocolError):
    """A sink's batch has landed with other rows under its number, or a later one has landed (hazard 30)."""
