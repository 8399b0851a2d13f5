"""S3 and what speaks its protocol, through boto3; what is bulky goes through obstore first (`bulk.py`).

What makes it safe: a conditional write is sent once and never retried in here, so a 412 always means that another write
holds the key, or that the caller knows the first try to be ambiguous. Errors are mapped by status, not by wording.
"""

from __future__ import annotations

import builtins
import email.utils
import logging
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

from l0gc.errors import (
    AccessDeniedError,
    AmbiguousWriteError,
    BucketNotFoundError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreError,
    StoreTimeoutError,
    StoreUnreachableError,
    ThrottledError,
    UsageError,
)
from l0gc.events import event
from l0gc.storage.bulk import ATTEMPTS, READ_SECONDS, Bulk, without_answer
from l0gc.storage.config import StoreConfig
from l0gc.storage.history import History, S3History
from l0gc.storage.objectstore import PAGE_SIZE, DeleteFailure, ListedPage, Listing, Stored, Written
from l0gc.storage.session import session_of

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)
_DENIED: Final = {
    "AccessDenied",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "InvalidToken",
    "403",
}
_CONNECT_SECONDS: Final = 5
_OF_AWS: Final = re.compile(r"https://s3[a-z0-9.-]*\.amazonaws\.com(\.cn)?")


