"""`l0gc init`, `topic` and `epoch` with journals: what they print, and what they refuse."""

from __future__ import annotations

import pytest

from l0gc.cli.main import cli
from l0gc.cli.output import taking_results
from l0gc.errors import EpochRegressionError, TopicExistsError, UsageError
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import Cluster
from l0gc.watermark.publication import PublishedWatermark, publish
from tests.support.cli import l0gc, l0gc_process

pytestmark = pytest.mark.weed


@pytest.fixture
def cluster(bucket: StoreConfig) -> StoreConfig:
    l0gc("init", "--create-bucket", "--shards", "4", "--journals", "3")
    return bucket


def text_of(*args: str) -> list[str]:
    with taking_results() as results:
        cli.main(list(args), prog_name="l0gc", standalone_mode=False)
    return results[-1].text


def test_a_cluster_is_founded_with_its_journals_and_keeps_them(cluster: StoreConfig) -> None:
    again = l0gc("init")
    assert (again["journals"], again["created"]) == (3, False)
    with pytest.raises(UsageError, match="initialised with 3 journals"):
        l0gc("init", "--journals", "4")
    assert l0gc_process("init", "--journals", "10000").code == 2


def test_a_topic_is_described_with_its_journals(cluster: StoreConfig) -> None:
    created = l0gc("topic", "create", "events", "--partitions", "100000", "--journals", "2")
    assert created == {"name": "events", "revision": 1, "partitions": 100_000, "journals": [0, 1], "created": True}
    assert text_of("topic", "create", "events", "--partitions", "100000") == [
        "topic events exists: revision 1, 100,000 partitions in 2 journals"
    ]
    with pytest.raises(TopicExistsError, match="in 2 journals, not 1"):
        l0gc("topic", "create", "events", "--partitions", "100000", "--journals", "1")
    with pytest.raises(UsageError, match="cannot lie in 4 journals: this cluster has 3"):
        l0gc("topic", "create", "more", "--partitions", "8", "--journals", "4")
    described = l0gc("topic", "describe", "events")
    topic_id = described.pop("topic_id")
    assert described == {
        "name": "events",
        "revision": 1,
        "partitions": 100_000,
        "journals": [0, 1],
        "runs": [{"journal": 0, "first": 0, "count": 50_000}, {"journal": 1, "first": 50_000, "count": 50_000}],
    }
    assert text_of("topic", "describe", "events") == [
        f"topic events: revision 1, 100,000 partitions in 2 journals, id {topic_id}",
        "journal 0: partitions 0 to 49,999",
        "journal 1: partitions 50,000 to 99,999",
    ]
    l0gc("topic", "create", "one", "--partitions", "1")
    assert text_of("topic", "list") == [
        "events  revision 1, 100,000 partitions in 2 journals",
        "one  revision 2, 1 partition in journal 2",
    ]
    assert text_of("topic", "delete", "events") == ["topic events (revision 1) deleted; closed in 2 journals"]


def test_an_unknown_topic_exits_5_with_the_nearest_name(cluster: StoreConfig) -> None:
    l0gc("topic", "create", "events", "--partitions", "1")
    ended = l0gc_process("topic", "describe", "event")
    assert (ended.code, ended.stdout) == (5, b"")
    assert "did you mean 'events'?" in ended.stderr


def test_behind_what_is_published_the_epoch_goes_up_only_when_told_how_far(cluster: StoreConfig) -> None:
    """Hazard 10: the controller log was restored from a backup."""
    handles = Cluster(S3Store(cluster))
    cluster_id = handles.controller.snapshot().cluster_id
    publish(handles.store, handles.runtime, PublishedWatermark(cluster_id, 4, 6, 0))
    for args in (["epoch", "advance"], ["topic", "create", "t", "--partitions", "1"]):
        with pytest.raises(EpochRegressionError):
            l0gc(*args)
    assert l0gc("epoch", "show") == {"epoch": 0}
    with pytest.raises(UsageError, match="exclude each other"):
        l0gc("epoch", "advance", "--above", "6", "--expect", "0")
    assert [l0gc("epoch", "advance", "--above", "6") for _ in range(2)] == [{"epoch": 7}] * 2
    assert l0gc("epoch", "advance") == {"epoch": 8}
