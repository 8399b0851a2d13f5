"""What is accepted can be read back, lifted, merged and deleted, at every limit; anything else is refused with the
number before anything lands (hazard 39).

Sizes are scaled down: a limit is a constant of `l0gc/limits.py`, and a test gives it another value, everywhere at once.
The unscaled limits have tests, too; those that take GiB are thorough.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import l0gc.limits
from l0gc.errors import CorruptObjectError, UsageError
from l0gc.integrations.spark.options import write_options
from l0gc.keys import DEFAULT_TEMPLATE, PartitionId, journal_log, level_one
from l0gc.limits import (
    LONGEST_KEY_BYTES,
    MAX_BATCH_BYTES,
    MAX_FOOTER_BYTES,
    MAX_GROUP_BYTES,
    MAX_KEY_BYTES,
    MAX_OBJECT_BYTES,
    MAX_PREFIX_BYTES,
    MAX_RECORD_BYTES,
)
from l0gc.operations import Read, Upload
from l0gc.storage.config import StoreConfig
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.entries import check_cluster_settings
from l0gc.streamlog.ingest.headers_and_times import Headers, Record
from l0gc.streamlog.ingest.records import records_of as as_fields
from l0gc.streamlog.ingest.sender import open_sender
from l0gc.streamlog.journal.admission import check_object
from l0gc.streamlog.journal.entries import ObjectExtents
from l0gc.streamlog.journal.topic import l1_key
from l0gc.streamlog.level_one import write
from l0gc.streamlog.level_one.give_up import give_up
from l0gc.streamlog.level_one.merge_plan import MergeRule
from l0gc.streamlog.level_one.parquet import L1_SCHEMA, PARTITION, WantedFile, open_l1
from l0gc.streamlog.reader import read_topic
from l0gc.streamlog.topics import delete_topic
from tests.simulation.mutants.tools import everywhere
from tests.support.deep import deep_findings
from tests.support.l1_files import l1_body
from tests.support.memory_store import MemoryStore, another_process, store_of, topic_in_memory
from tests.support.merge import merge
from tests.support.reconcile import files, partition_of, put, reconcile
from tests.support.spark_source import read as read_in_spark
from tests.support.spark_source import write_batch
from tests.support.vacuum import vacuum_later

PARTITIONS = 2


@contextmanager
def scaled(**limits: int) -> Iterator[None]:
    """Give limits these values in every module."""
    with ExitStack() as stack:
        for name, value in limits.items():
            stack.enter_context(everywhere("l0gc.limits", name, value))
        yield


def records_of(cluster: ClusterHandles) -> list[Record]:
    topic = cluster.controller.snapshot().topic("events")
    return list(read_topic(another_process(cluster), topic, Read()))


def plain(records: Sequence[Record]) -> list[tuple[int, bytes, bytes | None, Headers]]:
    return sorted(((r.partition, r.value, r.key, r.headers) for r in records), key=repr)


Road = Callable[[ClusterHandles, Sequence[Record]], object]


def send(cluster: ClusterHandles, records: Sequence[Record]) -> None:
    with open_sender(cluster, "events", "bridge") as sender:
        positions = {p: 1 + n for n, p in enumerate(sorted({r.partition for r in records}))}
        sender.send(records, {p: sender.positions.get(p, 0) + at for p, at in positions.items()})


def sink(cluster: ClusterHandles, records: Sequence[Record]) -> None:
    write_batch(
        cluster,
        {
            "value": [r.value for r in records],
            "key": [r.key for r in records],
            "partition": [r.partition for r in records],
            "headers": [[{"key": k, "value": v} for k, v in r.headers] or None for r in records],
        },
        topic="events",
    )


def refuse_or_live_with(cluster: ClusterHandles, records: Sequence[Record], road: Road) -> bool:
    """Check that accepted records go their whole way, and that a refusal names a number and lands nothing."""
    cluster.journal(0).catch_up()
    before, refused = cluster.journal(0).replica.offset, ""
    try:
        road(cluster, records)
    except UsageError as e:
        refused = str(e)
    if refused:
        assert re.search(r"[0-9]", refused), refused
        cluster.journal(0).catch_up()
        assert cluster.journal(0).replica.offset == before
        return False
    expected = plain(records)
    assert plain(records_of(cluster)) == expected
    assert deep_findings(another_process(cluster)) == []
    reconcile(cluster)
    assert plain(records_of(cluster)) == expected
    road(cluster, records[:1])
    reconcile(cluster)
    assert not merge(cluster).errors
    assert plain(records_of(cluster)) == plain([*records, records[0]])
    assert deep_findings(another_process(cluster)) == []
    delete_topic(cluster, "events")
    vacuum_later(cluster)
    vacuum_later(cluster)
    assert not [k for k in store_of(cluster).objects if k.startswith("level_one/")]
    return True


_SIZES = st.one_of(st.integers(0, 40), st.integers(240, 264), st.just(256))
_RECORDS = st.lists(
    st.builds(
        lambda value, key, headers, partition: Record(
            bytes(value),
            None if key is None else bytes(key),
            tuple(("k" * k, bytes(v)) for k, v in headers),
            None,
            partition,
        ),
        _SIZES,
        st.none() | _SIZES,
        st.lists(st.tuples(st.integers(0, 9), st.integers(0, 20)), max_size=3),
        st.integers(0, PARTITIONS - 1),
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.parametrize("road", [send, sink])
@settings(max_examples=25, deadline=None)
@given(records=_RECORDS)
def test_what_a_writer_accepts_is_read_lifted_merged_and_deleted(road: Road, records: list[Record]) -> None:
    with scaled(MAX_RECORD_BYTES=256, MAX_OBJECT_BYTES=1024, MAX_GROUP_BYTES=64 << 10):
        refuse_or_live_with(topic_in_memory(PARTITIONS), records, road)


@pytest.mark.parametrize("road", [send, sink])
@pytest.mark.parametrize(("sizes", "lands"), [((256,), True), ((257,), False), ((200,) * 4, True), ((256,) * 5, False)])
def test_the_limits_of_records_and_objects_are_exact(road: Road, sizes: Sequence[int], lands: bool) -> None:
    with scaled(MAX_RECORD_BYTES=256, MAX_OBJECT_BYTES=1024):
        records = [Record(bytes(n), partition=i % PARTITIONS) for i, n in enumerate(sizes)]
        assert refuse_or_live_with(topic_in_memory(PARTITIONS), records, road) is lands


@pytest.mark.parametrize("road", [send, sink])
def test_keys_and_headers_around_64_kib_are_stored_whole(road: Road) -> None:
    around = [(1 << 16) + d for d in (-1, 0, 1)]
    records = [Record(b"v", bytes(n), (("k" * n, bytes(n)),), None, 0) for n in around]
    assert refuse_or_live_with(topic_in_memory(PARTITIONS), records, road)


def test_more_records_than_an_object_may_hold_are_refused_with_the_number() -> None:
    value = bytes(MAX_RECORD_BYTES)
    cluster = topic_in_memory(1)
    many = [Record(value, partition=0)] * (
        MAX_OBJECT_BYTES // MAX_RECORD_BYTES + 1
    )  # one value, so that it takes no memory
    with (
        open_sender(cluster, "events", "bridge") as sender,
        pytest.raises(UsageError, match=r"1,090,519,040 bytes of records are more than the 1,073,741,824"),
    ):
        sender.send(many, {0: len(many)})
    assert records_of(cluster) == []


@pytest.mark.thorough
def test_an_object_just_below_its_limit_is_read_and_lifted() -> None:
    """This test is unscaled: about 1 GiB of records in one block, which takes some GiB of memory."""
    cluster = topic_in_memory(1)
    many = [Record(bytes(MAX_RECORD_BYTES - 64), partition=0)] * (MAX_OBJECT_BYTES // MAX_RECORD_BYTES)
    with open_sender(cluster, "events", "bridge") as sender:
        sender.send(many, {0: len(many)})
    assert sum(len(r.value) for r in records_of(cluster)) == len(many) * (MAX_RECORD_BYTES - 64)
    reconcile(cluster)
    assert sum(len(r.value) for r in records_of(cluster)) == len(many) * (MAX_RECORD_BYTES - 64)
    assert deep_findings(cluster) == []


# -- admission ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", ["bytes", "length"])
def test_admission_refuses_blocks_that_together_pass_the_limit(column: str) -> None:
    """The entry may come from another implementation, or from an older l0gc."""
    cluster = topic_in_memory(1)
    put(cluster, "events", {0: [b"a"]})
    topic = cluster.controller.snapshot().topic("events")
    (o,) = cluster.journal(0).catch_up().topics[topic.revision].objects
    blocks = np.repeat(o.blocks, 4)
    blocks[column], blocks["extents"] = MAX_OBJECT_BYTES // 4, 1
    numbers = np.arange(4, dtype="<i4").tobytes(), np.full(4, 1, "<i4").tobytes()
    fits = ObjectExtents("k", o.epoch, topic.revision, topic.topic_id, 0, blocks.tobytes(), *numbers)
    check_object(fits)
    blocks[column][0] += 1
    with pytest.raises(UsageError, match=r"blocks of 1,073,741,825 bytes, more than the 1,073,741,824"):
        check_object(ObjectExtents("k", o.epoch, topic.revision, topic.topic_id, 0, blocks.tobytes(), *numbers))


@pytest.mark.parametrize("given", [MAX_BATCH_BYTES + 1, 1 << 30])
def test_a_batch_above_its_limit_is_refused_by_every_road(given: int) -> None:
    with pytest.raises(UsageError, match=str(MAX_BATCH_BYTES)):
        write_options({"url": "s3://b", "topic": "t", "objectBytes": str(given)}, topic_column=False, streaming=False)
    with pytest.raises(UsageError, match=str(MAX_BATCH_BYTES)):
        Upload(batch_bytes=given)  # for the command, the library and the settings file


def test_the_largest_batch_and_its_last_record_fit_into_an_object() -> None:
    """A record weighs at least 16, and stores 20 bytes besides its own; its weight includes the sizes of headers."""
    assert MAX_BATCH_BYTES * 20 // 16 + MAX_RECORD_BYTES + 1024 < MAX_OBJECT_BYTES


def test_a_record_given_by_a_program_counts_with_its_key_and_headers() -> None:
    with scaled(MAX_RECORD_BYTES=100):
        assert list(as_fields([(b"k" * 50, b"v" * 50)]))
        with pytest.raises(UsageError, match="longer than 100 bytes"):
            list(as_fields([(b"k" * 51, b"v" * 50)]))


# -- L1 -------------------------------------------------------------------------------------------------------------------


def bomb(size: int) -> tuple[MemoryStore, WantedFile]:
    """Return an L1 object of some KB with a valid footer, one of whose values unpacks to this size."""
    cluster = topic_in_memory(1)
    put(cluster, "events", {0: [b"a"]})
    reconcile(cluster)
    (file,) = files(cluster, "events", 0)
    key = l1_key(partition_of(cluster, "events", 0), file)
    table = pa.table(
        [
            [0],
            pa.array([0], L1_SCHEMA.field("timestamp").type),
            pa.array([None], pa.binary()),
            [bytes(size)],
            [1],
            pa.array([0], pa.int32()),
        ],
        schema=pa.schema([*L1_SCHEMA, PARTITION]),
    )
    body = l1_body(table, key, compression="zstd", use_dictionary=False, write_statistics=False)
    store = store_of(cluster)
    store.objects[key].body = body
    return store, WantedFile(key, msgspec.structs.replace(file, bytes=len(body)), 0, 1)


def test_an_l1_object_that_unpacks_beyond_the_limit_is_refused() -> None:
    with scaled(MAX_GROUP_BYTES=10_000):
        store, wanted = bomb(9_000)
        open_l1(store, wanted)
        store, wanted = bomb(10_001)
        with pytest.raises(CorruptObjectError, match=r"would unpack to 10,[0-9]{3} bytes, more than the 10,000"):
            open_l1(store, wanted)


@pytest.mark.thorough
def test_512_mib_of_zeros_in_an_l1_object_are_refused_for_real() -> None:
    store, wanted = bomb(512 << 20)
    assert wanted.file.bytes < 100_000
    with pytest.raises(CorruptObjectError, match=f"more than the {MAX_GROUP_BYTES:,}"):
        open_l1(store, wanted)


def read_whole(cluster: ClusterHandles) -> None:
    list(read_topic(cluster, cluster.controller.snapshot().topic("events")))


def read_on_spark(cluster: ClusterHandles) -> None:
    read_in_spark(cluster, topic="events")


def merge_all(cluster: ClusterHandles) -> None:
    merged = merge(cluster, rule=MergeRule(fan_in=2))
    raise CorruptObjectError("; ".join(merged.errors))


def verify_deeply(cluster: ClusterHandles) -> None:
    raise CorruptObjectError("; ".join(deep_findings(cluster)))


@pytest.mark.parametrize("reader", [read_whole, read_on_spark, merge_all, verify_deeply])
@pytest.mark.parametrize(
    "encoded",
    [
        {"use_dictionary": ["value"]},
        {"use_dictionary": [], "column_encoding": {"key": "DELTA_BYTE_ARRAY"}},
        {"use_dictionary": [], "column_encoding": {"value": "DELTA_BYTE_ARRAY"}},
    ],
    ids=["dictionary", "keys by what differs", "values by what differs"],
)
def test_every_reader_refuses_encodings_that_repeat_long_values(
    monkeypatch: pytest.MonkeyPatch, encoded: dict[str, object], reader: Callable[[ClusterHandles], None]
) -> None:
    """A file of some KB that repeats a value of 1 MiB in each of a million rows would take a reader's memory."""
    cluster = topic_in_memory(1)
    for _ in range(4):
        put(cluster, "events", {0: [bytes(1000)] * 100})
        with monkeypatch.context() as m:
            m.setattr(write, "_PARQUET", {**write._PARQUET, **encoded})
            reconcile(cluster)
    with pytest.raises(CorruptObjectError, match="in an encoding that may repeat long values"):
        reader(another_process(cluster))


