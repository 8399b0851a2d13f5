"""A whole bucket in which one object has changed: no live object is deleted, M does not increase, and the rest
continues.

The commands of an operator run on it: status, housekeep, reconcile, compute-watermark, sweep, and a reader, all without
Spark.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.collect.gc_steps import STEPS
from l0gc.collect.record import Attempt, write_attempt
from l0gc.collect.sweep import SweepRun
from l0gc.errors import CorruptObjectError, L0gcError
from l0gc.inspect.causes import find_causes
from l0gc.inspect.overview import Overview
from l0gc.inspect.overview_reader import read_overview
from l0gc.inspect.verify.run import verify
from l0gc.keys import FORMAT, PUBLISHED_WATERMARK
from l0gc.operations import Read
from l0gc.storage.workers import LocalWorkers
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.epoch_source import JournalSource
from l0gc.streamlog.housekeep import HousekeepResult, housekeep
from l0gc.streamlog.ingest.headers_and_times import Record
from l0gc.streamlog.journal.topic import l1_key
from l0gc.streamlog.level_one.reconcile import ReconcileResult, reconcile
from l0gc.streamlog.reader import read_topic
from l0gc.watermark.histogram import read_listing
from l0gc.watermark.pipeline import WatermarkResult, run_pipeline
from l0gc.watermark.publication import decode_published
from tests.fuzz.mutations import JSON, changed, fuzzing, hostile
from tests.fuzz.strict_store import StrictStore
from tests.support.memory_store import FakeClock, MemoryStore, memory_cluster
from tests.support.reconcile import put
from tests.support.tries import sampled

PARTITIONS, JOURNALS, SHARDS = 6, 3, 4


def process(store: MemoryStore, seed: int) -> ClusterHandles:
    """Return the handles of a new process."""
    return memory_cluster(store, seed=seed, bootstrap=False)


def compute_watermark(cluster: ClusterHandles) -> WatermarkResult:
    workers = LocalWorkers(cluster)
    return run_pipeline(cluster, JournalSource(cluster, workers), functools.partial(read_listing, workers))


def sweep(cluster: ClusterHandles) -> object:
    return SweepRun(cluster).run(2)


def a_bucket() -> StrictStore:
    """Return data of several epochs, in L0 and in L1; checkpoints, truncated logs, notes of runs, an M."""
    store = StrictStore()
    first = memory_cluster(store, bootstrap=False)
    first.controller.bootstrap(shards=SHARDS, journals=JOURNALS)
    first.controller.create_topic("events", PARTITIONS, JOURNALS)
    for n in range(6):
        cluster = process(store, 10 + n)
        cluster.controller.advance()
        values = {p: [b"line %d of round %d in %d" % (i, n, p) for i in range(4)] for p in range(PARTITIONS)}
        put(cluster, "events", values)
        put(cluster, "events", {p: [b"%d:more" % n] for p in values})
        if n < 5:
            reconcile(process(store, 20 + n))
        store.clock.sleep(16 * 60)
        housekeep(process(store, 30 + n))
        if n in {2, 4}:
            compute_watermark(process(store, 40 + n))
            sweep(process(store, 50 + n))
    for job in STEPS:
        write_attempt(store, Attempt(job, 0, ""))
    return store


@functools.cache
def the_bucket() -> MemoryStore:
    """Return the bucket, which takes seconds to write and is therefore written once, when a test needs it."""
    return a_bucket()


@functools.cache
def the_keys() -> list[str]:
    return sorted(the_bucket().objects)


KINDS = [
    "l0gc/format", "l0gc/controller/log", "l0gc/controller/checkpoint", "l0gc/journal/.*/log", "l0gc/journal/.*/checkpoint",
    "l0gc/.*/boundary", "l0gc/watermarks/published", "l0gc/watermarks/scans", "l0gc/attempts", "l0gc/runs",
    "level_zero", "level_one/data",
]  # fmt: skip


def copy_of_bucket() -> StrictStore:
    store = StrictStore(FakeClock(the_bucket().clock.ms))
    store.objects = {k: replace(o) for k, o in the_bucket().objects.items()}
    store._version = the_bucket()._version
    return store


def read(store: MemoryStore) -> tuple[list[Record], str]:
    """Return what a reader gets, and what ended it."""
    found: list[Record] = []
    try:
        cluster = process(store, 907)
        found.extend(
            read_topic(cluster, cluster.controller.snapshot().topic("events"))
        )  # keeps the records before an error
    except L0gcError as e:
        return found, str(e)
    return found, ""


@dataclass
class Ran:
    """The bucket after the commands; what each command returned if it ended well; and the errors of the others."""

    watermark: int = -1
    status: Overview | None = None
    housekept: HousekeepResult | None = None
    reconciled: ReconcileResult | None = None
    computed: WatermarkResult | None = None
    records: list[Record] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def reported(self) -> list[str]:
        """Return everything that was reported as wrong."""
        found = list(self.errors)
        if self.status is not None:
            found += self.status.errors
        if self.housekept is not None:
            found += [b.error for b in self.housekept.broken]
        if self.reconciled is not None:
            found += self.reconciled.errors
        if self.computed is not None:
            found += [u.error for u in self.computed.unreadable]
        return found


def run_all(store: MemoryStore) -> Ran:
    """Run the commands, each in its own process. Only errors of l0gc's end one."""
    ran = Ran()

    def attempt(result: str, command: Callable[[ClusterHandles], object], seed: int) -> None:
        try:
            found = command(process(store, seed))
        except L0gcError as e:
            ran.errors.append(f"{result}: {e}")
        else:
            setattr(ran, result, found)

    store.clock.sleep(16 * 60)
    attempt("housekept", housekeep, 901)
    attempt("reconciled", reconcile, 902)
    attempt("computed", compute_watermark, 903)
    attempt("swept", sweep, 904)
    attempt("status", read_overview, 905)
    ran.records, error = read(store)
    ran.errors += [f"read: {error}"] if error else []
    with suppress(CorruptObjectError, KeyError):
        ran.watermark = decode_published(store.objects[PUBLISHED_WATERMARK].body).watermark
    return ran


