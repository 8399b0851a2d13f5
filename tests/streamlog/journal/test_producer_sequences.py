"""Producers in any order: runs that begin, send, repeat, skip and arrive late, over years, in one journal.

The journal's rules and the controller's own state decide; the test plays log, clock and clients. In every case no batch
lands twice, the batches of a run land without a gap, and no run lands anything after a newer run has.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from l0gc.errors import (
    InputPositionMovedError,
    InvalidProducerEpochError,
    ProtocolError,
    UnknownProducerError,
)
from l0gc.storage.entry import StoredEntry
from l0gc.streamlog.controller.decisions import decide_init_producer
from l0gc.streamlog.controller.entries import Bootstrap, ControllerEntry, ControllerMachine, InitProducer, Tick
from l0gc.streamlog.controller.state import NAME_EXPIRY_MS, PRODUCER_EXPIRY_MS, RUN_LIMIT_MS
from l0gc.streamlog.journal import producers as rules
from l0gc.streamlog.journal.producers import InputSpan, LandedSequence, ProducerBatch, ProducerState

CONTROLLER = ControllerMachine()
DAYS = st.sampled_from([0, 3, 6, 8, 15])


@dataclass
class Run:
    """A client, with its producer id and epoch, and the batches that it has sent."""

    name: str
    producer_id: int
    epoch: int
    run: str
    sent: list[ProducerBatch] = field(default_factory=list)
    failed: bool = False


@dataclass(frozen=True)
class InLog:
    batch: ProducerBatch
    offset: int
    time_ms: int


class Producers(RuleBasedStateMachine):
    runs = Bundle("runs")

    @initialize()
    def found(self) -> None:
        self.controller = CONTROLLER.initial()
        self.known: dict[int, ProducerState] = {}
        self.log: list[InLog] = []
        self.now_ms = 0
        self.offset = 0
        self.ids = 0
        self.began: dict[tuple[int, int], int] = {}
        self._controller_entry(Bootstrap("c", 4))

    def _controller_entry(self, entry: ControllerEntry) -> None:
        offset = self.controller.epoch + 1
        CONTROLLER.apply(
            self.controller, StoredEntry(offset, self.now_ms, msgspec.msgpack.encode(entry), self.now_ms, 0)
        )

    @rule(days=DAYS, ticked=st.booleans(), others_write=st.booleans())
    def time_passes(self, days: int, ticked: bool, others_write: bool) -> None:
        """Advance the clock; entries of the log and of the controller then forget what has expired."""
        self.now_ms += days * 24 * 3_600_000 + 1
        if ticked:
            self._controller_entry(Tick())
        if others_write:
            rules.forget_unused(self.known, self.now_ms - PRODUCER_EXPIRY_MS)

    @rule(run=runs, days=DAYS)
    def a_run_sleeps_and_repeats_its_first_batch(self, run: Run, days: int) -> None:
        self.time_passes(days, ticked=True, others_write=True)
        self.a_run_repeats_a_batch(run, len(run.sent) - 1)

    @rule(target=runs, name=st.sampled_from(["a", "b"]))
    def a_run_begins(self, name: str) -> Run:
        entry = self._requested(name, None)
        assert entry is not None
        self._controller_entry(entry)
        return self._given(name)

    @rule(target=runs, run=runs, reply_lost=st.booleans())
    def a_run_bumps_its_epoch(self, run: Run, reply_lost: bool) -> object:
        """Bump the epoch; after a lost reply, a second request with the old epoch returns the first bump."""
        try:
            entry = self._requested(run.name, (run.producer_id, run.epoch, run.run))
        except InvalidProducerEpochError:
            p = self.controller.producers.get(run.name)
            newest = (p.producer_id, p.epoch) if p is not None else None
            assert newest != (run.producer_id, run.epoch), "the newest run is never fenced"
            return multiple()
        if entry is None:  # an earlier request has bumped it already
            return multiple()
        self._controller_entry(entry)
        if reply_lost:
            assert self._requested(run.name, (run.producer_id, run.epoch, run.run)) is None
        return self._given(run.name)

    def _requested(self, name: str, instance: tuple[int, int, str] | None) -> InitProducer | None:
        self.ids += 1
        return decide_init_producer(self.controller, name, instance, new_id=self.ids, new_run=f"run-{self.ids}")

    def _given(self, name: str) -> Run:
        p = self.controller.producers[name]
        assert (p.producer_id, p.epoch) not in self.began, "two runs have one epoch"
        assert p.epoch < self.controller.epoch
        self.began[p.producer_id, p.epoch] = self.now_ms
        return Run(name, p.producer_id, p.epoch, p.run)

    def _offer(self, b: ProducerBatch) -> LandedSequence:
        """Offer a batch to the journal, which lands it, answers it or refuses it."""
        if rules.needs_controller_check(self.known, b) and not self.controller.may_begin(
            b.producer_id, b.epoch, b.run, self.now_ms
        ):
            raise UnknownProducerError("the controller does not know it")
        before = rules.admit(self.known, b)
        if before is not None:
            return before
        rules.record(self.known, b, self.offset, self.now_ms)
        self.log.append(InLog(b, self.offset, self.now_ms))
        self.offset += 1
        rules.forget_unused(self.known, self.now_ms - PRODUCER_EXPIRY_MS)
        return LandedSequence(b.sequence, self.offset - 1)

    @rule(run=runs, skip=st.sampled_from([0, 0, 0, 0, 1]), source=st.sampled_from("xy"))
    def a_run_sends_its_next_batch(self, run: Run, skip: int, source: str) -> None:
        """Continue the input at the journal's position; after a fatal error, send nothing more."""
        if run.failed:
            return
        at = rules.landed_of(self.known, run.producer_id, source)
        b = ProducerBatch(run.producer_id, run.epoch, run.run, len(run.sent) + skip, [InputSpan(source, at, at + 1)])
        try:
            landed = self._offer(b)
        except ProtocolError:
            run.failed = True
            return
        assert skip == 0, "a batch after a gap was admitted"
        assert self.log[-1] == InLog(b, landed.log_offset, self.now_ms)
        run.sent.append(b)

    @rule(run=runs, back=st.sampled_from([0, 0, 1, 4, 5]))
    def a_run_repeats_a_batch(self, run: Run, back: int) -> None:
        """Repeat a batch unchanged: the journal answers with its place or refuses it, and it never lands again."""
        if not 0 <= back < len(run.sent):
            return
        b = run.sent[-1 - back]
        size = len(self.log)
        try:
            landed = self._offer(b)
        except (InvalidProducerEpochError, UnknownProducerError):
            return
        assert len(self.log) == size, "a batch landed twice"
        assert [e.offset for e in self.log if e.batch == b] == [landed.log_offset]

    @rule(run=runs, start=st.integers(0, 3))
    def a_run_sends_what_is_not_next_in_its_input(self, run: Run, start: int) -> None:
        at = rules.landed_of(self.known, run.producer_id, "x")
        if start == at:
            return
        b = ProducerBatch(run.producer_id, run.epoch, run.run, len(run.sent), [InputSpan("x", start, start + 1)])
        size, landed = len(self.log), at
        try:
            self._offer(b)
        except InputPositionMovedError as e:
            landed = e.landed
        except ProtocolError:
            return
        assert len(self.log) == size, "an input landed twice, or with a hole"
        assert landed == at

    @invariant()
    def runs_land_whole_in_order_and_none_after_a_newer_one(self) -> None:
        if not hasattr(self, "log"):
            return
        epochs: dict[int, int] = {}
        sequences: dict[tuple[int, int], int] = {}
        for e in self.log:
            run = (e.batch.producer_id, e.batch.epoch)
            assert e.batch.epoch >= epochs.get(e.batch.producer_id, 0)
            assert e.batch.sequence == sequences.get(run, -1) + 1
            epochs[e.batch.producer_id], sequences[run] = e.batch.epoch, e.batch.sequence

    @invariant()
    def an_input_lands_without_hole_or_repetition_while_it_is_remembered(self) -> None:
        if not hasattr(self, "log"):
            return
        reached: dict[tuple[int, str], tuple[int, int]] = {}
        for e in self.log:
            for span in e.batch.inputs:
                at, since_ms = reached.get((e.batch.producer_id, span.input_id), (0, 0))
                forgotten = e.time_ms - since_ms > PRODUCER_EXPIRY_MS
                assert span.start == at or (forgotten and span.start == 0)
                reached[e.batch.producer_id, span.input_id] = (span.end, e.time_ms)

    @invariant()
    def what_a_run_landed_is_known_as_long_as_its_name_and_a_run_more(self) -> None:
        if not hasattr(self, "log"):
            return
        ids = {p.producer_id for p in self.controller.producers.values()}
        for e in self.log:
            began_ms = self.began[e.batch.producer_id, e.batch.epoch]
            if self.now_ms - began_ms < NAME_EXPIRY_MS:
                assert e.batch.producer_id in ids
            if self.now_ms - e.time_ms < NAME_EXPIRY_MS + RUN_LIMIT_MS:
                assert e.batch.producer_id in self.known


TestProducers = Producers.TestCase
TestProducers.settings = settings(max_examples=120, stateful_step_count=40)
