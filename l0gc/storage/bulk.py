"""Bulk work through obstore: listings, range reads and writes, for a fraction of boto3's CPU time.

This is safe because obstore's errors, which are only text, decide nothing except whether to send a request again. After
a failure boto3 repeats the request, and its answer decides. boto3 also confirms the end of each listing. Only boto3
sends deletes, since obstore does not show the answer's document or the deleted keys.
"""

from __future__ import annotations

import os
import string
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, timedelta
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import msgspec

from l0gc.storage.config import StoreConfig
from l0gc.storage.objectstore import PAGE_SIZE, ListedPage
from l0gc.storage.patience import patience_with
from l0gc.storage.refusals import ATTEMPTS, is_unanswered_text, pause_s, row_of_text

if TYPE_CHECKING:
    from botocore.credentials import Credentials
    from obstore.store import ClientConfig, S3Config, S3Credential
    from obstore.store import S3Store as Obstore

T = TypeVar("T")

COALESCE_BYTES: Final = 1 << 20
"""Ranges of one object with a gap of less than this are fetched as one."""
_NOTHING: Final = {"proxy_url": "http://127.0.0.1:9", "proxy_excludes": "*,0.0.0.0/0,::/0"}
"""A proxy that no host uses. Without it, obstore would choose a proxy from the environment, by different rules than
botocore.
"""
_FIXED: Final = {
    "checksum_algorithm": "sha256",  # detects bytes altered in transit (hazard 34); signing needs it, too
    "conditional_put": "etag",
    "copy_if_not_exists": "multipart",
    "disable_bulk_delete": False,
    "disable_tagging": False,
    "request_payer": False,
    "s3_express": False,
    "skip_signature": False,
    "unsigned_payload": False,
}
"""Settings that obstore would otherwise read from AWS_ variables of the environment. All except the checksum are its
defaults.
"""
_PLAIN: Final = (string.ascii_letters + string.digits + "._/-").encode()
"""Characters that have a single form in URLs, XML and paths."""
_ODD_PARTS: Final = (b"//", b"/./", b"/../")
"""Parts of a path that have more than one form, in keys joined by slashes."""


class Reach(msgspec.Struct, frozen=True):
    """Botocore's decisions about requests for objects of the bucket.

    Attributes:
        bucket_url: the URL to which keys are appended, whatever the addressing style.
        proxy: the URL of the proxy, or None.
        ca_bundle: the file with the trusted certificates.
        obstacle: why obstore cannot send such requests; empty if it can.
    """

    bucket_url: str
    region: str
    proxy: str | None
    ca_bundle: str
    obstacle: str


@cache
def process() -> int:
    """Return the process in which obstore runs, which is the first to call this function. Its threads do not survive a
    fork.
    """
    return os.getpid()


