"""The interface to an object store.

l0gc relies on five guarantees, which `storage/probe.py` tests before anything is stored: a conditional create has one
winner, a conditional replace has one winner, a read sees the last write, a listing sees the last write, and a listing
is in key order. In this interface, keys are relative to the URL's prefix.
"""

from __future__ import annotations

import builtins
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, Protocol, TypeVar

import msgspec

from l0gc.errors import (
    AccessDeniedError,
    CorruptObjectError,
    ObjectNotFoundError,
    RefusedObjectError,
    RequestRefusedError,
    StoreError,
    UnansweredObjectError,
)
from l0gc.events import event
from l0gc.keys import FORMAT
from l0gc.storage.refusals import why_kept

_log: Final = logging.getLogger(__name__)
T = TypeVar("T")
P = ParamSpec("P")

PAGE_SIZE: Final = 1000
"""S3's maximum number of keys in a LIST response and in a DELETE request."""
READS: Final = 3
"""How often bytes that do not match their checksum are read before they count as damaged."""


class StoredObject(msgspec.Struct, frozen=True):
    """An object that was read. Times are the store's, in milliseconds since 1970."""

    body: bytes
    etag: str
    modified_ms: int
    date_ms: int


class Head(msgspec.Struct, frozen=True):
    """The metadata of an object."""

    size: int
    etag: str
    modified_ms: int
    date_ms: int


class PutResult(msgspec.Struct, frozen=True):
    """The result of a write that landed; `date_ms` is the store's time in its answer."""

    etag: str
    date_ms: int


class ListedPage(msgspec.Struct, frozen=True):
    """One page of a listing, as columns; times are the store's, in milliseconds since 1970."""

    keys: list[str]
    sizes: list[int]
    modified_ms: list[int]

    def __len__(self) -> int:
        return len(self.keys)


class Listing(msgspec.Struct, frozen=True):
    """The listing of a folder: each key with the time of its last change. `date_ms` is the store's time when the
    listing began.

    `more` is True if only the first page was requested and the folder has more keys.
    """

    modified_ms: dict[str, int]
    date_ms: int
    more: bool = False


class DeleteFailure(msgspec.Struct, frozen=True):
    """A key that a DELETE request could not delete, with the store's code and message."""

    key: str
    code: str
    message: str
    version_id: str = ""

    @property
    def why(self) -> str:
        """Return the code and the message, with the permission that may be missing."""
        return why_kept(self.code, self.message)


OFF: Final = "off"
ENABLED: Final = "enabled"
SUSPENDED: Final = "suspended"


class VersionedKey(NamedTuple):  # created in a third of the time of a frozen dataclass
    """One version of a key. An empty `version_id` means the key itself, whose deletion leaves a delete marker."""

    key: str
    version_id: str = ""


class VersionPage(msgspec.Struct, frozen=True):
    """One page of versions and delete markers, as columns; times are the store's, in milliseconds since 1970."""

    keys: list[str]
    version_ids: list[str]
    markers: list[bool]
    latest: list[bool]
    sizes: list[int]
    modified_ms: list[int]

    def __len__(self) -> int:
        return len(self.keys)


class UnfinishedUpload(msgspec.Struct, frozen=True):
    """A multipart upload that was neither completed nor aborted. Its parts cost money, and no listing shows them."""

    key: str
    upload_id: str
    initiated_ms: int


class VersionsDeleted(msgspec.Struct, frozen=True):
    """The result of one DELETE request; `markers` has the ids of the delete markers that the request created, by key."""

    failures: list[DeleteFailure] = msgspec.field(default_factory=list)
    markers: dict[str, str] = msgspec.field(default_factory=dict)


class ObjectStore(Protocol):
    """An object store below one prefix.

    Every method may raise `StoreError` (`AccessDeniedError`, `StoreUnreachableError`, `ThrottledError`) or
    `BucketNotFoundError`. Reads, listings, deletes and unconditional writes are retried internally. Conditional writes
    are not, because a retry could meet the first attempt's success; they raise `AmbiguousWriteError` instead.
    """

    @property
    def url(self) -> str:
        """Return the human-readable location."""

    quotes_etags: bool
    """Whether If-Match takes a quoted ETag, as HTTP requires. Some stores accept only unquoted ETags; the probe detects
    this, and `l0gc/format.json` records it for later processes.
    """

    def get(self, key: str) -> StoredObject:
        """Return the object. Raises `ObjectNotFoundError`."""

    def get_start(self, key: str, length: int) -> StoredObject:
        """Return the object with only its first `length` bytes. Raises `ObjectNotFoundError`."""

    def head(self, key: str) -> Head:
        """Return the size, version and time. Raises `ObjectNotFoundError`."""

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of each (start, length), in as few requests as possible. Raises `ObjectNotFoundError`."""

    def put(self, key: str, body: bytes) -> PutResult:
        """Write the object, whether or not it exists."""

    def put_bulk(self, key: str, body: bytes) -> None:
        """Write as `put` does, with less CPU time, for objects that are rewritten repeatedly in the background."""

    def put_file(self, key: str, path: Path) -> None:
        """Write a file, in parts if it is large; durable and complete when this returns."""

    def put_if_absent(self, key: str, body: bytes) -> PutResult:
        """Create the object. Raises `PreconditionFailedError` if the key exists, and `AmbiguousWriteError`."""

    def put_if_match(self, key: str, body: bytes, etag: str) -> PutResult:
        """Replace the version `etag`. Raises `PreconditionFailedError` if the object has another version, and
        `AmbiguousWriteError`.
        """

    def delete(self, keys: Sequence[str]) -> list[DeleteFailure]:
        """Delete up to `PAGE_SIZE` keys in one request; a missing key counts as deleted."""

    def delete_once(self, keys: Sequence[str]) -> list[DeleteFailure]:
        """Delete as `delete` does, but send the request only once, so that the caller gets each `ThrottledError` and
        can slow down.
        """

    def discard(self, folder: str, written: Sequence[str] = ()) -> None:
        """Remove a trial's folder with its history, by any request that the store accepts; remove the keys `written`
        even if the store cannot list.
        """

    def list(self, folder: str, *, one_page: bool = False) -> Listing:
        """Return all keys of a small folder, or its first page, and the store's time when the listing began."""

    def scan(self, prefix: str, start_after: str = "") -> Iterator[ListedPage]:
        """Yield the keys below `prefix`, after `start_after`, one page per request. No more requests are sent if the
        caller stops iterating.
        """

    def now_ms(self) -> int:
        """Return the store's time, in milliseconds since 1970, the only time by which ages are measured."""

    def versioning(self) -> str:
        """Return `off`, `enabled` or `suspended`."""

    def versions(self, prefix: str, after: str = "") -> Iterator[VersionPage]:
        """Yield every version and delete marker below `prefix` of keys after `after`, one page per request."""

    def delete_versions(self, objects: Sequence[VersionedKey]) -> VersionsDeleted:
        """Delete up to `PAGE_SIZE` versions in one request, which is sent once and never affects a newer version."""

    def uploads(self, prefix: str) -> Iterator[builtins.list[UnfinishedUpload]]:
        """Yield the unfinished uploads below `prefix`, one page per request."""

    def abort(self, upload: UnfinishedUpload) -> None:
        """Abort an upload; one that no longer exists counts as aborted."""