class S3Store:
    """An `ObjectStore` on a bucket; see there for the methods."""

    def __init__(self, config: StoreConfig) -> None:
        self.config = config
        self.requests: Counter[str] = Counter()
        self._lock = threading.RLock()
        self._counting = threading.Lock()
        self._plain_deletes = False

    # -- clients ------------------------------------------------------------------------------------------------------

    @cached_property
    def session(self) -> Any:
        """The boto3 session: where credentials and the region come from."""
        return session_of(self.config)

    def _client(self, attempts: int) -> S3Client:
        from botocore.config import Config

        with self._lock:
            client: S3Client = self.session.client(
                "s3",
                endpoint_url=self.config.endpoint_url,
                region_name=self.session.region_name or "us-east-1",
                config=Config(
                    retries={"mode": "standard", "total_max_attempts": attempts},
                    connect_timeout=_CONNECT_SECONDS,
                    read_timeout=READ_SECONDS,
                    max_pool_connections=64,
                    user_agent_extra="l0gc",
                    s3={"addressing_style": "path"} if self.config.endpoint_url else None,
                ),
            )
        self._refuse_an_endpoint_of_its_own(client.meta.endpoint_url)
        return client

    def _refuse_an_endpoint_of_its_own(self, endpoint: str) -> None:
        """One that boto3 knows and nobody gave us: obstore, and executors, would go to AWS's bucket of that name."""
        if not self.config.endpoint_url and not _OF_AWS.fullmatch(endpoint):
            raise UsageError(
                f"the AWS configuration names an endpoint of its own for S3 ({urlsplit(endpoint).hostname}); give it as "
                "--endpoint-url or AWS_ENDPOINT_URL_S3, so that every request goes there"
            )

    @cached_property
    def client(self) -> S3Client:
        """The boto3 client for what may be retried."""
        return self._client(ATTEMPTS)

    @cached_property
    def once(self) -> S3Client:
        """The boto3 client for what must be sent once: its failure means something to the caller."""
        return self._client(1)

    @cached_property
    def bulk(self) -> Bulk:
        """The same bucket through obstore."""
        if self.session.get_credentials() is None:
            raise self._no_credentials()
        self._refuse_an_endpoint_of_its_own(self.config.endpoint_url or self.client.meta.endpoint_url)
        with self._lock:
            return Bulk(self.config, self.session, self._count)

    def _count(self, kind: str) -> None:
        with self._counting:
            self.requests[kind] += 1

    # -- errors -------------------------------------------------------------------------------------------------------

    def call(self, kind: str, key: str, call: Callable[[], T], *, conditional: bool = False) -> T:
        """Count a request, do it, and raise what it raises as an error of ours."""
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            ConnectTimeoutError,
            EndpointConnectionError,
            NoCredentialsError,
            ParamValidationError,
            ReadTimeoutError,
        )

        self._count(kind)
        _log.debug("%s %s", kind, key or "(bucket)", extra=event("request", kind=kind, key=key))
        try:
            return call()
        except ClientError as e:
            raise self._mapped(e, key, conditional=conditional) from e
        except NoCredentialsError as e:
            raise self._no_credentials() from e
        except ParamValidationError as e:  # nothing was sent
            raise StoreError(f"{kind} of {self._full(key)} cannot be asked for: {e}") from e
        except (EndpointConnectionError, ConnectTimeoutError) as e:
            raise StoreUnreachableError(
                f"{self.config.endpoint_url or 'S3'} does not accept connections; check --endpoint-url and the network"
            ) from e
        except BotoCoreError as e:
            if conditional:
                raise AmbiguousWriteError(f"writing {self._full(key)}: {e}") from e
            if isinstance(e, ReadTimeoutError):
                raise StoreTimeoutError(f"{kind} of {self._full(key)}: no answer within {READ_SECONDS} s") from e
            raise StoreError(f"{kind} of {self._full(key)} failed: {e}") from e

    def _mapped(self, e: Any, key: str, *, conditional: bool) -> Exception:
        code = str(e.response.get("Error", {}).get("Code", ""))
        status = int(e.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        message = e.response.get("Error", {}).get("Message", "")
        if code == "NoSuchBucket" or (status == 404 and key == ""):
            return BucketNotFoundError(
                f"bucket {self.config.bucket!r} does not exist; create it, or run l0gc init --create-bucket"
            )
        if status == 404:
            missing = ObjectNotFoundError(f"{self._full(key)} does not exist")
            missing.date_ms = _date_ms(e.response)
            return missing
        if status == 412:
            return PreconditionFailedError(f"{self._full(key)} is not what the write expected")
        if code in _DENIED or status in {401, 403}:
            return AccessDeniedError(
                f"the store refused access to {self._full(key)} ({code}): check the credentials and their permissions"
            )
        if conditional and (status >= 500 or status == 409):
            return AmbiguousWriteError(f"writing {self._full(key)}: {status} {code}")
        if status in {429, 503} or code in {"SlowDown", "Throttling", "RequestLimitExceeded"}:
            return ThrottledError(f"the store asks to slow down at {self._full(key)} ({code})")
        return StoreError(f"{self._full(key)}: {status} {code} {message}".rstrip())

    def _no_credentials(self) -> AccessDeniedError:
        return AccessDeniedError(
            f"no credentials for {self.config.url}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or --profile"
        )

    def _full(self, key: str) -> str:
        return f"{self.config.url}{key}"

    def _key(self, key: str) -> str:
        return self.config.prefix + key

    # -- ObjectStore --------------------------------------------------------------------------------------------------

    def get(self, key: str) -> Stored:
        from botocore.exceptions import BotoCoreError

        def call() -> Stored:
            for attempt in range(1, ATTEMPTS + 1):
                r = self.client.get_object(Bucket=self.config.bucket, Key=self._key(key))
                try:
                    body = r["Body"].read()
                except BotoCoreError:  # the body was cut off; botocore retries the request, not the body
                    if attempt == ATTEMPTS:
                        raise
                    continue
                return Stored(body, r["ETag"], int(r["LastModified"].timestamp() * 1000), _date_ms(r))
            raise AssertionError("unreachable")

        return self.call("get", key, call)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        from obstore.exceptions import BaseError

        try:
            return self.bulk.ranges(self._key(key), ranges)
        except FileNotFoundError:
            raise ObjectNotFoundError(f"{self._full(key)} does not exist") from None
        except BaseError as e:
            raise self._bulk_error(e, key) from None

    def put(self, key: str, body: bytes) -> Written:
        return self.call("put", key, lambda: self._put(self.client, key, body))

    def put_if_absent(self, key: str, body: bytes) -> Written:
        return self.call("put", key, lambda: self._put(self.once, key, body, {"IfNoneMatch": "*"}), conditional=True)

    def put_if_match(self, key: str, body: bytes, etag: str) -> Written:
        try:
            return self.call("put", key, lambda: self._put(self.once, key, body, {"IfMatch": etag}), conditional=True)
        except ObjectNotFoundError as e:  # S3 answers 404 where the object to replace is gone
            raise PreconditionFailedError(str(e)) from e

    def _put(self, client: S3Client, key: str, body: bytes, condition: dict[str, Any] | None = None) -> Written:
        r = client.put_object(Bucket=self.config.bucket, Key=self._key(key), Body=body, **(condition or {}))
        return Written(r["ETag"], _date_ms(r))

    def put_often(self, key: str, body: bytes) -> None:
        if not self.bulk.put(self._key(key), body):
            self.put(key, body)

    def put_file(self, key: str, path: Path) -> None:
        from boto3.exceptions import S3UploadFailedError
        from botocore.exceptions import ClientError

        def call() -> None:
            try:
                self.client.upload_file(str(path), self.config.bucket, self._key(key))
            except S3UploadFailedError as e:
                if isinstance(e.__context__, ClientError):  # which boto3 has put into words here, secrets and all
                    raise e.__context__ from None
                raise

        self.call("put", key, call)

    def delete(self, keys: Sequence[str]) -> list[DeleteFailure]:
        return self._delete(self.client, keys)

    def delete_once(self, keys: Sequence[str]) -> list[DeleteFailure]:
        if keys and not self._plain_deletes:
            if self.bulk.delete([self._key(k) for k in keys]):
                return []
            self._plain_deletes = True  # something is wrong: from now on whoever is asked says what, key by key
        return self._delete(self.once, keys)

    def _delete(self, client: S3Client, keys: Sequence[str]) -> builtins.list[DeleteFailure]:
        if not keys:
            return []
        prefix, cut = self.config.prefix, len(self.config.prefix)
        objects = [{"Key": prefix + k} for k in keys]

        def call() -> builtins.list[DeleteFailure]:
            r = client.delete_objects(
                Bucket=self.config.bucket,
                Delete={"Objects": objects, "Quiet": True},  # type: ignore[typeddict-item]
            )
            return [
                DeleteFailure(e.get("Key", "")[cut:], e.get("Code", ""), e.get("Message", ""))
                for e in r.get("Errors", [])
            ]

        return self.call("delete", keys[0], call)

    @cached_property
    def history(self) -> History:
        return S3History(self)

    def list(self, folder: str) -> Listing:
        modified: dict[str, int] = {}
        dates: builtins.list[int] = []
        for page in self._list_plain(folder, "", dates):
            modified.update(zip(page.keys, page.modified_ms, strict=True))
        return Listing(modified, dates[0])

    def scan(self, prefix: str, start_after: str = "") -> Iterator[ListedPage]:
        from obstore.exceptions import InvalidPathError

        last = start_after
        if not prefix or prefix.endswith("/"):  # obstore matches whole path segments
            try:
                for page in self._scan_bulk(prefix, start_after):
                    if 0 in page.sizes:
                        break  # a folder marker, perhaps: obstore drops the slash at its end, boto3 does not
                    last = page.keys[-1]
                    yield page
                else:
                    return
            except InvalidPathError:
                pass  # a foreign key that obstore cannot represent ('//', '..', control characters): read on plainly
        yield from self._list_plain(prefix, last, [])

    def _scan_bulk(self, prefix: str, start_after: str) -> Iterator[ListedPage]:
        from obstore.exceptions import BaseError, InvalidPathError

        offset = self._key(start_after) if start_after else None
        try:
            yield from self.bulk.pages(self._key(prefix) or None, offset)
        except InvalidPathError:
            raise
        except BaseError as e:
            raise self._bulk_error(e, prefix) from None

    def _list_plain(self, prefix: str, start_after: str, dates: builtins.list[int]) -> Iterator[ListedPage]:
        cut = len(self.config.prefix)
        options: dict[str, Any] = {"StartAfter": self._key(start_after)} if start_after else {}
        while True:
            r = self.call(
                "list",
                "",
                lambda o=dict(options): self.client.list_objects_v2(  # type: ignore[misc]
                    Bucket=self.config.bucket, Prefix=self._key(prefix), MaxKeys=PAGE_SIZE, **o
                ),
            )
            dates.append(_date_ms(r))
            found = r.get("Contents", [])
            if found:
                yield ListedPage(
                    [o["Key"][cut:] for o in found],
                    [o["Size"] for o in found],
                    [int(o["LastModified"].timestamp() * 1000) for o in found],
                )
            if not r.get("IsTruncated"):
                return
            options = {"ContinuationToken": r["NextContinuationToken"]}

    def _bulk_error(self, e: Exception, key: str) -> Exception:
        """Ask once more through boto3, which names the cause.

        Raise it `from None`: obstore's own message holds the store's whole answer, and a traceback would show that.
        """
        try:
            self.call("head", "", lambda: self.client.head_bucket(Bucket=self.config.bucket))
        except StoreError as cause:
            return cause
        except BucketNotFoundError as cause:
            return cause
        return StoreError(f"reading {self._full(key)} failed: {without_answer(e)}")

    def now_ms(self) -> int:
        return self.call("head", "", lambda: _date_ms(self.client.head_bucket(Bucket=self.config.bucket)))

    # -- the bucket itself --------------------------------------------------------------------------------------------

    def create_bucket(self) -> bool:
        """Create the bucket; False if it was there already."""
        with suppress(BucketNotFoundError):
            self.now_ms()
            return False
        region = self.session.region_name
        where: dict[str, Any] = (
            {"CreateBucketConfiguration": {"LocationConstraint": region}}
            if region and region != "us-east-1" and not self.config.endpoint_url
            else {}
        )
        self.call("put", "", lambda: self.client.create_bucket(Bucket=self.config.bucket, **where))
        return True

    def below(self, prefix: str) -> S3Store:
        """The same bucket, below another prefix."""
        return S3Store(replace(self.config, prefix=prefix))


def _date_ms(response: Any) -> int:
    """The store's clock from the `Date` header (whole seconds; the later end of it is not assumed)."""
    date = response["ResponseMetadata"]["HTTPHeaders"].get("date")
    if date is None:
        raise StoreError("the store sends no Date header, so ages cannot be judged by its clock")
    return int(email.utils.parsedate_to_datetime(date).timestamp() * 1000)
