"""Commands report what is done and what is not after a partial failure, on a store in memory."""

from __future__ import annotations

import getpass
import signal
from pathlib import Path

import click
import pytest

from l0gc.cli.demo import _Demo
from l0gc.cli.main import cli
from l0gc.cli.metrics_options import measuring
from l0gc.cli.output import taking_results
from l0gc.cli.signals import OutputClosedError
from l0gc.errors import AccessDeniedError, PartialFailureError, StoppedError
from l0gc.keys import GC_NOTE, journal_log
from l0gc.runtime import user_at_host
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.ingest import uploader
from tests.support.cli import l0gc, opens
from tests.support.ingest import stored_values
from tests.support.memory_store import failing, once, store_of, topic_in_memory


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> ClusterHandles:
    """Return a cluster with a topic of two partitions, which the commands find instead of one on S3."""
    found = topic_in_memory(2, 2)
    return opens(found, monkeypatch)


@pytest.mark.parametrize(("more", "said"), [((), "would land again"), (("--producer", "p"), "nothing lands twice")])
@pytest.mark.parametrize(
    ("cause", "raised"), [(AccessDeniedError("no"), AccessDeniedError), (KeyboardInterrupt(), StoppedError)]
)
def test_an_upload_that_ends_after_its_records_says_that_they_are_there(
    cluster: ClusterHandles,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: tuple[str, ...],
    said: str,
    cause: BaseException,
    raised: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(uploader, "_PACKERS", 1)  # so that the first batch is written first
    (tmp_path / "in").write_bytes(b"1\n2\n3\n" + b"x" * 4096)
    store_of(cluster).fault = failing(cause, "put", after=1)
    with pytest.raises(raised) as ended:
        l0gc("upload", "events", str(tmp_path / "in"), "--batch-bytes", "50", *more)
    output = capsys.readouterr().err + str(ended.value)  # a stopped run prints one sentence
    assert "3 records were committed before that" in output
    assert said in output
    assert sum(map(len, stored_values(cluster, "events"))) == 3


def test_a_gc_that_is_stopped_prints_what_it_did(cluster: ClusterHandles) -> None:
    store_of(cluster).fault = once(lambda: signal.raise_signal(signal.SIGINT), "get", GC_NOTE)
    with taking_results() as results, pytest.raises(StoppedError, match="the steps shown are done") as stopped:
        cli.main(["gc"], prog_name="l0gc", standalone_mode=False)
    assert stopped.value.exit_code == 130
    assert results[-1].text[0].startswith("housekeep  ")
    assert results[-1].text[-1].split()[:2] == ["not", "due"]


def test_only_closed_journals_of_a_deleted_topic_are_reported_closed(cluster: ClusterHandles) -> None:
    damaged = cluster.controller.snapshot().topic("events").journals[1]
    cluster.store.put(f"{journal_log(damaged)}log/{0:020}", b"{}")
    with taking_results() as results, pytest.raises(PartialFailureError, match="could not be closed in journal"):
        cli.main(["topic", "delete", "events", "--yes"], prog_name="l0gc", standalone_mode=False)
    assert results[-1].text == ["topic events (revision 1) deleted; closed in 1 journal"]


def test_a_user_without_a_name_may_advance_the_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 1234")

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert user_at_host().startswith("unknown@")


def test_a_reader_of_the_demo_that_has_gone_is_no_unexpected_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*args: object, **kwargs: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(click, "secho", gone)
    monkeypatch.setattr(click, "echo", gone)
    with pytest.raises(OutputClosedError):
        _Demo(quiet=False).say("something")


def test_metrics_show_the_exit_code_that_a_command_leaves_with() -> None:
    """`l0gc status --watch` exits with 130 at Ctrl-C."""
    with pytest.raises(click.exceptions.Exit), measuring("status") as run:
        raise click.exceptions.Exit(130)
    assert run.exit_code == 130
