"""Files of an external log, of any bytes, are refused by name, or read as complete rows.

Another process reads them, and must survive.
"""

from __future__ import annotations

import gzip
import json
import resource
from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.errors import CorruptObjectError, UsageError
from l0gc.watermark import external_files
from l0gc.watermark.external_files import read_table
from tests.fuzz.mutations import fuzzing, hostile
from tests.fuzz.worker import KEY, READ, REFUSED, Worker


def table(first: int, rows: int) -> pa.Table:
    return pa.table(
        {
            "topic": [f"topic-{i % 3}" for i in range(rows)],
            "partition": list(range(rows)),
            "gc_epoch": [first + i for i in range(rows)],
            "revision": [None if i % 2 else 3 for i in range(rows)],
            "note": ["x"] * rows,
        }
    )


def parquet(t: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(t, sink)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def csv(t: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pa.csv.write_csv(t, sink)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def ndjson(t: pa.Table) -> bytes:
    lines = [json.dumps({**row, "note": [{}]}) for row in t.to_pylist()]
    return "".join(f"{line}\n" for line in lines).encode()


TABLES = table(5, 40), table(900, 3)
FILES = {
    "parquet": [parquet(t) for t in TABLES],
    "csv": [csv(t) for t in TABLES],
    "ndjson": [ndjson(t) for t in TABLES],
    "csv.gz": [gzip.compress(csv(t), mtime=0) for t in TABLES],
}
KINDS = [*FILES]


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def worker(kind: str) -> Iterator[Worker]:
    with Worker(kind) as started:
        yield started


def test_the_worker_reads_a_file(worker: Worker, kind: str) -> None:
    assert [worker.answer(body) for body in FILES[kind]] == [READ, READ]
    assert worker.answer(b"") == REFUSED


@pytest.mark.parametrize("kind", ["ndjson"], indirect=True)
@pytest.mark.parametrize("line", [b"null\n", b"\xef\xbb\xbfnull\n", b' null, "note": [{}]}\n', b"1\n", b'{}\n\t"x"\n'])
def test_a_line_that_is_not_an_object_is_refused(worker: Worker, kind: str, line: bytes) -> None:
    assert worker.answer(line + FILES[kind][0]) == REFUSED


@pytest.mark.parametrize("kind", ["ndjson"], indirect=True)
def test_a_byte_order_mark_and_an_object_of_several_lines_are_read(worker: Worker, kind: str) -> None:
    body = FILES[kind][0].replace(b', "', b',\n"', 1)
    assert body != FILES[kind][0]
    assert worker.answer(b"\xef\xbb\xbf" + body) == READ


@fuzzing(60)
@given(data=st.data())
def test_a_file_is_read_or_refused(worker: Worker, kind: str, data: st.DataObject) -> None:
    assert worker.answer(data.draw(hostile(FILES[kind][0], FILES[kind][1]))) in {READ, REFUSED}


@pytest.mark.thorough
@fuzzing(3000)
@given(data=st.data())
def test_any_file_is_read_or_refused(worker: Worker, kind: str, data: st.DataObject) -> None:
    assert worker.answer(data.draw(hostile(FILES[kind][0], FILES[kind][1]))) in {READ, REFUSED}


@fuzzing(100)
@given(st.sampled_from([k for k in KINDS if k != "csv.gz"]), st.data())
def test_a_cut_file_is_refused_or_ends_with_a_whole_line(kind: str, data: st.DataObject) -> None:
    """If only whole lines are missing, `_SUCCESS` or the number of partitions reveals it."""
    body = FILES[kind][0]
    cut = body[: data.draw(st.integers(0, len(body) - 1))]
    found = None
    with suppress(CorruptObjectError, UsageError):
        found = read_table(f"{KEY}.{kind}", cut, ("topic", "partition", "gc_epoch"))
    if found is None:
        return
    assert cut.endswith(b"\n")
    whole = read_table(f"{KEY}.{kind}", body, ("topic", "partition", "gc_epoch"))
    assert found.equals(whole.slice(0, found.num_rows))


@pytest.mark.parametrize("kind", ["ndjson"], indirect=True)
@pytest.mark.parametrize("deep", ["[" * 1_000_000, '{"a":' * 1_000_000, "[" * 1_000_000 + "]" * 1_000_000])
def test_what_is_nested_too_deep_is_read_past_or_refused(worker: Worker, deep: str) -> None:
    assert worker.answer(b'{"topic":"t","partition":0,"gc_epoch":1,"note":%s}\n' % deep.encode()) in {READ, REFUSED}
    assert worker.answer(b'{"topic":"t","partition":0,"gc_epoch":%s}\n' % deep.encode()) == REFUSED


@pytest.mark.parametrize("kind", ["csv", "ndjson", "parquet"])
def test_a_topic_that_is_no_text_is_refused(kind: str) -> None:
    no_text = pa.array([b"topic-\xff"], pa.binary()).view(pa.string())
    whole = pa.table({"topic": ["topic-1"], "partition": [0], "gc_epoch": [1]})
    body = {
        "parquet": parquet(whole.set_column(0, "topic", no_text)),
        "csv": csv(whole).replace(b"topic-1", b"topic-\xff"),
        "ndjson": b'{"topic":"topic-\xff","partition":0,"gc_epoch":1}\n',
    }[kind]
    with pytest.raises(CorruptObjectError, match=KEY):
        read_table(f"{KEY}.{kind}", body, ("topic", "partition", "gc_epoch"))


def test_a_column_whose_name_is_no_text_is_refused() -> None:
    with pytest.raises(CorruptObjectError, match=KEY):
        read_table(f"{KEY}.csv", b"topic,partition,gc_epoch,\xff\nt,0,1,2\n", ("topic", "partition", "gc_epoch"))


def test_a_gzip_bomb_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_files, "_UNPACKED_BYTES", 1 << 20)
    bomb = gzip.compress(bytes(100 << 20), compresslevel=1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UsageError, match=KEY):
        read_table(f"{KEY}.csv.gz", bomb, ("topic", "partition", "gc_epoch"))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 << 10
