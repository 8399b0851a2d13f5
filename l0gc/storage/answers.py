"""What a successful answer to each operation must be; anything else is not S3's answer, whatever its status (hazard 41).

A proxy, a login page or an overloaded server may answer 200 with nothing, with a page of HTML, with packed or cut XML, or
with another document. A parser that takes what it finds reads these as an empty listing, or as a completed delete. So each
answer is checked before it is parsed: a document has its own root element, which is closed, an answer without a document
is empty, and the headers that l0gc needs are there. A bulk delete names each key as deleted or failed. An answer that is
none of this becomes one with the code `NOT_S3`, which a row of `refusals.py` explains, and is asked for again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final
from xml.etree import ElementTree
from xml.sax.saxutils import escape

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
_SPECIAL: Final = re.compile(r"[&<>\r\n\t]")
_DELETED: Final = re.compile(rb"<Deleted>\s*<Key>([^<&]*)</Key>\s*</Deleted>")
_EMPTY_ROOT: Final = re.compile(rb"<[^<>]*/>")


@dataclass(frozen=True, slots=True)
class Needs:
    """What an answer must have: the root element of its document (empty: it has no document), and these headers.

    `streams`: its body is an object's, which has checksums of its own. `other_root`: what some stores call the root.
    """

    root: str = ""
    headers: Collection[str] = ()
    streams: bool = False
    other_root: str = ""


NEEDS: Final = {
    "AbortMultipartUpload": Needs(),
    "CompleteMultipartUpload": Needs("CompleteMultipartUploadResult"),
    "CreateMultipartUpload": Needs("InitiateMultipartUploadResult"),
    "DeleteObject": Needs(),
    "DeleteObjects": Needs("DeleteResult"),
    "GetBucketLifecycleConfiguration": Needs("LifecycleConfiguration"),
    "GetBucketVersioning": Needs("VersioningConfiguration", other_root="GetBucketVersioningResponse"),  # moto's
    "GetObject": Needs(headers=("etag", "last-modified"), streams=True),
    "GetObjectLockConfiguration": Needs("ObjectLockConfiguration"),
    "HeadObject": Needs(headers=("content-length", "etag", "last-modified")),
    "ListMultipartUploads": Needs("ListMultipartUploadsResult"),
    "ListObjectVersions": Needs("ListVersionsResult"),
    "ListObjectsV2": Needs("ListBucketResult"),
    "PutObject": Needs(headers=("etag",)),
    "UploadPart": Needs(headers=("etag",)),
}
"""Each operation whose answer is used. HeadBucket's is only its Date; l0gc's own bucket is created by hand or by `init`."""


def check_answer(
    operation_model: Any, response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any
) -> None:
    """Turn an answer that is not S3's into an error of code `NOT_S3` (botocore calls this before it parses)."""
    status = response_dict["status_code"]
    if status < 300 and NEEDS[operation_model.name].root and not document_fault(response_dict["body"], "Error"):
        response_dict["status_code"] = 500  # S3 may find an error after it has begun to answer
        return
    if status < 300:
        fault = _fault(NEEDS[operation_model.name], response_dict)
    elif status in _BY_THEIR_BODY and response_dict["body"].strip():
        fault = document_fault(response_dict["body"], "Error")
    else:
        return
    if fault:
        response_dict["status_code"] = 502
        response_dict["body"] = f"<Error><Code>{NOT_S3}</Code><Message>{escape(fault)}</Message></Error>".encode()
    elif status < 300 and operation_model.name == "DeleteObjects":  # botocore takes ten times as long for it
        customized_response_dict[DOCUMENT], response_dict["body"] = response_dict["body"], b"<DeleteResult/>"


def _fault(needs: Needs, answer: Mapping[str, Any]) -> str:
    """Return what is wrong with a successful answer; empty if nothing is."""
    headers, body = answer["headers"], answer["body"]
    if needs.streams:
        packed = headers.get("content-encoding", "").lower() not in {"", "identity", "aws-chunked"}
        if packed or headers.get("content-type", "").lower().startswith("text/html"):
            what = f"packed ({headers['content-encoding']})" if packed else "a page of HTML"
            return f"it is {what} and begins with {_first(body.read(_SHOWN))}"
    elif needs.root:
        other = needs.other_root and not document_fault(body, needs.other_root)
        if not other and (fault := document_fault(body, needs.root)):
            return fault
    elif body.strip():
        return f"it should be empty and begins with {_first(body)}"
    missing = [name for name in needs.headers if not headers.get(name)]
    return f"it has no header {missing[0]}" if missing else ""


def document_fault(body: bytes, root: str) -> str:
    """Return how a body differs from a whole document with this root element; empty if it does not."""
    if not body.strip():
        return "it is empty"
    found = _HEAD.match(body)
    if found is None or found[1] != root.encode():
        return f"it begins with {_first(body)}"
    end = body.rstrip()
    if end.endswith(f"{root}>".encode()) and b"</" in end[-len(root) - 20 :]:
        return ""
    return "" if _EMPTY_ROOT.fullmatch(end, found.start(1) - 1) else f"it ends before </{root}>"


def _first(body: bytes) -> str:
    return without_secrets(repr(bytes(body[:_SHOWN]))[1:])


# -- bulk deletes ---------------------------------------------------------------------------------------------------------


def request_body(objects: Sequence[VersionedKey], prefix: str) -> bytes:
    """Return the body of a DeleteObjects request; botocore takes ten times as long to write it."""
    keys = [prefix + o.key for o in objects]
    if _SPECIAL.search("".join(keys)):
        keys = [escape(key, _WHITE) for key in keys]
    rows = [
        f"<Object><Key>{key}</Key><VersionId>{escape(o.version_id)}</VersionId></Object>"
        if o.version_id
        else f"<Object><Key>{key}</Key></Object>"
        for key, o in zip(keys, objects, strict=True)
    ]
    return f'<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{"".join(rows)}</Delete>'.encode()


def read_deleted(body: bytes, objects: Sequence[VersionedKey], prefix: str) -> VersionsDeleted:
    """Return what an answer to `request_body` says of each object. One that it does not name is a failure."""
    if {*_DELETED.findall(body)} == {(prefix + o.key).encode() for o in objects} and b"Error" not in body:
        return VersionsDeleted()  # the usual answer, in a fifth of the time that parsing takes
    plain = {o.key for o in objects if not o.version_id}  # of a version that goes, the answer names its marker, too
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
