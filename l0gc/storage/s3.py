"""S3 and compatible stores, through boto3; bulk work is tried through obstore first (`bulk.py`).

This module sends a conditional write once and never retries it. Therefore a 412 always means that another write owns
the key, or that the caller treats its first attempt as ambiguous. `refusals` defines the meaning of each error.

`access` decides where requests are sent, and with which credentials. If the store reports that credentials have
expired, a new `Access` looks for renewed ones, such as a role's or those in a rewritten profile.
"""

from __future__ import annotations

import builtins
import heapq
import logging
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from xml.etree import ElementTree

import msgspec

from l0gc.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    L0gcError,
    ObjectNotFoundError,
    PreconditionFailedError,
    RequestRefusedError,
    StoreError,
    StoreUnfitError,
    UsageError,
)
from l0gc.events import event
from l0gc.storage.access import Access, sent_once
from l0gc.storage.answers import DELETE_BODY, DOCUMENT, parse_time, promised_size, read_deleted, request_body
from l0gc.storage.bulk import COALESCE_BYTES
from l0gc.storage.config import StoreConfig
from l0gc.storage.entry import read_limit
from l0gc.storage.objectstore import (
    OFF,
    PAGE_SIZE,
    SUSPENDED,
    DeleteFailure,
    Head,
    ListedPage,
    Listing,
    PutResult,
    StoredObject,
    UnfinishedUpload,
    VersionedKey,
    VersionPage,
    VersionsDeleted,
)
from l0gc.storage.parallel import check_process
from l0gc.storage.patience import patience_with
from l0gc.storage.refusals import (
    ATTEMPTS,
    DENIED,
    EXPIRED,
    NOT_S3,
    Answer,
    in_endpoint,
    no_answer,
    refusal,
    row_without_answer,
    silent,
    without_answer,
)

if TYPE_CHECKING:
    from botocore.exceptions import ClientError
    from mypy_boto3_s3 import S3Client

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)
_UNKNOWN_REQUEST: Final = (404, 405, 501)
_WEAK: Final = "W/"
_NOT_TAKEN: Final = (400, 405, 501)
"""The statuses by which stores refuse DeleteObjects, because they do not support it or require a different checksum."""


