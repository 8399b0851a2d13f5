"""What a successful answer to each operation must be; anything else is not S3's answer, whatever its status (hazard 41).

A proxy, a login page or an overloaded server may answer 200 with nothing, with a page of HTML, with packed or cut XML, or
with another document. A parser that takes what it finds reads these as an empty listing, or as a completed delete. So each
answer is checked against one table, `NEEDS`: a document has its own root element, which is closed, an answer without a
document is empty, and the headers and elements that l0gc needs are there and can be read. A bulk delete names each key as
deleted or failed. A header that nothing needs cannot fail an answer, since only those of the table are parsed. An answer
that is none of this becomes one with the code `NOT_S3`, which a row of `refusals.py` explains, and is asked for again.

A date without a zone is in GMT, as HTTP requires, never in this machine's zone. A date in a form that is neither HTTP's nor
ISO's is refused, since a guess could make an object old.
"""

from __future__ import annotations

import email.utils
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import msgspec

from l0gc.redaction import without_secrets
from l0gc.storage.objectstore import DeleteFailure, VersionedKey, VersionsDeleted
from l0gc.storage.refusals import NOT_S3

DOCUMENT: Final = "Document"
"""The field of botocore's answer to DeleteObjects that holds the document itself."""
DELETE_BODY: Final = ContextVar[bytes]("DELETE_BODY")
"""The body of the DeleteObjects request that this thread is about to send, instead of the one that botocore wrote."""
_SHOWN: Final = 60
"""How many of an answer's first bytes a message shows."""
_HEAD: Final = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*\?>\s*)?(?:<!--.*?-->\s*)*<(?:\w+:)?(\w+)[\s/>]", re.DOTALL
)
_BY_THEIR_BODY: Final = (404, 500)
"""A proxy's 404 does not show that an object is missing, nor its 500 that the store failed."""
_WHITE: Final = {"\r": "&#13;", "\n": "&#10;", "\t": "&#9;"}
"""What a parser would otherwise read as another character."""
_SPECIAL: Final = "&<>\r\n\t"
_DELETED: Final = re.compile(rb"<Deleted>\s*<Key>([^<&]*)</Key>\s*</Deleted>")
_UNXML: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_SIZE: Final = re.compile(r"[0-9]{1,18}")
_ETAG: Final = re.compile(r'(?:W/)?"[^"]+"|[^",\s]+')
_RANGE: Final = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/")
_EPOCH: Final = re.compile(r"[0-9]{9,11}")
_HTTP_DATE: Final = re.compile(
    r"(?:[A-Za-z]{3,9},? )?(?:\d\d?[ -][A-Za-z]{3}[ -]\d{2,4}|[A-Za-z]{3} [ \d]\d) \d\d:\d\d:\d\d(?: \d{4})?"
    r"(?: (?:GMT|UTC|[+-]\d{4}))?"
)
"""RFC 1123's form, RFC 850's and asctime's."""
_EMPTY_ROOT: Final = re.compile(rb"<[^<>]*/>")


class Needs(msgspec.Struct, frozen=True):
    """What an answer must have.

    Attributes:
        root: the root element of its document; empty if it has none.
        headers: these, each of which `_READ` can read.
        elements: by the list that they are in (empty: the document itself), these.
        streams: its body is an object's, which has its own checksums.
        other_root: what some stores call the root.
    """

    root: str = ""
    headers: Collection[str] = ()
    elements: Mapping[str, Collection[str]] = msgspec.field(default_factory=dict)
    streams: bool = False
    other_root: str = ""


NEEDS: Final = {
    "AbortMultipartUpload": Needs(),
    "CompleteMultipartUpload": Needs("CompleteMultipartUploadResult"),
    "CreateMultipartUpload": Needs("InitiateMultipartUploadResult", elements={"": ("UploadId",)}),
    "DeleteObject": Needs(),
    "DeleteObjects": Needs("DeleteResult"),
    "GetBucketLifecycleConfiguration": Needs("LifecycleConfiguration"),
    "GetBucketVersioning": Needs("VersioningConfiguration", other_root="GetBucketVersioningResponse"),  # moto's
    "GetObject": Needs(headers=("date", "etag", "last-modified"), streams=True),
    "GetObjectLockConfiguration": Needs("ObjectLockConfiguration"),
    "HeadBucket": Needs(headers=("date",)),
    "HeadObject": Needs(headers=("content-length", "date", "etag", "last-modified")),
    "ListMultipartUploads": Needs("ListMultipartUploadsResult", elements={"Uploads": ("Key", "UploadId")}),
    "ListObjectVersions": Needs(
        "ListVersionsResult",
        elements={
            "Versions": ("Key", "VersionId", "IsLatest", "LastModified"),
            "DeleteMarkers": ("Key", "VersionId", "IsLatest", "LastModified"),
        },
    ),
    "ListObjectsV2": Needs(
        "ListBucketResult", headers=("date",), elements={"Contents": ("Key", "Size", "LastModified")}
    ),
    "PutObject": Needs(headers=("date", "etag")),
    "UploadPart": Needs(headers=("etag",)),
}
"""Each operation whose answer is used. l0gc's own bucket is created by hand or by `init`."""
_IF_THERE: Final = (
    "content-encoding",
    "content-length",
    "content-range",
    "content-type",
    "transfer-encoding",
    "x-amz-bucket-region",
    "x-amz-checksum-crc32",  # a part's, which the request that completes the upload must repeat
    "x-amz-delete-marker",
    "x-amz-request-id",
    "x-amz-version-id",
)
"""Headers that are read if an answer has them."""


