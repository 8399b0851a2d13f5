"""M for a system that keeps its own log: what it tells is believed as far as it can be, and no further."""

from __future__ import annotations

import datetime
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import l0gc.watermark
from l0gc.collect.local import LocalSweep
from l0gc.errors import (
    ClusterMismatchError,
    CorruptObjectError,
    EpochRegressionError,
    ExternalLogError,
    L0gcError,
    NotFoundError,
    UsageError,
    WatermarkRegressionError,
)
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.parallel import Inline
from l0gc.streamlog.cluster import Cluster
from l0gc.watermark import external_log, job
from l0gc.watermark.external_files import read_external_log, read_table
from l0gc.watermark.external_log import ExternalLog, partitions_of, reports_of
from l0gc.watermark.job import EpochRow
from l0gc.watermark.publication import read_published, refuse_if_behind
from tests.support.memory_store import MemoryStore, memory_cluster

P0, P1 = ("t", 0), ("t", 1)


def own_cluster() -> Cluster:
    cluster = memory_cluster(bootstrap=False)
    cluster.controller.bootstrap(shards=4, external_log=True)
    return cluster


def m(cluster: Cluster) -> int | None:
    published, _ = read_published(cluster.store, cluster.controller.snapshot().cluster_id)
    return None if published is None else published.watermark


def test_m_is_the_lowest_of_what_is_reported_and_at_most_the_epoch() -> None:
    cluster = own_cluster()
    result = l0gc.watermark.publish(cluster, cluster_epoch=50, partitions={P0: 3, P1: 3}, gc_epochs={P0: 40, P1: 44})
    assert (result.watermark.watermark, m(cluster)) == (40, 40)
    assert (
        l0gc.watermark.publish(cluster, cluster_epoch=60, partitions={P0: 3}, gc_epochs={P0: 60}).watermark.watermark
        == 60
    )


def test_a_partition_without_a_report_counts_with_its_creation_or_holds_everything() -> None:
    cluster = own_cluster()
    publish = l0gc.watermark.publish
    assert (
        publish(cluster, cluster_epoch=50, partitions={P0: 3, P1: None}, gc_epochs={P0: 40}).watermark.watermark == -1
    )
    assert publish(cluster, cluster_epoch=50, partitions={P0: 3, P1: 30}, gc_epochs={P0: 40}).watermark.watermark == 29


def test_no_partitions_must_be_meant() -> None:
    cluster = own_cluster()
    with pytest.raises(ExternalLogError, match="there are no partitions"):
        l0gc.watermark.publish(cluster, cluster_epoch=50, partitions={}, gc_epochs={P0: 40})
    assert m(cluster) is None
    l0gc.watermark.publish(cluster, cluster_epoch=50, partitions={}, gc_epochs={}, allow_no_partitions=True)
    assert m(cluster) == 50


def test_a_report_above_the_epoch_stops_everything_also_of_a_partition_that_is_not_listed() -> None:
    """Hazard 10."""
    for reported in ({P0: 51}, {P0: 3, ("gone", 0): 51}):
        cluster = own_cluster()
        with pytest.raises(
            EpochRegressionError, match="is at epoch 51, above the cluster epoch 50: the snapshot is older"
        ):
            l0gc.watermark.publish(cluster, cluster_epoch=50, partitions={P0: 1}, gc_epochs=reported)
        assert m(cluster) is None


def test_an_epoch_below_the_one_told_last_stops_everything() -> None:
    """Hazard 10: what is published is all that is known of the other log's past, so M alone would not do."""
    cluster = own_cluster()
    l0gc.watermark.publish(cluster, cluster_epoch=50, partitions={P0: 1}, gc_epochs={P0: 10})
    with pytest.raises(EpochRegressionError, match="at epoch 50, above the cluster epoch 49"):
        l0gc.watermark.publish(cluster, cluster_epoch=49, partitions={P0: 1}, gc_epochs={P0: 20})
    with pytest.raises(EpochRegressionError):  # a look says the same
        l0gc.watermark.publish(cluster, cluster_epoch=49, partitions={P0: 1}, gc_epochs={P0: 20}, publish_it=False)
    assert m(cluster) == 10


