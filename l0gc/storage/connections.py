"""Close idle connections before a NAT or a firewall forgets them, and probe connections that wait for an answer.

A device that forgets a connection drops its packets without an error: the next request would wait until it times out,
and so would one request for each connection of the pool. botocore only closes a connection that the server closed. With
this module, a connection that was idle for too long counts as closed, too (`--idle-timeout`). If one dies sooner, all
connections that were idle at that time count as closed, and its request is sent again on a new one. obstore has a
setting for idle connections, and sends probes by default.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

_KEEP_ALIVE: Final = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (
            ("TCP_KEEPIDLE", 15),
            ("TCP_KEEPINTVL", 5),
            ("TCP_KEEPCNT", 3),
            ("TCP_USER_TIMEOUT", 10_000),
        )
        if hasattr(socket, name)  # not all systems have these options
    ),
]
"""A connection is probed once nothing has arrived for 15 s. It is closed 15 s later, or 10 s after an unconfirmed packet."""


class Idle:
    """Decides which idle connections may be used: those that got an answer within the last `seconds`, and since the
    last connection died.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._died = seconds, float("-inf")

    def died(self) -> None:
        """Record that a connection that had been used before got no answer."""
        self._died = time.monotonic()

    def allows(self, answered: float) -> bool:
        return answered > max(self._died, time.monotonic() - self._seconds)


def keep_connections_fresh(client: Any, idle: Idle) -> None:
    """Make a new botocore client keep connections alive, and reuse none that was idle for too long."""
    from botocore.awsrequest import AWSHTTPConnectionPool, AWSHTTPSConnectionPool

    classes = client._endpoint.http_session._pool_classes_by_scheme  # botocore has no setting for this
    for scheme, pool in (("http", AWSHTTPConnectionPool), ("https", AWSHTTPSConnectionPool)):
        classes[scheme] = type(pool.__name__, (pool,), {"ConnectionCls": _fresh(pool.ConnectionCls, idle)})


def _fresh(kind: Any, idle: Idle) -> type[Any]:
    class Connection(kind):  # type: ignore[misc]
        """A connection that urllib3 regards as dropped by the server, and replaces, if it may not be reused."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options | {"socket_options": _KEEP_ALIVE})
            self._answered, self._is_used = time.monotonic(), False

        def request(self, *args: Any, **options: Any) -> Any:
            with self._noting_death():
                return super().request(*args, **options)

        def getresponse(self, *args: Any, **options: Any) -> Any:
            with self._noting_death():
                response = super().getresponse(*args, **options)
            self._answered, self._is_used = time.monotonic(), True
            return response

        @contextmanager
        def _noting_death(self) -> Iterator[None]:
            try:
                yield
            except OSError:
                if self._is_used:
                    idle.died()
                raise

        @property
        def is_connected(self) -> bool:
            return bool(super().is_connected) and idle.allows(self._answered)

    return Connection
