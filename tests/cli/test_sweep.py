"""The sweep's command beside the sweep: what it takes, what it says, which records it leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from l0gc.cli.main import cli
from l0gc.cli.output import Output, taking_results
from l0gc.cli.run_options import removal_options
from l0gc.cli.sweep import run_sweep
from l0gc.cli.sweep_text import lines_of
from l0gc.collect.local import LocalSweep
from l0gc.collect.plan import Removal
from l0gc.settings import Settings
from l0gc.storage.objectstore import ENABLED, OFF, SUSPENDED
from tests.collect.test_local import a_cluster


@pytest.mark.parametrize(
    ("option", "value"),
    [("--max-rate", "nan"), ("--max-rate", "inf"), ("--max-rate", "0"), ("--max-delete-ratio", "nan")],
)
@pytest.mark.parametrize("command", ["sweep", "gc"])
def test_what_is_no_number_is_refused(command: str, option: str, value: str) -> None:
    refuse(command, option, value)


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
    ("limit", "limited"), [({}, False), ({"max_objects": 1}, True), ({"max_delete_ratio": 0.0}, True)]
)
def test_only_limits_that_one_process_must_keep_count_as_such(limit: dict[str, Any], limited: bool) -> None:
    unlimited = Removal(max_rate=100.0)
    assert msgspec.structs.replace(unlimited, **limit).in_one_process == limited


@pytest.mark.parametrize("elsewhere", [{"record_dir": Path("x")}, {"no_record": True}])
def test_a_record_outside_of_the_bucket_needs_one_process(elsewhere: dict[str, Any]) -> None:
    def removal_of(*, removal: Removal) -> Removal:
        return removal

    removal = removal_options("gc")(removal_of)(**{"no_record": False} | elsewhere)
    assert removal.in_one_process
    assert (removal.record_dir, removal.record) == (
        elsewhere.get("record_dir"),
        "no_record" not in elsewhere,
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (Removal(), "; l0gc undelete --run RUN brings them back until then"),
        (
            Removal(record_dir=Path("/some/dir")),
            "; l0gc undelete --run RUN --record-dir /some/dir brings them back",
        ),
        (Removal(record=False), "removes them"),
        (Removal(dry_run=True), "removes them"),  # there is no such run
    ],
)
def test_how_a_sweep_is_taken_back_is_said_only_where_it_can_be(options: Removal, said: str) -> None:
    cluster = a_cluster()
    result = LocalSweep(cluster, Removal(dry_run=options.dry_run)).run(cluster.parallel)
    result.plan = msgspec.structs.replace(options, versioning=ENABLED, run_id="RUN")
    (line,) = [line for line in lines_of(result) if "keeps versions" in line]
    assert said in line
    assert ("undelete" in line) == (options.record and not options.dry_run)


def never(defaults: Any) -> Any:
    raise AssertionError


@pytest.mark.parametrize(
    ("versioning", "said"),
    [(OFF, ""), (ENABLED, "the bucket keeps versions"), (SUSPENDED, "what was written since is gone for good")],
)
def test_what_is_said_of_versions_is_true_of_the_bucket(
    monkeypatch: pytest.MonkeyPatch, versioning: str, said: str
) -> None:
    cluster = a_cluster()
    result = LocalSweep(cluster).run(cluster.parallel)
    result.plan = msgspec.structs.replace(result.plan, versioning=versioning)
    monkeypatch.setattr("l0gc.cli.sweep._local", lambda *given: result)
    with taking_results() as results:
        run_sweep(Output(Settings()), cluster, cluster.store, Removal(), never, "local", "")  # type: ignore[arg-type]
    lines = [line for line in results[0].text if "version" in line]
    assert len(lines) == bool(said)
    assert all(said in line for line in lines)
