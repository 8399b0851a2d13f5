"""Why a store refused: a table with a row for each cause, and answers of a server that do not name one."""

from __future__ import annotations

import socket

import pytest
from botocore import exceptions as boto

import l0gc.storage.access
import l0gc.storage.s3
from l0gc.errors import (
    AccessDeniedError,
    AmbiguousWriteError,
    BucketNotFoundError,
    L0gcError,
    ObjectNotFoundError,
    PreconditionFailedError,
    RequestRefusedError,
    StoreError,
    StoreTimeoutError,
    StoreUnreachableError,
    ThrottledError,
)
from l0gc.storage.config import StoreConfig
from l0gc.storage.objectstore import DeleteFailure
from l0gc.storage.refusals import FAILURES, NOT_S3, REDIRECTS, ROWS, Answer, no_answer, refusal, row_of
from l0gc.storage.s3 import S3Store
from tests.support.scripted_s3 import ACCESS_KEY, SECRET_KEY, TOKEN, Scripted, assert_no_secrets, calls

pytestmark = pytest.mark.usefixtures("credentials")
CONFIG = StoreConfig("b", "p/", "http://store:9000")

ANSWERS: list[tuple[Answer, str, type[L0gcError], str]] = [
    (Answer("PutObject", 404, "NoSuchBucket"), "k", BucketNotFoundError, "bucket 'b' does not exist; create it"),
    (Answer("HeadBucket", 404, "404"), "", BucketNotFoundError, "bucket 'b' does not exist; create it"),
    (Answer("GetObject", 404, "NoSuchKey"), "k", ObjectNotFoundError, "s3://b/p/k does not exist"),
    (
        Answer("PutObject", 412, "PreconditionFailed", conditional=True), "k",
        PreconditionFailedError, "s3://b/p/k is not what the write expected",
    ),
    (Answer("PutObject", 507, "Any"), "k", StoreError, "the store is full (507 Any) and does not take s3://b/p/k; add"),
    (Answer("PutObject", 500, "XMinioStorageFull", conditional=True), "k", StoreError, "the store is full (500 XMin"),
    (Answer("GetObject", 403, "RequestTimeTooSkewed"), "k", AccessDeniedError, "the clock of this machine differs from"),
    (Answer("GetObject", 400, "ExpiredToken"), "k", AccessDeniedError, "the credentials for s3://b/p/ have expired (Exp"),
    (
        Answer("GetObject", 403, "InvalidAccessKeyId"), "k",
        AccessDeniedError, "the store rejects the credentials for s3://b/p/ (InvalidAccessKeyId): check AWS_ACC",
    ),
    (
        Answer("GetObject", 403, "SignatureDoesNotMatch"), "k",
        AccessDeniedError, "the store refused the credentials for s3://b/p/ (SignatureDoesNotMatch): check AWS_SECRET",
    ),
    (
        Answer("HeadBucket", 400, "AuthorizationHeaderMalformed", region="eu-west-1"), "",
        StoreError, "bucket 'b' is in region eu-west-1; give it as --region or AWS_REGION",
    ),
    (
        Answer("HeadBucket", 301, "301"), "",
        StoreError, "bucket 'b' is in another region or on another server (301 301); check --region and --endpoint-url",
    ),
    (
        Answer("GetObject", 403, "InvalidObjectState"), "k",
        RequestRefusedError, "s3://b/p/k was archived (InvalidObjectState): restore it with aws s3api restore-o",
    ),
    (
        Answer("GetObject", 400, "KMS.DisabledException"), "k",
        RequestRefusedError, "the key that encrypts s3://b/p/k cannot be used (KMS.DisabledException): enable it",
    ),
    (
        Answer("DeleteObjects", 403, "AccessDenied"), "k",
        AccessDeniedError, "the store refused access to s3://b/p/k (AccessDenied): check the credentials, and that they "
        "allow s3:DeleteObject",
    ),
    (
        Answer("GetBucketVersioning", 403, "AccessDenied"), "",
        AccessDeniedError, "the store refused access to s3://b/p/ (AccessDenied): check the credentials, and that they "
        "allow s3:GetBucketVersioning",
    ),
    (Answer("PutObject", 503, "SlowDown", conditional=True), "k", AmbiguousWriteError, "writing s3://b/p/k: 503 SlowDown"),
    (Answer("PutObject", 409, "Conflict", conditional=True), "k", AmbiguousWriteError, "writing s3://b/p/k: 409 Conflict"),
    (Answer("GetObject", 503, "SlowDown"), "k", ThrottledError, "the store asks to slow down at s3://b/p/k (SlowDown)"),
    (
        Answer("GetObject", 503, "503"), "k",
        ThrottledError, "http://store:9000 is not up, or is overloaded and asks to slow down (503 503): see whether its",
    ),
    (Answer("GetObject", 502, "502"), "k", StoreError, "http://store:9000 is not up, or is overloaded (502 502): see wh"),
    (Answer("HeadBucket", 400, "400"), "", RequestRefusedError, "the store refused a request for s3://b/p/ without a"),
    (Answer("PutObject", 501, "NotImplemented", "no", conditional=True), "k", StoreError, "s3://b/p/k: 501 NotImpl"),
    (
        Answer("PutObject", 502, NOT_S3, "it is empty", conditional=True), "k",
        AmbiguousWriteError, "writing s3://b/p/k: the store's answer is not S3's: it is empty; see whether http://store",
    ),
    (Answer("GetObject", 502, NOT_S3, "it is empty"), "k", StoreError, "the store's answer is not S3's: it is empty; see"),
    (Answer("GetObject", 400, "RequestTimeout"), "k", StoreTimeoutError, "the store did not get the whole request for s3"),
    (Answer("PutObject", 400, "BadDigest"), "k", StoreError, "the store got other bytes for s3://b/p/k than were sent (Bad"),
    (Answer("GetObject", 409, "OperationAborted", "again"), "k", StoreError, "s3://b/p/k: 409 OperationAborted again"),
    (Answer("GetObject", 500, "InternalError", "oh"), "k", StoreError, "s3://b/p/k: 500 InternalError oh"),
    (Answer("GetObject", 400, "Odd", "no"), "k", RequestRefusedError, "s3://b/p/k: 400 Odd no"),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "key", "error", "begins"), ANSWERS)
