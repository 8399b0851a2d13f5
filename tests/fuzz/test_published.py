"""`published.json` of any bytes: it is refused, or it is a watermark of this cluster.

It carries no checksum: another number in it, not above the cluster epoch, is believed.
"""

from __future__ import annotations

import msgspec
from hypothesis import given

from l0gc.errors import ClusterMismatchError, CorruptObjectError
from l0gc.keys import PUBLISHED_WATERMARK
from l0gc.watermark.publication import PublishedWatermark, read_published
from tests.fuzz.mutations import fuzzing, hostile
from tests.support.memory_store import MemoryStore

BODY = msgspec.json.encode(PublishedWatermark("this", 3, 9, 1_700_000_000_000, 12, 3456))
OTHER = msgspec.json.encode(PublishedWatermark("another", 7, 8, 0))


@fuzzing(500)
@given(hostile(BODY, OTHER, is_json=True, deep=False))
def test_what_is_published_is_this_clusters_or_refused(body: bytes) -> None:
    store = MemoryStore()
    store.put(PUBLISHED_WATERMARK, body)
    try:
        published, _ = read_published(store, "this")
    except (CorruptObjectError, ClusterMismatchError) as e:
        message = str(e)
    else:
        assert published is not None
        assert published.cluster_id == "this"
        return
    assert PUBLISHED_WATERMARK in message