def data_of(store: MemoryStore) -> set[str]:
    return {k for k in store.objects if k.startswith("level_")}


def needed(store: MemoryStore) -> set[str]:
    """Return every data object that the journals name."""
    cluster = process(store, 908)
    topic = cluster.controller.snapshot().topic("events")
    found: set[str] = set()
    for partition in range(topic.partitions):
        state = cluster.journal(topic.journal_of(partition)).catch_up()
        p = topic.id(partition)
        found |= {e.key for e in state.topic(p.revision).extents(partition)} | {
            l1_key(p, f) for f in state.topic(p.revision).files(partition)
        }
    return found


@functools.cache
def the_records() -> list[Record]:
    return read(the_bucket())[0]


@functools.cache
def _sound() -> tuple[Ran, MemoryStore]:
    """Return what the commands do with the unchanged bucket, and what they leave."""
    store = copy_of_bucket()
    return run_all(store), store


def sound_run() -> Ran:
    return _sound()[0]


def sound_store() -> MemoryStore:
    return _sound()[1]


@functools.cache
def what_is_swept() -> set[str]:
    return data_of(the_bucket()) - data_of(sound_store())


def test_the_bucket_is_worth_changing() -> None:
    assert all(any(re.match(kind, k) for k in the_keys()) for kind in KINDS)
    sound = sound_run()
    assert sound.errors == []
    assert sound.housekept is not None
    assert sound.housekept.broken == []
    assert sound.reconciled is not None
    assert sound.reconciled.errors == []
    assert sound.reconciled.records
    assert sound.watermark > decode_published(the_bucket().objects[PUBLISHED_WATERMARK].body).watermark
    assert len(the_records()) == 6 * 5 * PARTITIONS
    assert sound.records == the_records()
    live = needed(copy_of_bucket())
    assert what_is_swept() & live, "nothing goes that has to be lifted first"
    assert what_is_swept() - live
    assert what_is_swept().isdisjoint(needed(sound_store()))


@st.composite
def changed_object(draw: st.DrawFn) -> tuple[str, bytes]:
    """Draw a key of the bucket, and its changed contents."""
    kind = re.compile(draw(st.sampled_from(KINDS)))
    alike = [k for k in the_keys() if kind.match(k)]
    key = draw(st.sampled_from(alike))
    body = the_bucket().objects[key].body
    other = the_bucket().objects[draw(st.sampled_from([k for k in alike if k != key] or the_keys()))].body
    if key.startswith("level_one/data/"):
        # The pages of another L1 object are as sound as its own: nothing ties them to a key.
        return key, draw(changed(body) | st.binary(max_size=300))
    is_json = key.endswith(".json") and body.startswith(b"{") and b"\n" not in body
    return key, draw(hostile(body, other, JSON if is_json else ""))


def nothing_live_goes(key: str, body: bytes) -> None:
    store = copy_of_bucket()
    store.put(key, body)
    ran = run_all(store)
    assert ran.watermark <= sound_run().watermark
    assert data_of(the_bucket()) - data_of(store) <= what_is_swept()
    for error in ran.errors:
        assert key in error or key == FORMAT
    assert ran.records == the_records()[: len(ran.records)]
    # The object is restored from a version, as every message advises: all records are there.
    if key in store.objects and store.objects[key].body == body:
        store.put(key, the_bucket().objects[key].body)
    assert read(store) == (the_records(), "")
    again = run_all(store)
    assert (again.reported, again.records) == ([], the_records())


@fuzzing(8)
@given(changed_object())
def test_a_damaged_object_lets_nothing_live_go(change: tuple[str, bytes]) -> None:
    nothing_live_goes(*change)


@pytest.mark.thorough
@fuzzing(40)
@given(changed_object())
def test_any_damaged_object_lets_nothing_live_go(change: tuple[str, bytes]) -> None:
    nothing_live_goes(*change)


# -- reports --------------------------------------------------------------------------------------------------------------

KEY_TO_COPY = re.compile(r"l0gc give-up --object \S+")
A_KEY = re.compile(r"\b(?:l0gc|level_zero|level_one)/[\w./#-]*[\w/#]")


