"""Controller logs that were restored from a backup, from beginning to end (hazard 10).

Every acknowledged record, before or after the restore, is read back once. A refused command leaves the bucket
unchanged.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from l0gc.errors import EpochRegressionError
from l0gc.keys import CONTROLLER_LOG
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.topics import close_unknown_topics, delete_topic
from l0gc.watermark.publication import read_published, watermark_of
from tests.support.set_back import CHANGES, INTERVAL_MS, TOPIC, Place
from tests.support.topics import create_topic


@pytest.fixture
def place(tmp_path: Path) -> Place:
    found = Place(tmp_path)
    found.copy = found.objects()
    return found


def nobody_gets_anything(place: Place) -> None:
    """Check that each change is refused and leaves the bucket unchanged, although a tick is due."""
    place.store.clock.ms += 2 * INTERVAL_MS
    before = place.objects()
    for name, change in CHANGES.items():
        with pytest.raises(EpochRegressionError) as e:
            change(place)
        assert e.value.exit_code == 4
        assert place.objects() == before, name


def test_a_restored_controller_log_is_noticed_and_recovered_as_documented(place: Place) -> None:
    """The newer log is lost for good, and `epoch advance --above E --close-unknown-topics` recovers the cluster."""
    place.upload("second")
    create_topic(place.process(), "young", 2, 2)
    place.upload("third")
    place.compute()
    newest = place.restore(CONTROLLER_LOG, place.copy)
    nobody_gets_anything(place)

    operator = place.process()
    highest = max(int(key[-20:]) for key in newest if "/log/" in key)
    operator.controller.advance_above(highest)
    close_unknown_topics(operator)
    # The controller assigns the epochs of the second and third run again, and the journals remember those runs.
    assert place.upload_until_accepted("fourth") == []
    assert (place.upload("second"), place.upload("third")) == (0, 0)
    place.check_all_is_well()


def test_a_topic_deleted_before_a_restore_is_deleted_again(place: Place) -> None:
    """The topic's journals have closed it and were not used afterwards, so their windows stayed below M."""
    delete_topic(place.process(), TOPIC)
    create_topic(place.process(), "another", 1)
    place.upload("second", "another")
    place.loop()
    highest = place.process().controller.epoch()
    place.restore(CONTROLLER_LOG, place.copy)

    operator = place.process()
    operator.controller.advance_above(highest)
    close_unknown_topics(operator)
    assert delete_topic(operator, TOPIC)[1] == []
    place.loop()


def test_a_restored_controller_log_that_nobody_notices_loses_no_record(place: Place) -> None:
    """Nothing was published since the backup, so only the producers' runs and the journals' windows show the restore."""
    place.upload("second")
    place.restore(CONTROLLER_LOG, place.copy)
    assert place.upload_until_accepted("third") == []
    assert place.upload("second") == 0
    place.check_all_is_well()


def test_unnoticed_by_a_producer_that_is_new(place: Place) -> None:
    """The journals' windows are above the cluster epoch, so nothing lands until the epoch has caught up."""
    for _ in range(5):
        place.store.clock.ms += INTERVAL_MS
        housekeep(place.process(), barrier=True)
    place.upload("second")
    place.restore(CONTROLLER_LOG, place.copy)
    refused = place.upload_until_accepted("third")
    assert EpochRegressionError in refused
    place.check_all_is_well()


def test_an_m_above_the_epoch_stops_everything(place: Place) -> None:
    """Every change is refused until the newest log is back; afterwards everything works as before."""
    place.upload("second")
    place.loop()
    place.upload("third")
    epoch = place.process().controller.epoch()
    newest = place.restore(CONTROLLER_LOG, place.copy)
    cluster = place.process()
    published = watermark_of(read_published(place.store, cluster.identity().cluster_id)[0])
    assert cluster.controller.epoch() < published < epoch
    nobody_gets_anything(place)
    place.restore(CONTROLLER_LOG, newest)
    assert place.upload("second") == 0
    place.check_all_is_well()
