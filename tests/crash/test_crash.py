"""Tries a sample of the points of `make crash-test`: a command that was killed and run again must have achieved its
aim.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from itertools import cycle

import pytest

from l0gc.embedded.seaweedfs import SeaweedFS
from tests.crash.cases import CASES
from tests.crash.points import Bench, points_of
from tests.crash.tables import others_merge_sync_and_vacuum

pytestmark = [pytest.mark.weed, pytest.mark.slow, pytest.mark.timeout(600)]

QUICK = {"upload"}
"""The command of `make test`."""
SAMPLE = 3
HANGING = ("topic-create", "upload", "housekeep", "sweep", "merge-vacuum", "table-sync")
"""One command for each way of working; each takes ten seconds to end. `tests/flows/test_hanging.py` has those that
read.
"""
MEETINGS = 2
SPARK_SAMPLE = 2
"""How many points of each command are tried; commands that need Spark have fewer, and the last is verified."""


@pytest.fixture(scope="module")
def bench(weed: SeaweedFS, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with Bench(weed, tmp_path_factory.mktemp("crash")) as bench:
        yield bench


def _sampled(points: list[tuple[int, str]], name: str, size: int) -> list[tuple[int, str]]:
    """Return points at equal distances from one that the command's name chooses; the odd distance gives both kinds."""
    distance = max(1, len(points) // size) | 1
    return points[random.Random(name).randrange(distance) :: distance]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK else [pytest.mark.thorough])
        for name, case in CASES.items()
        if not case.shared
    ],
)
def test_running_a_killed_command_again_repairs_everything(bench: Bench, name: str) -> None:
    points = points_of(bench.requests_of(CASES[name]))
    died = [bench.try_point(CASES[name], n, when, verify=False) for n, when in _sampled(points, name, SAMPLE)]
    assert sum(d is not None for d in died) > SAMPLE // 2


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "number"), [*zip(HANGING, cycle((signal.SIGINT, signal.SIGTERM)), strict=False)])
def test_a_signal_during_any_hanging_request_ends_the_command_in_time(
    bench: Bench, name: str, number: signal.Signals
) -> None:
    for n, when in _sampled(points_of(bench.requests_of(CASES[name])), name, 1):
        bench.try_point(CASES[name], n, when, verify=False, number=number)


@pytest.mark.thorough
def test_overlapping_syncs_merge_and_vacuum_name_each_object_once(bench: Bench) -> None:
    case = CASES["table-sync"]
    numbers = [r.number for r in bench.requests_of(case)]
    met = [bench.meet(case, n, others_merge_sync_and_vacuum) for n in numbers[:: len(numbers) // MEETINGS]]
    assert all(met)


@pytest.mark.spark
@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.shared])
def test_running_a_killed_spark_command_again_repairs_everything(bench: Bench, name: str) -> None:
    points = points_of(bench.requests_of(CASES[name]))
    chosen = _sampled(points, name, SPARK_SAMPLE)
    died = [bench.try_point(CASES[name], n, when, verify=(n, when) == chosen[-1]) for n, when in chosen]
    assert any(died)
