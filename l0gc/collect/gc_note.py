"""What `gc` notes for its next run, in one object; see `gc_steps.GcNote`.

Nothing that deletes reads it, and one that is lost or cannot be read only makes a step run that might have been left out.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import msgspec

from l0gc.collect.gc_steps import GcNote
from l0gc.decoding import UNDECODABLE, json_decoder
from l0gc.errors import ObjectNotFoundError, StoreError
from l0gc.keys import GC_NOTE
from l0gc.storage.objectstore import ObjectStore

_NOTE: Final = json_decoder(GcNote)


def read_gc_note(store: ObjectStore) -> GcNote:
    """The note, or an empty one if it does not exist."""
    try:
        return _NOTE.decode(store.get(GC_NOTE).body)
    except (ObjectNotFoundError, *UNDECODABLE):
        return GcNote()


def write_gc_note(store: ObjectStore, note: GcNote) -> None:
    """Write it, if the store takes it."""
    with suppress(StoreError):
        store.put(GC_NOTE, msgspec.json.encode(note))
