"""`l0gc gc` on a real server: its steps are the commands, a failed step stops those that could harm, and two runs can
overlap.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from l0gc.cli.main import cli
from l0gc.cli.metrics import METRICS
from l0gc.cli.output import taking_results
from l0gc.collect.gc_steps import STEPS, TABLE_SYNC
from l0gc.errors import EndedError, L0gcError, NotInitialisedError, StoppedError
from l0gc.keys import journal_log
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.housekeep import HousekeepResult
from tests.flows.test_loop import LAYOUT, SHARDS, l0_objects
from tests.flows.test_sweep import end
from tests.support.cli import ended_here, founded, l0gc, start

pytestmark = [pytest.mark.weed, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]

LINES = [f"record {n}" for n in range(400)]


@pytest.fixture
def loaded(one_spark: None, store: S3Store, tmp_path: Path) -> S3Store:
    """Create a cluster with one topic of two partitions, and one upload that is not reconciled."""
    founded(shards=SHARDS)
    upload(tmp_path, 0)
    return store


def upload(folder: Path, partition: int) -> None:
    path = folder / "lines"
    path.write_text("".join(f"{line}\n" for line in LINES))
    l0gc("upload", "events", str(path), "--partition", str(partition))


def failing_gc(*args: str) -> tuple[dict[str, Any], L0gcError]:
    """Return what a failing `gc` prints and raises."""
    with taking_results() as results, pytest.raises(L0gcError) as raised:
        cli.main(["gc", *args], prog_name="l0gc", standalone_mode=False)
    return results[-1].data, raised.value


def records(partition: int) -> list[str]:
    return ended_here("read", "events", "--partition", str(partition)).stdout.decode().split()[1::2]


def everything(store: S3Store) -> set[str]:
    return {k for page in store.scan("") for k in page.keys}


def test_one_run_empties_a_quiet_cluster_and_prints_what_the_commands_print(loaded: S3Store, tmp_path: Path) -> None:
    assert l0_objects(loaded)
    done = l0gc("gc", "--housekeep-barrier", "--sweep-min-age", "0s")
    assert (done["errors"], done["dry_run"]) == ([], False)
    assert (done["reconcile"]["records"], done["sweep"]["deleted"]) == (len(LINES), 1)
    assert l0_objects(loaded) == {}
    assert records(0) == [line.split()[1] for line in LINES]
    assert l0gc("runs", "list")["runs"][0]["run_id"] == done["run_id"] == done["sweep"]["run_id"]
    for step, command in (("housekeep", "housekeep"), ("reconcile", "reconcile"), ("sweep", "sweep")):
        assert set(done[step]) == set(l0gc(command))
    assert set(done["not_due"]) == {"merge", "expire", "table_sync", "vacuum"}
    seen = l0gc("status")  # the run began before it counted what it then deleted
    garbage = seen["garbage"]
    assert garbage["eligible_objects"] == garbage["deleted_objects"] == done["sweep"]["deleted"] == 1
    assert (garbage["dollars_month"], seen["next"]) == (0, "nothing")
    assert set(done["compute_watermark"]) == set(l0gc("compute-watermark"))
    upload(tmp_path, 1)
    done = l0gc("gc", "--housekeep-barrier", "--engine", "local")
    assert (done["reconcile"]["records"], done["sweep"]["deleted"]) == (len(LINES), 1)
    assert l0_objects(loaded) == {}


@pytest.mark.thorough
def test_a_quiet_cluster_needs_no_spark_and_says_why(loaded: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 15.11: a run without work starts no Spark and gives the reason."""
    l0gc("gc", "--housekeep-barrier", "--engine", "local")

    def no_spark(*args: object, **kwargs: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("l0gc.api.engine.Engine.session", no_spark)
    for _ in range(2):
        done = l0gc("gc", "--epoch-interval", "0")  # each run ticks, so M could move, but there is no garbage
        assert done["housekeep"]["ticked"] is True
        steps = {"reconcile", "merge", "expire", "table_sync", "compute_watermark", "sweep", "vacuum"}
        assert set(done["not_due"]) == steps
        assert {done[step] for step in done["not_due"]} == {None}
    assert l0gc("status")["next"]


@pytest.mark.thorough
def test_what_could_not_be_deleted_is_due_until_it_is(loaded: S3Store, tmp_path: Path) -> None:
    l0gc("gc", "--housekeep-barrier", "--engine", "local", "--sweep-min-age", "1d")
    assert len(l0_objects(loaded)) == 1
    done = l0gc("gc", "--engine", "local", "--sweep-min-age", "0s")
    assert done["sweep"]["deleted"] == 1


@pytest.mark.thorough
def test_a_vacuum_in_gc_takes_what_has_had_its_grace(loaded: S3Store) -> None:
    l0gc("gc", "--housekeep-barrier", "--engine", "local")
    l0gc("topic", "delete", "events", "--yes")
    assert "vacuum" in l0gc("gc", "--engine", "local")["not_due"]
    for _ in range(2):
        l0gc("epoch", "advance")
    done = l0gc("gc", "--engine", "local", "--vacuum-l1-grace", "0s")
    assert done["vacuum"]["deleted"]["dropped_l1"]["objects"] == 1
    assert not [k for k in everything(loaded) if k.startswith("level_one/")]
    assert done["vacuum"]["run_id"] != done["run_id"]


@pytest.mark.thorough
def test_the_metrics_numbers_all_appear_in_command_output(loaded: S3Store, tmp_path: Path) -> None:
    options = ("--metrics-file", str(tmp_path / "all.prom"))
    lines = str(tmp_path / "lines")
    l0gc("upload", "events", lines, *options)
    l0gc("gc", "--housekeep-barrier", *options)
    for step in (*STEPS, "status", "verify"):
        l0gc(*(step.split("-") if step == TABLE_SYNC else [step]), *options)
    text = (tmp_path / "all.prom").read_text()
    exported = re.findall(
        r'^(\w+)\{(?:cause="\w+",)?command="[\w-]+",(?:severity="\w+",)?step="([\w-]+)",', text, re.MULTILINE
    )
    of_a_file = {"l0gc_log_disk_free_bytes"}  # this metric exists only if stdout is a file
    known = {(m.name, step) for m in METRICS for step in m.steps if m.name not in of_a_file}
    assert {(name, step) for name, step in exported if name not in of_a_file} == known


def test_a_dry_run_changes_nothing(loaded: S3Store, capsys: pytest.CaptureFixture[str]) -> None:
    before = everything(loaded)
    done = l0gc("gc", "--dry-run", "--housekeep-barrier")
    assert everything(loaded) == before
    assert (done["housekeep"], done["reconcile"]) == (None, None)
    assert (done["compute_watermark"]["published"], done["sweep"]["dry_run"]) == (False, True)
    assert done["vacuum"]["dry_run"] is True
    assert "skips the steps before compute-watermark" in capsys.readouterr().err


def test_without_a_cluster_nothing_begins(store: S3Store) -> None:
    store.create_bucket()
    with pytest.raises(NotInitialisedError):
        l0gc("gc")
    assert everything(store) == set()


def test_a_damaged_journal_does_not_keep_the_rest_from_being_collected(
    loaded: S3Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    l0gc("topic", "create", "other", "--partitions", "1")
    l0gc("upload", "other", str(tmp_path / "lines"))
    loaded.put(f"{journal_log(1)}log/{0:020}", b"nonsense")
    done, error = failing_gc("--metrics-file", str(tmp_path / "gc.prom"))
    failed = ["housekeep", "reconcile", "merge", "vacuum"]
    assert [(e["step"], e["exit_code"]) for e in done["errors"]] == [(step, 3) for step in failed]
    assert done["reconcile"]["records"] == len(LINES)
    assert "sweep" in done["not_due"]
    assert error.exit_code == 3
    assert isinstance(error, EndedError)
    stderr = capsys.readouterr().err
    assert "l0gc: housekeep: housekeeping failed for 1 log" in stderr
    assert "journal 1" in stderr
    assert "l0gc: reconcile: not everything could be lifted" in stderr
    text = (tmp_path / "gc.prom").read_text()
    url = os.environ["L0GC_URL"]
    for name, step, value in (
        ("l0gc_exit_code", "gc", 3),
        ("l0gc_exit_code", "housekeep", 3),
        ("l0gc_broken_logs", "housekeep", 1),
        ("l0gc_reconciled_records_total", "reconcile", len(LINES)),
        ("l0gc_unreadable_journals", "gc", 1),
        ("l0gc_exit_code", "sweep", 0),
    ):
        assert f'{name}{{command="gc",step="{step}",url="{url}"}} {float(value)}\n' in text


@pytest.mark.thorough
def test_where_m_is_refused_nothing_is_swept(
    loaded: S3Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    l0gc("gc", "--housekeep-barrier", "--engine", "local")
    upload(tmp_path, 0)
    loaded.put(LAYOUT.format(0, 4711, "5d224ad2-0a58-418f-afde-bc2fe7c35589"), b"from the future")
    before = l0_objects(loaded)
    done, error = failing_gc("--housekeep-barrier", "--engine", "local")
    assert [(e["step"], e["exit_code"]) for e in done["errors"]] == [("compute-watermark", 4)]
    assert (done["compute_watermark"], done["sweep"], error.exit_code) == (None, None, 4)
    assert l0_objects(loaded) == before
    assert "sweep is skipped" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_pause_fails_the_sweep_alone(loaded: S3Store) -> None:
    l0gc("pause", "--why", "disk audit")
    done, error = failing_gc("--housekeep-barrier", "--engine", "local")
    assert [(e["step"], e["exit_code"]) for e in done["errors"]] == [("sweep", 4)]
    assert (done["compute_watermark"]["published"], error.exit_code) == (True, 4)


# -- signals --------------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_signal_ends_the_run_where_it_is(loaded: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any, **kwargs: Any) -> HousekeepResult:
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("went on")

    monkeypatch.setattr("l0gc.streamlog.housekeep.housekeep", interrupted)
    done, error = failing_gc()
    assert isinstance(error, StoppedError)
    assert (error.exit_code, done["housekeep"], done["sweep"]) == (143, None, None)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_signal_during_the_sweep_ends_it_in_good_order(loaded: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    signals = [signal.SIGINT]  # only one signal, since a second one kills

    def report(*args: Any) -> None:
        if signals:
            signal.raise_signal(signals.pop())

    monkeypatch.setattr("l0gc.collect.sweep._Sweeper._report", report)
    done, error = failing_gc("--housekeep-barrier", "--engine", "local")
    assert (error.exit_code, done["sweep"]["stopped"]) == (130, True)
    assert done["errors"] == []


def begun_with_spark(*args: str) -> tuple[subprocess.Popen[bytes], list[dict[str, Any]]]:
    """Start a run in its own process; return it once it has started Spark, with its log so far."""
    process = start(["gc", "--json", "-v", "--log-format", "json", "--engine", "spark", "--master", "local[1]", *args])
    assert process.stderr is not None
    events: list[dict[str, Any]] = []
    for line in process.stderr:
        events.append(json.loads(line))
        if events[-1]["event"] == "spark_started":
            return process, events
    raise AssertionError(events)


@pytest.mark.slow
@pytest.mark.thorough
def test_ctrl_c_while_spark_works_ends_the_run(loaded: S3Store) -> None:
    process, events = begun_with_spark("--no-reconcile", "--no-merge")
    process.send_signal(signal.SIGINT)
    ended = end(process)
    assert ended.code == 130, ended.stderr
    done = ended.data
    assert (done["housekeep"]["journals"], done["compute_watermark"], done["sweep"]) == (1, None, None)
    assert {e.get("run", done["run_id"]) for e in events} == {done["run_id"]}
    assert len({e["run_id"] for e in events}) == 1


def java_of(process: subprocess.Popen[bytes]) -> int:
    """Return the JVM that a run has started."""
    for path in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):
            if (path.parent / "comm").read_text() == "java\n" and f"PPid:\t{process.pid}\n" in path.read_text():
                return int(path.parent.name)
    raise AssertionError("there is no Java")


@pytest.mark.slow
@pytest.mark.thorough
def test_gc_sweeps_nothing_after_java_was_killed(loaded: S3Store) -> None:
    process, _ = begun_with_spark("--housekeep-barrier")
    os.kill(java_of(process), signal.SIGKILL)
    ended = end(process)
    assert ended.code == 1, ended.stderr
    assert [(e["step"], e["exit_code"]) for e in ended.data["errors"]] == [("reconcile", 1), ("compute-watermark", 1)]
    assert {e["message"].partition("(")[0] for e in ended.data["errors"]} == {
        "the Spark job failed: its Java process was killed or ran out of memory "
    }
    assert ended.data["sweep"] is None
    assert l0_objects(loaded)


@pytest.mark.slow
@pytest.mark.thorough
def test_two_runs_at_once_both_succeed(loaded: S3Store, tmp_path: Path) -> None:
    l0gc("gc", "--housekeep-barrier")
    upload(tmp_path, 0)
    live = set(l0_objects(loaded))
    process, _ = begun_with_spark("--housekeep-barrier")
    here = l0gc("gc", "--housekeep-barrier")
    ended = end(process)
    assert ended.code == 0, ended.stderr
    there = ended.data
    assert (here["errors"], there["errors"]) == ([], [])
    assert here["reconcile"]["records"] + there["reconcile"]["records"] == len(LINES)
    assert set(l0_objects(loaded)) <= live
    assert records(0) == [line.split()[1] for line in LINES] * 2
    l0gc("gc", "--housekeep-barrier")
    assert l0_objects(loaded) == {}
