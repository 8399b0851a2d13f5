"""The shared log: one owner for each offset, no entry twice, none lost, and none of a truncated past."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from l0gc.errors import (
    AccessDeniedError,
    AmbiguousWriteError,
    AppendOutcomeUnknownError,
    CorruptObjectError,
    LogConflictError,
    LogOvertakenError,
    StoreError,
    StoreUnreachableError,
    ThrottledError,
)
from l0gc.runtime import Runtime
from l0gc.storage.checksum import seal, unseal
from l0gc.storage.log import APPEND_DEADLINE_S, TRUNCATE_MIN_AGE_MS, SharedLog
from tests.support.memory_store import Call, FakeClock, MemoryStore, lose_reply

FOLDER = "l0gc/x/"
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


def aged_log(store: MemoryStore, count: int) -> SharedLog:
    """A log of `count` entries, all old enough to be truncated, and with a checkpoint of the last one."""
    log = a_log(store, seed=99)
    for i in range(count):
        append(log, store, i, f"e{i}")
    store.clock.sleep(AGE_S)
    log.write_checkpoint(count - 1, b"state")
    return log


def on_nth(n: int, kind: str, action: Callable[[], None], when: str = "before") -> Callable[[Call], None]:
    """A fault that does `action` at the n-th call of `kind` to an entry's key, once."""
    seen = 0

    def fault(call: Call) -> None:
        nonlocal seen
        if call.kind == kind and call.when == when and f"{FOLDER}log/" in call.key:
            seen += 1
            if seen == n:
                action()

    return fault


def raising(error: Exception) -> Callable[[], None]:
    def action() -> None:
        raise error

    return action


# -- one owner for each offset ------------------------------------------------------------------------------------------


def test_entries_come_back_in_order_and_byte_for_byte(store: MemoryStore) -> None:
    log = a_log(store)
    for i in range(12):
        assert append(log, store, i, f"e{i}") == i
    assert entries(a_log(store, seed=1)) == [(i, f"e{i}") for i in range(12)]


def test_an_offset_has_one_owner(store: MemoryStore) -> None:
    append(a_log(store), store, 0, "mine")
    with pytest.raises(LogConflictError, match=r"00000\.json belongs to another writer"):
        append(a_log(store, seed=1), store, 0, "yours")
    assert entries(a_log(store)) == [(0, "mine")]


# -- ambiguous appends (hazard 8) ---------------------------------------------------------------------------------------


def test_an_append_that_landed_without_a_reply_is_reported_as_landed_and_not_repeated(store: MemoryStore) -> None:
    store.fault = lose_reply("/log/")
    assert append(a_log(store), store, 0, "mine") == 0
    assert entries(a_log(store)) == [(0, "mine")]
    assert store.requests["put_if_absent"] == 1


def test_an_append_that_was_lost_on_its_way_is_repeated_at_the_same_offset(store: MemoryStore) -> None:
    store.fault = on_nth(1, "put_if_absent", raising(AmbiguousWriteError("cut")))
    assert append(a_log(store), store, 0, "mine") == 0
    assert entries(a_log(store)) == [(0, "mine")]


def test_a_lost_append_whose_offset_somebody_else_took_is_a_conflict(store: MemoryStore) -> None:
    other = a_log(store, seed=1)

    def overtake() -> None:
        store.fault = lambda call: None
        append(other, store, 0, "yours")
        raise AmbiguousWriteError("cut")

    store.fault = on_nth(1, "put_if_absent", overtake)
    with pytest.raises(LogConflictError):
        append(a_log(store), store, 0, "mine")
    assert entries(a_log(store)) == [(0, "yours")]


