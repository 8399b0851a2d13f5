"""The limits of stored data. Writers refuse data beyond them, so that readers accept everything that was acknowledged
(hazard 39).

Each limit is lower than that of the reader's library or of the store, so that data still fits when it grows on the way
(lengths, columns, base64). docs/reference/format.md lists which part enforces which limit.
"""

from __future__ import annotations

from typing import Final

MAX_RECORD_BYTES: Final = 16 << 20
"""The size of a record's value, key and headers. A larger record would exceed the bounds on memory."""
MAX_BATCH_BYTES: Final = 512 << 20
"""The weight of the records that an upload or a sink gathers for one object. With the numbers stored next to each
record, and the record that fills the batch, it stays below `MAX_OBJECT_BYTES`.
"""
MAX_OBJECT_BYTES: Final = 1 << 30
"""The unpacked size of an L0 object's blocks. A reader puts all of them, and some MiB of other records, into one
column, whose offsets end at 2^31 bytes. An object's lengths in the log end at 2^32.
"""
MAX_HOLE_BYTES: Final = 1 << 30
"""The size of the quarantined blocks of a hole, which one request writes as one object."""
MAX_GROUP_BYTES: Final = 128 << 20
"""The unpacked size of a row group of an L1 object. A writer ends a group with the record that exceeds 4 MiB; typed
columns can take four times that. A small object with a wrong footer may unpack to more, which would cost a reader that
much memory.
"""
MAX_FOOTER_BYTES: Final = 96_000_000
"""The size of an L1 object's footer. Readers of Parquet refuse a text of 100 MB in it."""
MAX_KEY_BYTES: Final = 1024
"""The length of an object's key, including the cluster's prefix: S3's limit."""
LONGEST_KEY_BYTES: Final = 400
"""The length of a key without the prefix. The key of an L1 object takes 348 bytes if the topic's name has 200
characters.
"""
MAX_PREFIX_BYTES: Final = MAX_KEY_BYTES - LONGEST_KEY_BYTES
"""The length of a cluster's prefix. It ensures that the store accepts the keys of all topics and epochs."""
ENTRY_LIMIT: Final = 64 << 20
"""The largest unpacked size of an entry; a group commit makes entries of about 1 MiB."""
CHECKPOINT_LIMIT: Final = 1 << 30
"""The largest unpacked size of a checkpoint: some ten million unreconciled extents."""

SMALL_LIMIT: Final = 4 << 20
"""The largest size of any other object under `l0gc/`. With 9,999 journals, the published M takes 700 KB."""
