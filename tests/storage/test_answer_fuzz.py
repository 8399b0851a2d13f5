"""Answers with missing, doubled and malformed headers and elements, to each operation and both clients.

Each answer is a valid one with one change. It must give the right result or one of l0gc's errors: the right result if
the changed header means the same or is not needed, and an error if a needed header is malformed.
"""

from __future__ import annotations

import random
import re
import socketserver
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

import l0gc.storage.access
import l0gc.storage.bulk
import l0gc.storage.s3
from l0gc.errors import L0gcError, StoreError
from l0gc.storage.answers import NEEDS
from l0gc.storage.bucket import lifecycle, object_lock
from l0gc.storage.config import StoreConfig
from l0gc.storage.objectstore import UnfinishedUpload, VersionedKey
from l0gc.storage.s3 import S3Store
from tests.support.loopback import Serving

pytestmark = pytest.mark.usefixtures("credentials")

DATE, MODIFIED = "Sat, 28 Nov 2026 10:00:00 GMT", "Thu, 26 Nov 2026 10:00:00 GMT"
SAME: Final = {
    "date": ["Sat Nov 28 10:00:00 2026", "Saturday, 28-Nov-26 10:00:00 GMT", "2026-11-28T10:00:00Z",
             "Sat, 28 Nov 2026 15:00:00 +0500", "Sat, 28 Nov 2026 10:00:00", f"{DATE}, {DATE}"],
    "last-modified": ["Thu Nov 26 10:00:00 2026", "2026-11-26T10:00:00.000Z", f"{MODIFIED}, {MODIFIED}"],
    "etag": ['"e", "e"'],
}  # fmt: skip
"""Other forms of the same values."""
MALFORMED: Final = {
    "date": ["", "now", "12", "Sat, 28 Nov 2026 10:00:00 CET", "Sat, 41 Nov 2026 10:00:00 GMT", f"{DATE}, {MODIFIED}"],
    "last-modified": ["", "yesterday", "10:00", f"{MODIFIED}, {DATE}"],
    "etag": ["", '"e', '"e", "f"', '""'],
}
OTHERS: Final = ["x-amz-missing-meta: many", "x-amz-mp-parts-count: -", "x-amz-object-lock-retain-until-date: soon",
                 "Expires: 0", "x-amz-tagging-count: 1, 1", "x-amz-delete-marker: perhaps", "x-amz-storage-class: \xff",
                 "Age: x", "x-amz-bucket-key-enabled: 5"]  # fmt: skip
TEXTS: Final = ["", "abc", "-1", "9" * 30, "&#xfffd;", "<b/>", "2026-11-28", "true", " "]
OPTIONAL: Final = (b"ID", b"Prefix", b"Days", b"Mode", b"Status", b"ObjectLockEnabled", b"Initiated", b"Size")
"""Elements that may be absent, with a different meaning."""
BODY: Final = b"0123456789" * 10
ROWS: Final = (
    "<Contents><Key>p/d/a</Key><LastModified>2026-11-26T10:00:00.000Z</LastModified><ETag>e</ETag><Size>3</Size>"
    "</Contents>"
)
VERSION: Final = (
    "<Version><Key>p/d/a</Key><VersionId>v</VersionId><IsLatest>true</IsLatest><Size>3</Size>"
    "<LastModified>2026-11-26T10:00:00.000Z</LastModified></Version>"
)


@dataclass(frozen=True)
class Operation:
    """An operation, a valid answer to it, and the call that sends it."""

    name: str
    call: Callable[[S3Store], object]
    body: bytes = b""
    status: int = 200
    plain: bool = True
    """True if only boto3 sends it."""
    headers: dict[str, str] = field(default_factory=lambda: {"etag": '"e"', "last-modified": MODIFIED})


def document(root: str, content: str) -> bytes:
    return f'<?xml version="1.0"?><{root} xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{content}</{root}>'.encode()


def asked(operation: str, **fields: Any) -> Callable[[S3Store], object]:
    def call(store: S3Store) -> object:
        answer = store.ask("put", operation, "k", **fields)
        return {name: value for name, value in answer.items() if name in {"UploadId", "ETag", "VersionId"}}

    return call