def test_an_answer_has_one_cause(answer: Answer, key: str, error: type[L0gcError], begins: str) -> None:
    found = refusal(answer, CONFIG, key)
    assert type(found) is error
    assert str(found).startswith(begins)


def test_a_conditional_write_that_may_be_sent_again_is_ambiguous() -> None:
    for row in [r for r in ROWS if r.again]:
        for status, code in [*((400, c) for c in row.codes), *((s, "") for s in row.statuses)]:
            error = refusal(Answer("PutObject", status, code, conditional=True), CONFIG, "k")
            assert type(error) is AmbiguousWriteError, (status, code)


SENT_AGAIN: list[tuple[int, str, bool]] = [
    (200, NOT_S3, True), (503, "SlowDown", False), (429, "", False), (400, "RequestTimeout", True), (408, "", True),
    (400, "BadDigest", False), (409, "OperationAborted", True), (409, "ConditionalRequestConflict", True),
    (503, "ServiceUnavailable", False), (500, "InternalError", True), (502, "", True),
]  # fmt: skip
"""A status and a code, and whether the store may have carried out the request."""


def test_only_listed_answers_are_sent_again_or_leave_doubt() -> None:
    rows = [row_of(Answer("DeleteObjects", status, code), "k") for status, code, _ in SENT_AGAIN]
    assert [(r.again, r.unsure) for r in rows] == [(True, unsure) for *_, unsure in SENT_AGAIN]
    assert [r for r in ROWS if r.again or r.unsure if r not in rows] == []


def test_every_row_is_tried() -> None:
    assert [r for r in ROWS if r not in [row_of(answer, key) for answer, key, _, _ in ANSWERS]] == []


def unresolved() -> Exception:
    error = OSError("connection")
    error.__cause__ = socket.gaierror(-2, "Name or service not known")
    return error


NOTHING_SENT: list[tuple[boto.BotoCoreError, type[L0gcError], str]] = [
    (boto.NoCredentialsError(), AccessDeniedError, "no credentials for s3://b/p/; set AWS_ACCESS_KEY_ID and"),
    (
        boto.PartialCredentialsError(provider="env", cred_var="x"),
        AccessDeniedError, "the credentials for s3://b/p/ cannot be used: Partial credentials found in env",
    ),
    (
        boto.CredentialRetrievalError(provider="p", error_msg="x"),
        AccessDeniedError, "the credentials for s3://b/p/ cannot be used: Error when retrieving",
    ),
    (boto.TokenRetrievalError(provider="p", error_msg="x"), AccessDeniedError, "the credentials for s3://b/p/ cannot be"),
    (boto.UnauthorizedSSOTokenError(), AccessDeniedError, "the credentials for s3://b/p/ cannot be used: The SSO session"),
    (boto.ParamValidationError(report="x"), StoreError, "get of s3://b/p/k cannot be requested: Parameter validation"),
    (
        boto.EndpointConnectionError(endpoint_url="http://store:9000", error=None),
        StoreUnreachableError, "http://store:9000 does not accept connections; check --endpoint-url and the network",
    ),
    (boto.ConnectTimeoutError(endpoint_url="x", error=None), StoreUnreachableError, "http://store:9000 does not accept"),
]  # fmt: skip
SENT: list[tuple[boto.BotoCoreError, type[L0gcError], str]] = [
    (
        boto.ReadTimeoutError(endpoint_url="x", error=None),
        StoreTimeoutError,
        "get of s3://b/p/k: no answer within 30 s; try again later, or check the network",
    ),
    (
        boto.ProxyConnectionError(proxy_url="x"),
        StoreUnreachableError,
        'Failed to connect to proxy URL: "x"; check HTTPS_P',
    ),
    (
        boto.SSLError(endpoint_url="x", error=OSError("no")),
        StoreError,
        "SSL validation failed for x no; check http or https in",
    ),
    (
        boto.ConnectionClosedError(endpoint_url="x"),
        StoreError,
        "get of s3://b/p/k failed: Connection was closed before",
    ),
]


