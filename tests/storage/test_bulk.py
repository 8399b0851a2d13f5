"""Deletes through obstore: only the named keys are deleted, and boto3 reports every answer that is not a plain success."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import obstore
import pytest

import l0gc.storage.access
import l0gc.storage.bulk
import l0gc.storage.s3
from l0gc.errors import AccessDeniedError, StoreError, ThrottledError
from l0gc.storage.config import StoreConfig
from l0gc.storage.objectstore import DeleteFailure
from l0gc.storage.s3 import S3Store

PLAIN = "level_zero/data/000/{:018}/0a1b2c3d-0000-4000-8000-000000000000"


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATESTACCESSKEY000")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test/secret/key/0123456789")
    monkeypatch.setenv("AWS_REGION", "us-east-1")


class Deleting:
    """A server for DELETE requests: it answers with `status`, and refuses the keys that end with `refused`."""

    def __init__(self) -> None:
        self.status, self.refused = 200, "none"
        self.received: list[tuple[str, list[str]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                keys = re.findall("<Key>([^<]*)</Key>", body)
                outer.received.append((self.headers.get("User-Agent", "").split("/")[0], keys))
                refused = [k for k in keys if k.endswith(outer.refused)]
                code = {403: "AccessDenied", 503: "SlowDown"}.get(outer.status, "InternalError")
                answer = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>-</Message></Error>"
                if outer.status == 200:
                    errors = "".join(
                        f"<Error><Key>{k}</Key><Code>AccessDenied</Code><Message>locked</Message></Error>"
                        for k in refused
                    )
                    confirmed = [] if "<Quiet>true" in body else [k for k in keys if k not in refused]
                    deleted = "".join(f"<Deleted><Key>{k}</Key></Deleted>" for k in confirmed)
                    answer = f"<?xml version='1.0'?><DeleteResult>{errors}{deleted}</DeleteResult>"
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(answer)))
                self.send_header("Content-Type", "application/xml")
                self.end_headers()
                self.wfile.write(answer.encode())

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.store = S3Store(StoreConfig("bucket", "p/", f"http://127.0.0.1:{self.server.server_port}"))


@pytest.fixture
def deleting() -> Iterator[Deleting]:
    fake = Deleting()
    threading.Thread(target=fake.server.serve_forever, daemon=True).start()
    yield fake
    fake.server.shutdown()
    fake.server.server_close()


def test_a_page_of_keys_is_one_request_and_is_not_sent_twice(deleting: Deleting) -> None:
    keys = [PLAIN.format(n) for n in range(1000)]
    assert deleting.store.delete_once(keys) == []
    assert [sorted(k) for _, k in deleting.received] == [[f"p/{k}" for k in keys]]
    assert deleting.store.requests["delete"] == 1


def test_a_key_that_was_refused_is_named_though_the_others_are_gone(deleting: Deleting) -> None:
    deleting.refused = f"{2:018}/0a1b2c3d-0000-4000-8000-000000000000"
    keys = [PLAIN.format(n) for n in range(4)]
    assert deleting.store.delete_once(keys) == [DeleteFailure(keys[2], "AccessDenied", "locked")]
    assert deleting.store.requests["delete"] == len(deleting.received) == 1


class PanicException(BaseException):
    """A stand-in for pyo3's exception, which no package exports."""


def test_a_panic_of_obstore_leaves_the_work_to_boto3(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = S3Store(StoreConfig.from_url(f"s3://bucket-{uuid.uuid4()}/p", endpoint_url=endpoint))
    store.create_bucket()
    store.put("d/k", b"12345")

    def panics(*args: object, **more: object) -> None:
        raise PanicException("OS can't spawn worker thread")

    for name in ("get_ranges", "list", "put"):
        monkeypatch.setattr(obstore, name, panics)
    store.put_bulk("d/b", b"1")
    assert [k for page in store.scan("d/") for k in page.keys] == ["d/b", "d/k"]
    assert store.get_ranges("d/k", [(1, 2)]) == [b"23"]


def test_a_listing_that_breaks_off_goes_on_after_its_last_key(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = S3Store(StoreConfig.from_url(f"s3://bucket-{uuid.uuid4()}/p", endpoint_url=endpoint))
    store.create_bucket()
    keys = [f"d/{n}" for n in range(5)]
    for key in keys:
        store.put(key, b"x")
    monkeypatch.setattr(l0gc.storage.bulk, "PAGE_SIZE", 2)
    obstore_list, broken = obstore.list, list[int]()

    def breaks_off(*args: Any, **more: Any) -> Iterator[Any]:
        stream = iter(obstore_list(*args, **more))
        yield next(stream)
        if not broken:
            broken.append(1)
            raise obstore.exceptions.GenericError("HTTP error: the connection was cut")
        yield from stream

    monkeypatch.setattr(obstore, "list", breaks_off)
    assert [k for page in store.scan("d/") for k in page.keys] == keys
    assert broken


def test_one_answer_may_take_a_quarter_of_what_a_run_waits(endpoint: str) -> None:
    config = StoreConfig.from_url(f"s3://bucket-{uuid.uuid4()}/p", endpoint_url=endpoint)
    bulk = S3Store(msgspec.structs.replace(config, timeout_s=80.0)).access.bulk
    assert bulk is not None
    assert (bulk._store.client_options or {})["timeout"] == "20.0s"


@pytest.mark.parametrize(("status", "error"), [(503, ThrottledError), (403, AccessDeniedError), (500, StoreError)])
def test_a_failed_bulk_request_is_reported_by_its_status(
    deleting: Deleting, status: int, error: type[Exception]
) -> None:
    deleting.status = status
    for sent in (1, 2):
        with pytest.raises(error):
            deleting.store.delete_once([PLAIN.format(1)])
        assert len(deleting.received) == sent


def test_only_the_named_keys_go_whatever_they_look_like(endpoint: str) -> None:
    store = S3Store(StoreConfig.from_url(f"s3://bucket-{uuid.uuid4()}/a/prefix", endpoint_url=endpoint))
    assert store.create_bucket()
    names = ["k", "k1", "K", "a b", "a%20b", "a+b", "%41", "A", "ü", "u%CC%88", "x.y", "x-y", "x_y", "d/k", "d/K", "d"]
    for turn in range(2):
        for name in names:
            store.put(name, b"x")
        gone = names[turn::2]
        assert store.delete_once(gone) == []
        left = {k for p in store.scan("") for k in p.keys}
        assert left == set(names) - set(gone)
        assert store.delete_once(gone) == []  # a missing key counts as deleted


def test_what_is_written_often_is_there_whatever_its_key_looks_like(endpoint: str) -> None:
    store = S3Store(StoreConfig.from_url(f"s3://bucket-{uuid.uuid4()}/a/prefix", endpoint_url=endpoint))
    assert store.create_bucket()
    for body in (b"first", b"second"):
        for name in ("l0gc/runs/r/objects-local-00000.parquet", "a b", "ü", "a%41", "d//k"):
            store.put_bulk(name, body)
            assert store.get(name).body == body


def test_a_write_that_failed_is_reported_by_its_status(deleting: Deleting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l0gc.storage.bulk, "ATTEMPTS", 0)
    monkeypatch.setattr(l0gc.storage.access, "ATTEMPTS", 1)
    monkeypatch.setattr(l0gc.storage.s3, "ATTEMPTS", 1)
    with pytest.raises(StoreError, match="501"):
        deleting.store.put_bulk("k", b"x")
