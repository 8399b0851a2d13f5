"""`l0gc table` on a real server: a failure of a catalog, a warehouse or another program gives one sentence, and no data
is deleted.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog

from l0gc.embedded.seaweedfs import SeaweedFS
from l0gc.integrations.iceberg import catalog as catalogs
from l0gc.keys import L1_DATA
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from tests.support.cli import ended_here, l0gc, text_of
from tests.support.engines import access
from tests.support.outcomes import Outcome, Request
from tests.support.proxy import Proxy
from tests.support.tables import configure, sql_catalog

pytestmark = pytest.mark.weed


@pytest.fixture
def store(bucket: StoreConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    """Create a cluster with two topics, whose L1 is not in a table yet, and a catalog in SQLite."""
    sql_catalog(monkeypatch, tmp_path)
    l0gc("init", "--create-bucket", "--shards", "4")
    file = tmp_path / "records"
    file.write_bytes(b"a\nb\nc\n")
    for topic in ("events", "other"):
        l0gc("topic", "create", topic, "--partitions", "2")
        l0gc("upload", topic, str(file))
    l0gc("reconcile", "--engine", "local")
    return S3Store(bucket)


def data(store: S3Store) -> dict[str, bytes]:
    return {
        k: store.get(k).body for prefix in ("level_zero/", L1_DATA) for page in store.scan(prefix) for k in page.keys
    }


@contextmanager
def untouched(store: S3Store) -> Iterator[None]:
    before = data(store)
    yield
    assert data(store) == before


def refused(code: int, sentence: str, command: str) -> None:
    """Check that a command ends with this code and one sentence."""
    ended = ended_here("table", *command.split())
    said = [line for line in ended.stderr.splitlines() if line.strip()]
    assert ended.code == code
    assert len(said) == 1, ended.stderr
    assert re.search(sentence, said[0]), ended.stderr
    assert "Traceback" not in ended.stderr


@contextmanager
def a_catalog_that_answers(status: int, *, after_s: float = 0) -> Iterator[str]:
    """Yield the address of a REST catalog that answers everything with an error."""

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(after_s)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(b'{"error": {"message": "not today", "type": "AnError", "code": %d}}' % status)

        do_POST = do_HEAD = do_GET

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def everything_with_the_catalog(code: int, sentence: str) -> None:
    refused(code, sentence, "create other --catalog lake")
    refused(code, sentence, "sync")
    refused(code, sentence, "drop events")


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.thorough)])
def test_every_catalog_failure_is_one_sentence(
    store: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    l0gc("table", "create", "events", "--catalog", "lake")
    with untouched(store):
        for status, sentence in (
            (401, "catalog 'lake' or its warehouse refuses: AnError: not today"),
            (403, "catalog 'lake' or its warehouse refuses: AnError: not today"),
            (500, "catalog 'lake' failed: AnError: not today"),
            (503, "catalog 'lake' failed: AnError: not today"),
        )[::every]:
            with a_catalog_that_answers(status) as uri:
                configure(monkeypatch, type="rest", uri=uri)
                everything_with_the_catalog(1, sentence)
        everything_with_the_catalog(1, "catalog 'lake' or its warehouse cannot be reached: .* refused")
        with a_catalog_that_answers(200, after_s=2) as uri, monkeypatch.context() as impatient:
            impatient.setattr(catalogs, "ANSWER_SECONDS", 0.3)
            configure(monkeypatch, type="rest", uri=uri)
            everything_with_the_catalog(1, "catalog 'lake': no answer within 0.3 s")
        refused(5, "PyIceberg has no catalog 'pond'; name it in", "create other --catalog pond")
        configure(monkeypatch, type="nonsense")
        everything_with_the_catalog(1, "catalog 'lake' failed: 'nonsense' is not a valid CatalogType")
    sql_catalog(monkeypatch, tmp_path)
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    for text, sentence in (
        ("catalog: {lake: {type: sql}}", ", line 1: Found ugly disallowed JSONesque flow mapping"),
        ("catalog:\n\tlake: x", ", line 2: found character"),
        ("- lake", ": 'list' object has no attribute"),
        ("catalog:\n  lake: x", ": Incompatible configurations"),
    )[::every]:
        (tmp_path / ".pyiceberg.yaml").write_text(text)
        everything_with_the_catalog(2, f"PyIceberg cannot read .pyiceberg.yaml{sentence}")
    (tmp_path / ".pyiceberg.yaml").write_text("catalog:\n  pond: x")
    refused(2, "PyIceberg cannot read .pyiceberg.yaml: Configuration path catalogs.pond", "create other --catalog pond")
    (tmp_path / ".pyiceberg.yaml").unlink()
    assert l0gc("table", "sync")["tables"][0]["added"] == 2


class OnlyReads:
    """Refuses writes below a prefix, as a policy does."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def decide(self, request: Request) -> Outcome:
        reads = request.operation.startswith(("Get", "Head", "List"))
        return Outcome.PASS if reads or not request.key.startswith(self._prefix) else Outcome.DENY

    def answered(self, request: Request) -> None:
        pass


