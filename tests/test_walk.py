"""A run of the loop calls the functions that the walks in docs/why/architecture.md name."""

from __future__ import annotations

import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from l0gc.settings import Settings
from tests.support.memory_store import memory_cluster, store_of
from tests.test_api import over

ROOT = Path(__file__).parents[1]
FUNCTION = re.compile(r"`(l0gc/[\w/]+\.py)::([\w.]+)`")
TWICE = 2
"""How often a walk may return to a file; a walk that returns more often is not a clear path."""


def walk(heading: str) -> list[list[tuple[str, str]]]:
    """Return the functions of each step, by file and name."""
    section = (ROOT / "docs/why/architecture.md").read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ") and "l0gc/" in line]
    return [FUNCTION.findall(row) for row in rows]


WALKS = {
    heading: walk(heading)
    for heading in (
        "One record, from upload to sweep",
        "One epoch, from tick to sweep",
        "One dry run of a sweep, from the call to its numbers",
    )
}


@contextmanager
def calls_of(functions: set[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    """Yield a list of these functions' calls, on any thread, in order."""
    calls: list[tuple[str, str]] = []
    prefix = f"{ROOT}/"

    def called(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            name = (frame.f_code.co_filename.removeprefix(prefix), frame.f_code.co_qualname)
            if name in functions:
                calls.append(name)

    threading.setprofile(called)
    sys.setprofile(called)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def test_a_loop_takes_each_walk_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = {f for steps in WALKS.values() for step in steps for f in step}
    handles = memory_cluster()
    with calls_of(functions) as calls, over(handles, monkeypatch) as cluster:
        cluster.topics.create("events", partitions=2)
        cluster.upload("events", [b"one", b"two"], producer="nightly")
        cluster.reconcile()
        assert len(list(cluster.read("events"))) == 2
        for _ in range(2):
            store_of(handles).clock.sleep(Settings().epoch_interval)
            cluster.housekeep()
        cluster.compute_watermark()
        assert cluster.sweep(dry_run=True).deleted == cluster.sweep().deleted == 1
    for heading, steps in WALKS.items():
        at = 0
        for step in steps:
            assert step, heading
            for function in step:
                assert function in calls[at:], f"{heading}: {function} is not called after the step before it"
            at = min(calls.index(function, at) for function in step)


@pytest.mark.parametrize("heading", WALKS)
def test_each_file_of_a_walk_is_entered_once_or_twice(heading: str) -> None:
    entered = Counter(file for step in WALKS[heading] for file, _ in step)
    assert {file: n for file, n in entered.items() if n > TWICE} == {}
