"""Decides the fate of S3 requests: everything passes, the client is killed, the server hangs, or requests fail.

A behaviour is called once for each request, by one request at a time, and decides by its number alone, so that the
outcome of one request does not depend on the speed of the others.
"""

from __future__ import annotations

import enum
import os
import random
import re
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass(frozen=True, slots=True)
class Request:
    """An S3 request; `number` counts from 1. `key` is the prefix of a listing, and empty for the bucket itself.

    `port` is the client's.
    """

    number: int
    operation: str
    key: str
    port: int

    def __str__(self) -> str:
        return f"{self.operation} {self.key}".rstrip()


class Outcome(enum.Enum):
    """The fate of a request. An outcome whose name ends in `AFTER` reaches the server, which does what the request
    asks.

    A repeated request reaches the server twice, and the client sees only the second answer, as with nginx and Envoy: if
    a conditional write landed, the answer is that the key exists.
    """

    PASS = "passed"
    SLOW = "slow"
    CUT = "cut before the server"
    CUT_AFTER = "cut after the server"
    FAIL = "500 before the server"
    FAIL_AFTER = "500 after the server"
    SLOW_DOWN = "503 before the server"
    TRUNCATED = "body truncated"
    ALTERED = "one bit of the request's body altered"
    REPEATED = "sent twice"
    DENY = "403 before the server"
    DENY_AFTER = "403 after the server"
    HANG = "never answered, before the server"
    HANG_AFTER = "never answered, after the server"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer with this status and code, to a request that does not reach the server."""

    status: int
    code: str


STATUS: Final = {
    Outcome.FAIL: 500,
    Outcome.FAIL_AFTER: 500,
    Outcome.SLOW_DOWN: 503,
    Outcome.DENY: 403,
    Outcome.DENY_AFTER: 403,
}
REACHES_THE_SERVER: Final = {
    Outcome.PASS,
    Outcome.SLOW,
    Outcome.CUT_AFTER,
    Outcome.FAIL_AFTER,
    Outcome.TRUNCATED,
    Outcome.ALTERED,
    Outcome.REPEATED,
    Outcome.DENY_AFTER,
    Outcome.HANG_AFTER,
}
_JOURNAL_LOG: Final = re.compile(r"l0gc/journal/\d+/log/")
LETS_THE_ANSWER_THROUGH: Final = {Outcome.PASS, Outcome.SLOW, Outcome.TRUNCATED, Outcome.ALTERED, Outcome.REPEATED}


def request_of(number: int, method: str, target: str, headers: dict[str, str], port: int) -> Request:
    """Return the request that a request line and headers (their names in lower case) describe."""
    url = urlsplit(target)
    query = parse_qs(url.query, keep_blank_values=True)
    _, _, key = unquote(url.path).lstrip("/").partition("/")
    if method == "GET" and "list-type" in query:
        return Request(number, "ListObjectsV2", query.get("prefix", [""])[0], port)
    if method == "POST" and "delete" in query:
        return Request(number, "DeleteObjects", key, port)
    operation = f"{method.capitalize()}{'Object' if key else 'Bucket'}"
    conditions = [h for h in ("if-none-match", "if-match") if h in headers]
    return Request(number, " ".join([operation, *conditions]), key, port)


class Behaviour(Protocol):
    """Decides the outcomes; called by one request at a time."""

    def decide(self, request: Request) -> Outcome | Refusal:
        """Return the outcome of the request, which has not reached the server yet."""
        ...

    def answered(self, request: Request) -> None:
        """Called once the server has answered, if the client will not see the answer."""
        ...


class Passing:
    """Lets every request pass."""

    def decide(self, request: Request) -> Outcome | Refusal:
        return Outcome.PASS

    def answered(self, request: Request) -> None:
        pass


class KillAt:
    """Kills the client's process at its n-th request: before the server sees it, or after it has answered.

    `pid` is called at the kill. `fired` is the request at which the process died, None if it sent fewer.
    """

    def __init__(self, n: int, *, after: bool, pid: Callable[[], int]) -> None:
        self._n, self._after, self._pid = n, after, pid
        self.fired: Request | None = None

    def decide(self, request: Request) -> Outcome:
        if self.fired is not None:
            return Outcome.CUT  # sent before the process had ended
        if request.number != self._n:
            return Outcome.PASS
        if self._after:
            return Outcome.CUT_AFTER
        self._kill(request)
        return Outcome.CUT

    def answered(self, request: Request) -> None:
        if request.number == self._n:
            self._kill(request)

    def _kill(self, request: Request) -> None:
        self.fired = request
        os.kill(self._pid(), signal.SIGKILL)


class HangAt:
    """Leaves the n-th request, and all after it, without an answer. With `after`, the server does what the n-th asks.

    `hung` is set once the client waits only for an answer that does not come.
    """

    def __init__(self, n: int, *, after: bool) -> None:
        self._n, self._after = n, after
        self.fired: Request | None = None
        self.hung = threading.Event()

    def decide(self, request: Request) -> Outcome:
        if request.number < self._n:
            return Outcome.PASS
        self.fired = self.fired or request
        if self._after and request.number == self._n:
            return Outcome.HANG_AFTER
        self.hung.set()
        return Outcome.HANG

    def answered(self, request: Request) -> None:
        self.hung.set()


class HangingFor:
    """Leaves requests without an answer if their operation and key begin with these strings."""

    def __init__(self, operation: str, key: str = "") -> None:
        self._operation, self._key = operation, key

    def decide(self, request: Request) -> Outcome:
        hangs = request.operation.startswith(self._operation) and request.key.startswith(self._key)
        return Outcome.HANG if hangs else Outcome.PASS

    def answered(self, request: Request) -> None:
        pass


class DieAt:
    """Plays dead from the n-th request on, for a client that cannot be killed because it is the test's own process.

    The refusal is one that a client does not retry. With `after`, the server still does what the n-th request asks.
    """

    def __init__(self, n: int, *, after: bool) -> None:
        self._n, self._after = n, after
        self.fired: Request | None = None

    def decide(self, request: Request) -> Outcome:
        if request.number < self._n:
            return Outcome.PASS
        if self.fired is not None:
            return Outcome.DENY
        self.fired = request
        return Outcome.DENY_AFTER if self._after else Outcome.DENY

    def answered(self, request: Request) -> None:
        pass


class MeetAt:
    """Calls `act` before the n-th request, and lets every request pass.

    Requests of `act` must not use this proxy, which decides one request at a time.
    """

    def __init__(self, n: int, act: Callable[[], None]) -> None:
        self._n, self._act = n, act
        self.fired: Request | None = None

    def decide(self, request: Request) -> Outcome:
        if request.number == self._n:
            self.fired = request
            self._act()
        return Outcome.PASS

    def answered(self, request: Request) -> None:
        pass


class HoldAppend:
    """Holds the reply to the n-th append to a journal's log, which has landed, and finally cuts the connection.

    The client does not learn that its append landed. Until `go_on`, no other append reaches the server and no other
    request passes, since the proxy decides one request at a time.
    """

    WAIT_S: Final = 300.0

    def __init__(self, n: int) -> None:
        self._left = n
        self._go_on = threading.Event()
        self.landed = threading.Event()
        self.held: Request | None = None

    def decide(self, request: Request) -> Outcome:
        if request.operation != "PutObject if-none-match" or not _JOURNAL_LOG.search(request.key):
            return Outcome.PASS
        if self.held is not None:  # the server may not have answered yet
            return Outcome.PASS if self._go_on.is_set() else Outcome.CUT
        self._left -= 1
        if self._left:
            return Outcome.PASS
        self.held = request
        return Outcome.CUT_AFTER

    def answered(self, request: Request) -> None:
        self.landed.set()
        self._go_on.wait(self.WAIT_S)

    def go_on(self) -> None:
        """Let all requests continue."""
        self._go_on.set()


class Faults:
    """Lets a share `rate` of the requests fail, each in a way that follows from the seed and the request's number.

    A client that retries survives these. So there are outages, too: in a share `outages` of the stretches of
    `OUTAGE_REQUESTS` requests, every request fails.
    """

    OUTAGE_REQUESTS: Final = 20

    KINDS: Final = (
        Outcome.CUT,
        Outcome.CUT_AFTER,
        Outcome.FAIL,
        Outcome.FAIL_AFTER,
        Outcome.SLOW_DOWN,
        Outcome.SLOW,
        Outcome.TRUNCATED,
        Outcome.REPEATED,
    )

    def __init__(self, seed: int, rate: float, outages: float = 0.0) -> None:
        self._seed, self._rate, self._outages = seed, rate, outages

    def decide(self, request: Request) -> Outcome:
        stretch = random.Random(f"{self._seed}:stretch:{request.number // self.OUTAGE_REQUESTS}")
        if stretch.random() < self._outages:
            return stretch.choice((Outcome.CUT, Outcome.FAIL, Outcome.SLOW_DOWN))
        chance = random.Random(f"{self._seed}:{request.number}")
        return chance.choice(self.KINDS) if chance.random() < self._rate else Outcome.PASS

    def answered(self, request: Request) -> None:
        pass
