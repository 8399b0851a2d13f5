"""The files of an external log: an unreliable or incomplete file is refused by name."""

from __future__ import annotations

import datetime
import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from l0gc.errors import CorruptObjectError, NotFoundError, SafetyError, StoreError, UsageError
from l0gc.storage.objectstore import StoredObject
from l0gc.watermark.external_files import ExternalFiles, read_table
from l0gc.watermark.external_log import ExternalLog
from l0gc.watermark.external_rows import REPORTS
from tests.support import external
from tests.support.memory_store import Call, MemoryStore


def read(
    tmp_path: Path,
    reports: str = "r.csv",
    partitions: str = "p.csv",
    epoch: int | None = 50,
    expect: int | None = None,
) -> ExternalLog:
    files = ExternalFiles(str(tmp_path / reports), str(tmp_path / partitions), epoch, expect)
    return external.read(files)


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
    found = [read_table(f, (tmp_path / f).read_bytes(), REPORTS) for f in ("r.csv", "r.ndjson", "r.parquet")]
    assert found[0].select(["topic", "revision", "partition", "gc_epoch", "max_applied_epoch"]).to_pylist() == [
        {"topic": "a,1", "revision": 3, "partition": 0, "gc_epoch": 7, "max_applied_epoch": None},
        {"topic": "7", "revision": None, "partition": 1, "gc_epoch": 8, "max_applied_epoch": None},
    ]
    assert found[1] == found[0]
    assert found[2] == found[0]
    for kind in ("csv", "ndjson", "parquet"):
        assert read(tmp_path, f"r.{kind}").summary.highest == (-8, "7", 1)


@pytest.mark.parametrize(
    ("name", "text"),
    [("r.csv", "topic,partition,gc_epoch\nt,0,7\n"), ("r.ndjson", '{"topic":"t","partition":0,"gc_epoch":7}\n')],
)
def test_a_byte_order_mark_at_the_head_of_a_report_is_skipped(name: str, text: str) -> None:
    assert read_table(name, text.encode("utf-8-sig"), REPORTS) == read_table(name, text.encode(), REPORTS)


def a_folder(tmp_path: Path, name: str = "r", *, finished: bool = True) -> Path:
    """Create a folder of reports, or of partitions if its name is `p`."""
    folder = tmp_path / name
    folder.mkdir()
    if name == "p":
        write(folder, a_csv="topic,partition\nt,0\n", b_csv="topic,partition\nt,1\n")
    else:
        rows = '{"topic":"t","partition":1,"gc_epoch":8}\n'
        write(folder, a_csv="topic,partition,gc_epoch\nt,0,7\n", b_ndjson=rows)
    if finished:
        (folder / "_SUCCESS").write_text("")
    return folder


