"""The output of `log show`: everything that a log contains, in the words of its records, whatever else is damaged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l0gc.errors import NotFoundError, NotInitialisedError
from l0gc.inspect.log import LogLine, Table, show_log
from l0gc.keys import CONTROLLER_LOG, journal_log
from l0gc.storage.entry import Place
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.decisions import RetentionSettings
from l0gc.streamlog.controller.entries import ControllerEntry
from l0gc.streamlog.controller.state import ControllerState, Topic, TopicTable
from l0gc.streamlog.journal.entries import EXPIRE, MERGE, RECONCILE, Edit, EditedTopic, JournalEntry, Objects
from l0gc.streamlog.journal.producers import InputSpan, ProducerBatch
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.journal.topic import TopicState
from tests.support.controller import created
from tests.support.journal import (
    edit,
    give_up,
    journal_of,
    l1_row,
    l1_rows,
    name_of,
    of_topic,
    reconciled,
    shared_object,
    starts_of,
)
from tests.support.memory_store import memory_cluster, once, store_of

Row = dict[str, Any]


def shown(cluster: ClusterHandles, journal: int | None, start: int = 0, *, checkpoint: bool = False) -> list[Row]:
    rows = [read(s) for s in show_log(cluster, journal, start, checkpoint=checkpoint)]
    assert all(isinstance(r, dict) for r in rows)
    return rows


def read(s: LogLine) -> Row:
    """Return one line, decoded as a reader decodes it."""
    line = b"".join(s.pieces())
    assert b"\n" not in line
    row: Row = json.loads(line)
    assert s.damaged == ("error" in row)
    return row


@pytest.fixture
def busy() -> tuple[ClusterHandles, Topic]:
    """Create a cluster whose journal 0 has entries of `events` and of a deleted topic; `with_the_rest` adds other
    kinds.
    """
    cluster, topic, handle = journal_of(5)
    gone, _ = cluster.controller.create_topic("gone", 1, 1)
    producer = cluster.controller.init_producer("job")
    batch = ProducerBatch(
        producer.producer_id, producer.epoch, producer.run, 0, [InputSpan("in", 0, 7, 9, "00ff00ff00ff00ff")]
    )
    assert handle.append([of_topic(topic, 2, {0: 3, 1: 4, 4: 1}, producer=batch)]).error is None
    assert handle.append([of_topic(topic, 3, {2: 2}, key="k")]).error is None
    assert handle.land(reconciled(handle.state, {0: 2}, revision=topic.revision, epoch=3)).refused == {}
    handle.advance(cluster.controller.advance())
    handle.barrier(cluster.controller.advance())
    handle.close(gone.revision)
    cluster.controller.delete_topic("gone")
    return cluster, topic


def with_the_rest(cluster: ClusterHandles, topic: Topic) -> ClusterHandles:
    """Add the kinds of entries and rows that `busy` lacks."""
    handle, epoch = cluster.journal(0), cluster.controller.epoch()
    assert handle.append([of_topic(topic, epoch, {0: 1}, key="l")]).error is None
    lifted = reconciled(handle.state, {0: 3}, revision=topic.revision, epoch=epoch, misfits={0: 1})
    assert handle.land(lifted).refused == {}
    replaced = handle.state.topics[topic.revision].l1_of(0)
    merged = l1_rows(l1_row(0, 0, 3, epoch=epoch, name=77))
    which = (topic.revision, topic.topic_id)
    assert handle.land(edit(MERGE, epoch, *which, removed=replaced, added=merged)).refused == {}
    assert handle.land(give_up({4: (0, 0)}, epoch, topic.revision, topic.topic_id)).refused == {}
    assert handle.land(edit(EXPIRE, epoch, *which, starts=starts_of({1: 4}))).refused == {}
    assert handle.purge([bytes(handle.state.dropped["name"][0])]) == 1
    assert handle.append([of_topic(topic, epoch, {2: 1}, key="m")]).error is None
    following = handle.state.topics[topic.revision].view(2)
    shared = shared_object({2: (following.last_reconciled_offset + 1, following.next_offset - 1)}, epoch=epoch)
    edited = EditedTopic.of(topic.revision, topic.topic_id, [shared])
    assert handle.land(Edit(RECONCILE, epoch, [edited])).refused == {}
    assert handle.append([of_topic(topic, epoch, {2: 1}, key="n")]).error is None
    assert handle.fence_l1(2) == 2
    later, _ = cluster.controller.create_topic("later", 1, 1)
    cluster.controller.delete_topic("later")
    cluster.controller.forget_topics([later.revision])
    cluster.controller.alter_topic("events", RetentionSettings(ms=5))
    cluster.controller.alter_defaults(RetentionSettings(bytes=7))
    pin = cluster.controller.create_pin("backup", 3_600_000)
    cluster.controller.pin_took_effect(pin, 0, [(0, Place(1, "e"))])
    cluster.controller.renew_pin("backup", pin.revision, 3_600_000)
    cluster.controller.delete_pin("backup")
    table = TopicTable("events", topic.revision, "lake", "l0gc.events")
    cluster.controller.create_table(table)
    cluster.controller.drop_table(table)
    assert handle.accept_set_back(cluster.controller.advance(), 1)
    return cluster


# -- entries ------------------------------------------------------------------------------------------------------------


def test_every_kind_of_entry_is_shown_by_its_name(busy: tuple[ClusterHandles, Topic]) -> None:
    cluster = with_the_rest(*busy)
    for journal, kinds in ((0, JournalEntry), (None, ControllerEntry)):
        rows = shown(cluster, journal)
        assert [r["offset"] for r in rows] == list(range(len(rows)))
        names = {"".join(w.capitalize() for w in r["entry"].split("_")) for r in rows}
        assert names == {kind.__name__ for kind in kinds.__args__}


def test_packed_rows_are_unpacked(busy: tuple[ClusterHandles, Topic]) -> None:
    cluster, topic = busy
    rows = shown(cluster, 0)
    (o,) = rows[0]["objects"]
    assert (o["topic"], o["epoch"], o["revision"]) == ("events", 2, topic.revision)
    assert [(b["start"], b["length"], b["extents"]) for b in o["blocks"]] == [(0, 102, 2), (102, 101, 1)]
    assert o["extents"] == [
        {"partition": 0, "records": 3, "block": 0},
        {"partition": 1, "records": 4, "block": 0},
        {"partition": 4, "records": 1, "block": 1},
    ]
    span = {"input_id": "in", "start": 0, "end": 7, "rows": 9, "digest": "00ff00ff00ff00ff"}
    assert o["producer"]["inputs"] == [span]
    (lifted,) = rows[2]["topics"]
    (file,) = lifted["added"]
    assert (file["name"], file["base_offset"], file["last_offset"], file["bytes"]) == (name_of(2), 0, 2, 30)
    (closed,) = rows[-1]["topics"]
    assert closed["topic"] == "gone"
    assert rows[0]["time"] == "2023-11-14T22:13:20.000Z"


def test_an_offset_to_begin_at_is_kept(busy: tuple[ClusterHandles, Topic]) -> None:
    cluster, _ = busy
    assert [r["offset"] for r in shown(cluster, 0, 3)] == [3, 4, 5]
    assert shown(cluster, 0, 99) == []
    assert shown(cluster, 4) == []


def test_entries_are_read_a_few_at_a_time(busy: tuple[ClusterHandles, Topic]) -> None:
    cluster, _ = busy
    for _ in range(100):
        cluster.controller.advance()
    lines = show_log(memory_cluster(store_of(cluster), seed=1, bootstrap=False), 0)
    requested: list[str] = []
    store_of(cluster).fault = lambda call: requested.append(call.key)
    next(lines)
    assert len([k for k in requested if k.startswith(journal_log(0))]) < 2 * 10


def test_many_rows_are_written_in_pieces() -> None:
    table = Table({"n": np.arange(2500), "name": ["x"] * 2500})
    pieces = list(table.pieces())
    assert max(map(len, pieces)) < 30_000
    assert json.loads(b"".join(pieces)) == [{"n": n, "name": "x"} for n in range(2500)]
    assert b"".join(Table({"n": []}).pieces()) == b"[]"


@given(st.recursive(st.integers() | st.text() | st.booleans() | st.none(), st.lists, max_leaves=9))
@settings(max_examples=50)
def test_what_is_written_in_pieces_is_what_is_written_at_once(value: Any) -> None:
    row = {"value": value, "empty": {}, "nested": {"list": [value, []]}}
    assert json.loads(b"".join(LogLine(row).pieces())) == json.loads(msgspec.json.encode(row))


# -- checkpoints --------------------------------------------------------------------------------------------------------


def with_checkpoints(cluster: ClusterHandles) -> ClusterHandles:
    cluster.journal(0).replica.write_checkpoint()
    cluster.controller.replica.write_checkpoint()
    return cluster


def test_a_checkpoint_is_shown_if_it_is_requested(busy: tuple[ClusterHandles, Topic]) -> None:
    cluster = with_checkpoints(busy[0])
    assert not [r for r in shown(cluster, 0) if "checkpoint" in r]
    rows = shown(cluster, 0, checkpoint=True)
    parts = [r for r in rows if "checkpoint" in r]
    assert rows == [*parts, *shown(cluster, 0)]
    assert {p["checkpoint"] for p in parts} == {5}
    assert parts[0]["previous_applied_epoch"] == parts[0]["max_applied_epoch"] == 5
    (partitions,) = [p["partitions"] for p in parts if p.get("topic") == "events" and "partitions" in p]
    assert partitions[0] == {"partition": 0, "next_offset": 3, "last_reconciled_offset": 2, "log_start_offset": 0}
    held = [(p["epoch"], e["partition"], e["base_offset"]) for p in parts if "object" in p for e in p["extents"]]
    assert held == [(2, 1, 0), (2, 4, 0), (3, 2, 0)]
    assert [p["l1"][0]["last_offset"] for p in parts if "l1" in p] == [2]
    assert [p["inputs"]["in"]["landed"] for p in parts if "producer" in p] == [7]
    assert [p["inputs"]["in"]["digest"] for p in parts if "producer" in p] == ["00ff00ff00ff00ff"]


def test_a_checkpoint_is_shown_where_older_entries_are_gone(busy: tuple[ClusterHandles, Topic]) -> None:
    cluster = with_checkpoints(busy[0])
    log = cluster.journal(0).replica.log
    for offset in range(3):
        del store_of(cluster).objects[log.entry_key(offset)]
    assert [r.get("offset", "checkpoint") for r in shown(cluster, 0)][-3:] == [3, 4, 5]
    assert "checkpoint" in shown(cluster, 0)[0]
    assert [r["offset"] for r in shown(cluster, 0, 3)] == [3, 4, 5]


def test_a_controller_checkpoint_prints_a_line_per_topic_and_producer(busy: tuple[ClusterHandles, Topic]) -> None:
    cluster = with_checkpoints(busy[0])
    parts = [r for r in shown(cluster, None, checkpoint=True) if "checkpoint" in r]
    assert [p.get("topic") or p.get("deleted_topic") or p.get("producer") for p in parts[1:]] == [
        "events",
        "gone",
        "job",
    ]
    assert (parts[0]["epoch"], parts[0]["journals"]) == (6, 5)


def test_nothing_that_a_checkpoint_holds_is_left_out(busy: tuple[ClusterHandles, Topic]) -> None:
    """A field that is added to a state must be shown, too."""
    words = {"next_offsets": "next_offset", "reconciled": "last_reconciled_offset", "log_start": "log_start_offset"}
    words |= {
        "listed": "l1",
        "objects": "object",
        "topics": "topic",
        "producers": "producer",
        "deleted": "deleted_topic",
    }
    cluster = with_checkpoints(with_the_rest(*busy))
    for journal, states in ((0, (JournalState, TopicState)), (None, (ControllerState,))):
        text = json.dumps([r for r in shown(cluster, journal, checkpoint=True) if "checkpoint" in r])
        for state in states:
            assert [f for f in state.__struct_fields__ if f'"{words.get(f, f)}":' not in text] == []


# -- damage -------------------------------------------------------------------------------------------------------------


def test_a_damaged_entry_is_one_line_and_the_rest_is_shown(busy: tuple[ClusterHandles, Topic]) -> None:
    cluster, _ = busy
    log = cluster.journal(0).replica.log
    store_of(cluster).objects[log.entry_key(1)].body = b"nonsense"
    del store_of(cluster).objects[log.entry_key(3)]
    rows = shown(cluster, 0)
    assert [(r["offset"], "error" in r) for r in rows] == [
        (0, False),
        (1, True),
        (2, False),
        (3, True),
        (4, False),
        (5, False),
    ]
    assert log.entry_key(1) in rows[1]["error"]
    assert rows[3]["error"] == "the entries 3 to 3 are missing, though a later one is there"


def test_an_entry_whose_rows_cannot_be_is_a_line_that_says_so(busy: tuple[ClusterHandles, Topic]) -> None:
    cluster, topic = busy
    handle = cluster.journal(0)
    wrong = msgspec.structs.replace(of_topic(topic, 5), records=b"123")
    handle.replica.log.append(
        6, msgspec.msgpack.encode(Objects([wrong])), time_ms=0, as_of_ms=store_of(cluster).clock.ms
    )
    handle.replica.log.append(7, b"\xc1", time_ms=0, as_of_ms=store_of(cluster).clock.ms)
    assert ["error" in r for r in shown(cluster, 0, 5)] == [False, True, True]


@given(st.data())
@settings(max_examples=200)
def test_any_log_is_shown_or_called_damaged(data: st.DataObject) -> None:
    cluster, topic, handle = journal_of(5)
    journal = data.draw(st.sampled_from([0, None]))
    log = (cluster.controller if journal is None else handle).replica.log
    honest = [msgspec.msgpack.encode(Objects([of_topic(topic, 1, {0: 3, 4: 1})])), msgspec.msgpack.encode(created("x"))]
    body = bytearray(data.draw(st.sampled_from(honest)))
    for _ in range(data.draw(st.integers(0, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    now_ms = store_of(cluster).clock.ms
    time_ms = data.draw(st.integers(0, 2**62))
    offset = max(log.list_folder().entries, default=-1) + 1
    log.append(offset, bytes(body), time_ms=time_ms, as_of_ms=now_ms)
    assert shown(cluster, journal)[-1]["offset"] == offset


def test_a_damaged_checkpoint_is_a_line_that_says_so(busy: tuple[ClusterHandles, Topic]) -> None:
    cluster = with_checkpoints(busy[0])
    store_of(cluster).objects[cluster.journal(0).replica.log.checkpoint_key(5)].body = b"nonsense"
    first, *rest = shown(cluster, 0, checkpoint=True)
    assert "error" in first
    assert len(rest) == 6


def test_a_journal_is_shown_where_the_controllers_log_is_damaged(busy: tuple[ClusterHandles, Topic]) -> None:
    cluster, _ = busy
    store_of(cluster).objects[min(k for k in store_of(cluster).objects if k.startswith(CONTROLLER_LOG))].body = b"x"
    process = memory_cluster(store_of(cluster), seed=1, bootstrap=False)
    assert shown(process, 0)[0]["entry"] == "objects"
    assert "error" in shown(process, None)[0]


def test_an_entry_that_is_truncated_meanwhile_is_no_damage(busy: tuple[ClusterHandles, Topic]) -> None:
    cluster, _ = busy
    store, log = store_of(cluster), cluster.journal(0).replica.log
    store.fault = once(lambda: store.objects.pop(log.entry_key(0)), "get", log.entry_key(0))
    assert shown(cluster, 0)[0] == {"offset": 0, "truncated": True}


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(NotInitialisedError):
        shown(memory_cluster(bootstrap=False), None)
    with pytest.raises(NotFoundError, match="the journals 0 to 4, not 5"):
        shown(memory_cluster(), 5)


def test_looking_changes_nothing(busy: tuple[ClusterHandles, Topic]) -> None:
    cluster, _ = busy
    before = dict(store_of(cluster).objects)
    for journal in (None, 0):
        lines: Iterator[LogLine] = show_log(cluster, journal, checkpoint=True)
        assert sum(1 for _ in lines) > 0
    assert store_of(cluster).objects == before
