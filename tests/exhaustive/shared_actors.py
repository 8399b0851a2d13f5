"""The processes of the search that use a shared L1 object, of which two partitions have rows.

The object is written when the search begins, with the newest records of both partitions. Partition 1 has an older
record, which another run lifts at any time: until then the journal refuses that partition's row, and the commit, which
repeats, names it later.
"""

from __future__ import annotations

import msgspec
import numpy as np

from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.journal.rows import BLOCK, L1_ROW, Rows, in_order, name_bytes
from l0gc.streamlog.journal.shared import NAMED, SHARED_ROW, PackedShared, SharedObject, unpack_shared
from l0gc.streamlog.journal.topic import l1_file, l1_key, shared_key
from l0gc.streamlog.level_one.drain import _Commit
from l0gc.streamlog.level_one.reconcile import Commit
from tests.exhaustive.l1_actors import Actor, Local, _window
from tests.exhaustive.l1_process import TOPIC, BrokenError


def _check(errors: list[str]) -> None:
    if any("fenced off" not in e for e in errors):
        raise BrokenError(str(errors))


def _own(cluster: ClusterHandles, partition: int, base: int, last: int, epoch: int) -> Rows:
    """Store a new L1 object of a partition, and return its row."""
    row = np.array([(partition, base, last, 1, 0, epoch, name_bytes(cluster.runtime.new_id()), 0)], L1_ROW)
    cluster.store.put(l1_key(TOPIC.id(partition), l1_file(row[0])), b"")
    return row


class Sharer(Actor):
    """Commits its shared object, with the newest records of both partitions, several times.

    Args:
        committed: whether it has committed once when the search begins.
    """

    prepared = True

    def __init__(self, name: str, tries: int, *, committed: bool = False) -> None:
        super().__init__(name)
        self._tries, self._committed = tries, committed

    def act(self, cluster: ClusterHandles, local: Local) -> Local:
        if local.step == "begin":
            epoch = cluster.controller.snapshot().epoch
            extents = cluster.journal(0).catch_up().topic(TOPIC.revision).objects[-1].extents
            rows = np.zeros(len(extents), SHARED_ROW)
            for column in ("partition", "records", "base"):
                rows[column] = extents[column]
            blocks = np.array([(1, 0, len(rows), 1)], BLOCK)
            name = name_bytes(cluster.runtime.new_id())
            o = SharedObject(name, epoch, blocks, rows, np.full(len(rows), NAMED, np.uint8))
            cluster.store.put(shared_key(TOPIC.name, TOPIC.revision, 0, o), b"")
            local = Local("commit 0", plan=(epoch, msgspec.msgpack.encode(o.packed())))
            if not self._committed:
                return local
        epoch, packed = local.plan
        tried = int(local.step.split()[1])
        o = unpack_shared(msgspec.msgpack.decode(packed, type=PackedShared))
        done = Commit(cluster, _window(), epoch).run({}, shared={TOPIC.revision: [o]})
        _check(done.errors)
        return local._replace(step=f"commit {tried + 1}" if tried + 1 < self._tries else "")


class Lifter(Actor):
    """Lifts the oldest record of partition 1 into a separate object."""

    def act(self, cluster: ClusterHandles, local: Local) -> Local:
        epoch = cluster.controller.snapshot().epoch
        row = _own(cluster, 1, 0, 0, epoch)
        _check(Commit(cluster, _window(), epoch).run({TOPIC.revision: row}).errors)
        return Local("")


class Drainer(Actor):
    """Drains the rows of shared objects of all partitions, or of one."""

    def __init__(self, name: str, *partitions: int, prepared: bool = False) -> None:
        super().__init__(name)
        self._partitions = partitions or range(TOPIC.partitions)
        self.prepared = prepared

    def act(self, cluster: ClusterHandles, local: Local) -> Local:
        epoch = cluster.controller.snapshot().epoch
        listed = [o.ranges() for o in cluster.journal(0).catch_up().topic(TOPIC.revision).shared]
        rows = [row for ranges in listed for row in ranges.tolist() if row[0] in self._partitions]
        if rows:
            files = in_order(np.concatenate([_own(cluster, p, base, last, epoch) for p, base, last in rows]))
            _check(_Commit(cluster, _window(), epoch).run({TOPIC.revision: files}, []).errors)
        return Local("")
