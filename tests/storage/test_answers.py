"""Answers that are not the requested document, to each operation and both clients (hazard 41)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

import l0gc.storage.access
import l0gc.storage.bulk
import l0gc.storage.refusals
from l0gc.errors import AmbiguousWriteError, L0gcError, ObjectNotFoundError, StoreError
from l0gc.storage.answers import read_deleted, request_body
from l0gc.storage.config import StoreConfig
from l0gc.storage.objectstore import DeleteFailure, UnfinishedUpload, VersionedKey
from l0gc.storage.refusals import NOT_S3, ROWS
from l0gc.storage.s3 import S3Store
from tests.support.loopback import Serving
from tests.support.scripted_s3 import SECRET_KEY
from tests.support.tries import sampled

pytestmark = pytest.mark.usefixtures("credentials")

PAGE = "<Contents><Key>p/d/%04d</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><Size>1</Size></Contents>"
LISTING = "<?xml version='1.0'?><ListBucketResult>%s<IsTruncated>%s</IsTruncated>%s</ListBucketResult>"
DAMAGED = {
    "empty": b"",
    "html": b"<html><body><h1>Sign in</h1></body></html>",
    "html 5": b"<!DOCTYPE html><html><head><meta charset='u'></head><body>x<br>y</body></html>",
    "gzip": b"\x1f\x8b\x08\0\0\0\0\0",
    "cut": b"<?xml version='1.0'?><ListBucketResult><Contents><Key>p/d/0001</Key>",
    "another document": b"<ListAllMyBucketsResult><Buckets/></ListAllMyBucketsResult>",
    "text": b"ok",
}
SOME = [DAMAGED["empty"], DAMAGED["html"], DAMAGED["cut"]]


class Answering:
    """A server whose answers a test decides: `answer` maps a request's method and target to a status and a body."""

    def __init__(self, answer: Callable[[str, str], tuple[int, bytes]]) -> None:
        self.requests: list[str] = []
        self.headers = {"ETag": '"e"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def respond(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.requests.append(f"{self.command} {self.path} {self.headers['User-Agent'].split('/')[0]}")
                status, body = answer(self.command, self.path)
                asked = self.headers.get("Range")
                self.send_response(206 if asked and status == 200 else status)
                if asked and status == 200:
                    self.send_header("Content-Range", f"bytes 0-{len(body) - 1}/{len(body)}")
                for name, value in outer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = respond

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.store = S3Store(StoreConfig("bucket", "p/", f"http://127.0.0.1:{self.server.server_port}"))

    def __enter__(self) -> Answering:
        self._serving = Serving(self.server).__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._serving.__exit__(*exc)


@pytest.fixture(autouse=True)
def _few_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (l0gc.storage.access, l0gc.storage.bulk):
        monkeypatch.setattr(module, "ATTEMPTS", 2)
    monkeypatch.setattr(l0gc.storage.refusals, "_SLOWER_S", 0.01)


PARSED: dict[str, Callable[[S3Store], object]] = {
    "list": lambda s: s.list("d/"),
    "list one page": lambda s: s.list("d/", one_page=True),
    "scan": lambda s: list(s.scan("d/")),
    "scan from a key": lambda s: list(s.scan("d/", "d/0001")),
    "versions": lambda s: list(s.versions("d/")),
    "versioning": lambda s: s.versioning(),
    "uploads": lambda s: list(s.uploads("d/")),
    "delete": lambda s: s.delete(["k"]),
    "delete once": lambda s: s.delete_once(["k"]),
    "delete versions": lambda s: s.delete_versions([VersionedKey("k", "v")]),
    "discard": lambda s: s.discard("d/"),
}
EMPTY: dict[str, Callable[[S3Store], object]] = {
    "put": lambda s: s.put("k", b"x"),
    "put in bulk": lambda s: s.put_bulk("k", b"x"),
    "put a file": lambda s: s.put_file("k", Path(__file__)),
    "abort": lambda s: s.abort(UnfinishedUpload("k", "u", 0)),
}
CONDITIONAL: dict[str, Callable[[S3Store], object]] = {
    "create": lambda s: s.put_if_absent("k", b"x"),
    "replace": lambda s: s.put_if_match("k", b"x", '"e"'),
}


@pytest.mark.parametrize("body", sampled(DAMAGED.values(), SOME), ids=DAMAGED)
@pytest.mark.parametrize("call", PARSED.values(), ids=PARSED)
def test_no_other_document_is_parsed(call: Callable[[S3Store], object], body: bytes) -> None:
    with Answering(lambda method, target: (200, body)) as server:
        with pytest.raises(StoreError, match=r"^the store's answer is not S3's: it (is|ends|begins)") as e:
            call(server.store)
        assert "500" not in str(e.value).partition("; see")[0]  # the rest may contain a port with these digits
        assert "restore" not in str(e.value)


@pytest.mark.parametrize(
    "body", sampled([b for b in DAMAGED.values() if b], SOME), ids=[n for n, b in DAMAGED.items() if b]
)
@pytest.mark.parametrize("call", EMPTY.values(), ids=EMPTY)
def test_a_page_in_place_of_nothing_is_no_success(call: Callable[[S3Store], object], body: bytes) -> None:
    with Answering(lambda method, target: (200, body)) as server:
        server.headers = {} if "put" in str(call) else server.headers
        if call is EMPTY["put in bulk"]:
            server.headers.pop("ETag", None)
        with pytest.raises(StoreError, match=r"^the store's answer is not S3's: it (should be empty and )?begins with"):
            call(server.store)


@pytest.mark.parametrize("body", DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize("call", CONDITIONAL.values(), ids=CONDITIONAL)
def test_a_conditional_write_with_a_strange_answer_is_ambiguous_and_sent_once(
    call: Callable[[S3Store], object], body: bytes
) -> None:
    with Answering(lambda method, target: (200, body)) as server:
        del server.headers["ETag"]
        with pytest.raises(AmbiguousWriteError, match="the store's answer is not S3's"):
            call(server.store)
        assert len(server.requests) == 1


def test_a_message_shows_the_first_bytes_without_secrets() -> None:
    with Answering(lambda method, target: (200, f"<html>{SECRET_KEY}</html>".encode())) as server:
        with pytest.raises(StoreError, match="begins with '<html>") as e:
            server.store.list("d/")
        assert SECRET_KEY not in str(e.value)


@pytest.mark.parametrize("kind", [{"Content-Type": "text/html"}, {"Content-Encoding": "gzip"}], ids=str)
def test_a_page_in_place_of_an_object_is_not_its_body(kind: dict[str, str]) -> None:
    with Answering(lambda method, target: (200, b"<html>Sign in</html>")) as server:
        server.headers |= kind
        for call in (lambda: server.store.get("k"), lambda: server.store.get_ranges("k", [(0, 5)])):
            with pytest.raises(
                StoreError, match=r"is not S3's: it is (a page of HTML|packed \(gzip\)) and begins with"
            ):
                call()


@pytest.mark.parametrize("header", ["ETag", "Last-Modified"])
def test_an_answer_without_a_header_that_is_needed_is_refused_by_name(header: str) -> None:
    with Answering(lambda method, target: (200, b"body")) as server:
        del server.headers[header]
        for call in (lambda: server.store.get("k"), lambda: server.store.head("k")):
            with pytest.raises(StoreError, match=f"it has no header {header.lower()}"):
                call()


def test_a_proxys_404_does_not_show_that_an_object_is_missing() -> None:
    page = [b"<html>404 Not Found</html>"]
    with Answering(lambda method, target: (404, page[0])) as server:
        for call in (lambda: server.store.get("k"), lambda: server.store.get_ranges("k", [(0, 5)])):
            with pytest.raises(StoreError, match="is not S3's"):
                call()
            for page[0] in (b"", b"<Error><Code>NoSuchKey</Code></Error>"):
                with pytest.raises(ObjectNotFoundError):
                    call()
            page[0] = b"<html>404 Not Found</html>"


@pytest.mark.parametrize("bad", DAMAGED.values(), ids=DAMAGED)
def test_a_listing_goes_on_after_a_page_that_is_not_s3s(bad: bytes) -> None:
    """obstore takes a page of HTML, or any other document, for an end."""
    answers: list[bytes] = []

    def answer(method: str, target: str) -> tuple[int, bytes]:
        if "continuation-token" in target or "start-after" in target:
            done = LISTING % ("" if "0002" in target else PAGE % 2, "false", "")
            answers.append(bad if not answers else done.encode())
            return 200, answers[-1]
        more = "<NextContinuationToken>t</NextContinuationToken>"
        return 200, (LISTING % (PAGE % 1, "true", more)).encode()

    with Answering(answer) as server:
        assert [k for page in server.store.scan("d/") for k in page.keys] == ["d/0001", "d/0002"]


def test_an_end_of_a_listing_costs_one_more_request() -> None:
    with Answering(lambda method, target: (200, (LISTING % ("", "false", "")).encode())) as server:
        assert list(server.store.scan("d/")) == []
        assert [r.rsplit(" ", 1)[1] for r in server.requests] == ["object_store", "Botocore"]
        assert server.store.requests["list"] == 2


DELETED = "<Deleted><Key>p/%s</Key></Deleted>"


@pytest.mark.parametrize(
    ("named", "left"),
    [("", ["a", "b"]), (DELETED % "a", ["b"]), (DELETED % "z", ["a", "b"]), (DELETED % "a" + DELETED % "b", [])],
)
def test_only_a_key_that_the_answer_names_is_deleted(named: str, left: list[str]) -> None:
    with Answering(lambda method, target: (200, f"<DeleteResult>{named}</DeleteResult>".encode())) as server:
        for delete in (server.store.delete, server.store.delete_once):
            expected = [DeleteFailure(key, NOT_S3, "the store's answer does not name it") for key in left]
            assert delete(["a", "b"]) == expected


def test_keys_are_deleted_in_whatever_order_and_form_they_are_named() -> None:
    keys = [VersionedKey(k) for k in ("a", "b&<>", "c")]
    rows = [DELETED % name for name in ("a", "b&amp;&lt;&gt;", "c")]
    for answer in (rows, rows[::-1], [f"\n  {row}\n" for row in rows]):
        assert read_deleted(f"<DeleteResult>{''.join(answer)}</DeleteResult>".encode(), keys, "p/").failures == []
        left = f"<DeleteResult>{''.join(answer[:2])}</DeleteResult>".encode()
        assert len(read_deleted(left, keys, "p/").failures) == 1


@pytest.mark.parametrize("key", ["a&b", "a<b", "a>b", "a\rb", "a\nb", "a\tb", "plain"])
def test_a_key_with_any_character_is_requested_as_it_is(key: str) -> None:
    (element,) = ElementTree.fromstring(request_body([VersionedKey(key)], "p/"))
    assert [child.text for child in element] == [f"p/{key}"]


def test_a_failure_of_the_current_object_counts_for_any_version() -> None:
    """Otherwise the sweep would not find the failure among its requests. Keys are relative to the prefix."""
    row = "<Error><Key>p/%s</Key><VersionId>%s</VersionId><Code>AccessDenied</Code><Message>no</Message></Error>"
    body = f"<DeleteResult>{row % ('plain', 'null')}{row % ('versioned', 'v1')}</DeleteResult>".encode()
    failures = read_deleted(body, [VersionedKey("plain"), VersionedKey("versioned", "v1")], "p/").failures
    assert failures == [
        DeleteFailure("plain", "AccessDenied", "no"),
        DeleteFailure("versioned", "AccessDenied", "no", "v1"),
    ]


# -- repeated requests: each code and status of each row, on each kind of request ------------------------------------------

READS: dict[str, Callable[[S3Store], object]] = {
    "get": lambda s: s.get("k"),
    "range": lambda s: s.get_ranges("k", [(0, 1)]),
    "list": lambda s: s.list("d/"),
    "scan": lambda s: list(s.scan("d/")),
    "put": lambda s: s.put("k", b"x"),
    "put in bulk": lambda s: s.put_bulk("k", b"x"),
    "delete": lambda s: s.delete(["k"]),
}
AGAIN = [
    *((400, code) for row in ROWS if row.again for code in row.codes if code != NOT_S3),
    *((status, "") for row in ROWS if row.again for status in row.statuses if status < 510),
]


@pytest.fixture(scope="module")
def scripted() -> Iterator[tuple[Answering, list[tuple[int, bytes]]]]:
    script: list[tuple[int, bytes]] = []

    def answer(method: str, target: str) -> tuple[int, bytes]:
        if script:
            return script.pop(0)
        if method == "PUT":
            return 200, b""
        if "list-type" in target:
            return 200, (LISTING % ("", "false", "")).encode()
        if "delete" in target:
            return 200, f"<DeleteResult>{DELETED % 'k'}</DeleteResult>".encode()
        return 200, b"b"

    with Answering(answer) as server:
        yield server, script


@pytest.mark.parametrize("call", READS.values(), ids=READS)
def test_each_code_of_the_table_is_sent_again_by_either_client(
    call: Callable[[S3Store], object], scripted: tuple[Answering, list[tuple[int, bytes]]]
) -> None:
    server, script = scripted
    for status, code in AGAIN:
        script[:] = [(status, f"<Error><Code>{code}</Code></Error>".encode() if code else b"")]
        before = len(server.requests)
        call(server.store)
        sent = [r.rsplit(" ", 1)[1] for r in server.requests[before:]]
        assert len(sent) >= 2, (status, code)
        assert sent[0] == sent[1], (status, code, sent)  # the same client sends it again
        assert server.store.access.obstacle == ""


@pytest.mark.parametrize("call", READS.values(), ids=READS)
def test_a_refusal_by_name_is_not_sent_again(
    call: Callable[[S3Store], object], scripted: tuple[Answering, list[tuple[int, bytes]]]
) -> None:
    server, script = scripted
    script[:] = [(403, b"<Error><Code>AccessDenied</Code></Error>")] * 2
    with pytest.raises(L0gcError, match="AccessDenied"):
        call(server.store)
    assert len(script) in (0, 1)
    script.clear()


def test_both_clients_retry_a_code_added_to_a_row(monkeypatch: pytest.MonkeyPatch) -> None:

    rows = tuple(msgspec.structs.replace(r, codes=[*r.codes, "TooBusy"]) if "SlowDown" in r.codes else r for r in ROWS)
    monkeypatch.setattr(l0gc.storage.refusals, "ROWS", rows)
    for call in READS.values():
        with Answering(lambda method, target: (403, b"<Error><Code>TooBusy</Code></Error>")) as server:
            with pytest.raises(StoreError, match="TooBusy"):
                call(server.store)
            assert len(server.requests) >= 2


def test_threads_delete_their_own_keys() -> None:
    """botocore gets the document of a delete separately from the call's arguments."""
    bodies: list[bytes] = []
    with Answering(lambda method, target: (200, b"<DeleteResult/>")) as server:
        threads = [
            threading.Thread(target=lambda n=n: bodies.append(str(server.store.delete([f"k{n}"])).encode()))
            for n in range(8)
        ]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert sorted({n for n in range(8) for b in bodies if f"'k{n}'".encode() in b}) == [*range(8)]
