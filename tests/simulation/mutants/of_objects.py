"""Mutants of the code that scans, deletes, reads and writes objects: the sweep, the uploader, the reconciler, readers
and inputs.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

import l0gc.collect.plan
import l0gc.collect.run
import l0gc.streamlog.ingest.inputs
import l0gc.streamlog.ingest.uploader
from l0gc.collect.skip_scan import SkipScan
from l0gc.collect.sweep import SweepRun
from l0gc.errors import CorruptObjectError, StoreError
from l0gc.keys import KeyLayout
from l0gc.storage.objectstore import ListedPage
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.ingest.extents import PackedPart
from l0gc.streamlog.ingest.inputs import Input
from l0gc.streamlog.ingest.landing import Landing, WrittenObject
from l0gc.streamlog.journal.rows import Rows
from l0gc.streamlog.journal.topic import TopicState
from l0gc.streamlog.level_one import write as level_one_write
from tests.simulation.mutants.tools import Wrapped, everywhere, instead, method, mutant

_LANDING = "tests/streamlog/ingest/test_landing.py"
_PLACES = "tests/collect/test_record_places.py"
_RESUME = "tests/streamlog/ingest/test_resume.py"
_SEVERAL = "tests/streamlog/ingest/test_several_journals.py"

_open_inputs = l0gc.streamlog.ingest.inputs.open_inputs
_offer: Callable[..., dict[Any, Any]] = Landing._offer


class _Sorting(Wrapped):
    """Sorts each page, and thus hides that the store does not."""

    def scan(self, prefix: str, start_after: str = "") -> Iterator[ListedPage]:
        for page in self._store.scan(prefix, start_after):
            rows = sorted(zip(page.keys, page.sizes, page.modified_ms, strict=True))
            yield ListedPage([r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows])


@mutant(
    12,
    "l0gc/collect/skip_scan.py::SkipScan",
    "the order of a page is not checked",
    "tests/collect/test_skip_scan.py::test_a_disordered_page_is_noticed",
    simulated=False,
)
def disorder_unseen() -> AbstractContextManager[Any]:
    original = SkipScan.__init__

    def init(self: SkipScan, store: Any, *args: Any, **options: Any) -> None:
        original(self, _Sorting(store), *args, **options)

    return method(SkipScan, "__init__", init)


@instead(12, "l0gc/keys.py::KeyLayout.before_shard", "`StartAfter` names a shard's folder")
def jump_to_a_folder(self: KeyLayout, shard: int) -> str:
    return self.shard_prefix(shard) if shard > 0 else ""


@mutant(
    13,
    "l0gc/keys.py::KeyLayout.parse",
    "a key may continue after its UUID",
    "tests/test_keys.py::test_a_near_miss_is_no_l0_key",
)
def anything_after_a_key() -> AbstractContextManager[Any]:
    original = vars(KeyLayout)["_pattern"].func

    return method(
        KeyLayout, "_pattern", property(lambda self: re.compile(original(self).pattern.removesuffix(r"\Z") + ".*"))
    )


class _LocalTime(Wrapped):
    """Returns the process's own time."""

    def __init__(self, store: Any, now_ms: Callable[[], int]) -> None:
        super().__init__(store)
        self.now_ms = now_ms


@mutant(
    16,
    "l0gc/collect/plan.py::plan_sweep",
    "`--min-age` uses the process's clock",
    "tests/collect/test_sweep_local.py::test_age_is_measured_by_the_stores_clock",
    simulated=False,
)
def age_by_local_clock() -> AbstractContextManager[Any]:
    original = SweepRun.__init__

    def init(self: SweepRun, cluster: ClusterHandles, *args: Any, **options: Any) -> None:
        local: Any = _LocalTime(cluster.store, cluster.runtime.clock.now_ms)
        original(self, msgspec.structs.replace(cluster, store=local), *args, **options)

    return method(SweepRun, "__init__", init)


# -- L1, and its readers --------------------------------------------------------------------------------------------------


_upload_l1: Final = level_one_write.upload_l1


class _Careless(Wrapped):
    """Takes an object for stored, whatever the store answers."""

    def put_bulk(self, key: str, body: bytes) -> None:
        with suppress(StoreError):
            self._store.put_bulk(key, body)

    def put_file(self, key: str, path: Path) -> None:
        with suppress(StoreError):
            self._store.put_file(key, path)


@instead(
    9,
    "l0gc/streamlog/level_one/write.py::write_l1",
    "an L1 object whose upload failed is committed",
    "tests/streamlog/level_one/test_write.py::test_an_object_is_named_only_when_it_is_in_the_store",
    place="l0gc/streamlog/level_one/write.py::upload_l1",
)
def named_before_stored(store: Any, objects: Any, parallel: Any) -> None:
    _upload_l1(_Careless(store), objects, parallel)


@instead(
    9,
    "l0gc/streamlog/journal/edits.py::fits",
    "L1 objects may end in the middle of an extent",
    "tests/streamlog/journal/test_state.py::test_a_range_that_does_not_end_with_an_object_is_refused",
    place="l0gc/streamlog/journal/topic.py::TopicState.end_with_extent",
)
def any_end(self: TopicState, ranges: Rows) -> Rows:
    return np.ones(len(ranges), bool)


