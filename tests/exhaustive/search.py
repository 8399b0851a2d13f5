"""Every interleaving of a few processes, breadth first: no state is left out, and the first violation is a shortest
one.

A state consists of the bucket's contents, every process's answers since its last `Local`, the delayed writes, and the
remaining faults and leaps of time. Everything gets a number when it first occurs, so a state is a few numbers, and
l0gc's code runs once for each process and history, however many states they are part of.

Two kinds of steps are taken at once if they are possible, and no other step is tried before them: a process's own
decision, and a read of a log entry that cannot be deleted. The steps of other processes neither change these steps nor
are changed by them, so every violation that another order can reach is reached in this order as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from unittest import mock

import l0gc.storage.replica
from l0gc.errors import AmbiguousWriteError, PreconditionFailedError, StoreError
from l0gc.storage.contention import WriterOrder
from l0gc.storage.log import APPEND_DEADLINE_S, TRUNCATE_MIN_AGE_MS
from l0gc.storage.objectstore import PutResult
from tests.exhaustive.actors import Reconciler
from tests.exhaustive.breadth import NO_LIMITS, Found, Limits, Numbers, search
from tests.exhaustive.process import Actor, Local, Seen
from tests.exhaustive.store import GETS, Answer, Bucket, Call, Failed, perform
from tests.exhaustive.truth import Truth

START_MS: Final = 1_700_000_000_000
_ENTRY: Final = re.compile(r"l0gc/journal/(\d{4})/log/(\d{20})")


@dataclass(frozen=True)
class Scope:
    """The scope of a search.

    Args:
        faults: how many store calls fail, over all processes. A create without a reply has landed, or lands at any
            later time, or never; or a proxy sends it twice, and the second try's refusal is the answer to the first
            one's success.
        leaps: how often the store's clock advances by the age at which a log entry may be truncated.
        journals: the partitions of each journal.
    """

    name: str
    actors: tuple[Actor, ...]
    faults: int
    leaps: int = 0
    journals: tuple[tuple[int, ...], ...] = ((0,),)


class State(NamedTuple):
    """Numbers: see `Search`. `flying` are delayed writes: a key and a body each."""

    bucket: int
    truths: tuple[int, ...]
    nodes: tuple[int, ...]
    flying: frozenset[int]
    faults: int
    leaps: int


class _Node(NamedTuple):
    """A process and its position: the `answers` since it was at `local`."""

    actor: int
    local: Local
    answers: tuple[Answer, ...]


class _Move(NamedTuple):
    """What one process can do, and the result: a `late` write is then delayed (-1: none).

    `at_once`: it may be taken before anything that others can do.
    """

    label: str
    node: int
    bucket: int
    late: int = -1
    faults: int = 0
    at_once: bool = False


class _NoOrder(WriterOrder):
    """Lets no writer wait for others, or read the log before its turn: the order of steps covers both effects."""

    def landed(self, writers: Sequence[str]) -> None:
        pass

    def lost(self) -> None:
        pass


class Search:
    """A search of one scope."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._buckets, self._nodes, self._writes = Numbers(), Numbers(), Numbers()
        self._truths: list[Truth] = [Truth.empty(j, partitions) for j, partitions in enumerate(scope.journals)]
        self._grown: dict[tuple[int, bytes], tuple[int, str]] = {}
        self._verdicts: dict[tuple[tuple[int, ...], int], str] = {}
        self._seen: dict[int, Seen] = {}
        self._performed: dict[tuple[int, int, int], tuple[int, Answer]] = {}
        self._calls = Numbers()
        self._moves: dict[tuple[int, int, bool, int, bool], list[_Move]] = {}
        self._settlement: dict[int, int] = {}

    def run(self, limits: Limits = NO_LIMITS) -> Found:
        """Search by `breadth.search`."""
        with (
            mock.patch.object(l0gc.storage.replica, "_SMALL_CHECKPOINT_ENTRIES", 1),  # a small scope truncates, too
            mock.patch.object(l0gc.storage.replica, "WriterOrder", _NoOrder),
        ):
            nodes = tuple(self._nodes.of(_Node(i, a.begin(), ())) for i, a in enumerate(self._scope.actors))
            truths = tuple(range(len(self._scope.journals)))
            first = State(self._buckets.of(()), truths, nodes, frozenset(), self._scope.faults, self._scope.leaps)
            found = search(
                self._scope.name,
                first,
                self._steps,
                self._wrong,
                self._is_content,
                limits=limits,
            )
        found.executions = len(self._seen)
        return found

    # -- steps ----------------------------------------------------------------------------------------------------------

    def _steps(self, state: State) -> Iterator[tuple[str, State, str]]:
        """Yield every step from a state: its label, the next state, and what is wrong with the step's write."""
        deletable = any(
            a.deletes and self._nodes.values[n].local.step for a, n in zip(self._scope.actors, state.nodes, strict=True)
        )
        moves = [self._moves_of(node, state, deletable) for node in state.nodes]
        first = next((i for i, m in enumerate(moves) if m and m[0].at_once), None)
        for i in range(len(moves)) if first is None else [first]:
            for move in moves[i]:
                yield self._step(state, i, move)
        if first is None:
            yield from self._world_steps(state)

    def _step(self, state: State, actor: int, move: _Move) -> tuple[str, State, str]:
        truths, wrong = self._grow(state, move.bucket)
        wrong = wrong or self._wrong_view(actor, move.node, truths)
        nodes = (*state.nodes[:actor], self._settled(move.node), *state.nodes[actor + 1 :])
        flying = state.flying if move.late < 0 else state.flying | {move.late}
        return move.label, State(move.bucket, truths, nodes, flying, state.faults - move.faults, state.leaps), wrong

    def _world_steps(self, state: State) -> Iterator[tuple[str, State, str]]:
        """Yield the steps without any process: a write lands late, or time passes."""
        for write in state.flying:
            key, body = self._writes.values[write]
            bucket, answer = self._perform(state, Call("put_if_absent", (key, body)))
            if isinstance(answer, PutResult):
                truths, wrong = self._grow(state, bucket)
                after = state._replace(bucket=bucket, truths=truths, flying=state.flying - {write})
                yield f"a late write of {_short(key)} lands", after, wrong
        if state.leaps:
            yield "15 minutes pass", state._replace(leaps=state.leaps - 1), ""

    def _moves_of(self, node: int, state: State, deletable: bool) -> list[_Move]:
        """Return what a process can do here, and what can happen to it. `deletable`: log entries may still be deleted."""
        key = (node, state.bucket, state.faults > 0, state.leaps, deletable)
        moves = self._moves.get(key)
        if moves is None:
            moves = self._moves[key] = list(self._moves_anew(node, state, deletable))
        return moves

    def _moves_anew(self, number: int, state: State, deletable: bool) -> Iterator[_Move]:
        node: _Node = self._nodes.values[number]
        actor = self._scope.actors[node.actor]
        if not node.local.step:
            return
        choices = actor.choices(node.local)
        for label, local in choices:
            following = self._nodes.of(_Node(node.actor, local, ()))
            yield _Move(f"{actor.name} {label}", following, state.bucket, at_once=True)
        if choices:
            return
        call = self._stands(number).call
        if call is None:  # a step without any call
            following = self._nodes.of(_Node(node.actor, self._stands(number).local, ()))
            yield _Move(f"{actor.name} has done {node.local.step}", following, state.bucket, at_once=True)
            return
        what = f"{actor.name} {call.method} {_short(call.key)}"
        bucket, answer = self._perform(state, call)
        fails = state.faults > 0 and self._can_fail(node, call)
        is_entry = call.method == "get" and _ENTRY.fullmatch(call.key) is not None
        stable = is_entry and not isinstance(answer, Failed)
        at_once = stable and not fails and not deletable and not self._scope.leaps
        yield _Move(what + _outcome(answer), self._follow(number, answer), bucket, at_once=at_once)
        if not fails:
            return
        if call.method in GETS:
            error = Failed(StoreError, "no answer", 0, int(APPEND_DEADLINE_S) + 1)
            yield _Move(f"{what}: no answer until the deadline", self._follow(number, error), state.bucket, faults=1)
            return
        lost = self._follow(number, Failed(AmbiguousWriteError, "the reply was lost", 0))
        yield _Move(f"{what}{_outcome(answer)}, reply lost", lost, bucket, faults=1)
        if isinstance(answer, PutResult):
            refused = self._follow(number, Failed(PreconditionFailedError, "it is there", 0))
            yield _Move(f"{what}, sent twice: PreconditionFailedError", refused, bucket, faults=1)
        if bucket == state.bucket and not deletable:  # the key is taken for good
            return
        if call.method == "put_if_absent":
            late = self._writes.of(call.arguments)
            yield _Move(f"{what}, no reply: on its way, or lost", lost, state.bucket, late, faults=1)
        else:
            yield _Move(f"{what}, lost", lost, state.bucket, faults=1)

    def _can_fail(self, node: _Node, call: Call) -> bool:
        """Return whether a call can fail: conditional writes in every way, reads only after a failed or refused write
        of the same step.
        """
        if call.method.startswith("put_if"):
            return True
        unsure = (AmbiguousWriteError, PreconditionFailedError)
        return call.method in GETS and any(isinstance(a, Failed) and a.error in unsure for a in node.answers)

    def _stands(self, number: int) -> Seen:
        seen = self._seen.get(number)
        if seen is None:
            node: _Node = self._nodes.values[number]
            seen = self._scope.actors[node.actor].run(node.local, node.answers, TRUNCATE_MIN_AGE_MS)
            self._seen[number] = seen
        return seen

    def _follow(self, number: int, answer: Answer) -> int:
        """Return the process with one more answer."""
        node: _Node = self._nodes.values[number]
        return self._nodes.of(node._replace(answers=(*node.answers, answer)))

    def _settled(self, number: int) -> int:
        """Return the process, with nothing but its `Local` if its step has ended."""
        settled = self._settlement.get(number)
        if settled is None:
            node: _Node = self._nodes.values[number]
            settled = number
            if node.answers and self._stands(number).call is None:
                settled = self._nodes.of(_Node(node.actor, self._stands(number).local, ()))
            self._settlement[number] = settled
        return settled

    def _perform(self, state: State, call: Call) -> tuple[int, Answer]:
        key = (state.bucket, state.leaps, self._calls.of(call))
        done = self._performed.get(key)
        if done is None:
            before: Bucket = self._buckets.values[state.bucket]
            date = START_MS + TRUNCATE_MIN_AGE_MS * (self._scope.leaps - state.leaps)
            after, answer = perform(before, date, call)
            done = self._performed[key] = (self._buckets.of(after), answer)
        return done

    # -- invariants -------------------------------------------------------------------------------------------------------

    def _grow(self, state: State, bucket: int) -> tuple[tuple[int, ...], str]:
        """Return the truths with what the step has written, and what is wrong with it."""
        if bucket == state.bucket:
            return state.truths, ""
        before: Bucket = self._buckets.values[state.bucket]
        after: Bucket = self._buckets.values[bucket]
        known = {key for key, _, _ in before}
        new = [(m, body) for key, body, _ in after if key not in known and (m := _ENTRY.fullmatch(key)) is not None]
        if not new:
            return state.truths, ""
        m, body = new[0]
        journal, offset = int(m[1]), int(m[2])
        at = state.truths[journal]
        end = len(self._truths[at])
        if offset < end:  # re-created after a truncation: nobody may take it for an entry; `_wrong_view` checks that
            return state.truths, ""
        if offset > end:
            return state.truths, f"an entry was written at {offset} of journal {journal}, whose log ends at {end}"
        grown = self._grown.get((at, body))
        if grown is None:
            truth = self._truths[at].then(body)
            self._truths.append(truth)
            grown = self._grown[at, body] = (len(self._truths) - 1, truth.wrong)
        number, wrong = grown
        return (*state.truths[:journal], number, *state.truths[journal + 1 :]), wrong

    def _wrong(self, state: State) -> str:
        """Return what does not hold in a state; '' if everything holds."""
        for number in state.nodes:
            wrong = self._wrong_node(state.truths, number)
            if wrong:
                return wrong
        return ""

    def _wrong_node(self, truths: tuple[int, ...], number: int) -> str:
        known = self._verdicts.get((truths, number))
        if known is not None:
            return known
        node: _Node = self._nodes.values[number]
        name, wrong = self._scope.actors[node.actor].name, ""
        if node.local.trouble:
            wrong = f"{name} ended with {node.local.trouble}"
        for reply in node.local.replies:
            truth = self._truths[truths[reply.journal]]
            landed = {u.name: u for u in truth.uploads}.get(reply.upload)
            if reply.offset < 0 and reply.key in truth.keys:
                wrong = f"{name} got the reply that {reply.key} did not land in journal {reply.journal}, and it did"
            elif reply.offset >= 0 and (
                landed is None or landed.offset != reply.offset or reply.bases not in ((), landed.bases)
            ):
                wrong = f"{name} got the reply that {reply.upload} is at {reply.offset} {reply.bases}, where it is not"
        self._verdicts[truths, number] = wrong
        return wrong

    def _wrong_view(self, actor: int, number: int, truths: tuple[int, ...]) -> str:
        """Return what is wrong with the states that a process holds: they must be the logs' own, at those offsets."""
        node: _Node = self._nodes.values[number]
        if not node.answers:
            return ""
        for journal, offset, held in self._stands(number).views:
            truth = self._truths[truths[journal]]
            if offset + 1 >= len(truth.states) or truth.states[offset + 1] != held:
                name = self._scope.actors[actor].name
                return f"{name} holds a state of journal {journal} at {offset} that the log does not have there"
        return ""

    def _is_content(self, state: State) -> bool:
        """Return whether every process has done its work, and a reconciler, if there is one, has left nothing
        unreconciled.
        """
        nodes = zip(self._scope.actors, (self._nodes.values[n] for n in state.nodes), strict=True)
        lifts = any(isinstance(a, Reconciler) for a in self._scope.actors)
        left = lifts and any(part.live for t in state.truths for _, part in self._truths[t].parts)
        return not left and all(a.is_content(n.local) for a, n in nodes)


def _short(key: str) -> str:
    return key.removeprefix("l0gc/journal/")


def _outcome(answer: Answer) -> str:
    return f": {answer.error.__name__}" if isinstance(answer, Failed) else ""
