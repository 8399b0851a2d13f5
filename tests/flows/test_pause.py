"""Pauses sweeps by the commands, on a real server: a running sweep ends cleanly, and continues later."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from l0gc.cli.main import cli
from l0gc.cli.output import taking_results
from l0gc.errors import PausedError
from l0gc.storage.s3 import S3Store
from tests.flows.test_sweep import MANY, a_bucket, end, garbage, level_zero, when_some_are_gone
from tests.support.cli import ended_here, l0gc

pytestmark = pytest.mark.weed

SMALL_SEGMENTS = "import l0gc.collect.run as s; s.SEGMENT_OBJECTS = 10; from l0gc.cli.main import main; main()"
"""The command with segments so small that few objects fill many more segments than are read ahead at once."""


@pytest.mark.thorough
def test_a_pause_ends_a_running_sweep_and_blocks_others(store: S3Store) -> None:
    a_bucket(store, MANY)
    before = level_zero(store)
    process = subprocess.Popen(
        [sys.executable, "-c", SMALL_SEGMENTS, "sweep", "--json", "--max-rate", "25"],
        env=dict(os.environ), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    when_some_are_gone(store, process, MANY)
    assert l0gc("pause", "--why", "disk audit", "--by", "ann")["new"]
    ended = end(process)
    assert ended.code == 4, ended.stderr
    assert "sweeps are paused: disk audit (ann, since " in ended.stderr
    assert ended.data["paused"].startswith("disk audit")
    gone = before - level_zero(store)
    assert 0 < len(gone) == ended.data["deleted"] < MANY
    (run,) = l0gc("runs", "list")["runs"]
    assert (run["outcome"], run["deleted"]) == ("stopped", len(gone))

    refused = ended_here("sweep", "--json")
    assert (refused.code, refused.stdout) == (4, b"")
    dry = l0gc("sweep", "--dry-run")
    assert (dry["deleted"], dry["paused"]) == (MANY - len(gone), ended.data["paused"])
    assert not l0gc("pause", "--why", "another reason")["new"]
    assert l0gc("resume")["why"] == "disk audit"
    assert l0gc("sweep")["deleted"] == MANY - len(gone)
    assert garbage(store) == set()


@pytest.mark.spark
@pytest.mark.usefixtures("one_spark")
def test_each_task_on_spark_reads_the_pause(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver does not see the pause here, as if it had been set while Spark started."""
    a_bucket(store)
    before = level_zero(store)
    l0gc("pause", "--why", "disk audit", "--by", "ann")
    monkeypatch.setattr("l0gc.collect.plan.read_pause", lambda store: None)
    with taking_results() as results, pytest.raises(PausedError, match="disk audit"):
        cli.main(["sweep", "--engine", "spark", "--master", "local[2]"], prog_name="l0gc", standalone_mode=False)
    assert (results[-1].data["deleted"], results[-1].data["stopped"]) == (0, True)
    assert results[-1].data["paused"].startswith("disk audit")
    assert level_zero(store) == before
