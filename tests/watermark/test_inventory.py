"""S3 Inventories: which manifests are believed, and what their files amount to. Without Spark."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote_plus

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l0gc.errors import CorruptObjectError, L0gcError, NotFoundError, UsageError
from l0gc.keys import KeyLayout
from l0gc.watermark.histogram import Histogram
from l0gc.watermark.inventory import CSV, ORC, PARQUET, Inventory, InventoryFile, read_inventory
from l0gc.watermark.inventory_scan import KeyColumns, histogram_of, url_decoded
from tests.support.inventory import FOLDER, KINDS, MANIFEST, SYMLINK, TAKEN_MS, Made, Row, made, put_manifest

NAME = "01234567-89ab-cdef-0123-456789abcdef"
LAYOUT = KeyLayout(shards=4)
PREFIX = "my prod+é/"
ROWS = [
    *(Row(PREFIX + LAYOUT.format(i % 4, e, NAME), 10 * e + i, 1000 * e + i) for e in (3, 5) for i in range(3)),
    Row(f"{PREFIX}level_zero/data/README.md", 7, 500),
    Row(f"{PREFIX}level_one/data/t-1/x.parquet", 1 << 40),
    Row("other/" + LAYOUT.format(0, 9, NAME), 1),
    Row(f"{PREFIX}level_zero/data/000/notes 100%+.txt", 8, 400),
]
FOUND = {3: (3, 93, 3000, 0, 0), 5: (3, 153, 5000, 0, 0), None: (2, 15, 400, 0, 0)}


def at(inventory: Made, url: str = MANIFEST, bucket: str = "data-bucket") -> Inventory:
    """What is read at a key of the inventories' bucket."""
    return read_inventory(
        f"s3://inventories/{url}", bucket, lambda u: inventory.objects.get(u.removeprefix("s3://inventories/"))
    )


def edited(inventory: Made, **fields: object) -> Made:
    """With other fields in its manifest, and the checksum of that."""
    put_manifest(inventory, json.dumps(json.loads(inventory.objects[MANIFEST]) | fields).encode())
    return inventory


def counted(
    folder: Path, inventory: Made, listed: Inventory, prefix: str = PREFIX
) -> dict[int | None, tuple[int, ...]]:
    """What the files of an inventory amount to, by epoch."""
    found = Histogram()
    for i, file in enumerate(listed.files):
        path = folder / f"{i}"
        path.write_bytes(inventory.objects[file.url.removeprefix("s3://inventories/")])
        found.add(
            histogram_of(
                str(path),
                file.url,
                listed.format,
                listed.columns,
                KeyColumns(LAYOUT, prefix),
                listed.source_bucket or "",
            )
        )
    return {
        r.epoch: (r.objects, r.bytes, r.oldest_ms, r.noncurrent_objects, r.noncurrent_bytes)
        for r in found.rows.values()
    }


# -- manifests ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "form"), [("CSV", CSV), ("ORC", ORC), ("Parquet", PARQUET)])
def test_a_manifest_names_its_files_its_bucket_and_its_time(kind: str, form: str) -> None:
    inventory = made(kind, ROWS)
    found = at(inventory)
    assert (found.format, found.source_bucket, found.taken_ms) == (form, "data-bucket", TAKEN_MS)
    assert [f.url for f in found.files] == [f"s3://inventories/{k}" for k in inventory.data_keys]
    assert all(f.size > 0 and len(f.md5) == 32 for f in found.files)
    assert found.columns == (["bucket", "key", "size", "last_modified_date", "ETag"] if kind == "CSV" else [])


