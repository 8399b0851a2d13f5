"""`l0gc init`, `topic` and `epoch` with journals: what they print, and what they refuse."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from docs.captures.terminal import Terminal
from docs.captures.terminal import shown as screen_of
from l0gc.errors import EpochRegressionError, UsageError
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import ClusterHandles
from tests.support.cli import ended_here, l0gc, text_of
from tests.support.memory_store import publish_m

pytestmark = pytest.mark.weed


@pytest.fixture
def cluster(bucket: StoreConfig) -> StoreConfig:
    l0gc("init", "--create-bucket", "--shards", "4", "--journals", "3")
    return bucket


def test_a_cluster_is_founded_with_its_journals_and_keeps_them(cluster: StoreConfig) -> None:
    again = l0gc("init")
    assert (again["journals"], again["created"]) == (3, False)
    with pytest.raises(UsageError, match="initialised with 3 journals"):
        l0gc("init", "--journals", "4")
    assert ended_here("init", "--journals", "10000").code == 2


def test_a_topic_is_described_with_its_journals(cluster: StoreConfig) -> None:
    created = l0gc("topic", "create", "events", "--partitions", "100000", "--journals", "2")
    kept = {"retention_ms": None, "retention_bytes": None}
    topic = {"name": "events", "revision": 1, "partitions": 100_000, "journals": [0, 1], **kept}
    assert created == {**topic, "created": True}
    assert text_of("topic", "create", "events", "--partitions", "100000") == [
        "topic events exists: revision 1, 100,000 partitions in 2 journals"
    ]
    with pytest.raises(UsageError, match="in 2 journals, not 1"):
        l0gc("topic", "create", "events", "--partitions", "100000", "--journals", "1")
    with pytest.raises(UsageError, match="cannot lie in 4 journals: this cluster has 3"):
        l0gc("topic", "create", "more", "--partitions", "8", "--journals", "4")
    described = l0gc("topic", "describe", "events")
    topic_id, offsets = described.pop("topic_id"), described.pop("offsets")
    assert described == {
        **topic,
        "value_schema": None,
        "partition_ranges": [
            {"journal": 0, "first": 0, "count": 50_000},
            {"journal": 1, "first": 50_000, "count": 50_000},
        ],
        "effective_retention_ms": -1,
        "effective_retention_bytes": -1,
        "records": 0,
        "unreconciled_records": 0,
        "l1_objects": 0,
        "l1_bytes": 0,
        "dead_bytes": 0,
        "holes": 0,
        "lost_records": 0,
        "outdated_records": 0,
        "outdated_bytes": 0,
        "misfits": 0,
    }
    assert [o["partition"] for o in offsets] == list(range(20))
    assert [o["partition"] for o in l0gc("topic", "describe", "events", "--partition", "99999")["offsets"]] == [99_999]
    with pytest.raises(UsageError, match="0 to 99999, not 100000"):
        l0gc("topic", "describe", "events", "--partition", "100000")
    assert text_of("topic", "describe", "events", "--limit", "1") == [
        f"topic events: revision 1, 100,000 partitions in 2 journals, id {topic_id}",
        "retention unlimited in effect; 0 L1 objects (0 B)",
        "journal 0: partitions 0 to 49,999",
        "journal 1: partitions 50,000 to 99,999",
        "partition  journal  log start  last reconciled  next offset  L1 objects  L1 size",
        "        0        0          0               -1            0           0      0 B",
        "and 99,999 partitions more",
    ]
    l0gc("topic", "create", "one", "--partitions", "1")
    assert text_of("topic", "list") == [
        "events  revision 1, 100,000 partitions in 2 journals",
        "one  revision 2, 1 partition in journal 2",
    ]
    assert text_of("topic", "delete", "events", "--yes") == ["topic events (revision 1) deleted; closed in 2 journals"]


def test_a_topic_keeps_what_its_retention_says_or_the_clusters(cluster: StoreConfig) -> None:
    created = l0gc("topic", "create", "events", "--partitions", "1", "--retention", "7d", "--retention-bytes", "1GiB")
    assert (created["retention_ms"], created["retention_bytes"]) == (604_800_000, 1 << 30)
    with pytest.raises(UsageError, match="another retention"):
        l0gc("topic", "create", "events", "--partitions", "1", "--retention", "604800001ms")
    assert not l0gc("topic", "create", "events", "--partitions", "1")["created"]
    altered = l0gc("topic", "alter", "events", "--retention", "-1")
    assert (altered["retention_ms"], altered["retention_bytes"], altered["altered"]) == (-1, 1 << 30, True)
    assert not l0gc("topic", "alter", "events", "--retention", "-1")["altered"]
    assert text_of("topic", "list") == ["events  revision 1, 1 partition in journal 0, retention unlimited and 1.0 GiB"]
    assert l0gc("topic", "alter", "--defaults", "--retention", "90s") == {
        "retention_ms": 90_000, "retention_bytes": -1, "altered": True,
    }  # fmt: skip
    l0gc("topic", "alter", "events", "--retention", "default", "--retention-bytes", "500")
    described = l0gc("topic", "describe", "events")
    assert (described["retention_ms"], described["effective_retention_ms"]) == (None, 90_000)
    assert text_of("topic", "describe", "events")[1] == "retention 90 s and 500 B in effect; 0 L1 objects (0 B)"
    for wrong in (["events"], ["--defaults"], ["events", "--defaults", "--retention", "1s"], ["--retention", "1s"]):
        with pytest.raises(UsageError):
            l0gc("topic", "alter", *wrong)
    for value in ("7", "604800000", "-2", "7 days", "", "1e3", "d", "1x"):  # in Kafka, 7 is 7 ms
        ended = ended_here("topic", "alter", "events", "--retention", value)
        assert (ended.code, "use 90m, 12h or 7d" in ended.stderr) == (2, True)


def test_an_unknown_topic_exits_5_with_the_nearest_name(cluster: StoreConfig) -> None:
    l0gc("topic", "create", "events", "--partitions", "1")
    ended = ended_here("topic", "describe", "event")
    assert (ended.code, ended.stdout) == (5, b"")
    assert "did you mean 'events'?" in ended.stderr


def test_the_epoch_advances_past_the_published_one_only_when_named(cluster: StoreConfig) -> None:
    """Hazard 10: the controller log was restored from a backup."""
    handles = ClusterHandles(S3Store(cluster))
    publish_m(handles, 4, 6)
    for args in (["epoch", "advance"], ["topic", "create", "t", "--partitions", "1"]):
        with pytest.raises(EpochRegressionError):
            l0gc(*args)
    assert l0gc("epoch", "show") == {"epoch": 0}
    with pytest.raises(UsageError, match="exclude each other"):
        l0gc("epoch", "advance", "--above", "6", "--expect", "0")
    assert [l0gc("epoch", "advance", "--above", "6") for _ in range(2)] == [{"epoch": 7}] * 2
    assert l0gc("epoch", "advance") == {"epoch": 8}


def test_a_jump_by_far_is_asked_about_and_is_one_entry(cluster: StoreConfig) -> None:
    handles = ClusterHandles(S3Store(cluster))
    with pytest.raises(UsageError, match=r"would advance the cluster epoch from 0 to 10002, .* give --yes"):
        l0gc("epoch", "advance", "--above", "10001")
    assert handles.controller.snapshot().epoch == 0
    assert l0gc("epoch", "advance", "--above", "10000") == {"epoch": 10_001}
    assert l0gc("epoch", "advance", "--above", str(10**17), "--yes") == {"epoch": 10**17 + 1}
    assert l0gc("topic", "create", "t", "--partitions", "1")["revision"] == 10**17 + 2
    handles.controller.snapshot()
    assert handles.controller.replica.offset == 3


def test_a_deletion_says_what_goes_and_asks(cluster: StoreConfig, tmp_path: Path) -> None:
    lines = tmp_path / "in"
    lines.write_text("1\n2\n3\n")
    l0gc("topic", "create", "events", "--partitions", "2")
    l0gc("upload", "events", str(lines))
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with Terminal(200, {**os.environ, **path}, tmp_path) as typed:
        for answer, code, said in (("n", 2, "nothing is deleted"), ("y", 0, "topic events (revision 1) deleted")):
            typed.type("l0gc topic delete events")
            shown = " ".join(screen_of(typed.run(answer, code=code)).split())
            what = "topic events (revision 1) with 2 partitions and 3 records, 3 of them not in L1"
            assert f" this deletes {what}; its records can then no longer be read" in shown
            assert f"In s3://{cluster.bucket}/{cluster.prefix} (cluster " in shown
            assert said in shown
            assert bool(l0gc("topic", "list")["topics"]) == (answer == "n")


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_without_a_terminal_deletion_requires_yes(cluster: StoreConfig, options: list[str]) -> None:
    l0gc("topic", "create", "events", "--partitions", "2")
    ended = ended_here("topic", "delete", "events", *options, stdin=b"y\n")
    assert (ended.code, ended.stdout) == (2, b"")
    assert "there is no terminal to ask at; give --yes to confirm" in ended.stderr
    assert l0gc("topic", "list")["topics"]
    assert ended_here("topic", "delete", "events", "--yes", *options).code == 0
    assert not l0gc("topic", "list")["topics"]


def test_a_schema_that_loses_a_column_is_shown_and_confirmed(cluster: StoreConfig, tmp_path: Path) -> None:
    def schema(**types: str) -> str:
        (tmp_path / "schema.json").write_text(
            json.dumps({"fields": [{"name": n, "type": t} for n, t in types.items()]})
        )
        return str(tmp_path / "schema.json")

    l0gc(
        "topic", "create", "events", "--partitions", "1", "--value-schema", schema(id="string", name="string", n="int")
    )
    alter = ["topic", "alter", "events", "--value-schema"]
    with pytest.raises(
        UsageError, match=r"columns of topic events: replaces id \(string\) by long; drops name \(string\)"
    ):
        l0gc(*alter, schema(id="long", n="long"))
    assert l0gc(*alter, schema(id="long", n="long"), "--yes")["changes"] == [
        "replaces id (string) by long", "drops name (string)", "widens n (int) to long",
    ]  # fmt: skip
    assert text_of(*alter, schema(id="long", n="long", more="date"))[1:] == ["adds more (date)"]


def test_infer_names_on_stderr_what_it_leaves_out(cluster: StoreConfig, tmp_path: Path) -> None:
    l0gc("topic", "create", "events", "--partitions", "1")
    (tmp_path / "one.ndjson").write_text('{"id": 1, "a.b": 2}\n')
    l0gc("upload", "events", str(tmp_path / "one.ndjson"))
    ended = ended_here("topic", "infer", "events")
    assert [f["name"] for f in json.loads(ended.stdout)["fields"]] == ["id"]
    assert "field 'a.b' is left out: field name 'a.b' must have" in ended.stderr
