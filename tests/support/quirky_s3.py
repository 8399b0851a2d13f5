"""Runs moto with a quirk in front of it: a store or a proxy that treats some requests differently from S3."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

from tests.support.loopback import Serving

Environ = dict[str, Any]
Quirk = Callable[[Environ], int | None]
"""A function that changes a request, which then continues, or returns the status of its answer."""

_CODES: Final = {
    400: "MissingContentMD5",
    403: "AccessDenied",
    408: "RequestTimeout",
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    429: "TooManyRequests",
    501: "NotImplemented",
}


def is_bulk_delete(request: Environ) -> bool:
    """Return whether the request deletes many keys."""
    return bool(request["REQUEST_METHOD"] == "POST" and request["QUERY_STRING"].startswith("delete"))


def wants_md5(request: Environ) -> int | None:
    """Demand Content-MD5, as MinIO did until 2025."""
    return 400 if is_bulk_delete(request) and "HTTP_CONTENT_MD5" not in request else None


def has_no_bulk_delete(request: Environ) -> int | None:
    """Refuse bulk deletes, as Google's XML interface did until 2024."""
    return 501 if is_bulk_delete(request) else None


def ignores_ranges(request: Environ) -> int | None:
    """Return the whole object for a range, as some caches in front of a store do."""
    request.pop("HTTP_RANGE", None)
    return None


def wants_encryption(request: Environ) -> int | None:
    """Demand an encryption key with each write, as a bucket policy can."""
    writes = request["REQUEST_METHOD"] == "PUT" and request["PATH_INFO"].count("/") > 1
    parts = "partNumber" in request["QUERY_STRING"]
    begins = request["REQUEST_METHOD"] == "POST" and request["QUERY_STRING"].startswith("uploads")
    if not begins and (not writes or parts):
        return None
    names = ("HTTP_X_AMZ_SERVER_SIDE_ENCRYPTION", "HTTP_X_AMZ_SERVER_SIDE_ENCRYPTION_AWS_KMS_KEY_ID")
    return None if [request.get(name) for name in names] == ["aws:kms", "key-1"] else 403


def refuses_expectations(request: Environ) -> int | None:
    """Refuse `Expect`, as HTTP allows servers that do not support it."""
    return 417 if "HTTP_EXPECT" in request else None


class _Handler(WSGIRequestHandler):
    def handle_expect_100(self) -> bool:
        """Send nothing, because the quirk decides."""
        return True

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Log nothing to stderr."""


@contextmanager
def quirky_s3(quirk: Quirk, *, weakens: bool = False) -> Iterator[str]:
    """Run a server inside this process, and yield its address.

    It serves one request at a time, since moto compares an ETag and writes without a lock, so that two conditional
    requests at once may both succeed.

    Args:
        weakens: it marks ETags as weak, as a proxy does.
    """
    moto = DomainDispatcherApplication(create_backend_app)
    turn = threading.Lock()

    def app(environ: Environ, start_response: Any) -> Iterable[bytes]:
        def weaken(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            mark = {"etag": "W/"} if weakens else {}
            return start_response(
                status, [(name, mark.get(name.lower(), "") + value) for name, value in headers], *rest
            )

        status = quirk(environ)
        if status is None:
            with turn:
                return moto(environ, weaken)  # type: ignore[no-any-return]
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        body = f"<Error><Code>{_CODES.get(status, status)}</Code><Message>-</Message></Error>".encode()
        start_response(f"{status} -", [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
        return [body]

    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_Handler)
    with Serving(server):
        yield f"http://127.0.0.1:{server.server_port}"
