"""Why a store refused or did not answer a request: one table, from the answer to one error and one sentence.

The cause is determined from the operation, the HTTP status and S3's code, never from a message's wording; the first
matching row decides. What makes it safe: a server error after a conditional write is ambiguous, because the write may
have landed, unless an earlier row shows that the request was refused. A sentence names the cause and the remedy. It
repeats the store's message only if the code is unknown, because answers to refused credentials may contain them.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any, Final

from l0gc.errors import (
    AccessDeniedError,
    AmbiguousWriteError,
    BucketNotFoundError,
    L0gcError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreError,
    StoreTimeoutError,
    StoreUnreachableError,
    ThrottledError,
)
from l0gc.storage.config import StoreConfig

ATTEMPTS: Final = 5
READ_SECONDS: Final = 30
"""How often a request is sent at most, and how long to wait for an answer."""
DEADLINE_SECONDS: Final = 60
"""A request that has waited this long in total is not sent again."""
DENIED: Final = "AccessDenied"
EXPIRED: Final = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired")
_CARRIED_OUT: Final = frozenset({409, *range(500, 600)} - {501, 505, 507})
"""After these a write may have landed; 501, 505 and 507 mean that the request was not carried out."""
_ANSWER: Final = re.compile(r"(status code: \d{3}[^:]*|error response):.*", re.DOTALL)

_KEPT: Final = (
    " (allow s3:DeleteObject, without a condition on s3:if-match, which l0gc does not send; or wait for the object's lock "
    "to end)"
)

_ACTIONS: Final = {
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
    "DeleteObjects": "s3:DeleteObject",
    "GetBucketLifecycleConfiguration": "s3:GetLifecycleConfiguration",
    "GetObjectLockConfiguration": "s3:GetBucketObjectLockConfiguration",
    "HeadBucket": "s3:ListBucket",
    "HeadObject": "s3:GetObject",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "ListObjectVersions": "s3:ListBucketVersions",
    "ListObjectsV2": "s3:ListBucket",
    "CompleteMultipartUpload": "s3:PutObject",
    "CreateMultipartUpload": "s3:PutObject",
    "UploadPart": "s3:PutObject",
}
"""The permission for an operation, if it is not `s3:` plus the operation's name."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A store's answer that was not a success.

    `region` is the bucket's, if the answer names it; `conditional` says that the request was a conditional write.
    """

    operation: str
    status: int
    code: str
    message: str = ""
    region: str = ""
    conditional: bool = False

    @classmethod
    def of(cls, operation: str, response: Any, *, conditional: bool = False) -> Answer:
        """Return the answer that boto3 reported."""
        error, metadata = response.get("Error", {}), response.get("ResponseMetadata", {})
        region = error.get("Region") or metadata.get("HTTPHeaders", {}).get("x-amz-bucket-region", "")
        return cls(
            operation,
            int(metadata.get("HTTPStatusCode", 0)),
            str(error.get("Code", "")),
            error.get("Message", ""),
            region,
            conditional,
        )


@dataclass(frozen=True, slots=True)
class Row:
    """The meaning of an answer with one of these codes or statuses. With a flag, only answers of that kind match."""

    error: type[L0gcError]
    sentence: str
    codes: Collection[str] = ()
    statuses: Collection[int] = ()
    of_bucket: bool = False
    conditional: bool = False
    names_region: bool = False

    def fits(self, answer: Answer, key: str) -> bool:
        if (self.of_bucket and key) or (self.conditional and not answer.conditional):
            return False
        if self.names_region and not answer.region:
            return False
        return answer.code in self.codes or answer.status in self.statuses


_NO_BUCKET: Final = "bucket {bucket!r} does not exist; create it, or run l0gc init --create-bucket"
_ELSEWHERE: Final = ("PermanentRedirect", "TemporaryRedirect", "IllegalLocationConstraintException")
REDIRECTS: Final = (301, 302, 307, 308)
_NOT_UP: Final = "see whether its server is up, or try again later"

ROWS: Final = (
    Row(BucketNotFoundError, _NO_BUCKET, codes=("NoSuchBucket",)),
    Row(BucketNotFoundError, _NO_BUCKET, statuses=(404,), of_bucket=True),
    Row(ObjectNotFoundError, "{what} does not exist", statuses=(404,)),
    Row(PreconditionFailedError, "{what} is not what the write expected", statuses=(412,)),
    Row(
        StoreError,
        "the store is full ({status} {code}) and does not take {what}; add space, or delete what may go: "
        "l0gc sweep --record-dir DIR",
        codes=("InsufficientStorage", "QuotaExceeded", "XMinioStorageFull"),  # SeaweedFS, Ceph, MinIO
        statuses=(507,),
    ),
    Row(
        AccessDeniedError,
        "the clock of this machine differs from the store's by more than it accepts ({code}): set it, for example by NTP",
        codes=("RequestTimeTooSkewed",),
    ),
    Row(
        AccessDeniedError,
        "the credentials for {url} have expired ({code}): get new ones, for example by logging in again",
        codes=EXPIRED,
    ),
    Row(
        AccessDeniedError,
        "the store does not know the credentials for {url} ({code}): check AWS_ACCESS_KEY_ID, AWS_SESSION_TOKEN or "
        "--profile, and that they are for {endpoint}",
        codes=("InvalidAccessKeyId", "InvalidToken"),
    ),
    Row(
        AccessDeniedError,
        "the store refused the credentials for {url} ({code}): check AWS_SECRET_ACCESS_KEY or --profile",
        codes=("SignatureDoesNotMatch",),
    ),
    Row(
        StoreError,
        "bucket {bucket!r} is in region {region}; give it as --region or AWS_REGION",
        codes=(*_ELSEWHERE, "AuthorizationHeaderMalformed"),
        statuses=REDIRECTS,
        names_region=True,
    ),
    Row(
        StoreError,
        "bucket {bucket!r} is in another region or on another server ({status} {code}); check --region and --endpoint-url",
        codes=_ELSEWHERE,
        statuses=REDIRECTS,
    ),
    Row(
        StoreError,
        "{what} was archived ({code}): restore it with aws s3api restore-object, copy it onto itself, and end the lifecycle "
        "rule that archives objects of {url}",
        codes=("InvalidObjectState",),
    ),
    Row(
        StoreError,
        "the key that encrypts {what} cannot be used ({code}): enable it, or cancel its deletion",
        codes=("KMS.DisabledException", "KMS.NotFoundException", "KMS.KMSInvalidStateException"),
    ),
    Row(
        AccessDeniedError,
        "the store refused access to {what} ({code}): check the credentials, and that they allow {action}",
        codes=(DENIED,),
        statuses=(401, 403),
    ),
    Row(AmbiguousWriteError, "writing {what}: {status} {code}", statuses=_CARRIED_OUT, conditional=True),
    Row(
        ThrottledError,
        "the store asks to slow down at {what} ({code}): try again later, or with fewer jobs at once",
        codes=("SlowDown", "Throttling", "RequestLimitExceeded"),
        statuses=(429,),
    ),
    Row(
        ThrottledError,
        f"{{endpoint}} is not up, or is overloaded and asks to slow down ({{status}} {{code}}): {_NOT_UP}",
        statuses=(503,),
    ),
    Row(StoreError, f"{{endpoint}} is not up, or is overloaded ({{status}} {{code}}): {_NOT_UP}", statuses=(502, 504)),
    Row(
        StoreError,
        "the store refused a request for {what} without a reason (400): check --region and the credentials",
        codes=("400",),
    ),
)
"""The first matching row decides. An answer that matches none is a `StoreError` with the store's own message."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The meaning of an exception of botocore, or of its subclasses. With a flag, only one of that kind matches."""

    name: str
    error: type[L0gcError]
    sentence: str
    unresolved: bool = False
    conditional: bool = False