LISTED: Final = document("ListBucketResult", f"{ROWS}<IsTruncated>false</IsTruncated>")
NOTHING: Final = document("ListBucketResult", "<IsTruncated>false</IsTruncated>")
UPLOAD: Final = {"Key": "p/k", "UploadId": "u"}
OPERATIONS: Final = (
    Operation("HeadBucket", lambda s: s.now_ms()),
    Operation("HeadObject", lambda s: s.head("k")),
    Operation("GetObject", lambda s: s.get("k"), BODY),
    Operation("GetObject", lambda s: s.get("l0gc/format.json"), BODY),
    Operation("GetObject", lambda s: s.get_start("k", 100), BODY, 206),
    Operation("GetObject", lambda s: s.get_ranges("k", [(0, 100)]), BODY, 206, plain=False),
    Operation("GetObject", lambda s: s.get_ranges("k", [(0, 100)]), BODY, 206),
    Operation("PutObject", lambda s: s.put("k", b"x")),
    Operation("PutObject", lambda s: s.put_if_absent("k", b"x")),
    Operation("PutObject", lambda s: s.put_if_match("k", b"x", '"e"')),
    Operation("PutObject", lambda s: s.put_bulk("k", b"x"), plain=False),
    Operation("CreateMultipartUpload", asked("create_multipart_upload", Key="p/k"),
              document("InitiateMultipartUploadResult", "<Key>p/k</Key><UploadId>u</UploadId>")),
    Operation("UploadPart", asked("upload_part", PartNumber=1, Body=b"x", **UPLOAD)),
    Operation("CompleteMultipartUpload", asked("complete_multipart_upload", **UPLOAD),
              document("CompleteMultipartUploadResult", "<Key>p/k</Key>")),
    Operation("AbortMultipartUpload", lambda s: s.abort(UnfinishedUpload("k", "u", 0)), status=204),
    Operation("DeleteObject", asked("delete_object", Key="p/k"), status=204),
    Operation("DeleteObjects", lambda s: s.delete(["k"]),
              document("DeleteResult", "<Deleted><Key>p/k</Key></Deleted>")),
    Operation("DeleteObjects", lambda s: s.delete_versions([VersionedKey("k")]),
              document("DeleteResult", "<Deleted><Key>p/k</Key><DeleteMarker>true</DeleteMarker>"
                       "<DeleteMarkerVersionId>m</DeleteMarkerVersionId></Deleted>")),
    Operation("ListObjectsV2", lambda s: s.list("d/"), LISTED),
    Operation("ListObjectsV2", lambda s: list(s.scan("d/")), LISTED),
    Operation("ListObjectsV2", lambda s: list(s.scan("d/")), LISTED, plain=False),
    Operation("ListObjectVersions", lambda s: list(s.versions("d/")),
              document("ListVersionsResult", f"<IsTruncated>false</IsTruncated>{VERSION}")),
    Operation("ListMultipartUploads", lambda s: list(s.uploads("d/")),
              document("ListMultipartUploadsResult", "<IsTruncated>false</IsTruncated><Upload><Key>p/d/a</Key>"
                       "<UploadId>u</UploadId><Initiated>2026-11-26T10:00:00.000Z</Initiated></Upload>")),
    Operation("GetBucketVersioning", lambda s: s.versioning(),
              document("VersioningConfiguration", "<Status>Enabled</Status>")),
    Operation("GetBucketLifecycleConfiguration", lifecycle,
              document("LifecycleConfiguration", "<Rule><ID>r</ID><Status>Enabled</Status><Filter><Prefix>p</Prefix>"
                       "</Filter><Expiration><Days>3</Days></Expiration></Rule>")),
    Operation("GetObjectLockConfiguration", object_lock,
              document("ObjectLockConfiguration", "<ObjectLockEnabled>Enabled</ObjectLockEnabled>"
                       "<Rule><DefaultRetention><Mode>GOVERNANCE</Mode><Days>3</Days></DefaultRetention></Rule>")),
)  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """The lines and the body of an answer; `frame` is how the body ends: by its length, in chunks, or with the
    connection.
    """

    status: int
    lines: list[str]
    body: bytes
    frame: str = "length"

    def to_bytes(self, *, head: bool) -> bytes:
        lines, body = list(self.lines), self.body
        if self.frame == "length" and self.status != 204:
            lines.append(f"Content-Length: {len(body)}")
        elif self.frame == "chunks":
            lines.append("Transfer-Encoding: chunked")
            at = len(body) // 2
            body = b"".join(b"%x\r\n%s\r\n" % (len(c), c) for c in (body[:at], body[at:]) if c) + b"0\r\n\r\n"
        text = "\r\n".join([f"HTTP/1.1 {self.status} OK", *lines, "Connection: close", "", ""])
        return text.encode("latin-1") + (b"" if head else body)


class Server:
    """A server that gives one answer to every request; `head` replaces it for HEAD requests, if set."""

    def __init__(self) -> None:
        self.answer: Answer | None = None
        self.head: Answer | None = None
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                method, target, _ = self.rfile.readline().split(b" ", 2)
                length = 0
                while line := self.rfile.readline().strip():
                    name, _, value = line.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                self.rfile.read(length)
                answer = outer.head if method == b"HEAD" and outer.head else outer.answer
                assert answer is not None
                if b"start-after" in target:  # confirms a page's end, after its last key
                    answer = Answer(200, [f"Date: {DATE}"], NOTHING)
                self.wfile.write(answer.to_bytes(head=method == b"HEAD"))

        class Threads(socketserver.ThreadingTCPServer):
            allow_reuse_address = daemon_threads = True
            request_queue_size = 64

        self.server = Threads(("127.0.0.1", 0), Handler)
        config = StoreConfig("bucket", "p/", f"http://127.0.0.1:{self.server.server_address[1]}")
        self.both, self.plain = S3Store(config), S3Store(config)
        self.plain.access.without_bulk("a test")

    def result(self, operation: Operation) -> object:
        if not operation.plain:
            vars(self.both.access).pop("bulk", None)  # an earlier error of obstore's may have removed it
        return operation.call(self.plain if operation.plain else self.both)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    s = Server()
    with Serving(s.server):
        yield s