def test_a_footer_above_its_limit_is_refused_before_it_is_fetched() -> None:
    store, wanted = bomb(100)
    with scaled(MAX_FOOTER_BYTES=100), pytest.raises(CorruptObjectError, match=r"has a footer of .* more than the 100"):
        open_l1(store, wanted)


def test_row_groups_of_long_and_short_records_stay_below_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """If groups were cut by rows, one group of three would get all long ones."""
    monkeypatch.setattr(write, "_ROW_GROUP_BYTES", 4000)
    cluster = topic_in_memory(1)
    put(cluster, "events", {0: [b"short"] * 100 + [zlib.compress(bytes(n)) + bytes(2000) for n in range(20)]})
    reconcile(cluster)
    (file,) = files(cluster, "events", 0)
    wanted = WantedFile(l1_key(partition_of(cluster, "events", 0), file), file, 0, file.last_offset + 1)
    metadata = open_l1(cluster.store, wanted).metadata
    sizes = [metadata.row_group(n).total_byte_size for n in range(metadata.num_row_groups)]
    assert max(sizes) < 2 * 4000 + 2100 + 1000
    assert len(sizes) > 4


# -- give-up --------------------------------------------------------------------------------------------------------------


def damaged(records: Sequence[bytes]) -> tuple[ClusterHandles, str]:
    cluster = topic_in_memory(1)
    (key,) = put(cluster, "events", {0: list(records)})
    body = store_of(cluster).objects[key].body
    store_of(cluster).objects[key].body = bytes([body[0] ^ 255]) + body[1:]
    return cluster, key


