"""A server and forward proxy on loopback that answers like S3 and records who requested what, from where and with which
identity.

It poses as every host: a client that opens a tunnel through it gets a certificate for the requested name, with an
asterisk for one label before the service's name, as in AWS' certificates. So requests for AWS are recorded without a
network.
"""

from __future__ import annotations

import email.utils
import re
import socketserver
import ssl
from base64 import b64decode
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

from tests.support.certificates import Authority
from tests.support.loopback import Serving

_SCOPE: Final = re.compile(r"Credential=([^/]+)/\d+/([^/]+)/([^/]+)/")
_EMPTY: Final = b"<?xml version='1.0'?><ListBucketResult><KeyCount>0</KeyCount></ListBucketResult>"


@dataclass(frozen=True)
class Seen:
    """A request. `via` is the recorder's name, and `user` the name with which it authenticates at the proxy."""

    via: str
    user: str
    url: str
    key_id: str
    region: str
    service: str
    token: str


class Recorder(Serving):
    """Records for the duration of a `with` block; with `tls` it is itself a server for HTTPS."""

    def __init__(self, name: str, authority: Authority, *, tls: bool = False) -> None:
        self.name, self.authority, self.tls = name, authority, tls
        self.seen: list[Seen] = []
        super().__init__(server := _Server(self))
        self.host = f"127.0.0.1:{server.server_address[1]}"
        self.url = f"{'https' if tls else 'http'}://{self.host}"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore the error: a client that does not trust the certificate disconnects."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 20
    disable_nagle_algorithm = True
    server: _Server
    user = ""
    origin = ""

    def setup(self) -> None:
        if self.server.recorder.tls:
            self.request = self._secure(self.request, "127.0.0.1")
        super().setup()
        self.origin = self.server.recorder.url

    def _secure(self, connection: Any, host: str) -> ssl.SSLSocket:
        return self.server.recorder.authority.context(host).wrap_socket(connection, server_side=True)

    def do_CONNECT(self) -> None:
        self.user, host = self._user(), self.path.removesuffix(":443")
        self.send_response_only(200)
        self.end_headers()
        label, _, rest = host.partition(".")
        wild = f"*.{rest}" if rest.startswith("s3") else f"{label}.{rest}"
        self.connection = self._secure(self.connection, wild if not host.startswith("127.") else "127.0.0.1")
        self.rfile = self.connection.makefile("rb", -1)
        self.wfile = socketserver._SocketWriter(self.connection)  # type: ignore[attr-defined]
        self.origin = f"https://{host}"
        self.close_connection = False

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path.startswith("http:"):  # sent to a proxy
            self.user, url = self._user(), self.path
        else:
            url = self.origin + self.path
        path, query = urlsplit(url).path, urlsplit(url).query
        scope = _SCOPE.search(self.headers.get("Authorization", ""))
        key_id, region, service = scope.groups() if scope else ("", "", "")
        token = self.headers.get("x-amz-security-token", "")
        where = f"{url.partition('://')[0]}://{urlsplit(url).netloc}{path}"
        self.server.recorder.seen.append(
            Seen(self.server.recorder.name, self.user, where, key_id, region, service, token)
        )
        body = _EMPTY if "list-type" in query else b"x"
        ranged = "Range" in self.headers
        self.send_response_only(206 if ranged else 200)
        for name, value in {
            "Content-Length": str(len(body)),
            "Date": email.utils.formatdate(usegmt=True),
            "ETag": '"e"',
            "Last-Modified": email.utils.formatdate(usegmt=True),
            **({"Content-Range": "bytes 0-0/1"} if ranged else {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

    def _user(self) -> str:
        return b64decode(self.headers.get("Proxy-Authorization", "").removeprefix("Basic ")).decode()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: requests are recorded."""