def lines_about(store: MemoryStore) -> list[str]:
    """Return every line in which verify and the other commands report damage."""
    verifier = process(store, 910)
    try:
        lines = [f.line for f in verify(verifier, LocalWorkers(verifier), deep=True, min_age_ms=-1).findings]
    except L0gcError as e:
        lines = [str(e)]
    ran = run_all(store)
    causes = [] if ran.status is None else find_causes(ran.status)
    return lines + ran.reported + [f"{c.detail}; {c.remedy}" for c in causes]


@pytest.mark.parametrize("damage", sampled(["gone", "cut", "flipped"], ["gone"]))
@pytest.mark.parametrize("kind", KINDS)
def test_a_line_about_damage_has_each_key_and_remedy_once(kind: str, damage: str) -> None:
    store = copy_of_bucket()
    key = max(k for k in the_keys() if re.match(kind, k))
    body = store.objects[key].body
    if damage == "gone":
        store.delete([key])
    else:
        store.put(key, body[: len(body) // 2] if damage == "cut" else body[:-1] + bytes([body[-1] ^ 1]))
    for line in lines_about(store):
        assert line.count("; restore ") <= 1, line
        keys = A_KEY.findall(KEY_TO_COPY.sub("", line))
        assert all(sum(k.startswith(other) for k in keys) == 1 for other in keys), line
        assert not any("#" in k for k in keys), line


# -- damage in one journal ------------------------------------------------------------------------------------------------


def _is_replayed(key: str) -> bool:
    """Return whether a replay reads an object of a journal's log: the newest checkpoint and what comes after it."""
    m = re.fullmatch(r"(l0gc/journal/\d+/)(log|checkpoint)/(\d+)", key)
    if m is None:
        return False
    newest = max((k for k in the_keys() if k.startswith(f"{m[1]}checkpoint/")), default="")
    return key == newest if m[2] == "checkpoint" else m[3] > newest.rsplit("/", 1)[-1]


@functools.cache
def replayed_keys() -> list[str]:
    return [k for k in the_keys() if _is_replayed(k)]


def _has_its_first_part(key: str, body: bytes) -> bool:
    """Return whether the part of a checkpoint that M and `status` read is undamaged (docs/reference/format.md)."""
    sound = the_bucket().objects[key].body
    return "/checkpoint/" in key and body.startswith(sound[: 8 + 8 + 4 + int.from_bytes(sound[:8], "little")])


def one_journal_stops(key: str, body: bytes) -> None:
    store = copy_of_bucket()
    store.put(key, body)
    ran = run_all(store)
    sound = sound_run()
    assert ran.housekept is not None
    assert ran.reconciled is not None
    assert ran.computed is not None
    assert ran.status is not None
    if not ran.housekept.broken:  # nothing has changed
        assert body == the_bucket().objects[key].body
        assert (ran.housekept.advanced, ran.watermark) == (
            sound.housekept and sound.housekept.advanced,
            sound.watermark,
        )
        return
    unread = _has_its_first_part(key, body)
    for said, needed in (
        ([b.error for b in ran.housekept.broken], True),
        (ran.reconciled.errors, True),
        ([u.error for u in ran.computed.unreadable], not unread),
        (ran.status.errors, not unread),
    ):
        assert len(said) == 1 or not (said or needed)
        assert all(key in error for error in said)
    journal = ran.housekept.broken[0].journal
    assert journal is not None
    assert key.startswith(f"l0gc/journal/{journal:04}/")
    if unread:  # its window and its bounds are sound
        assert ran.watermark is not None
        assert sound.watermark is not None
        assert ran.watermark <= sound.watermark
    else:
        assert ran.housekept.advanced == JOURNALS - 1
        assert ran.watermark == decode_published(the_bucket().objects[PUBLISHED_WATERMARK].body).watermark
    cluster = process(store, 909)
    topic = cluster.controller.snapshot().topic("events")
    others = [p for p in range(PARTITIONS) if topic.journal_of(p) != journal]
    assert [r for p in others for r in read_topic(cluster, topic, Read(partition=p))] == [
        r for r in the_records() if r.partition in others
    ]
    assert all(
        cluster.journal(topic.journal_of(p)).catch_up().topic(topic.revision).view(p).unreconciled_records == 0
        for p in others
    )


@st.composite
def changed_log(draw: st.DrawFn) -> tuple[str, bytes]:
    key = draw(st.sampled_from(replayed_keys()))
    return key, draw(
        hostile(the_bucket().objects[key].body, the_bucket().objects[draw(st.sampled_from(replayed_keys()))].body)
    )


@fuzzing(6)
@given(changed_log())
def test_a_corrupt_entry_or_checkpoint_stops_its_journal_and_no_other(change: tuple[str, bytes]) -> None:
    one_journal_stops(*change)


@pytest.mark.thorough
@fuzzing(40)
@given(changed_log())
def test_any_corrupt_entry_or_checkpoint_stops_its_journal_and_no_other(change: tuple[str, bytes]) -> None:
    one_journal_stops(*change)
