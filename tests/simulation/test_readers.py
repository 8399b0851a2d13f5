"""The checks that readers make in simulated runs: see README.md in this folder."""

from __future__ import annotations

import random

from l0gc.errors import ThrottledError
from l0gc.keys import JOURNALS
from tests.simulation.actors import TOPICS, new_lines, upload
from tests.simulation.holds import Holds
from tests.simulation.readers import reader
from tests.simulation.run import found, world_of
from tests.simulation.weather import Faults, Weather
from tests.support.memory_store import Call


def test_a_log_that_is_not_answered_for_is_not_a_loss() -> None:
    """Seed 810080 with --set-back: a reader continues past an object that is not served, and concludes nothing from it."""
    chance, refused = random.Random(1), list[Call]()

    def throttled(call: Call) -> None:
        if call.key.startswith(JOURNALS) and call.kind == "get":
            refused.append(call)
            raise ThrottledError(f"{call.key}: slow down")

    with world_of(1, chance, Weather.draw(chance), Holds(1)) as world:
        found(world)
        upload(world, world.cluster(), TOPICS[0], new_lines(world, "some"))
        world.faults, world.refuse = Faults.none(), throttled
        world.spawn("reader", reader(world, 1))
        world.run(1000)
    assert refused
