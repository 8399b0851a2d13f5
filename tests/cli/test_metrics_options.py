"""Metrics go to a file that adds up and is replaced in one step, or to a Pushgateway, and never affect the exit code."""

from __future__ import annotations

import base64
import contextlib
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from l0gc.cli.metrics import Run, samples
from l0gc.cli.metrics_options import push, write
from l0gc.errors import AccessDeniedError, L0gcError
from l0gc.storage.s3 import S3Store
from tests.flows.test_sweep import a_bucket
from tests.support.cli import ended_here, founded, l0gc

LABELS = 'command="sweep",step="sweep",url="s3://b/p"'


def a_sweep(deleted: int, exit_code: int = 0) -> Run:
    data = {"listed": deleted, "eligible": deleted, "unparsable": 0, "deleted": deleted, "highest_deleted_epoch": 7}
    return Run("sweep", data, exit_code=exit_code, seconds=1.5, ended_s=1000.0)


def parsed(text: str) -> dict[str, float]:
    return {s.name: s.value for f in text_string_to_metric_families(text) for s in f.samples}


def no_note(text: str) -> None:
    raise AssertionError(text)


# -- the metrics file -----------------------------------------------------------------------------------------------------


def test_a_file_adds_up_what_runs_did(tmp_path: Path) -> None:
    path = tmp_path / "sweep.prom"
    for deleted in (3, 4):
        write(path, samples(a_sweep(deleted), "s3://b/p"), no_note)
    text = path.read_text()
    assert f"l0gc_objects_deleted_total{{{LABELS}}} 7.0\n" in text
    assert f"l0gc_highest_deleted_epoch{{{LABELS}}} 7.0\n" in text
    assert "# TYPE l0gc_objects_deleted_total counter\n" in text
    assert [p.name for p in tmp_path.iterdir()] == ["sweep.prom"]


def test_a_failed_run_keeps_the_time_of_the_last_success(tmp_path: Path) -> None:
    path = tmp_path / "sweep.prom"
    write(path, samples(a_sweep(3), "s3://b/p"), no_note)
    write(path, samples(Run("sweep", exit_code=4, ended_s=2000.0), "s3://b/p"), no_note)
    numbers = parsed(path.read_text())
    assert numbers["l0gc_last_success_timestamp_seconds"] == 1000
    assert numbers["l0gc_last_end_timestamp_seconds"] == 2000
    assert numbers["l0gc_safety_blocks_total"] == 1
    assert numbers["l0gc_runs_total"] == 2