@pytest.mark.parametrize(("e", "error", "begins"), NOTHING_SENT + SENT)
def test_a_request_without_an_answer_has_one_cause(e: boto.BotoCoreError, error: type[L0gcError], begins: str) -> None:
    found = no_answer(e, CONFIG, "get", "k", conditional=False)
    assert type(found) is error
    assert str(found).startswith(begins)
    written = no_answer(e, CONFIG, "put", "k", conditional=True)
    assert type(written) is (AmbiguousWriteError if (e, error, begins) in SENT else error)


def test_only_listed_failures_of_a_connection_are_sent_again() -> None:
    assert [f.name for f in FAILURES if f.again] == [
        "EndpointConnectionError", "EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError",
        "ProxyConnectionError", "SSLError", "HTTPClientError",
    ]  # fmt: skip


def test_every_row_of_failures_is_tried() -> None:
    tried = {c.__name__ for e, _, _ in NOTHING_SENT + SENT for c in type(e).__mro__}
    assert {f.name for f in FAILURES} <= tried


def test_a_name_that_does_not_resolve_is_named() -> None:
    e = boto.EndpointConnectionError(endpoint_url="http://store:9000", error=None)
    e.__context__ = unresolved()
    for conditional in (False, True):
        found = no_answer(e, CONFIG, "get", "k", conditional=conditional)
        assert type(found) is StoreUnreachableError
        assert str(found).startswith("the name in http://store:9000 does not resolve; check --endpoint-url, --region")


def test_a_refused_delete_names_the_permission_or_lock() -> None:
    assert DeleteFailure("k", "AccessDenied", "Denied").why.startswith("AccessDenied Denied (allow s3:DeleteObject, ")
    assert DeleteFailure("k", "InternalError", "no").why == "InternalError no"


# -- a server whose answers a test writes -------------------------------------------------------------------------------


@pytest.fixture
def _one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l0gc.storage.access, "ATTEMPTS", 1)
    monkeypatch.setattr(l0gc.storage.s3, "ATTEMPTS", 1)


def test_without_credentials_the_way_to_give_them_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    for call in calls(S3Store(CONFIG)):
        with pytest.raises(AccessDeniedError, match=r"no credentials for s3://.*AWS_ACCESS_KEY_ID"):
            call()


@pytest.mark.usefixtures("_one_attempt")
def test_an_endpoint_where_nobody_listens_is_named() -> None:
    store = S3Store(StoreConfig.from_url("s3://b", endpoint_url="http://127.0.0.1:1"))
    for call in calls(store):
        with pytest.raises(StoreUnreachableError, match=r"http://127\.0\.0\.1:1 does not accept connections") as e:
            call()
        assert_no_secrets(e.value)


@pytest.mark.parametrize(
    ("status", "code"), [(500, "InternalError"), (503, "SlowDown"), (409, "ConditionalRequestConflict")]
)
def test_a_conditional_write_is_sent_once_and_its_failure_is_ambiguous(status: int, code: str) -> None:
    """Hazard 8: a hidden retry could meet its own first try, and take it for another writer's entry."""
    with Scripted(status, code) as server:
        with pytest.raises(AmbiguousWriteError, match=f"{status} {code}"):
            server.store.put_if_absent("k", b"x")
        with pytest.raises(AmbiguousWriteError):
            server.store.put_if_match("k", b"x", '"e"')
        assert server.requests == ["PUT", "PUT"]


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (507, "InsufficientStorage", StoreError),
        (507, "XMinioStorageFull", StoreError),
        (403, "QuotaExceeded", StoreError),
        (403, "AccessDenied", AccessDeniedError),
        (400, "EntityTooLarge", RequestRefusedError),
        (501, "NotImplemented", StoreError),
    ],
)
def test_a_conditional_write_that_is_refused_for_good_is_not_ambiguous(
    status: int, code: str, error: type[StoreError]
) -> None:
    with Scripted(status, code) as server:
        with pytest.raises(error, match=code) as created:
            server.store.put_if_absent("k", b"x")
        with pytest.raises(error, match=code) as replaced:
            server.store.put_if_match("k", b"x", '"e"')
        assert {type(created.value), type(replaced.value)} == {error}
        assert server.requests == ["PUT", "PUT"]


