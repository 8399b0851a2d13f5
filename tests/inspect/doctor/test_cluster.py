"""What the doctor says of the cluster: whether its logs can be read, and fit together with each other and with M."""

from __future__ import annotations

from l0gc.errors import UnsupportedFormatError
from l0gc.inspect.doctor.checkup import FAILURE, OK, WARNING, Check, guarded
from l0gc.inspect.doctor.cluster import cluster as checks_of
from l0gc.keys import FORMAT, journal_log
from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.journal.handle import JournalHandle
from tests.support.journal import of_topic
from tests.support.memory_store import another_process, external_cluster, memory_cluster, publish_m, store_of
from tests.support.verify import handle_of, loaded_cluster, topic_of


def checks(cluster: Handles) -> dict[str, Check]:
    """The checks of another process, which change nothing."""
    before = dict(store_of(cluster).objects)
    found = list(checks_of(another_process(cluster)))
    assert store_of(cluster).objects == before
    return {c.name: c for c in found}


def failures(cluster: Handles) -> list[str]:
    return [name for name, c in checks(cluster).items() if c.status == FAILURE]


def test_a_bucket_without_a_cluster_is_a_warning_with_the_way_out() -> None:
    (found,) = checks_of(memory_cluster(bootstrap=False))
    assert (found.status, found.remedy) == (WARNING, "l0gc init")


def test_a_cluster_that_is_well_gives_five_lines() -> None:
    found = checks(loaded_cluster())
    assert {c.status for c in found.values()} == {OK}
    assert "epoch 1, 1 topic with 3 partitions, 4 shards" in found["cluster"].text
    assert found["journals"].text == "16 journals can be read, 1 in use"
    assert found["format"].text == "version 2, with quoted ETags"
    assert list(found) == ["cluster", "format", "journals", "placement", "watermark"]


def test_a_bucket_of_a_format_that_this_l0gc_does_not_know_is_read_no_further() -> None:
    cluster = loaded_cluster()
    cluster.store.put(FORMAT, b'{"version":9,"min_reader_version":9,"min_writer_version":9}')
    (found,) = guarded("cluster", lambda: checks_of(another_process(cluster)), "restore it")
    assert (found.status, found.exit_code) == (FAILURE, UnsupportedFormatError.exit_code)
    assert "knows format 2" in found.text


def test_a_journal_that_cannot_be_read_is_named_with_its_object() -> None:
    cluster = loaded_cluster()
    key = f"{journal_log(0)}log/{1:020}"
    cluster.store.put(key, b"{")
    found = checks(cluster)["journals"]
    assert (found.status, found.exit_code) == (FAILURE, 4)
    assert "journal 0 cannot be read" in found.text
    assert key in found.text


def forced(handle: JournalHandle, cluster: Handles, topic_id: str | None = None) -> None:
    """Records of events in a journal that is not theirs, or of a topic that never was."""
    topic = topic_of(cluster)
    o = of_topic(topic, topic.revision)
    if topic_id is not None:
        o = type(o)(o.key, o.epoch, o.revision, topic_id, o.start, o.blocks, o.partitions, o.records)
    assert handle.append([o]).error is None


def test_a_topic_in_another_journal_than_its_own_is_a_failure() -> None:
    cluster = loaded_cluster()
    forced(cluster.journal(5), cluster)
    found = checks(cluster)["placement"]
    assert (found.status, "journal 5: it holds topic 'events'" in found.text) == (FAILURE, True)


def test_a_topic_that_the_controller_never_created_is_a_failure() -> None:
    """Hazard 10: the controller log was restored from a backup, and gave the revision a second time."""
    cluster = loaded_cluster()
    forced(cluster.journal(5), cluster, "another")
    assert failures(cluster) == ["placement"]


def test_a_journal_above_the_cluster_epoch_is_a_failure() -> None:
    """Hazard 10."""
    cluster = loaded_cluster()
    epoch = cluster.controller.advance()
    handle_of(cluster).advance(epoch)
    cluster.store.delete([f"l0gc/controller/log/{epoch:020}"])
    found = checks(cluster)
    assert [name for name, c in found.items() if c.status == FAILURE] == ["epoch"]
    assert "journal 0 is at epoch 2, above the cluster epoch 1" in found["epoch"].text


def test_an_m_above_the_cluster_epoch_is_a_failure() -> None:
    """Hazard 10; so is one that was published with an epoch which the cluster has not reached."""
    for watermark in (7, 0):
        cluster = memory_cluster()
        publish_m(cluster, watermark, 9)
        found = checks(cluster)["watermark"]
        assert (found.status, found.text) == (
            FAILURE,
            f"M = {watermark} is published with cluster epoch 9, above 0",
        )


def test_of_an_external_log_the_epoch_is_the_one_that_was_published() -> None:
    cluster = external_cluster()
    assert [c.status for c in checks(cluster).values()] == [OK] * 3
    publish_m(cluster, 40, 50)
    found = checks(cluster)
    assert "an external log, 4 shards" in found["cluster"].text
    assert (found["watermark"].status, found["watermark"].text) == (OK, "M = 40")
