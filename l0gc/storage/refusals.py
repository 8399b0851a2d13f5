"""Explain why a store refused or did not answer a request: one table maps each answer to one error and one sentence.

The operation, the HTTP status and S3's code determine the cause, never a message's wording; the first matching row
decides. The same row decides whether the request is sent again, for both clients and for each key of a bulk delete
(`again`). A conditional write that got a server error may have landed, unless an earlier row shows that the request was
refused; it counts as ambiguous and is never sent again. The same is assumed if the store asked to send a conditional
write later: the caller reads what landed, waits and decides again. Only a refusal with a specific code is a
`RequestRefusedError`; an error that may pass is not (hazard 42). A sentence names the cause and the remedy. It repeats
the store's message only if the code is unknown, because the answer to refused credentials may contain them.
"""

from __future__ import annotations

import random
import re
import socket
from collections.abc import Collection
from typing import Any, Final

import msgspec

from l0gc.errors import (
    AccessDeniedError,
    AmbiguousWriteError,
    BucketNotFoundError,
    L0gcError,
    ObjectNotFoundError,
    PreconditionFailedError,
    RequestRefusedError,
    StoreError,
    StoreSilentError,
    StoreTimeoutError,
    StoreUnreachableError,
    ThrottledError,
    UsageError,
)
from l0gc.formatting import as_duration
from l0gc.storage.config import StoreConfig

ATTEMPTS: Final = 5
"""How often a request is sent, at most; `patience` limits for how long."""
_BACKOFF_S: Final = 0.05
_SLOWER_S: Final = 1.0
_LONGEST_S: Final = 20.0
"""The longest wait before any attempt. `_BACKOFF_S` is the longest wait before the second attempt, and `_SLOWER_S` the
longest if the store asked to slow down.
"""
DENIED: Final = "AccessDenied"
EXPIRED: Final = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired")
_CARRIED_OUT: Final = frozenset({409, *range(500, 600)} - {501, 505, 507})
"""The statuses after which a write may have landed; 501, 505 and 507 mean that the request was not carried out."""
NOT_S3: Final = "NotS3"
"""The code of an answer that is not the requested document (`answers.py`); its message describes the answer."""
_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>([^<]+)</Code>")
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
"""The permissions for operations, unless they are `s3:` plus the operation's name."""


