"""Interrupts calls of the library at random moments: `python -m tests.flows.interrupted_calls --interrupts 10000`.

One process repeats calls with the same handles: uploads, appends on several threads at once, catch-ups, advances of the
epoch, housekeeping, reconciles, reads. Another process writes into the same journals. Each call is interrupted once, at
a random moment, by a real signal whose handler raises, or by an exception that another thread sets, as task runners do.
Entries are small, or about 1 MiB.

After each call the journals and the controller log are applied anew, entry by entry, to states that are never
interrupted. The handles' states and each checkpoint in the bucket must equal them; an object is in a log once; what was
reported as landed is in its log. No call and no thread next to it may take longer than `PATIENCE_S`.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import gc
import io
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from l0gc.errors import L0gcError
from l0gc.keys import CONTROLLER_LOG, journal_log
from l0gc.operations import Read, Upload
from l0gc.runtime import Runtime
from l0gc.storage.entry import decode_checkpoint
from l0gc.storage.log import SharedLog
from l0gc.storage.replica import Replica
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.entries import ControllerMachine
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.ingest.uploader import open_upload
from l0gc.streamlog.journal.checkpoint import JournalMachine
from l0gc.streamlog.journal.entries import ObjectExtents, Objects, decode_journal_entry
from l0gc.streamlog.journal.handle import AppendResult
from l0gc.streamlog.level_one.reconcile import reconcile
from l0gc.streamlog.reader import read_topic
from tests.support.interrupting import Interrupt
from tests.support.journal import of_topic
from tests.support.memory_store import MemoryStore, memory_cluster

SMALL, LARGE, UPLOADED = "small", "large", "uploaded"
JOURNALS: Final = {SMALL: 0, LARGE: 1}
STEPS: Final = {SMALL: 100, LARGE: 8}
"""How many calls are made on one cluster, since states grow."""
LARGE_PARTITIONS: Final = 90_000
"""An object with one record for each of these partitions makes an entry of about 1 MiB."""
PATIENCE_S: Final = 60.0


class WrongError(Exception):
    """A condition that must hold does not."""


# -- interrupts -------------------------------------------------------------------------------------------------------


class Moment:
    """Interrupts the calls of this thread, which is the main one, after a delay, from another thread."""

    def __init__(self, *, by_signal: bool) -> None:
        self._by_signal = by_signal
        self._lock = threading.Lock()
        self._armed = False
        self._me = threading.get_ident()
        if by_signal:
            signal.signal(signal.SIGUSR1, self._heard)

    def _heard(self, number: int, frame: object) -> None:
        if self._armed:
            self._armed = False
            raise Interrupt

    def _shoot(self, begun: threading.Event, ended: threading.Event, delay_s: float) -> None:
        begun.wait()
        if ended.wait(delay_s):
            return
        if self._by_signal:
            signal.pthread_kill(self._me, signal.SIGUSR1)
            return
        with self._lock:
            if self._armed:
                self._armed = False
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._me), ctypes.py_object(Interrupt))

    def during(self, call: Callable[[], object], delay_s: float) -> bool:
        """Make the call, and return whether it was interrupted."""
        begun, ended = threading.Event(), threading.Event()
        shooter = threading.Thread(target=self._shoot, args=(begun, ended, delay_s), daemon=True)
        shooter.start()
        begun.set()
        interrupted = False
        try:
            self._armed = True
            call()
        except BaseException as e:
            if not _is_of(e):
                raise
            interrupted = True
        while True:  # the interrupt can arrive as late as here
            try:
                with self._lock:
                    self._armed = False
                for _ in range(100):
                    pass
                break
            except Interrupt:
                interrupted = True
        ended.set()
        shooter.join()
        return interrupted


def _is_of(e: BaseException | None) -> bool:
    """Return whether an interrupt led to an error; numpy, among others, raises its own errors from it."""
    return e is not None and (isinstance(e, Interrupt) or _is_of(e.__cause__) or _is_of(e.__context__))


# -- the true state ---------------------------------------------------------------------------------------------------


class Truth:
    """A log's state, from entries that are applied here one after another and never interrupted."""

    def __init__(self, store: MemoryStore, folder: str, machine: Any) -> None:
        self._store, self._machine = store, machine
        self._log = SharedLog(store, folder, Runtime(store.clock, random.Random(0)))
        self.state = machine.initial()
        self.offset = -1
        self.landed: Counter[str] = Counter()
        self.checkpoints = 0

    def encoded(self) -> bytes:
        body: bytes = self._machine.encode(self.state)
        return body

    def follow(self) -> None:
        """Apply the new entries, and compare the new checkpoints."""
        while self._log.entry_key(self.offset + 1) in self._store.objects:
            entry = self._log.get(self.offset + 1)
            self._machine.apply(self.state, entry)
            self.offset = entry.offset
            if isinstance(self._machine, JournalMachine):
                e = decode_journal_entry(entry.payload, "the truth")
                self.landed.update(o.key for o in e.objects) if isinstance(e, Objects) else None
            self._compare()
        self._compare()

    def _compare(self) -> None:
        key = self._log.checkpoint_key(self.offset)
        if (kept := self._store.objects.get(key)) is not None:
            self.checkpoints += 1
            if decode_checkpoint(key, kept.body).state != self.encoded():
                raise WrongError(f"the checkpoint {key} is not what its log says")

    def check(self, replica: Replica[Any], who: str) -> None:
        replica.catch_up()
        self.follow()
        if replica.offset != self.offset:
            raise WrongError(f"{who} stands at {replica.offset} of {self._log.folder}, not at {self.offset}")
        if self._machine.encode(replica.state) != self.encoded():
            raise WrongError(f"{who} holds another state of {self._log.folder} at {replica.offset}")