def test_a_late_first_try_that_beats_the_second_is_recognised_as_the_same_entry(store: MemoryStore) -> None:
    late: list[tuple[str, bytes]] = []

    class LateStore(MemoryStore):
        def put_if_absent(self, key: str, body: bytes) -> object:  # type: ignore[override]
            if not late:
                late.append((key, body))
                raise AmbiguousWriteError("cut")
            self._write(*late[0])  # the first try lands now, just before the second
            return super().put_if_absent(key, body)

    late_store = LateStore()
    assert append(a_log(late_store), late_store, 0, "mine") == 0
    assert entries(a_log(late_store)) == [(0, "mine")]


def test_an_outcome_that_cannot_be_learned_by_the_deadline_is_reported_as_unknown(store: MemoryStore) -> None:
    def fault(call: Call) -> None:
        if call.kind == "put_if_absent" and call.when == "after":
            raise AmbiguousWriteError("cut")
        if call.kind == "get":
            raise StoreError("500")

    store.fault = fault
    began = store.clock.monotonic()
    with pytest.raises(AppendOutcomeUnknownError, match=r"00000\.json was written is not known .*--producer"):
        append(a_log(store), store, 0, "mine")
    assert APPEND_DEADLINE_S <= store.clock.monotonic() - began < APPEND_DEADLINE_S + 10
    assert store.clock.monotonic() - began < AGE_S / 3
    store.fault = lambda call: None
    assert entries(a_log(store)) == [(0, "mine")]


@pytest.mark.parametrize("error", [AccessDeniedError("denied"), StoreUnreachableError("down"), StoreError("400")])
def test_after_an_ambiguous_try_no_error_claims_that_the_entry_did_not_land(
    store: MemoryStore, error: StoreError
) -> None:
    """The first try may still be on its way, so a second one's refusal says nothing about it."""
    puts = 0

    def fault(call: Call) -> None:
        nonlocal puts
        if call.kind == "put_if_absent" and call.when == "before":
            puts += 1
            assert puts < 1000, "the append never gives up"
            raise AmbiguousWriteError("cut") if puts == 1 else error

    store.fault = fault
    with pytest.raises(AppendOutcomeUnknownError):
        append(a_log(store), store, 0, "mine")


@pytest.mark.parametrize("ambiguous", [0, 1, 2, 3, 4])
def test_an_append_to_an_endpoint_that_went_away_ends(store: MemoryStore, ambiguous: int) -> None:
    puts = 0

    def fault(call: Call) -> None:
        nonlocal puts
        if call.kind == "put_if_absent" and call.when == "before":
            puts += 1
            assert puts < 1000, "the append never gives up"
            raise AmbiguousWriteError("cut") if puts <= ambiguous else StoreUnreachableError("down")

    store.fault = fault
    with pytest.raises(AppendOutcomeUnknownError if ambiguous else StoreUnreachableError):
        append(a_log(store), store, 0, "mine")


@pytest.mark.parametrize("error", [ThrottledError("slow down"), StoreUnreachableError("down"), AccessDeniedError("no")])
def test_a_landed_append_is_never_reported_as_refused_because_the_boundary_cannot_be_read(
    store: MemoryStore, error: StoreError
) -> None:
    log = a_log(store)
    append(log, store, 0, "first")
    as_of_ms = store.clock.ms
    store.clock.sleep(AGE_S)

    def fault(call: Call) -> None:
        if call.key.endswith("boundary.json"):
            raise error

    store.fault = fault
    with pytest.raises(AppendOutcomeUnknownError):
        append(log, store, 1, "mine", as_of_ms)
    store.fault = lambda call: None
    assert entries(a_log(store)) == [(0, "first"), (1, "mine")]


def test_a_throttled_append_is_settled_and_repeated(store: MemoryStore) -> None:
    store.fault = on_nth(1, "put_if_absent", raising(ThrottledError("slow down")))
    assert append(a_log(store), store, 0, "mine") == 0


def test_a_short_loss_of_connection_is_ridden_out(store: MemoryStore) -> None:
    store.fault = on_nth(1, "put_if_absent", raising(StoreUnreachableError("down")))
    assert append(a_log(store), store, 0, "mine") == 0


