"""The shared log: one owner for each offset, no entry twice or lost, and none from a truncated past."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import TypeVar

import msgspec
import pytest

from l0gc.errors import (
    AccessDeniedError,
    AmbiguousWriteError,
    AppendOutcomeUnknownError,
    CorruptObjectError,
    LogConflictError,
    LogOvertakenError,
    PreconditionFailedError,
    StoreError,
    StoreUnreachableError,
    ThrottledError,
)
from l0gc.runtime import Runtime
from l0gc.storage.entry import join_state, seal, split_state, unseal
from l0gc.storage.log import (
    APPEND_DEADLINE_S,
    RAISE_DEADLINE_S,
    TRUNCATE_MIN_AGE_MS,
    Folder,
    OffsetTakenError,
    Replay,
    SharedLog,
)
from l0gc.storage.objectstore import DeleteFailure, PutResult, StoredObject
from l0gc.storage.parallel import Parallel
from tests.support.memory_store import Call, FakeClock, MemoryStore, failing, lose_reply, once

A = TypeVar("A")
B = TypeVar("B")

FOLDER = "l0gc/x/"
ENTRIES = f"{FOLDER}log/"
AGE_S = TRUNCATE_MIN_AGE_MS / 1000


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def a_log(store: MemoryStore, seed: int = 0) -> SharedLog:
    return SharedLog(store, FOLDER, Runtime(store.clock, random.Random(seed)))


def append(log: SharedLog, store: MemoryStore, offset: int, text: str = "x", as_of_ms: int | None = None) -> int:
    as_of_ms = store.clock.ms if as_of_ms is None else as_of_ms
    return log.append(offset, f'"{text}"'.encode(), time_ms=store.clock.ms, as_of_ms=as_of_ms).offset


def entries(log: SharedLog) -> list[tuple[int, str]]:
    return [(e.offset, e.payload.decode().strip('"')) for e in log.replay().entries]


def kept(r: Replay) -> tuple[int, bytes] | None:
    return None if r.checkpoint is None else (r.checkpoint.offset, split_state(r.checkpoint.payload)[0])


def log_of(store: MemoryStore, count: int, seed: int = 0) -> SharedLog:
    """Create a log of `count` entries."""
    log = a_log(store, seed)
    for i in range(count):
        append(log, store, i, f"e{i}")
    return log


def moves_on(log: SharedLog, store: MemoryStore, first: int, last: int, nap_s: float = AGE_S) -> int:
    """Append these entries and, after a nap, write a checkpoint of the last and truncate; return the number of entries
    deleted.
    """
    for i in range(first, last + 1):
        append(log, store, i, f"e{i}")
    store.clock.sleep(nap_s)
    log.write_checkpoint(last, join_state(b"state"), store.clock.ms)
    return log.truncate()


def aged_log(store: MemoryStore, count: int) -> SharedLog:
    """Create a log of `count` entries, all old enough to be truncated, with a checkpoint of the last one."""
    log = log_of(store, count, seed=99)
    store.clock.sleep(AGE_S)
    log.write_checkpoint(count - 1, join_state(b"state"), store.clock.ms)
    return log


def puts_failing(store: MemoryStore, *errors: StoreError, kind: str = "put_if_absent", key: str = "") -> None:
    """Make all such puts fail, the first ones with the given errors in turn, and all later ones with the last error."""
    puts = 0

    def fault(call: Call) -> None:
        nonlocal puts
        if fnmatchcase(call.kind, kind) and key in call.key and call.when == "before":
            puts += 1
            assert puts < 1000, "the writer never gives up"
            raise errors[min(puts, len(errors)) - 1]

    store.fault = fault


# -- one owner for each offset ------------------------------------------------------------------------------------------


def test_entries_come_back_in_order_and_byte_for_byte(store: MemoryStore) -> None:
    log = a_log(store)
    for i in range(12):
        assert append(log, store, i, f"e{i}") == i
    assert entries(a_log(store, seed=1)) == [(i, f"e{i}") for i in range(12)]


def test_an_offset_has_one_owner(store: MemoryStore) -> None:
    append(a_log(store), store, 0, "mine")
    with pytest.raises(LogConflictError, match="00000 belongs to another writer"):
        append(a_log(store, seed=1), store, 0, "yours")
    assert entries(a_log(store)) == [(0, "mine")]


# -- ambiguous appends (hazard 8) ---------------------------------------------------------------------------------------


def test_an_unanswered_append_that_landed_is_not_repeated(store: MemoryStore) -> None:
    store.fault = lose_reply("/log/")
    assert append(a_log(store), store, 0, "mine") == 0
    assert entries(a_log(store)) == [(0, "mine")]
    assert store.requests["put_if_absent"] == 1


@pytest.mark.parametrize("error", [AmbiguousWriteError("cut"), ThrottledError("slow"), StoreUnreachableError("down")])
def test_a_lost_append_is_repeated_at_its_offset(store: MemoryStore, error: StoreError) -> None:
    store.fault = failing(error, "put_if_absent", ENTRIES, times=1)
    assert append(a_log(store), store, 0, "mine") == 0
    assert entries(a_log(store)) == [(0, "mine")]


def test_a_lost_append_whose_offset_somebody_else_took_is_a_conflict(store: MemoryStore) -> None:
    other = a_log(store, seed=1)

    def overtake() -> None:
        append(other, store, 0, "yours")
        raise AmbiguousWriteError("cut")

    store.fault = once(overtake, "put_if_absent", ENTRIES)
    with pytest.raises(LogConflictError):
        append(a_log(store), store, 0, "mine")
    assert entries(a_log(store)) == [(0, "yours")]


def test_a_late_first_attempt_is_recognised_as_the_same_entry(store: MemoryStore) -> None:
    late: list[tuple[str, bytes]] = []

    class LateStore(MemoryStore):
        def put_if_absent(self, key: str, body: bytes) -> object:  # type: ignore[override]
            if not late:
                late.append((key, body))
                raise AmbiguousWriteError("cut")
            self._write(*late[0])  # the first try lands just before the second
            return super().put_if_absent(key, body)

    late_store = LateStore()
    assert append(a_log(late_store), late_store, 0, "mine") == 0
    assert entries(a_log(late_store)) == [(0, "mine")]


REFUSALS = [StoreError("the store is full"), AccessDeniedError("denied"), StoreError("400 EntityTooLarge")]
"""Answers that claim that no write has landed."""


def refusing(store: MemoryStore, error: StoreError, when: str, then: Callable[[Call], None]) -> None:
    """Refuse the store's next append; from then on, `then` is its fault."""

    def refuse() -> None:
        store.fault = then
        raise error

    store.fault = once(refuse, "put_if_absent", ENTRIES, when)