def test_the_destination_may_be_a_plain_name_and_checksums_may_be_missing() -> None:
    files = [{"key": "a.parquet"}]
    found = at(edited(made("Parquet", ROWS), destinationBucket="elsewhere", files=files, creationTimestamp=5))
    assert (found.files, found.taken_ms) == ([InventoryFile("s3://elsewhere/a.parquet")], 5)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"sourceBucket": "another"}, UsageError, "inventory of bucket 'another', and the cluster is in 'data-bucket'"),
        ({"fileFormat": "Avro"}, UsageError, "format 'Avro'"),
        ({"files": 3}, CorruptObjectError, "is not a manifest"),
        ({"creationTimestamp": "yesterday"}, CorruptObjectError, "is not a manifest"),
        (
            {"files": [{"key": "k", "size": 1, "MD5checksum": "5925example"}]},
            CorruptObjectError,
            "'5925example' for k, which is not an MD5 checksum",
        ),
    ],
)
def test_a_manifest_that_cannot_be_meant_is_refused(
    fields: dict[str, object], error: type[L0gcError], message: str
) -> None:
    with pytest.raises(error, match=message):
        at(edited(made("Parquet", ROWS), **fields))


def test_a_manifest_that_does_not_match_its_checksum_is_refused() -> None:
    inventory = made("Parquet", ROWS)
    inventory.objects[MANIFEST] += b" "
    with pytest.raises(CorruptObjectError, match="does not match its manifest"):
        at(inventory)


def test_a_manifest_without_a_checksum_is_read_and_none_at_all_is_not_found() -> None:
    inventory = made("Parquet", ROWS)
    del inventory.objects[MANIFEST.replace(".json", ".checksum")]
    assert len(at(inventory).files) == 2
    with pytest.raises(NotFoundError, match="the inventory manifest s3://inventories/no"):
        at(inventory, "no")


@given(st.binary(max_size=60))
def test_any_bytes_as_a_manifest_are_refused_or_read(body: bytes) -> None:
    for name in ("manifest.json", "symlink.txt"):
        try:
            read_inventory(name, "b", {f"./{name}": body, name: body}.get)
        except L0gcError as e:
            assert isinstance(e, CorruptObjectError | UsageError)  # noqa: PT017


@pytest.mark.parametrize("kind", KINDS)
def test_a_symlink_is_completed_by_the_manifest_of_its_inventory(kind: str) -> None:
    assert at(made(kind, ROWS), SYMLINK) == at(made(kind, ROWS))


def test_a_symlink_alone_names_the_files_and_the_time() -> None:
    inventory = made("ORC", ROWS)
    del inventory.objects[MANIFEST]
    found = at(inventory, SYMLINK)
    assert (found.format, found.source_bucket, found.taken_ms) == (ORC, None, TAKEN_MS)
    assert [f.url for f in found.files] == [f"s3://inventories/{k}" for k in inventory.data_keys]
    inventory.objects[SYMLINK.replace("symlink.txt", "manifest.checksum")] = b"0" * 32
    with pytest.raises(CorruptObjectError, match="does not match"):
        at(inventory, SYMLINK)


def test_a_symlink_in_a_folder_of_no_time_gives_none() -> None:
    at = "hive/dt=2026-13-45-99-00/symlink.txt"
    assert read_inventory(at, "data-bucket", {at: b"s3://inventories/a.orc\n"}.get).taken_ms is None


def test_a_symlink_may_name_files_in_a_folder_with_spaces() -> None:
    body = b"s3://inventories/my inventories/a.parquet\r\ns3://inventories/my inventories/b.parquet\n"
    found = read_inventory("symlink.txt", "data-bucket", {"symlink.txt": body, "./symlink.txt": body}.get)
    assert [f.url.rpartition("/")[2] for f in found.files] == ["a.parquet", "b.parquet"]


def test_a_symlink_to_csv_files_needs_the_manifest_that_names_their_columns() -> None:
    inventory = made("CSV", ROWS)
    del inventory.objects[MANIFEST]
    with pytest.raises(UsageError, match="whose columns only a manifest names"):
        at(inventory, SYMLINK)


def test_a_symlink_to_other_files_than_the_manifests_is_refused() -> None:
    inventory = made("ORC", ROWS)
    inventory.objects[SYMLINK] += b"\ns3://inventories/more.orc"
    with pytest.raises(CorruptObjectError, match="name different files"):
        at(inventory, SYMLINK)


