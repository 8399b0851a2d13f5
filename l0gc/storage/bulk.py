"""Bulk work through obstore: listings, range reads and deletes, for a fraction of the CPU that boto3 takes.

What makes it safe: nothing is concluded from obstore's errors, which are only text. A delete that is not known to have
fully succeeded is sent again through boto3, which reports on each key; deletes are idempotent. Only keys with a single
representation are deleted here, so the result does not depend on how a client escapes keys.
"""

from __future__ import annotations

import os
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, timedelta
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from l0gc.storage.config import StoreConfig
from l0gc.storage.objectstore import PAGE_SIZE, ListedPage
from l0gc.storage.refusals import ATTEMPTS, DEADLINE_SECONDS, READ_SECONDS

if TYPE_CHECKING:
    from botocore.credentials import Credentials
    from obstore.store import ClientConfig, S3Config, S3Credential
    from obstore.store import S3Store as Obstore

COALESCE_BYTES: Final = 1 << 20
"""Ranges of one object that are closer than this are fetched as one."""
_NOTHING: Final = {"proxy_url": "http://127.0.0.1:9", "proxy_excludes": "*,0.0.0.0/0,::/0"}
"""A proxy that no host uses: without it obstore would take the environment's proxy, by different rules."""
_UNMOVED: Final = {
    "conditional_put": "etag",
    "copy_if_not_exists": "multipart",
    "disable_bulk_delete": False,
    "disable_tagging": False,
    "request_payer": False,
    "s3_express": False,
    "skip_signature": False,
    "unsigned_payload": False,
}
"""obstore's defaults, set explicitly because it would otherwise read each from an AWS_ variable of the environment."""
_PLAIN: Final = (string.ascii_letters + string.digits + "._/-").encode()
"""Characters that have a single form in URLs, XML and paths."""
_ODD_PARTS: Final = (b"//", b"/./", b"/../")
"""Parts of a path that have more than one form, in keys joined by slashes."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Botocore's decisions about requests for objects of the bucket.

    Attributes:
        bucket_url: the URL that keys are appended to, whatever the addressing style.
        proxy: its URL, or None.
        ca_bundle: the file of the trusted certificates.
        obstacle: why obstore cannot send such requests; empty if it can.
    """

    bucket_url: str
    region: str
    proxy: str | None
    ca_bundle: str
    obstacle: str


@cache
def process() -> int:
    """Return the process that obstore runs in, which is the first that calls this. Its threads do not survive a fork."""
    return os.getpid()


class FullKeys(Sequence[str]):
    """Keys with the URL's prefix, each built on access, so that a waiting request does not hold them twice."""

    def __init__(self, full_key: Callable[[str], str], keys: Sequence[str]) -> None:
        self._full_key, self._keys = full_key, keys

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, at: Any) -> Any:
        return self._full_key(self._keys[at])

    def __iter__(self) -> Iterator[str]:
        return map(self._full_key, self._keys)


