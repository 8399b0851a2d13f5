"""`l0gc upload` of files that are packed, or that are no lines."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

import l0gc as library
from l0gc.errors import UsageError
from l0gc.storage.config import StoreConfig
from tests.support.cli import ended_here, founded, l0gc, printed

pytestmark = pytest.mark.weed
LINES = b'{"n":1}\n{"n":2}\n'


def test_a_packed_file_lands_once_under_a_producer_whatever_it_is_packed_with(
    bucket: StoreConfig, tmp_path: Path
) -> None:
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


def test_an_input_without_lines_gets_a_sentence_and_is_sent_only_as_raw(bucket: StoreConfig, tmp_path: Path) -> None:
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
