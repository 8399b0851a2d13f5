"""Every interleaving of what changes L1, breadth first: reconcilers, merges, expiries, vacuums, a deletion, and
readers.

A state consists of the journal's log, the existing L1 objects, the cluster epoch, and the position of each process. A
process's next step follows from the answers that it has got, so l0gc's code runs once for each process and history (see
`store.py`). A killed process is one that takes no further step. So in each state, whatever the processes are doing,
ticks and two vacuums are tried at once: then exactly the objects that the journal names must exist.

The simulation's shadow, which shares no decision with l0gc, counts what the journal lists: an entry may name only
existing objects, nothing twice, and leave no gap; it may drop only named objects, and forget only deleted ones.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from l0gc.errors import L0gcError
from l0gc.keys import L1_DATA, journal_log
from l0gc.storage.entry import Entry, encode_entry
from l0gc.streamlog.journal.checkpoint import JournalMachine
from l0gc.streamlog.journal.entries import Edit, Objects
from l0gc.streamlog.journal.rows import L1_ROW, unpack
from l0gc.streamlog.journal.state import JournalState
from tests.exhaustive.breadth import NO_LIMITS, Found, Limits, Numbers, search
from tests.exhaustive.l1_actors import Actor, Local, Reconciler, Vacuumer, small
from tests.exhaustive.l1_process import GRACE_EPOCHS, TOPIC, Answer, BrokenError, View, now_ms
from tests.exhaustive.store import Call, Stands
from tests.simulation.shadow import LandingWorld, Shadow
from tests.simulation.shadow_l1 import Wrong, spans_of_files
from tests.simulation.typed import check_merged
from tests.support.journal import extents_of

FIRST_EPOCH: Final = 2
_MACHINE: Final = JournalMachine(0)


@dataclass(frozen=True)
class L1Scope:
    """The scope of a search.

    Args:
        lifted: how many L1 objects of one record there are at first.
        waiting: how many records wait to be lifted.
        lost: the offsets of waiting records that are lost from the beginning of the search.
        ticks: how often the cluster epoch increases, at any time.
        both: instead of the records of one partition, the waiting L0 objects, each with a record of these partitions.
    """

    name: str
    actors: tuple[Actor, ...]
    lifted: int = 2
    waiting: int = 1
    lost: tuple[int, ...] = ()
    ticks: int = 2
    both: tuple[tuple[int, ...], ...] = ()


class State(NamedTuple):
    """Numbers, except for three fields: `epoch`, `deleted` (the epoch at which the topic was deleted) and `schema` (the
    number of its value schema).
    """

    log: int
    there: int
    epoch: int
    deleted: int
    nodes: tuple[int, ...]
    schema: int = 0


class _Node(NamedTuple):
    """A process and its position: the `answers` since it was at `local`."""

    actor: int
    local: Local
    answers: tuple[Answer, ...]


class _Stop(NamedTuple):
    """The position of a process: the call that it waits for, or its `local` if its step has ended; `broken` is the rule
    that it found broken.
    """

    call: Call | None
    local: Local
    broken: str = ""


@dataclass(frozen=True)
class _Log:
    """The journal's log up to some entry. `dropped` has the true epoch at which each object was dropped."""

    shadow: Shadow
    dropped: dict[str, int]

    @property
    def state(self) -> JournalState:
        return self.shadow.state


