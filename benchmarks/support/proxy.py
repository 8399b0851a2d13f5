"""A loopback HTTP proxy that counts the requests of an S3 client, and passes everything on unchanged.

The client's `Host` header is passed on, so its signatures stay valid. It can delay each request, as a more distant
store does.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from contextlib import suppress
from types import TracebackType
from typing import Final, Self
from urllib.parse import parse_qs, urlsplit

HOST: Final = "127.0.0.1"
CHUNK: Final = 1 << 16


class CountingProxy:
    """A proxy in front of `upstream`, alive for the duration of a `with` block. `counts` is by kind of request."""

    def __init__(self, upstream: str, data_prefix: str, *, delay_s: float = 0.0) -> None:
        self._upstream = urlsplit(upstream)
        self._delay_s = delay_s
        self._data_prefix = data_prefix
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="counting-proxy", daemon=True)
        self.counts: Counter[str] = Counter()
        self.endpoint_url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        starting = asyncio.start_server(self._serve, HOST, 0, limit=CHUNK)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result()
        self.endpoint_url = f"http://{HOST}:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(self._upstream.hostname, self._upstream.port)
        back = asyncio.create_task(_pump(server_reader, writer))
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    await self._pass_on(reader, server_writer)
        finally:
            server_writer.close()
            with suppress(asyncio.CancelledError):
                await back

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
        self.counts[kind_of(method, target, self._data_prefix)] += 1
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        writer.write(head)
        await writer.drain()
        headers = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:] if line)
        left = int(headers.get(b"content-length", b"0"))
        while left:
            body = await reader.read(min(left, CHUNK))
            if not body:
                raise ConnectionError("the client went away")
            left -= len(body)
            writer.write(body)
            await writer.drain()
        if b"chunked" in headers.get(b"transfer-encoding", b""):
            await _pass_chunks(reader, writer)


async def _pass_chunks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        line = await reader.readuntil(b"\r\n")
        size = int(line.split(b";")[0], 16)
        writer.write(line + await reader.readexactly(size + 2))
        await writer.drain()
        if not size:
            return


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    writer.close()


def kind_of(method: str, target: str, data_prefix: str) -> str:
    """Return the kind under which a request is counted: the sweep's bound concerns `LIST` and `DELETE`; `APPEND` is a
    log's.
    """
    url = urlsplit(target)
    if method == "PUT" and "/l0gc/journal/" in url.path and "/log/" in url.path:
        return "APPEND"
    query = parse_qs(url.query, keep_blank_values=True)
    if method == "POST" and "delete" in query:
        return "DELETE"
    if method == "DELETE":
        return "DELETE of one"
    if method == "GET" and url.path.strip("/").count("/") == 0 and {"list-type", "prefix", "delimiter"} & query.keys():
        if "uploads" in query:
            return "LIST of uploads"
        return "LIST" if query.get("prefix", [""])[0].startswith(data_prefix) else "LIST elsewhere"
    return method