# -- truncation ---------------------------------------------------------------------------------------------------------


def test_truncation_keeps_the_checkpoints_own_entry_and_what_follows(store: MemoryStore) -> None:
    log = aged_log(store, 5)
    append(log, store, 5, "e5")
    assert log.truncate() == 4
    assert sorted(k for k in store.objects if "/log/" in k) == [log.entry_key(4), log.entry_key(5)]
    r = log.replay()
    assert r.checkpoint == (4, b"state")
    assert [e.offset for e in r.entries] == [5]
    assert log.truncate() == 0


def test_truncation_raises_the_boundary_before_it_deletes(store: MemoryStore) -> None:
    log = aged_log(store, 3)
    boundaries: list[bytes] = []

    def fault(call: Call) -> None:
        if call.kind == "delete" and call.when == "before":
            boundaries.append(store.objects[log.boundary_key].body)

    store.fault = fault
    log.truncate()
    assert unseal(log.boundary_key, boundaries[0]) == b'{"boundary":2}'


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
    log.write_checkpoint(2, b"state")
    store.clock.sleep(AGE_S - early_s)
    assert log.truncate() == (0 if early_s else 2)


def test_an_old_entry_behind_a_young_one_stays(store: MemoryStore) -> None:
    log = aged_log(store, 4)
    store.objects[log.entry_key(1)].modified_ms = store.clock.ms
    assert log.truncate() == 1
    assert [k for k in store.objects if "/log/" in k] == [log.entry_key(i) for i in (1, 2, 3)]


def test_the_boundary_is_never_lowered(store: MemoryStore) -> None:
    log = aged_log(store, 5)
    sealed = seal(log.boundary_key, b'{"boundary":9}')
    store.put(log.boundary_key, sealed)
    log.truncate()
    assert store.objects[log.boundary_key].body == sealed


def test_a_boundary_whose_write_was_ambiguous_is_read_before_anything_is_deleted(store: MemoryStore) -> None:
    log = aged_log(store, 5)
    store.fault = lose_reply("boundary.json")
    assert log.truncate() == 4
    assert unseal(log.boundary_key, store.objects[log.boundary_key].body) == b'{"boundary":4}'


def test_two_checkpoints_stay_for_readers_on_their_way(store: MemoryStore) -> None:
    log = a_log(store)
    for i in range(4):
        append(log, store, i)
        log.write_checkpoint(i, b"%d" % i)
    log.truncate()
    assert [k for k in store.objects if "/checkpoint/" in k] == [log.checkpoint_key(2), log.checkpoint_key(3)]


def test_a_checkpoint_is_kept_once(store: MemoryStore) -> None:
    log = a_log(store)
    append(log, store, 0)
    assert log.write_checkpoint(0, b"first")
    assert not log.write_checkpoint(0, b"first")
    store.fault = lose_reply("/checkpoint/")
    assert log.write_checkpoint(1, b"second")


# -- the past that was truncated (hazard 7) -----------------------------------------------------------------------------


def test_a_writer_that_slept_through_a_truncation_does_not_believe_that_it_won(store: MemoryStore) -> None:
    sleeper = a_log(store)
    append(sleeper, store, 0, "e0")
    as_of_ms = store.clock.ms
    other = a_log(store, seed=1)
    for i in range(1, 5):
        append(other, store, i, f"e{i}")
    store.clock.sleep(AGE_S)
    other.write_checkpoint(4, b"state")
    other.truncate()
    with pytest.raises(LogOvertakenError, match="truncated past offset 1"):
        append(sleeper, store, 1, "phantom", as_of_ms)
    assert entries(a_log(store)) == []