class Answer(msgspec.Struct, frozen=True):
    """A store's answer that was not a success.

    `region` is the bucket's, if the answer names it; `conditional` is whether the request was a conditional write.
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


class Row(msgspec.Struct, frozen=True):
    """The meaning of an answer with one of these codes or statuses.

    Attributes:
        again: the same request may succeed, so it is sent again, unless it is conditional.
        unsure: the request may have been carried out.
        of_bucket, conditional, names_region: whether only answers of this kind match.
    """

    error: type[L0gcError]
    sentence: str
    codes: Collection[str] = ()
    statuses: Collection[int] = ()
    again: bool = False
    unsure: bool = False
    of_bucket: bool = False
    conditional: bool = False
    names_region: bool = False

    @property
    def slower(self) -> bool:
        """Return whether the store asked for fewer requests, or did not answer in time."""
        return issubclass(self.error, ThrottledError | StoreTimeoutError)

    def fits(self, answer: Answer, key: str) -> bool:
        if (self.of_bucket and key) or (self.conditional and not answer.conditional):
            return False
        if self.names_region and not answer.region:
            return False
        return answer.code in self.codes or answer.status in self.statuses


_NO_BUCKET: Final = "bucket {bucket!r} does not exist; create it, or run l0gc init --create-bucket"
_ELSEWHERE: Final = ("PermanentRedirect", "TemporaryRedirect", "IllegalLocationConstraintException")
_SLOWER: Final = (
    "BandwidthLimitExceeded",
    "EC2ThrottledException",
    "KMS.ThrottlingException",
    "LimitExceededException",
    "PriorRequestNotComplete",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "ServerBusy",
    "SlowDown",
    "SlowDownRead",
    "SlowDownWrite",
    "ThrottledException",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
    "TooManyRequestsException",
    "TransactionInProgressException",
)
_LATE: Final = ("RequestTimeout", "RequestTimeoutException")
_ALTERED: Final = ("BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch")
_CONFLICT: Final = ("ConditionalRequestConflict", "OperationAborted")
REDIRECTS: Final = (301, 302, 307, 308)
_NOT_UP: Final = "see whether its server is up, or try again later"
_IN_ITS_WORDS: Final = "{what}: {status} {code} {message}"
_NOT_S3S: Final = (
    "the store's answer is not S3's: {message}; see whether {endpoint} is an S3 store, and which proxy or login page stands "
    "in front of it"
)

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
        "the store rejects the credentials for {url} ({code}): check AWS_ACCESS_KEY_ID, AWS_SESSION_TOKEN or "
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
        RequestRefusedError,
        "{what} was archived ({code}): restore it with aws s3api restore-object, copy it onto itself, and end the lifecycle "
        "rule that archives objects of {url}",
        codes=("InvalidObjectState",),
    ),
    Row(
        RequestRefusedError,
        "the key that encrypts {what} cannot be used ({code}): enable it, or cancel its deletion",
        codes=("KMS.DisabledException", "KMS.NotFoundException", "KMS.KMSInvalidStateException"),
    ),
    Row(AmbiguousWriteError, "writing {what}: " + _NOT_S3S, codes=(NOT_S3,), conditional=True),
    Row(StoreError, _NOT_S3S, codes=(NOT_S3,), again=True, unsure=True),
    Row(  # the caller reads what landed and decides again
        AmbiguousWriteError,
        "writing {what}: {status} {code}",
        codes=(*_SLOWER, *_LATE, *_ALTERED, *_CONFLICT, "InternalError", "ServiceUnavailable"),
        statuses=_CARRIED_OUT | {408, 429},
        conditional=True,
    ),
    Row(
        ThrottledError,
        "the store asks to slow down at {what} ({code}): try again later, or with fewer jobs at once",
        codes=_SLOWER,
        statuses=(429,),
        again=True,
    ),
    Row(
        StoreTimeoutError,
        "the store did not get the whole request for {what} in time ({code}): try again later, or check the network",
        codes=_LATE,
        statuses=(408,),
        again=True,
        unsure=True,
    ),
    Row(
        StoreError,
        "the store got other bytes for {what} than were sent ({code}): check the network, or the proxy in front of it",
        codes=_ALTERED,
        again=True,
    ),
    Row(
        AccessDeniedError,
        "the store refused access to {what} ({code}): check the credentials, and that they allow {action}",
        codes=(DENIED,),
        statuses=(401, 403),
    ),
    Row(StoreError, _IN_ITS_WORDS, codes=_CONFLICT, again=True, unsure=True),
    Row(
        ThrottledError,
        f"{{endpoint}} is not up, or is overloaded and asks to slow down ({{status}} {{code}}): {_NOT_UP}",
        codes=("ServiceUnavailable",),
        statuses=(503,),
        again=True,
    ),
    Row(StoreError, _IN_ITS_WORDS, codes=("InternalError",), statuses=(500,), again=True, unsure=True),
    Row(
        StoreError,
        f"{{endpoint}} is not up, or is overloaded ({{status}} {{code}}): {_NOT_UP}",
        statuses=_CARRIED_OUT - {409},
        again=True,
        unsure=True,
    ),
    Row(
        RequestRefusedError,
        "the store refused a request for {what} without a reason (400): check --region and the credentials",
        codes=("400",),
    ),
    Row(RequestRefusedError, _IN_ITS_WORDS, statuses=frozenset(range(400, 500)) - {409}),
    Row(StoreError, _IN_ITS_WORDS, statuses=range(1000)),
)
"""The first matching row decides; the last one matches every answer."""


def row_of(answer: Answer, key: str = "") -> Row:
    """Return the row for an answer to a request about `key`; an empty key stands for the bucket."""
    return next(r for r in ROWS if r.fits(answer, key))


def row_of_text(text: str) -> Row:
    """Return the row for an error of obstore, whose text contains the store's answer. The row only decides whether the
    request is sent again.
    """
    if status := _STATUS.search(text):
        code = _CODE.search(text)
        return row_of(Answer("", int(status[1]), code[1] if code else status[1]), status[1])
    unread, unsent = "invalid list response" in text, is_unanswered_text(text)
    return row_of(Answer("", 502, NOT_S3 if unread or unsent else "") if unread or unsent else Answer("", 0, ""), "k")


def is_unanswered_text(text: str) -> bool:
    """Return whether an error of obstore means that the store did not answer."""
    return "HTTP error" in text and not _STATUS.search(text)


def row_of_key(code: str) -> Row:
    """Return the row for a key that a bulk delete did not delete, by the code in the answer."""
    return row_of(Answer("DeleteObjects", int(code) if code.isdecimal() else 200, code), code)


class Failure(msgspec.Struct, frozen=True):
    """The meaning of an exception of botocore and its subclasses; see `Row`. With `unresolved` or `conditional`, only
    an exception of that kind matches.
    """

    name: str
    error: type[L0gcError]
    sentence: str
    again: bool = False
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
        again=True,
        unresolved=True,
    ),
    Failure("EndpointConnectionError", StoreUnreachableError, _REFUSES, again=True),
    Failure("ConnectTimeoutError", StoreUnreachableError, _REFUSES, again=True),
    # The request may have been sent, and a write may have landed.
    Failure("BotoCoreError", AmbiguousWriteError, "writing {what}: {e}", conditional=True),
    Failure(
        "ReadTimeoutError",
        StoreTimeoutError,
        "{kind} of {what}: no answer within {seconds} s; try again later, or check the network",
        again=True,
    ),
    Failure(
        "ProxyConnectionError", StoreUnreachableError, "{e}; check HTTPS_PROXY, HTTP_PROXY and NO_PROXY", again=True
    ),
    Failure("SSLError", StoreError, "{e}; check http or https in --endpoint-url, and AWS_CA_BUNDLE", again=True),
    Failure("HTTPClientError", StoreError, "{kind} of {what} failed: {e}", again=True),
    Failure("BotoCoreError", StoreError, "{kind} of {what} failed: {e}"),
)
"""The first matching row decides, as in `ROWS`."""


def refusal(answer: Answer, config: StoreConfig, key: str) -> L0gcError:
    """Return the error for an answer to a request about `key`; an empty key stands for the bucket."""
    row = row_of(answer, key)
    endpoint, within = (config.endpoint_url or "").rstrip("/"), f"/{config.bucket}"
    if row.error is BucketNotFoundError and endpoint.endswith(within):
        return in_endpoint(endpoint, config.bucket, endpoint.removesuffix(within))
    action = _ACTIONS.get(answer.operation, f"s3:{answer.operation}")
    return _error(row, config, key, **msgspec.structs.asdict(answer), action=action)


def in_endpoint(endpoint: str, bucket: str, without: str) -> UsageError:
    """Return the error for an endpoint that contains the bucket; `without` is the correct endpoint."""
    return UsageError(
        f"the endpoint {endpoint} contains the bucket {bucket!r}, so the store takes the bucket's name in the URL for part "
        f"of a key; give the endpoint as {without}"
    )


def no_answer(e: BaseException, config: StoreConfig, kind: str, key: str, *, conditional: bool) -> L0gcError:
    """Return the error for a request that was not sent or not answered; `e` is a `BotoCoreError`."""
    row = row_without_answer(e, conditional=conditional)
    return _error(row, config, key, kind=kind, e=e, seconds=f"{config.timeout_s / 4:g}")


def silent(config: StoreConfig, kind: str, key: str) -> StoreSilentError:
    """Return the error for a store that has left requests unanswered for as long as the run waits."""
    endpoint, limit = config.endpoint_url or "S3", as_duration(config.timeout_s)
    return StoreSilentError(
        f"{endpoint} left requests unanswered for {limit} in total, the last one the {kind} of {config.url}{key}: see "
        "whether it and the network are up, then run the command again, or raise --store-timeout"
    )


def row_without_answer(e: BaseException, *, conditional: bool = False) -> Failure:
    """Return the row for an exception of botocore."""
    names = {c.__name__ for c in type(e).__mro__}
    unresolved = _is_unresolved(e)
    return next(r for r in FAILURES if r.name in names and unresolved >= r.unresolved and conditional >= r.conditional)


def pause_s(attempt: int, *, slower: bool) -> float:
    """Return a random number of seconds to wait before a request is sent again, so that clients do not retry in step."""
    first = _SLOWER_S if slower else _BACKOFF_S
    return random.random() * float(min(_LONGEST_S, first * 2 ** (attempt - 1)))


def _error(row: Row | Failure, config: StoreConfig, key: str, **said: object) -> L0gcError:
    endpoint = config.endpoint_url or "S3"
    sentence = row.sentence.format(
        what=f"{config.url}{key}", url=config.url, bucket=config.bucket, endpoint=endpoint, **said
    )
    return row.error(sentence.rstrip())


def no_credentials(config: StoreConfig) -> AccessDeniedError:
    return AccessDeniedError(NO_CREDENTIALS.format(url=config.url))


def why_kept(code: str, message: str) -> str:
    """Return why a bulk delete kept a key: the store's code and message, and a remedy if the store denied access."""
    return f"{code} {message}{_KEPT if code == DENIED else ''}"


def without_answer(e: Exception) -> str:
    """Return obstore's error message without the store's answer, which may repeat the session token."""
    return _ANSWER.sub(r"\1", str(e)).splitlines()[0]


def _is_unresolved(e: BaseException | None) -> bool:
    """Return whether a name that does not resolve caused the error, directly or indirectly."""
    seen: list[BaseException] = []
    while e is not None and e not in seen:
        if isinstance(e, socket.gaierror):
            return True
        seen.append(e)
        e = e.__cause__ or e.__context__
    return False
