"""One seed, one clock, one store, many processes: at each store call the seed decides which thread runs and what
happens to it.

Every thread of a simulated process is a greenlet that runs the real handles. A store call is a step: the thread stops
there, the scheduler picks the next thread, and draws a fault for the call. `watch.py` watches every effect in the
store. All randomness comes from the seed alone, so a seed identifies a run.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from greenlet import getcurrent, greenlet

from l0gc.errors import AmbiguousWriteError, PreconditionFailedError, RequestRefusedError, StoreError, ThrottledError
from l0gc.runtime import Clock, Runtime
from l0gc.streamlog.cluster import ClusterHandles
from tests.simulation.answers import Answers
from tests.simulation.holds import Holds
from tests.simulation.interrupting import INTERRUPTED, Interrupts
from tests.simulation.losses import Losses
from tests.simulation.retention import Retentions
from tests.simulation.store import SimulatedStore
from tests.simulation.watch import Violation, Watch
from tests.simulation.weather import DAY_MS, HOUR_MS, Faults, ProcessClock, Weather
from tests.support.interrupting import KINDS
from tests.support.memory_store import Call, FakeClock

PAUSES_MS = (1_000, 60_000, 20 * 60_000, HOUR_MS, 3 * HOUR_MS)
NAPS_MS = PAUSES_MS[2:]
SUSPENDED_MS = 20 * 60_000
"""How long a machine is suspended: less than a date may be ahead, since equal times would not show that time has passed
(docs/why/hazards.md).
"""
LANDED_LATE = "writes landed late"
LATE_MS = 10 * 60_000
LATEST_MS = 2 * LATE_MS
"""How long a write may still take effect after its caller has given up."""
DATES_AHEAD_MS = (HOUR_MS, 30 * DAY_MS, 400 * DAY_MS, -2 * HOUR_MS, -3 * DAY_MS, -30 * DAY_MS)
"""How far the date of a reply may be ahead. Wrong dates of a seed all differ, so another reply reveals each."""
LATE_DATES_MS = (*(-hours * HOUR_MS for hours in range(1, 24, 3)), 2 * 60_000, 8 * 60_000)
"""Wrong dates that no other reply checks: at most a day behind, or minutes ahead (hazard 16)."""
LIFE_GOES_ON = 0.15
"""The probability that a process begins because another one sleeps for long, so that the sleeper's objects change."""
TOO_MANY_STEPS = 50_000
_ENTRY_KEY = re.compile(r"l0gc/journal/(\d{4})/log/")


class Crashed(BaseException):
    """The thread's process has died, and makes no more store calls."""


@dataclass
class Process:
    """The threads and handles that one crash ends together.

    `recovers`: it does what only an operator may. `suspended_ms`: how long its machine slept, which its clock did not
    count. `interrupted`: its next job continues with the handles of the last one, which an exception has ended.
    """

    name: str
    skew_ms: int
    generation: int = 0
    in_flight: int = 0
    kept: ClusterHandles | None = None
    recovers: bool = False
    suspended_ms: int = 0
    last: ClusterHandles | None = None
    interrupted: bool = False

    def crash(self) -> None:
        self.generation += 1
        self.in_flight = 0
        self.kept = self.last = None
        self.interrupted = False


class Thread(greenlet):
    """A thread of a simulated process."""

    def __init__(self, world: World, process: Process, body: Callable[[], None]) -> None:
        super().__init__(self._life, world.main)
        self.world = world
        self.process = process
        self.body = body
        self.generation = 0
        self.wakes_ms = 0
        self.free: Callable[[], bool] | None = None
        self.min_age_ms = 0
        self.grace_ms = 0
        self.retains: Retentions | None = None
        self.sending: Callable[[], object] | None = None
        self.refused = False
        self.failed_at = ""
        self.misled_at = ""
        self.misreads = 0

    def _life(self) -> None:
        """Run the body; after a crash, run it from its beginning in the process's next life."""
        while True:
            self.generation = self.process.generation
            try:
                self.body()
                return
            except Crashed:
                if self.world.stopping:
                    return
            except Violation:
                raise
            except KINDS:
                self.world.happened[INTERRUPTED] += 1
                self.world.note("is interrupted while it applies an entry")
                self.process.interrupted = True
            except Exception as e:  # no command of l0gc may end like that
                raise self.world.violation(f"{self.process.name} died of {type(e).__name__}: {e}") from e

    @property
    def doomed(self) -> bool:
        return self.generation != self.process.generation

    def pause(self) -> None:
        """Let others run. Raises `Crashed` if the process is then dead."""
        self.world.main.switch()
        if self.doomed:
            raise Crashed

    def wait_until(self, free: Callable[[], bool]) -> None:
        while not free():
            self.free = free
            try:
                self.pause()
            finally:
                self.free = None


