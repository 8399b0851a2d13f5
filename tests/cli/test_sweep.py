"""The commands of sweeps and vacuums: their options, their output, and the records that they leave."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click
import msgspec
import pytest

from l0gc.api.cluster import sweep_work
from l0gc.api.engine import Engine, choose_engine
from l0gc.api.estimate import SparkTarget
from l0gc.cli.main import cli
from l0gc.cli.runs import run_outcome
from l0gc.cli.sweep import swept, vacuumed
from l0gc.collect.history import list_runs
from l0gc.collect.plan import DeletionPlan
from l0gc.collect.sweep import SweepResult, SweepRun
from l0gc.collect.vacuum import VacuumResult
from l0gc.errors import UsageError
from l0gc.operations import Sweep, Vacuum
from l0gc.storage.objectstore import ENABLED, OFF, SUSPENDED
from tests.collect.test_sweep_local import a_cluster


@pytest.mark.parametrize(
    ("option", "value"),
    [("max-rate", "nan"), ("max-rate", "inf"), ("max-rate", "0"), ("max-delete-ratio", "nan")],
)
@pytest.mark.parametrize(("command", "before"), [("sweep", "--"), ("gc", "--sweep-")])
def test_a_value_that_is_not_a_number_is_refused(command: str, before: str, option: str, value: str) -> None:
    refuse(command, before + option, value)


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [
        ("housekeep", "--epoch-interval", "nan"),
        ("housekeep", "--epoch-interval", "inf"),
        ("status", "--watch", "nan"),
        ("status", "--price-gb-month", "inf"),
    ],
)
def test_nor_do_other_commands_take_it(command: str, option: str, value: str) -> None:
    refuse(command, option, value)


def refuse(command: str, option: str, value: str) -> None:
    with pytest.raises(click.BadParameter) as refused:
        cli.main([command, "--url", "s3://nowhere", option, value], prog_name="l0gc", standalone_mode=False)
    assert value in str(refused.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (Sweep(), "; l0gc undelete --run RUN brings them back until then"),
        (
            Sweep(record_dir=Path("/some/dir")),
            "; l0gc undelete --run RUN --record-dir /some/dir brings them back",
        ),
        (Sweep(record=False), "removes them"),
        (Sweep(dry_run=True), "removes them"),  # the run does not exist
    ],
)
def test_a_sweep_names_undelete_only_where_it_can_be_undeleted(options: Sweep, said: str) -> None:
    cluster = a_cluster()
    result = SweepRun(cluster, Sweep(dry_run=options.dry_run)).run()
    result.plan = DeletionPlan(options=options, versioning=ENABLED, run_id="RUN")
    (line,) = [line for line in swept(result) if "keeps versions" in line]
    assert said in line
    assert ("undelete" in line) == (options.record and not options.dry_run)


def test_a_dry_run_does_not_say_how_long_the_run_would_take() -> None:
    result = SweepRun(a_cluster(), Sweep(dry_run=True)).run()
    result.seconds = 10.9
    assert " would be deleted; " in swept(result)[0]
    assert "10.9" not in swept(result)[0]


@pytest.mark.parametrize(
    ("options", "option"), [(Sweep(max_objects=3), "--max-objects"), (Sweep(max_bytes=3), "--max-bytes"), (Sweep(), "")]
)
def test_the_text_names_the_option_that_left_the_rest(options: Sweep, option: str) -> None:
    cluster = a_cluster()
    result = SweepRun(cluster, options).run()
    recorded = run_outcome(list_runs(cluster.store, 1)[0][0])
    for text in (" ".join(swept(result)), " ".join(vacuumed(of_vacuum(result))), recorded):
        assert ("left the rest" in text) == bool(option)
        assert f"{option} left the rest" in text or not option


def of_vacuum(result: SweepResult) -> VacuumResult:
    return VacuumResult(plan=DeletionPlan(options=Vacuum(), run_id="RUN", started_ms=0), limited_by=result.limited_by)


@pytest.mark.parametrize(
    ("versioning", "said"),
    [(OFF, ""), (ENABLED, "the bucket keeps versions"), (SUSPENDED, "what was written since is gone for good")],
)
def test_what_is_said_of_versions_is_true_of_the_bucket(versioning: str, said: str) -> None:
    cluster = a_cluster()
    result = SweepRun(cluster).run()
    result.plan = msgspec.structs.replace(result.plan, versioning=versioning)
    lines = [line for line in swept(result) if "version" in line]
    assert len(lines) == bool(said)
    assert all(said in line for line in lines)


@pytest.mark.parametrize(
    ("versioning", "said"),
    [(OFF, ""), (ENABLED, "the bucket keeps versions: the bytes stay"), (SUSPENDED, "what was written since is gone")],
)
@pytest.mark.parametrize("dry_run", [False, True])
def test_what_a_vacuum_says_of_versions_is_true_of_the_bucket(versioning: str, said: str, *, dry_run: bool) -> None:
    plan = DeletionPlan(options=Vacuum(dry_run=dry_run), run_id="RUN", started_ms=0, versioning=versioning)
    result = VacuumResult(plan=plan, objects=2)
    lines = [line for line in vacuumed(result) if "version" in line]
    assert len(lines) == bool(said)
    assert all(said in line and ("l0gc undelete --run RUN" in line) is not dry_run for line in lines)


# -- the choice of the engine ---------------------------------------------------------------------------------------------

CLUSTER: Final = SparkTarget("spark://host:7077", 32, cluster=True)


@pytest.mark.parametrize(
    ("eligible", "engine", "why"),
    [
        (10**5, "local", "100,000 objects that were eligible at the last scan: 3.3 s estimated in this process"),
        (10**7, "spark", "10,000,000 objects that were eligible at the last scan: 333.3 s estimated in this process"),
        (-1, "spark", "the number of objects that were eligible at the last scan is not known"),
    ],
)
def test_the_engine_is_chosen_by_what_was_eligible(eligible: int, engine: str, why: str) -> None:
    work = sweep_work(lambda enough: eligible)
    chosen, reason = choose_engine("auto", work, CLUSTER, cores=2, java=True)
    assert chosen == engine
    assert why in reason


def test_what_is_eligible_is_not_counted_where_it_does_not_matter() -> None:
    def never(enough: int) -> int:
        raise AssertionError

    work = sweep_work(never)
    assert choose_engine("auto", work, SparkTarget("local[2]", 2), cores=2, java=True)[0] == "local"
    assert not Engine(master="local[1]").choose(work)[1].startswith("--engine")


def test_a_limited_sweep_runs_in_one_process() -> None:
    """Spark refuses limits, and `auto` must choose an engine that works however large the bucket has become."""
    work = sweep_work(lambda enough: 10**9, limits="--max-objects")
    chosen, reason = choose_engine("auto", work, CLUSTER, cores=2, java=True)
    assert (chosen, "one process" in reason) == ("local", True)


def test_spark_with_a_limit_is_refused_before_it_is_started() -> None:
    work = sweep_work(lambda enough: 10**9, limits="--max-objects")
    with pytest.raises(UsageError, match="only one process can keep --max-objects: use --engine local"):
        choose_engine("spark", work, CLUSTER, cores=2, java=True)