class S3Store:
    """An `ObjectStore` on a bucket, below one prefix; see `ObjectStore` for the methods. Safe for use by several
    threads.
    """

    def __init__(self, config: StoreConfig) -> None:
        self.config = config
        self.requests: Counter[str] = Counter()
        self.quotes_etags = True
        self._process = os.getpid()
        self.access = Access(config, self.count)
        """The address of the bucket, and its credentials."""
        self._patience = patience_with(config)
        self._lock = threading.Lock()
        self._counting = threading.Lock()

    @property
    def url(self) -> str:
        return self.config.url

    def at(self, url: str) -> S3Store:
        """Return the store of another bucket or prefix, with the credentials of this one."""
        named = StoreConfig.from_url(url)
        return S3Store(msgspec.structs.replace(self.config, bucket=named.bucket, prefix=named.prefix))

    # -- clients ------------------------------------------------------------------------------------------------------

    @property
    def client(self) -> S3Client:
        return self.access.client

    def count(self, kind: str) -> None:
        """Count a request. Raises `UsageError` in a forked child; see `check_process`."""
        check_process(self._process)
        with self._counting:
            self.requests[kind] += 1

    # -- errors -------------------------------------------------------------------------------------------------------

    def call(
        self,
        kind: str,
        key: str,
        call: Callable[[], T],
        *,
        conditional: bool = False,
        renewed: bool = False,
        folder: str = "",
    ) -> T:
        """Count and send a request, and translate its exceptions into errors of l0gc.

        If the credentials have expired, they are renewed, and the request is sent again, since the store did nothing.

        Args:
            folder: the folder that is listed, for error messages, since a listing has no key.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        about, began = key or folder, time.monotonic()
        self._check_patience(kind)
        self.count(kind)
        access = self.access
        _log.debug("%s %s", kind, key or "(bucket)", extra=event("request", kind=kind, key=key))
        try:
            answered = call()
        except ClientError as e:
            self._patience.answered(kind, about)
            answer = self._answer(e, conditional=conditional)
            if answer.code in EXPIRED and not renewed:
                self._renew(access)
                return self.call(kind, key, call, conditional=conditional, renewed=True, folder=folder)
            error = refusal(answer, self._named(), key)
            if isinstance(error, ObjectNotFoundError):
                with suppress(ValueError):
                    error.date_ms = date_ms(e.response)
            if isinstance(error, BucketNotFoundError):
                self._refuse_a_doubled_bucket()
            try:
                raise error from e
            finally:
                del error  # breaks its cycle with its traceback, which has the frames of all callers
        except BotoCoreError as e:
            if row_without_answer(e).again:
                self._patience.unanswered(kind, about, began)
                if not conditional:
                    self._check_patience(kind, e)
            raise no_answer(e, self._named(), kind, key, conditional=conditional) from e
        self._patience.answered(kind, about)
        return answered

    def _check_patience(self, kind: str, e: Exception | None = None) -> None:
        """Raise `StoreSilentError` if requests of this kind have waited for too long in total."""
        if self._patience.is_over(kind):
            raise silent(self._named(), *self._patience.last) from e

    def _refuse_a_doubled_bucket(self) -> None:
        """Raise `UsageError` if the endpoint's host contains the bucket's name, and the bucket exists at the host
        without that name.

        The store would read the bucket in the path as a part of keys, and a request to create the bucket would write an
        object.
        """
        endpoint, within = self.access.endpoint_url or "", f"://{self.config.bucket}."
        if within in endpoint:
            without = endpoint.replace(within, "://", 1)
            try:
                S3Store(msgspec.structs.replace(self.config, endpoint_url=without)).now_ms()
            except L0gcError:
                return
            raise in_endpoint(endpoint, self.config.bucket, without)

    def _renew(self, access: Access) -> None:
        """Look for renewed credentials, unless another thread has done so since this access was used."""
        with self._lock:
            if self.access is access:
                self.access = Access(self.config, self.count)

    def _named(self) -> StoreConfig:
        """Return the config, with the server's name for messages."""
        from botocore.exceptions import BotoCoreError

        with suppress(BotoCoreError, UsageError):
            return msgspec.structs.replace(self.config, endpoint_url=self.access.endpoint_url)
        return self.config

    def ask(self, kind: str, operation: str, about: str = "", *, once: bool = False, **fields: Any) -> Any:
        """Return the answer of a boto3 operation on the bucket; see `call`. With `once`, it is not retried."""

        def request() -> Any:
            with sent_once(once=once):
                return getattr(self.client, operation)(Bucket=self.config.bucket, **fields)

        return self.call(kind, about, request, folder=fields.get("Prefix", "").removeprefix(self.config.prefix))

    def _answer(self, e: ClientError, *, conditional: bool) -> Answer:
        """Return the answer. If it answers a HEAD request, it has no body that names the cause, so another request asks
        for the cause.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        answer = Answer.of(e.operation_name, e.response, conditional=conditional)
        if answer.operation.startswith("Head") and answer.status in {301, 400, 403}:
            try:
                self.count("list")
                self.client.list_objects_v2(Bucket=self.config.bucket, Prefix=self.config.prefix, MaxKeys=1)
            except ClientError as fuller:
                return Answer.of(answer.operation, fuller.response)
            except BotoCoreError:
                pass
        return answer

    def pages(
        self, operation: str, prefix: str, goes_on: Mapping[str, str], at: Mapping[str, Any], **page: Any
    ) -> Iterator[Any]:
        """Yield the answers of a listing, one per request.

        Args:
            goes_on: the arguments of the next request, each with the field of the answer that contains it.
            at: the arguments of the first request.
            page: the arguments that limit an answer.
        """
        while True:
            answer = self.ask("list", operation, Prefix=self.full_key(prefix), **page, **at)
            yield answer
            before, at = at, {name: answer[field] for name, field in goes_on.items() if answer.get(field)}
            if not answer.get("IsTruncated", bool(at)):  # some stores send only the markers
                return
            if not at or at == before:
                markers = "markers" if len(goes_on) > 1 else "token"
                raise StoreError(
                    f"the listing of {self.full(prefix)} does not advance: the store repeats its {markers}"
                )

    def full(self, key: str) -> str:
        """Return the URL of a key, for messages."""
        return f"{self.config.url}{key}"

    def full_key(self, key: str) -> str:
        return self.config.prefix + key

    # -- ObjectStore --------------------------------------------------------------------------------------------------

    def get(self, key: str) -> StoredObject:
        return _stored(*self._get(key))

    def get_start(self, key: str, length: int) -> StoredObject:
        r, body = self._get(key, Range=f"bytes=0-{length - 1}")
        return _stored(r, body[:length])  # a store that ignores ranges sends the whole object

    def _get(self, key: str, **conditions: Any) -> tuple[Any, bytes]:
        """Return the answer and its body, up to `read_limit`."""
        from botocore.exceptions import BotoCoreError, IncompleteReadError

        most = math.inf if conditions else read_limit(key)

        def call() -> tuple[Any, bytes]:
            began = time.monotonic()
            for attempt in range(1, ATTEMPTS + 1):
                r = self.client.get_object(Bucket=self.config.bucket, Key=self.full_key(key), **conditions)
                try:
                    with closing(r["Body"]) as opened:  # only a read without a number detects missing bytes
                        body = opened.read(None if r.get("ContentLength", math.inf) <= most else int(most))
                    size = promised_size(r, lambda: self.head(key).size)
                    if size is not None and len(body) != min(size, most):
                        raise IncompleteReadError(actual_bytes=len(body), expected_bytes=size)
                    return r, body
                except BotoCoreError:  # the body was cut off; botocore retries requests, not bodies
                    if attempt == ATTEMPTS or not self._patience.allows_again(began):
                        raise
            raise AssertionError("unreachable")

        return self.call("get", key, call)

    def head(self, key: str) -> Head:
        r = self.ask("head", "head_object", key, Key=self.full_key(key))
        return Head(r["ContentLength"], r["ETag"], int(r["LastModified"].timestamp() * 1000), date_ms(r))

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        import obstore

        access = self.access
        self._check_patience("get")
        if access.bulk is None:
            return self._ranges_plain(key, ranges)
        try:
            parts = access.bulk.ranges(self.full_key(key), ranges)
        except (
            FileNotFoundError,
            obstore.exceptions.BaseError,
        ) as e:  # a proxy's 404 does not show that the object is missing
            first = f"bytes={ranges[0][0]}-{ranges[0][0]}"
            self._ask_boto3(access, e, "get", key, "get_object", Key=self.full_key(key), Range=first)
            return self.get_ranges(key, ranges)
        self._patience.answered("get", key)
        return parts

    def _ranges_plain(self, key: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        """Read ranges that are close together in one request, as obstore does. A store that ignores ranges sends the
        whole object.
        """
        spans: builtins.list[tuple[int, int]] = []
        for start, length in sorted(ranges):
            if spans and start <= spans[-1][1] + COALESCE_BYTES:
                spans[-1] = (spans[-1][0], max(spans[-1][1], start + length))
            else:
                spans.append((start, start + length))
        read: dict[int, bytes] = {}
        for start, end in spans:
            r, body = self._get(key, Range=f"bytes={start}-{end - 1}")
            read[start] = body if r["ResponseMetadata"]["HTTPStatusCode"] == 206 else body[start:end]
        of = [max(s for s in read if s <= start) for start, _ in ranges]
        return [read[at][start - at : start - at + length] for at, (start, length) in zip(of, ranges, strict=True)]

    def put(self, key: str, body: bytes) -> PutResult:
        return self.call("put", key, lambda: self._put(key, body))

    def put_if_absent(self, key: str, body: bytes) -> PutResult:
        return self.call("put", key, lambda: self._put(key, body, {"IfNoneMatch": "*"}), conditional=True)

    def put_if_match(self, key: str, body: bytes, etag: str) -> PutResult:
        strong = etag.removeprefix(_WEAK)  # a proxy that compresses answers marks the store's ETag as weak
        match = {"IfMatch": strong if self.quotes_etags else strong.strip('"')}
        try:
            return self.call("put", key, lambda: self._put(key, body, match), conditional=True)
        except ObjectNotFoundError as e:  # S3 answers 404 if the object to replace is gone
            raise PreconditionFailedError(str(e)) from e
        except PreconditionFailedError as e:
            self._refuse_if_current(key, etag, e)
            raise

    def _refuse_if_current(self, key: str, etag: str, refused: PreconditionFailedError) -> None:
        """Raise `StoreUnfitError` if the version to replace is the current one, since each repetition would fail."""
        with suppress(StoreError):
            if self.head(key).etag != etag:
                return
            why = "run l0gc doctor, which tries the store"
            if etag.startswith(_WEAK):
                why = "it is weak, and If-Match needs a strong one; turn off what weakens it, such as a proxy's compression"
            elif self.versioning() == SUSPENDED:
                why = "the bucket's versioning is suspended, and the store compares with another version; enable versioning"
            raise StoreUnfitError(
                f"the store refuses to replace {self.full(key)}, although its ETag {etag} is the current one: {why}"
            ) from refused

    def _put(self, key: str, body: bytes, condition: dict[str, Any] | None = None) -> PutResult:
        with sent_once(once=condition is not None):
            r = self.client.put_object(
                Bucket=self.config.bucket, Key=self.full_key(key), Body=body, **(condition or {})
            )
        return PutResult(r["ETag"], date_ms(r))

    def put_bulk(self, key: str, body: bytes) -> None:
        self._check_patience("put")
        if (bulk := self.access.bulk) and bulk.put(self.full_key(key), body):
            self._patience.answered("put", key)
        else:
            self.put(key, body)

    def put_file(self, key: str, path: Path) -> None:
        from boto3.exceptions import S3UploadFailedError
        from boto3.s3.transfer import S3Transfer
        from botocore.exceptions import ClientError

        def call() -> None:
            try:
                S3Transfer(self.client).upload_file(str(path), self.config.bucket, self.full_key(key))
            except S3UploadFailedError as e:
                if isinstance(e.__context__, ClientError):  # boto3's own message repeats its text, including secrets
                    raise e.__context__ from None
                raise

        self.call("put", key, call)

    def delete(self, keys: Sequence[str]) -> list[DeleteFailure]:
        return self._delete([*map(VersionedKey, keys)], once=False).failures

    def delete_once(self, keys: Sequence[str]) -> list[DeleteFailure]:
        return self._delete([*map(VersionedKey, keys)], once=True).failures

    def discard(self, folder: str, written: Sequence[str] = ()) -> None:
        for key in written:  # one by one, since a store that fails a trial may not answer a listing or a bulk delete
            with suppress(StoreError):
                self.ask("delete", "delete_object", key, Key=self.full_key(key))
        keys = [*self.list(folder).modified_ms]
        for at in range(0, len(keys), PAGE_SIZE):
            self.delete(keys[at : at + PAGE_SIZE])
        with suppress(StoreError):  # a store without versioning has no versions
            if self.versioning() != OFF:
                for page in self.versions(folder):
                    self.delete_versions([VersionedKey(*v) for v in zip(page.keys, page.version_ids, strict=True)])

    def list(self, folder: str, *, one_page: bool = False) -> Listing:
        pages = list(islice(self._list_plain(folder, ""), 1 if one_page else None))
        modified = {k: ms for _, page, _ in pages for k, ms in zip(page.keys, page.modified_ms, strict=True)}
        return Listing(modified, pages[0][0], pages[-1][2])

    def scan(self, prefix: str, start_after: str = "") -> Iterator[ListedPage]:
        import obstore

        last, full, access = start_after, self.full_key(prefix), self.access
        self._check_patience("list")
        if access.bulk and (not prefix or prefix.endswith("/")):  # obstore matches whole path segments
            try:
                for page in access.bulk.pages(full or None, self.full_key(start_after) if start_after else None):
                    if 0 in page.sizes:
                        break  # possibly a folder marker: obstore drops the slash at its end, boto3 does not
                    last = page.keys[-1]
                    yield page
            except obstore.exceptions.InvalidPathError:
                pass  # a foreign key that obstore cannot represent ('//', '..', control characters): continue through boto3
            except obstore.exceptions.BaseError as e:
                self._ask_boto3(access, e, "list", "", "list_objects_v2", Prefix=full, MaxKeys=1)
                yield from self.scan(prefix, last)
                return
        # obstore reads a page of HTML as the end of a listing, so boto3, whose answers are checked, lists the rest.
        yield from (page for _, page, _ in self._list_plain(prefix, last) if len(page))

    def _list_plain(self, prefix: str, start_after: str) -> Iterator[tuple[int, ListedPage, bool]]:
        """Yield each page, even if it is empty, with the store's time and whether another page follows."""
        cut = len(self.config.prefix)
        goes_on = {"ContinuationToken": "NextContinuationToken"}
        at = {"StartAfter": self.full_key(start_after)} if start_after else {}
        for answer in self.pages("list_objects_v2", prefix, goes_on, at, MaxKeys=PAGE_SIZE):
            objects = answer.get("Contents", [])
            page = ListedPage(
                [o["Key"][cut:] for o in objects],
                [o["Size"] for o in objects],
                [int(o["LastModified"].timestamp() * 1000) for o in objects],
            )
            yield date_ms(answer), page, bool(answer.get("IsTruncated"))

    def _ask_boto3(self, access: Access, e: Exception, kind: str, key: str, operation: str, **fields: Any) -> None:
        """Send a failed request again through boto3, whose error names the cause.

        If boto3 gets an answer without renewing credentials, it sends all further requests. Its error replaces that of
        obstore, which contains the store's whole answer.
        """
        try:
            response = self.ask(kind, operation, key, **fields)
        except L0gcError as cause:
            raise cause from None
        if "Body" in response:
            response["Body"].close()
        answer = Answer.of("", response)
        if answer.region not in {"", self.client.meta.region_name}:  # boto3 follows a redirect, and obstore does not
            raise refusal(msgspec.structs.replace(answer, code="PermanentRedirect"), self.config, key) from None
        if self.access is access:
            access.without_bulk(f"{kind} of {self.full(key)}: {without_answer(e)}")

    def now_ms(self) -> int:
        return self.call("head", "", lambda: date_ms(self.client.head_bucket(Bucket=self.config.bucket)))

    # -- the past: old versions, delete markers and unfinished uploads. Nothing is decided here -----------------------

    def versioning(self) -> str:
        try:
            return str(self.ask("get", "get_bucket_versioning").get("Status", OFF)).lower()
        except (StoreError, BucketNotFoundError) as e:
            answer = _answer_behind(e)
            if answer.status in _UNKNOWN_REQUEST and answer.code != "NoSuchBucket":
                return OFF  # a store that does not serve the request has no versions
            raise

    def versions(self, prefix: str, after: str = "") -> Iterator[VersionPage]:
        goes_on = {"KeyMarker": "NextKeyMarker", "VersionIdMarker": "NextVersionIdMarker"}
        at = {"KeyMarker": self.full_key(after)} if after else {}
        for answer in self.pages("list_object_versions", prefix, goes_on, at, MaxKeys=PAGE_SIZE):
            page = self._version_page(answer)
            if len(page):
                yield page

    def _version_page(self, response: Any) -> VersionPage:
        """Return the page in key order; S3 returns versions and markers separately. Entries that were out of order stay
        so, and are detected.
        """
        cut = len(self.config.prefix)
        versions = [(v["Key"], v, False) for v in response.get("Versions", [])]
        markers = [(m["Key"], m, True) for m in response.get("DeleteMarkers", [])]
        rows: list[tuple[str, Any, bool]] = list(heapq.merge(versions, markers, key=itemgetter(0)))
        return VersionPage(
            [key[cut:] for key, _, _ in rows],
            [v["VersionId"] for _, v, _ in rows],
            [marker for _, _, marker in rows],
            [bool(v["IsLatest"]) for _, v, _ in rows],
            [v.get("Size", 0) for _, v, _ in rows],
            [int(v["LastModified"].timestamp() * 1000) for _, v, _ in rows],
        )

    def delete_versions(self, objects: Sequence[VersionedKey]) -> VersionsDeleted:
        return self._delete(objects, once=True)

    def _delete(self, objects: Sequence[VersionedKey], *, once: bool) -> VersionsDeleted:
        """Delete in one request, or one by one if the store does not support that request."""
        if not objects:
            return VersionsDeleted()
        try:
            return self._delete_many(objects, once=once)
        except StoreError as e:
            if type(e) not in (StoreError, RequestRefusedError) or _answer_behind(e).status not in _NOT_TAKEN:
                raise
        done = VersionsDeleted()
        for o in objects:
            version = {"VersionId": o.version_id} if o.version_id else {}
            try:
                r = self.ask("delete", "delete_object", o.key, once=once, Key=self.full_key(o.key), **version)
            except AccessDeniedError as e:
                done.failures.append(DeleteFailure(o.key, DENIED, str(e), o.version_id))
            except ObjectNotFoundError:
                pass
            else:
                if r.get("DeleteMarker") and r.get("VersionId") and not version:
                    done.markers[o.key] = r["VersionId"]
        return done

    def _delete_many(self, objects: Sequence[VersionedKey], *, once: bool) -> VersionsDeleted:
        """Delete in one request, whose answer names each object."""
        ours = DELETE_BODY.set(request_body(objects, self.config.prefix))
        try:
            listed = {"Objects": [{"Key": self.full_key(objects[0].key)}]}  # botocore requires it
            r = self.ask("delete", "delete_objects", objects[0].key, once=once, Delete=listed)
        finally:
            DELETE_BODY.reset(ours)
        try:
            return read_deleted(r[DOCUMENT], objects, self.config.prefix)
        except ElementTree.ParseError as e:
            answer = Answer("DeleteObjects", 502, NOT_S3, f"it is not XML ({e})")
            raise refusal(answer, self._named(), objects[0].key) from e

    def uploads(self, prefix: str) -> Iterator[builtins.list[UnfinishedUpload]]:
        goes_on = {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"}
        cut = len(self.config.prefix)
        for answer in self.pages("list_multipart_uploads", prefix, goes_on, {}, MaxUploads=PAGE_SIZE):
            uploads = [
                UnfinishedUpload(
                    u["Key"][cut:],
                    u["UploadId"],
                    int(u["Initiated"].timestamp() * 1000) if u.get("Initiated") else 0,
                )
                for u in answer.get("Uploads", [])
            ]
            if uploads:
                yield uploads

    def abort(self, upload: UnfinishedUpload) -> None:
        with suppress(ObjectNotFoundError):
            key = self.full_key(upload.key)
            self.ask("delete", "abort_multipart_upload", upload.key, Key=key, UploadId=upload.upload_id)

    # -- the bucket itself --------------------------------------------------------------------------------------------

    def create_bucket(self) -> bool:
        """Create the bucket. Return False if it already existed."""
        with suppress(BucketNotFoundError):
            self.now_ms()
            return False
        region = self.access.region
        if region is None or region == "us-east-1":
            self.ask("put", "create_bucket")
            return True
        try:
            self.ask("put", "create_bucket", CreateBucketConfiguration={"LocationConstraint": region})
        except StoreError as e:
            if _answer_behind(e).status not in _NOT_TAKEN or self.access.endpoint_url is None:
                raise
            self.ask("put", "create_bucket")  # a store that uses regions only in signatures
        return True

    def delete_bucket(self) -> bool:
        """Delete the bucket if it is empty, whatever this store's prefix. Return whether it is gone."""
        if next(self.below("").scan(""), None) is not None:
            return False
        self.ask("delete", "delete_bucket")
        return True

    def below(self, prefix: str) -> S3Store:
        """Return the store of the same bucket, below another prefix."""
        return S3Store(msgspec.structs.replace(self.config, prefix=prefix))


def date_ms(response: Any) -> int:
    """Return the store's time from the `Date` header, in whole seconds, rounded down. Raises `ValueError` if it is
    missing.
    """
    return int(parse_time(response["ResponseMetadata"]["HTTPHeaders"].get("date", "")).timestamp() * 1000)


def _answer_behind(e: L0gcError) -> Answer:
    """Return the answer that caused an error; its status is 0 if no answer arrived."""
    return Answer.of("", getattr(e.__cause__, "response", {}))


def _stored(r: Any, body: bytes) -> StoredObject:
    return StoredObject(body, r["ETag"], int(r["LastModified"].timestamp() * 1000), date_ms(r))