@pytest.mark.parametrize("error", REFUSALS)
@pytest.mark.parametrize("taken", [False, True])
def test_a_refused_append_is_reported_as_refused_after_one_try(
    store: MemoryStore, error: StoreError, *, taken: bool
) -> None:
    log, began = a_log(store), store.clock.monotonic()
    if taken:
        append(a_log(store, seed=1), store, 0, "another's")
    refusing(store, error, "before", lambda call: None)
    with pytest.raises(type(error)) as e:
        append(log, store, 0, "mine")
    assert e.value is error
    assert store.requests["put_if_absent"] == 1 + taken
    assert store.clock.monotonic() - began < 1
    assert entries(log) == [(0, "another's")][:taken]


@pytest.mark.parametrize("error", REFUSALS)
def test_a_refused_append_that_landed_is_reported_as_landed(store: MemoryStore, error: StoreError) -> None:
    """The store accepted it, but a proxy answered with an error."""
    log = a_log(store)
    refusing(store, error, "after", lambda call: None)
    assert append(log, store, 0, "mine") == 0
    assert entries(log) == [(0, "mine")]


@pytest.mark.parametrize("error", REFUSALS)
@pytest.mark.parametrize("then", [StoreError("500"), AccessDeniedError("not you"), ThrottledError("slow down")])
def test_a_refused_append_with_an_unreadable_offset_is_not_lost(
    store: MemoryStore, error: StoreError, then: StoreError
) -> None:
    """Only credentials that can neither write nor read are reported, since they explain both failures."""

    refusing(store, error, "before", failing(then))
    denied = isinstance(error, AccessDeniedError) and isinstance(then, AccessDeniedError)
    with pytest.raises(AccessDeniedError if denied else AppendOutcomeUnknownError, match=str(error)):
        append(a_log(store), store, 0, "mine")


def test_a_refused_append_whose_writer_slept_may_have_landed_and_been_truncated(store: MemoryStore) -> None:
    def slow(call: Call) -> None:
        store.clock.sleep(2 * APPEND_DEADLINE_S)

    refusing(store, StoreError("the store is full"), "before", slow)
    with pytest.raises(AppendOutcomeUnknownError):
        append(a_log(store), store, 0, "mine")


