"""Connections that a NAT forgets while they are idle, and both clients' keep-alive."""

from __future__ import annotations

import os
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from l0gc.errors import AmbiguousWriteError
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from tests.support.loopback import Serving

pytestmark = pytest.mark.usefixtures("credentials")

HEAD = b"HTTP/1.1 200 OK\r\nDate: Sat, 28 Nov 2026 10:00:00 GMT\r\nContent-Length: %d\r\n%s\r\n"
OBJECT = b'ETag: "e"\r\nLast-Modified: Sat, 28 Nov 2026 10:00:00 GMT\r\n'


class Nat:
    """A server behind a NAT, which stops forwarding a connection once it has been idle for `forgets_s` seconds."""

    def __init__(self, forgets_s: float, idle_s: float = 0.2) -> None:
        self.connections = self.forgotten = 0
        self.busy = threading.Barrier(1)
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                outer.connections += 1
                last = time.monotonic()
                while line := self.rfile.readline():
                    if time.monotonic() - last > forgets_s:
                        outer.forgotten += 1
                        self.rfile.read()  # until the client gives up
                        return
                    part = False
                    while header := self.rfile.readline().strip():
                        part = part or header.lower().startswith(b"range:")
                    outer.busy.wait()
                    body = b"12345" if line.startswith(b"GET") else b""
                    answer = HEAD % (len(body), OBJECT) + body
                    if part:
                        answer = answer.replace(b"200 OK\r\n", b"206 OK\r\nContent-Range: bytes 0-4/5\r\n")
                    self.wfile.write(answer)
                    last = time.monotonic()

        class Threads(socketserver.ThreadingTCPServer):
            allow_reuse_address = daemon_threads = True

        self.server = Threads(("127.0.0.1", 0), Handler)
        endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.store = S3Store(StoreConfig("bucket", "p/", endpoint, timeout_s=8.0, idle_s=idle_s))


@pytest.fixture
def nat() -> Iterator[Nat]:
    server = Nat(forgets_s=1.0)
    with Serving(server.server):
        yield server


CALLS: dict[str, Callable[[S3Store], object]] = {
    "boto3": lambda s: s.now_ms(),
    "boto3, once": lambda s: s.put_if_absent("k", b""),
    "obstore": lambda s: s.get_ranges("k", [(0, 5)]),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_connection_that_was_idle_for_long_is_not_used(nat: Nat, call: Callable[[S3Store], object]) -> None:
    call(nat.store)
    time.sleep(1.1)
    call(nat.store)
    assert (nat.connections, nat.forgotten) == (2, 0)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_connection_that_was_used_lately_is_used_again(call: Callable[[S3Store], object]) -> None:
    nat = Nat(forgets_s=60.0, idle_s=60.0)
    with Serving(nat.server):
        for _ in range(3):
            call(nat.store)
            time.sleep(0.3)  # obstore returns a connection on a separate thread
        assert nat.connections == 1


def at_once(nat: Nat, call: Callable[[S3Store], object]) -> None:
    """Send several requests at the same time, each on a separate connection."""
    nat.busy = threading.Barrier(4)
    threads = [threading.Thread(target=call, args=[nat.store]) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    nat.busy = threading.Barrier(1)


def test_no_connection_of_a_pool_is_used_after_a_pause(nat: Nat) -> None:
    nat.store.now_ms()
    for _ in range(2):
        at_once(nat, CALLS["boto3"])
        time.sleep(1.1)
    assert nat.forgotten == 0


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_pool_that_a_nat_forgot_costs_one_wait(call: Callable[[S3Store], object]) -> None:
    nat = Nat(forgets_s=0.4, idle_s=30.0)
    with Serving(nat.server):
        call(nat.store)
        at_once(nat, call)
        time.sleep(0.6)
        with suppress(AmbiguousWriteError):  # the caller would read the object back
            call(nat.store)
        at_once(nat, call)
        assert nat.forgotten == 1


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_each_client_keeps_its_connections_alive(nat: Nat, call: Callable[[S3Store], object]) -> None:
    call(nat.store)
    port, alive = nat.server.server_address[1], []
    for name in Path("/proc/self/fd").iterdir():
        try:
            s = socket.socket(fileno=os.dup(int(name.name)))
        except OSError:
            continue
        with s:
            try:
                if s.getpeername()[1] == port:
                    alive.append(bool(s.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)))
            except (OSError, IndexError):
                continue
    assert alive == [True]