def given_up(cluster: ClusterHandles, key: str) -> None:
    give_up(another_process(cluster), "ann", objects=[key])
    assert deep_findings(another_process(cluster)) == []
    reconcile(cluster)
    assert not merge(cluster).errors
    delete_topic(cluster, "events")
    vacuum_later(cluster)
    assert not [k for k in store_of(cluster).objects if k.startswith("level_one/data")]


def test_remains_lie_before_the_footer_which_stays_small() -> None:
    cluster, key = damaged([np.random.default_rng(1).bytes(200_000)])
    with scaled(MAX_FOOTER_BYTES=10_000):
        given_up(cluster, key)


def test_remains_above_their_limit_are_refused_and_nothing_is_given_up() -> None:
    cluster, key = damaged([np.random.default_rng(1).bytes(2000)])
    before = dict(store_of(cluster).objects)
    with (
        scaled(MAX_HOLE_BYTES=1000),
        pytest.raises(UsageError, match=r"remains of 2,[0-9]{3} bytes, more than the 1,000"),
    ):
        give_up(another_process(cluster), "ann", objects=[key])
    assert store_of(cluster).objects == before


@pytest.mark.thorough
def test_80_mib_of_remains_are_given_up_and_verified_for_real() -> None:
    cluster, key = damaged([np.random.default_rng(n).bytes(16 << 20) for n in range(5)])
    given_up(cluster, key)


