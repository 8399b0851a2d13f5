"""`l0gc producer`: what it prints after real uploads, and for names that do not exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from l0gc.storage.config import StoreConfig
from tests.support.cli import l0gc, text_of

pytestmark = pytest.mark.weed


@pytest.fixture
def cluster(bucket: StoreConfig) -> StoreConfig:
    l0gc("init", "--create-bucket", "--shards", "4")
    l0gc("topic", "create", "events", "--partitions", "3", "--journals", "3")
    return bucket


def put(path: Path, records: int, *args: str) -> None:
    path.write_bytes(b"".join(b"%d\n" % n for n in range(records)))
    l0gc("upload", "events", str(path), "--producer", "nightly", *args)


def test_a_producer_is_described_on_lines_of_at_most_80_columns(cluster: StoreConfig, tmp_path: Path) -> None:
    for records in (1, 2, 3, 4, 5):
        put(tmp_path / "in", records, "--partition", "0")
    put(tmp_path / "in", 6, "--partition", "2")
    data = l0gc("producer", "describe", "nightly")
    assert (data["name"], data["epoch"], data["last_epoch"], data["unknown_journals"]) == ("nightly", 5, -1, 1)
    assert [(j["journal"], j["epoch"], j["next_sequence"]) for j in data["journals"]] == [(0, 4, 1), (2, 5, 1)]
    assert [i["landed"] for i in data["journals"][0]["inputs"]] == [5, 4, 3, 2, 1]

    lines = text_of("producer", "describe", "nightly")
    assert max(map(len, lines)) <= 80
    assert lines[0] == f"producer     nightly: id {data['producer_id']}, epoch 5, last epoch none"
    assert lines[1].startswith("began        20")
    assert lines[3].startswith("journal 0    epoch 4, next sequence 1, last landed 20")
    assert lines[4] == "             open: the newest run begins at sequence 0, and fences epoch 4"
    digest = data["journals"][0]["inputs"][0]["input"]
    assert lines[5] == f"             input {digest[:12]}.0: 5 records landed"
    assert lines[8] == "             and 2 inputs before (--json has them)"
    assert lines[9].startswith("journal 2    epoch 5, next sequence 1, last landed 20")
    assert lines[-1] == "unknown      in 1 journal; it may begin there"


def test_the_list_has_every_name(cluster: StoreConfig, tmp_path: Path) -> None:
    assert text_of("producer", "list") == ["no producers exist; l0gc upload --producer NAME creates one"]
    put(tmp_path / "in", 1)
    (row,) = l0gc("producer", "list")["producers"]
    assert (row["name"], row["epoch"]) == ("nightly", 0)
    (line,) = text_of("producer", "list")
    assert line.startswith(f"nightly  id {row['producer_id']}  epoch 0  last run 20")
