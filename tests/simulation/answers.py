"""Wrong or missing answers that last longer than the storage layer's retries: in some seeds, and for one key at a time.

- One key is throttled or times out, call after call, while all others are served. That is not a refusal (hazard 42): no
  process gives up what the key holds, or advises that.
- An answer is not S3's (hazard 41): the error that the storage layer raises for it is raised here. A deletion with this
  answer may have landed.
- A read returns something else, once for a key (hazard 34): nothing, half of the object, zeros, or another object of its
  folder. No process takes that for the object.
- A reply's date is up to a day behind, or minutes ahead: see `World.date_ahead_ms`.

All of it is drawn independently of the rest of the seed, so that the other seeds do not change.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Final

from l0gc.errors import AmbiguousWriteError, StoreError, StoreTimeoutError, ThrottledError

if TYPE_CHECKING:
    from tests.simulation.world import Thread, World
    from tests.support.memory_store import Call

THROTTLED: Final = "keys throttled for longer than the retries"
NOT_S3: Final = "answers that were not S3's"
MISREAD: Final = "objects that were read badly once"

_THROTTLES: Final = 0.003
_CALLS: Final = (2, 10, 40)
"""How many calls for a key are not answered; the storage layer has retried each of them for long."""
_NOT_S3: Final = 0.006
_MISREADS: Final = 0.01
_MISREADS_OF_L0: Final = 0.1
"""The probability that a read of an L0 object returns something else, in seeds that lose L0 objects."""


class Answers:
    """The answers of a seed's store.

    Attributes:
        misread: the keys of objects for which it returned something else.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = random.Random(f"answers of seed {world.seed}")
        self._left: Counter[str] = Counter()
        self.misread: set[str] = set()

    @property
    def misreads(self) -> int:
        """How many wrong reads the running thread has got."""
        return 0 if self._world.thread is None else self._world.thread.misreads

    def strike(self, thread: Thread, call: Call) -> None:
        """Raise what the storage layer would raise for this call after its retries."""
        world, weather = self._world, self._world.weather
        if not world.faults.any:
            return
        if weather.throttles and call.when == "before":
            if self._chance.random() < _THROTTLES:
                self._left[call.key] = self._chance.choice(_CALLS)
                world.happened[THROTTLED] += 1
            if self._left[call.key] > 0:
                self._left[call.key] -= 1
                late = self._chance.random() < 0.5
                world.log(thread, call, "not in time" if late else "throttled on and on")
                if not late:
                    raise ThrottledError(f"{call.key}: slow down")
                unsure = call.kind.startswith("put_if")
                raise (AmbiguousWriteError if unsure else StoreTimeoutError)(f"{call.key}: no answer in time")
        if weather.mistakes and not call.kind.startswith("put") and self._chance.random() < _NOT_S3:
            world.log(thread, call, NOT_S3)
            raise StoreError(f"{call.key}: the store's answer is not S3's: it begins with b''")

    def read(self, key: str, body: bytes) -> bytes:
        """Return what the store answers for this object, or for a range of it."""
        world = self._world
        likely = _MISREADS if world.weather.mistakes else 0.0
        if world.losses is not None and key.startswith("level_zero/"):
            likely = _MISREADS_OF_L0
        thread = world.thread
        if not likely or thread is None or not world.faults.any or key in self.misread:
            return body
        if self._chance.random() >= likely:
            return body
        self.misread.add(key)
        thread.misreads += 1
        folder = key.rsplit("/", 1)[0]
        others = sorted(k for k in world.store.objects if k != key and k.startswith(folder))
        another = world.store.objects[self._chance.choice(others)].body if others else b""
        wrong = self._chance.choice([b"", body[: len(body) // 2], bytes(len(body)), another])
        world.happened[MISREAD] += 1
        world.note(f"{key} is read badly: {len(wrong)} bytes of {len(body)}")
        return wrong