@pytest.mark.parametrize("body", [b"l0gc_runs_total{ 1", b"\xff\xfe", b"l0gc_runs_total one\n"])
def test_a_file_that_does_not_parse_is_begun_anew_with_a_note(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "sweep.prom"
    path.write_bytes(body)
    notes: list[str] = []
    write(path, samples(a_sweep(3), "s3://b/p"), notes.append)
    assert len(notes) == 1
    assert "is replaced" in notes[0]
    assert parsed(path.read_text())["l0gc_objects_deleted_total"] == 3


def test_a_path_that_is_not_a_file_is_not_replaced_by_one(tmp_path: Path) -> None:
    device = tmp_path / "null"
    device.symlink_to(os.devnull)
    with pytest.raises(OSError, match="not a regular file"):
        write(device, samples(a_sweep(3), "s3://b/p"), no_note)
    assert device.is_char_device()


# -- the Pushgateway ------------------------------------------------------------------------------------------------------


class Gateway(HTTPServer):
    """Answers each request with `status`, and keeps what it was sent."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.heard: list[tuple[str, str, str]] = []
        self.authorised: list[str | None] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Gateway)
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.heard.append((self.command, self.path, body))
        self.server.authorised.append(self.headers["Authorization"])
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@contextlib.contextmanager
def gateway(status: int = 200) -> Iterator[Gateway]:
    with Gateway(status) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_a_pushgateway_receives_the_last_runs_gauges_in_their_own_group() -> None:
    with gateway() as server:
        push(server.url, samples(a_sweep(3), "s3://b/p"))
    ((method, path, body),) = server.heard
    assert (method, path) == ("POST", "/metrics/job/l0gc/command/sweep/url@base64/czM6Ly9iL3A=")
    assert f"l0gc_last_run_objects_deleted{{{LABELS}}} 3.0\n" in body
    assert f"l0gc_highest_deleted_epoch{{{LABELS}}} 7.0\n" in body
    assert "_total" not in body
    assert " counter\n" not in body


def test_pushgateway_credentials_in_the_url_become_a_header() -> None:
    with gateway() as server:
        push(server.url.replace("//", "//ann:hush%40home@"), samples(a_sweep(3), "s3://b/p"))
    assert server.authorised == [f"Basic {base64.b64encode(b'ann:hush@home').decode()}"]


@pytest.mark.weed
def test_metrics_never_change_what_a_command_ends_with(store: S3Store, tmp_path: Path) -> None:
    store.create_bucket()
    path = tmp_path / "status.prom"
    with gateway() as server:
        ended = ended_here("status", "--metrics-file", str(path), "--pushgateway", server.url)
    assert ended.code == 5  # a run that failed is reported, too
    assert parsed(path.read_text())["l0gc_exit_code"] == 5
    assert "l0gc_exit_code" in server.heard[0][2]

    l0gc("init")
    nowhere = str(tmp_path / "none" / "status.prom")
    with gateway(500) as server:
        ended = ended_here("status", "--json", "--metrics-file", nowhere, "--pushgateway", server.url)
    assert ended.code == 0
    assert ended.data["cluster_epoch"] == 0
    notes = ended.stderr.splitlines()
    assert notes[0].startswith(f"l0gc: the metrics were not written to {nowhere}: ")
    assert notes[1].startswith(f"l0gc: the metrics were not sent to {server.url}: ")
    assert len(notes) == 2


@pytest.mark.weed
def test_commands_report_what_they_measured(store: S3Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines, path = tmp_path / "lines", tmp_path / "all.prom"
    lines.write_text("a\nb\nc\n")
    options = ["--metrics-file", str(path)]
    founded(shards=2)
    l0gc("upload", "events", str(lines), "--partition", "1", *options)
    l0gc("epoch", "advance")
    l0gc("upload", "events", str(lines), "--partition", "1", *options)
    l0gc("housekeep", *options)
    l0gc("sweep", *options)
    l0gc("status", *options)
    numbers = parsed(path.read_text())
    assert numbers["l0gc_uploaded_records_total"] == 6
    assert numbers["l0gc_fence_window_slides_total"] == 2  # one slide from the empty journal to each of the two epochs
    assert numbers["l0gc_fence_known_epochs_total"] + numbers["l0gc_fence_new_epochs_total"] == 2
    assert numbers["l0gc_fence_window_size"] >= 2
    assert numbers["l0gc_unreconciled_records"] == 6
    assert numbers["l0gc_objects_deleted_total"] == 0
    assert numbers["l0gc_cluster_epoch"] == 2
    assert capsys.readouterr().err == ""

    before = path.read_text()
    l0gc("sweep", "--dry-run", *options)
    assert path.read_text() == before
    with pytest.raises(L0gcError):
        l0gc("upload", "nothing", str(lines), *options)
    assert parsed(path.read_text())["l0gc_failed_runs_total"] == 1


@pytest.mark.weed
def test_a_sweep_that_the_store_fails_reports_what_it_did_until_then(
    store: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_bucket(store)

    def denied(*args: object) -> None:
        raise AccessDeniedError("not you")

    monkeypatch.setattr(S3Store, "scan", denied)
    path = tmp_path / "sweep.prom"
    with pytest.raises(AccessDeniedError):
        l0gc("sweep", "--metrics-file", str(path))
    numbers = parsed(path.read_text())
    assert (numbers["l0gc_exit_code"], numbers["l0gc_objects_deleted_total"]) == (1, 0)
    assert numbers["l0gc_list_requests_total"] > 0


def test_a_run_that_did_not_know_its_bucket_is_reported_as_well(tmp_path: Path) -> None:
    path = tmp_path / "status.prom"
    with pytest.raises(L0gcError):
        l0gc("status", "--metrics-file", str(path))
    assert parsed(path.read_text())["l0gc_exit_code"] == 2