@pytest.fixture(autouse=True)
def _once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (l0gc.storage.access, l0gc.storage.bulk, l0gc.storage.s3):
        monkeypatch.setattr(module, "ATTEMPTS", 1)


def right(operation: Operation) -> Answer:
    lines = [f"Date: {DATE}", *(f"{name}: {value}" for name, value in operation.headers.items())]
    if operation.status == 206:
        lines.append(f"Content-Range: bytes 0-{len(BODY) - 1}/1000")
    return Answer(operation.status, lines, operation.body)


def changed(operation: Operation, chance: random.Random) -> tuple[Answer, str]:
    """Return a valid answer with one change, and the expected outcome: `right`, `error`, `either` of them, or `any`
    value.
    """
    answer = right(operation)
    kinds = ["drop", "same", "malformed", "other", "frame"]
    kind = chance.choice([*kinds, "element", "element"] if operation.body.startswith(b"<") else kinds)
    name = chance.choice(["date", "last-modified", "etag"])
    needed = name in NEEDS[operation.name].headers and operation.plain
    without = [line for line in answer.lines if not line.lower().startswith(f"{name}:")]
    if kind == "drop":
        return Answer(
            answer.status, without, answer.body
        ), "error" if needed else "either" if not operation.plain else "right"
    if kind == "same":
        return Answer(answer.status, [*without, f"{name}: {chance.choice(SAME[name])}"], answer.body), (
            "right" if operation.plain else "either"
        )
    if kind == "malformed":
        line = f"{name}: {chance.choice(MALFORMED[name])}"
        return Answer(answer.status, [*without, line], answer.body), (
            "error" if needed else "either" if not operation.plain else "right"
        )
    if kind == "other":
        return Answer(answer.status, [*answer.lines, chance.choice(OTHERS)], answer.body), "right"
    if kind == "frame":
        frame = chance.choice(["chunks", "close"]) if operation.body else "length"
        return Answer(answer.status, answer.lines, answer.body, frame), "right"
    leaves = [*re.finditer(rb"<(\w+)>[^<]*</\1>", answer.body)]
    leaf = chance.choice(leaves)
    how = chance.choice(["drop", "double", "text"])
    text = b"<%s>%s</%s>" % (leaf[1], chance.choice(TEXTS).encode(), leaf[1])
    new = {"drop": b"", "double": leaf[0] * 2, "text": text}[how]
    body = answer.body[: leaf.start()] + new + answer.body[leaf.end() :]
    may_differ = how == "text" or operation.name == "DeleteObjects" or (how == "drop" and leaf[1] in OPTIONAL)
    return Answer(answer.status, answer.lines, body), "any" if may_differ else "either"


def compare(server: Server, seed: int) -> None:
    chance = random.Random(seed)
    operation = chance.choice(OPERATIONS)
    server.head = Answer(200, right(operation).lines, BODY)
    server.answer = right(operation)
    expected = server.result(operation)
    server.answer, rule = changed(operation, chance)
    if operation.name in {"HeadObject", "HeadBucket"}:
        server.head = Answer(200, server.answer.lines, BODY, server.answer.frame)
    try:
        result = server.result(operation)
    except L0gcError as error:
        result = error
    told = (seed, operation.name, server.answer, result)
    if isinstance(result, L0gcError):
        assert rule != "right", told
        assert "\n" not in str(result), told
    else:
        assert rule != "error", told
        assert rule == "any" or result == expected, told


def test_a_changed_answer_gives_the_right_result_or_an_error(server: Server) -> None:
    for seed in range(250):
        compare(server, seed)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(250, 1_400), pytest.param(range(1_400, 10_000), marks=pytest.mark.release)])
def test_thousands_of_changed_answers_give_the_right_result_or_an_error(server: Server, seeds: range) -> None:
    for seed in seeds:
        compare(server, seed)


def test_a_cut_body_without_a_length_is_not_taken_for_whole(server: Server) -> None:
    lines = right(OPERATIONS[2]).lines
    server.head = Answer(200, lines, BODY)
    for key in ("k", "l0gc/format.json"):
        server.answer = Answer(200, lines, BODY, "close")
        assert server.plain.get(key).body == BODY
        server.answer = Answer(200, lines, BODY[:50], "close")
        with pytest.raises(StoreError, match="50"):
            server.plain.get(key)
