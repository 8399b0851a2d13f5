"""Define the form of a successful answer to each operation; any other answer is not S3's, whatever its status (hazard
41).

A proxy, a login page or an overloaded server may answer 200 with nothing, with a page of HTML, with packed or cut XML,
or with another document. A lenient parser reads these as an empty listing, or as a completed delete. Therefore each
answer is checked against one table, `NEEDS`: a document has the operation's root element, which is closed, an answer
without a document is empty, and the headers and elements that l0gc needs exist and can be read. The answer to a bulk
delete names each key as deleted or failed. A header that is not needed cannot make an answer fail, since only headers
of the table are parsed. Any other answer is replaced by one with the code `NOT_S3`, which a row of `refusals.py`
explains, and the request is repeated.

A date without a time zone is in GMT, as HTTP requires, never in this machine's zone. A date in a form other than HTTP's
and ISO's is refused, since a wrong guess could make an object appear old.
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
"""The field of botocore's answer to DeleteObjects that contains the raw document."""
DELETE_BODY: Final = ContextVar[bytes]("DELETE_BODY")
"""The body of the DeleteObjects request that this thread is about to send; it replaces the body that botocore wrote."""
_SHOWN: Final = 60
"""How many of the first bytes of an answer a message shows."""
_HEAD: Final = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*\?>\s*)?(?:<!--.*?-->\s*)*<(?:\w+:)?(\w+)[\s/>]", re.DOTALL
)
_BY_THEIR_BODY: Final = (404, 500)
"""The statuses that count only if the body is S3's: a proxy's 404 does not show that an object is missing, and its 500
does not show that the store failed.
"""
_WHITE: Final = {"\r": "&#13;", "\n": "&#10;", "\t": "&#9;"}
"""Characters that must be escaped, since a parser would read them as other characters."""
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
"""The forms of RFC 1123, RFC 850 and asctime."""
_EMPTY_ROOT: Final = re.compile(rb"<[^<>]*/>")


class Needs(msgspec.Struct, frozen=True):
    """The requirements of an answer.

    Attributes:
        root: the root element of the document; empty if the answer has no document.
        headers: the headers that must exist, and that `_is_readable` accepts.
        elements: the elements that must exist, by the list that contains them; empty for the document itself.
        streams: whether the body is that of an object, which has its own checksums.
        other_root: the name that some stores give the root.
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
"""The requirements of each operation whose answer is used."""
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
"""Optional headers that are read if an answer has them."""


def check_answer(
    operation_model: Any, response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any
) -> None:
    """Turn an answer that is not S3's into an error of code `NOT_S3` (botocore calls this before it parses)."""
    status, body = response_dict["status_code"], response_dict["body"]
    if status < 300 and NEEDS[operation_model.name].root and _head(body, "Error") and not document_fault(body, "Error"):
        response_dict["status_code"] = 500  # S3 may detect an error after it has begun to answer
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
    elif status < 300 and operation_model.name == "DeleteObjects":  # botocore would take ten times as long
        customized_response_dict[DOCUMENT], response_dict["body"] = body, b"<DeleteResult/>"


def _fault(needs: Needs, answer: Mapping[str, Any]) -> str:
    """Return the fault in a successful answer; empty if it has none."""
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
            repeated = value == f"{value[:one]}, {value[:one]}" and name != "content-length"  # it ends the body
            taken[name] = value[:one] if repeated else value
    return type(headers)(taken)


def _is_readable(name: str, value: str) -> bool:
    """Return whether the value of a header can be read."""
    if name in {"date", "last-modified"}:
        try:
            parse_time(value)
        except ValueError:
            return False
        return True
    return bool((_SIZE if name == "content-length" else _ETAG).fullmatch(value))


def parse_time(text: str) -> datetime:
    """Parse a timestamp in a form of HTTP or ISO 8601, or in seconds since 1970. A timestamp without a time zone is in
    UTC.

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
    """Return how many bytes a body must have if only the end of the connection marks its end, so that the client cannot
    detect a cut; None for any other body. `of_whole` requests the object's size.
    """
    headers = answer["ResponseMetadata"]["HTTPHeaders"]
    if "ContentLength" in answer or "chunked" in headers.get("transfer-encoding", "").lower():
        return None
    part = _RANGE.match(headers.get("content-range", ""))
    return int(part[2]) - int(part[1]) + 1 if part else of_whole()


def create_parser(others: Callable[[str], Any], protocol: str) -> Any:
    """Return the parser of a protocol: a checking parser for S3's protocol, and the result of `others` for any other."""
    return _checking_parser()(timestamp_parser=parse_time) if protocol == "rest-xml" else others(protocol)


@cache
def _checking_parser() -> type[Any]:
    from botocore.parsers import ResponseParserError, RestXMLParser

    class CheckingParser(RestXMLParser):
        """Turns an unreadable or incomplete answer into an error."""

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
    """Return how a body differs from a complete document with this root element; empty if it does not differ."""
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
    """Return the beginning of a document up to its root element, if that is `root`."""
    head = _HEAD.match(body)
    return head if head is not None and head[1] == root.encode() else None


def _first(body: bytes) -> str:
    return without_secrets(repr(bytes(body[:_SHOWN]))[1:])


# -- bulk deletes ---------------------------------------------------------------------------------------------------------


def request_body(objects: Sequence[VersionedKey], prefix: str) -> bytes:
    """Return the body of a DeleteObjects request; botocore takes ten times as long to write it."""
    keys = [prefix + o.key for o in objects]
    joined = "".join(keys)
    if any(c in joined for c in _SPECIAL):  # takes a fiftieth of the time of a pattern
        keys = [escape(key, _WHITE) for key in keys]
    rows = [
        f"<Object><Key>{key}</Key><VersionId>{escape(o.version_id)}</VersionId></Object>"
        if o.version_id
        else f"<Object><Key>{key}</Key></Object>"
        for key, o in zip(keys, objects, strict=True)
    ]
    return f'<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{"".join(rows)}</Delete>'.encode()


def read_deleted(body: bytes, objects: Sequence[VersionedKey], prefix: str) -> VersionsDeleted:
    """Return the result that an answer to `request_body` reports for each object. An object that the answer does not
    name counts as a failure.
    """
    usual = "".join([f"<Deleted><Key>{prefix}{o.key}</Key></Deleted>" for o in objects]).encode()
    if usual in body and b"Error" not in body:
        return VersionsDeleted()  # in the order of the request, as most stores answer
    if {*_DELETED.findall(body)} == {(prefix + o.key).encode() for o in objects} and b"Error" not in body:
        return VersionsDeleted()  # in a different order; this takes a fifth of the time of parsing
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
            # a store may give the current object the version `null`
            done.failures.append(DeleteFailure(key, fields.get("Code", ""), message, "" if key in plain else version))
        elif key in plain and fields.get("DeleteMarker") == "true" and "DeleteMarkerVersionId" in fields:
            done.markers[key] = fields["DeleteMarkerVersionId"]
    for o in objects:
        if (o.key, o.version_id) not in named and (o.key, "") not in named:
            done.failures.append(DeleteFailure(o.key, NOT_S3, "the store's answer does not name it", o.version_id))
    return done