def test_a_copied_inventory_finds_its_files(tmp_path: Path) -> None:
    for key, body in made("Parquet", ROWS).objects.items():
        path = tmp_path / key.removeprefix("inv/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    manifest = tmp_path / MANIFEST.removeprefix("inv/")

    def read(url: str) -> bytes | None:
        return Path(url).read_bytes() if Path(url).exists() else None

    found = read_inventory(str(manifest), "data-bucket", read)
    assert [Path(f.url).is_file() for f in found.files] == [True, True]
    assert FOLDER.removeprefix("inv/") in found.files[0].url


# -- files ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_only_what_lies_in_the_clusters_data_prefix_counts(kind: str, tmp_path: Path) -> None:
    inventory = made(kind, ROWS)
    assert counted(tmp_path, inventory, at(inventory)) == FOUND
    assert counted(tmp_path, inventory, at(inventory), "other/") == {9: (1, 1, 1_763_000_000_123, 0, 0)}


@pytest.mark.parametrize("kind", KINDS)
def test_versions_that_are_covered_count_apart_and_delete_markers_do_not(kind: str, tmp_path: Path) -> None:
    a, b, c = (PREFIX + LAYOUT.format(s, 5, NAME) for s in (0, 1, 2))
    rows = [
        Row(a, 5, 40),
        Row(a, 6, 30, latest=False),
        Row(b, None, 60, marker=True),
        Row(b, 100, 20, latest=False),
        Row(b, None, 10, latest=False, marker=True),
        Row(c, 1000, 50),
    ]
    inventory = made(kind, rows, versions=True)
    assert counted(tmp_path, inventory, at(inventory)) == {5: (2, 1005, 20, 2, 106)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("files", [0, 2])
def test_an_inventory_of_nothing_amounts_to_nothing(kind: str, files: int, tmp_path: Path) -> None:
    inventory = made(kind, [], files=files)
    assert counted(tmp_path, inventory, at(inventory)) == {}


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_cut_off_is_refused(kind: str, tmp_path: Path) -> None:
    inventory = made(kind, ROWS * 20)
    key = inventory.data_keys[0]
    inventory.objects[key] = inventory.objects[key][:-9]
    with pytest.raises(CorruptObjectError, match="cannot be read as"):
        counted(tmp_path, inventory, at(inventory))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_another_bucket_are_refused(kind: str, tmp_path: Path) -> None:
    inventory = made(kind, ROWS, source="another")
    with pytest.raises(UsageError, match="of bucket 'another'"):
        counted(tmp_path, inventory, edited_source(at(inventory, bucket="another")))


def edited_source(listed: Inventory) -> Inventory:
    return Inventory(listed.format, listed.files, "data-bucket", listed.taken_ms, listed.columns)


def test_an_object_without_a_size_is_refused(tmp_path: Path) -> None:
    inventory = made("CSV", [Row(PREFIX + LAYOUT.format(0, 1, NAME), None)])
    with pytest.raises(CorruptObjectError, match="without a size"):
        counted(tmp_path, inventory, at(inventory))


def test_an_inventory_without_sizes_is_refused(tmp_path: Path) -> None:
    inventory = edited(made("CSV", ROWS), fileSchema="Bucket, Key, X, LastModifiedDate, ETag")
    with pytest.raises(UsageError, match="has no column 'size'"):
        counted(tmp_path, inventory, at(inventory))


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"last_modified_date": ["2016-11-06T21:32:00.000Z"]}, {None: (1, 7, 1478467920000, 0, 0)}),
        ({}, {None: (1, 7, 0, 0, 0)}),
        ({"last_modified_date": ["yesterday"]}, "cannot be read as parquet: Failed to parse string: 'yesterday'"),
        ({"size": ["x"]}, "cannot be read as parquet"),
        ({"key": [None]}, "rows without a key"),
    ],
)
def test_columns_of_other_types_are_read_where_they_can_only_mean_one_thing(
    fields: dict[str, list[object]], found: dict[int | None, tuple[int, ...]] | str, tmp_path: Path
) -> None:
    inventory = made("Parquet", [], files=1)
    columns = {"bucket": ["data-bucket"], "key": [f"{PREFIX}level_zero/data/x".encode()], "size": [7]} | fields
    pq.write_table(pa.table(columns), tmp_path / "x")
    inventory.objects[inventory.data_keys[0]] = (tmp_path / "x").read_bytes()
    if isinstance(found, str):
        with pytest.raises(CorruptObjectError, match=found):
            counted(tmp_path, inventory, at(inventory))
    else:
        assert counted(tmp_path, inventory, at(inventory)) == found


