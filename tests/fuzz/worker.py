"""Reads bytes that may crash the reader in a separate process: `python -m tests.fuzz.worker KIND`.

Each body on standard input (its length in 8 bytes, then itself) is answered in one line: `read`, `refused`, or what
else was raised. A process that died or does not answer is the test's finding, as is one that takes much memory.
"""

from __future__ import annotations

import itertools
import re
import resource
import select
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, Self
from unittest import mock

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from l0gc.errors import CorruptObjectError, UsageError
from l0gc.streamlog.ingest.extents import decode_block
from l0gc.streamlog.ingest.extents import select as select_rows
from l0gc.streamlog.ingest.headers_and_times import Headers, headers_list, times_of
from l0gc.streamlog.journal.rows import EXTENT
from l0gc.streamlog.journal.topic import Block, L1File
from l0gc.streamlog.level_one import parquet as level_one_parquet
from l0gc.streamlog.level_one.parquet import RECORD, WantedFile, chunks, decode, fetch_chunk, open_l1, wanted_groups
from l0gc.watermark.external_files import read_table
from tests.fuzz.strict_store import StrictStore
from tests.support.blocks import Chunk

RECORDS: Final = 40
FEWER: Final = 7
"""How many records of another partition follow the first one's in a block."""
KEY: Final = "the/key"
TIME_MS: Final = 1_700_000_000_000
MOST_BYTES: Final = 64 << 10
"""The most bytes that a block unpacks to, according to the log."""
NAMES: Final = ("offset", *RECORD)
READ, REFUSED = "read", "refused"
_ADDRESSES: Final = 4 << 30
_TAKEN: Final = 512 << 20
"""How many bytes of memory the process may take for a body of some kilobytes."""
_ANSWER_S: Final = 20.0


def chunk(first: int = 0, partition: int = 0, records: int = RECORDS) -> Chunk:
    """Return the records of the tests' objects."""
    numbers = range(first, first + records)
    return Chunk(
        partition, [b"value %d" % (i * i) for i in numbers], [None if i % 3 else b"key-%d" % i for i in numbers]
    )


def with_headers(first: int = 0, partition: int = 0, records: int = RECORDS) -> Chunk:
    """Return the same records with create times, and some of them with headers."""
    numbers = range(first, first + records)
    headers: list[Headers] = [(("k", None if i % 2 else b"v"),) * (i % 4) for i in numbers]
    return replace(chunk(first, partition, records), create_times=[i % 5 - 1 for i in numbers], headers=headers)


def read_block(body: bytes) -> None:
    """Read a block as both readers of blocks do, with a checksum in the log that fits, so that only later checks can
    refuse it.
    """
    block = Block(0, len(body), crc32c(body), MOST_BYTES, TIME_MS)
    for row, records in ((0, RECORDS), (RECORDS, FEWER)):
        extent = np.array([(0, 0, row, records, 0)], EXTENT)
        rows = select_rows(decode_block(body, KEY, block, row + records), extent)
        assert rows.num_rows == records
        assert all(isinstance(v, bytes) for v in rows.column("value").to_pylist())
        assert all(k is None or isinstance(k, bytes) for k in rows.column("key").to_pylist())
        rows.validate(full=True)
        if "headers" in rows.schema.names:
            assert len(headers_list(rows.column("headers"))) == len(times_of(rows.column("create_time"))) == records
    extents = np.array([(0, 0, 0, RECORDS, 0), (1, 0, RECORDS, FEWER, 0)], EXTENT)
    assert _checked(select_rows(decode_block(body, KEY, block, RECORDS + FEWER), extents)) == RECORDS + FEWER


def read_l1_object(body: bytes) -> None:
    """Read an L1 object as readers of a topic do, row group by row group, and as a merge does, which fetches it whole."""
    named = re.search(rb"level_one/data/[ -~]{1,200}?\.parquet", body)  # the changed bytes may include the key
    key = named[0].decode() if named is not None else KEY
    store = StrictStore()
    store.put(key, body)
    file = L1File(0, 0, RECORDS - 1, len(body), 0, 3, str(uuid.UUID(int=1)))
    for start, whole_bytes in itertools.product((0, RECORDS // 2), (0, len(body))):
        with mock.patch.object(level_one_parquet, "_LEAST_TAIL", 8):
            opened = open_l1(store, WantedFile(key, file, start, RECORDS), whole_bytes=whole_bytes)
        found = 0
        for part in chunks(opened, wanted_groups(opened)):
            found += sum(_checked(batch.select(RECORD)) for _, batch in decode(fetch_chunk(store, part, NAMES), NAMES))
        assert found == RECORDS


def _checked(records: pa.RecordBatch) -> int:
    """Check the records, and return their number."""
    assert records.schema.names[:3] == ["timestamp", "key", "value"]
    assert records.column(0).null_count == 0
    assert all(isinstance(v, bytes) for v in records.column(2).to_pylist())
    return int(records.num_rows)


def read_external(suffix: str, body: bytes) -> None:
    """Check that each row read from another system's file has a topic, a partition and a number."""
    for row in read_table(f"{KEY}.{suffix}", body, ("topic", "partition", "gc_epoch")).to_pylist():
        assert isinstance(row["topic"], str)
        assert isinstance(row["partition"], int)
        assert isinstance(row["gc_epoch"], int)


READERS: Final[dict[str, Callable[[bytes], None]]] = {
    "block": read_block,
    "l1": read_l1_object,
    **{kind: partial(read_external, kind) for kind in ("parquet", "csv", "ndjson", "csv.gz")},
}


class Worker:
    """The reading process, which is restarted when it has died."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._end()

    def _end(self) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.kill()
        with process:
            return process.wait()

    def answer(self, body: bytes) -> str:
        """Return the process's answer for the body."""
        if self._process is None:
            command = [sys.executable, "-m", "tests.fuzz.worker", self._kind]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(len(body).to_bytes(8) + body)
        process.stdin.flush()
        if not select.select([process.stdout], [], [], _ANSWER_S)[0]:
            self._end()
            return f"no answer in {_ANSWER_S} s"
        line = process.stdout.readline().decode().strip()
        if not line:
            process.wait()
            return f"the process ended with {self._end()}"
        return line


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _answer(read: Callable[[bytes], None], body: bytes) -> str:
    before = _peak_bytes()
    try:
        read(body)
        answer = READ
    except (CorruptObjectError, UsageError) as e:
        answer = (
            REFUSED if any(named in str(e) for named in (KEY, "level_one/data/")) else f"refused without the name: {e}"
        )
    except BaseException as e:  # noqa: BLE001
        answer = f"{type(e).__name__}: {e}"
    taken = _peak_bytes() - before
    return answer if taken < _TAKEN else f"{answer}, and took {taken >> 20} MiB"


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES, _ADDRESSES))
    read = READERS[sys.argv[1]]
    while size := sys.stdin.buffer.read(8):
        body = sys.stdin.buffer.read(int.from_bytes(size))
        sys.stdout.write(_answer(read, body).replace("\n", " ") + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