class Bulk:
    """One bucket, addressed by full keys; safe for use by several threads.

    Args:
        count: called for each request.

    Raises:
        ValueError: obstore cannot be given what botocore decided.
    """

    def __init__(
        self, config: StoreConfig, reach: Reach, credentials: Credentials, count: Callable[[str], None]
    ) -> None:
        self._config, self._reach, self._credentials, self._count = config, reach, credentials, count
        self._patient = self._client(ATTEMPTS)

    def _client(self, retries: int) -> Obstore:
        import obstore  # and not a part: threads that import parts and the whole in another order lock each other out

        reach = self._reach
        options: dict[str, Any] = {
            "allow_http": True,
            "timeout": f"{READ_SECONDS}s",
            "disable_system_certificates": True,
        }
        options |= {"proxy_url": reach.proxy, "proxy_excludes": ""} if reach.proxy else _NOTHING
        if reach.bucket_url.startswith("https:"):
            options["root_certificate"] = Path(reach.ca_bundle).read_bytes()
        # Under this name it overrides AWS_ENDPOINT_URL_S3; virtual-hosted means that it has the bucket in it.
        where = {"aws_endpoint_url_s3": reach.bucket_url, "virtual_hosted_style_request": True}
        said = {"aws_server_side_encryption": self._config.sse, "aws_sse_kms_key_id": self._config.sse_kms_key_id}
        encryption = {name: value for name, value in said.items() if value}
        try:
            return obstore.store.S3Store(
                self._config.bucket,
                region=reach.region,
                credential_provider=partial(_credential, self._credentials),
                client_options=cast("ClientConfig", options),
                retry_config={"max_retries": retries, "retry_timeout": timedelta(seconds=DEADLINE_SECONDS)},
                config=cast("S3Config", where | encryption | _UNMOVED),
            )
        except obstore.exceptions.BaseError as e:
            raise ValueError(str(e)) from e

    @cached_property
    def _once(self) -> Obstore:
        return self._client(0)

    def ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of each (start, length). Raises `FileNotFoundError`, and what obstore raises."""
        import obstore

        self._count("get")
        starts, lengths = [s for s, _ in ranges], [n for _, n in ranges]
        parts = obstore.get_ranges(self._patient, key, starts=starts, lengths=lengths, coalesce=COALESCE_BYTES)
        return [bytes(p) for p in parts]

    def pages(self, prefix: str | None, start_after: str | None) -> Iterator[ListedPage]:
        """Yield the pages of a listing; keys without the URL's prefix. Raises what obstore raises."""
        import obstore
        from arro3.core import DataType

        int64, cut = DataType.int64(), len(self._config.prefix)
        asked = False
        try:
            stream = obstore.list(
                self._patient, prefix, offset=start_after, chunk_size=PAGE_SIZE, return_arrow=True
            )  # fmt: skip
            for batch in stream:
                self._count("list")
                asked = True
                page = ListedPage(
                    [k[cut:] for k in batch.column("path").to_pylist()],
                    list(batch.column("size").to_pylist()),
                    [us // 1000 for us in batch.column("last_modified").cast(int64).to_pylist()],
                )
                del batch  # a caller that takes the page may wait with it
                if len(page):
                    yield page
        finally:
            if not asked:
                self._count("list")

    def delete(self, keys: Sequence[str]) -> bool:
        """Delete up to `PAGE_SIZE` keys in one request, sent once; return whether all of them are certainly gone.

        If not, some may be gone, and the caller has to delete them in another way. Nothing is sent if a key is ambiguous.
        """
        import obstore

        return self._send("delete", keys, lambda: obstore.delete(self._once, keys))

    def put(self, key: str, body: bytes) -> bool:
        """Write one object, with retries; return whether it was certainly written."""
        import obstore

        return self._send("put", [key], lambda: obstore.put(self._patient, key, body, use_multipart=False))

    def _send(self, kind: str, keys: Sequence[str], request: Callable[[], object]) -> bool:
        import obstore

        # A key that may have another form is not sent. An expression would take 20 times as long, more than all else here.
        text = f"/{'/'.join(keys)}/".encode(errors="replace")
        if text.translate(None, _PLAIN) or any(part in text for part in _ODD_PARTS):
            return False
        self._count(kind)
        try:
            request()
        except (obstore.exceptions.BaseError, OSError):
            return False
        return True


def _credential(credentials: Credentials) -> S3Credential:
    """Return the current credentials and when they expire. obstore asks for new ones 5 minutes before that."""
    credentials.get_frozen_credentials()  # renews them, which may move their end; a later renewal moves it further
    expires = getattr(credentials, "_expiry_time", None)
    now: Any = credentials.get_frozen_credentials()
    return {
        "access_key_id": now.access_key,
        "secret_access_key": now.secret_key,
        "token": now.token,
        "expires_at": expires and expires.astimezone(UTC),
    }
