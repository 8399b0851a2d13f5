"""A merge writes the records of its sources, even if a bad replica misreads them (hazard 34)."""

from __future__ import annotations

from collections.abc import Sequence
from unittest import mock

import pytest

from l0gc.errors import CorruptObjectError
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.journal.topic import l1_key
from l0gc.streamlog.level_one import parquet, rewrite
from l0gc.streamlog.level_one.parquet import L1_COLUMNS, WantedFile, open_l1, read_l1
from tests.support.memory_store import store_of, topic_in_memory
from tests.support.merge import content, fill, merge
from tests.support.misread import WAYS, misread
from tests.support.reconcile import files, partition_of, put, reconcile
from tests.support.tries import sampled

DATA = "level_one/data/"


def small_objects() -> ClusterHandles:
    cluster = topic_in_memory(1)
    fill(cluster, 9, partitions=1)
    return cluster


@pytest.mark.parametrize("in_ranges", [False, True])
@pytest.mark.parametrize("way", sampled(WAYS, ["another object's body"]))
def test_a_merge_reads_again_what_does_not_match(way: str, in_ranges: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if in_ranges:
        monkeypatch.setattr(rewrite, "WHOLE_BYTES", 0)
        monkeypatch.setattr(parquet, "_LEAST_TAIL", 8)
    reads, n = 1, 0
    while n < reads:
        cluster = small_objects()
        expected = content(cluster, partitions=1)
        with misread(cluster, DATA, WAYS[way], 1, after=n) as bad:
            assert merge(cluster).errors == []
        assert len(files(cluster, "events", 0)) == 1
        assert content(cluster, partitions=1) == expected
        reads, n = n + 2 if bad.keys else reads, n + 1
    assert n > 5


def test_what_never_matches_is_not_merged_and_stays() -> None:
    cluster = small_objects()
    expected = content(cluster, partitions=1)
    with misread(cluster, DATA, WAYS["zeros"], 10_000):
        assert merge(cluster).errors
    assert len(files(cluster, "events", 0)) == 9
    assert content(cluster, partitions=1) == expected


def test_pages_of_another_object_do_not_match_a_footer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other object's pages have valid checksums and the same offsets; only their times differ from the sealed
    footer.
    """
    monkeypatch.setattr(parquet, "_LEAST_TAIL", 8)
    cluster = topic_in_memory(2)
    for p in (0, 1):
        put(cluster, "events", {p: [b"%d" % p] * 9})
        store_of(cluster).clock.ms += 60_000
    reconcile(cluster)
    wanted = []
    for p in (0, 1):
        (file,) = files(cluster, "events", p)
        wanted.append(WantedFile(l1_key(partition_of(cluster, "events", p), file), file, 0, 9))
    assert wanted[0].file.bytes == wanted[1].file.bytes  # so all pages lie at the same places
    opened = open_l1(cluster.store, wanted[0], whole_bytes=0)
    get_ranges = store_of(cluster).get_ranges

    def another(key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return get_ranges(wanted[1].key, ranges)

    with (
        mock.patch.object(store_of(cluster), "get_ranges", another),
        pytest.raises(CorruptObjectError, match="does not hold the timestamps that its footer has"),
    ):
        list(read_l1(cluster.store, opened, L1_COLUMNS.names))
    assert sum(b.num_rows for _, b in read_l1(cluster.store, opened, L1_COLUMNS.names)) == 9
