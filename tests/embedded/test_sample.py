"""The sample data: complete, parsable, in order, the same every time, and split without loss."""

from __future__ import annotations

import json
import sys
from importlib.machinery import ModuleSpec
from itertools import islice
from typing import TYPE_CHECKING

import pytest

from l0gc.embedded import sample
from l0gc.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

ALL_FLIGHTS = 336_776

FIRST_FLIGHT = {
    "year": 2013,
    "month": 1,
    "day": 1,
    "dep_time": 517,
    "sched_dep_time": 515,
    "dep_delay": 2,
    "arr_time": 830,
    "sched_arr_time": 819,
    "arr_delay": 11,
    "carrier": "UA",
    "flight": 1545,
    "tailnum": "N14228",
    "origin": "EWR",
    "dest": "IAH",
    "air_time": 227,
    "distance": 1400,
    "hour": 5,
    "minute": 15,
    "time_hour": "2013-01-01T10:00:00Z",
}


@pytest.mark.thorough
def test_every_flight_is_one_json_object_with_a_carrier() -> None:
    carriers: dict[str, int] = {}
    cancelled = 0
    for line in sample.flights():
        assert b"\n" not in line
        flight = json.loads(line)
        assert flight.keys() == FIRST_FLIGHT.keys()
        carriers[flight["carrier"]] = carriers.get(flight["carrier"], 0) + 1
        cancelled += flight["dep_time"] is None
    assert sum(carriers.values()) == ALL_FLIGHTS == sample.count_flights()
    assert len(carriers) == 16
    assert carriers["UA"] == 58_665
    assert cancelled == 8_255


def test_values_keep_their_types_and_their_order() -> None:
    assert json.loads(next(iter(sample.flights()))) == FIRST_FLIGHT
    # the first cancelled flight lacks numbers and has texts
    flight = json.loads(next(islice(sample.flights(), 838, None)))
    assert flight["dep_time"] is None
    assert flight["air_time"] is None
    assert flight["tailnum"] == "N18120"


def test_the_package_itself_is_not_imported() -> None:
    next(iter(sample.flights()))
    assert sample.PACKAGE not in sys.modules


def test_files_are_consecutive_and_nearly_equal(tmp_path: Path) -> None:
    paths = sample.write_files(tmp_path / "new" / "folder", files=3, limit=1000)
    assert [path.name for path in paths] == ["flights-000.ndjson", "flights-001.ndjson", "flights-002.ndjson"]
    parts = [path.read_bytes() for path in paths]
    assert [part.count(b"\n") for part in parts] == [334, 333, 333]
    assert b"".join(parts) == b"".join(line + b"\n" for line in islice(sample.flights(), 1000))


def test_writing_again_gives_the_same_bytes(tmp_path: Path) -> None:
    first, again = (
        [path.read_bytes() for path in sample.write_files(tmp_path / name, files=4, limit=103)] for name in "ab"
    )
    assert first == again


@pytest.mark.thorough
def test_without_a_limit_nothing_is_left_out(tmp_path: Path) -> None:
    paths = sample.write_files(tmp_path, files=5, limit=None)
    assert sum(path.read_bytes().count(b"\n") for path in paths) == ALL_FLIGHTS


@pytest.mark.parametrize(("files", "limit"), [(0, None), (-1, 10), (11, 10), (2, 0), (1, -1)])
def test_an_impossible_split_is_refused(tmp_path: Path, files: int, limit: int | None) -> None:
    with pytest.raises(UsageError, match=r"cannot be"):
        sample.write_files(tmp_path, files, limit)


@pytest.mark.parametrize("spec", [None, ModuleSpec(sample.PACKAGE, None)])
def test_a_missing_package_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch, spec: ModuleSpec | None) -> None:
    monkeypatch.setattr(sample, "find_spec", lambda _name: spec)
    with pytest.raises(NotFoundError, match=r"pip install 'l0gc\[server\]'"):
        next(iter(sample.flights()))
