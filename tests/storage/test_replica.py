"""Replicas: through all processes, faults and naps there is one history, with every acknowledged entry in it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.errors import (
    AmbiguousWriteError,
    AppendOutcomeUnknownError,
    CorruptObjectError,
    L0gcError,
    ProtocolError,
    SafetyError,
    StoreError,
    UsageError,
)
from l0gc.runtime import Runtime
from l0gc.storage.entry import Entry, Place, StoredEntry, decode_checkpoint, encode_entry, join_state, split_state
from l0gc.storage.log import TRUNCATE_MIN_AGE_MS, SharedLog
from l0gc.storage.objectstore import PutResult, StoredObject
from l0gc.storage.replica import CHECKPOINT_BYTES, CHECKPOINT_EVERY, PROPOSE_DEADLINE_S, READ_AGAIN_S, Replica
from tests.support.memory_store import Call, FakeClock, MemoryStore, failing, lose_reply
from tests.support.tries import tries
from tests.support.wrong_dates import DAY_MS, MisdatedStore

FOLDER = "l0gc/x/"
AGE_S = TRUNCATE_MIN_AGE_MS / 1000


class Names:
    """A state that lists the appended names."""

    def initial(self) -> list[str]:
        return []

    def check(self, state: list[str], offset: int, payload: bytes) -> None:
        if not isinstance(msgspec.msgpack.decode(payload), str):
            raise CorruptObjectError(f"entry {offset} is not a name")

    def apply(self, state: list[str], entry: StoredEntry) -> None:
        name = msgspec.msgpack.decode(entry.payload)
        if name == "bad":
            raise CorruptObjectError(f"entry {entry.offset} is bad")
        assert len(state) == entry.offset
        state.append(name)

    def lacks(self, state: list[str], entry: StoredEntry | None = None) -> bool:
        return False

    def encode(self, state: list[str]) -> bytes:
        return join_state(json.dumps(state).encode())

    def decode(self, body: bytes, source: str) -> list[str]:
        names = json.loads(split_state(body)[0])
        assert isinstance(names, list)
        return names


def a_replica(store: MemoryStore, seed: int = 0) -> Replica[list[str]]:
    runtime = Runtime(store.clock, random.Random(seed))
    return Replica(SharedLog(store, FOLDER, runtime), Names(), runtime)


def propose(replica: Replica[list[str]], name: str) -> int:
    offset = replica.propose(lambda state, offset: name)
    assert offset is not None
    return offset


def filled(store: MemoryStore, count: int) -> Replica[list[str]]:
    """Return a replica that has written `count` entries."""
    replica = a_replica(store)
    for i in range(count):
        propose(replica, f"e{i}")
    return replica


def truncate_all(replica: Replica[list[str]]) -> None:
    replica.write_checkpoint()
    replica.log.truncate()


def sleeps_through_a_truncation(store: MemoryStore) -> tuple[Replica[list[str]], Replica[list[str]]]:
    """Return a replica that has read one entry, and another one that has since written four more and truncated the log."""
    sleeper, other = a_replica(store), a_replica(store, seed=1)
    propose(other, "e0")
    assert sleeper.state == ["e0"]
    for i in range(1, 5):
        propose(other, f"e{i}")
    store.clock.sleep(AGE_S)
    truncate_all(other)
    return sleeper, other


def filled_past(store: MemoryStore, offset: int) -> tuple[Replica[list[str]], Place]:
    """Write two entries after `offset`, all old enough to be truncated; return the writer and the place at `offset`."""
    writer = filled(store, offset + 1)
    noted = writer.end
    for i in range(2):
        propose(writer, f"later{i}")
    store.clock.sleep(AGE_S)
    return writer, noted


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def test_a_decision_uses_the_state_where_it_lands(store: MemoryStore) -> None:
    a, b = a_replica(store), a_replica(store, seed=1)
    propose(a, "a0")
    propose(b, "b1")
    seen: list[tuple[list[str], int]] = []

    def decide(state: list[str], offset: int) -> str:
        seen.append((list(state), offset))
        return "a2"

    assert a.propose(decide) == 2
    assert seen == [(["a0"], 1), (["a0", "b1"], 2)]


def test_a_decision_that_reads_the_log_is_repeated_on_that_state(store: MemoryStore) -> None:
    a, b = a_replica(store), a_replica(store, seed=1)
    propose(a, "a0")
    seen: list[tuple[list[str], int]] = []

    def decide(state: list[str], offset: int) -> str:
        seen.append((list(state), offset))
        if len(seen) == 1:
            propose(b, "b1")
            a.catch_up()
        return "a2"

    assert a.propose(decide) == 2
    assert seen == [(["a0"], 1), (["a0", "b1"], 2)]
    assert a.state == a_replica(store, seed=2).state == ["a0", "b1", "a2"]


def test_a_decision_may_be_to_do_nothing_after_a_conflict(store: MemoryStore) -> None:
    a, b = a_replica(store), a_replica(store, seed=1)
    _ = a.state
    propose(b, "only")
    assert a.propose(lambda state, offset: None if state else "only") is None
    assert a.state == ["only"]


def test_the_state_holds_only_what_has_landed(store: MemoryStore) -> None:
    """An append that never lands must not appear in a report or a checkpoint (hazard 18)."""
    a = a_replica(store)
    propose(a, "a0")
    store.fault = failing(AmbiguousWriteError("cut"), "put_if_absent", "/log/")
    with pytest.raises(AppendOutcomeUnknownError):
        propose(a, "lost")
    store.fault = lambda call: None
    assert a.state == ["a0"]
    assert a.write_checkpoint() == 0
    key = a.log.checkpoint_key(0)
    assert json.loads(split_state(decode_checkpoint(key, store.get(key).body).state)[0]) == ["a0"]


def test_an_unknown_append_that_landed_appears_at_the_next_read(store: MemoryStore) -> None:
    a = a_replica(store)
    propose(a, "a0")

    def fault(call: Call) -> None:
        if (call.kind, call.when) == ("put_if_absent", "after") or call.kind == "get":
            raise AmbiguousWriteError("cut")

    store.fault = fault
    with pytest.raises(AppendOutcomeUnknownError):
        propose(a, "a1")
    store.fault = lambda call: None
    assert a.state == ["a0", "a1"]
    assert propose(a, "a2") == 2


@pytest.mark.parametrize("entry", [3, 2**64, "\udc80", object()])
def test_what_a_reader_would_refuse_is_not_appended(store: MemoryStore, entry: object) -> None:
    """Hazard 31: an entry is checked as a reader will check it, whatever code built it."""
    a = a_replica(store)
    propose(a, "a0")
    before = dict(store.objects)
    with pytest.raises(UsageError, match="cannot be recorded, and nothing was written"):
        a.propose(lambda state, offset: entry)
    assert store.objects == before
    assert propose(a, "a1") == 1


def test_a_refusal_leaves_the_log_as_it_was(store: MemoryStore) -> None:
    a = a_replica(store)
    propose(a, "a0")

    def refuse(state: list[str], offset: int) -> bytes:
        raise L0gcError("no")

    with pytest.raises(L0gcError, match="no"):
        a.propose(refuse)
    assert a_replica(store, seed=1).state == ["a0"]
    assert propose(a, "a1") == 1


def test_a_checkpoint_is_written_once_and_replays_to_the_same_state(store: MemoryStore) -> None:
    a, b = a_replica(store), a_replica(store, seed=1)
    for i in range(5):
        propose(a, f"a{i}")
    assert a.write_checkpoint() == 4
    before = store.requests["put_if_absent"]
    assert a.write_checkpoint() == 4
    assert store.requests["put_if_absent"] == before
    _ = b.state
    assert b.write_checkpoint() == 4
    propose(a, "a5")
    assert a_replica(store, seed=2).state == a.state == [f"a{i}" for i in range(6)]


def test_a_writer_that_slept_through_a_truncation_goes_on_after_it(store: MemoryStore) -> None:
    """Hazard 7: the re-created offset is not part of the log, so its entry lands at another one."""
    a, b = a_replica(store), a_replica(store, seed=1)
    propose(a, "e0")
    for i in range(1, 5):
        propose(b, f"e{i}")
    store.clock.sleep(AGE_S)
    truncate_all(b)
    assert propose(a, "late") == 5
    assert a.state == a_replica(store, seed=2).state == ["e0", "e1", "e2", "e3", "e4", "late"]


def test_a_reader_that_slept_through_a_truncation_does_not_apply_a_phantom(store: MemoryStore) -> None:
    """Hazard 7, for readers: an entry that a stale writer left at a truncated offset is not part of the log."""
    reader, b = sleeps_through_a_truncation(store)
    store.put(b.log.entry_key(1), encode_entry(b.log.entry_key(1), Entry("x", 0, b'"phantom"')))
    assert reader.catch_up() == b.state
    assert propose(reader, "next") == 5


@pytest.mark.parametrize("offset", [0, 3])
def test_a_noted_place_holds_after_a_stale_writer_recreates_its_offset(store: MemoryStore, offset: int) -> None:
    """Seed 902031 of the simulation took this for a log that was set back."""
    writer, noted = filled_past(store, offset)
    truncate_all(writer)
    key = writer.log.entry_key(offset)
    assert key not in store.objects
    store.put(key, encode_entry(key, Entry("x", 0, b'"phantom"')))
    for replica in (writer, a_replica(store, seed=2)):
        replica.catch_up()
        assert replica.holds(noted)


@pytest.mark.parametrize("boundary", [3, 5])
def test_a_boundary_hides_no_entry_of_a_log_that_was_set_back(store: MemoryStore, boundary: int) -> None:
    """Hazard 38: the boundary comes from a newer log; the entries around the place exist, or it ends right before the
    place.
    """
    _, noted = filled_past(store, 3)
    store.delete([key for key in store.objects if key.startswith(FOLDER)])
    other = a_replica(store, seed=1)
    for i in range(8):
        propose(other, f"other{i}")
    other.write_checkpoint()
    other.log.boundary.lift(boundary)
    if boundary == noted.offset:
        store.delete([other.log.entry_key(offset) for offset in range(boundary)])
    for replica in (other, a_replica(store, seed=2)):
        replica.catch_up()
        assert not replica.holds(noted)


def test_an_entry_that_cannot_be_applied_stops_the_replica_and_is_named(store: MemoryStore) -> None:
    a = a_replica(store)
    propose(a, "e0")
    store.put(a.log.entry_key(1), encode_entry(a.log.entry_key(1), Entry("x", 0, b"\xa3bad")))
    for replica in (a, a_replica(store, seed=1)):
        for _ in range(2):
            with pytest.raises(CorruptObjectError, match="entry 1 is bad"):
                replica.catch_up()


def test_the_time_of_entries_never_goes_back(store: MemoryStore) -> None:
    a, b = a_replica(store), a_replica(store, seed=1)
    times = []
    for i in range(6):
        store.clock.ms += [5000, -3000, 0][i % 3]
        propose((a, b)[i % 2], f"e{i}")
    for e in a.log.replay().entries:
        times.append(e.time_ms)
    assert times == sorted(times)


def test_a_conflict_costs_one_read_of_the_winners_entry(store: MemoryStore) -> None:
    a, b = a_replica(store), a_replica(store, seed=1)
    propose(a, "a0")
    propose(b, "b1")
    before = store.requests.copy()
    assert propose(a, "a2") == 2
    assert store.requests - before == {"put_if_absent": 2, "get": 1}
    assert a.state == ["a0", "b1", "a2"]


def test_a_writer_that_always_loses_ends(store: MemoryStore) -> None:
    a, b = a_replica(store), a_replica(store, seed=1)
    _ = a.state

    def be_first(call: Call) -> None:
        if call.kind == "put_if_absent" and "/log/" in call.key and call.when == "before":
            store.fault = lambda call: None
            propose(b, "b")
            store.clock.sleep(1)
            store.fault = be_first

    store.fault = be_first
    began = store.clock.monotonic()
    with pytest.raises(ProtocolError, match="other writers were first"):
        propose(a, "never")
    assert store.clock.monotonic() - began < PROPOSE_DEADLINE_S + 60


def test_an_old_read_checks_the_boundary_whatever_the_date(store: MemoryStore) -> None:
    """The store's clock was an hour ahead at the read, so an hour later no time seems to have passed."""
    reader, _ = sleeps_through_a_truncation(store)
    assert reader.as_of_ms is not None
    reader.as_of_ms += 3_600_000
    store.clock.sleep(3_600 - AGE_S)
    assert propose(reader, "late") == 5
    assert reader.state == a_replica(store, seed=2).state == ["e0", "e1", "e2", "e3", "e4", "late"]


