"""Runs a server on loopback in a thread of the test."""

from __future__ import annotations

import threading
from socketserver import BaseServer
from typing import Self


class Serving:
    """Runs a server for the duration of a `with` block."""

    def __init__(self, server: BaseServer) -> None:
        self.server = server

    def __enter__(self) -> Self:
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.server.shutdown()
        self.server.server_close()