NO_CREDENTIALS: Final = "no credentials for {url}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or --profile"
_UNUSABLE: Final = "the credentials for {url} cannot be used: {e}; log in again, or check --profile"
_REFUSES: Final = "{endpoint} does not accept connections; check --endpoint-url and the network"

FAILURES: Final = (
    # Nothing was sent.
    Failure("NoCredentialsError", AccessDeniedError, NO_CREDENTIALS),
    Failure("PartialCredentialsError", AccessDeniedError, _UNUSABLE),
    Failure("CredentialRetrievalError", AccessDeniedError, _UNUSABLE),
    Failure("TokenRetrievalError", AccessDeniedError, _UNUSABLE),
    Failure("SSOError", AccessDeniedError, _UNUSABLE),
    Failure("ParamValidationError", StoreError, "{kind} of {what} cannot be requested: {e}"),
    Failure(
        "EndpointConnectionError",
        StoreUnreachableError,
        "the name in {endpoint} does not resolve; check --endpoint-url, --region and this machine's DNS",
        unresolved=True,
    ),
    Failure("EndpointConnectionError", StoreUnreachableError, _REFUSES),
    Failure("ConnectTimeoutError", StoreUnreachableError, _REFUSES),
    # It may have been sent, and a write may have landed.
    Failure("BotoCoreError", AmbiguousWriteError, "writing {what}: {e}", conditional=True),
    Failure("ReadTimeoutError", StoreTimeoutError, "{kind} of {what}: no answer within {seconds} s"),
    Failure("ProxyConnectionError", StoreUnreachableError, "{e}; check HTTPS_PROXY, HTTP_PROXY and NO_PROXY"),
    Failure("SSLError", StoreError, "{e}; check http or https in --endpoint-url, and AWS_CA_BUNDLE"),
    Failure("BotoCoreError", StoreError, "{kind} of {what} failed: {e}"),
)
"""The first matching row decides, as with `ROWS`."""


