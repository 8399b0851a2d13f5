"""The limits of what is stored: what a writer refuses, so that every reader accepts what was acknowledged (hazard 39).

Each is lower than what the reader's library, or the store, can take, so that what grows on the way (lengths, columns,
base64) still fits. docs/reference/format.md has the table of who refuses what.
"""

from __future__ import annotations

from typing import Final

MAX_RECORD_BYTES: Final = 16 << 20
"""A record's value, key and headers. A longer one would exceed the memory bound of everything else."""
MAX_BATCH_BYTES: Final = 512 << 20
"""The records that an upload or a sink gathers for one object, by their weight. With the numbers that are stored next to
each, and the record that fills the batch, they stay below `MAX_OBJECT_BYTES`.
"""
MAX_OBJECT_BYTES: Final = 1 << 30
"""The blocks of an L0 object, unpacked. A reader puts all of them into one column, whose offsets end at 2^31 bytes, next
to some MiB of other records. An object's lengths in the log end at 2^32.
"""
MAX_HOLE_BYTES: Final = 1 << 30
"""The remains of lost blocks that are kept with a hole, in one object that is written by one request."""
MAX_GROUP_BYTES: Final = 128 << 20
"""A row group of an L1 object, unpacked. A writer cuts them at 4 MiB and a record, with up to four times that in typed
columns. A small object may unpack to more if its footer is wrong, and a reader would take that much memory.
"""
MAX_FOOTER_BYTES: Final = 96_000_000
"""The footer of an L1 object. Readers of Parquet refuse texts of 100 MB in it."""
MAX_KEY_BYTES: Final = 1024
"""An object's key, as S3 has it, with the cluster's prefix."""
LONGEST_KEY_BYTES: Final = 400
"""The bytes that a key may have below the prefix: with a topic's name of 200 characters an L1 object's takes 348."""
MAX_PREFIX_BYTES: Final = MAX_KEY_BYTES - LONGEST_KEY_BYTES
"""A cluster's prefix, so that no name of a topic, and no epoch, makes a key that the store refuses."""
ENTRY_LIMIT: Final = 64 << 20
"""The largest unpacked size of an entry; a group commit makes entries of about 1 MiB."""
CHECKPOINT_LIMIT: Final = 1 << 30
"""The largest unpacked size of a checkpoint: some ten million unreconciled extents."""

SMALL_LIMIT: Final = 4 << 20
"""The largest size of any other object of `l0gc/`. With 9,999 journals, the published M takes 700 KB."""