def test_a_writer_that_stalls_inside_its_put_does_not_believe_that_it_won(store: MemoryStore) -> None:
    sleeper, other = a_log(store), a_log(store, seed=1)
    append(sleeper, store, 0, "e0")

    def meanwhile() -> None:
        store.fault = lambda call: None
        for i in range(1, 5):
            append(other, store, i, f"e{i}")
        store.clock.sleep(AGE_S)
        other.write_checkpoint(4, b"state")
        other.truncate()

    store.fault = on_nth(1, "put_if_absent", meanwhile)
    with pytest.raises(LogOvertakenError):
        append(sleeper, store, 1, "phantom")


def test_an_ambiguous_append_that_the_truncation_overtook_is_unknown(store: MemoryStore) -> None:
    """It landed, went into the checkpoint and was deleted: neither "landed again" nor "did not land" would be true."""
    writer, other = a_log(store), a_log(store, seed=1)
    append(writer, store, 0, "e0")

    def meanwhile() -> None:
        store.fault = lambda call: None
        append(other, store, 2, "e2")
        store.clock.sleep(AGE_S)
        other.write_checkpoint(2, b"state")
        other.truncate()
        raise AmbiguousWriteError("cut")

    store.fault = on_nth(1, "put_if_absent", meanwhile, when="after")
    with pytest.raises(AppendOutcomeUnknownError):
        append(writer, store, 1, "mine")


def test_an_entry_that_landed_and_was_truncated_before_the_boundary_was_asked_is_no_loser(store: MemoryStore) -> None:
    """Two naps: one before the put, so that the boundary has to be asked, and one before the boundary is.

    The entry was part of the log all the while, so whoever says that it is not makes the caller append it again.
    """
    writer, other = a_log(store), a_log(store, seed=1)
    as_of_ms = store.clock.ms

    def fault(call: Call) -> None:
        if call.key == writer.entry_key(0) and call.when == "before":
            store.clock.sleep(AGE_S)
        elif call.key == writer.boundary_key:
            store.fault = lambda call: None
            append(other, store, 1, "e1")
            store.clock.sleep(AGE_S)
            other.write_checkpoint(1, b"state after mine and e1")
            assert other.truncate() == 1

    store.fault = fault
    with pytest.raises(AppendOutcomeUnknownError):
        append(writer, store, 0, "mine", as_of_ms)


def test_a_slow_reader_does_not_take_a_phantom_for_the_next_entry(store: MemoryStore) -> None:
    reader, other = a_log(store), a_log(store, seed=1)
    append(other, store, 0, "e0")
    as_of_ms = store.clock.ms
    for i in range(1, 5):
        append(other, store, i, f"e{i}")
    store.clock.sleep(AGE_S)
    other.write_checkpoint(4, b"state")
    other.truncate()
    with pytest.raises(LogOvertakenError):
        append(a_log(store, seed=2), store, 1, "phantom", as_of_ms)
    assert reader.entry_key(1) in store.objects
    with pytest.raises(LogOvertakenError):
        reader.tail(0, as_of_ms)
    assert reader.replay().checkpoint == (4, b"state")


def test_whoever_looked_lately_does_not_ask_the_boundary(store: MemoryStore) -> None:
    log = a_log(store)
    append(log, store, 0)
    store.clock.sleep(AGE_S / 3 - 1)
    log.tail(0, store.clock.ms - int(AGE_S / 3 * 1000) + 1000)
    assert store.requests["get"] == 1


def test_a_replay_during_a_truncation_begins_again_and_ends_well(store: MemoryStore) -> None:
    log = aged_log(store, 5)
    other = a_log(store, seed=1)
    store.delete([log.checkpoint_key(4)])
    log.write_checkpoint(1, b"old")

    def truncate() -> None:
        store.fault = lambda call: None
        other.write_checkpoint(4, b"state")
        other.truncate()

    store.fault = on_nth(2, "get", truncate)  # the reader holds the old checkpoint and one entry behind it
    r = log.replay()
    assert r.checkpoint == (4, b"state")
    assert r.entries == []