def refusal(answer: Answer, config: StoreConfig, key: str) -> L0gcError:
    """Return the error for an answer to a request about `key`; an empty key stands for the bucket."""
    row = next((r for r in ROWS if r.fits(answer, key)), Row(StoreError, "{what}: {status} {code} {message}"))
    action = _ACTIONS.get(answer.operation, f"s3:{answer.operation}")
    return _error(row, config, key, **asdict(answer), action=action)


def no_answer(e: BaseException, config: StoreConfig, kind: str, key: str, *, conditional: bool) -> L0gcError:
    """Return the error for a request that was not sent or not answered: `e` is a `BotoCoreError`."""
    names = {c.__name__ for c in type(e).__mro__}
    unresolved = _is_unresolved(e)
    row = next(r for r in FAILURES if r.name in names and unresolved >= r.unresolved and conditional >= r.conditional)
    return _error(row, config, key, kind=kind, e=e, seconds=READ_SECONDS)


def _error(row: Row | Failure, config: StoreConfig, key: str, **said: object) -> L0gcError:
    endpoint = config.endpoint_url or "S3"
    sentence = row.sentence.format(
        what=f"{config.url}{key}", url=config.url, bucket=config.bucket, endpoint=endpoint, **said
    )
    return row.error(sentence.rstrip())


def no_credentials(config: StoreConfig) -> AccessDeniedError:
    return AccessDeniedError(NO_CREDENTIALS.format(url=config.url))


def why_kept(code: str, message: str) -> str:
    """Return why a bulk delete left a key: the store's words, and what they mean if the key may not be deleted."""
    return f"{code} {message}{_KEPT if code == DENIED else ''}"


def without_answer(e: Exception) -> str:
    """Return obstore's error message without the store's answer, which may repeat the session token."""
    return _ANSWER.sub(r"\1", str(e)).splitlines()[0]


def _is_unresolved(e: BaseException | None) -> bool:
    """Return whether an unresolvable name caused the error, directly or indirectly."""
    seen: list[BaseException] = []
    while e is not None and e not in seen:
        if isinstance(e, socket.gaierror):
            return True
        seen.append(e)
        e = e.__cause__ or e.__context__
    return False
