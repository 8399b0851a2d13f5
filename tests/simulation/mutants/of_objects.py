"""Mutants of what scans, deletes, reads and writes objects: the sweep, the reconciler, readers and inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import l0gc.streamlog.ingest.inputs
import l0gc.streamlog.reader
import l0gc.watermark.compute
from l0gc.collect.local import LocalSweep
from l0gc.collect.scan import SkipScan
from l0gc.errors import StoreError
from l0gc.keys import KeyLayout
from l0gc.storage.objectstore import ListedPage
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.ingest.inputs import Input
from l0gc.streamlog.journal.entries import L1File, Reconciled
from l0gc.streamlog.journal.handle import PartitionHandle
from l0gc.streamlog.level_one.parquet import L1Writer
from l0gc.streamlog.level_one.plan import PartitionPlan
from l0gc.streamlog.reader import Record, _read_once
from tests.simulation.mutants.tools import Mutant, everywhere, method

_open_inputs = l0gc.streamlog.ingest.inputs.open_inputs


class _Wrapped:
    """A store, but for what a mutant does otherwise."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class _Sorting(_Wrapped):
    """Sorts each page, so that nobody sees that the store does not."""

    def scan(self, prefix: str, start_after: str = "") -> Iterator[ListedPage]:
        for page in self._store.scan(prefix, start_after):
            rows = sorted(zip(page.keys, page.sizes, page.modified_ms, strict=True))
            yield ListedPage([r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows])


def _disorder_unseen() -> AbstractContextManager[Any]:
    original = SkipScan.__init__

    def init(self: SkipScan, store: Any, *args: Any, **options: Any) -> None:
        original(self, _Sorting(store), *args, **options)

    return method(SkipScan, "__init__", init)


def _jump_to_a_folder() -> AbstractContextManager[Any]:
    def before_shard(self: KeyLayout, shard: int) -> str:
        return self.shard_prefix(shard) if shard > 0 else ""

    return method(KeyLayout, "before_shard", before_shard)


def _anything_behind_a_key() -> AbstractContextManager[Any]:
    original = vars(KeyLayout)["pattern"].func

    return method(KeyLayout, "pattern", property(lambda self: original(self)[:-1] + ".*$"))


class _LocalTime(_Wrapped):
    """Tells the process's own time."""

    def __init__(self, store: Any, now_ms: Callable[[], int]) -> None:
        super().__init__(store)
        self.now_ms = now_ms


def _age_by_the_local_clock() -> AbstractContextManager[Any]:
    original = LocalSweep.__init__

    def init(self: LocalSweep, cluster: Cluster, *args: Any, **options: Any) -> None:
        local: Any = _LocalTime(cluster.store, cluster.runtime.clock.now_ms)
        original(self, dataclasses.replace(cluster, store=local), *args, **options)

    return method(LocalSweep, "__init__", init)


class _Careless(_Wrapped):
    """Takes a file for stored, whatever the store says."""

    def put_file(self, key: str, path: Path) -> None:
        with suppress(StoreError):
            self._store.put_file(key, path)


def _named_before_stored() -> AbstractContextManager[Any]:
    original = L1Writer.__init__

    def init(self: L1Writer, store: Any, *args: Any, **options: Any) -> None:
        original(self, _Careless(store), *args, **options)

    return method(L1Writer, "__init__", init)


def _files_not_compared() -> AbstractContextManager[Any]:
    def commit_entry(plan: PartitionPlan, files: Iterable[L1File]) -> Reconciled:
        ordered = sorted(files, key=lambda f: f.base_offset)
        return Reconciled(plan.base_offset, plan.last_offset, plan.log_offset, ordered)

    return everywhere("l0gc.streamlog.level_one.plan", "commit_entry", commit_entry)


def _looks_once() -> AbstractContextManager[Any]:
    def read_partition(store: Any, handle: PartitionHandle, start: int = 0) -> Iterator[Record]:
        end = handle.catch_up().next_offset
        state = handle.state
        yield from _read_once(store, handle.partition.partition, list(state.l1), list(state.placeholders), start, end)

    return everywhere("l0gc.streamlog.reader", "read_partition", read_partition)


def _known_by_name() -> AbstractContextManager[Any]:
    def open_inputs(names: Sequence[str], spread: str | None, stack: Any) -> list[Input]:
        found = _open_inputs(names, spread, stack)
        return [dataclasses.replace(i, input_id=f"{i.name}.0") if i.input_id else i for i in found]

    return everywhere("l0gc.streamlog.ingest.inputs", "open_inputs", open_inputs)


MUTANTS = [
    Mutant(
        9,
        "named-before-stored",
        "l0gc/reconcile/parquet.py::L1Writer.finish",
        "an L1 object that failed is committed",
        _named_before_stored,
        ("tests/reconcile/test_parquet.py::test_a_file_is_named_only_when_it_is_stored",),
    ),
    Mutant(
        9,
        "files-not-compared",
        "l0gc/reconcile/plan.py::commit_entry",
        "any L1 objects are committed",
        _files_not_compared,
        ("tests/reconcile/test_plan.py::test_files_that_do_not_hold_exactly_the_plan_are_refused",),
        simulated=False,
    ),
    Mutant(
        12,
        "disorder-unseen",
        "l0gc/sweep/scan.py::SkipScan",
        "a page's order is not looked at",
        _disorder_unseen,
        ("tests/sweep/test_scan.py::test_a_disordered_page_is_noticed",),
    ),
    Mutant(
        12,
        "jump-to-a-folder",
        "l0gc/keys.py::KeyLayout.before_shard",
        "`StartAfter` names a shard's folder",
        _jump_to_a_folder,
    ),
    Mutant(
        13,
        "anything-behind-a-key",
        "l0gc/keys.py::KeyLayout.parse",
        "a key may go on behind its UUID",
        _anything_behind_a_key,
        ("tests/test_keys.py::test_a_near_miss_is_no_l0_key",),
    ),
    Mutant(
        16,
        "age-by-local-clock",
        "l0gc/sweep/plan.py::make_plan",
        "`--min-age` goes by the process's clock",
        _age_by_the_local_clock,
        ("tests/sweep/test_local.py::test_age_is_judged_by_the_stores_clock",),
    ),
    Mutant(
        19,
        "looks-once",
        "l0gc/read/reader.py::read_partition",
        "a reader does not look again",
        _looks_once,
        ("tests/read/test_reader.py::test_what_is_reconciled_and_swept_meanwhile_is_read_from_l1",),
    ),
    Mutant(
        20,
        "known-by-name",
        "l0gc/ingest/inputs.py::open_inputs",
        "an input is known by its file name",
        _known_by_name,
        ("tests/ingest/test_uploader.py::test_other_input_under_the_same_names_is_never_skipped",),
        simulated=False,
    ),
]