class Bulk:
    """A bucket, addressed by full keys; safe for use by several threads.

    Args:
        count: called for each request.

    Raises:
        ValueError: obstore does not accept botocore's decision.
    """

    def __init__(
        self, config: StoreConfig, reach: Reach, credentials: Credentials, count: Callable[[str], None]
    ) -> None:
        self._config, self._reach, self._credentials, self._count = config, reach, credentials, count
        self._patience = patience_with(config)
        self._store = self._client()

    def _client(self) -> Obstore:
        import obstore  # the whole package: threads that import it and its parts in different orders deadlock

        reach = self._reach
        options: dict[str, Any] = {
            "allow_http": True,
            "timeout": f"{self._patience.answer_s}s",
            "pool_idle_timeout": f"{self._config.idle_s}s",
            "disable_system_certificates": True,
        }
        options |= {"proxy_url": reach.proxy, "proxy_excludes": ""} if reach.proxy else _NOTHING
        if reach.bucket_url.startswith("https:"):
            options["root_certificate"] = Path(reach.ca_bundle).read_bytes()
        # The option with this name overrides AWS_ENDPOINT_URL_S3; "virtual hosted" means that the URL contains the
        # bucket.
        where = {"aws_endpoint_url_s3": reach.bucket_url, "virtual_hosted_style_request": True}
        said = {"aws_server_side_encryption": self._config.sse, "aws_sse_kms_key_id": self._config.sse_kms_key_id}
        encryption = {name: value for name, value in said.items() if value}
        try:
            return obstore.store.S3Store(
                self._config.bucket,
                region=reach.region,
                credential_provider=partial(_credential, self._credentials),
                client_options=cast("ClientConfig", options),
                retry_config={"max_retries": 0, "retry_timeout": timedelta(minutes=1)},  # `_asks_again` decides
                config=cast("S3Config", where | encryption | _FIXED),
            )
        except obstore.exceptions.BaseError as e:
            raise ValueError(str(e)) from e

    def ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of each (start, length). Raises `FileNotFoundError`, and obstore's errors."""
        import obstore

        starts, lengths = [s for s, _ in ranges], [n for _, n in ranges]

        def ask() -> list[bytes]:
            parts = obstore.get_ranges(self._store, key, starts=starts, lengths=lengths, coalesce=COALESCE_BYTES)
            return [bytes(p) for p in parts]

        return self._ask("get", key, ask)

    def pages(self, prefix: str | None, start_after: str | None) -> Iterator[ListedPage]:
        """Yield the pages of a listing, with keys relative to the URL's prefix. Raises obstore's errors.

        obstore reads any well-formed document without a key as the end of the listing, so the caller has to confirm the
        end.
        """
        import obstore
        from arro3.core import DataType

        int64, cut = DataType.int64(), len(self._config.prefix)
        last, attempt, began = start_after, 1, time.monotonic()
        while True:
            asked = False
            try:
                with _without_panic():
                    listed = obstore.list(self._store, prefix, offset=last, chunk_size=PAGE_SIZE, return_arrow=True)
                stream = iter(listed)
                while (batch := _next(stream)) is not None:
                    self._count("list")
                    asked, attempt, began = True, 1, time.monotonic()
                    keys = batch.column("path").to_pylist()
                    page = ListedPage(
                        [k[cut:] for k in keys],
                        list(batch.column("size").to_pylist()),
                        [us // 1000 for us in batch.column("last_modified").cast(int64).to_pylist()],
                    )
                    del batch  # the caller may hold the page for long
                    if keys:
                        last = keys[-1]
                        yield page
                return
            except obstore.exceptions.BaseError as e:
                if not self._asks_again(str(e), "list", prefix or "", attempt, began):
                    raise
                attempt += 1
            finally:
                if not asked:
                    self._count("list")

    def put(self, key: str, body: bytes) -> bool:
        """Write one object, with retries, and return whether it was certainly written. Send nothing if the key has more
        than one form.
        """
        import obstore

        text = f"/{key}/".encode(errors="replace")
        if text.translate(None, _PLAIN) or any(part in text for part in _ODD_PARTS):
            return False
        try:
            self._ask("put", key, lambda: obstore.put(self._store, key, body, use_multipart=False))
        except (obstore.exceptions.BaseError, OSError):
            return False
        return True

    def _ask(self, kind: str, key: str, request: Callable[[], T]) -> T:
        """Return the answer to a request, which is sent again if the table of answers requires it."""
        import obstore

        attempt, began = 1, time.monotonic()
        while True:
            self._count(kind)
            try:
                with _without_panic():
                    return request()
            except obstore.exceptions.BaseError as e:
                if not self._asks_again(str(e), kind, key, attempt, began):
                    raise
                attempt += 1

    def _asks_again(self, error: str, kind: str, key: str, attempt: int, began: float) -> bool:
        """Pause if a failed request is to be sent again, and return whether it is."""
        row, is_unanswered = row_of_text(error), is_unanswered_text(error)
        if not row.again or attempt >= ATTEMPTS or not self._patience.allows_again(began):
            if is_unanswered:
                self._patience.unanswered(kind, key.removeprefix(self._config.prefix), began)
            return False
        if is_unanswered:
            self._store = self._client()  # a new pool, since idle connections of the old one may have died, too
        time.sleep(pause_s(attempt, slower=row.slower))
        return True


@contextmanager
def _without_panic() -> Iterator[None]:
    """Raise an error of obstore in place of a panic, for example if the machine allows no more threads, which boto3
    does not need.
    """
    import obstore

    try:
        yield
    except BaseException as e:
        if type(e).__name__ != "PanicException":
            raise
        raise obstore.exceptions.GenericError(str(e)) from None


def _next(stream: Iterator[T]) -> T | None:
    with _without_panic():
        return next(stream, None)


def _credential(credentials: Credentials) -> S3Credential:
    """Return the current credentials and when they expire. obstore requests new ones 5 minutes before that."""
    credentials.get_frozen_credentials()  # renews the credentials if they expire soon, which changes the expiry
    expires = getattr(credentials, "_expiry_time", None)
    now: Any = credentials.get_frozen_credentials()
    return {
        "access_key_id": now.access_key,
        "secret_access_key": now.secret_key,
        "token": now.token,
        "expires_at": expires and expires.astimezone(UTC),
    }
