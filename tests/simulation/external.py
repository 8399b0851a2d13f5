"""Another system with its own log: it writes its list of partitions file by file, while M is computed from the list.

Its youngest partition has no report and holds M. A list that is read before it is finished may lack that partition, and
M would be too high. Nothing is published, so no earlier number of partitions reveals the mistake.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from l0gc.keys import KeyLayout
from l0gc.storage.objectstore import Head, ListedPage, Listing, ObjectStore, StoredObject
from l0gc.watermark.compute import compute
from l0gc.watermark.external_files import ExternalFiles
from l0gc.watermark.external_log import ExternalLogSource
from l0gc.watermark.source import ClusterIdentity, ClusterView
from tests.simulation.actors import Body, repeat
from tests.simulation.world import Process, World
from tests.support.external import read

PLACE = "elsewhere/"
COMPUTED = "watermarks of another system's partitions"
_EPOCHS = 10
"""The epochs between one list of partitions and the next."""


class Theirs:
    """The other system, which publishes list after list."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.lists = 1

    @property
    def _folder(self) -> str:
        return f"{PLACE}{self._name}-{self.lists}"

    def lister(self, world: World, times: int) -> Body:
        """Return an actor that writes lists of partitions, each with one more than the last and in its own folder."""

        def once(process: Process) -> None:
            world.sleep(3.0)
            self.lists += 1
            folder, epoch = self._folder, self.lists * _EPOCHS
            known = [f"t,{n},{(n + 1) * _EPOCHS}" for n in range(self.lists)]
            reports = "".join(f"{p},{epoch}\n" for p in known[:-1])
            world.store.put(f"{folder}.csv", f"topic,partition,revision,gc_epoch\n{reports}".encode())
            parts = [f"topic,partition,revision,cluster_epoch\n{p},{epoch}\n".encode() for p in known]
            world.random.shuffle(parts)
            for n, part in enumerate(parts):
                world.store.put(f"{folder}/part-{n}.csv", part)
            world.store.put(f"{folder}/_SUCCESS", b"")

        return repeat(world, times, once)

    def watermark_job(self, world: World, times: int) -> Body:
        """Return an actor that computes M from the newest list, finished or not, and compares it with the whole list."""

        def once(process: Process) -> None:
            world.sleep(1.0)
            folder = self._folder
            files = ExternalFiles(f"s3://{folder}.csv", f"s3://{folder}", allow_unlisted_reports=True)
            theirs = read(files, lambda url: cast(ObjectStore, _Below(world, url)))
            source = ExternalLogSource(cast(ClusterView, _Handle()), theirs)
            source.snapshot()
            watermark = compute(theirs.cluster_epoch, source.read(None)).watermark
            if watermark >= theirs.cluster_epoch:
                raise world.violation(
                    f"M = {watermark} of another system, whose youngest partition may need {theirs.cluster_epoch}"
                )
            world.happened[COMPUTED] += 1

        return repeat(world, times, once)


class _Handle:
    """The part of a cluster from which a source reads its identity."""

    def identity(self) -> ClusterIdentity:
        return ClusterIdentity("theirs", 0, KeyLayout(), external_log=True)


class _Below:
    """The objects below a URL, read-only; each call is a step, and may fail like any other."""

    def __init__(self, world: World, url: str) -> None:
        self._store = world.store
        self._prefix = url.removeprefix("s3://").rstrip("/") + "/"

    def get(self, key: str) -> StoredObject:
        return self._store.get(self._prefix + key)

    def head(self, key: str) -> Head:
        return self._store.head(self._prefix + key)

    def list(self, folder: str, *, one_page: bool = False) -> Listing:
        listing = self._store.list(self._prefix + folder)
        mine = {k.removeprefix(self._prefix): at for k, at in listing.modified_ms.items()}
        return Listing(mine, listing.date_ms)

    def scan(self, prefix: str) -> Iterator[ListedPage]:
        return self._store.scan(self._prefix + prefix)