@pytest.mark.parametrize("column", ["bucket", "key", "size"])
def test_a_column_that_is_missing_is_named(column: str, tmp_path: Path) -> None:
    inventory = made("Parquet", [], files=1)
    columns = {name: ["7"] for name in {"bucket", "key", "size"} - {column}}
    pq.write_table(pa.table(columns), tmp_path / "x")
    inventory.objects[inventory.data_keys[0]] = (tmp_path / "x").read_bytes()
    with pytest.raises(UsageError, match=f"has no column '{column}'"):
        counted(tmp_path, inventory, at(inventory))


def test_a_csv_of_several_gzip_members_is_read_to_its_end(tmp_path: Path) -> None:
    inventory = made("CSV", ROWS, files=1)
    key = inventory.data_keys[0]
    lines = gzip.decompress(inventory.objects[key]).splitlines(keepends=True)
    inventory.objects[key] = b"".join(gzip.compress(line) for line in lines)
    assert counted(tmp_path, inventory, at(inventory)) == FOUND


# -- keys -----------------------------------------------------------------------------------------------------------------


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(["a b", "a+b", "%2F", "100%"])))
def test_keys_are_decoded_to_what_was_encoded(keys: list[str]) -> None:
    for safe in ("", "/"):
        encoded = pa.array([quote_plus(k, safe=safe) for k in keys], pa.string())
        assert url_decoded(encoded).to_pylist() == keys


def test_spaces_may_be_encoded_either_way() -> None:
    assert url_decoded(pa.array(["a%20b", "a+b", "%C3%A9", "%c3%a9"])).to_pylist() == ["a b", "a b", "é", "é"]


def plain(rows: Sequence[Row], prefix: str) -> dict[int | None, tuple[int, ...]]:
    """The same, in a few lines of Python."""
    found: dict[int | None, list[int]] = {}
    for r in rows:
        if not r.key.startswith(prefix + LAYOUT.data_prefix) or r.marker:
            continue
        parsed = LAYOUT.parse(r.key[len(prefix) :])
        row = found.setdefault(parsed.epoch if parsed is not None else None, [0, 0, sys.maxsize, 0, 0])
        first = 0 if r.latest else 3
        row[first] += 1
        row[first + 1] += r.size or 0
        row[2] = min(row[2], r.modified_ms)
    return {epoch: tuple(row) for epoch, row in found.items()}


L0_KEYS = st.builds(LAYOUT.format, st.integers(0, 3), st.integers(0, 6) | st.just(10**18 - 1), st.just(NAME))
SOME_KEYS = st.builds(
    "{}{}{}".format,
    st.sampled_from(["", PREFIX, PREFIX, PREFIX, "my prod"]),
    L0_KEYS | st.sampled_from(["level_zero/data/009/000000000000000001/" + NAME, "level_zero/data/", 'x,"y"', "é ü"]),
    st.sampled_from(["", "", "", "", "x", " ", "+", "%41"]),
)
SOME_ROWS = st.lists(
    st.builds(Row, SOME_KEYS, st.integers(0, 5 << 40), st.integers(1, 1 << 41), st.booleans(), st.booleans()),
    max_size=40,
)


@settings(max_examples=60)
@given(st.sampled_from(KINDS), SOME_ROWS, st.sampled_from(["", PREFIX]), st.integers(1, 3))
def test_the_histogram_is_what_a_plain_script_counts(
    tmp_path_factory: pytest.TempPathFactory, kind: str, rows: list[Row], prefix: str, files: int
) -> None:
    inventory = made(kind, rows, versions=True, files=files)
    assert counted(tmp_path_factory.getbasetemp(), inventory, at(inventory), prefix) == plain(rows, prefix)