def ask_of_one(
    store: ObjectStore, read: Callable[Concatenate[str, P], T], key: str, *what: P.args, **more: P.kwargs
) -> T:
    """Read one object with `read`, given its key and more arguments.

    Only a specific error code counts as a refusal: server errors, throttling and timeouts prove nothing about the
    object, however long they last (hazard 42).

    Raises:
        RefusedObjectError: the store refuses this object with a specific error code, but serves another object.
        UnansweredObjectError: the store does not serve this object at present, but serves another object.
        AccessDeniedError: the store denies access to the whole folder, as a policy does.
        StoreError: the store serves neither object. All other errors of `read`.
    """
    try:
        return read(key, *what, **more)
    except StoreError as failure:
        try:
            if_there(store.get, FORMAT)
        except StoreError:
            raise failure from None
        if isinstance(failure, AccessDeniedError):
            folder = "/".join(key.split("/")[:2]) + "/"
            try:
                if_there(store.get, f"{folder}none")  # a policy applies even if the object does not exist
            except AccessDeniedError:
                raise AccessDeniedError(f"{failure}, for all of {store.url}{folder}") from None
        if isinstance(failure, RequestRefusedError):
            raise RefusedObjectError(str(failure)) from failure
        raise UnansweredObjectError(str(failure)) from failure


def read_again(read: Callable[[], T]) -> T:
    """Return the result of `read`, which raises `CorruptObjectError` if the bytes do not match a log, a footer or a
    seal. After this error, call it again, since one read may hit a bad replica, a cut connection or a wrong object
    (hazard 34).

    Raises:
        CorruptObjectError: no read returned valid bytes.
        RefusedObjectError, UnansweredObjectError: at once, since the request has already been repeated.
    """
    for _ in range(READS - 1):
        try:
            return read()
        except (RefusedObjectError, UnansweredObjectError):
            raise
        except CorruptObjectError as e:
            _log.info("reading again: %s", e, extra=event("read_again"))
    return read()


def if_there(read: Callable[..., T], *what: Any) -> T | None:
    """Read an object with `read` and these arguments; return None if it does not exist."""
    try:
        return read(*what)
    except ObjectNotFoundError:
        return None


class LocalFolder:
    """A local folder that is read like a bucket: a key is a path in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def head(self, key: str) -> Head:
        try:
            status = (self.folder / key).stat()
        except OSError as e:
            raise ObjectNotFoundError(str(e)) from e
        return Head(status.st_size, f"{status.st_ino}-{status.st_mtime_ns}", status.st_mtime_ns // 1_000_000, 0)

    def get(self, key: str) -> StoredObject:
        """Return a file. Raises `ObjectNotFoundError`, or `CorruptObjectError` if it exists but cannot be read."""
        path = self.folder / key
        if not path.is_file():
            raise ObjectNotFoundError(f"{path} does not exist")
        try:
            return StoredObject(path.read_bytes(), "", self.head(key).modified_ms, 0)
        except OSError as e:
            raise CorruptObjectError(f"{path} cannot be read: {e.strerror or e}") from e

    def list(self, prefix: str, *, one_page: bool = False) -> Listing:
        return Listing({key: self.head(key).modified_ms for key in self.files(prefix)}, 0)

    def scan(self, prefix: str, start_after: str = "") -> Iterator[ListedPage]:
        heads = [(key, self.head(key)) for key in self.files(prefix) if key > start_after]
        if heads:
            yield ListedPage([k for k, _ in heads], [h.size for _, h in heads], [h.modified_ms for _, h in heads])

    def files(self, prefix: str) -> builtins.list[str]:
        """Return the keys of all files below `prefix`, in key order."""
        return sorted(p.relative_to(self.folder).as_posix() for p in (self.folder / prefix).rglob("*") if p.is_file())
