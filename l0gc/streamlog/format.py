"""Read and write the format of a bucket: `l0gc/format.json`, written when a cluster is founded, and read once by each
process.

It names the version of the layout, the versions that may read and write it, and the properties of the store that a process
needs before its first conditional write. A process that does not support a format reads only this object, since it could
misread all others. So the object itself stays the same in all future formats: JSON, with these fields, and perhaps more.
It follows Delta's protocol versions.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

import msgspec

import l0gc
from l0gc.decoding import UNDECODABLE
from l0gc.errors import (
    AmbiguousWriteError,
    CorruptObjectError,
    PreconditionFailedError,
    StoreError,
    UnsupportedFormatError,
    fault_of,
)
from l0gc.keys import CONTROLLER_LOG, FORMAT
from l0gc.storage.entry import seal, unseal
from l0gc.storage.objectstore import ObjectStore, if_there

VERSION: Final = 4
"""The version that this l0gc writes. It does not read older ones."""
QUOTED: Final = "quoted"
PLAIN: Final = "plain"
_TRIES: Final = 3
_FIRST_EDITION: Final = re.compile(r"(?:log|checkpoint)/[0-9]{20}\.json\Z")

Version = Annotated[int, msgspec.Meta(ge=1)]


class Format(msgspec.Struct, frozen=True):
    """`l0gc/format.json`.

    `etags` is the form in which the store accepts an ETag in If-Match: quoted, as HTTP requires, or plain; see
    `storage/probe.py`.
    """

    version: Version = VERSION
    min_reader_version: Version = VERSION
    min_writer_version: Version = VERSION
    etags: Literal["quoted", "plain"] = QUOTED


_DECODER: Final = msgspec.json.Decoder(Format)


def check_format(store: ObjectStore, *, only_reads: bool = False) -> Format | None:
    """Return the bucket's format if this l0gc supports it, or None if no cluster was founded there. This takes one
    request.

    Afterwards the store object sends ETags in the form that the store accepts.

    Raises:
        UnsupportedFormatError: the bucket has the first edition's layout, or a version that this l0gc does not support.
        CorruptObjectError: the object is invalid.
    """
    stored = _read(store)
    if stored is None:
        _refuse_the_first_edition(store)
        return None
    form = stored[0]
    needed = form.min_reader_version if only_reads else max(form.min_reader_version, form.min_writer_version)
    if needed > VERSION:
        raise UnsupportedFormatError(
            f"this bucket has format {form.version}, which needs an l0gc that supports format {needed}, but this one "
            f"({l0gc.__version__}) supports format {VERSION}: use the l0gc that founded the cluster, or a newer one"
        )
    if form.version < VERSION:
        raise UnsupportedFormatError(
            f"this bucket has format {form.version}, which this l0gc ({l0gc.__version__}) does not read: found a new "
            "cluster under another prefix, or keep to the l0gc that founded this one"
        )
    store.quotes_etags = form.etags == QUOTED
    return form


def write_format(store: ObjectStore) -> Format:
    """Write the format unless it exists, before a cluster is founded. Raises the errors of `check_format`."""
    if (form := check_format(store)) is not None:
        return form
    form = Format(etags=QUOTED if store.quotes_etags else PLAIN)
    for _ in range(_TRIES):
        try:
            store.put_if_absent(FORMAT, encode_format(form))
        except (PreconditionFailedError, AmbiguousWriteError) as e:  # another process may have written it
            failure: StoreError = e
            if (landed := check_format(store)) is not None:
                return landed
        else:
            return form
    raise StoreError(f"{FORMAT} could not be written ({failure}); run l0gc init again") from failure


def remember_etags(store: ObjectStore, *, quoted: bool) -> bool:
    """Record the form of ETags that the probe found, for later processes; return whether it differs from the recorded one.

    The store may have changed its form, or the bucket may have moved.
    """
    store.quotes_etags = quoted
    stored = _read(store)
    etags: Literal["quoted", "plain"] = QUOTED if quoted else PLAIN
    if stored is None or stored[0].etags == etags:
        return False
    store.put_if_match(FORMAT, encode_format(msgspec.structs.replace(stored[0], etags=etags)), stored[1])
    return True


def refuse_without_format() -> CorruptObjectError:
    """Return the error for a cluster whose format is unknown."""
    return CorruptObjectError(
        f"a cluster exists under this URL, but {FORMAT}, which records its layout, is missing: restore it from a "
        "backup or a version, or see l0gc help operate-logs"
    )


def encode_format(form: Format) -> bytes:
    """Return the content of `format.json`, with a checksum, since a flipped bit must not change which versions the bucket
    needs.
    """
    return seal(FORMAT, msgspec.json.encode(form))


def _read(store: ObjectStore) -> tuple[Format, str] | None:
    stored = if_there(store.get, FORMAT)
    try:
        return None if stored is None else (_DECODER.decode(unseal(FORMAT, stored.body)), stored.etag)
    except (CorruptObjectError, *UNDECODABLE) as e:
        raise CorruptObjectError(
            f"{FORMAT} does not record the bucket's layout ({fault_of(e, FORMAT)}); restore it from a backup or a "
            "version, or see l0gc help operate-logs"
        ) from e


def _refuse_the_first_edition(store: ObjectStore) -> None:
    cut = len(CONTROLLER_LOG)
    if any(_FIRST_EDITION.match(key[cut:]) for key in store.list(CONTROLLER_LOG).modified_ms):
        raise UnsupportedFormatError(
            "this bucket was laid out by the first edition of l0gc, with a log for each partition, which this one does not "
            "read: found a new cluster under another prefix, or keep to the first edition"
        )
