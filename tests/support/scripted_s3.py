"""A server that answers every S3 request as a test chooses, and one call of each kind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from l0gc.errors import L0gcError
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store

ACCESS_KEY, SECRET_KEY, TOKEN = "AKIATESTACCESSKEY000", "test/secret/key/0123456789", "test-session-token"

_CHUNK = 1 << 16


def calls(store: S3Store) -> list[Callable[[], object]]:
    """Return one call of each kind."""
    return [
        store.now_ms,
        lambda: store.get("k"),
        lambda: store.put("k", b""),
        lambda: store.put_file("k", Path(__file__)),
        lambda: store.put_if_absent("k", b""),
        lambda: store.put_if_match("k", b"", '"e"'),
        lambda: store.delete(["k"]),
        lambda: store.list("d/"),
        lambda: list(store.scan("d/")),
    ]


def assert_no_secrets(error: L0gcError) -> None:
    for secret in (SECRET_KEY, TOKEN, ACCESS_KEY):
        assert secret not in str(error)


class Scripted:
    """A server that gives one answer to everything and records the requests.

    Args:
        fields: more elements of the answer's body.
        padding: how many more bytes the body has; `sent` counts those that the client read.
    """

    def __init__(
        self,
        status: int,
        code: str,
        *,
        message: str = "said the server",
        cut: bool = False,
        fields: str = "",
        padding: int = 0,
    ) -> None:
        self.requests: list[str] = []
        self.sent: list[int] = []
        sent = self.sent
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message>{fields}</Error>".encode()
        received = self.requests

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                received.append(self.command)
                if cut:
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Content-Length", str(len(body) + padding))
                self.send_header("Content-Type", "application/xml")
                self.send_header("ETag", '"e"')
                self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
                self.end_headers()
                if self.command == "HEAD":
                    return
                self.wfile.write(body)
                with suppress(OSError):  # the client has read enough
                    for _ in range(0, padding, _CHUNK):
                        self.wfile.write(bytes(_CHUNK))
                        sent.append(_CHUNK)
                    return
                self.close_connection = True

            do_GET = do_PUT = do_POST = do_HEAD = answer

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.store = S3Store(StoreConfig("bucket", "p/", f"http://127.0.0.1:{self._server.server_port}"))

    def __enter__(self) -> Scripted:
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()