def test_an_unwritable_warehouse_leaves_no_pin(
    store: S3Store, weed: SeaweedFS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql_catalog(monkeypatch, tmp_path, f"s3://{store.config.bucket}/warehouse")
    l0gc("table", "create", "events", "--catalog", "lake")
    with untouched(store):
        with Proxy(weed.endpoint_url, OnlyReads("warehouse/")) as proxy:
            monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.endpoint_url)
            refused(1, "the warehouse refuses: .*ACCESS_DENIED", "create other --catalog lake")
            refused(1, "the warehouse refuses: .*ACCESS_DENIED", "sync")
            assert l0gc("pin", "list") == {"pins": []}
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", weed.endpoint_url)
        monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__S3__ACCESS_KEY_ID", "somebody")
        monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__S3__SECRET_ACCESS_KEY", "something else")
        refused(1, "the warehouse refuses: .*ACCESS_DENIED", "sync")
        monkeypatch.delenv("PYICEBERG_CATALOG__LAKE__S3__ACCESS_KEY_ID")
        monkeypatch.delenv("PYICEBERG_CATALOG__LAKE__S3__SECRET_ACCESS_KEY")
        assert l0gc("table", "sync")["tables"][0]["added"] == 2
        (tmp_path / "file").touch()
        configure(monkeypatch, warehouse=f"file://{tmp_path}/file")
        refused(
            1, "catalog 'lake' or its warehouse cannot be reached: .*Not a directory", "create other --catalog lake"
        )


def test_a_foreign_or_changed_table_is_refused_without_data_loss(store: S3Store, weed: SeaweedFS) -> None:
    l0gc("table", "create", "events", "--catalog", "lake")
    l0gc("table", "sync")
    lake = load_catalog("lake", **access(weed))
    table = lake.load_table("l0gc.events")
    first = table.metadata.snapshots[0]
    shown = " ".join(" ".join(text_of("status")).split())
    assert "tables l0gc.events of topic events was synced about" in shown
    assert "1 pin of it keeps 0 B of dropped L1" in shown
    assert "table of topic events" not in shown  # its pins have no lines of their own
    with untouched(store):
        lake.create_table("l0gc.theirs", table.schema())
        refused(2, "l0gc did not create it; use another name", "create other --catalog lake --table l0gc.theirs")
        has = r"topic 'events' \(revision 1\) has table l0gc.events in catalog 'lake'; "
        another = "give the table of 'other' another name with --table"
        refused(2, has + another, "create other --catalog lake --table l0gc.events")
        refused(2, f"{has}end that with l0gc table drop", "create events --catalog lake --table l0gc.more")
        for name in ("events", ".events", "l0gc."):
            refused(
                2, f"table '{name}' needs a namespace: NAMESPACE.NAME", f"create other --catalog lake --table {name}"
            )
        assert not lake.table_exists("l0gc.more")

        table.delete("offset = 0")  # another program commits
        refused(4, "is not l0gc's: another program has written to it; roll the table back", "sync")
        table.refresh().manage_snapshots().set_current_snapshot(first.snapshot_id).commit()
        assert l0gc("table", "sync")["errors"] == []
        lake.rename_table("l0gc.events", "l0gc.hidden")
        refused(5, "catalog 'lake' has no table l0gc.events; end it with l0gc table drop events", "sync")
        lake.rename_table("l0gc.hidden", "l0gc.events")
        l0gc("table", "drop", "events", "--forget")
        l0gc("topic", "delete", "events", "--yes")
        l0gc("topic", "create", "events", "--partitions", "2")
        again = "belongs to a topic of revision 1, and topic 'events' has revision .*, or was created again"
        refused(4, again, "create events --catalog lake")
    assert l0gc("pin", "list") == {"pins": []}
