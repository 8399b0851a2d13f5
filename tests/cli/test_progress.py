"""The progress of a command: the share and the estimate, a note each 10 s, and a line that fits a terminal."""

from __future__ import annotations

import io
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from l0gc.cli.progress import NOTE_EVERY_S, Estimate, Newest, following, noting
from l0gc.events import Progress
from l0gc.storage.s3 import S3Store
from tests.support.cli import founded, l0gc


class Clock:
    """A clock in seconds, which the test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_estimate_appears_once_the_pace_is_known() -> None:
    clock = Clock()
    estimate = Estimate(clock)
    assert estimate.text(0, 1000) == "0 %"
    clock.now += 1
    assert estimate.text(100, 1000) == "10 %"
    clock.now += 99
    assert estimate.text(250, 1000) == "25 %, about 5 min left"
    clock.now += 100
    assert estimate.text(999, 1000) == "99 %, about 1 s left"
    assert estimate.text(1000, 1000) == "100 %"


def test_another_piece_of_work_has_a_pace_of_its_own() -> None:
    clock = Clock()
    estimate = Estimate(clock)
    estimate.text(0, 10)
    clock.now += 1000
    assert estimate.text(9, 10) == "90 %, about 111 s left"
    assert estimate.text(0, 40) == "0 %"
    clock.now += 10
    assert estimate.text(10, 40) == "25 %, about 30 s left"


@pytest.mark.parametrize(("done", "total"), [(None, 10), (3, None), (3, 0), (11, 10)])
def test_nothing_is_estimated_that_nobody_knows(done: float | None, total: float | None) -> None:
    assert Estimate(Clock()).text(done, total) == ""


def test_a_note_has_what_was_said_last_however_long_ago() -> None:
    notes: list[tuple[str, str, dict[str, Any]]] = []

    def note(text: str, name: str, **fields: Any) -> None:
        notes.append((text, name, fields))

    newest = Newest("verifying")
    newest.note(note)  # Spark starts
    newest("12 of 40 journals", done=12, total=40, bytes=7)
    newest.note(note)
    newest.note(note)
    said = ("verifying: 12 of 40 journals, 30 %", "progress", {"done": 12, "total": 40, "bytes": 7})
    assert notes == [("verifying", "progress", {}), said, said]


def test_without_a_terminal_inner_progress_is_logged_every_ten_seconds() -> None:
    notes: list[str] = []
    waited: list[float] = []
    ready, waited_twice = threading.Event(), threading.Event()

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        ready.wait()
        if len(waited) > 1:
            waited_twice.set()
        return len(waited) > 1

    with noting("computing M", lambda text, name, **fields: notes.append(text), wait) as show:
        show("starting Spark")
        ready.set()
        waited_twice.wait()
    assert notes == ["computing M: starting Spark"]
    assert waited == [NOTE_EVERY_S] * 2
    assert NOTE_EVERY_S <= 10


@pytest.mark.parametrize("columns", [80, 140])
def test_the_line_fits_the_terminal_and_shows_text_as_it_is(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from rich import console

    body = io.StringIO()
    original = console.Console

    def terminal(**options: Any) -> console.Console:
        return original(file=body, force_terminal=True, width=columns, height=25, _environ={"TERM": "xterm"})

    monkeypatch.setattr(console, "Console", terminal)
    with following("uploading to [red]x\x1b[2J") as show:
        show("134,712 records, 12.3 MiB", done=41, total=100)
    lines = [line for line in _plain(body.getvalue()).splitlines() if line.strip()]
    assert all(len(line) <= columns for line in lines)
    assert any(
        "uploading to [red]x\\x1b[2J: 134,712 records, 12.3 MiB, 41 %" in re.sub("[━╸╺ ]+", " ", x) for x in lines
    )


@pytest.mark.weed
def test_an_upload_of_files_shows_a_share_and_stdin_none(
    store: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    founded()
    reported: list[tuple[float | None, float | None]] = []

    @contextmanager
    def kept(title: str, note: object) -> Iterator[Progress]:
        yield lambda text, *, done=None, total=None, **fields: reported.append((done, total))

    monkeypatch.setattr("l0gc.cli.output.noting", kept)
    (tmp_path / "a").write_bytes(b"123\n" * 30)
    (tmp_path / "b").write_bytes(b"123\n" * 10 + b"4")
    producer: list[str]
    for producer in [], ["--producer", "p"]:
        l0gc("upload", "events", str(tmp_path / "a"), str(tmp_path / "b"), "--batch-bytes", "40", *producer)
        shares, reported[:] = list(reported), []
        assert (shares[-1], {total for _, total in shares}) == ((161, 161), {161})
    with (tmp_path / "a").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        l0gc("upload", "events", "-")
    assert [total for _, total in reported] == [None] * len(reported)


def _plain(text: str) -> str:
    return re.sub("\x1b\\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "\n")