def test_a_replay_as_of_an_entry_takes_no_checkpoint_after_it(store: MemoryStore) -> None:
    replica = filled(store, 4)
    replica.write_checkpoint()
    for as_of in range(4):
        past = Replica(replica.log, Names(), Runtime(store.clock, random.Random(1)), as_of=Place(as_of))
        assert past.state == replica.state[: as_of + 1], as_of


def test_a_replay_restores_the_time_of_the_log_from_its_checkpoint(store: MemoryStore) -> None:
    a = a_replica(store)
    propose(a, "a0")
    store.clock.sleep(3600)
    propose(a, "a1")
    time_ms = a.time_ms
    a.write_checkpoint()
    store.clock.ms -= 1_800_000  # a server with a slow clock answers from now on
    b = a_replica(store, seed=1)
    assert b.state == ["a0", "a1"]
    assert b.time_ms == time_ms
    propose(b, "b2")
    assert b.time_ms >= time_ms


# -- checkpoints ----------------------------------------------------------------------------------------------------------


def offsets_of_checkpoints(store: MemoryStore) -> list[int]:
    return [int(k[-20:]) for k in sorted(store.objects) if "/checkpoint/" in k]


def noise(n: int, size: int) -> str:
    return random.Random(n).randbytes(size // 2).hex()


def test_the_state_is_kept_when_the_entries_after_it_are_many(store: MemoryStore) -> None:
    filled(store, 2 * CHECKPOINT_EVERY)
    assert offsets_of_checkpoints(store) == [CHECKPOINT_EVERY - 1, 2 * CHECKPOINT_EVERY - 1]


def test_the_state_is_kept_when_the_entries_after_it_weigh_enough(store: MemoryStore) -> None:
    """In any history, all checkpoints but the last weigh at most half of the entries."""
    a = a_replica(store)
    entries = 0
    for i in range(200):
        propose(a, noise(i, 50_000))
        entries += len(store.objects[a.log.entry_key(i)].body)
        checkpoints = [len(o.body) for k, o in store.objects.items() if "/checkpoint/" in k]
        assert sum(checkpoints[:-1]) <= entries / 2 + CHECKPOINT_BYTES
    assert len(checkpoints) >= 3
    uncovered = sum(len(store.objects[a.log.entry_key(i)].body) for i in range(a.checkpoint_offset + 1, 200))
    assert uncovered <= 2 * max(checkpoints) + 50_000


def test_housekeeping_keeps_a_small_state_earlier(store: MemoryStore) -> None:
    a = a_replica(store)
    for i in range(4):
        assert not a.checkpoint_due(housekeeping=True)
        propose(a, f"e{i}")
    assert a.checkpoint_due(housekeeping=True)
    assert not a.checkpoint_due()
    a.write_checkpoint()
    assert not a.checkpoint_due(housekeeping=True)


def test_a_replay_knows_what_comes_after_the_checkpoint(store: MemoryStore) -> None:
    filled(store, CHECKPOINT_EVERY - 1)
    b = a_replica(store, seed=1)
    assert not b.checkpoint_due()
    propose(b, "the last one")
    assert offsets_of_checkpoints(store) == [CHECKPOINT_EVERY - 1]
    c = a_replica(store, seed=2)
    _ = c.state
    assert (c.checkpoint_offset, c.checkpoint_weight) == (b.checkpoint_offset, b.checkpoint_weight)


def test_of_many_writers_one_keeps_the_state(store: MemoryStore) -> None:
    writers = [a_replica(store, seed) for seed in range(8)]
    for i in range(3 * CHECKPOINT_EVERY):
        propose(writers[i % 8], f"e{i}")
    assert len(offsets_of_checkpoints(store)) == 3


def test_a_checkpoint_whose_writer_died_is_written_by_another_one(store: MemoryStore) -> None:
    a, b = a_replica(store), a_replica(store, seed=1)
    store.fault = failing(AmbiguousWriteError("cut"), "put_if_absent", "/checkpoint/")
    for i in range(CHECKPOINT_EVERY):
        propose(a, f"e{i}")
    store.fault = lambda call: None
    for i in range(CHECKPOINT_EVERY // 2):
        propose(b, f"f{i}")
    assert len(offsets_of_checkpoints(store)) == 1


def test_a_state_that_cannot_be_kept_leaves_the_landed_entry(store: MemoryStore) -> None:
    a = filled(store, CHECKPOINT_EVERY - 1)
    store.fault = failing(StoreError("500"), key="/checkpoint/")
    assert propose(a, "landed") == CHECKPOINT_EVERY - 1
    assert a.state[-1] == "landed"


# -- housekeeping ---------------------------------------------------------------------------------------------------------


def keep_house(replica: Replica[list[str]]) -> int:
    if replica.checkpoint_due(housekeeping=True):
        replica.write_checkpoint()
    return replica.truncate()


@pytest.mark.parametrize("damage", [lambda body: bytes(len(body)), lambda body: body[:-1], lambda body: b""])
def test_nothing_is_deleted_that_only_a_damaged_checkpoint_covers(
    store: MemoryStore, damage: Callable[[bytes], bytes]
) -> None:
    """The checkpoint becomes the only copy, so it is read back before the entries that it covers are deleted (hazard
    34).
    """
    filled(store, 20)
    store.clock.sleep(AGE_S)
    a = a_replica(store, seed=1)
    assert len(a.state) == 20
    newest = store.objects[a.log.checkpoint_key(a.write_checkpoint())]
    body, newest.body = newest.body, damage(newest.body)
    with pytest.raises(CorruptObjectError):
        a.truncate()
    assert len([k for k in store.objects if "/log/" in k]) == 20
    newest.body = body
    assert a.truncate() == 19


def test_one_bad_reading_of_a_log_is_read_again(store: MemoryStore) -> None:
    filled(store, 5).write_checkpoint()
    propose(a_replica(store, seed=1), "last")
    real = store.get
    for bad in ("/checkpoint/", "/log/"):
        left = [1]

        def once(key: str, bad: str = bad, left: list[int] = left) -> StoredObject:
            stored = real(key)
            if bad in key and left:
                left.clear()
                return msgspec.structs.replace(stored, body=bytes(len(stored.body)))
            return stored

        with mock.patch.object(store, "get", once):
            assert a_replica(store, seed=2).state[-1] == "last"
        assert not left


def test_an_idle_round_costs_its_replay_and_one_entry(store: MemoryStore) -> None:
    filled(store, 4).write_checkpoint()
    before = store.requests.copy()
    b = a_replica(store, seed=1)
    propose(b, "advance")
    assert keep_house(b) == 0
    assert store.requests - before == {"list": 1, "get": 1, "put_if_absent": 1}


def test_an_idle_log_stays_small_and_each_round_takes_few_requests(store: MemoryStore) -> None:
    """Each round is a separate process, ten minutes after the previous one."""
    most = 0
    for n in range(60):
        before = store.requests.total()
        replica = a_replica(store, seed=n)
        propose(replica, f"advance {n}")
        keep_house(replica)
        most = max(most, store.requests.total() - before)
        store.clock.sleep(600)
    assert most <= 12
    assert len(store.objects) <= 15
    assert a_replica(store, seed=99).state == [f"advance {n}" for n in range(60)]


def test_a_process_that_lives_long_truncates_what_its_replay_did_not_see(store: MemoryStore) -> None:
    replica = a_replica(store)
    for n in range(60):
        propose(replica, f"advance {n}")
        keep_house(replica)
        store.clock.sleep(600)
    assert len(store.objects) <= 20
    assert a_replica(store, seed=99).state == [f"advance {n}" for n in range(60)]


def test_a_process_truncates_though_it_listed_the_log_long_ago(store: MemoryStore) -> None:
    filled(store, 8).write_checkpoint()
    store.clock.sleep(AGE_S)
    replica = a_replica(store)
    _ = replica.state
    store.clock.sleep(1200)
    propose(replica, "later")
    assert replica.truncate() > 0


def test_a_checkpoint_that_may_not_be_there_allows_no_truncation(store: MemoryStore) -> None:
    filled(store, 8)
    store.clock.sleep(AGE_S)
    b = a_replica(store, seed=1)
    _ = b.state
    store.fault = failing(AmbiguousWriteError("cut"), key="/checkpoint/")
    assert keep_house(b) == 0
    store.fault = lambda call: None
    assert a_replica(store, seed=2).state == [f"e{i}" for i in range(8)]


# -- random schedules ---------------------------------------------------------------------------------------------------


class FaultyStore(MemoryStore):
    """Acts at the n-th call from now, as a test planned: runs another process, or loses, drops or delays a write."""

    def __init__(self) -> None:
        super().__init__()
        self.plan: dict[int, list[Callable[[], None]]] = {}
        self.write_fault: dict[int, str] = {}
        self.calls = 0
        self.late: list[tuple[str, bytes]] = []
        self.fault = self._interrupt

    def expect(self, plan: dict[int, list[Callable[[], None]]], write_fault: dict[int, str]) -> None:
        self.plan, self.write_fault, self.calls = plan, write_fault, 0

    def _interrupt(self, call: Call) -> None:
        if call.when == "before":
            self.calls += 1
            for action in self.plan.pop(self.calls, []):
                action()

    def put_if_absent(self, key: str, body: bytes) -> PutResult:
        fault = self.write_fault.pop(self.calls + 1, "")
        if fault == "late" and "/log/" in key:
            self.late.append((key, body))
            raise AmbiguousWriteError("cut, and on its way")
        if fault == "dropped":
            raise AmbiguousWriteError("cut")
        written = super().put_if_absent(key, body)
        if fault == "lost":
            raise AmbiguousWriteError("cut after it")
        return written

    def land_late(self) -> None:
        for key, body in self.late:
            if key not in self.objects:
                self._write(key, body)
        self.late.clear()


@dataclass
class World:
    """Three processes on one store, and the replies that they got."""

    store: FaultyStore = field(default_factory=FaultyStore)
    acknowledged: dict[str, int] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    proposed: int = 0
    busy: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.processes = [a_replica(self.store, seed) for seed in range(3)]

    def act(self, process: int, action: str) -> None:
        if process in self.busy:
            return
        replica = self.processes[process]
        self.busy.add(process)
        try:
            match action:
                case "append":
                    self._append(replica)
                case "catch up":
                    replica.catch_up()
                case "checkpoint":
                    replica.write_checkpoint()
                case "truncate":
                    replica.log.truncate()
                case "keep house":
                    replica.write_checkpoint()
                    replica.truncate()
                case "move on":  # as much as it takes to overtake the others
                    self._append(replica)
                    self._append(replica)
                    self.store.clock.sleep(AGE_S)
                    truncate_all(replica)
                case "restart":
                    self.processes[process] = a_replica(self.store, seed=100 + self.proposed * 3 + process)
                case "late writes land":
                    self.store.land_late()
                case "nap":
                    self.store.clock.sleep(AGE_S / 3 - 1)
                case "sleep":
                    self.store.clock.sleep(AGE_S + 1)
        except SafetyError as e:  # another process slept between two of its replies, so it decides nothing
            if "clock cannot be relied on" not in str(e):
                raise
        finally:
            self.busy.discard(process)

    def _append(self, replica: Replica[list[str]]) -> None:
        self.proposed += 1
        name = f"n{self.proposed}"
        try:
            self.acknowledged[name] = propose(replica, name)
        except AppendOutcomeUnknownError:
            self.unknown.add(name)
        except L0gcError:
            self.refused.add(name)

    def check(self) -> None:
        self.store.expect({}, {})
        self.store.land_late()
        history = a_replica(self.store, seed=999).state
        assert len(set(history)) == len(history), "an entry landed twice"
        for name, offset in self.acknowledged.items():
            assert history[offset : offset + 1] == [name], "an acknowledged entry was lost"
        assert not self.refused & set(history), "a refused entry landed"
        assert set(history) <= self.acknowledged.keys() | self.unknown
        for replica in self.processes:
            seen = list(replica.peek())
            assert history[: len(seen)] == seen, "a process has a different history"
            assert replica.catch_up() == history


ACTIONS = [
    "append",
    "append",
    "catch up",
    "checkpoint",
    "truncate",
    "keep house",
    "move on",
    "restart",
    "late writes land",
    "nap",
    "sleep",
]
interruption = st.tuples(st.integers(0, 2), st.sampled_from(ACTIONS))
steps = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(ACTIONS),
        st.dictionaries(st.integers(1, 5), st.lists(interruption, max_size=3), max_size=2),
        st.dictionaries(st.integers(1, 4), st.sampled_from(["lost", "dropped", "late"]), max_size=2),
    ),
    max_size=14,
)


