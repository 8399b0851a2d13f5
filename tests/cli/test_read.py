"""`l0gc read` leaves a file whole or unchanged, whatever ends the command, and `--follow` continues until it is
stopped.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest

from l0gc.errors import (
    AccessDeniedError,
    OutputFailedError,
    RefusedObjectError,
    StoppedError,
    UsageError,
)
from l0gc.operations import Read
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.reader import ROWS, count_records
from tests.support.cli import l0gc, opens, printed
from tests.support.ingest import lines, upload, write
from tests.support.memory_store import FakeClock, MemoryStore, failing, store_of, topic_in_memory


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> ClusterHandles:
    """Return a cluster that the command finds, with a topic of two partitions and more records than are written at
    once.
    """
    found = topic_in_memory(2)
    upload(found, "events", [write(tmp_path_factory.mktemp("in") / "records", lines(3 * ROWS))])
    return opens(found, monkeypatch)


def fails_with(cluster: ClusterHandles, e: BaseException) -> None:
    """Let the read of the first L0 object fail."""
    store_of(cluster).fault = failing(e, key="level_zero/data/0")


@pytest.mark.parametrize("partition", [(), ("--partition", "1"), ("--from", "5"), ("--from-time", "1h")])
def test_the_file_holds_what_would_be_printed(
    cluster: ClusterHandles, tmp_path: Path, partition: tuple[str, ...]
) -> None:
    expected = printed("read", "events", *partition)
    assert len(expected) > 10_000
    said = l0gc("read", "events", *partition, "-o", str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == expected
    assert (said["count"], said["bytes"]) == (expected.count(b"\n"), len(expected))
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert printed("read", "events", *partition, "-o", "-") == expected


def test_length_prefixed_records_come_back_as_they_were(cluster: ClusterHandles, tmp_path: Path) -> None:
    values = [b"a\nb", b"", b"\n", bytes(range(256)), b"c"]
    cluster.controller.create_topic("bytes", 1)
    given = b"".join(len(v).to_bytes(4, "big") + v for v in values)
    (tmp_path / "in").write_bytes(given)
    form = ("--format", "length-prefixed")
    assert l0gc("upload", "bytes", str(tmp_path / "in"), *form)["records"] == 5
    assert printed("read", "bytes", *form) == given
    assert l0gc("read", "bytes", *form, "-o", str(tmp_path / "out"))["count"] == 5
    assert (tmp_path / "out").read_bytes() == given
    assert printed("read", "bytes", "--format", "lines") == b"".join(v + b"\n" for v in values)
    again = printed("read", "events", *form)
    assert len(again) == len(printed("read", "events")) + 3 * 3 * ROWS
    with pytest.raises(UsageError, match="--json prints JSON, and --format length-prefixed does not"):
        l0gc("read", "events", *form, "--json")


def test_what_is_there_is_replaced_and_a_link_stays_one(cluster: ClusterHandles, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("old")
    (tmp_path / "link").symlink_to("there")
    l0gc("read", "events", "--output", str(tmp_path / "link"))
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there").read_bytes() == printed("read", "events")


@pytest.mark.parametrize(
    ("cause", "raised", "said"),
    [
        (KeyboardInterrupt(), StoppedError, "stopped: .*out is unchanged; running the command again is safe"),
        (AccessDeniedError("denied"), RefusedObjectError, "denied"),
    ],
)
@pytest.mark.parametrize("before", [None, "old"])
def test_nothing_half_is_left(
    cluster: ClusterHandles,
    tmp_path: Path,
    before: str | None,
    cause: BaseException,
    raised: type[Exception],
    said: str,
) -> None:
    if before is not None:
        (tmp_path / "out").write_text(before)
    fails_with(cluster, cause)
    with pytest.raises(raised, match=said) as ended:
        l0gc("read", "events", "-o", str(tmp_path / "out"))
    assert not isinstance(ended.value, StoppedError) or ended.value.exit_code == 130
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == ({"out": before} if before is not None else {})


def test_a_file_that_cannot_be_is_a_sentence(cluster: ClusterHandles, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path, tmp_path / "none" / "out", tmp_path / "file" / "out", tmp_path / ("x" * 300)):
        with pytest.raises(UsageError, match=r"^cannot write .*; name another file with -o FILE$"):
            l0gc("read", "events", "-o", str(place))
    with pytest.raises(OutputFailedError, match=r"^/dev/full could not be written: No space left on device$"):
        l0gc("read", "events", "-o", "/dev/full")
    assert Path("/dev/full").is_char_device()


def test_read_knows_before_how_much_it_will_read(cluster: ClusterHandles) -> None:
    topic = cluster.controller.snapshot().topic("events")
    assert count_records(cluster, topic) == 3 * ROWS
    assert sum(count_records(cluster, topic, Read(partition=p)) for p in (0, 1)) == 3 * ROWS
    assert count_records(cluster, topic, Read(start=10)) == 3 * ROWS - 20
    assert count_records(cluster, topic, Read(start=10, before_offset=12)) == 4


def test_a_time_is_a_moment_or_how_long_ago(cluster: ClusterHandles) -> None:
    store_of(cluster).clock.ms += 7_200_000
    now = cluster.now_ms()
    assert printed("read", "events", "--from-time", "1h") == b""
    assert printed("read", "events", "--before-time", "1h") == printed("read", "events", "--from-time", "3h") != b""
    moment = datetime.fromtimestamp(now / 1000 - 3600, UTC).isoformat()
    assert printed("read", "events", "--from-time", moment, "--before-offset", "9") == b""
    assert printed("read", "events", "--before-time", "1970-01-01T00:00:00Z") == b""


# -- --follow -------------------------------------------------------------------------------------------------------------


class Interrupting(FakeClock):
    """Lands records while the follower waits for the first time, and presses Ctrl-C during a later wait."""

    land: Callable[[], object] | None = None
    waits = 0

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.waits += 1
        if self.waits == 1 and self.land is not None:
            self.land()
        elif self.waits == 6:
            signal.raise_signal(signal.SIGINT)


@pytest.fixture
def follows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ClusterHandles:
    """Return a topic of two partitions with two records, in which a third one lands while it is followed."""
    clock = Interrupting()
    found = opens(topic_in_memory(2, store=MemoryStore(clock)), monkeypatch)
    upload(found, "events", [write(tmp_path / "in", [b"a", b"b"])])
    clock.land = lambda: upload(found, "events", [write(tmp_path / "in", [b"c"])])
    return found


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ((), b"a\nb\nc\n"),
        (("--from", "0:1"), b"b\nc\n"),
        (("--partition", "0", "--format", "length-prefixed"), b"\0\0\0\1a\0\0\0\1c"),
    ],
)
def test_ctrl_c_prints_the_positions_to_continue_from(
    follows: ClusterHandles, capfdbinary: pytest.CaptureFixture[bytes], options: tuple[str, ...], shown: bytes
) -> None:
    with pytest.raises(StoppedError, match=r"^stopped: continue with --from 0:2(,1:1)?$") as stopped:
        l0gc("read", "events", "--follow", *options)
    assert stopped.value.exit_code == 130
    assert capfdbinary.readouterr().out == shown
    assert printed("read", "events", "--from", "0:1,1:1") == b"c\n"


def test_records_are_followed_as_one_json_object_a_line(
    follows: ClusterHandles, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with pytest.raises(StoppedError):
        l0gc("read", "events", "--follow", "--json", "--interval", "0.5s")
    shown = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert [(r["partition"], r["offset"], r["value"]) for r in shown] == [(0, 0, "a"), (1, 0, "b"), (0, 1, "c")]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("-o", "file"), "--follow has no end, and -o FILE writes a whole file: use > FILE instead"),
        (("--before-offset", "3"), "--follow has no end"),
        (("--json", "--format", "length-prefixed"), "--json prints JSON, and --format length-prefixed does not"),
    ],
)
def test_follow_refuses_what_needs_an_end(follows: ClusterHandles, options: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        l0gc("read", "events", "--follow", *options)


def test_offsets_of_partitions_that_do_not_exist_are_refused(cluster: ClusterHandles) -> None:
    with pytest.raises(UsageError, match="has the partitions 0 to 1, not 2"):
        printed("read", "events", "--from", "0:1,2:5")
    with pytest.raises(click.BadParameter, match="is not an offset, and not offsets of partitions"):
        printed("read", "events", "--from", "0:1,2")
