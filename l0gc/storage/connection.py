"""A connection to a bucket that speaks S3: clients, credentials, counting, and errors as errors of ours.

A conditional write is sent once and never retried in here, so a 412 always means that another write holds the key, or that
the caller knows the first try to be ambiguous. Errors are mapped by status, not by wording.
"""

from __future__ import annotations

import email.utils
import logging
import re
import threading
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

from l0gc.errors import (
    AccessDeniedError,
    AmbiguousWriteError,
    BucketNotFoundError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreError,
    StoreFullError,
    StoreTimeoutError,
    StoreUnreachableError,
    ThrottledError,
    UsageError,
)
from l0gc.events import event
from l0gc.storage.config import StoreConfig
from l0gc.storage.session import session_of

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)
READ_SECONDS: Final = 30
ATTEMPTS: Final = 5
_DENIED: Final = {
    "AccessDenied",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "InvalidToken",
    "403",
}
_FULL: Final = {"InsufficientStorage", "QuotaExceeded", "XMinioStorageFull"}
"""What SeaweedFS', Ceph's and MinIO's gateways call it; with 507, or 403."""
_REFUSALS: Final = {501, 505, 507}
"""Of the server's errors those that say that a request was not carried out; after any other a write may have landed."""
_CONNECT_SECONDS: Final = 5
_OF_AWS: Final = re.compile(r"https://s3[a-z0-9.-]*\.amazonaws\.com(\.cn)?")


class Connection:
    """A bucket, below one prefix; safe for several threads."""

    def __init__(self, config: StoreConfig) -> None:
        self.config = config
        self.requests: Counter[str] = Counter()
        self._lock = threading.RLock()
        self._counting = threading.Lock()

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
        self.refuse_an_endpoint_of_its_own(client.meta.endpoint_url)
        return client

    def refuse_an_endpoint_of_its_own(self, endpoint: str) -> None:
        """One that boto3 knows and nobody gave us: obstore, and executors, would go to AWS's bucket of that name."""
        if not self.config.endpoint_url and not _OF_AWS.fullmatch(endpoint):
            raise UsageError(
                f"the AWS configuration names another endpoint for S3 ({urlsplit(endpoint).hostname}); give it as "
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

    def count(self, kind: str) -> None:
        """Another request."""
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

        self.count(kind)
        _log.debug("%s %s", kind, key or "(bucket)", extra=event("request", kind=kind, key=key))
        try:
            return call()
        except ClientError as e:
            raise self._mapped(e, key, conditional=conditional) from e
        except NoCredentialsError as e:
            raise self.no_credentials() from e
        except ParamValidationError as e:  # nothing was sent
            raise StoreError(f"{kind} of {self.full(key)} cannot be asked for: {e}") from e
        except (EndpointConnectionError, ConnectTimeoutError) as e:
            raise StoreUnreachableError(
                f"{self.config.endpoint_url or 'S3'} does not accept connections; check --endpoint-url and the network"
            ) from e
        except BotoCoreError as e:
            if conditional:
                raise AmbiguousWriteError(f"writing {self.full(key)}: {e}") from e
            if isinstance(e, ReadTimeoutError):
                raise StoreTimeoutError(f"{kind} of {self.full(key)}: no answer within {READ_SECONDS} s") from e
            raise StoreError(f"{kind} of {self.full(key)} failed: {e}") from e

    def _mapped(self, e: Any, key: str, *, conditional: bool) -> Exception:
        code = str(e.response.get("Error", {}).get("Code", ""))
        status = int(e.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        message = e.response.get("Error", {}).get("Message", "")
        if code == "NoSuchBucket" or (status == 404 and key == ""):
            return BucketNotFoundError(
                f"bucket {self.config.bucket!r} does not exist; create it, or run l0gc init --create-bucket"
            )
        if status == 404:
            missing = ObjectNotFoundError(f"{self.full(key)} does not exist")
            missing.date_ms = date_ms(e.response)
            return missing
        if status == 412:
            return PreconditionFailedError(f"{self.full(key)} is not what the write expected")
        if status == 507 or code in _FULL:
            return StoreFullError(
                f"the store is full ({status} {code}) and does not take {self.full(key)}; add space, or delete what may go: "
                "l0gc sweep --record-dir DIR"
            )
        if code in _DENIED or status in {401, 403}:
            return AccessDeniedError(
                f"the store refused access to {self.full(key)} ({code}): check the credentials and their permissions"
            )
        if conditional and ((status >= 500 and status not in _REFUSALS) or status == 409):
            return AmbiguousWriteError(f"writing {self.full(key)}: {status} {code}")
        if status in {429, 503} or code in {"SlowDown", "Throttling", "RequestLimitExceeded"}:
            return ThrottledError(f"the store asks to slow down at {self.full(key)} ({code})")
        return StoreError(f"{self.full(key)}: {status} {code} {message}".rstrip())

    def no_credentials(self) -> AccessDeniedError:
        """The error of a request without credentials."""
        return AccessDeniedError(
            f"no credentials for {self.config.url}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or --profile"
        )

    def full(self, key: str) -> str:
        """The key as a URL, for messages."""
        return f"{self.config.url}{key}"

    def full_key(self, key: str) -> str:
        """The key as the bucket knows it."""
        return self.config.prefix + key


def date_ms(response: Any) -> int:
    """The store's clock from the `Date` header (whole seconds; the later end of it is not assumed)."""
    date = response["ResponseMetadata"]["HTTPHeaders"].get("date")
    if date is None:
        raise StoreError("the store sends no Date header, so ages cannot be judged by its clock")
    return int(email.utils.parsedate_to_datetime(date).timestamp() * 1000)