@given(steps)
@tries(120)
def test_processes_on_one_store_share_one_history_whatever_happens(
    plan: list[tuple[int, str, dict[int, list[tuple[int, str]]], dict[int, str]]],
) -> None:
    world = World()
    for process, action, interruptions, faults in plan:
        world.store.expect(
            {n: [lambda p=p, a=a: world.act(p, a) for p, a in what] for n, what in interruptions.items()},  # type: ignore[misc]
            dict(faults),
        )
        world.act(process, action)
    world.check()


def test_a_lost_reply_under_contention_is_neither_lost_nor_repeated(store: MemoryStore) -> None:
    a, b = a_replica(store), a_replica(store, seed=1)
    _ = a.state, b.state
    propose(b, "b0")
    store.fault = lose_reply(f"{1:020}")
    assert propose(a, "a1") == 1
    assert a.state == b.catch_up() == ["b0", "a1"]


def test_a_writer_that_lost_an_offset_counts_the_winner(store: MemoryStore) -> None:
    a, b = a_replica(store), a_replica(store, seed=1)
    assert b.state == []
    propose(a, "a0")
    propose(b, "b1")
    assert b.writers == 2


class WholeSeconds(MemoryStore):
    """A store whose replies have whole seconds, as in HTTP."""

    def put_if_absent(self, key: str, body: bytes) -> PutResult:
        written = super().put_if_absent(key, body)
        return msgspec.structs.replace(written, date_ms=written.date_ms // 1000 * 1000)


def test_entries_get_their_append_time_without_replies() -> None:
    """The time is never ahead of the store's clock, and at most 2 s behind."""
    store, sent = WholeSeconds(), list[int]()
    replica = filled(store, 1)
    for _ in range(8):
        store.clock.sleep(4.3)
        sent.append(store.clock.ms)
        propose(replica, "e")
    late = [at - replica.log.get(n).time_ms for n, at in enumerate(sent, start=1)]
    assert all(0 <= ms < 2000 for ms in late), late


def test_a_machines_clock_that_jumps_dates_no_entry_far_ahead() -> None:
    store, runtime = MemoryStore(), Runtime(FakeClock(), random.Random(0))
    replica = Replica(SharedLog(store, FOLDER, runtime), Names(), runtime)
    propose(replica, "first")

    def decide(state: list[str], offset: int) -> str:
        runtime.clock.sleep(24 * 3600)
        return "second"

    replica.propose(decide)
    assert replica.time_ms <= store.clock.ms + 1000 * READ_AGAIN_S


def test_an_idle_writers_entry_gets_its_append_time() -> None:
    store = MemoryStore()
    replica = a_replica(store)
    propose(replica, "a")
    store.clock.sleep(6 * 24 * 3600)
    before_ms = store.clock.ms
    propose(replica, "b")
    assert replica.time_ms >= before_ms


# -- the time of entries -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("days", [30, -3])
@pytest.mark.parametrize("method", ["get", "put_if_absent"])
def test_no_entry_gets_a_time_that_another_reply_does_not_confirm(method: str, days: int) -> None:
    store = MisdatedStore(days * DAY_MS)
    replica = a_replica(store)
    propose(replica, "first")
    if method == "get":  # the reply that shows the end of the log
        store.wrong = ["get"]
        replica.catch_up()
    else:
        store.wrong = ["put_if_absent"]
        propose(replica, "second")
    with pytest.raises(SafetyError, match="clock cannot be relied on"):
        propose(replica, "third")
    assert propose(replica, "fourth") == replica.offset  # a new read, with dates that agree
    reader = a_replica(store, 1)
    assert "third" not in reader.state
    assert reader.time_ms == store.clock.ms


def test_a_log_that_nobody_wrote_to_for_weeks_goes_on() -> None:
    store = MemoryStore()
    propose(a_replica(store), "first")
    store.clock.ms += 30 * DAY_MS
    replica = a_replica(store, 1)
    before = store.requests.copy()
    propose(replica, "second")
    assert store.requests["head"] == before["head"]  # the replies to the replay confirm each other
    store.clock.ms += 30 * DAY_MS
    propose(replica, "third")
    assert store.requests["head"] == before["head"] + 1
    assert a_replica(store).state == ["first", "second", "third"]
    assert replica.time_ms == store.clock.ms


def test_an_unconfirmed_date_truncates_no_entry() -> None:
    store = MisdatedStore(30 * DAY_MS)
    filled(store, 8).write_checkpoint()
    replica = a_replica(store)
    store.wrong = ["list"]
    assert len(replica.state) == 8
    with pytest.raises(SafetyError, match="clock cannot be relied on"):
        replica.truncate()
    assert len(a_replica(store).log.list_folder().entries) == 8
