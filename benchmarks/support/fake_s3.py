"""An S3 server on loopback for one `GeneratedBucket`, with the operations that sweeps use, and an optional limit.

The limit is a token bucket with one token for each object that is written or deleted, as S3 counts them; it holds one
second's worth, and at least one full request's. A request for more than is left gets 503 SlowDown and has no effect.
Listing is free. With a delay, the server waits before each answer, as a more distant store does, except while the
cluster is founded. Signatures are not checked. `l0gc init` probes this server like any other before it founds its
cluster there.
"""

from __future__ import annotations

import email.utils
import re
import threading
import time
from collections import Counter
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

from benchmarks.support.buckets import DATA
from benchmarks.support.generated import GeneratedBucket, etag_of
from benchmarks.support.proxy import kind_of

HOST: Final = "127.0.0.1"
BUCKET: Final = "generated"
PAGE: Final = 1000
MODIFIED: Final = "2020-01-01T00:00:00.000Z"
_KEYS: Final = re.compile(rb"<Key>([^<]*)</Key>")
_XML: Final = '<?xml version="1.0" encoding="UTF-8"?>\n'
_SLOW_DOWN: Final = f"{_XML}<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class Tokens:
    """A token bucket; a rate of None means no limit. `taken` lists the time and number of admitted objects, `refused`
    counts the refused requests.
    """

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._most = self._left = max(rate or 0.0, float(PAGE))
        self._at = time.monotonic()
        self._lock = threading.Lock()
        self.taken: list[tuple[float, int]] = []
        self.refused = 0

    def take(self, objects: int) -> bool:
        """Take tokens, and return whether this many objects may be written or deleted."""
        with self._lock:
            now = time.monotonic()
            if self._rate is not None:
                self._left = min(self._most, self._left + (now - self._at) * self._rate)
                self._at = now
                if objects > self._left:
                    self.refused += 1
                    return False
                self._left -= objects
            self.taken.append((now, objects))
            return True


class FakeS3:
    """A server for `bucket`, alive for the duration of a `with` block. `counts` is by kind of request."""

    def __init__(self, bucket: GeneratedBucket, rate: float | None = None, delay_s: float = 0.0) -> None:
        self.bucket, self._rate, self._delay_s = bucket, rate, delay_s
        self.delay_s = 0.0
        self.tokens = Tokens(None)
        self.counts: Counter[str] = Counter()
        handler = type("Handler", (_Handler,), {"fake": self})
        self._server = _Server((HOST, 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="fake-s3", daemon=True)
        self.endpoint_url = f"http://{HOST}:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def begin(self) -> None:
        """Reset the counts, and apply the limit and the delay from this call on; the cluster is founded before."""
        self.counts.clear()
        self.tokens, self.delay_s = Tokens(self._rate), self._delay_s

    def environment(self) -> dict[str, str]:
        """Return the variables that point an AWS client, and `l0gc`, at this server."""
        return {
            "AWS_ENDPOINT_URL_S3": self.endpoint_url,
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
        }


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 512


class _Handler(BaseHTTPRequestHandler):
    fake: FakeS3
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def handle(self) -> None:
        with suppress(ConnectionError, TimeoutError):  # the client disconnected
            super().handle()

    def handle_expect_100(self) -> bool:
        """Ask for the body at once, because a client without an answer waits a second."""
        answered = super().handle_expect_100()
        self.wfile.flush()
        return answered

    def do_GET(self) -> None:
        self._handle()

    def do_HEAD(self) -> None:
        self._handle()

    def do_PUT(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def do_DELETE(self) -> None:
        self._handle()

    def _handle(self) -> None:
        url = urlsplit(self.path)
        query = {k: v[0] for k, v in parse_qs(url.query, keep_blank_values=True).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fake, key = self.fake, unquote(url.path).lstrip("/").partition("/")[2]
        kind = kind_of(self.command, self.path, DATA)
        fake.counts[kind] += 1
        time.sleep(fake.delay_s)
        if kind == "DELETE":
            self._delete_many([unescape(k.decode(), {"&quot;": '"'}) for k in _KEYS.findall(body)])
        elif kind.startswith("LIST"):
            self._uploads() if "uploads" in query else self._list(query)
        elif not key:
            self._about_bucket(query)
        elif self.command in {"PUT", "DELETE"} and not fake.tokens.take(1):
            self._reply(503, _SLOW_DOWN)
        elif self.command == "DELETE":
            fake.bucket.delete(key)
            self._reply(204, "")
        elif self.command == "PUT":
            status = fake.bucket.put(key, body, self.headers.get("If-Match"), self.headers.get("If-None-Match"))
            self._reply(status, "" if status == 200 else _error(status), etag_of(body))
        else:
            found = fake.bucket.objects.get(key)
            self._reply(404, _error(404)) if found is None else self._reply(200, found, etag_of(found))

    def _about_bucket(self, query: dict[str, str]) -> None:
        if "versioning" in query:
            self._reply(200, f"{_XML}<VersioningConfiguration/>")
        elif "location" in query:
            self._reply(200, f"{_XML}<LocationConstraint/>")
        elif self.command in {"HEAD", "PUT"}:
            self._reply(200, "")
        else:
            self._reply(501, _error(501))

    def _delete_many(self, keys: list[str]) -> None:
        if not self.fake.tokens.take(len(keys)):
            self._reply(503, _SLOW_DOWN)
            return
        for key in keys:
            self.fake.bucket.delete(key)
        deleted = "".join(f"<Deleted><Key>{escape(k)}</Key></Deleted>" for k in keys)
        self._reply(200, f"{_XML}<DeleteResult>{deleted}</DeleteResult>")

    def _list(self, query: dict[str, str]) -> None:
        if query.get("delimiter") or query.get("list-type") != "2":
            self._reply(501, _error(501))
            return
        most = min(PAGE, int(query.get("max-keys", PAGE)))
        after = query.get("continuation-token") or query.get("start-after", "")
        entries = self.fake.bucket.list(query.get("prefix", ""), after, most + 1)
        more = len(entries) > most
        rows = "".join(
            f"<Contents><Key>{e.key}</Key><LastModified>{MODIFIED}</LastModified><ETag>{escape(e.etag)}</ETag>"
            f"<Size>{e.size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
            for e in entries[:most]
        )
        token = f"<NextContinuationToken>{entries[most - 1].key}</NextContinuationToken>" if more else ""
        self._reply(
            200,
            f"{_XML}<ListBucketResult><Name>{BUCKET}</Name><KeyCount>{min(most, len(entries))}</KeyCount>"
            f"<MaxKeys>{most}</MaxKeys><IsTruncated>{str(more).lower()}</IsTruncated>{token}{rows}</ListBucketResult>",
        )

    def _uploads(self) -> None:
        self._reply(
            200, f"{_XML}<ListMultipartUploadsResult><IsTruncated>false</IsTruncated></ListMultipartUploadsResult>"
        )

    def _reply(self, status: int, body: str | bytes, etag: str = "") -> None:
        data = body.encode() if isinstance(body, str) else body
        self.send_response_only(status)
        self.send_header("Date", email.utils.formatdate(usegmt=True))
        if etag:
            self.send_header("ETag", etag)
            self.send_header("Last-Modified", email.utils.formatdate(usegmt=True))
        if data[:5] == b"<?xml":
            self.send_header("Content-Type", "application/xml")
        if status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
        self.wfile.flush()


def _error(status: int) -> str:
    code = {404: "NoSuchKey", 412: "PreconditionFailed", 501: "NotImplemented"}[status]
    return f"{_XML}<Error><Code>{code}</Code><Message>{code}</Message></Error>"
