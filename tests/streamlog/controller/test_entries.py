"""The one check of entries in the controller's log; users and readers of the log see the same sentence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.epoch import HIGHEST_JUMP
from l0gc.errors import CorruptObjectError, L0gcError
from l0gc.storage.entry import Place, StoredEntry
from l0gc.streamlog.controller.entries import (
    MAX_JOURNALS,
    MAX_PARTITIONS,
    MAX_PIN_MS,
    MAX_PRODUCER_ID,
    MAX_RETENTION,
    AlterDefaults,
    AlterTopic,
    Bootstrap,
    ControllerEntry,
    CreatePin,
    CreateTable,
    CreateTopic,
    DeletePin,
    DeleteTopic,
    DropTable,
    ForgetTopics,
    InitProducer,
    PinTookEffect,
    RenewPin,
    Tick,
)
from tests.support.controller import FOUNDED, MACHINE, P0, created, landed, state_of

LONG = "x" * 201
TEXT = "must have 1 to 200 printable characters"


def bump(epoch: int, last_epoch: int = -1, *, name: str = "p", producer_id: int = 7) -> InitProducer:
    return InitProducer(name, producer_id, epoch, last_epoch, f"run-{epoch}")


BEFORE: list[ControllerEntry] = [
    FOUNDED,
    created("t"),
    P0,
    bump(1, 0),
    bump(2, 1),
    bump(3, 2),
    created("gone"),
    DeleteTopic("gone", 6),
    CreatePin("backup", 60_000),
    PinTookEffect("backup", 8, 3, [(0, Place(5, "e")), (1, Place(2, "e"))]),
    CreatePin("new", 60_000, level_one=True),
    CreateTable("t", 1, "lake", "l0gc.t"),
    created("u"),
]
NEXT = len(BEFORE)

REFUSED: list[tuple[ControllerEntry, str]] = [
    (FOUNDED, "belongs at offset 0"),
    (created("t"), "topic 't' exists"),
    (created("v", 0), f"1 to {MAX_PARTITIONS} partitions, not 0"),
    (created("v", MAX_PARTITIONS + 1), f"1 to {MAX_PARTITIONS} partitions, not {MAX_PARTITIONS + 1}"),
    (created("a/b"), "a/b"),
    (created(""), "topic name"),
    (created("v", 8, 0), "8 partitions cannot lie in 0 journals"),
    (created("v", 8, -1), "8 partitions cannot lie in -1 journals"),
    (created("v", 8, 5), "8 partitions cannot lie in 5 journals: this cluster has 4"),
    (created("v", 2, 3), "2 partitions cannot lie in 3 journals"),  # one journal would get no partition
    (CreateTopic("v", 1, 1, ""), "the id of topic 'v'"),
    (CreateTopic("v", 1, 1, LONG), "the id of topic 'v'"),
    (CreateTopic("v", 1, 1, "id-v", -2), "retention_ms cannot be -2"),
    (CreateTopic("v", 1, 1, "id-v", None, MAX_RETENTION + 1), "retention_bytes"),
    (DeleteTopic("v", 1), "topic 'v' does not exist"),
    (DeleteTopic("t", 0), r"\(revision 0\) was deleted, and created again with revision 1"),
    (AlterTopic("v", 1, 5, 5), "topic 'v' does not exist"),
    (AlterTopic("t", 2, 5, 5), r"\(revision 2\) was deleted, and created again with revision 1"),
    (AlterTopic("t", 1, -2, 5), "retention_ms cannot be -2"),
    (AlterTopic("t", 1, 5, MAX_RETENTION + 1), "retention_bytes"),
    (AlterDefaults(-2, 5), "retention_ms cannot be -2"),
    (ForgetTopics([]), "were not deleted"),
    (ForgetTopics([1]), "were not deleted"),
    (ForgetTopics([99]), "were not deleted"),
    (ForgetTopics([6, 6]), "named twice"),
    (Tick(3, "a\nb"), TEXT),
    (Tick(3, LONG), TEXT),
    (Tick(to=NEXT - 1), "cannot be advanced to"),  # a jump must go up, and leave room for later epochs
    (Tick(to=-2), "cannot be advanced to"),
    (Tick(to=HIGHEST_JUMP + 1), "cannot be advanced to"),
    (bump(2), "cannot go to epoch 2"),  # the epoch goes down, stays or jumps
    (bump(3, 2), "cannot go to epoch 3"),
    (bump(5, 3), "cannot go to epoch 5"),
    (bump(3), "cannot go to epoch 3"),
    (bump(NEXT + 1), "cannot go to epoch"),  # above the cluster epoch
    (bump(4, 2), "cannot go to epoch 4"),  # the producer is at epoch 3, not at 2
    (bump(4, 3, producer_id=8), "cannot go to epoch 4"),  # a different id
    (bump(1, producer_id=8), "cannot go to epoch 1"),
    (bump(0, 0, producer_id=8), "cannot go to epoch 0"),
    (bump(4, 3, name="q"), "cannot go to epoch 4"),
    (bump(0, name="q"), "cannot go to epoch 0"),  # the id of another producer
    (bump(0, producer_id=-1), "must be from 0 to"),
    (bump(0, producer_id=MAX_PRODUCER_ID), "must be from 0 to"),
    (bump(0, name="", producer_id=8), f"producer name.*{TEXT}"),
    (bump(0, name="q\n", producer_id=8), f"producer name.*{TEXT}"),
    (InitProducer("p", 7, 4, 3, ""), f"the run of producer 'p'.*{TEXT}"),
    (InitProducer("p", 7, 4, 3, "run-3"), "cannot go to epoch 4"),  # the run of the previous epoch
    (CreatePin("", 5), TEXT),
    (CreatePin("v", 0), "at most"),
    (CreatePin("v", MAX_PIN_MS + 1), "at most"),
    (CreatePin("v", 5, why="a\nb"), f"the reason for pin 'v'.*{TEXT}"),
    (CreatePin("v", 5, level_one=True, topic=-2), "which is not a revision"),
    (CreatePin("backup", 5), "pin 'backup' exists, and ends at"),
    (PinTookEffect("v", 8, -1, []), "pin 'v' does not exist, or has ended"),
    (PinTookEffect("new", 8, -1, []), "of epoch 8 has ended; that of epoch 10 was left as it is"),
    (PinTookEffect("backup", 8, 3, []), "has already taken effect"),
    (PinTookEffect("new", 10, 3, []), "holds M at 3"),  # a pin of L1 alone does not hold M
    (PinTookEffect("new", 10, -2, []), "holds M at -2"),
    (PinTookEffect("new", 10, -1, [(1, Place(0)), (0, Place(0))]), "names impossible ends of journals"),
    (PinTookEffect("new", 10, -1, [(1, Place(0)), (1, Place(0))]), "names impossible ends of journals"),
    (PinTookEffect("new", 10, -1, [(4, Place(0))]), "names impossible ends of journals"),
    (PinTookEffect("new", 10, -1, [(0, Place(-1))]), "names impossible ends of journals"),
    (RenewPin("v", 8, 5), "pin 'v' does not exist, or has ended"),
    (RenewPin("backup", 7, 5), "of epoch 7 has ended; that of epoch 8 was left as it is"),
    (RenewPin("backup", 8, 0), "at most"),
    (RenewPin("new", 10, 5), "has not taken effect"),
    (DeletePin("v", 8), "pin 'v' does not exist, or has ended"),
    (DeletePin("backup", 7), "of epoch 7 has ended; that of epoch 8 was left as it is"),
    (
        CreateTable("t", 1, "lake", "l0gc.other"),
        r"has table l0gc\.t in catalog 'lake'; end that with l0gc table drop t",
    ),
    (
        CreateTable("u", 12, "lake", "l0gc.t"),
        r"topic 't' .*has table l0gc\.t .*give the table of 'u' another name with --table",
    ),
    (CreateTable("u", 11, "lake", "l0gc.u"), r"\(revision 11\) was deleted"),
    (CreateTable("v", 1, "lake", "l0gc.v"), "topic 'v' does not exist"),
    (CreateTable("u", 12, "", "l0gc.u"), f"catalog name.*{TEXT}"),
    (CreateTable("u", 12, "lake", LONG), f"table name.*{TEXT}"),
    (CreateTable("u", 12, "lake", "plain"), r"namespace\.name"),
    (CreateTable("u", 12, "lake", "l0gc."), r"namespace\.name"),
    (DropTable("u", 12), "topic 'u' has no table"),
    (DropTable("t", 2), "belongs to revision 1, not 2"),
]


@pytest.mark.parametrize(("entry", "sentence"), REFUSED)
def test_writers_and_readers_refuse_an_entry_with_one_sentence(entry: ControllerEntry, sentence: str) -> None:
    state = state_of(*BEFORE)
    before = MACHINE.encode(state)
    with pytest.raises(L0gcError, match=sentence) as refused:
        MACHINE.check(state, NEXT, landed(NEXT, entry).payload)
    assert not isinstance(refused.value, CorruptObjectError)
    with pytest.raises(CorruptObjectError, match=f"controller log entry {NEXT} is wrong: .*{sentence}"):
        MACHINE.apply(state, landed(NEXT, entry))
    assert MACHINE.encode(state) == before


ACCEPTED: list[ControllerEntry] = [
    bump(4, 3),
    bump(NEXT),
    bump(0, producer_id=8),  # written by an l0gc that forgets names sooner
    created("v", MAX_PARTITIONS, 4),
    CreateTopic("v", 1, 1, "id-v", -1, MAX_RETENTION),
    AlterTopic("t", 1, None, 0),
    Tick(to=NEXT),
    Tick(to=HIGHEST_JUMP),
    Tick(3, "me"),
    ForgetTopics([6]),
    CreatePin("v", MAX_PIN_MS, level_one=True, topic=1),
    PinTookEffect("new", 10, -1, [(0, Place(0)), (3, Place(9))]),
    RenewPin("backup", 8, MAX_PIN_MS),
    DeletePin("backup", 8),
    CreateTable("u", 12, "lake", "l0gc.u"),
    DropTable("t", 1),
]


@pytest.mark.parametrize("entry", ACCEPTED)
def test_an_entry_that_may_land_is_applied(entry: ControllerEntry) -> None:
    state = state_of(*BEFORE)
    MACHINE.check(state, NEXT, landed(NEXT, entry).payload)
    MACHINE.apply(state, landed(NEXT, entry))
    assert state.epoch >= NEXT
    assert MACHINE.decode(MACHINE.encode(state), "") == state


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        (Bootstrap("", 4), TEXT),
        (Bootstrap("c", 0), "shards"),
        (Bootstrap("c", 1001), "shards"),
        (Bootstrap("c", 4, "{uuid}"), "template"),
        (Bootstrap("c", 4, "x" * 501 + "/{shard:03}/{epoch:018}/{uuid}"), "more than 500 characters"),
        (Bootstrap("c", 4, journals=0), f"1 to {MAX_JOURNALS} journals, not 0"),
        (Bootstrap("c", 4, journals=MAX_JOURNALS + 1), f"1 to {MAX_JOURNALS} journals"),
        (Tick(), "belongs at offset 0"),
    ],
)
def test_a_cluster_that_cannot_be_does_not_begin(entry: ControllerEntry, sentence: str) -> None:
    with pytest.raises(L0gcError, match=sentence):
        MACHINE.check(MACHINE.initial(), 0, landed(0, entry).payload)
    with pytest.raises(CorruptObjectError, match="controller log entry 0"):
        MACHINE.apply(MACHINE.initial(), landed(0, entry))


def test_there_are_at_most_a_thousand_pins() -> None:
    state = state_of(FOUNDED, *(CreatePin(f"pin{n}", 60_000) for n in range(1000)))
    with pytest.raises(L0gcError, match="1,000 pins exist"):
        CreatePin("more", 60_000).check(state)


def test_an_entry_that_does_not_follow_the_last_one_is_corrupt() -> None:
    for offset in (0, 2):
        with pytest.raises(CorruptObjectError):
            MACHINE.apply(state_of(FOUNDED), landed(offset, Tick()))


@pytest.mark.parametrize(
    "payload", [b"", b"\x90", b"\x91\xa1z", b"\x92\xa1c\xa1t", b"\x91\xa1\xff", b'{"type":"tick"}', b"\x91" * 10_000]
)
def test_an_entry_that_cannot_be_read_is_corrupt(payload: bytes) -> None:
    with pytest.raises(CorruptObjectError, match="controller log entry 1"):
        MACHINE.apply(state_of(FOUNDED), StoredEntry(1, 0, payload, 0))


@given(st.binary(max_size=60))
def test_an_entry_of_the_log_is_applied_or_corrupt(payload: bytes) -> None:
    state = state_of(FOUNDED, created("t"))
    before = MACHINE.encode(state)
    try:
        MACHINE.apply(state, StoredEntry(2, 0, payload, 0))
    except CorruptObjectError:
        assert MACHINE.encode(state) == before
    else:
        assert state.epoch == 2