def test_an_epoch_told_meanwhile_by_a_faster_run_counts_too() -> None:
    cluster = own_cluster()
    theirs = ExternalLog(50, partitions_of([("t", 1, 0)]), reports_of([("t", 1, 0, 20)]))

    def faster(layout: object) -> list[EpochRow]:
        l0gc.watermark.publish(cluster, cluster_epoch=51, partitions={P0: 1}, gc_epochs={P0: 10})
        return []

    with pytest.raises(EpochRegressionError):
        external_log.run(cluster, theirs, faster)
    assert m(cluster) == 10


def test_m_is_never_lowered() -> None:
    """Hazard 15."""
    cluster = own_cluster()
    l0gc.watermark.publish(cluster, cluster_epoch=50, partitions={P0: 1}, gc_epochs={P0: 40})
    with pytest.raises(WatermarkRegressionError):
        l0gc.watermark.publish(cluster, cluster_epoch=50, partitions={P0: 1}, gc_epochs={P0: 39})
    assert m(cluster) == 40


def test_another_clusters_files_are_refused() -> None:
    """Hazard 11."""
    theirs = ExternalLog(50, partitions_of([("t", 1, 0)]), reports_of([]), frozenset({"another"}))
    with pytest.raises(ClusterMismatchError, match="belongs to cluster another"):
        external_log.run(own_cluster(), theirs)


def test_an_old_object_above_the_epoch_stops_everything_and_a_new_one_does_not() -> None:
    """Hazard 10: the other system writes on while the bucket is listed."""
    cluster = own_cluster()
    theirs = ExternalLog(50, partitions_of([("t", 1, 0)]), reports_of([("t", 1, 0, 40)]), snapshot_age_ms=1000)
    now = cluster.store.now_ms()
    external_log.run(cluster, theirs, lambda layout: [EpochRow(51, 1, 1, "k", now - 1000)])
    with pytest.raises(EpochRegressionError, match="object k is at epoch 51"):
        external_log.run(cluster, theirs, lambda layout: [EpochRow(51, 1, 1, "k", now - 1001)])


def test_a_report_of_a_former_incarnation_lets_nothing_go_that_the_new_one_needs() -> None:
    """Hazard 6: with revisions it does not count; without, it is below the new revision anyway."""
    listed = partitions_of([("t", 30, 0)])
    exact = ExternalLog(50, listed, reports_of([("t", 3, 0, 20)]))
    found = external_log.run(own_cluster(), exact).watermark
    assert (found.watermark, found.held_back_by[0].reason) == (29, external_log._UNREPORTED)
    by_name = ExternalLog(50, listed, reports_of([("t", None, 0, 20)]))
    assert external_log.run(own_cluster(), by_name).watermark.watermark == 20


def test_a_partition_listed_twice_is_refused_where_reports_cannot_tell_which() -> None:
    listed = partitions_of([("t", 3, 0), ("t", 30, 0)])
    with pytest.raises(UsageError, match="t/0 is listed with two revisions"):
        external_log.run(own_cluster(), ExternalLog(50, listed, reports_of([("t", None, 0, 40)])))
    exact = ExternalLog(50, listed, reports_of([("t", 30, 0, 40)]))
    assert external_log.run(own_cluster(), exact).watermark.watermark == 2


@pytest.mark.parametrize(
    ("epoch", "partitions", "gc_epochs"),
    [
        (-1, {P0: 1}, {}),
        (10**18, {P0: 1}, {}),
        (50, {P0: -1}, {}),
        (50, {("t", -1): 1}, {}),
        (50, {("t", 2**31): 1}, {}),
        (50, {P0: 1}, {P0: -2}),
        (50, {P0: 1}, {P0: 2**64}),
    ],
)
def test_numbers_that_cannot_be_are_refused(
    epoch: int, partitions: dict[tuple[str, int], int | None], gc_epochs: dict[tuple[str, int], int]
) -> None:
    cluster = own_cluster()
    with pytest.raises(L0gcError):
        l0gc.watermark.publish(cluster, cluster_epoch=epoch, partitions=partitions, gc_epochs=gc_epochs)
    assert m(cluster) is None


