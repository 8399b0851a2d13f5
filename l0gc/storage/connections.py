"""Close idle connections before a NAT or a firewall forgets them, and probe those that wait for an answer.

A device that forgets a connection drops its packets without an error: the next request would wait until it times out, and
so would one request for each connection of the pool. botocore only closes a connection that the server closed. Here a
connection that was idle for too long counts as closed, too. obstore has a setting for this, and probes without one.
"""

from __future__ import annotations

import socket
import time
from typing import Any, Final

IDLE_SECONDS: Final = 45.0
"""After how long an idle connection is closed: common NATs forget one after a minute or later."""
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
        if hasattr(socket, name)  # not on every system
    ),
]
"""A connection is probed once nothing has arrived for 15 s. It is closed 15 s later, or 10 s after an unconfirmed packet."""


def keep_connections_fresh(client: Any) -> None:
    """Make a new botocore client keep connections alive, and close those that were idle for too long."""
    from botocore.awsrequest import AWSHTTPConnectionPool, AWSHTTPSConnectionPool

    classes = client._endpoint.http_session._pool_classes_by_scheme  # botocore has no setting for this
    for scheme, pool in (("http", AWSHTTPConnectionPool), ("https", AWSHTTPSConnectionPool)):
        classes[scheme] = type(pool.__name__, (pool,), {"ConnectionCls": _fresh(pool.ConnectionCls)})


def _fresh(kind: Any) -> type[Any]:
    class Connection(kind):  # type: ignore[misc]
        """Counts as dropped by the server once it was idle for too long, so that urllib3 opens another one."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options | {"socket_options": _KEEP_ALIVE})
            self._answered = time.monotonic()

        def getresponse(self, *args: Any, **options: Any) -> Any:
            response = super().getresponse(*args, **options)
            self._answered = time.monotonic()
            return response

        @property
        def is_connected(self) -> bool:
            return bool(super().is_connected) and time.monotonic() - self._answered < IDLE_SECONDS

    return Connection
