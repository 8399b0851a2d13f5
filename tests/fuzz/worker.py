"""Readers of bytes that may take the process down, in a process of their own: `python -m tests.fuzz.worker KIND`.

Each body on standard input (its length in 8 bytes, then itself) is answered in one line: `read`, `refused`, or what else
was raised. A process that died or does not answer is the test's finding, as is one that asks for too much memory.
"""

from __future__ import annotations

import resource
import select
import subprocess
import sys
from collections.abc import Callable
from typing import Final, Self

from crc32c import crc32c

from l0gc.errors import CorruptObjectError
from l0gc.streamlog import reader
from l0gc.streamlog.ingest import extents
from l0gc.streamlog.ingest.extents import Chunk
from l0gc.streamlog.journal.entries import L1File, Placeholder
from l0gc.watermark.reports import read_report_file
from tests.support.memory_store import MemoryStore

RECORDS: Final = 40
_MEMORY: Final = 4 << 30
_ANSWER_S: Final = 20.0


def chunk(first: int = 0) -> Chunk:
    """What the extents of the tests hold."""
    numbers = range(first, first + RECORDS)
    keys = [None if i % 3 else b"key-%d" % i for i in numbers]
    return Chunk(0, 1_700_000_000_000 + first, [b"value %d" % (i * i) for i in numbers], keys)


def read_extent(body: bytes) -> None:
    """As a reader does, with a checksum in the log that fits: what is left when that has let it through."""
    extent = Placeholder("the/key", 0, len(body), RECORDS, crc32c(body), 0)
    unpacked = extents.unpack(body, extent, 0, [])
    assert len(unpacked.values) == len(unpacked.keys) == RECORDS
    assert all(isinstance(v, bytes) for v in unpacked.values)


def read_report(body: bytes) -> None:
    read_report_file(body, "the/key").to_pylist()


def read_l1(body: bytes) -> None:
    store = MemoryStore()
    store.put("the/key", body)
    batches = reader._l1_batches(store, L1File("the/key", 0, RECORDS - 1, len(body)))
    assert len(list(reader._records(0, batches, 0, RECORDS))) == RECORDS


READERS: Final[dict[str, Callable[[bytes], None]]] = {"extent": read_extent, "report": read_report, "l1": read_l1}


class Worker:
    """The process, begun anew when it has died."""

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
        """What the process made of the body."""
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


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    read = READERS[sys.argv[1]]
    while size := sys.stdin.buffer.read(8):
        body = sys.stdin.buffer.read(int.from_bytes(size))
        try:
            read(body)
            answer = "read"
        except CorruptObjectError as e:
            answer = "refused" if "the/key" in str(e) else f"refused without the name: {e}"
        except BaseException as e:  # noqa: BLE001
            answer = f"{type(e).__name__}: {e}"
        sys.stdout.write(answer.replace("\n", " ") + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
