"""A proxy on loopback between an S3 client and its server: it counts requests, and lets them fail as a test chooses.

It acts as the server, with a certificate if it is given one, and as a forward proxy for clients that send whole URLs.

A behaviour decides the outcome of each request once its head has been read, under one lock and by its number, so "the
n-th request" is one request even if a client sends several at once. `Host` is passed on unchanged: the server checks
the signature that the client made for the proxy's address. Everything is bound to 127.0.0.1, and every wait ends.
"""

from __future__ import annotations

import contextlib
import email.utils
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from http.client import HTTPConnection, HTTPException, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

from tests.support.outcomes import (
    LETS_THE_ANSWER_THROUGH,
    REACHES_THE_SERVER,
    STATUS,
    Behaviour,
    Outcome,
    Passing,
    Refusal,
    Request,
    request_of,
)

HOST: Final = "127.0.0.1"
WAIT_S: Final = 60
"""The longest that a connection waits for its client or its server, in seconds."""
SLOW_S: Final = 0.3
_PIECE: Final = 1 << 16
_CODES: Final = {403: "AccessDenied", 500: "InternalError", 503: "SlowDown"}


class Proxy:
    """The proxy, alive between `start` and `stop` or for the duration of a `with` block.

    Args:
        upstream: the server, such as `http://127.0.0.1:41234`.
        clock_ahead_s: moves the `Date` that the server sends, which is the clock by which l0gc measures ages.
        tls: makes it a server for HTTPS.
        admit: returns the headers to send on, given a method, a path, headers (names in lower case) and a body; None if
            the session of the request has ended.
    """

    def __init__(
        self,
        upstream: str,
        behaviour: Behaviour | None = None,
        *,
        clock_ahead_s: int = 0,
        tls: ssl.SSLContext | None = None,
        admit: Callable[[str, str, dict[str, str], bytes], dict[str, str] | None] | None = None,
    ) -> None:
        server = urlsplit(upstream)
        assert server.hostname is not None
        assert server.port is not None
        self.upstream = (server.hostname, server.port)
        self.clock_ahead_s, self.tls, self.admit = clock_ahead_s, tls, admit
        self.requests: list[Request] = []
        self.outcomes: Counter[Outcome | Refusal] = Counter()
        self.body_bytes: Counter[str] = Counter()
        """Bytes of the answers that were passed on, by the requests' keys."""
        self._behaviour = behaviour or Passing()
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._active = 0
        self._server: _Server | None = None

    @property
    def endpoint_url(self) -> str:
        """Return the address that clients are given."""
        assert self._server is not None
        return f"{'https' if self.tls else 'http'}://{HOST}:{self._server.server_address[1]}"

    def start(self) -> Self:
        """Listen on a free port."""
        self._server = _Server(self)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="proxy", daemon=True).start()
        return self

    def stop(self) -> None:
        """Accept no more connections, and end the open ones."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
            server.hang_up()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, t: TracebackType | None) -> None:
        self.stop()

    def settle(self) -> None:
        """Wait until no request is in progress: every request of a killed client has then had its effect, or never
        will.
        """
        with self._idle:
            assert self._idle.wait_for(lambda: self._active == 0, WAIT_S), "a request is still under way"

    @contextlib.contextmanager
    def one_request(
        self, method: str, path: str, headers: dict[str, str], port: int
    ) -> Iterator[tuple[Request, Outcome | Refusal]]:
        """Number a request that came from that port, and decide its outcome."""
        with self._lock:
            request = request_of(len(self.requests) + 1, method, path, headers, port)
            self.requests.append(request)
            outcome = self._behaviour.decide(request)
            self.outcomes[outcome] += 1
            self._active += 1
        try:
            yield request, outcome
        finally:
            with self._idle:
                self._active -= 1
                self._idle.notify_all()

    def passed(self, request: Request, body: bytes) -> None:
        """Count a piece of an answer's body."""
        with self._lock:
            self.body_bytes[request.key] += len(body)

    def answered(self, request: Request) -> None:
        """Tell the behaviour that the request was answered."""
        with self._lock:
            self._behaviour.answered(request)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self._open: set[socket.socket] = set()
        self._guard = threading.Lock()
        super().__init__((HOST, 0), _Handler)

    def process_request(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        with self._guard:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: socket.socket) -> None:  # type: ignore[override]
        with self._guard:
            self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        with self._guard:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore the error: a client or a server that disconnects ends only its connection."""


def _refusal(status: int) -> Refusal:
    return Refusal(status, _CODES[status])


class _ClientGoneError(Exception):
    """The client disconnected before its request was complete."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = WAIT_S
    disable_nagle_algorithm = True  # the body, written apart, would wait for the head's acknowledgement
    server: _Server

    def setup(self) -> None:
        if tls := self.server.proxy.tls:
            self.request = tls.wrap_socket(self.request, server_side=True)
        super().setup()

    def handle_any(self) -> None:
        headers = {k.lower(): v for k, v in self.headers.items()}
        if self.path.startswith("http:"):  # sent to a forward proxy
            self.path = "/" + self.path.split("/", 3)[3]
        proxy, body = self.server.proxy, self._body()
        with proxy.one_request(self.command, self.path, headers, self.client_address[1]) as (request, outcome):
            if outcome is Outcome.SLOW:
                time.sleep(SLOW_S)
            if outcome is Outcome.CUT:
                self.close_connection = True
                return
            if outcome not in REACHES_THE_SERVER:
                for _ in self._body():
                    pass
                if outcome is Outcome.HANG:
                    self._hang()
                    return
                self._refuse(outcome if isinstance(outcome, Refusal) else _refusal(STATUS[outcome]))
                return
            sent = dict(self.headers.items())
            if outcome is Outcome.ALTERED:
                altered = bytearray(b"".join(body))
                altered[len(altered) // 2] ^= 1
                body = iter([bytes(altered)])
            if proxy.admit:
                whole = b"".join(body)
                admitted = proxy.admit(self.command, self.path, headers, whole)
                if admitted is None:
                    self._refuse(Refusal(400, "ExpiredToken"))
                    return
                body, sent = iter([whole]), admitted
            upstream = HTTPConnection(*proxy.upstream, timeout=WAIT_S)
            try:
                if outcome is Outcome.REPEATED:
                    pieces = list(body)
                    body = iter(pieces)
                    self._forward(upstream, sent, pieces).read()
                    upstream.close()  # it connects again when needed
                answer = self._forward(upstream, sent, body)
                if outcome in LETS_THE_ANSWER_THROUGH and not (outcome is Outcome.TRUNCATED and not answer.length):
                    self._relay(answer, request, truncated=outcome is Outcome.TRUNCATED)
                    return
                answer.read()
                proxy.answered(request)
                if outcome is Outcome.HANG_AFTER:
                    self._hang()
                elif outcome in STATUS:
                    self._refuse(_refusal(STATUS[outcome]))
                else:
                    self.close_connection = True
            except (OSError, HTTPException, _ClientGoneError):
                self.close_connection = True
            finally:
                upstream.close()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any

    def _hang(self) -> None:
        """Wait until the client disconnects."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.recv(1)

    def _body(self) -> Iterator[bytes]:
        """Yield the request's body as it is on the wire."""
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while True:
                line = self.rfile.readline()
                yield line
                size = int(line.split(b";")[0] or b"0", 16)
                yield from self._exactly(size + 2)  # each chunk is followed by an empty line
                if size == 0:
                    return
        yield from self._exactly(int(self.headers.get("Content-Length", "0")))

    def _exactly(self, left: int) -> Iterator[bytes]:
        while left:
            piece = self.rfile.read(min(left, _PIECE))
            if not piece:
                raise _ClientGoneError
            left -= len(piece)
            yield piece

    def _forward(self, upstream: HTTPConnection, headers: dict[str, str], body: Iterable[bytes]) -> HTTPResponse:
        upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            if name.lower() != "expect":  # this server has answered it already
                upstream.putheader(name, value)
        upstream.endheaders()
        for piece in body:
            upstream.send(piece)
        return upstream.getresponse()

    def _relay(self, answer: HTTPResponse, request: Request, *, truncated: bool) -> None:
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in {"connection", "keep-alive"}:
                self.send_header(name, self._date(value) if name.lower() == "date" else value)
        chunked = answer.getheader("Transfer-Encoding", "").lower() == "chunked"
        if answer.length is None and not chunked:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        if self.command == "HEAD":
            return
        if truncated:
            assert answer.length is not None
            self.wfile.write(answer.read(answer.length // 2))
            self.close_connection = True
            return
        while piece := answer.read(_PIECE):
            self.server.proxy.passed(request, piece)
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
        if chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _date(self, value: str) -> str:
        ahead = self.server.proxy.clock_ahead_s
        return email.utils.formatdate(email.utils.parsedate_to_datetime(value).timestamp() + ahead, usegmt=True)

    def _refuse(self, refusal: Refusal) -> None:
        text = f"<Error><Code>{refusal.code}</Code><Message>-</Message></Error>"
        body = b"" if self.command == "HEAD" else text.encode()
        self.send_response_only(refusal.status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Date", email.utils.formatdate(usegmt=True))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: requests are recorded in `Proxy.requests`."""