def test_a_folder_is_all_its_files_but_for_a_writers_own(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    write(tmp_path, p_csv="topic,partition\nt,0\n")
    assert read(tmp_path, "r").summary.unlisted == 1
    assert read(tmp_path, "r").summary.gc_epochs == {7: 1}
    (folder / "notes.txt").write_text("")
    with pytest.raises(UsageError, match=r"notes\.txt has an unknown file type"):
        read(tmp_path, "r")


@pytest.mark.parametrize("unfinished", ["r", "p"])
def test_a_folder_that_is_not_finished_is_refused(tmp_path: Path, unfinished: str) -> None:
    """A list of partitions that is still being written would put M too high."""
    for name in ("r", "p"):
        a_folder(tmp_path, name, finished=name != unfinished)
    with pytest.raises(SafetyError, match=rf"folder .*/{unfinished} is not complete: it has no _SUCCESS"):
        read(tmp_path, "r", "p")
    (tmp_path / unfinished / "_SUCCESS").write_text("")
    assert read(tmp_path, "r", "p").summary.partitions == 2


def test_as_many_partitions_as_are_expected_do_without_a_finished_folder(tmp_path: Path) -> None:
    for name in ("r", "p"):
        a_folder(tmp_path, name, finished=False)
    assert read(tmp_path, "r", "p", expect=2).summary.partitions == 2
    for expected in (1, 3):
        with pytest.raises(SafetyError, match=f"lists 2 partitions, but --expect-partitions is {expected}"):
            read(tmp_path, "r", "p", expect=expected)
    (tmp_path / "p" / "b.csv").write_text("topic,partition\nt,0\n")  # one partition twice, the other one missing
    with pytest.raises(SafetyError, match="lists 1 partition"):
        read(tmp_path, "r", "p", expect=2)


@pytest.mark.parametrize("folder", ["r", "p"])
def test_an_empty_file_is_accepted_only_if_partitions_are_counted(tmp_path: Path, folder: str) -> None:
    """An interrupted copy looks the same, even next to a `_SUCCESS`."""
    for name in ("r", "p"):
        a_folder(tmp_path, name)
    expected = read(tmp_path, "r", "p", expect=2)
    (tmp_path / folder / "c.jsonl").touch()
    with pytest.raises(CorruptObjectError, match=r"/c\.jsonl has zero bytes.*--expect-partitions"):
        read(tmp_path, "r", "p")
    assert read(tmp_path, "r", "p", expect=2) == expected
    (tmp_path / "p" / "b.csv").write_bytes(b"")
    with pytest.raises(SafetyError, match="lists 1 partition, but --expect-partitions is 2"):
        read(tmp_path, "r", "p", expect=2)


def test_an_empty_packed_file_has_no_rows_unless_cut() -> None:
    packed = gzip.compress(b"")
    assert read_table("r.json.gz", packed, REPORTS).num_rows == 0
    for cut in range(len(packed)):
        with pytest.raises(CorruptObjectError, match=r"r\.json\.gz"):
            read_table("r.json.gz", packed[:cut], REPORTS)


def test_a_folder_that_is_written_anew_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("r", "p"):
        a_folder(tmp_path, name)
    once = Path.read_bytes

    def rewritten(path: Path) -> bytes:
        if path.parent.name == "p":
            (path.parent / "_SUCCESS").unlink(missing_ok=True)
            (path.parent / "other").write_text("")
            (path.parent / "other").rename(path.parent / "_SUCCESS")
        return once(path)

    monkeypatch.setattr(Path, "read_bytes", rewritten)
    with pytest.raises(SafetyError, match="/p was rewritten while it was read"):
        read(tmp_path, "r", "p")


@pytest.mark.parametrize("late", [False, True])
def test_a_folder_in_a_bucket_is_finished_before_it_is_listed(late: bool) -> None:
    """A listing may show the keys that sort before `_SUCCESS` as they were before it was written."""
    store = MemoryStore()
    store.put("0.csv", b"topic,partition\nt,0\n")
    if not late:
        store.put("1.csv", b"topic,partition\nt,1\n")
        store.put("_SUCCESS", b"")
    heads = 0

    def fault(call: Call) -> None:
        nonlocal heads
        heads += call.kind == "head" and call.when == "before"
        if late and call.kind == "list" and call.when == "after":
            store.fault = lambda call: None
            store.put("1.csv", b"topic,partition\nt,1\n")
            store.put("_SUCCESS", b"")

    store.fault = fault
    reports = MemoryStore()
    reports.put("r.csv", b"topic,partition,gc_epoch\nt,0,7\n")
    stores = {"s3://b/p": store, "s3://b/r.csv": MemoryStore(), "s3://b": reports}
    files = ExternalFiles("s3://b/r.csv", "s3://b/p", 50)
    if late:
        with pytest.raises(SafetyError, match="s3://b/p is not complete"):
            external.read(files, stores.__getitem__)
        return
    assert external.read(files, stores.__getitem__).summary.partitions == 2
    assert heads == 2


@pytest.mark.parametrize("misread", ["p/0.csv", "r.csv"])
def test_a_bucket_file_that_reads_differently_twice_is_refused(misread: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hazard 34: the store once returns another object of the folder, so a partition is missing."""
    root = MemoryStore()
    root.put("p/0.csv", b"topic,partition\nt,0\n")
    root.put("p/1.csv", b"topic,partition\nt,1\n")
    root.put("p/_SUCCESS", b"")
    root.put("r.csv", b"topic,partition,gc_epoch\nt,1,7\n")
    root.put("newer.csv", b"topic,partition,gc_epoch\nt,0,9\nt,1,9\n")
    instead = {"p/0.csv": "p/1.csv", "r.csv": "newer.csv"}

    class Below(MemoryStore):
        def __init__(self, folder: str) -> None:
            super().__init__()
            self.folder = folder
            self.objects = {k.removeprefix(folder): o for k, o in root.objects.items() if k.startswith(folder)}

        def get(self, key: str) -> StoredObject:
            nonlocal misread
            key, wanted = self.folder + key, misread
            if key == wanted:
                misread = ""
                key = instead[key]
            return root.get(key)

    stores = {"s3://b/p": Below("p/"), "s3://b/r.csv": Below("r.csv/"), "s3://b": Below("")}
    files, wrong = ExternalFiles("s3://b/r.csv", "s3://b/p", 50), misread
    with pytest.raises(StoreError, match=f"s3://b/{wrong} was read twice, and differs"):
        external.read(files, stores.__getitem__)
    assert external.read(files, stores.__getitem__).summary.partitions == 2


def test_the_epoch_may_be_a_column_but_of_one_snapshot_alone(tmp_path: Path) -> None:
    write(tmp_path, r_csv="topic,partition,gc_epoch\nt,0,7\n", p_csv="topic,partition,cluster_epoch\nt,0,9\nt,1,9\n")
    assert read(tmp_path, epoch=None).cluster_epoch == 9
    with pytest.raises(UsageError, match="--cluster-epoch is 50"):
        read(tmp_path)
    write(tmp_path, p_csv="topic,partition,cluster_epoch\nt,0,9\nt,1,10\n")
    with pytest.raises(UsageError, match="several cluster epochs"):
        read(tmp_path, epoch=None)
    write(tmp_path, p_csv="topic,partition\nt,0\n")
    with pytest.raises(UsageError, match="not known"):
        read(tmp_path, epoch=None)


@pytest.mark.parametrize("epoch", [None, 9], ids=["by-column", "given"])
@pytest.mark.parametrize(
    ("column", "value", "rest"),
    [
        ("cluster_epoch", "9", "topic,partition,cluster_epoch\nt,1,\n"),
        ("cluster_epoch", "9", "topic,partition\nt,1\n"),
        ("cluster_id", "a", "topic,partition\nt,1\n"),
    ],
    ids=["empty", "no-column", "another-identity"],
)
def test_a_list_of_which_a_part_names_no_snapshot_is_refused(
    tmp_path: Path, epoch: int | None, column: str, value: str, rest: str
) -> None:
    reports, listed = tmp_path / "r.csv", tmp_path / "p"
    reports.write_text("topic,partition,gc_epoch\nt,0,7\nt,1,7\n")
    listed.mkdir()
    (listed / "_SUCCESS").touch()
    (listed / "a.csv").write_text(f"topic,partition,{column}\nt,0,{value}\n")
    (listed / "b.csv").write_text(rest)
    with pytest.raises(UsageError, match=rf"the {column} of the partitions is empty in 1 row and given in 1,"):
        external.read(ExternalFiles(str(reports), str(listed), epoch))


def test_reports_of_which_some_name_no_cluster_are_refused(tmp_path: Path) -> None:
    write(tmp_path, r_csv="topic,partition,gc_epoch,cluster_id\nt,0,7,a\nt,1,7,\n", p_csv="topic,partition\nt,0\nt,1\n")
    with pytest.raises(UsageError, match=r"the cluster_id of the reports is empty in 1 row"):
        read(tmp_path)


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
def test_a_value_that_is_not_a_number_is_not_made_one(gc_epoch: object, tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([{"topic": "t", "partition": 0, "gc_epoch": gc_epoch}]), tmp_path / "r.parquet")
    with pytest.raises(CorruptObjectError, match=r"r\.parquet has .* in the column 'gc_epoch'"):
        read_table("r.parquet", (tmp_path / "r.parquet").read_bytes(), ("topic", "partition", "gc_epoch"))


def test_a_file_vanishing_during_the_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, r_csv="topic,partition,gc_epoch\nt,0,7\n", p_csv="topic,partition\nt,0\n")

    def gone(path: Path) -> bytes:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(Path, "read_bytes", gone)
    with pytest.raises(CorruptObjectError, match=r"r\.csv cannot be read: No such file"):
        read(tmp_path)


# -- folders that Spark writes -------------------------------------------------------------------------------------------


def test_the_names_of_a_folders_folders_are_columns(tmp_path: Path) -> None:
    """Spark's `partitionBy` writes folders like these, and escapes forbidden characters in names."""
    for topic, partition, rows in (
        ("a%2Fb", 3, {"part_csv": "revision\n9\n"}),
        ("t", 0, {"part_json": '{"revision":9}\n'}),
    ):
        folder = tmp_path / "p" / f"topic={topic}" / f"partition={partition}"
        folder.mkdir(parents=True)
        write(folder, **rows)
    (tmp_path / "p" / "_SUCCESS").write_text("")
    write(tmp_path, r_csv="topic,partition,gc_epoch\na/b,3,12\n")
    found = read(tmp_path, "r.csv", "p").summary
    assert [(h.topic, h.partition, h.gc_epoch) for h in found.lowest] == [("t", 0, 8), ("a/b", 3, 12)]


@pytest.mark.parametrize(
    ("folder", "refused"),
    [
        ("topic=__HIVE_DEFAULT_PARTITION__", "whose topic is empty"),
        ("topic=t/partition=many", "cannot be read as csv"),
        ("topic=t/revision=3", "more than one column 'revision'"),
        ("topic=%FF", "cannot be read as csv"),
    ],
)
def test_a_folders_name_that_is_not_a_value_is_refused(tmp_path: Path, folder: str, refused: str) -> None:
    columns = "partition,revision\n0,3\n" if "partition=" not in folder else "revision\n3\n"
    (tmp_path / "p" / folder).mkdir(parents=True)
    write(tmp_path / "p" / folder, part_csv=columns)
    (tmp_path / "p" / "_SUCCESS").write_text("")
    write(tmp_path, r_csv="topic,partition,gc_epoch\n")
    with pytest.raises((UsageError, CorruptObjectError), match=refused):
        read(tmp_path, "r.csv", "p")


def test_a_line_that_holds_a_folders_column_is_refused() -> None:
    with pytest.raises(UsageError, match="more than one column 'topic'"):
        read_table("p.json", b'{"topic":"t","partition":0}\n', ("topic", "partition"), {"topic": "t"})


def test_a_column_whose_name_begins_with_an_underscore_hides_no_rows(tmp_path: Path) -> None:
    """A list without these partitions would put M too high."""
    a_folder(tmp_path, "p")
    for name in ("_day=7", "_temporary", ".hidden"):
        (tmp_path / "p" / name).mkdir()
        write(tmp_path / "p" / name, c_csv=f"topic,partition\n{name},2\n")
    write(tmp_path, r_csv="topic,partition,gc_epoch\nt,0,12\n")
    assert read(tmp_path, "r.csv", "p").summary.partitions == 3


@pytest.mark.parametrize(
    ("log", "table_of"),
    [
        ("_delta_log/0.json", "a Delta"),
        (".hoodie/hoodie.properties", "a Hudi"),
        ("metadata/v1.metadata.json", "an Iceberg"),
    ],
)
def test_a_table_whose_folder_keeps_deleted_rows_is_refused(tmp_path: Path, log: str, table_of: str) -> None:
    folder = a_folder(tmp_path, "p")
    (folder / log).parent.mkdir()
    (folder / log).write_text("{}")
    write(tmp_path, r_csv="topic,partition,gc_epoch\nt,0,12\n")
    with pytest.raises(UsageError, match=rf"/p is {table_of} table.*data frame"):
        read(tmp_path, "r.csv", "p", expect=2)
