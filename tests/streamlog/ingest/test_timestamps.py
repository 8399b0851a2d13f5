"""Create times from a field of the record: every form of time is read, and an error names a record without one."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from l0gc.errors import UsageError
from l0gc.operations import TimestampUnit, Upload
from l0gc.streamlog.ingest.headers_and_times import MAX_TIME_MS
from l0gc.streamlog.ingest.placement import by_field, in_turn, with_times
from l0gc.streamlog.ingest.uploader import open_upload
from l0gc.streamlog.reader import read_topic
from tests.support.memory_store import topic_in_memory

T0 = 1_704_067_200_000


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        (b"0", 0),
        (b"1704067200000", 1704067200000),
        (b"1704067200000.7", 1704067200000),
        (b"%d" % MAX_TIME_MS, MAX_TIME_MS),
        (b'"2024-01-01T00:00:00Z"', 1704067200000),
        (b'"2024-01-01T02:00:00+02:00"', 1704067200000),
        (b'"2024-01-01T00:00:00"', 1704067200000),
        (b'"2024-01-01T00:00:00.123456Z"', 1704067200123),
    ],
)
def test_a_number_or_a_time_is_the_create_time(time: bytes, expected: int) -> None:
    placed = with_times(in_turn(2), "at").start("in")([b'{"at":%b}' % time, b'{"n":1,"at":1704067200007}'])
    assert placed.error is None
    assert placed.times is not None
    assert placed.times.tolist() == [expected, 1704067200007]
    assert placed.partitions.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b'{"n":1}', "day-1 line 4 has no field 'at', which --timestamp-field requires"),
        (b"", "day-1 line 4 is blank, and --timestamp-field needs a JSON object"),
        (b"ada", "day-1 line 4 is not a JSON object"),
        (b"[1]", "day-1 line 4 is not a JSON object"),
        (b"5", "day-1 line 4 is not a JSON object"),
        (b'{"at":1', "day-1 line 4 is not a JSON object"),
        (b"[" * 100_000, "day-1 line 4 is not a JSON object"),
        *(
            (b'{"at":%b}' % wrong, "day-1 line 4 has a field 'at' that is not a time (")
            for wrong in (
                b"null",
                b"true",
                b'"yesterday"',
                b'"2024-01-01"',
                b"-1",
                b"%d" % (MAX_TIME_MS + 1),
                b"1e300",
                b"{}",
            )
        ),
        (b'{"at":"0001-01-01T00:00:00+14:00"}', "day-1 line 4 has a field 'at' that is not a time ("),
    ],
)
def test_a_record_without_a_time_is_named_after_earlier_ones(record: bytes, message: str) -> None:
    place = with_times(in_turn(2), "at").start("day-1")
    assert place([b'{"at":0}', b'{"at":0}']).error is None
    placed = place([b'{"at":1704067200003}', record, b'{"at":0}'])
    assert placed.error is not None
    assert re.match(re.escape(message), str(placed.error))
    assert placed.error.exit_code == 2
    assert placed.times is not None
    assert (placed.times.tolist(), placed.partitions.tolist(), len(placed.keys)) == ([1704067200003], [0], 1)


def test_keys_count_towards_a_records_size_beside_its_time() -> None:
    placed = with_times(by_field("user", 2), "at").start("in")([b'{"user":"abc","at":1704067200003}', b'{"user":"a"}'])
    assert placed.more is not None
    assert placed.more.tolist() == [3]


def test_the_first_record_that_is_wrong_is_named_whichever_field_it_lacks() -> None:
    place = with_times(by_field("user", 2), "at").start("in")
    assert "line 1 has no field 'at'" in str(place([b'{"user":"a"}', b'{"at":0}']).error)
    assert "line 3 has no field 'user'" in str(place([b'{"at":0}', b'{"user":"a"}']).error)


def test_an_upload_that_is_repeated_keeps_each_time_with_its_record(tmp_path: Path) -> None:
    """A repeat skips the records that landed, and a different field makes it a different input."""
    cluster = topic_in_memory(3, 2)
    file = tmp_path / "in.ndjson"
    lines = [b'{"at":%d,"other":%d}' % (T0 + n, T0 + n + 1000) for n in range(50)]

    def upload(count: int, timestamp_field: str | None = None) -> tuple[int, int]:
        file.write_bytes(b"\n".join(lines[:count] if count == 50 else [*lines[:count], b"{}"]))
        with ExitStack() as stack:
            given: dict[str, Any] = {"producer": "p", "timestamp_field": timestamp_field}
            uploader, inputs = open_upload(cluster, "events", [file], stack, Upload(batch_bytes=200, **given))
            result = uploader.run(inputs)
        return result.records, result.skipped

    assert upload(50, timestamp_field="at") == (50, 0)
    assert upload(50, timestamp_field="at") == (0, 50)
    assert upload(50, timestamp_field="other") == (50, 0)
    assert upload(50) == (50, 0)
    found = [(r.value, r.create_time_ms) for r in read_topic(cluster, cluster.controller.snapshot().topic("events"))]
    assert Counter(found) == Counter((v, t) for n, v in enumerate(lines) for t in (T0 + n, T0 + n + 1000, None))
    with pytest.raises(UsageError, match="line 4 has no field 'at'"):
        upload(3, timestamp_field="at")


@pytest.mark.parametrize("number", [b"1704067200", b"1", b"631151999999"])
def test_a_number_before_1990_is_refused_unless_its_unit_is_named(number: bytes) -> None:
    placed = with_times(in_turn(2), "at").start("in")([b'{"at":%b}' % number])
    assert re.search(
        r"milliseconds are 19[78]\d-.*, so it is probably in another unit; name it with", str(placed.error)
    )
    named = with_times(in_turn(2), "at", "ms").start("in")([b'{"at":%b}' % number])
    assert (named.error, named.times is not None and named.times.tolist()) == (None, [int(number)])
    old = with_times(in_turn(2), "at").start("in")([b'{"at":"1985-01-01T00:00:00Z"}'])
    assert (old.error, old.times is not None and old.times.tolist()) == (None, [473385600000])


@pytest.mark.parametrize(
    ("unit", "number", "most"),
    [
        ("s", b"1704067200.123", 253402300799),
        ("ms", b"1704067200123", MAX_TIME_MS),
        ("us", b"1704067200123456", MAX_TIME_MS * 1000),
        ("ns", b"1704067200123456789", 2**63 - 1),
    ],
)
def test_a_number_is_read_in_the_unit_that_is_named(unit: TimestampUnit, number: bytes, most: int) -> None:
    placed = with_times(in_turn(1), "at", unit).start("in")([b'{"at":%b}' % number, b'{"at":%d}' % most])
    assert placed.error is None
    assert placed.times is not None
    assert placed.times[0] == 1704067200123
    assert placed.times[1] <= MAX_TIME_MS
    wrong = with_times(in_turn(1), "at", unit).start("in")([b'{"at":%d}' % (2 * most + 2)])
    assert unit == "ns" or "is not in the years 1970 to 9999" in str(wrong.error)