def test_an_unresolved_outcome_is_reported_as_unknown_at_the_deadline(store: MemoryStore) -> None:
    def fault(call: Call) -> None:
        if call.kind == "put_if_absent" and call.when == "after":
            raise AmbiguousWriteError("cut")
        if call.kind == "get":
            raise StoreError("500")

    store.fault = fault
    began = store.clock.monotonic()
    with pytest.raises(AppendOutcomeUnknownError, match=r"00000 was written .*--producer"):
        append(a_log(store), store, 0, "mine")
    assert APPEND_DEADLINE_S <= store.clock.monotonic() - began < APPEND_DEADLINE_S + 10
    assert store.clock.monotonic() - began < AGE_S / 3
    store.fault = lambda call: None
    assert entries(a_log(store)) == [(0, "mine")]


class MisreadStore(MemoryStore):
    """A store that returns half of the body at the first `times` reads of a key."""

    def __init__(self, name: str, times: int) -> None:
        super().__init__()
        self._name, self._left = name, times

    def get(self, key: str) -> StoredObject:
        stored = super().get(key)
        if self._name in key and self._left:
            self._left -= 1
            return msgspec.structs.replace(stored, body=stored.body[: len(stored.body) // 2])
        return stored


def test_a_landed_append_that_is_misread_once_is_reported_as_landed() -> None:
    store = MisreadStore("/log/", 1)
    store.fault = lose_reply("/log/")
    assert append(a_log(store), store, 0, "mine") == 0
    assert entries(a_log(store)) == [(0, "mine")]


@pytest.mark.parametrize("misread", ["/log/", "boundary.json"])
def test_a_landed_append_is_unknown_where_it_or_the_boundary_is_misread(misread: str) -> None:
    store = MisreadStore(misread, 1_000)
    store.put(f"{FOLDER}boundary.json", seal(f"{FOLDER}boundary.json", b'{"boundary":0}'))
    as_of_ms = store.clock.ms
    store.clock.sleep(AGE_S)
    store.fault = lose_reply("/log/")
    with pytest.raises(AppendOutcomeUnknownError, match=misread):
        append(a_log(store), store, 0, "mine", as_of_ms)
    assert a_log(store).entry_key(0) in store.objects


@pytest.mark.parametrize("error", [AccessDeniedError("denied"), StoreUnreachableError("down"), StoreError("400")])
def test_no_error_claims_that_an_ambiguous_entry_did_not_land(store: MemoryStore, error: StoreError) -> None:
    """The first try may still be in progress, and the second one's refusal does not show its outcome."""
    puts_failing(store, AmbiguousWriteError("cut"), error)
    with pytest.raises(AppendOutcomeUnknownError):
        append(a_log(store), store, 0, "mine")


@pytest.mark.parametrize("ambiguous", [0, 1, 2, 3, 4])
def test_an_append_to_an_endpoint_that_went_away_ends(store: MemoryStore, ambiguous: int) -> None:
    puts_failing(store, *[AmbiguousWriteError("cut")] * ambiguous, StoreUnreachableError("down"))
    with pytest.raises(AppendOutcomeUnknownError if ambiguous else StoreUnreachableError):
        append(a_log(store), store, 0, "mine")


@pytest.mark.parametrize("error", [ThrottledError("slow down"), StoreUnreachableError("down"), AccessDeniedError("no")])
def test_an_unreadable_boundary_does_not_refuse_a_landed_append(store: MemoryStore, error: StoreError) -> None:
    log = a_log(store)
    append(log, store, 0, "first")
    as_of_ms = store.clock.ms
    store.clock.sleep(AGE_S)
    store.fault = failing(error, key="boundary.json")
    with pytest.raises(AppendOutcomeUnknownError):
        append(log, store, 1, "mine", as_of_ms)
    store.fault = lambda call: None
    assert entries(a_log(store)) == [(0, "first"), (1, "mine")]


def test_a_412_with_an_unreadable_owner_may_be_this_writers(store: MemoryStore) -> None:
    """A proxy repeats the request: the first try lands, the second is refused, and reads then fail for a while."""
    log = a_log(store)

    def repeated(call: Call) -> None:
        if call.kind == "put_if_absent" and call.when == "after":
            store.fault = unreadable
            raise PreconditionFailedError("412, to the repeat")

    def unreadable(call: Call) -> None:
        if call.kind == "get" and store.clock.monotonic() < began + readable_after_s:
            raise StoreError("500")

    for offset, readable_after_s in enumerate((5.0, 10 * APPEND_DEADLINE_S)):
        began = store.clock.monotonic()
        store.fault = repeated
        if readable_after_s < APPEND_DEADLINE_S:
            assert append(log, store, offset, f"e{offset}") == offset
        else:
            with pytest.raises(AppendOutcomeUnknownError):
                append(log, store, offset, f"e{offset}")
        assert store.clock.monotonic() - began < APPEND_DEADLINE_S + 10
    store.fault = lambda call: None
    assert entries(log) == [(0, "e0"), (1, "e1")]


def test_a_412_with_a_missing_owner_may_be_this_writers(store: MemoryStore) -> None:
    log, other = a_log(store), a_log(store, seed=1)

    def repeated(call: Call) -> None:
        if call.kind == "put_if_absent" and call.when == "after":
            store.fault = lambda call: None
            append(other, store, 1, "next")
            store.clock.sleep(AGE_S)
            other.write_checkpoint(1, join_state(b"state"), store.clock.ms)
            assert other.truncate() == 1
            raise PreconditionFailedError("412, to the repeat, and a long nap")

    store.fault = repeated
    with pytest.raises(AppendOutcomeUnknownError):
        append(log, store, 0, "mine")


def test_a_conflict_carries_the_winners_entry(store: MemoryStore) -> None:
    append(a_log(store, seed=1), store, 0, "yours")
    before = store.requests.copy()
    with pytest.raises(OffsetTakenError) as e:
        append(a_log(store), store, 0, "mine")
    assert (e.value.landed.offset, e.value.landed.payload) == (0, b'"yours"')
    assert e.value.landed.weight == len(store.objects[a_log(store).entry_key(0)].body)
    assert store.requests - before == {"put_if_absent": 1, "get": 1}


def test_a_found_entry_bounds_only_its_own_time(
    store: MemoryStore,
) -> None:
    """After the nap of a settled append, the next entry may be old enough for a truncation (hazard 7)."""
    writer, other = a_log(store), a_log(store, seed=1)
    written_ms = store.clock.ms

    def fault(call: Call) -> None:
        if call.kind == "put_if_absent" and call.when == "after":
            raise AmbiguousWriteError("cut")
        if call.kind == "get":
            store.fault = lambda call: None
            append(other, store, 1, "next")
            store.clock.sleep(AGE_S - 10)

    store.fault = fault
    landed = writer.append(0, b'"mine"', time_ms=0, as_of_ms=store.clock.ms)
    assert landed.date_ms == written_ms
    store.clock.sleep(10)
    other.write_checkpoint(1, join_state(b"state"), store.clock.ms)
    append(other, store, 2, "after it")
    other.truncate()
    store.clock.sleep(AGE_S)
    other.write_checkpoint(2, join_state(b"state"), store.clock.ms)
    other.truncate()
    with pytest.raises(LogOvertakenError):
        append(writer, store, 1, "phantom", landed.date_ms)


# -- truncation ---------------------------------------------------------------------------------------------------------


def test_truncation_keeps_the_checkpoints_own_entry_and_what_follows(store: MemoryStore) -> None:
    log = aged_log(store, 5)
    append(log, store, 5, "e5")
    assert log.truncate() == 4
    assert sorted(k for k in store.objects if "/log/" in k) == [log.entry_key(4), log.entry_key(5)]
    r = log.replay()
    assert kept(r) == (4, b"state")
    assert [e.offset for e in r.entries] == [5]
    assert log.truncate() == 0


def test_what_was_truncated_is_not_deleted_again(store: MemoryStore) -> None:
    log = aged_log(store, 5)
    folder = log.list_folder()
    assert log.truncate(folder) == 4
    deletes = store.requests["delete"]
    assert log.truncate(folder) == 0
    assert store.requests["delete"] == deletes


def test_truncation_raises_the_boundary_before_it_deletes(store: MemoryStore) -> None:
    log = aged_log(store, 3)
    boundaries: list[bytes] = []

    store.fault = once(lambda: boundaries.append(store.objects[log.boundary.key].body), "delete")
    log.truncate()
    assert unseal(log.boundary.key, boundaries[0]) == b'{"boundary":2}'


def test_nothing_is_truncated_without_a_checkpoint(store: MemoryStore) -> None:
    log = a_log(store)
    append(log, store, 0)
    store.clock.sleep(10 * AGE_S)
    assert log.truncate() == 0


@pytest.mark.parametrize("early_s", [0, 1])
def test_young_entries_are_never_truncated_by_the_stores_clock(early_s: int) -> None:
    """A writer's clock that is years ahead changes nothing."""
    store = MemoryStore()
    log = SharedLog(store, FOLDER, Runtime(FakeClock(store.clock.ms + 10**12), random.Random(0)))
    for i in range(3):
        append(log, store, i)
    log.write_checkpoint(2, join_state(b"state"), store.clock.ms)
    store.clock.sleep(AGE_S - early_s)
    assert log.truncate() == (0 if early_s else 2)


def test_an_old_entry_after_a_young_one_stays(store: MemoryStore) -> None:
    log = aged_log(store, 4)
    store.objects[log.entry_key(1)].modified_ms = store.clock.ms
    assert log.truncate() == 1
    assert [k for k in store.objects if "/log/" in k] == [log.entry_key(i) for i in (1, 2, 3)]


def test_the_boundary_is_never_lowered(store: MemoryStore) -> None:
    log = aged_log(store, 5)
    sealed = seal(log.boundary.key, b'{"boundary":9}')
    store.put(log.boundary.key, sealed)
    log.truncate()
    assert store.objects[log.boundary.key].body == sealed


def test_a_boundary_whose_write_was_ambiguous_is_read_before_anything_is_deleted(store: MemoryStore) -> None:
    log = aged_log(store, 5)
    store.fault = lose_reply("boundary.json")
    assert log.truncate() == 4
    assert unseal(log.boundary.key, store.objects[log.boundary.key].body) == b'{"boundary":4}'


def test_two_checkpoints_stay_for_readers_on_their_way(store: MemoryStore) -> None:
    log = a_log(store)
    for i in range(4):
        append(log, store, i)
        log.write_checkpoint(i, join_state(b"%d" % i), store.clock.ms)
    log.truncate()
    assert [k for k in store.objects if "/checkpoint/" in k] == [log.checkpoint_key(2), log.checkpoint_key(3)]


def test_a_checkpoint_is_kept_once(store: MemoryStore) -> None:
    log = a_log(store)
    append(log, store, 0)
    weight, certain = log.write_checkpoint(0, join_state(b"first"), store.clock.ms)
    assert (weight, certain) == (len(store.objects[log.checkpoint_key(0)].body), True)
    assert log.write_checkpoint(0, join_state(b"first"), store.clock.ms) == (weight, True)
    store.fault = lose_reply("/checkpoint/")
    assert not log.write_checkpoint(1, join_state(b"second"), store.clock.ms)[1]
    assert log.newest_checkpoint() == (1, len(store.objects[log.checkpoint_key(1)].body))


def test_a_checkpoint_carries_the_time_of_the_log(store: MemoryStore) -> None:
    log = a_log(store)
    append(log, store, 0)
    log.write_checkpoint(0, join_state(b"state"), 12345)
    found = log.replay().checkpoint
    assert found is not None
    assert found.time_ms == 12345


# -- truncated entries (hazard 7) ---------------------------------------------------------------------------------------


def test_a_writer_asleep_during_truncation_does_not_claim_success(store: MemoryStore) -> None:
    sleeper = a_log(store)
    append(sleeper, store, 0, "e0")
    as_of_ms = store.clock.ms
    moves_on(a_log(store, seed=1), store, 1, 4)
    with pytest.raises(LogOvertakenError, match="truncated past offset 1"):
        append(sleeper, store, 1, "phantom", as_of_ms)
    assert entries(a_log(store)) == []


def test_a_writer_stalled_in_its_put_does_not_claim_success(store: MemoryStore) -> None:
    """The writer must not report a loss either: a proxy may have repeated a request that landed before the truncation."""
    sleeper, other = a_log(store), a_log(store, seed=1)
    append(sleeper, store, 0, "e0")
    store.fault = once(lambda: moves_on(other, store, 1, 4), "put_if_absent", ENTRIES)
    with pytest.raises(AppendOutcomeUnknownError):
        append(sleeper, store, 1, "phantom")


def test_an_ambiguous_append_that_the_truncation_overtook_is_unknown(store: MemoryStore) -> None:
    """The entry landed, was covered by a checkpoint and deleted, so neither "landed" nor "did not land" may be
    reported.
    """
    writer, other = a_log(store), a_log(store, seed=1)
    append(writer, store, 0, "e0")

    def meanwhile() -> None:
        moves_on(other, store, 2, 2)
        raise AmbiguousWriteError("cut")

    store.fault = once(meanwhile, "put_if_absent", ENTRIES, "after")
    with pytest.raises(AppendOutcomeUnknownError):
        append(writer, store, 1, "mine")


def test_a_landed_entry_truncated_before_the_boundary_read_counts(store: MemoryStore) -> None:
    """The first nap, before the put, makes the boundary due; the second one precedes the boundary's read.

    The entry was part of the log all along, so reporting a loss would make the caller append it again.
    """
    writer, other = a_log(store), a_log(store, seed=1)
    as_of_ms = store.clock.ms

    def fault(call: Call) -> None:
        if call.key == writer.entry_key(0) and call.when == "before":
            store.clock.sleep(AGE_S)
        elif call.key == writer.boundary.key:
            store.fault = lambda call: None
            assert moves_on(other, store, 1, 1) == 1

    store.fault = fault
    with pytest.raises(AppendOutcomeUnknownError):
        append(writer, store, 0, "mine", as_of_ms)


def test_a_landed_entry_with_a_future_date_counts() -> None:
    """The nap is as long as the date is ahead, so by the store's dates no time has passed since the entry landed."""

    class Ahead(MemoryStore):
        def put_if_absent(self, key: str, body: bytes) -> PutResult:
            written = super().put_if_absent(key, body)
            ahead_ms = 3_600_000 if key == writer.entry_key(0) else 0
            return msgspec.structs.replace(written, date_ms=written.date_ms + ahead_ms)

    store = Ahead()
    writer, other = a_log(store), a_log(store, seed=1)
    truncated: list[int] = []
    store.fault = once(lambda: truncated.append(moves_on(other, store, 1, 1, 3600)), key=writer.boundary.key)
    with pytest.raises(AppendOutcomeUnknownError):
        append(writer, store, 0, "mine")
    assert truncated == [1]


def test_a_put_doubled_by_a_proxy_is_not_reported_lost(
    store: MemoryStore,
) -> None:
    """The first try landed, and was truncated while the machine was suspended; then the writer read the repeat's
    refusal.
    """
    clock = FakeClock()
    writer = SharedLog(store, FOLDER, Runtime(clock, random.Random(0)))
    other = a_log(store, seed=1)
    as_of_ms = store.clock.ms

    def fault(call: Call) -> None:
        if call.kind == "put_if_absent" and call.key == writer.entry_key(0) and call.when == "after":
            raise PreconditionFailedError("the first try is there")
        if call.kind == "get" and call.key == writer.entry_key(0) and call.when == "before":
            store.fault = lambda call: None
            append(other, store, 1, "e1")
            store.clock.sleep(AGE_S)

    store.fault = fault
    real = writer.boundary.read

    def read_after_a_truncation() -> tuple[int, str | None, int]:
        other.write_checkpoint(1, join_state(b"state"), store.clock.ms)
        assert other.truncate() == 1
        return real()

    writer.boundary.read = read_after_a_truncation  # type: ignore[method-assign]
    with pytest.raises(AppendOutcomeUnknownError):
        writer.append(0, b"mine", time_ms=as_of_ms, as_of_ms=as_of_ms)


def test_a_long_sleep_by_store_time_reads_the_boundary(store: MemoryStore) -> None:
    """The writer's last read was dated an hour ahead, so an hour later no time seems to have passed."""
    sleeper, other = a_log(store), a_log(store, seed=1)
    append(sleeper, store, 0, "e0")
    ahead_ms = store.clock.ms + 3_600_000
    for i in range(1, 5):
        append(other, store, i, f"e{i}")

    def meanwhile() -> None:
        store.clock.sleep(3_600)
        other.write_checkpoint(4, join_state(b"state"), store.clock.ms)
        assert other.truncate() == 4

    store.fault = once(meanwhile, "put_if_absent", ENTRIES)
    with pytest.raises(AppendOutcomeUnknownError):
        append(sleeper, store, 1, "phantom", ahead_ms)


def test_a_slow_reader_does_not_take_a_phantom_for_the_next_entry(store: MemoryStore) -> None:
    reader, other = a_log(store), a_log(store, seed=1)
    append(other, store, 0, "e0")
    as_of_ms = store.clock.ms
    moves_on(other, store, 1, 4)
    with pytest.raises(LogOvertakenError):
        append(a_log(store, seed=2), store, 1, "phantom", as_of_ms)
    assert reader.entry_key(1) in store.objects
    with pytest.raises(LogOvertakenError):
        reader.tail(0, as_of_ms)
    assert kept(reader.replay()) == (4, b"state")


@pytest.mark.parametrize("clock", [None, FakeClock()], ids=["slow", "suspended"])
def test_a_replay_does_not_take_a_phantom_for_an_entry(store: MemoryStore, clock: FakeClock | None) -> None:
    """The reader lists the log and sleeps; the log grows and is truncated; then a sleeping writer wakes up first."""
    reader = SharedLog(store, FOLDER, Runtime(clock or store.clock, random.Random(7)))
    other = a_log(store, seed=1)
    append(other, store, 0, "e0")
    as_of_ms = store.clock.ms
    append(other, store, 1, "e1")

    def meanwhile() -> None:
        assert moves_on(other, store, 2, 4) == 4
        for i in (0, 1):
            with pytest.raises(LogOvertakenError):
                append(a_log(store, seed=2), store, i, "phantom", as_of_ms)

    store.fault = once(meanwhile, "get", ENTRIES)
    assert kept(reader.replay()) == (4, b"state")


def test_a_writer_that_read_the_log_lately_does_not_read_the_boundary(store: MemoryStore) -> None:
    log = a_log(store)
    append(log, store, 0)
    store.clock.sleep(AGE_S / 3 - 1)
    log.tail(0, store.clock.ms - int(AGE_S / 3 * 1000) + 1000)
    assert store.requests["get"] == 1


def test_a_replay_during_a_truncation_begins_again_and_ends_well(store: MemoryStore) -> None:
    log = aged_log(store, 5)
    other = a_log(store, seed=1)
    store.delete([log.checkpoint_key(4)])
    log.write_checkpoint(1, join_state(b"old"), store.clock.ms)

    def truncate() -> None:
        other.write_checkpoint(4, join_state(b"state"), store.clock.ms)
        other.truncate()

    store.fault = once(truncate, "get", ENTRIES, after=1)  # the reader has the old checkpoint and one later entry
    r = log.replay()
    assert kept(r) == (4, b"state")
    assert r.entries == []


# -- clocks, and stores that refuse ---------------------------------------------------------------------------------------


def test_a_date_that_was_ahead_once_makes_the_boundary_due(store: MemoryStore) -> None:
    """The writer's last read was dated an hour ahead by one server, so the elapsed time stays negative."""
    sleeper, other = a_log(store), a_log(store, seed=1)
    append(other, store, 0, "e0")
    as_of_ms = store.clock.ms + 3_600_000
    moves_on(other, store, 1, 4)
    with pytest.raises(LogOvertakenError):
        sleeper.tail(0, as_of_ms)
    with pytest.raises(LogOvertakenError):
        append(sleeper, store, 1, "phantom", as_of_ms)


def test_servers_of_one_store_that_differ_by_a_second_cost_no_request(store: MemoryStore) -> None:
    log = a_log(store)
    append(log, store, 0)
    before = store.requests["get"]
    log.tail(0, store.clock.ms + 1000)
    assert store.requests["get"] == before + 1


def test_nothing_is_truncated_by_a_listing_whose_date_is_ahead(store: MemoryStore) -> None:
    log = log_of(store, 3)
    log.write_checkpoint(2, join_state(b"state"), store.clock.ms)
    folder = log.list_folder()
    ahead = Folder(folder.entries, folder.checkpoints, folder.date_ms + 3_600_000)
    assert log.truncate(ahead) == 0
    assert log.entry_key(0) in store.objects


@pytest.mark.parametrize("error", [AmbiguousWriteError("500"), PreconditionFailedError("412")])
def test_a_store_that_answers_reads_and_refuses_writes_ends_a_truncation(store: MemoryStore, error: StoreError) -> None:
    log = aged_log(store, 3)
    puts_failing(store, error, kind="put*", key=log.boundary.key)
    began = store.clock.monotonic()
    with pytest.raises(StoreError, match=r"boundary\.json could not be raised to 2 within 30 s"):
        log.truncate()
    assert store.clock.monotonic() - began < RAISE_DEADLINE_S + 10
    assert log.entry_key(0) in store.objects


def test_an_append_that_no_write_gets_through_ends(store: MemoryStore) -> None:
    store.fault = failing(AmbiguousWriteError("500"), "put_if_absent")
    began = store.clock.monotonic()
    with pytest.raises(AppendOutcomeUnknownError):
        append(a_log(store), store, 0)
    assert store.clock.monotonic() - began < APPEND_DEADLINE_S + 10


# -- long tails -----------------------------------------------------------------------------------------------------------


class Windows(Parallel):
    """Counts the requests of each window."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def map(self, fn: Callable[[A], B], items: Iterable[A]) -> list[B]:
        todo = list(items)
        self.sizes.append(len(todo))
        return [fn(i) for i in todo]

    def reader(self, store: MemoryStore) -> SharedLog:
        return SharedLog(store, FOLDER, Runtime(store.clock, random.Random(1)), parallel=self)


@pytest.mark.parametrize(
    ("entries", "expected", "sizes"), [(0, 1, [1]), (1, 1, [1, 2]), (1, 2, [2]), (40, 1, [1, 2, 4, 8, 16, 16])]
)
def test_a_tail_is_read_in_windows_that_grow(store: MemoryStore, entries: int, expected: int, sizes: list[int]) -> None:
    log_of(store, entries + 1)
    windows = Windows()
    reader = windows.reader(store)
    found, _ = reader.tail(0, store.clock.ms, expected=expected)
    assert [(e.offset, e.payload) for e in found] == [(i, b'"e%d"' % i) for i in range(1, entries + 1)]
    assert windows.sizes == sizes


def test_a_hasty_read_ends_with_the_entry_that_it_is_for(store: MemoryStore) -> None:
    log_of(store, 3)
    windows = Windows()
    reader = windows.reader(store)
    as_of_ms = store.clock.ms
    found, free_ms = reader.tail(0, as_of_ms, hasty=True)
    assert [e.offset for e in found] == [1]
    assert windows.sizes == [1]
    assert free_ms == as_of_ms, "no read has shown that the next offset is free"


def test_a_hasty_read_after_a_long_sleep_reads_the_boundary(store: MemoryStore) -> None:
    """Hazard 7: the entries may have been created again below the boundary by another sleeper."""
    log_of(store, 3)
    windows = Windows()
    reader = windows.reader(store)
    found, _ = reader.tail(0, store.clock.ms - int(AGE_S * 1000), hasty=True)
    assert [e.offset for e in found] == [1, 2]
    assert windows.sizes == [1, 2]


def test_what_is_found_after_a_free_offset_is_read_again(store: MemoryStore) -> None:
    """Two entries land while a window is read, and the read sees the second one without the first."""
    log, other = log_of(store, 2), a_log(store, seed=1)

    def meanwhile(call: Call) -> None:
        if call.kind == "get" and call.key == log.entry_key(3):
            store.fault = lambda call: None
            append(other, store, 2, "e2")
            append(other, store, 3, "e3")

    store.fault = meanwhile
    found, _ = log.tail(0, store.clock.ms)
    assert [e.offset for e in found] == [1]
    found, _ = log.tail(1, store.clock.ms)
    assert [e.offset for e in found] == [2, 3]


# -- missing and foreign objects ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [(2, 3), (0,)], ids=["in-between", "the-first"])
def test_a_missing_entry_is_named(store: MemoryStore, missing: tuple[int, ...]) -> None:
    log = log_of(store, 5)
    store.delete([log.entry_key(n) for n in missing])
    with pytest.raises(CorruptObjectError, match=rf"{log.entry_key(missing[0])} is missing.*restore it"):
        log.replay()


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[]", b"\x01" + bytes(40)])
def test_an_entry_that_cannot_be_read_is_named(store: MemoryStore, body: bytes) -> None:
    log = a_log(store)
    append(log, store, 0)
    store.put(log.entry_key(1), body)
    with pytest.raises(CorruptObjectError, match=log.entry_key(1)):
        log.replay()
    with pytest.raises(CorruptObjectError, match=log.entry_key(1)):
        log.tail(0, store.clock.ms)


@pytest.mark.parametrize("body", [b"", b"\xff", b'{"boundary":2}', seal("other/boundary.json", b'{"boundary":2}')])
def test_a_boundary_that_cannot_be_read_is_named_and_nothing_is_deleted(store: MemoryStore, body: bytes) -> None:
    log = aged_log(store, 3)
    store.put(log.boundary.key, body)
    with pytest.raises(CorruptObjectError, match=log.boundary.key):
        log.truncate()
    assert len(log.replay().entries) + len([k for k in store.objects if "/log/" in k]) == 3


def test_foreign_files_in_the_folder_are_left_alone(store: MemoryStore) -> None:
    log = aged_log(store, 3)
    foreign = [
        f"{FOLDER}log/{1:020}.bak",
        f"{FOLDER}log/1",
        f"{FOLDER}README",
        f"{FOLDER}log/{'٣' * 20}",
    ]
    for key in foreign:
        store.put(key, b"?")
    log.truncate()
    assert kept(log.replay()) == (2, b"state")
    assert set(foreign) <= set(store.objects)


def test_entries_that_cannot_be_deleted_are_reported(store: MemoryStore) -> None:
    log = aged_log(store, 3)
    store.delete = lambda keys: [DeleteFailure(keys[0], "AccessDenied", "locked")]  # type: ignore[method-assign]
    with pytest.raises(StoreError, match=rf"{log.entry_key(0)} could not be deleted: AccessDenied locked"):
        log.truncate()
