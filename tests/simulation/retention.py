"""Checks retention by separate rules: what it deletes, and what it should have deleted.

The rules are Kafka's, with an L1 object as a segment: by time, the oldest objects whose newest records are older; by
size, the oldest ones without which the others still have that size. Records outside of L1 are never deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from l0gc.streamlog.controller.state import Retention
from l0gc.streamlog.journal.entries import EXPIRE, Edit, JournalEntry
from l0gc.streamlog.journal.rows import START, unpack
from tests.simulation.shadow import Part, Shadow, TopicShadow
from tests.simulation.shadow_l1 import Wrong

if TYPE_CHECKING:
    from tests.simulation.watch import Watch

Retentions = dict[str, set[Retention]]
"""By a topic's id, each retention that it had while processes were active."""
_ENTRY = msgspec.msgpack.Decoder(JournalEntry)


def check_expiry(shadow: Shadow, payload: bytes, retentions: Retentions, now_ms: int) -> None:
    """Raise `Wrong` if an entry that is about to land deletes records that no retention allows to delete.

    Since the entry was decided, merges may have made the objects smaller. So all objects that ever existed count as
    remaining, which is more than there were then.

    Args:
        now_ms: by the store's clock, or later.
    """
    entry = _ENTRY.decode(payload)
    for t in entry.topics if isinstance(entry, Edit) and entry.kind == EXPIRE else ():
        kept = retentions.get(t.topic_id, set())
        topic = shadow.topics.get(t.revision, TopicShadow(t.revision, t.topic_id))
        for p, start in unpack(t.starts, START).tolist():
            where = f"lets partition {p} of revision {t.revision} begin at {start}"
            reconciled = topic.parts.get(p, Part()).reconciled
            if start > reconciled + 1:
                raise Wrong(f"{where} by its retention, and only what is before {reconciled + 1} is in L1")
            files = shadow.l1.files.get((t.revision, p), {}).values()
            left = sum(f.bytes for f in shadow.l1.files_ever.get((t.revision, p), []) if f.base >= start)
            by_size = any(-1 < r.bytes <= left for r in kept)
            oldest_ms = min((r.ms for r in kept if r.ms > -1), default=None)
            for f in files:
                by_time = oldest_ms is not None and now_ms - f.newest_ms > oldest_ms
                if f.last < start and not by_size and not by_time:
                    raise Wrong(f"{where}, though none of {sorted(kept, key=str)} lets {f} go: {left} bytes are left")


def left_over(watch: Watch, now_ms: int) -> str:
    """Return an object that its topic's retention should have deleted; '' if there is none."""
    state = watch.controller
    for topic in state.topics.values():
        retention = state.retention(topic)
        for p in range(topic.partitions):
            listed = watch.shadow(topic.journal_of(p)).l1.files.get((topic.revision, p), {})
            files = sorted(listed.values(), key=lambda f: f.base)
            if not files:
                continue
            if retention.ms > -1 and now_ms - files[0].newest_ms > retention.ms:
                return f"{topic.name}/{p} still has {files[0]}, and is kept for {retention.ms} ms"
            if retention.bytes > -1 and sum(f.bytes for f in files[1:]) >= retention.bytes:
                return f"{topic.name}/{p} still has {files[0]}, and as much as {retention.bytes} bytes without it"
    return ""
