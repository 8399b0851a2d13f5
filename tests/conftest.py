"""Fixtures for all tests: a clean environment, one SeaweedFS, a fresh bucket for each test that needs one, and one
Spark.
"""

from __future__ import annotations

import functools
import gc
import os
import signal
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import hypothesis
import pytest
from xdist.scheduler import LoadFileScheduling

from l0gc.embedded.seaweedfs import SeaweedFS, find_weed
from l0gc.errors import L0gcError
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from tests.support.spark import shared_spark, stop_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# No test judges by the wall clock: the machine may be busy. A property that needs more examples says so.
hypothesis.settings.register_profile(
    "l0gc", max_examples=50, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("l0gc")

APART = ("tests/simulation/", "tests/exhaustive/", "tests/fuzz/", "tests/storage/test_replica_interrupted")
"""Tests that share nothing; one of these files would keep a process busy after the others have ended."""


QUICK = "not thorough"
"""The tests of `make test`."""
ON_SPARK = "spark"
"""The scope of all files that share a Spark in `make test`."""
LONGEST = (
    ON_SPARK,
    "tests/crash/test_crash.py",
    "tests/flows/test_spark_cluster.py",
    "tests/flows/test_spark_source.py",
    "tests/flows/test_interrupts.py",
    "tests/flows/test_spark_source_cluster.py",
    "tests/cli/test_captures.py",
    "tests/flows/test_repeated_commits.py",
    "tests/flows/test_typed_flights.py",
    "tests/examples/test_iam.py",
    "tests/flows/test_soak.py",
    "tests/flows/test_fortnight.py",
    "tests/flows/test_spark_pushdown.py",
    "tests/flows/test_backup.py",
    "tests/flows/test_sweep_spark.py",
    "tests/simulation/mutants/test_named_tests.py::test_the_named_tests_of_every_mutant_fail_under_it",
    "tests/flows/test_vacuum_spark.py",
    "tests/crash/test_faults.py",
    "tests/streamlog/level_one/test_shared_histories.py",
    "tests/flows/test_forks.py",
)
"""The scopes that begin first, in this order. A file with few tests would begin last, and the other processes would
wait for it.
"""


class _ByFile(LoadFileScheduling):  # type: ignore[misc]
    """Runs the tests of a file in one process, where they share a bucket; those of `APART` in any free process.

    In `make test` all files that share a Spark run in one process: another Spark would cost more than it saves. `make
    thorough` has too many such files for one process.
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(APART):
            return nodeid
        file = str(super()._split_scope(nodeid))
        return ON_SPARK if self.config.option.markexpr == QUICK and _shares_spark(file) else file

    def _assign_work_unit(self, node: Any) -> None:
        longest = next((scope for scope in LONGEST if scope in self.workqueue), None)
        if longest is not None:
            self.workqueue.move_to_end(longest, last=False)
        super()._assign_work_unit(node)

    def remove_node(self, node: Any) -> str | None:
        """Give the tests that a crashed process has left to the others.

        xdist would queue its completed files, too. A process that is given a file without a test left waits forever.
        """
        files = self.assigned_work[node]
        for file in [file for file, tests in files.items() if all(tests.values())]:
            del files[file]
        return cast("str | None", super().remove_node(node))


@functools.cache
def _shares_spark(file: str) -> bool:
    return "one_spark" in (Path(__file__).parents[1] / file).read_text()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let each process begin with a different part of the tests, so that it reads what others have compiled.

    In a fresh checkout, pytest's rewriting of asserts is most of the collection.
    """
    report = yield
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker and collector.path == Path(__file__).parent:
        begin = len(report.result) * int(worker.removeprefix("gw")) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        report.result = [*report.result[begin:], *report.result[:begin]]
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _ByFile:
    """Return the scheduler that assigns tests to processes."""
    return _ByFile(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests, so that all processes have one order, and refuse a quick test that starts its own Spark."""
    items.sort(key=lambda item: item.path)
    for item in items:
        starts_spark = item.get_closest_marker("spark") and "one_spark" not in getattr(item, "fixturenames", ())
        if starts_spark and not item.get_closest_marker("thorough"):
            raise pytest.UsageError(f"{item.nodeid} starts a Spark of its own: mark it as thorough, or use one_spark")


def pytest_collection_finish() -> None:
    """Exclude thousands of tests and their modules from each full garbage collection, which took a tenth of the time."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _signals_are_heard() -> None:
    """Restore the signals' defaults: a parent that ignores SIGINT or SIGHUP would pass that on to every command here."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _signals_stay_as_they_were() -> Iterator[None]:
    """Restore the signal handlers after a test, because a command in this process may have replaced them."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the user's settings away from the tests."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "L0GC_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", os.devnull)  # a place without a settings file


@pytest.fixture(scope="session")
def weed(request: pytest.FixtureRequest) -> Iterator[SeaweedFS]:
    """Start a server for the whole run. Without its wheel, a newcomer's first tests skip it; make's do not."""
    try:
        find_weed()
    except L0gcError as e:
        if request.config.option.markexpr:
            raise
        pytest.skip(str(e))
    with SeaweedFS() as server:
        yield server


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """Start an S3 server inside this process."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@pytest.fixture
def bucket(weed: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> StoreConfig:
    """Return a bucket that does not exist yet, which the environment names as the cluster's place."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    for key, value in weed.environment().items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("L0GC_URL", f"s3://{name}/some/prefix")
    return StoreConfig(name, "some/prefix/", weed.endpoint_url, weed.region)


@pytest.fixture
def store(bucket: StoreConfig) -> S3Store:
    return S3Store(bucket)


@pytest.fixture(scope="session")
def _one_java() -> Iterator[None]:
    yield
    stop_session()


@pytest.fixture(scope="module")
def one_spark(weed: SeaweedFS, _one_java: None) -> Iterator[SparkSession]:
    """Return the session of this process, for the test and for the commands that it runs here.

    Its workers have the environment of its start, so that environment names the server.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name, value in weed.environment().items():
            patch.setenv(name, value)
        with shared_spark() as spark:
            yield spark


@pytest.fixture(scope="module")
def no_spark() -> None:
    """End the session before a file that starts a Spark of another kind in this process."""
    stop_session()
