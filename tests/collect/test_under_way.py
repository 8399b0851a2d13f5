"""Markers of gc runs: who runs sees others, nobody waits, and nothing about them can stop a run."""

from __future__ import annotations

import threading

import msgspec
import pytest

import l0gc.collect.under_way
from l0gc.collect.under_way import BEAT_S, STALE_MS, UnderWay, announced, describe
from l0gc.errors import AccessDeniedError
from l0gc.keys import GC_UNDER_WAY
from tests.support.memory_store import Call, MemoryStore


def run(name: str, since_ms: int = 1_700_000_000_000) -> UnderWay:
    return UnderWay(name, "ann@ops1", since_ms)


def markers(store: MemoryStore) -> list[str]:
    return [k.removeprefix(GC_UNDER_WAY) for k in store.list(GC_UNDER_WAY).modified_ms]


def test_of_two_runs_at_once_the_second_sees_the_first_and_each_removes_its_own_marker() -> None:
    store = MemoryStore()
    with announced(store, run("a")) as seen_by_a:
        with announced(store, run("b")) as seen_by_b:
            assert markers(store) == ["a.json", "b.json"]
        assert markers(store) == ["a.json"]
    assert markers(store) == []
    assert (seen_by_a, seen_by_b) == ([], [run("a")])
    assert describe(run("a")).startswith(
        "another gc run (a by ann@ops1, since 2023-11-14 22:13Z) is under way; both are"
    )


def test_a_marker_goes_also_where_the_run_fails() -> None:
    store = MemoryStore()
    with pytest.raises(KeyboardInterrupt), announced(store, run("a")):
        raise KeyboardInterrupt
    assert markers(store) == []


def kill(store: MemoryStore) -> None:
    """Leave the marker of a run that is no more."""
    store.put(f"{GC_UNDER_WAY}killed.json", msgspec.json.encode(run("killed")))


def test_a_run_that_lives_says_so_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l0gc.collect.under_way, "BEAT_S", 0.001)
    store, beaten = MemoryStore(), threading.Event()
    with announced(store, run("a")):
        store.clock.ms += STALE_MS + 1
        store.fault = lambda call: beaten.set() if (call.kind, call.when) == ("put", "after") else None
        assert beaten.wait(120)
        with announced(store, run("b"), quietly=True) as others:
            assert others == [run("a")]
    assert markers(store) == []


def test_what_a_killed_run_left_is_reported_for_some_minutes_and_then_removed() -> None:
    assert STALE_MS > 3000 * BEAT_S
    store = MemoryStore()
    kill(store)
    store.clock.ms += STALE_MS
    with announced(store, run("b")) as others:
        assert others == [run("killed")]
    store.clock.ms += 1000
    with announced(store, run("c"), quietly=True) as others:
        assert (others, markers(store)) == ([], ["killed.json"])
    with announced(store, run("d")) as others:
        assert (others, markers(store)) == ([], ["d.json"])


def test_a_dry_run_reads_and_leaves_nothing() -> None:
    store = MemoryStore()
    with announced(store, run("a")), announced(store, run("dry"), quietly=True) as others:
        assert (others, markers(store)) == ([run("a")], ["a.json"])


@pytest.mark.parametrize("body", [b"\xff{", b'{"run_id":"x","by":"ann","since_ms":1e18}', b'{"run_id":"x"}'])
def test_a_marker_that_cannot_be_read_is_nobody(body: bytes) -> None:
    store = MemoryStore()
    store.put(f"{GC_UNDER_WAY}x.json", body)
    with announced(store, run("a")) as others:
        assert others == []


@pytest.mark.parametrize("kinds", [{"put"}, {"list"}, {"get"}, {"delete"}, {"put", "list", "get", "delete"}])
def test_a_store_that_refuses_the_markers_stops_no_run(kinds: set[str]) -> None:
    def refuse(call: Call) -> None:
        if call.kind in kinds and call.key.startswith(GC_UNDER_WAY):
            raise AccessDeniedError("not you")

    store = MemoryStore()
    with announced(store, run("other")):
        store.fault = refuse
        with announced(store, run("a")) as others:
            assert others in ([], [run("other")])
        store.fault = lambda call: None