@given(st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_m_is_what_a_plain_loop_makes_of_it(rng: random.Random) -> None:
    epoch = rng.randrange(1, 60)
    ids = {(rng.choice("ab"), n): rng.choice([None, rng.randrange(epoch + 1)]) for n in range(rng.randrange(1, 9))}
    reported = {p: rng.randrange(-1, epoch + 1) for p in ids if rng.random() < 0.7} | {("gone", 0): 0}
    want = min([epoch, *(reported.get(p, -1 if r is None else r - 1) for p, r in ids.items())])
    result = l0gc.watermark.publish(own_cluster(), cluster_epoch=epoch, partitions=ids, gc_epochs=reported)
    assert (result.watermark.watermark, result.watermark.partitions) == (want, len(ids))


# -- beside l0gc's own log -----------------------------------------------------------------------------------------------


def test_l0gc_adds_no_epoch_of_its_own_to_a_system_that_has_one() -> None:
    controller = own_cluster().controller
    for change in (
        controller.advance,
        controller.tick_if_due,
        lambda: controller.create_topic("t", 1),
        lambda: controller.init_producer("p"),
    ):
        with pytest.raises(ExternalLogError, match="another system"):
            change()
    assert controller.snapshot().epoch == 0


def test_l0gcs_own_reports_publish_nothing_there() -> None:
    """Without topics M would be the controller's epoch, and the other system's objects of epoch 0 would go."""
    cluster = own_cluster()
    with pytest.raises(ExternalLogError, match="--reports"):
        job.run(cluster, list, None)
    assert m(cluster) is None


def test_another_systems_reports_publish_nothing_in_a_cluster_of_l0gcs() -> None:
    cluster = memory_cluster()
    with pytest.raises(ExternalLogError, match="l0gc init --external-log"):
        l0gc.watermark.publish(cluster, cluster_epoch=50, partitions={P0: 1}, gc_epochs={P0: 40})
    assert m(cluster) is None


def test_whose_log_it_is_was_settled_when_the_cluster_was_founded() -> None:
    own, ours = own_cluster().controller, memory_cluster().controller
    assert own.bootstrap() is False
    assert own.snapshot().external_log
    with pytest.raises(UsageError, match="--external-log"):
        ours.bootstrap(external_log=True)


def test_a_sweep_goes_by_the_epoch_that_was_told() -> None:
    cluster = own_cluster()
    layout = cluster.controller.layout()
    assert isinstance(cluster.store, MemoryStore)
    for epoch in (39, 40, 41):
        cluster.store.put(layout.format(1, epoch, cluster.runtime.new_id()), b"x")
    assert LocalSweep(cluster).run(Inline()).deleted == 0
    l0gc.watermark.publish(cluster, cluster_epoch=50, partitions={P0: 1}, gc_epochs={P0: 40})
    assert refuse_if_behind(cluster)[0].epoch == 50
    assert LocalSweep(cluster).run(Inline()).deleted == 2
    assert [layout.parse(k).epoch for k in cluster.store.objects if layout.parse(k)] == [41]  # type: ignore[union-attr]


# -- files ---------------------------------------------------------------------------------------------------------------


def read(tmp_path: Path, reports: str = "r.csv", partitions: str = "p.csv", epoch: int | None = 50) -> ExternalLog:
    def no_store(url: str) -> ObjectStore:
        raise AssertionError(url)

    path = str(tmp_path / reports), str(tmp_path / partitions)
    return read_external_log(*path, epoch, no_store, Inline(), snapshot_age_ms=1000)


def write(tmp_path: Path, **files: str) -> None:
    for name, text in files.items():
        (tmp_path / name.replace("_", ".")).write_text(text)


def test_all_formats_say_the_same(tmp_path: Path) -> None:
    rows = [
        {"topic": "a,1", "partition": 0, "revision": 3, "gc_epoch": 7},
        {"topic": "7", "partition": 1, "gc_epoch": 8},
    ]
    write(
        tmp_path,
        r_csv='partition,topic,gc_epoch,revision,note\n0,"a,1",7,3,x\n1,7,8,,y\n',
        r_ndjson='{"topic":"a,1","partition":0,"gc_epoch":7,"revision":3,"note":{}}\n{"topic":"7","partition":1,"gc_epoch":8}\n',
        p_csv="topic,partition\nt,0\n",
    )
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "r.parquet")
    tables = [read(tmp_path, f"r.{kind}").reports for kind in ("csv", "ndjson", "parquet")]
    assert tables[0].to_pylist() == [
        {"topic": "a,1", "revision": 3, "partition": 0, "gc_epoch": 7, "max_applied_epoch": 7},
        {"topic": "7", "revision": None, "partition": 1, "gc_epoch": 8, "max_applied_epoch": 8},
    ]
    assert tables[1].equals(tables[0])
    assert tables[2].equals(tables[0])


