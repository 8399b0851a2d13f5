"""A signal during the writing of L1: the written objects are committed, so that each object is named."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

from l0gc.embedded.seaweedfs import SeaweedFS
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import ClusterHandles
from tests.support.cli import founded, l0gc, l0gc_process, start
from tests.support.outcomes import Outcome, Request
from tests.support.proxy import Proxy
from tests.support.reconcile import named

pytestmark = [pytest.mark.weed, pytest.mark.slow]

PARTITIONS = 12


class SlowL1:
    """Answers writes of L1 objects slowly; `writing` is set at the first one."""

    def __init__(self) -> None:
        self.writing = threading.Event()

    def decide(self, request: Request) -> Outcome:
        if not (request.operation.startswith("Put") and "/level_one/" in f"/{request.key}"):
            return Outcome.PASS
        self.writing.set()
        return Outcome.SLOW

    def answered(self, request: Request) -> None:
        pass


def l1_objects(cluster: ClusterHandles) -> set[str]:
    return {key for page in cluster.store.scan("level_one/") for key in page.keys}


@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("gc", signal.SIGTERM),
        *(
            pytest.param(*case, marks=pytest.mark.thorough)
            for case in (
                ("gc", signal.SIGINT),
                ("merge", signal.SIGINT),
                ("merge", signal.SIGTERM),
                ("reconcile", signal.SIGINT),
            )
        ),
        pytest.param("reconcile", signal.SIGTERM, marks=[pytest.mark.thorough, pytest.mark.release]),
    ],
)
def test_a_signal_leaves_no_object_that_no_journal_names(
    bucket: StoreConfig, weed: SeaweedFS, tmp_path: Path, command: str, number: signal.Signals
) -> None:
    path = tmp_path / "records"
    path.write_bytes(b"".join(b'{"k": %d}\n' % n for n in range(2_000)))
    founded(partitions=PARTITIONS)
    for _ in range(4 if command == "merge" else 1):
        l0gc("upload", "events", str(path), "--key-field", "k")
        if command == "merge":
            l0gc("reconcile")
    cluster = ClusterHandles(S3Store(bucket))
    before = l1_objects(cluster)
    behaviour = SlowL1()
    with Proxy(weed.endpoint_url, behaviour) as proxy:
        process = start([command], {"AWS_ENDPOINT_URL": proxy.endpoint_url, "AWS_ENDPOINT_URL_S3": proxy.endpoint_url})
        assert behaviour.writing.wait(60)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    said = err.decode()
    assert f"l0gc: stopped: what is {'merged' if command == 'merge' else 'in L1'} stays (" in said
    assert f"l0gc {command} continues from there" in said
    assert "vacuum" not in said
    written = l1_objects(cluster) - before
    assert written
    assert written <= named(cluster, "events")
    assert l0gc_process("gc").code == 0
    assert l0gc("status")["unreconciled_records"] == 0
    assert l0gc("merge", "--dry-run")["merged"]["objects_before"] == 0


@pytest.mark.thorough
def test_a_signal_to_give_up_comes_after_its_holes_are_committed(
    bucket: StoreConfig, weed: SeaweedFS, tmp_path: Path
) -> None:
    path = tmp_path / "records"
    path.write_bytes(b"lost\n")
    founded(partitions=1)
    key = l0gc("upload", "events", str(path))["objects"][0]["key"]
    S3Store(bucket).delete([key])
    behaviour = SlowL1()
    with Proxy(weed.endpoint_url, behaviour) as proxy:
        environment = {"AWS_ENDPOINT_URL": proxy.endpoint_url, "AWS_ENDPOINT_URL_S3": proxy.endpoint_url}
        process = start(["give-up", "--object", key, "--yes"], environment)
        assert behaviour.writing.wait(60)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert "l0gc: stopped: what is given up stays a hole; l0gc status shows what is still lost" in err.decode()
    assert l0gc("status")["lost_records"] == 1