@dataclass
class World:
    """The whole simulation of one seed."""

    seed: int
    random: random.Random
    weather: Weather
    faults: Faults
    holds: Holds
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.watch = Watch(self)
        self.losses: Losses | None = None
        self.answers = Answers(self)
        self.store = SimulatedStore(self.clock, self, habit=self.weather.habit, page_size=self.weather.page_size)
        self.main = getcurrent()
        self.steps = 0
        self.operators_calls = 0
        self.crashes = 0
        self.happened: Counter[str] = Counter()
        self.interrupts = Interrupts(self)
        self.late: list[tuple[int, int, int, Callable[[], object]]] = []
        jumps = self.weather.date_jumps * self.random.randrange(1, 6)
        self.date_jumps_at = sorted(self.random.randrange(3_000) for _ in range(jumps))
        self.dates_ahead_ms = self.random.sample(DATES_AHEAD_MS, jumps)
        if self.weather.late_dates:
            chance = random.Random(f"late dates of seed {self.seed}")
            self.dates_ahead_ms += chance.sample(LATE_DATES_MS, len(LATE_DATES_MS))
            self.date_jumps_at = sorted([*self.date_jumps_at, *(chance.randrange(3_000) for _ in LATE_DATES_MS)])
        self.threads: list[Thread] = []
        self.processes: list[Process] = []
        self.stopping = False
        self.while_one_sleeps: Callable[[int | None], object] | None = None
        self.alone: tuple[Thread, Thread] | None = None
        self.refuse: Callable[[Call], None] | None = None
        self.scratch = ""
        self.trace: list[str] = []
        self.failed: Violation | None = None
        self._quiet = Process("operator", self.weather.skew(self.random))

    # -- processes and steps ---------------------------------------------------------------------------------------------

    def spawn(self, name: str, *bodies: Callable[[Process], Callable[[], None]]) -> Process:
        """Start a process with a thread for each body; after a crash, each begins again."""
        process = Process(name, self.weather.skew(self.random))
        self.processes.append(process)
        self.threads += [Thread(self, process, body(process)) for body in bodies]
        return process

    def run(self, max_steps: int) -> None:
        """Let the threads run until all have ended or the steps are used up."""
        end, last = self.steps + max_steps, None
        while self.steps < end:
            if self.alone is not None:
                self._go_on_alone(*self.alone)
                continue
            now = self.clock.ms
            self.land_late(now)
            ready = [t for t in self.threads if t.wakes_ms <= now and (t.free is None or t.doomed or t.free())]
            if ready:
                if last not in ready or self.random.random() >= self.weather.bursts:
                    last = ready[int(self.random.random() * len(ready))]
                self._resume(last)
                continue
            waiting = [t.wakes_ms for t in self.threads if t.wakes_ms > now]
            if not waiting:
                if self.threads:
                    raise self.violation(f"{[t.process.name for t in self.threads]} wait for one another for ever")
                return
            self.clock.ms = min(waiting)

    def _go_on_alone(self, worker: Thread, sleeper: Thread) -> None:
        """Let only the worker run, until it has ended; then wake the sleeper."""
        self.clock.ms = max(self.clock.ms, (sleeper if worker.dead else worker).wakes_ms)
        self.land_late(self.clock.ms)
        if worker.dead or (worker.free is not None and not worker.doomed and not worker.free()):
            self.alone = None
        else:
            self._resume(worker)

    def land_late(self, now_ms: int) -> None:
        """Let those writes take effect whose time has come."""
        while self.late and min(self.late)[0] <= now_ms:
            due = min(self.late)
            self.late.remove(due)
            self.happened[LANDED_LATE] += 1
            self.happened[f"more than {LATE_MS // 60_000} minutes late"] += now_ms - due[1] > LATE_MS
            due[3]()
            if self.failed is not None:
                raise self.failed

    def stop(self) -> None:
        """Kill all running processes."""
        self.stopping = True
        self.alone = None
        for process in {id(t.process): t.process for t in self.threads}.values():
            process.crash()
        for t in list(self.threads):
            if t:
                self._resume(t)
        self.threads = []
        self.stopping = False

    def _resume(self, thread: Thread) -> None:
        thread.switch()
        if thread.dead:
            self.threads.remove(thread)
        if self.failed is not None:
            raise self.failed

    @property
    def thread(self) -> Thread | None:
        """The running thread; None if the world itself runs."""
        current = getcurrent()
        return current if isinstance(current, Thread) else None

    def at_call(self, call: Call) -> None:
        """Stop the thread at a store call, at which something may happen to it."""
        current = getcurrent()
        if not isinstance(current, Thread):
            self.operators_calls += call.when == "before"
            if self.operators_calls > TOO_MANY_STEPS:
                raise self.violation(f"what an operator does comes to no end, and is at {call.key}")
            return
        if current.doomed:
            raise Crashed  # what a dead process would still do in a `finally` never reaches the store
        if call.when == "before":
            self.steps += 1
            if self.steps > TOO_MANY_STEPS:
                raise self.violation("it does not come to an end")
            self.clock.ms += 1 + int(self.random.random() * 49)
            current.pause()
            if self.refuse is not None:
                self.refuse(call)
        self._strike(current, call)

    def _strike(self, thread: Thread, call: Call) -> None:
        if self.alone is not None and thread is self.alone[0]:
            return  # faults would keep this thread from its purpose
        if self.losses is not None and call.key in self.losses.withheld and call.kind in ("get", "head"):
            raise RequestRefusedError(f"{call.key}: it was archived")
        self.answers.strike(thread, call)
        f, draw = self.faults, self.random.random()
        if thread.refused:  # a process that checks why it was refused may not get an answer
            thread.refused = False
            if self.random.random() < 0.3:
                self.log(thread, call, "no answer, after a refusal")
                raise StoreError(f"{call.key}: no answer")
        if draw >= f.any:
            return
        conditional = call.kind.startswith("put_if")
        if call.when == "after":
            if draw < f.after:
                self.log(thread, call, "reply lost")
                raise (AmbiguousWriteError if conditional else StoreError)(f"{call.key}: the reply was lost")
            if draw < f.after + f.crash:
                self.log(thread, call, "crash after it")
                self._crash(thread)
            if draw < f.after + f.crash + f.twice and conditional:
                self.log(thread, call, "sent twice")
                thread.refused = True
                raise PreconditionFailedError(f"{call.key}: it is there")
            if draw < f.after + f.crash + f.twice + f.nap and call.kind == "put_if_absent":
                self._nap(call.key, "sleeps after it")
            return
        if draw < f.before:
            self.log(thread, call, "failed before it landed")
            raise (AmbiguousWriteError if conditional else StoreError)(f"{call.key}: no answer")
        draw -= f.before
        if draw < f.throttled:
            self.log(thread, call, "throttled")
            raise ThrottledError(f"{call.key}: slow down")
        draw -= f.throttled
        if draw < f.pause:
            paused_ms = self.random.choice(PAUSES_MS)
            thread.wakes_ms = self.clock.ms + paused_ms
            self.log(thread, call, f"pauses for {paused_ms // 1000} s")
            if self.while_one_sleeps is not None and paused_ms >= LATEST_MS and self.random.random() < LIFE_GOES_ON:
                self.while_one_sleeps(None)
            thread.pause()
            return
        draw -= f.pause
        if draw < f.crash:
            self.log(thread, call, "crash before it")
            self._crash(thread)
        draw -= f.crash
        if draw < f.late and thread.sending is not None and call.kind not in {"get", "head", "list", "scan"}:
            lands_ms = self.clock.ms + int(self.random.random() * self.random.choice([1_000, 60_000, LATEST_MS]))
            self.late.append((lands_ms, self.clock.ms, self.steps, thread.sending))
            self.log(thread, call, f"no answer; it lands at {lands_ms}")
            raise (AmbiguousWriteError if conditional else StoreError)(f"{call.key}: no answer")

    def _nap(self, key: str, what: str, suspended_ms: int = 0) -> None:
        """Sleep for long, while others append to the journal of this entry, and truncate it.

        Args:
            suspended_ms: how long its machine sleeps, with all threads of the process; 0 for a pause that its clock
                counts.
        """
        thread, journal = self.thread, _ENTRY_KEY.match(key)
        if thread is None or journal is None or self.while_one_sleeps is None or self.alone is not None:
            return
        thread.wakes_ms = self.clock.ms + (suspended_ms or self.random.choice(NAPS_MS))
        thread.process.suspended_ms += suspended_ms
        for other in self.threads if suspended_ms else []:
            if other.process is thread.process:
                other.wakes_ms = max(other.wakes_ms, thread.wakes_ms)
        self.log(thread, Call("nap", key, "after"), what)
        self.while_one_sleeps(int(journal[1]))
        self.alone = self.threads[-1], thread
        thread.pause()

    def _crash(self, thread: Thread) -> None:
        self.crashes += 1
        thread.process.crash()
        raise Crashed

    def sleep(self, seconds: float) -> None:
        ms = max(1, int(seconds * 1000))
        thread = self.thread
        if thread is None:
            self.clock.ms += ms
            return
        thread.wakes_ms = self.clock.ms + ms
        thread.pause()

    def log(self, thread: Thread, call: Call, what: str) -> None:
        thread.failed_at = call.key
        self.happened[what.split(";", maxsplit=1)[0]] += 1
        self.trace.append(f"{self.steps} {thread.process.name} {call.kind} {call.key}: {what}")

    def note(self, what: str) -> None:
        """Add a line to the trace that a violation shows."""
        thread = self.thread
        self.trace.append(f"{self.steps} {thread.process.name if thread else 'world'}: {what}")

    def date_ahead_ms(self, end: str = "") -> int:
        """Return how far the store's clock is ahead in the reply to this call: in some seeds, it is wrong up to five
        times.

        The operator's calls get right dates, since they never fail.

        Args:
            end: the key that was looked for at the end of a log.
        """
        if self.thread is None or not self.date_jumps_at or self.steps < self.date_jumps_at[0]:
            return 0
        appends = self.thread.process.kept is not None  # it appends soon, based on what it learns here
        if not (appends and _ENTRY_KEY.match(end)) and self.random.random() < 0.98:
            return 0
        del self.date_jumps_at[0]
        ahead_ms = self.dates_ahead_ms.pop()
        self.happened["replies with a wrong date"] += 1
        self.note(f"a reply's date is {ahead_ms / HOUR_MS:g} hours ahead")
        if ahead_ms > 0:
            self.thread.misled_at = end
        return ahead_ms

    def boundary_read(self) -> None:
        """Suspend a thread that learned a log's end with a date that was ahead, once it has read the boundary."""
        if self.thread is not None and self.thread.misled_at:
            end, self.thread.misled_at = self.thread.misled_at, ""
            self._nap(end, "is suspended after a date that was ahead", SUSPENDED_MS)

    def task_clock(self) -> Clock:
        """Return the clock of a task that another process runs."""
        return ProcessClock(self, self.thread.process if self.thread is not None else self._quiet)

    def cluster(
        self, process: Process | None = None, *, epoch_cache_s: float = 10.0, cluster_id: str | None = None
    ) -> ClusterHandles:
        """Return the handles of a new process, or of the operator's."""
        if process is not None and process.interrupted and process.last is not None and cluster_id is None:
            process.interrupted = False
            return process.last
        runtime = Runtime(ProcessClock(self, process or self._quiet), random.Random(self.random.getrandbits(64)))
        made = ClusterHandles(
            self.store,
            runtime,
            expected_cluster_id=cluster_id,
            epoch_cache_s=epoch_cache_s,
            epoch_interval_s=self.weather.epoch_interval_s,
            truncate_min_age_ms=self.weather.truncate_min_age_ms,
        )
        if process is not None:
            process.last = made
        return made

    @contextmanager
    def quietly(self) -> Iterator[None]:
        """Suspend all faults until the block ends; the world's own actions never fail."""
        before, self.faults = self.faults, Faults.none()
        try:
            yield
        finally:
            self.faults = before

    def violation(self, text: str) -> Violation:
        """Return the error for an invariant that does not hold; the world stops, whatever the thread does with it."""
        last = "\n  ".join(self.trace[-25:])
        self.failed = self.failed or Violation(self.seed, self.steps, f"{text}\nthe last faults:\n  {last}")
        return self.failed