@instead(
    19,
    "l0gc/streamlog/offset_reader.py::OffsetReader.read",
    "a reader does not look again",
    "tests/streamlog/test_reader.py::test_what_is_reconciled_and_swept_meanwhile_is_read_from_l1",
    simulated=False,
    place="l0gc/streamlog/offset_reader.py::OffsetReader._check_not_lost",
)
def looks_once(self: Any, gone: Any) -> None:
    raise CorruptObjectError(str(gone))


# -- uploads ----------------------------------------------------------------------------------------------------------------


@instead(
    27,
    "l0gc/streamlog/ingest/landing.py::Landing",
    "a part that one journal refuses counts as landed",
    f"{_SEVERAL}::test_a_part_that_one_journal_refuses_is_neither_lost_nor_twice",
    place="l0gc/streamlog/ingest/landing.py::Landing._offer",
)
def refused_dropped(self: Landing, objects: Sequence[WrittenObject]) -> dict[Any, Any]:
    """Take a part that one journal refuses as stale for landed."""
    for journal, _ in _offer(self, objects):
        for o in objects:
            o.left.pop(journal, None)
    return {}


@instead(
    27,
    "l0gc/streamlog/ingest/landing.py::Landing",
    "the parts that landed are sent again with the one that was refused",
    f"{_SEVERAL}::test_landed_parts_are_not_resent_with_refused_ones",
    simulated=False,
    place="l0gc/streamlog/ingest/landing.py::Landing._offer",
)
def refused_twice(self: Landing, objects: Sequence[WrittenObject]) -> dict[Any, Any]:
    """Send all parts of an object again if one journal refuses a part as stale."""
    before = [dict(o.left) for o in objects]
    refused = _offer(self, objects)
    for o, parts in zip(objects, before, strict=True):
        if o.left:
            o.left = parts
    return refused


@instead(
    20,
    "l0gc/streamlog/ingest/inputs.py::open_inputs",
    "an input is identified by its file name",
    f"{_RESUME}::test_other_input_under_the_same_names_is_never_skipped",
)
def known_by_name(sources: Sequence[Any], spread: str | None, *more: Any) -> list[Input]:
    found = _open_inputs(sources, spread, *more)
    return [dataclasses.replace(i, input_id=f"{i.name}.0") if i.input_id else i for i in found]


@instead(
    20,
    "l0gc/streamlog/ingest/uploader.py::open_upload",
    "an input that landed in one topic of a journal is skipped in another",
    f"{_RESUME}::test_a_file_in_another_or_recreated_topic_is_new_input",
    place="l0gc/streamlog/ingest/inputs.py::open_inputs",
)
def known_in_any_topic(sources: Sequence[Any], spread: str | None, *more: Any) -> list[Input]:
    return _open_inputs(sources, spread and spread.split(" ", 1)[1], *more)


@mutant(
    20,
    "l0gc/streamlog/ingest/inputs.py::Input.blocks",
    "records that were added to a file after it was hashed are sent, too",
    f"{_RESUME}::test_bytes_appended_during_an_upload_wait_for_the_next",
)
def more_read_than_hashed() -> AbstractContextManager[Any]:
    original = Input.blocks

    def blocks(self: Input) -> Iterator[list[bytes]]:
        return original(dataclasses.replace(self, size=None))

    return method(Input, "blocks", blocks)


@instead(
    34,
    "l0gc/streamlog/ingest/landing.py::Landing._read_back",
    "an object is written again as it was read",
    f"{_LANDING}::test_one_bad_reading_of_a_staged_object_is_read_again",
    f"{_LANDING}::test_what_never_matches_the_log_is_not_written_on",
    simulated=False,
)
def copied_unchecked(self: Landing, o: WrittenObject) -> tuple[bytes, dict[int, PackedPart]]:
    return self._cluster.store.get(o.object.key).body, o.left


@instead(
    34,
    "l0gc/watermark/external_files.py::_read_alike",
    "M follows from one reading of another system's files",
    "tests/watermark/test_external_files.py::test_a_bucket_file_that_reads_differently_twice_is_refused",
    simulated=False,
)
def external_file_read_once(store: Any, key: str, name: str) -> bytes:
    body: bytes = store.get(key).body
    return body


@instead(
    34,
    "l0gc/storage/objectstore.py::read_again",
    "bytes that do not match their checksum count as damaged after one reading",
    f"{_LANDING}::test_one_bad_reading_of_a_staged_object_is_read_again",
    f"{_LANDING}::test_a_reconcile_reads_a_block_again_that_differs",
    simulated=False,
)
def read_once(read: Callable[[], Any]) -> Any:
    return read()


@mutant(
    45,
    "l0gc/collect/run.py::sink_of",
    "a run's record is always written to the bucket",
    f"{_PLACES}::test_a_full_store_is_swept_with_its_record_in_a_folder",
    f"{_PLACES}::test_a_full_store_is_swept_without_a_record_by_name",
)
def recorded_in_the_bucket() -> AbstractContextManager[Any]:
    """Write a run's record into the bucket, whatever the options are."""
    return everywhere("l0gc.collect.run", "sink_of", lambda store, options: store)
