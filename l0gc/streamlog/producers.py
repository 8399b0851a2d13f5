"""Describe a producer: its newest run at the controller, and how each journal would treat that run now.

The description comes from the controller's log and the journals' logs. It bumps no epoch, since that would fence the very
run that it describes. `begin_run` bumps an epoch, and `run_ahead` does so only if the controller's log was set back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from l0gc.errors import CorruptObjectError
from l0gc.formatting import Outcome
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import NAME_EXPIRY_MS, Producer
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.producers import ProducerState, is_ahead

_RENEW_MS: Final = 24 * 3_600_000
"""The age at which a run is renewed; it may begin at a new journal for one week, and its name is kept for two."""


@dataclass(frozen=True, slots=True)
class InputView:
    """The number of an input's records for this journal that have landed; no log records how many there will be."""

    input: str
    landed: int
    last_landed_ms: int


@dataclass(frozen=True, slots=True)
class JournalView:
    """A journal's record of the producer. `open` is whether it accepts the newest run's next object, and `meaning` is the
    reason.
    """

    journal: int
    epoch: int
    next_sequence: int
    last_landed_ms: int
    inputs: list[InputView]
    open: bool
    meaning: str


@dataclass(slots=True)
class ProducerView(Outcome):
    """A producer.

    Attributes:
        name: The producer.
        producer_id: Its id, a random number. A name that was forgotten gets a new id.
        epoch: The producer epoch of its newest run.
        last_epoch: The epoch before the bump; -1 if a new run bumped it, as in an `upload`.
        began_ms: When the newest run began.
        last_used_ms: When its last object landed in a journal that a topic uses, or when its newest run began.
        expires_ms: When the controller forgets the name if no other run begins: 14 days after `began_ms`.
        may_begin: Whether the newest run may begin in a journal without a record of the producer. It may do so for 7 days;
            another upload begins a new run.
        unknown_journals: How many of the journals that topics use have no record of the producer: it has landed nothing
            there, or nothing within 21 days.
        journals: The journals that have a record of it, each with `journal`, `epoch` and `next_sequence` (of the run that
            landed last), `last_landed_ms`, `inputs` (newest first, each with `input`, `landed` records and
            `last_landed_ms`), `open` (whether it accepts the newest run's next object) and `meaning`.
        errors: The journals that cannot be read.
    """

    name: str
    producer_id: int
    epoch: int
    last_epoch: int
    began_ms: int
    last_used_ms: int
    expires_ms: int
    may_begin: bool
    unknown_journals: int
    journals: list[JournalView]
    errors: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class KnownProducer:
    """The controller's record of a producer; its newest run began at `began_ms`, by the store's clock."""

    name: str
    producer_id: int
    epoch: int
    began_ms: int


@dataclass(frozen=True, slots=True)
class ProducerList(Outcome):
    """The producers, by name.

    Attributes:
        producers: Every producer in the controller's state, by name, each with `name`, `producer_id`, `epoch` and
            `began_ms`, when its newest run began.
    """

    producers: list[KnownProducer]


def list_producers(cluster: ClusterHandles) -> ProducerList:
    """Return every producer that the controller's log records."""
    producers = sorted(cluster.controller.snapshot().producers.items())
    return ProducerList([KnownProducer(name, p.producer_id, p.epoch, p.time_ms) for name, p in producers])


def describe_producer(cluster: ClusterHandles, name: str) -> ProducerView:
    """Describe the producer according to the current logs; `errors` names the logs that cannot be read.

    Raises:
        NotFoundError: no producer has that name, or it was forgotten.
    """
    state = cluster.controller.snapshot()
    run = state.producer(name)
    errors: list[str] = []
    unknown: list[int] = []

    def look(journal: int) -> JournalView | None:
        try:
            s = cluster.journal(journal).catch_up(whole=False).producers.get(run.producer_id)
        except CorruptObjectError as e:
            errors.append(str(e))
            return None
        if s is None:
            unknown.append(journal)
            return None
        inputs = [InputView(i, progress.landed, progress.time_ms) for i, progress in s.inputs.items()]
        takes, meaning = _verdict(s, run)
        return JournalView(journal, s.epoch, s.next_sequence, s.time_ms, inputs[::-1], takes, meaning)

    journals = [v for v in cluster.parallel.map(look, state.journals_in_use()) if v is not None]
    return ProducerView(
        name,
        run.producer_id,
        run.epoch,
        run.last_epoch,
        run.time_ms,
        max([run.time_ms, *(v.last_landed_ms for v in journals)]),
        run.time_ms + NAME_EXPIRY_MS,
        cluster.controller.producer_is_current(run.producer_id, run.epoch, run.run),
        len(unknown),
        journals,
        sorted(errors),
    )


def begin_run(cluster: ClusterHandles, name: str, journals: Sequence[JournalHandle] = ()) -> Producer:
    """Return a new run, which fences all earlier ones, including those that only these journals have recorded (see
    `run_ahead`).
    """
    run = cluster.controller.init_producer(name)
    cluster.parallel.map(JournalHandle.catch_up, journals)
    return run_ahead(cluster, name, run, journals)


def is_due(cluster: ClusterHandles, run: Producer) -> bool:
    """Return whether a continuing run should be renewed, as of the last look at the controller's log."""
    as_of_ms = cluster.controller.replica.as_of_ms
    return as_of_ms is not None and as_of_ms - run.time_ms > _RENEW_MS


def run_ahead(cluster: ClusterHandles, name: str, run: Producer, journals: Sequence[JournalHandle]) -> Producer:
    """Return the run, or a new one if these journals, as of their last replay, have seen a later run than the controller.

    The controller's log records each run before any journal does. So a journal that is ahead of it shows that the log was
    restored from an older copy (hazard 10), which has forgotten the later runs. If another instance took over, its run is
    in the controller's log. Then this run is returned as it is, and the journals refuse it.

    Raises:
        EpochRegressionError: the log is too short to have issued an epoch that a journal has recorded; nothing was bumped.
    """
    states = [j.head.producers.get(run.producer_id) for j in journals]
    ahead = [k.epoch for k in states if k is not None and is_ahead(k, run.epoch, run.run)]
    if not ahead or cluster.controller.snapshot().producers.get(name) != run:
        return run
    return cluster.controller.init_producer(name, above=max(ahead))


def _verdict(state: ProducerState, run: Producer) -> tuple[bool, str]:
    """Return whether the journal accepts the newest run's next object, and the reason."""
    if state.epoch < run.epoch:
        return True, f"open: the newest run begins at sequence 0, and fences epoch {state.epoch}"
    if state.epoch > run.epoch:
        return False, f"refuses epoch {run.epoch}, which is older; another upload bumps it"
    if state.run != run.run:
        return False, f"refuses the newest run: another one had epoch {run.epoch}, too; another upload bumps it"
    return True, f"open: the newest run continues at sequence {state.next_sequence}"