def check_answer(
    operation_model: Any, response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any
) -> None:
    """Turn an answer that is not S3's into an error of code `NOT_S3` (botocore calls this before it parses)."""
    status, body = response_dict["status_code"], response_dict["body"]
    if status < 300 and NEEDS[operation_model.name].root and _head(body, "Error") and not document_fault(body, "Error"):
        response_dict["status_code"] = 500  # S3 may find an error after it has begun to answer
        return
    if status < 300:
        needs = NEEDS[operation_model.name]
        response_dict["headers"] = _read_headers(needs, response_dict["headers"])
        fault = _fault(needs, response_dict)
    elif status in _BY_THEIR_BODY and body.strip():
        fault = document_fault(body, "Error")
    else:
        return
    if fault:
        response_dict["status_code"] = 502
        response_dict["body"] = (
            f"<Error><Code>{NOT_S3}</Code><Message>{escape(_UNXML.sub('?', fault))}</Message></Error>".encode()
        )
    elif status < 300 and operation_model.name == "DeleteObjects":  # botocore takes ten times as long for it
        customized_response_dict[DOCUMENT], response_dict["body"] = body, b"<DeleteResult/>"


def _fault(needs: Needs, answer: Mapping[str, Any]) -> str:
    """Return the fault in a successful answer; empty without one."""
    headers, body = answer["headers"], answer["body"]
    if needs.streams:
        packed = headers.get("content-encoding", "").lower() not in {"", "identity", "aws-chunked"}
        if packed or headers.get("content-type", "").lower().startswith("text/html"):
            form = f"packed ({headers['content-encoding']})" if packed else "a page of HTML"
            return f"it is {form} and begins with {_first(body.read(_SHOWN))}"
    elif needs.root:
        other = needs.other_root and not document_fault(body, needs.other_root)
        if not other and (fault := document_fault(body, needs.root)):
            return fault
    elif body.strip():
        return f"it should be empty and begins with {_first(body)}"
    for name in (*needs.headers, "content-length"):
        if not (value := headers.get(name)):
            if name in needs.headers:
                return f"it has no header {name}"
        elif not _is_readable(name, value):
            return f"its header {name} is {_first(value.encode(errors='replace'))}"
    return ""


def _read_headers(needs: Needs, headers: Any) -> Any:
    """Return the headers that are used. A header that a proxy repeats with the same value counts once."""
    taken = {}
    for name in {*needs.headers, *_IF_THERE}:
        if value := (headers.get(name) or "").strip():
            one = len(value) // 2 - 1
            repeated = value == f"{value[:one]}, {value[:one]}" and name != "content-length"  # which ends the body
            taken[name] = value[:one] if repeated else value
    return type(headers)(taken)


def _is_readable(name: str, value: str) -> bool:
    """Return whether the value of a header is one that can be read."""
    if name in {"date", "last-modified"}:
        try:
            parse_time(value)
        except ValueError:
            return False
        return True
    return bool((_SIZE if name == "content-length" else _ETAG).fullmatch(value))


def parse_time(text: str) -> datetime:
    """Return a timestamp in one of the forms of HTTP, of ISO 8601, or in seconds since 1970; without a zone it is in UTC.

    Raises:
        ValueError: it is not a timestamp.
    """
    if _HTTP_DATE.fullmatch(text):
        time = email.utils.parsedate_to_datetime(text)
    elif _EPOCH.fullmatch(text):
        return datetime.fromtimestamp(int(text), UTC)
    else:
        time = datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def promised_size(answer: Any, of_whole: Callable[[], int]) -> int | None:
    """Return how many bytes a body must have that ends where its connection does, so that the client cannot notice a cut;
    None for any other body. `of_whole` asks for the object's size.
    """
    headers = answer["ResponseMetadata"]["HTTPHeaders"]
    if "ContentLength" in answer or "chunked" in headers.get("transfer-encoding", "").lower():
        return None
    part = _RANGE.match(headers.get("content-range", ""))
    return int(part[2]) - int(part[1]) + 1 if part else of_whole()


def create_parser(others: Callable[[str], Any], protocol: str) -> Any:
    """Return the parser of a protocol: `others`' one, or for S3's the one that checks what it reads."""
    return _checking_parser()(timestamp_parser=parse_time) if protocol == "rest-xml" else others(protocol)


