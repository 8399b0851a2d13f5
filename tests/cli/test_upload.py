"""`l0gc upload` of files that are packed, that are not lines, or whose records have a create time."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import l0gc as library
from l0gc.api import Record
from l0gc.errors import UsageError
from l0gc.storage.config import StoreConfig
from tests.support.cli import ended_here, founded, l0gc, printed

pytestmark = pytest.mark.weed
LINES = b'{"n":1}\n{"n":2}\n'


def test_a_producers_packed_file_lands_once_whatever_its_compression(bucket: StoreConfig, tmp_path: Path) -> None:
    founded(1)
    plain, packed = tmp_path / "day.ndjson", tmp_path / "day.ndjson.gz"
    plain.write_bytes(b"\xef\xbb\xbf" + LINES)
    packed.write_bytes(gzip.compress(LINES))
    assert l0gc("upload", "events", str(packed), "--producer", "nightly")["records"] == 2
    again = l0gc("upload", "events", str(plain), "--producer", "nightly")
    assert (again["records"], again["skipped"]) == (0, 2)
    ended = ended_here("upload", "events", "-", "--producer", "nightly", "--json", stdin=gzip.compress(LINES, 1))
    assert ended.data["skipped"] == 2
    assert printed("read", "events") == LINES


def test_an_input_without_lines_is_accepted_only_as_raw(bucket: StoreConfig, tmp_path: Path) -> None:
    founded(1)
    fine, table = tmp_path / "fine", tmp_path / "table.csv"
    fine.write_bytes(LINES)
    table.write_bytes(b"n,m\n1,2\n")
    ended = ended_here("upload", "events", str(fine), str(table))
    assert (ended.code, ended.stdout) == (2, b"")
    assert "table.csv is CSV, and upload takes newline-delimited records" in ended.stderr
    assert printed("read", "events") == b""
    assert l0gc("upload", "events", str(table), "--format", "raw")["records"] == 2
    with library.open(bucket.url) as cluster:
        with pytest.raises(UsageError, match="is CSV"):
            cluster.upload("events", table)
        assert cluster.upload("events", table, format="raw").records == 2


def test_read_as_json_includes_create_times_and_headers(bucket: StoreConfig, tmp_path: Path) -> None:
    """The records are in L0 and in L1, in a partition with records that have both, one of them, or neither."""
    founded(1)
    timed, plain = tmp_path / "timed", tmp_path / "plain"
    timed.write_bytes(b'{"at":1704067200007}\n{"at":"2024-01-01T02:00:00+02:00"}\n')
    plain.write_bytes(b"plain\n")
    assert l0gc("upload", "events", str(timed), "--timestamp-field", "at")["records"] == 2
    l0gc("upload", "events", str(plain))
    with library.open(bucket.url) as cluster, cluster.producers.sender("events", "bridge") as sender:
        headers = (("a", b"1"), ("a", None), ("b", b"\xff"))
        sender.send(
            [
                Record(b"both", b"k", headers, 1704067200009, partition=0),
                Record(b"headed", headers=headers, partition=0),
            ],
            {0: 2},
        )
    shown = [{"key": "a", "value": "1"}, {"key": "a", "value": None}, {"key": "b", "value_base64": "/w=="}]
    more: list[dict[str, Any]] = [{"create_time_ms": 1704067200007}, {"create_time_ms": 1704067200000}, {}]
    more += [{"create_time_ms": 1704067200009, "headers": shown}, {"headers": shown}]
    values = ['{"at":1704067200007}', '{"at":"2024-01-01T02:00:00+02:00"}', "plain", "both", "headed"]
    for _ in range(2):
        found = json.loads(printed("read", "events", "--json"))
        assert {type(r.pop("timestamp_ms")) for r in found["records"]} == {int}
        assert found == {"topic": "events", "count": 5, "records": [
            m | {"partition": 0, "offset": n, "key": "k" if value == "both" else None, "value": value}
            for n, (value, m) in enumerate(zip(values, more, strict=True))
        ]}  # fmt: skip
        assert printed("read", "events").decode().splitlines() == values
        l0gc("reconcile")


def test_a_missing_create_time_refuses_the_whole_batch(bucket: StoreConfig, tmp_path: Path) -> None:
    founded(1)
    day = tmp_path / "day"
    cases = {
        b'{"n":1}': "has no field 'at', which --timestamp-field requires",
        b'{"at":"soon"}': "has a field 'at' that is not a time (Invalid",
        b'{"at":-1}': "has a field 'at' that is not a time (-1 is not in the years 1970 to 9999)",
        b'{"at":253402300800000}': "has a field 'at' that is not a time (253402300800000 is not in the years",
        b'{"at":1704067200}': "has a field 'at' that is not a time (1704067200 milliseconds are 1970-01-20",
        b"plain": "is not a JSON object",
    }
    for wrong, said in cases.items():
        day.write_bytes(b'{"at":0}\n%b\n{"at":0}\n' % wrong)
        ended = ended_here("upload", "events", str(day), "--timestamp-field", "at")
        assert (ended.code, ended.stdout) == (2, b"")
        assert f"{day} line 2 {said}" in ended.stderr
    assert printed("read", "events") == b""
