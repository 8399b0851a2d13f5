"""Mutants of the limits: writers refuse what readers could not read, and readers check L1 and remains."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from l0gc.storage.log import SharedLog
from l0gc.streamlog.level_one.give_up import Remains
from tests.simulation.mutants.tools import everywhere, instead, method, mutant

_LIMITS = "tests/test_limits.py"
_NO_LIMIT = 1 << 62


@mutant(
    39,
    "l0gc/limits.py::MAX_OBJECT_BYTES",
    "an L0 object of any size is written and admitted",
    f"{_LIMITS}::test_more_records_than_an_object_may_hold_are_refused_with_the_number",
    f"{_LIMITS}::test_admission_refuses_blocks_that_together_pass_the_limit",
    simulated=False,
)
def objects_of_any_size() -> AbstractContextManager[Any]:
    return everywhere("l0gc.limits", "MAX_OBJECT_BYTES", _NO_LIMIT)


@instead(
    39,
    "l0gc/streamlog/ingest/extents.py::check_records",
    "a record may have any length, with its key and headers",
    f"{_LIMITS}::test_the_limits_of_records_and_objects_are_exact",
    simulated=False,
)
def records_of_any_size(sizes: Any) -> None:
    pass


@instead(
    39,
    "l0gc/streamlog/level_one/parquet.py::_check_group",
    "a footer is accepted, whatever its row groups unpack to",
    f"{_LIMITS}::test_an_l1_object_that_unpacks_beyond_the_limit_is_refused",
    f"{_LIMITS}::test_every_reader_refuses_encodings_that_repeat_long_values",
    simulated=False,
)
def groups_of_any_size(size: int, of_group: Any, key: str) -> None:
    pass


@mutant(
    39,
    "l0gc/limits.py::MAX_HOLE_BYTES",
    "a hole keeps remains of any size",
    f"{_LIMITS}::test_remains_above_their_limit_are_refused_and_nothing_is_given_up",
    simulated=False,
)
def remains_of_any_size() -> AbstractContextManager[Any]:
    from l0gc.streamlog.level_one import give_up

    hole_body = give_up.hole_body

    def unchecked(key: str, record: Any, remains: Sequence[bytes] = ()) -> bytes:
        with everywhere("l0gc.limits", "MAX_HOLE_BYTES", _NO_LIMIT):
            return hole_body(key, record, remains)

    return everywhere("l0gc.streamlog.level_one.give_up", "hole_body", unchecked)


@mutant(
    39,
    "l0gc/storage/config.py::StoreConfig.from_url",
    "a prefix may be as long as the store accepts",
    f"{_LIMITS}::test_a_prefix_too_long_for_keys_is_refused_with_the_number",
    simulated=False,
)
def any_prefix() -> AbstractContextManager[Any]:
    return everywhere("l0gc.limits", "MAX_PREFIX_BYTES", _NO_LIMIT)


@instead(
    34,
    "l0gc/streamlog/level_one/parquet.py::_check_statistics",
    "pages are read as those of their footer, even if they belong to another object",
    "tests/streamlog/level_one/test_rewrite.py::test_pages_of_another_object_do_not_match_a_footer",
    simulated=False,
)
def pages_of_any_object(chunk: Any, table: Any) -> None:
    pass


@instead(
    34,
    "l0gc/streamlog/level_one/give_up.py::_most_often",
    "of damaged bytes, the first reading is kept",
    "tests/streamlog/level_one/test_give_up.py::test_of_damaged_bytes_those_are_kept_that_most_readings_gave",
    simulated=False,
)
def first_remains_kept(read: Sequence[Remains]) -> Remains:
    return read[0]


@mutant(
    34,
    "l0gc/storage/log.py::SharedLog.truncate",
    "entries are deleted that are covered by a checkpoint which no process has read",
    "tests/storage/test_replica.py::test_nothing_is_deleted_that_only_a_damaged_checkpoint_covers",
    simulated=False,
)
def checkpoint_unread() -> AbstractContextManager[Any]:
    return method(SharedLog, "get_checkpoint", lambda log, offset, **more: None)


@mutant(
    34,
    "l0gc/integrations/iceberg/commit.py::Replacement",
    "a sync continues whatever it reads from a manifest",
    "tests/integrations/iceberg/test_sync.py::test_a_manifest_that_is_read_badly_is_not_written_on",
    simulated=False,
)
def manifests_unchecked() -> AbstractContextManager[Any]:
    from l0gc.integrations.iceberg import commit

    def unchecked(io: Any, m: Any) -> Any:
        return {e.data_file.file_path: e for e in m.fetch_manifest_entry(io, discard_deleted=True)}

    return mock.patch.object(commit, "_entries", unchecked)
