"""Every interleaving of pins with what must not pass them: none breaks a promise, unless a rule is taken out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import pytest

from l0gc.storage.log import Folder
from tests.exhaustive.__main__ import summary
from tests.exhaustive.pin_search import PIN_WHOLE, Keeper, Lifter, Pin, PinScope, PinSearch, Renewer
from tests.simulation.mutants import of_pins
from tests.simulation.mutants.tools import everywhere, method
from tests.support.tries import sampled

QUICK = ["pinned-and-vacuumed", "renewed-and-computed"]


def _nothing_wrong(scope: PinScope) -> None:
    found = PinSearch(scope).run()
    assert not found.wrong, summary(found)
    assert found.complete
    assert found.states > 500


@pytest.mark.parametrize("name", QUICK)
def test_no_interleaving_breaks_a_promise(name: str) -> None:
    _nothing_wrong(PIN_WHOLE[name])


@pytest.mark.thorough
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", sorted({*PIN_WHOLE} - {*QUICK}))
def test_no_interleaving_breaks_a_promise_however_many_there_are(name: str) -> None:
    _nothing_wrong(PIN_WHOLE[name])


# -- mutants of each rule -------------------------------------------------------------------------------------------------

Mutant = Callable[[], AbstractContextManager[Any]]
EARLY = replace(
    PIN_WHOLE["pinned-and-truncated"], actors=(Pin("p"), Keeper("keeper", asks_first=True), Lifter("reconciler"))
)


OF_TOPIC = PIN_WHOLE["topic-pinned-and-computed"]
OF_ANOTHER, TWICE = (
    replace(OF_TOPIC, actors=(pin, *OF_TOPIC.actors[1:]))
    for pin in (Pin("p", topic=1, held_of=2), Pin("p", topic=1, twice=True))
)

RENEWED = PIN_WHOLE["renewed-and-computed"]
BROUGHT_BACK = replace(RENEWED, actors=(RENEWED.actors[0], Renewer("p", brings_back=True), *RENEWED.actors[2:]))


def not_raised() -> AbstractContextManager[Any]:
    """Let a pin take effect while a computation that has not seen it may still publish."""
    return everywhere("l0gc.watermark.publication", "require_seen", lambda cluster, cluster_id, epoch: None)


def truncated_at_will() -> AbstractContextManager[Any]:
    def needed_from(self: Folder, as_of: int | None) -> int:
        return max(self.checkpoints, default=-1)

    return method(Folder, "needed_from", needed_from)


CASES: list[tuple[str, Mutant, PinScope, str]] = [
    ("pin-unseen", of_pins.pin_unseen.off, PIN_WHOLE["pinned-and-computed"], "M = "),
    ("pin-not-raised", not_raised, PIN_WHOLE["pinned-and-computed"], "M = "),
    ("pin-ignored", of_pins.pin_ignored.off, PIN_WHOLE["pinned-and-computed"], "M = "),
    ("pinned-purged", of_pins.pinned_purged.off, PIN_WHOLE["pinned-and-vacuumed"], "was purged"),
    ("pin-of-another-topic", of_pins.pin_of_another_topic.off, PIN_WHOLE["topic-pinned-and-vacuumed"], "was purged"),
    ("pin-without-windows", of_pins.pin_without_windows.off, PIN_WHOLE["pinned-and-vacuumed"], "was purged"),
    ("pinned-truncated", truncated_at_will, PIN_WHOLE["pinned-and-truncated"], "no replay"),
    ("pins-read-too-early", nullcontext, EARLY, "no replay"),
    ("pin-holds-for-another-topic", nullcontext, OF_ANOTHER, "which the pin of epoch"),
    ("pin-reads-twice", nullcontext, TWICE, "which the pin of epoch"),
    ("pin-brought-back", nullcontext, BROUGHT_BACK, "which the pin of epoch"),
]
QUICK_CASES = {"pinned-purged", "pin-of-another-topic", "pins-read-too-early", "pin-brought-back"}
"""In `make test` these show that each kind of promise is watched."""


@pytest.mark.parametrize(
    ("mutant", "scope", "wrong"),
    sampled([c[1:] for c in CASES], [c[1:] for c in CASES if c[0] in QUICK_CASES]),
    ids=[c[0] for c in CASES],
)
def test_a_rule_that_is_taken_out_breaks_a_promise(mutant: Mutant, scope: PinScope, wrong: str) -> None:
    with mutant():
        found = PinSearch(scope).run()
    assert wrong in found.wrong, summary(found)
