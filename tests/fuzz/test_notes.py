"""Notes of runs, of any bytes, stop no command that reads them, and a pause stays a pause."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given

from l0gc.collect.deletion import Pause, clear_pause, read_pause
from l0gc.collect.history import newest_runs
from l0gc.collect.record import Attempt, RunSummary, attempt_key, read_attempts, summary_key
from l0gc.collect.sweep import SweepRun
from l0gc.errors import PausedError
from l0gc.keys import PAUSED
from l0gc.storage.parallel import Parallel
from tests.fuzz.mutations import JSON, fuzzing, hostile
from tests.support.memory_store import MemoryStore, memory_cluster

PAUSE = msgspec.json.encode(Pause("disk audit", "ann@ops1", 1_700_000_000_000))
ATTEMPT = msgspec.json.encode(Attempt("sweep", 1, "it failed", 1_700_000_000_000))
RUN = "20231114T221320Z-aaaaaaaa"
SUMMARY = msgspec.json.encode(
    RunSummary(
        run_id=RUN, started_ms=1, watermark=2, cluster_epoch=3, engine="local", versioning="off", purge_versions=False,
        first_shard=0, end_shard=4, ended_ms=2, outcome="done", listed=5, eligible=4, objects=4, bytes=40, failed=0,
        uploads_aborted=0, seconds=0.5,
    )
)  # fmt: skip


@fuzzing(60)
@given(hostile(PAUSE, ATTEMPT, JSON, deep=False))
def test_a_pause_of_any_bytes_stops_sweeps_until_it_is_taken_back(body: bytes) -> None:
    cluster = memory_cluster()
    cluster.store.put(PAUSED, body)
    with pytest.raises(PausedError):
        SweepRun(cluster).run()
    assert clear_pause(cluster.store) is not None
    SweepRun(cluster).run()


@fuzzing(60)
@given(hostile(ATTEMPT, PAUSE, JSON, deep=False))
def test_an_attempt_of_any_bytes_counts_as_one_or_as_none(body: bytes) -> None:
    store = MemoryStore()
    store.put(attempt_key("sweep"), body)
    store.put(attempt_key("housekeep"), msgspec.json.encode(Attempt("housekeep", 0, "")))
    found = read_attempts(store, Parallel()).known
    assert found["housekeep"].ok
    assert all(isinstance(a.error, str) for a in found.values())


@fuzzing(60)
@given(hostile(SUMMARY, ATTEMPT, JSON, deep=False))
def test_a_runs_summary_of_any_bytes_is_read_or_refused(body: bytes) -> None:
    store = MemoryStore()
    store.put(summary_key(RUN), body)
    (run,) = newest_runs(store, 3, store.now_ms())
    if run.summary is None:
        assert summary_key(RUN) in run.damage
    else:
        assert run.damage == ""


@pytest.mark.parametrize("deep", [b"[" * 50_000, b'{"more":' + b"[" * 50_000 + b"]" * 50_000 + b"}"])
def test_a_note_that_is_nested_too_deep_counts_as_none(deep: bytes) -> None:
    """msgspec skips unwanted values by recursion."""
    store = MemoryStore()
    for key in (attempt_key("sweep"), summary_key(RUN), PAUSED):
        store.put(key, deep)
    assert read_attempts(store, Parallel()).known == {}
    assert [RUN in run.damage for run in newest_runs(store, 3, store.now_ms())] == [True]
    assert read_pause(store) is not None