# -- keys -----------------------------------------------------------------------------------------------------------------


def longest_keys() -> dict[str, str]:
    """Return the longest keys that any cluster has, below its prefix."""
    name = "00000000-0000-0000-0000-000000000000"
    p = PartitionId("t" * 200, 10**18 - 1, 999_999)
    return {
        "L1": level_one(p, 10**18 - 1, 10**19, 10**19, name),
        "log": f"{journal_log(9_998)}checkpoint/{10**19:020}",
    }


@pytest.mark.parametrize("kind", longest_keys())
def test_no_key_below_the_prefix_is_longer_than_its_share(kind: str) -> None:
    assert len(longest_keys()[kind]) <= LONGEST_KEY_BYTES
    assert LONGEST_KEY_BYTES + MAX_PREFIX_BYTES <= MAX_KEY_BYTES


def test_a_prefix_too_long_for_keys_is_refused_with_the_number() -> None:
    fits = "p" * (MAX_PREFIX_BYTES - 1)
    assert len(StoreConfig.from_url(f"s3://bucket/{fits}").prefix) == MAX_PREFIX_BYTES
    for prefix in (f"{fits}p", "ä" * (MAX_PREFIX_BYTES // 2)):
        with pytest.raises(UsageError, match=f"has {MAX_PREFIX_BYTES + 1} bytes, more than {MAX_PREFIX_BYTES}"):
            StoreConfig.from_url(f"s3://bucket/{prefix}")


def test_a_key_template_that_makes_long_keys_is_refused() -> None:
    check_cluster_settings("c", 10, DEFAULT_TEMPLATE, 1)
    wide = "x" * 330 + "/{shard:03}/{epoch:018}/{uuid}"
    check_cluster_settings("c", 10, wide, 1)
    with pytest.raises(UsageError, match=r"makes keys of 4[0-9]{2} bytes, more than the limit of 400"):
        check_cluster_settings("c", 10, "x" * 20 + wide, 1)


def test_every_limit_is_in_the_table_of_the_format() -> None:
    text = (Path(__file__).parents[1] / "docs/reference/format.md").read_text()
    names = [n for n in vars(l0gc.limits) if n.isupper()]
    assert [n for n in names if f"`{n}`" not in text] == []
    assert MAX_FOOTER_BYTES < 100_000_000
