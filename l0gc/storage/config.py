"""The address of a cluster: an endpoint, and a bucket and a prefix, parsed from `s3://bucket[/prefix]`. It contains no
secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

import msgspec

from l0gc.errors import UsageError
from l0gc.limits import MAX_KEY_BYTES, MAX_PREFIX_BYTES
from l0gc.settings import IDLE_S, TIMEOUT_S

ENDPOINT_VARIABLES: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
REGION_VARIABLES: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
"""The environment variables of the region, in order of precedence."""

_ODD: Final = re.compile(r"^\s|\s$|[\x00-\x1f\x7f]")
_READ: Final = re.compile(
    r"AWS_(ACCESS_KEY_ID|SECRET_ACCESS_KEY|(SESSION|SECURITY)_TOKEN|(DEFAULT_)?(PROFILE|REGION)|ENDPOINT_URL(_[A-Z0-9]+)?"
    r"|CA_BUNDLE|CONFIG_FILE|SHARED_CREDENTIALS_FILE|DATA_PATH|WEB_IDENTITY_TOKEN_FILE|ROLE_(ARN|SESSION_NAME)"
    r"|(CONTAINER|EC2_METADATA|METADATA_SERVICE|USE|SDK|S3|STS)_\w+)"
)
"""The variables that botocore reads. Other variables with this prefix belong to other programs, and may hold whole
files.
"""
ENCRYPTIONS: Final = ("AES256", "aws:kms", "aws:kms:dsse")
"""The ways in which each written object may be encrypted, in S3's terms."""
SSE_VARIABLES: Final = ("L0GC_SSE", "L0GC_SSE_KMS_KEY_ID")
_BUCKET: Final = re.compile(r"[A-Za-z0-9._-]{1,255}")


def first_of(environment: Mapping[str, str], names: Sequence[str]) -> str | None:
    """Return the first of these variables that is set and not empty."""
    return next((value for name in names if (value := environment.get(name))), None)


def check_word(name: str, value: str) -> None:
    """Raise `UsageError` if a value has a newline or spaces at an end, or control characters. The message omits the
    value.
    """
    if _ODD.search(value):
        flaw = "ends with a newline" if value.endswith("\n") else "has a space at an end, or a control character in it"
        raise UsageError(f"{name} {flaw}: set it without that")


def check_endpoint(url: str) -> None:
    """Raise `UsageError` if the endpoint is malformed or holds credentials."""
    check_word("the endpoint", url)
    _refuse_credentials("endpoint", url)
    server = urlsplit(url)
    if server.scheme not in {"http", "https"} or not server.hostname:
        raise UsageError(f"endpoint {url!r} must look like http://host:port or https://host")


def _refuse_credentials(name: str, given: str) -> None:
    if "@" in given:  # not shown, since the text before '@' may be a secret
        raise UsageError(
            f"the {name} holds an '@'; credentials do not go there: set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or --profile"
        )


class StoreConfig(msgspec.Struct, frozen=True):
    """The address of the bucket. It contains no secret, so it may be pickled, logged and sent to executors."""

    bucket: str
    prefix: str = ""
    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    sse: str | None = None
    sse_kms_key_id: str | None = None
    timeout_s: float = TIMEOUT_S
    """How long a run waits in total for a silent store; see `patience`."""
    idle_s: float = IDLE_S
    """How long a connection may be idle before it is closed; see `connections`."""
    settings: str = ""
    """Other settings for botocore, as JSON; see `Access.settled`."""

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        endpoint_url: str | None = None,
        region: str | None = None,
        profile: str | None = None,
        sse: str | None = None,
        sse_kms_key_id: str | None = None,
        timeout_s: float = TIMEOUT_S,
        idle_s: float = IDLE_S,
    ) -> StoreConfig:
        """Parse `s3://bucket[/prefix]`. By default the environment sets the encryption of writes.

        Raises:
            UsageError: the URL is malformed, the URL or the endpoint contains credentials, a variable for botocore is
                invalid, for example because it ends with a newline, or the encryption is unknown.
        """
        sse, sse_kms_key_id = (
            sse or os.environ.get(SSE_VARIABLES[0]),
            sse_kms_key_id or os.environ.get(SSE_VARIABLES[1]),
        )
        sse = sse or ("aws:kms" if sse_kms_key_id else None)
        if sse not in (None, *ENCRYPTIONS):
            raise UsageError(f"--sse {sse!r} is not one of {', '.join(ENCRYPTIONS)}")
        if timeout_s <= 0:
            raise UsageError(f"--store-timeout {timeout_s:g}s leaves no time for an answer: use for example 2m")
        if idle_s < 1:
            raise UsageError(f"--idle-timeout {idle_s:g}s closes each connection at once: use for example 20s")
        if sse == "AES256" and sse_kms_key_id:
            raise UsageError("--sse AES256 takes no key: leave --sse-kms-key-id out, or use --sse aws:kms")
        for name, value in os.environ.items():
            if _READ.fullmatch(name):
                check_word(name, value)
        _refuse_credentials("URL", url)
        if endpoint_url:
            check_endpoint(endpoint_url)
        parts = urlsplit(url)
        if parts.scheme != "s3" or not parts.netloc or parts.query or parts.fragment:
            raise UsageError(f"URL {url!r} must look like s3://bucket or s3://bucket/prefix")
        if parts.netloc.startswith("arn:"):
            raise UsageError(
                f"URL {url!r} names an access point by its ARN; use its alias as the bucket, which ends with -s3alias (a "
                "multi-region access point has none, and l0gc does not support it)"
            )
        if not _BUCKET.fullmatch(parts.netloc):
            raise UsageError(f"URL {url!r} names no bucket: letters, digits, dots, dashes")
        prefix = parts.path.strip("/")
        if prefix and {"", ".", ".."}.intersection(prefix.split("/")):
            raise UsageError(f"URL {url!r}: no part of the prefix may be empty, '.' or '..'")
        prefix = f"{prefix}/" if prefix else ""
        if (size := len(prefix.encode())) > MAX_PREFIX_BYTES:
            raise UsageError(
                f"the prefix of URL {url!r} has {size} bytes, more than {MAX_PREFIX_BYTES}: l0gc's keys need the "
                f"rest of the {MAX_KEY_BYTES} bytes of a key; use a shorter one"
            )
        place = parts.netloc, prefix, endpoint_url or None, region, profile
        return cls(*place, sse or None, sse_kms_key_id or None, timeout_s, idle_s)

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"