@cache
def _checking_parser() -> type[Any]:
    from botocore.parsers import ResponseParserError, RestXMLParser

    class CheckingParser(RestXMLParser):
        """Turns an answer that it cannot read, or that lacks an element, into an error."""

        def parse(self, response: Mapping[str, Any], shape: Any) -> Any:
            status = response["status_code"]
            try:
                answer = super().parse(response, shape)
                fault = _missing_element(shape.name, answer) if status < 300 and shape is not None else ""
                if not fault:
                    return answer
            except (ResponseParserError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as e:
                fault = f"it cannot be read: {without_secrets(str(e))}"
            error, metadata = {"Code": NOT_S3, "Message": fault}, {"HTTPStatusCode": 502}
            if status >= 300:  # the status explains an error whose document cannot be read
                error, metadata = {"Code": str(status), "Message": ""}, {"HTTPStatusCode": status}
            headers = {name.lower(): value for name, value in response["headers"].items()}
            return {"Error": error, "ResponseMetadata": {**metadata, "HTTPHeaders": headers}}

        def _parse_shape(self, shape: Any, node: Any) -> Any:
            if isinstance(node, list) and shape.type_name not in {"list", "map"}:
                raise ResponseParserError(f"it has {len(node)} elements for one {shape.name}")
            return super()._parse_shape(shape, node)  # type: ignore[misc]

    return CheckingParser


def _missing_element(shape: str, answer: Mapping[str, Any]) -> str:
    needs = NEEDS.get(shape.removesuffix("Output"), Needs())
    for within, names in needs.elements.items():
        for row in answer.get(within, ()) if within else (answer,):
            if missing := [name for name in names if name not in row]:
                return f"an element {missing[0]} is missing" + (f" in its {within}" if within else "")
    return ""


def document_fault(body: bytes, root: str) -> str:
    """Return how a body differs from a whole document with this root element; empty if it does not."""
    if not body.strip():
        return "it is empty"
    head = _head(body, root)
    if head is None:
        return f"it begins with {_first(body)}"
    end = body.rstrip()
    if end.endswith(f"{root}>".encode()) and b"</" in end[-len(root) - 20 :]:
        return ""
    return "" if _EMPTY_ROOT.fullmatch(end, head.start(1) - 1) else f"it ends before </{root}>"


def _head(body: bytes, root: str) -> re.Match[bytes] | None:
    """Return the beginning of a document up to its root element, if it is this one."""
    head = _HEAD.match(body)
    return head if head is not None and head[1] == root.encode() else None


def _first(body: bytes) -> str:
    return without_secrets(repr(bytes(body[:_SHOWN]))[1:])


# -- bulk deletes ---------------------------------------------------------------------------------------------------------


def request_body(objects: Sequence[VersionedKey], prefix: str) -> bytes:
    """Return the body of a DeleteObjects request; botocore takes ten times as long to write it."""
    keys = [prefix + o.key for o in objects]
    joined = "".join(keys)
    if any(c in joined for c in _SPECIAL):  # in a fiftieth of the time that a pattern takes
        keys = [escape(key, _WHITE) for key in keys]
    rows = [
        f"<Object><Key>{key}</Key><VersionId>{escape(o.version_id)}</VersionId></Object>"
        if o.version_id
        else f"<Object><Key>{key}</Key></Object>"
        for key, o in zip(keys, objects, strict=True)
    ]
    return f'<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{"".join(rows)}</Delete>'.encode()


def read_deleted(body: bytes, objects: Sequence[VersionedKey], prefix: str) -> VersionsDeleted:
    """Return what an answer to `request_body` reports for each object. An object that it does not name is a failure."""
    usual = "".join([f"<Deleted><Key>{prefix}{o.key}</Key></Deleted>" for o in objects]).encode()
    if usual in body and b"Error" not in body:
        return VersionsDeleted()  # in the order of the request, as most stores answer
    if {*_DELETED.findall(body)} == {(prefix + o.key).encode() for o in objects} and b"Error" not in body:
        return VersionsDeleted()  # in another order, in a fifth of the time that parsing takes
    plain = {o.key for o in objects if not o.version_id}  # the answer also names the marker of a deleted version
    done, named = VersionsDeleted(), set[tuple[str, str]]()
    for element in ElementTree.fromstring(body):  # noqa: S314 (as botocore parses it)
        fields = {child.tag.rpartition("}")[2]: child.text or "" for child in element}
        key, version = fields.get("Key", "").removeprefix(prefix), fields.get("VersionId", "")
        named.add((key, version))
        if key in plain:
            named.add((key, ""))
        if element.tag.endswith("Error"):
            message = without_secrets(fields.get("Message", ""))
            # a store may call the object as it is `null`
            done.failures.append(DeleteFailure(key, fields.get("Code", ""), message, "" if key in plain else version))
        elif key in plain and fields.get("DeleteMarker") == "true" and "DeleteMarkerVersionId" in fields:
            done.markers[key] = fields["DeleteMarkerVersionId"]
    for o in objects:
        if (o.key, o.version_id) not in named and (o.key, "") not in named:
            done.failures.append(DeleteFailure(o.key, NOT_S3, "the store's answer does not name it", o.version_id))
    return done
