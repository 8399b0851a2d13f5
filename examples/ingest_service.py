"""An ingest service: each line posted to /TOPIC is a record, and the reply comes once all lines are committed.

    python ingest_service.py --port 8080 &
    curl --data-binary @day.ndjson http://127.0.0.1:8080/events

Each request has a thread, and all threads share one cluster: requests that finish at the same time share one entry of a
journal, so a hundred clients do not cause a hundred appends. A client that gets no reply, or 503, does not know whether its
records landed; if it sends them again, they may be there twice. SIGTERM ends the service after the requests that it has
begun. It takes the cluster's URL from `L0GC_URL`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import l0gc
from l0gc.errors import L0gcError, NotFoundError, UsageError

MAX_BYTES = 16 << 20


class Service(ThreadingHTTPServer):
    """A server whose `server_close` waits for the requests that have begun."""

    daemon_threads = False
    request_queue_size = 128

    def __init__(self, port: int, cluster: l0gc.Cluster) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.cluster = cluster


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Service
    timeout = 30  # a client that stops sending does not keep its thread

    def do_POST(self) -> None:
        """Upload the lines of a request to the topic that its path names."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MAX_BYTES:
            self.reply(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"error": f"send at most {MAX_BYTES} bytes, with their length"}
            )
            return
        body = self.rfile.read(int(length)).removesuffix(b"\n")
        try:
            uploaded = self.server.cluster.upload(self.path.strip("/"), body.split(b"\n") if body else [])
        except (UsageError, NotFoundError) as e:
            self.reply(
                HTTPStatus.NOT_FOUND if isinstance(e, NotFoundError) else HTTPStatus.BAD_REQUEST, {"error": str(e)}
            )
        except L0gcError as e:
            self.reply(HTTPStatus.SERVICE_UNAVAILABLE, {"error": str(e)})
        else:
            places = [
                {"partition": p.partition, "first": p.base_offset, "last": p.last_offset} for p in uploaded.placeholders
            ]
            self.reply(HTTPStatus.OK, {"records": uploaded.records, "places": places})

    def reply(self, status: HTTPStatus, body: dict[str, object]) -> None:
        """Send a reply."""
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def main() -> None:
    parser = argparse.ArgumentParser(description="Take records by HTTP.")
    parser.add_argument("--port", type=int, default=8080)
    with l0gc.open(os.environ["L0GC_URL"]) as cluster, Service(parser.parse_args().port, cluster) as service:
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=service.shutdown).start())
        print(f"listening on http://127.0.0.1:{service.server_port}", flush=True)
        service.serve_forever()


if __name__ == "__main__":
    main()