class L1Search:
    """A search of one scope."""

    def __init__(self, scope: L1Scope) -> None:
        self._scope = scope
        self._logs: list[_Log] = []
        self._log_numbers: dict[Any, int] = {}
        self._grown: dict[tuple[int, int, int, bytes], tuple[int, str]] = {}
        self._there, self._nodes = Numbers(), Numbers()
        self._contents: dict[int, dict[str, bytes]] = {}
        self._stops: dict[int, _Stop] = {}
        self._ended: dict[tuple[int, int, int], str] = {}
        self.lost: frozenset[str] = frozenset()
        self._l0 = {
            f"level_zero/data/000/{n:018}/x": b"" for n in range(len(scope.both) or scope.lifted + scope.waiting)
        }

    # -- what `View` asks of it

    def state(self, log: int) -> JournalState:
        return self._logs[log].state

    # -- the search -----------------------------------------------------------------------------------------------------

    def run(self, limits: Limits = NO_LIMITS) -> Found:
        """Search by `breadth.search`."""
        with small():
            found = search(
                self._scope.name,
                self._first(),
                self._steps,
                self._left_over,
                self._is_content,
                limits=limits,
            )
        found.executions = len(self._stops)
        return found

    def _is_content(self, state: State) -> bool:
        """Return whether every process has done its work."""
        return all(not self._nodes.values[n].local.step for n in state.nodes)

    def _first(self) -> State:
        """Return a state with some objects in L1 and some records that are not, at `FIRST_EPOCH`."""
        self._logs = [_Log(Shadow(0), {})]
        state = State(0, self._there.of(frozenset()), FIRST_EPOCH, 0, ())
        for n, key in enumerate(self._l0):
            of = dict.fromkeys(self._scope.both[n] if self._scope.both else (0,), 1)
            o = extents_of(1, of, key=key, revision=TOPIC.revision, topic_id=TOPIC.topic_id)
            log, wrong = self._grow(state, msgspec.msgpack.encode(Objects([o])))
            assert not wrong, wrong
            state = state._replace(log=log)
            if n < self._scope.lifted and not self._scope.both:
                state, _ = self._at_once(state, Reconciler(f"first-{n}"))
        nodes = []
        for i, actor in enumerate(self._scope.actors):
            local = actor.begin()
            if actor.prepared:
                state, local = self._at_once(state, actor, steps=1)
            nodes.append(self._nodes.of(_Node(i, local, ())))
        self.lost = frozenset(list(self._l0)[n] for n in self._scope.lost)
        return state._replace(nodes=tuple(nodes))

    def _at_once(self, state: State, actor: Actor, steps: int = 1 << 30) -> tuple[State, Local]:
        """Run a process to its end, or through its first steps, without any other. Raises `BrokenError`.

        Returns the state and the process after that.
        """
        now = [state]

        def answer(call: Call) -> Answer:
            now[0], given, wrong = self._done(now[0], call)
            if wrong:
                raise BrokenError(wrong)
            return given

        local = actor.begin()
        while local.step and steps:
            local, steps = actor.run(View(self, answer=answer), local), steps - 1
        return now[0], local

    # -- steps ----------------------------------------------------------------------------------------------------------

    def _steps(self, state: State) -> Iterator[tuple[str, State, str]]:
        for i, number in enumerate(state.nodes):
            node: _Node = self._nodes.values[number]
            actor = self._scope.actors[i]
            if not node.local.step:
                continue
            if actor.options and not node.local.choice:
                for option in actor.options:
                    yield f"{actor.name} takes {option}", self._moved(state, i, node.local._replace(choice=option)), ""
                continue
            call = self._stop(number).call
            assert call is not None
            after, answer, wrong = self._done(state, call)
            then = self._nodes.of(_Node(i, node.local, (*node.answers, answer)))
            stop = self._stop(then)
            label = f"{actor.name} {_label(call, answer)}"
            if stop.broken:
                yield label, after, wrong or f"{actor.name}: {stop.broken}"
            elif stop.call is None:
                yield label, self._moved(after, i, stop.local), wrong
            else:
                yield label, after._replace(nodes=(*state.nodes[:i], then, *state.nodes[i + 1 :])), wrong
        if state.epoch < FIRST_EPOCH + self._scope.ticks:
            yield f"epoch {state.epoch + 1} begins", state._replace(epoch=state.epoch + 1), ""

    def _moved(self, state: State, actor: int, local: Local) -> State:
        """Return the state with a process between two steps."""
        node = self._nodes.of(_Node(actor, local, ()))
        return state._replace(nodes=(*state.nodes[:actor], node, *state.nodes[actor + 1 :]))

    def _stop(self, number: int) -> _Stop:
        stop = self._stops.get(number)
        if stop is None:
            node: _Node = self._nodes.values[number]
            stop = self._stops[number] = self._run_again(self._scope.actors[node.actor], node)
        return stop

    def _run_again(self, actor: Actor, node: _Node) -> _Stop:
        try:
            return _Stop(None, actor.run(View(self, node.answers), node.local))
        except Stands as stands:
            return _Stop(stands.call, node.local)
        except BrokenError as e:
            return _Stop(None, node.local, str(e))
        except L0gcError as e:
            return _Stop(None, node.local, f"ended with {type(e).__name__}: {e}")

    def _done(self, state: State, call: Call) -> tuple[State, Answer, str]:
        """Return the state after a process's call, the answer, and what is then wrong."""
        there = self._bucket(state)
        answer = Answer(state.epoch, state.log)
        match call.method, call.arguments:
            case "read", ():
                return state, answer, ""
            case "epoch", ():
                return state, answer._replace(log=-1, value=(state.deleted, state.schema)), ""
            case "append", (log, epoch, payload):
                if (log, epoch) != (state.log, state.epoch):
                    return state, answer._replace(done=False), ""
                grown, wrong = self._grow(state, payload)
                return state._replace(log=grown), answer._replace(log=grown), wrong
            case "get", keys:
                gone = next((k for k in keys if k not in there), "")
                bodies = () if gone else tuple(there[k] for k in keys)
                return state, Answer(state.epoch, done=not gone, value=gone or bodies), ""
            case "put", (key, body):
                return self._with(state, {**there, key: body}), Answer(state.epoch), ""
            case "scan", (prefix,):
                return state, Answer(state.epoch, value=tuple(sorted(k for k in there if k.startswith(prefix)))), ""
            case "delete", (keys,):
                after = self._with(state, {k: body for k, body in there.items() if k not in keys})
                return after, Answer(state.epoch), self._wrongly_deleted(state, keys)
            case "alter-topic", ():
                return state._replace(epoch=state.epoch + 1, schema=state.schema + 1), Answer(state.epoch + 1), ""
            case "delete-topic", ():
                return state._replace(epoch=state.epoch + 1, deleted=state.epoch + 1), Answer(state.epoch + 1), ""
        raise AssertionError(call)

    def _bucket(self, state: State) -> dict[str, bytes]:
        """Return the existing L1 objects."""
        there = self._contents.get(state.there)
        if there is None:
            there = self._contents[state.there] = dict(self._there.values[state.there])
        return there

    def _with(self, state: State, there: dict[str, bytes]) -> State:
        return state._replace(there=self._there.of(frozenset(there.items())))

    def _wrongly_deleted(self, state: State, keys: tuple[str, ...]) -> str:
        log = self._logs[state.log]
        if named := sorted(log.shadow.l1.named.intersection(keys)):
            return f"{named[0]} is deleted, and the journal names it"
        for key in keys:
            at = log.dropped.get(key)
            if at is not None and state.epoch - at < GRACE_EPOCHS and not state.deleted:
                return f"{key} is deleted at epoch {state.epoch}, and was dropped at {at}"
        return ""

    def _grow(self, state: State, payload: bytes) -> tuple[int, str]:
        """Append an entry; return the number of the log, and what is wrong with the entry."""
        at = state.log, state.there, state.epoch, payload
        if at not in self._grown:
            self._grown[at] = self._grown_by(state, payload)
        return self._grown[at]

    def _grown_by(self, state: State, payload: bytes) -> tuple[int, str]:
        before = self._logs[state.log]
        shadow = copy.deepcopy(before.shadow)
        shadow.prints = []
        offset = shadow.offset + 1
        entry = Entry(f"{offset}", now_ms(state.epoch), payload)
        body = encode_entry(f"{journal_log(0)}log/{offset:020}", entry)
        objects = {**self._l0, **self._bucket(state)}
        try:
            names = {TOPIC.topic_id: TOPIC.name}
            seen = LandingWorld(objects, state.epoch, -1, names, {TOPIC.topic_id}, lost=self.lost)
            landed = shadow.land(offset, body, seen)
            numbers = {key: int(number or 0) for key, number in objects.items() if key.startswith(L1_DATA)}
            for t in landed.topics if isinstance(landed, Edit) else ():
                rows = (unpack(r, L1_ROW) for r in (t.added, t.removed))
                check_merged(numbers, *(dict(spans_of_files(TOPIC.name, TOPIC.revision, r)) for r in rows))
        except Wrong as e:
            return state.log, f"the journal {e}"
        dropped = {k: before.dropped.get(k, state.epoch) for k in shadow.l1.dropped}
        same = _MACHINE.encode(shadow.state), frozenset(shadow.l1.ever), tuple(sorted(dropped.items()))
        if same not in self._log_numbers:
            self._log_numbers[same] = len(self._logs)
            self._logs.append(_Log(shadow, dropped))
        return self._log_numbers[same], ""

    # -- the final state --------------------------------------------------------------------------------------------------

    def _left_over(self, state: State) -> str:
        """Return what is wrong if only two vacuums follow, each some epochs later; '' if nothing is."""
        at = state.log, state.there, state.deleted
        if at not in self._ended:
            self._ended[at] = self._left_over_anew(state)
        return self._ended[at]

    def _left_over_anew(self, state: State) -> str:
        now = state
        try:
            if state.deleted:
                now, _ = self._at_once(now, _Closer("closer"))
            for n in range(2):
                now, _ = self._at_once(now._replace(epoch=now.epoch + GRACE_EPOCHS + 1), Vacuumer(f"last-{n}"))
        except (BrokenError, L0gcError) as e:
            return f"a last vacuum: {e}"
        there = self._bucket(now).keys()
        log = self._logs[now.log]
        if left := there - log.shadow.l1.named:
            return f"{min(left)} is left over"
        if gone := log.shadow.l1.named - there:
            return f"{min(gone)} is gone"
        if len(log.state.dropped):
            return "the journal has dropped objects that nobody purges"
        return ""


class _Closer(Actor):
    """Closes the topic in the journal, as housekeeping does."""

    def act(self, cluster: Any, local: Local) -> Local:
        cluster.journal(0).close(TOPIC.revision, TOPIC.topic_id)
        return Local("")


def _label(call: Call, answer: Answer) -> str:
    """Describe a step."""
    what = call.method
    if what in ("get", "put", "delete"):
        keys = call.arguments if what == "get" else call.arguments[0] if what == "delete" else call.arguments[:1]
        what += f" {', '.join(map(_short, keys))}"
    elif what == "append":
        what += f" {_entry(call.arguments[2])}"
    return what if answer.done else f"{what}: not so"


def _short(key: str) -> str:
    return "/".join(key.split("/")[1:2] + key.split("/")[4:])[:52]


def _entry(payload: bytes) -> str:
    return {
        "o": "objects", "r": "a reconciler's commit", "m": "a merge", "e": "an expiry", "f": "the L1 fence", "p": "a purge",
        "c": "the topic's end", "g": "a record is given up",
    }.get(msgspec.msgpack.decode(payload)[0], "an entry")  # fmt: skip