def test_a_full_store_is_named_with_the_way_out() -> None:
    with Scripted(507, "InsufficientStorage") as server, pytest.raises(StoreError) as e:
        server.store.put("k", b"x")
    assert str(e.value) == (
        "the store is full (507 InsufficientStorage) and does not take s3://bucket/p/k; add space, or delete what may go: "
        "l0gc sweep --record-dir DIR"
    )


def test_a_conditional_write_whose_connection_is_cut_is_ambiguous_and_sent_once() -> None:
    with Scripted(200, "", cut=True) as server:
        with pytest.raises(AmbiguousWriteError, match=r"writing s3://bucket/p/k"):
            server.store.put_if_absent("k", b"x")
        assert server.requests == ["PUT"]


def test_other_writes_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l0gc.storage.access, "ATTEMPTS", 2)
    monkeypatch.setattr(l0gc.storage.s3, "ATTEMPTS", 2)
    with Scripted(500, "InternalError") as server:
        with pytest.raises(StoreError, match="500 InternalError"):
            server.store.put("k", b"x")
        assert server.requests == ["PUT", "PUT"]


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (403, "AccessDenied"),
        (403, "InvalidAccessKeyId"),
        (403, "SignatureDoesNotMatch"),
        (400, "ExpiredToken"),
        (400, "InvalidToken"),
        (401, "Unauthorized"),
    ],
)
@pytest.mark.usefixtures("_one_attempt")
def test_refused_credentials_are_distinguished_from_other_errors_and_not_shown(status: int, code: str) -> None:
    with Scripted(status, code, message=f"<AWSAccessKeyId>{ACCESS_KEY}</AWSAccessKeyId>{SECRET_KEY}{TOKEN}") as server:
        for call in calls(server.store)[1:8]:
            with pytest.raises(AccessDeniedError, match=code) as e:
                call()
            assert_no_secrets(e.value)


@pytest.mark.usefixtures("_one_attempt")
def test_a_scan_that_is_refused_names_the_cause() -> None:
    with Scripted(403, "AccessDenied") as server, pytest.raises(AccessDeniedError, match="check the credentials"):
        list(server.store.scan("d/"))


@pytest.mark.usefixtures("_one_attempt")
@pytest.mark.parametrize(("status", "code"), [(503, "SlowDown"), (503, "ServiceUnavailable"), (429, "TooManyRequests")])
def test_a_store_that_asks_to_slow_down_is_understood(status: int, code: str) -> None:
    with Scripted(status, code) as server:
        for call in (server.store.now_ms, lambda: server.store.get("k"), lambda: server.store.delete(["k"])):
            with pytest.raises(ThrottledError, match="slow down"):
                call()


@pytest.mark.usefixtures("_one_attempt")
def test_an_unknown_error_names_the_object_the_status_and_the_code() -> None:
    with Scripted(400, "Odd") as server, pytest.raises(StoreError, match=r"^s3://bucket/p/k: 400 Odd said the server$"):
        server.store.get("k")


@pytest.mark.usefixtures("_one_attempt")
@pytest.mark.parametrize(
    ("status", "code", "fields", "error", "says"),
    [
        (400, "ExpiredToken", "", AccessDeniedError, "the credentials for s3://bucket/p/ have expired"),
        (403, "RequestTimeTooSkewed", "", AccessDeniedError, "the clock of this machine"),
        (400, "AuthorizationHeaderMalformed", "<Region>eu-west-1</Region>", StoreError, "is in region eu-west-1"),
        (301, "PermanentRedirect", "", StoreError, "in another region or on another server"),
        (400, "Odd", "", StoreError, "400 Odd said the server"),
    ],
)
def test_a_head_whose_answer_has_no_body_is_asked_for_again(
    status: int, code: str, fields: str, error: type[StoreError], says: str
) -> None:
    with Scripted(status, code, fields=fields) as server:
        with pytest.raises(error, match=says):
            server.store.now_ms()
        assert "GET" in server.requests


@pytest.mark.usefixtures("_one_attempt")
@pytest.mark.parametrize("status", REDIRECTS)
def test_a_redirect_without_a_region_ends(status: int) -> None:
    """Without l0gc's rule, boto3 sends a HeadBucket to learn the region, is redirected, and sends another one."""
    with Scripted(status, "Redirect") as server:
        for call in calls(server.store):
            with pytest.raises(StoreError, match=rf"'bucket' is in another region or on another server \({status} "):
                call()
        assert len(server.requests) < 60