# -- what should not be there -------------------------------------------------------------------------------------------


def test_a_missing_entry_is_named(store: MemoryStore) -> None:
    log = a_log(store)
    for i in range(5):
        append(log, store, i)
    store.delete([log.entry_key(2), log.entry_key(3)])
    with pytest.raises(CorruptObjectError, match=rf"{log.entry_key(2)} is missing.*restore it"):
        log.replay()


def test_a_first_entry_that_is_missing_without_a_checkpoint_is_named(store: MemoryStore) -> None:
    log = a_log(store)
    append(log, store, 0)
    append(log, store, 1)
    store.delete([log.entry_key(0)])
    with pytest.raises(CorruptObjectError, match=rf"{log.entry_key(0)} is missing"):
        log.replay()


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[]", b'{"id":1,"time_ms":0,"entry":0}', b'{"id":"a"}'])
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
    store.put(log.boundary_key, body)
    with pytest.raises(CorruptObjectError, match=log.boundary_key):
        log.truncate()
    assert len(log.replay().entries) + len([k for k in store.objects if "/log/" in k]) == 3


def test_foreign_files_in_the_folder_are_left_alone(store: MemoryStore) -> None:
    log = aged_log(store, 3)
    foreign = [
        f"{FOLDER}log/{1:020}.json.bak",
        f"{FOLDER}log/1.json",
        f"{FOLDER}README",
        f"{FOLDER}log/{'٣' * 20}.json",
    ]
    for key in foreign:
        store.put(key, b"?")
    log.truncate()
    assert log.replay().checkpoint == (2, b"state")
    assert set(foreign) <= set(store.objects)


def test_entries_that_cannot_be_deleted_are_reported(store: MemoryStore) -> None:
    from l0gc.storage.objectstore import DeleteFailure

    log = aged_log(store, 3)
    store.delete = lambda keys: [DeleteFailure(keys[0], "AccessDenied", "locked")]  # type: ignore[method-assign]
    with pytest.raises(StoreError, match=rf"{log.entry_key(0)} could not be deleted: AccessDenied locked"):
        log.truncate()


@pytest.mark.parametrize("change", [(b'"e1"', b'"e7"'), (b'"time_ms":1', b'"time_ms":2'), (b'{"id":"', b'{"id":"f')])
def test_an_entry_that_was_changed_into_another_valid_one_is_found_out(
    store: MemoryStore, change: tuple[bytes, bytes]
) -> None:
    log = aged_log(store, 3)
    key = log.entry_key(1)
    body = store.objects[key].body
    assert body.replace(*change) != body
    store.put(key, body.replace(*change))
    with pytest.raises(CorruptObjectError, match=rf"{key} does not match its checksum"):
        log.tail(0, store.clock.ms)


def test_an_entry_of_another_offset_is_not_taken_for_this_ones(store: MemoryStore) -> None:
    log = aged_log(store, 3)
    store.put(log.entry_key(1), store.objects[log.entry_key(0)].body)
    with pytest.raises(CorruptObjectError, match=rf"{log.entry_key(1)} does not match its checksum"):
        log.tail(0, store.clock.ms)


def test_an_entry_that_is_nested_too_deep_to_be_read_is_named(store: MemoryStore) -> None:
    log = aged_log(store, 3)
    store.put(log.entry_key(1), b'{"id":"x","time_ms":0,"crc32":0,"entry":' + b"[" * 100_000)
    with pytest.raises(CorruptObjectError, match=log.entry_key(1)):
        log.tail(0, store.clock.ms)


def test_a_checkpoint_that_was_changed_is_found_out(store: MemoryStore) -> None:
    log = aged_log(store, 3)
    key = log.checkpoint_key(2)
    store.put(key, store.objects[key].body.replace(b"state", b"STATE"))
    with pytest.raises(CorruptObjectError, match=rf"{key} does not match its checksum"):
        log.replay()
