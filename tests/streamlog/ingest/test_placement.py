"""The places of records: the same place every time, and an error names a record that has none."""

from __future__ import annotations

import re
import time
import zlib

import pytest

from l0gc.errors import UsageError
from l0gc.streamlog.ingest import placement
from l0gc.streamlog.ingest.headers_and_times import NO_TIME
from l0gc.streamlog.ingest.placement import (
    Partitioner,
    PlacedRecords,
    by_field,
    fixed_partition,
    in_turn,
    record_placer,
    with_times,
)


def placed(p: PlacedRecords) -> list[tuple[int, bytes | None]]:
    assert p.error is None
    return list(zip(p.partitions.tolist(), p.keys, strict=True))


def test_round_robin_begins_anew_with_each_input() -> None:
    spread = in_turn(3)
    for name in ("a", "b"):
        place = spread.start(name)
        assert [placed(place([b"x"] * n)) for n in (4, 1)] == [
            [(0, None), (1, None), (2, None), (0, None)],
            [(1, None)],
        ]


def test_fixed_goes_to_one_partition_which_must_exist() -> None:
    assert placed(fixed_partition(2, 3).start("a")([b"x", b"y"])) == [(2, None)] * 2
    for partition in (-1, 3):
        with pytest.raises(UsageError, match=f"partition {partition} is out of range: .* 0 to 2"):
            fixed_partition(partition, 3)


@pytest.mark.parametrize(
    ("record", "key"),
    [
        (b'{"user":"ada","n":1}', b"ada"),
        (b' { "n" : 1 , "user" : "ada" } \r', b"ada"),
        (b'{"user":"\\u0061da"}', b"ada"),
        ('{"user":"Å"}'.encode(), "Å".encode()),
        (b'{"user":""}', b""),
        (b'{"user":17}', b"17"),
        (b'{"user":null}', b"null"),
        (b'{"user":["a",1]}', b'["a",1]'),
        (b'{"user":"ada","said":"\\ud83d"}', b"ada"),
        (b'{"said":["\\ud83d\\ude00 \\\\ud83d \\udE00 \\ud83d"],"user":17.50}', b"17.50"),
    ],
)
def test_a_field_becomes_the_key_and_decides_the_partition(record: bytes, key: bytes) -> None:
    place = by_field("user", 7).start("in")
    expected = (zlib.crc32(key) % 7, key)
    assert placed(place([record])) == [expected]
    assert placed(place([record, b'{"user":1}', record])) == [expected, (zlib.crc32(b"1") % 7, b"1"), expected]
    assert placed(place([record])) == [expected]  # whichever records came before


@pytest.mark.parametrize("field", ["user id", "class", "ключ", "a.b"])
def test_a_field_may_have_any_name(field: str) -> None:
    assert by_field(field, 7).start("in")([f'{{"{field}":"x"}}'.encode()]).keys == [b"x"]


def test_more_keys_than_are_remembered_go_where_they_belong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "_CACHED_KEYS", 3)
    place = by_field("n", 7).start("in")
    for _ in range(2):
        found = placed(place([b'{"n":"%d"}' % n for n in range(10)]))
        assert found == [(zlib.crc32(b"%d" % n) % 7, b"%d" % n) for n in range(10)]


@pytest.mark.parametrize("partition", [-2, 7])
def test_a_record_that_names_a_partition_out_of_range_is_refused(partition: int) -> None:
    fields = [(b"x", None, (), NO_TIME, 6), (b"y", None, (), NO_TIME, partition)]
    found = record_placer(in_turn(7), 7, "in")(fields)
    assert found.partitions.tolist() == [6]
    assert f"in record 2 names partition {partition}" in str(found.error)


def test_a_time_without_a_zone_is_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        times = with_times(in_turn(1), "at").start("in")([b'{"at":"2026-01-01T00:00:00"}']).times
    finally:
        monkeypatch.undo()
        time.tzset()
    assert times is not None
    assert times.tolist() == [1_767_225_600_000]


def test_no_more_keys_are_remembered_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "_CACHED_KEYS", 3)
    places = placement._PlacedKeys(7, str.encode)
    for n in range(10):
        assert places[str(n)][1] == b"%d" % n
        assert len(places) <= 3


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b'{"name":"ada"}', "day-1 line 3 has no field 'user'"),
        (b"", "day-1 line 3 is blank, and --key-field needs a JSON object"),
        (b" ", "day-1 line 3 is blank"),
        (b"ada", "day-1 line 3 is not a JSON object"),
        (b"[1]", "day-1 line 3 is not a JSON object"),
        (b'{"user":"ada"', "day-1 line 3 is not a JSON object"),
        (b'{"user":"\xff"}', "day-1 line 3 is not a JSON object"),
        (b'{"user":"\\ud800"}', "day-1 line 3 is not a JSON object"),
        (
            b'{"user":"ada \\ude00","said":"\\ud83d"}',
            "day-1 line 3 is not a JSON object .the field holds half of a surr",
        ),
        (b'{"user":"\\x"}', "day-1 line 3 is not a JSON object"),
        (b'{"n":' + b"[" * 100_000 + b"]" * 100_000 + b',"user":"ada"}', "day-1 line 3 is not a JSON object"),
    ],
    ids=lambda v: str(v)[:30],
)
def test_a_misplaced_record_is_named_by_source_and_line(record: bytes, message: str) -> None:
    place = by_field("user", 7).start("day-1")
    placed(place([b'{"user":"ada"}']))
    found = place([b'{"user":"bob"}', record, b'{"user":"eve"}'])
    assert found.keys == [b"bob"]  # the records before the bad one are placed
    assert len(found.partitions) == 1
    assert isinstance(found.error, UsageError)
    assert re.match(message, str(found.error))


def test_lines_are_counted_for_each_input() -> None:
    spread = by_field("user", 7)
    spread.start("day-1")([b'{"user":"ada"}'])
    assert "day-2 line 1 " in str(spread.start("day-2")([b"{}"]).error)


def test_spreads_that_differ_say_so() -> None:
    spreads: list[Partitioner] = [
        fixed_partition(0, 2),
        fixed_partition(1, 2),
        in_turn(2),
        in_turn(3),
        by_field("a", 2),
        by_field("b", 2),
    ]
    assert len({s.describe for s in [*spreads, by_field("a", 3)]}) == 7