def test_a_folder_is_all_its_files_but_for_a_writers_own(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    write(
        tmp_path / "r", a_csv="topic,partition,gc_epoch\nt,0,7\n", b_ndjson='{"topic":"t","partition":1,"gc_epoch":8}\n'
    )
    (tmp_path / "r" / "_SUCCESS").write_text("")
    write(tmp_path, p_csv="topic,partition\nt,0\n")
    assert read(tmp_path, "r").reports["gc_epoch"].to_pylist() == [7, 8]
    (tmp_path / "r" / "notes.txt").write_text("")
    with pytest.raises(UsageError, match=r"notes\.txt is of no kind"):
        read(tmp_path, "r")


def test_the_epoch_may_be_a_column_but_of_one_snapshot_alone(tmp_path: Path) -> None:
    write(tmp_path, r_csv="topic,partition,gc_epoch\nt,0,7\n", p_csv="topic,partition,cluster_epoch\nt,0,9\nt,1,9\n")
    assert read(tmp_path, epoch=None).cluster_epoch == 9
    with pytest.raises(UsageError, match="--cluster-epoch says 50"):
        read(tmp_path)
    write(tmp_path, p_csv="topic,partition,cluster_epoch\nt,0,9\nt,1,10\n")
    with pytest.raises(UsageError, match="several cluster epochs"):
        read(tmp_path, epoch=None)
    write(tmp_path, p_csv="topic,partition\nt,0\n")
    with pytest.raises(UsageError, match="not known"):
        read(tmp_path, epoch=None)


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"r\.csv"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("r.csv", "topic,partition,gc_epoch\nt,0,7"),
        ("r.csv", ""),
        ("r.csv", "topic,partition\nt,0\n"),
        ("r.csv", "topic,partition,gc_epoch\nt,0,\n"),
        ("r.csv", "topic,partition,gc_epoch\nt,0,1.5\n"),
        ("r.csv", "topic,partition,gc_epoch\nt,0,many\n"),
        ("r.csv", "topic,partition,gc_epoch\nt,0\n"),
        ("r.csv", "topic,partition,gc_epoch\nt,0,true\n"),
        ("r.csv", "topic,partition,gc_epoch,gc_epoch\nt,0,7,9\n"),
        ("r.ndjson", '{"topic":"t","partition":0,"gc_epoch":1.5}\n'),
        ("r.ndjson", '{"topic":"t","partition":0}\n'),
        ("r.ndjson", '{"topic":"t","partition":0,"gc_epoch":"7"}\n'),
        ("r.ndjson", '{"topic":"t","partition":0,"gc\n'),
        ("r.parquet", "PAR1"),
        ("r.csv.gz", "no gzip"),
        ("r.txt", "topic\n"),
    ],
)
def test_a_file_that_cannot_be_read_for_certain_is_refused_by_name(name: str, body: str) -> None:
    with pytest.raises((UsageError, CorruptObjectError), match=name.replace(".", r"\.")):
        read_table(name, body.encode(), ("topic", "partition", "gc_epoch"))


@pytest.mark.parametrize("gc_epoch", [True, datetime.date(2026, 11, 21), datetime.datetime(2026, 11, 21)])
def test_what_is_no_number_is_not_made_one(gc_epoch: object, tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([{"topic": "t", "partition": 0, "gc_epoch": gc_epoch}]), tmp_path / "r.parquet")
    with pytest.raises(CorruptObjectError, match=r"r\.parquet has .* in the column 'gc_epoch'"):
        read_table("r.parquet", (tmp_path / "r.parquet").read_bytes(), ("topic", "partition", "gc_epoch"))


def test_a_file_that_vanishes_while_the_folder_is_read_is_told_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, r_csv="topic,partition,gc_epoch\nt,0,7\n", p_csv="topic,partition\nt,0\n")

    def gone(path: Path) -> bytes:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(Path, "read_bytes", gone)
    with pytest.raises(CorruptObjectError, match=r"r\.csv cannot be read: No such file"):
        read(tmp_path)