# -- the calls --------------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """How often each call was made and interrupted, and how long an uninterrupted call takes."""

    calls: Counter[str] = field(default_factory=Counter)
    interrupted: Counter[str] = field(default_factory=Counter)
    took: dict[str, float] = field(default_factory=dict)
    checkpoints: int = 0
    slowest: float = 0.0


def _refused_or_done(call: Callable[[], object]) -> None:
    with suppress(L0gcError):  # for example if another thread appended for this one and was interrupted
        call()


@dataclass
class Flow:
    """A cluster, the process that is interrupted, another process, and the tally."""

    chance: random.Random
    tally: Tally
    reported: list[tuple[int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = MemoryStore()
        first = memory_cluster(self.store, bootstrap=False)
        first.controller.bootstrap(shards=4, journals=2)
        self.topics: dict[str, Topic] = {
            SMALL: first.controller.create_topic(SMALL, 4)[0],
            LARGE: first.controller.create_topic(LARGE, LARGE_PARTITIONS)[0],
            UPLOADED: first.controller.create_topic(UPLOADED, 4, 2)[0],
        }
        self.cluster = memory_cluster(self.store, seed=1, bootstrap=False)
        self.other = memory_cluster(self.store, seed=2, bootstrap=False)
        self.truths = {j: Truth(self.store, journal_log(j), JournalMachine(j)) for j in JOURNALS.values()}
        self.truths[-1] = Truth(self.store, CONTROLLER_LOG, ControllerMachine())
        self.check("the beginning")
        self.calls: dict[str, Callable[[str], Callable[[], object]]] = {
            "append": self.append,
            "together": self.together,
            "catch-up": self.catch_up,
            "new epoch": self.new_epoch,
            "housekeep": self.housekeep,
            "upload": self.upload,
            "reconcile": self.reconcile,
            "read": self.read,
        }

    def offer(self, size: str) -> ObjectExtents:
        topic = self.topics[size]
        key = f"level_zero/data/000/{self.chance.getrandbits(64):018}/x"
        epoch = self.other.controller.epoch()
        partitions = range(topic.partitions if size == LARGE else self.chance.randrange(1, 5))
        return of_topic(topic, epoch, dict.fromkeys(partitions, 1), key=key, per_block=1000)

    def _append(self, cluster: ClusterHandles, size: str, o: ObjectExtents) -> None:
        appended: AppendResult = cluster.journal(JOURNALS[size]).append([o])
        if appended.error is None:
            self.reported.append((JOURNALS[size], o.key))

    def append(self, size: str) -> Callable[[], object]:
        o = self.offer(size)
        return lambda: self._append(self.cluster, size, o)

    def together(self, size: str) -> Callable[[], object]:
        """Return a call during which two other threads append with the same handle, one of them at a new epoch."""
        objects = [self.offer(size)]
        if self.chance.random() < 0.5:
            self.other.controller.advance()
        objects += [self.offer(size) for _ in range(2)]
        for o in objects[1:]:  # Python may raise in a starting thread instead of here, so they start before the moment
            threading.Thread(target=self._append, args=(self.cluster, size, o), daemon=True).start()
        return lambda: self._append(self.cluster, size, objects[0])

    def catch_up(self, size: str) -> Callable[[], object]:
        for _ in range(1 if size == LARGE else 5):
            self._append(self.other, size, self.offer(size))
        return self.cluster.journal(JOURNALS[size]).catch_up

    def new_epoch(self, size: str) -> Callable[[], object]:
        def call() -> None:
            self.cluster.controller.advance()
            self._append(self.cluster, size, self.offer(size))

        return call

    def upload(self, size: str) -> Callable[[], object]:
        lines = b"".join(b"%d %d\n" % (self.chance.getrandbits(60), i) for i in range(200))

        def call() -> None:
            with ExitStack() as stack:
                uploader, inputs = open_upload(
                    self.cluster, UPLOADED, [io.BytesIO(lines)], stack, Upload(batch_bytes=1000)
                )
                uploader.run(inputs)

        return call

    def housekeep(self, size: str) -> Callable[[], object]:
        self.store.clock.sleep(1000)  # entries become old enough to be truncated
        return lambda: housekeep(self.cluster)

    def reconcile(self, size: str) -> Callable[[], object]:
        return lambda: reconcile(self.cluster, UPLOADED)

    def read(self, size: str) -> Callable[[], object]:
        return lambda: sum(1 for _ in read_topic(self.cluster, self.topics[UPLOADED], Read(partition=0)))

    # -- checked calls ------------------------------------------------------------------------------------------------

    def step(self, moment: Moment, name: str, size: str) -> bool:
        """Make one call, interrupt it at a random moment, and check everything that must hold."""
        self.reported.clear()
        before = set(threading.enumerate())
        call = self.calls[name](size)
        what = f"{name}, {size}"
        took = self.tally.took.setdefault(what, 0.01)
        began = time.monotonic()
        hit = moment.during(lambda: _refused_or_done(call), self.chance.random() * took)
        seconds = time.monotonic() - began
        gc.collect()  # ends a pool without references
        for thread in threading.enumerate():
            if thread not in before and thread.ident is not None:  # the pool's threads, and those of an upload
                thread.join(PATIENCE_S)
                if thread.is_alive():
                    raise WrongError(f"after {what} the thread {thread.name} next to it waits for ever")
        t = self.tally
        t.slowest = max(t.slowest, time.monotonic() - began)
        t.calls[what] += 1
        t.interrupted[what] += hit
        t.took[what] = took * 1.02 if hit else took + 0.1 * (seconds - took)
        self.check(what)
        return hit

    def check(self, after: str) -> None:
        """Check that the handles and the bucket agree with the logs."""
        for truth in self.truths.values():
            truth.follow()
        for j in JOURNALS.values():
            self.truths[j].check(self.cluster.journal(j).replica, f"after {after} the process")
            twice = [key for key, n in self.truths[j].landed.items() if n > 1]
            if twice:
                raise WrongError(f"after {after} {twice} landed twice")
        self.truths[-1].check(self.cluster.controller.replica, f"after {after} the process")
        for j, key in self.reported:
            if self.truths[j].landed[key] != 1:
                raise WrongError(f"after {after} {key} was reported as landed, and is not in the log")

    def others_agree(self) -> None:
        """Check that a new process reads the same states from the bucket."""
        anew = memory_cluster(self.store, seed=9, bootstrap=False)
        for j in JOURNALS.values():
            self.truths[j].check(anew.journal(j).replica, "a new process")
        self.truths[-1].check(anew.controller.replica, "a new process")
        self.tally.checkpoints += sum(t.checkpoints for t in self.truths.values())


def interrupt(moment: Moment, size: str, interrupts: int, seed: int, *, watched: bool = False) -> Tally:
    """Make calls until `interrupts` of them were interrupted. Raises `WrongError`.

    Args:
        watched: end this process, and show its stack, if a call takes far too long.
    """
    chance, tally = random.Random(seed), Tally()
    while tally.interrupted.total() < interrupts:
        flow = Flow(chance, tally)
        names = list(flow.calls)[: 5 if size == LARGE else None]
        for _ in range(STEPS[size]):
            if tally.interrupted.total() >= interrupts:
                break
            if watched:
                faulthandler.dump_traceback_later(2 * PATIENCE_S, exit=True)
            flow.step(moment, chance.choice(names), size)
        flow.others_agree()
        if watched:
            sys.stderr.write(f"{tally.interrupted.total():,} of {interrupts:,} interrupts, {size}\n")
    faulthandler.cancel_dump_traceback_later()
    return tally


def main() -> int:
    """Run what the arguments request; return 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description="Interrupt calls of the library at random moments.")
    parser.add_argument("--interrupts", type=int, default=10_000, help="a tenth of them while entries weigh 1 MiB")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    failed = False
    for how, by_signal in (("signals", True), ("another thread", False)):
        for size, share in ((SMALL, 0.45), (LARGE, 0.05)):
            began = time.monotonic()
            try:
                tally = interrupt(
                    Moment(by_signal=by_signal), size, int(share * options.interrupts), options.seed, watched=True
                )
            except WrongError as e:
                failed = True
                sys.stdout.write(f"{how}, {size}: WRONG: {e}\n")
                continue
            sys.stdout.write(
                f"{how}, {size}: {tally.interrupted.total():,} of {tally.calls.total():,} calls interrupted, "
                f"{tally.checkpoints} checkpoints, the slowest call {tally.slowest:.1f} s, nothing wrong, "
                f"{time.monotonic() - began:.0f} s\n"
            )
            for what, n in sorted(tally.interrupted.items()):
                sys.stdout.write(f"  {what}: {n} of {tally.calls[what]}\n")
            sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
