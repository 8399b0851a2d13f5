"""`published.json` of any bytes: it is refused, or it is what was published."""

from __future__ import annotations

from contextlib import suppress

import msgspec
from hypothesis import given

from l0gc.errors import ClusterMismatchError, CorruptObjectError
from l0gc.keys import PUBLISHED_WATERMARK
from l0gc.storage.entry import seal
from l0gc.watermark.publication import PublishedWatermark, encode_published, read_published
from tests.fuzz.mutations import JSON, fuzzing, hostile
from tests.support.memory_store import MemoryStore

PUBLISHED = PublishedWatermark("this", 3, 9, 1_700_000_000_000, 12, 3456)
BODY = encode_published(PUBLISHED)
OTHER = encode_published(PublishedWatermark("another", 7, 8, 0))


@fuzzing(200)
@given(hostile(BODY, OTHER))
def test_what_is_published_is_what_was_written_or_refused(body: bytes) -> None:
    store = MemoryStore()
    store.put(PUBLISHED_WATERMARK, body)
    try:
        published, _ = read_published(store, "this")
    except (CorruptObjectError, ClusterMismatchError) as e:
        message = str(e)
    else:
        assert published == PUBLISHED
        return
    assert PUBLISHED_WATERMARK in message


@fuzzing(200)
@given(hostile(msgspec.json.encode(PUBLISHED), b"{}", JSON))
def test_a_sealed_body_is_this_clusters_watermark_or_refused(content: bytes) -> None:
    store = MemoryStore()
    store.put(PUBLISHED_WATERMARK, seal(PUBLISHED_WATERMARK, content))
    with suppress(CorruptObjectError, ClusterMismatchError):
        published, _ = read_published(store, "this")
        assert published is not None
        assert published.cluster_id == "this"
