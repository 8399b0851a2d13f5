"""Read PyIceberg's configuration: `.pyiceberg.yaml`, and variables that begin with PYICEBERG_.

Most of PyIceberg reads the configuration when it is imported, and fails if the file is invalid. This module reads it
first, and reports a fault in a sentence. If it has no endpoint for S3, l0gc adds its own settings: its keys and its
token together, or neither if the configuration determines who reads the warehouse.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyiceberg.utils import config

from l0gc.errors import NotFoundError, UsageError
from l0gc.redaction import is_secret, keep_secrets
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.s3 import S3Store

_IDENTITIES = ("profile-name", "role-arn", "anonymous", "signer")
"""The settings, in addition to keys, that identify the reader of the warehouse."""
_WRONG = (config.strictyaml.YAMLError, AttributeError, ValueError)  # type: ignore[attr-defined]


def check_configuration() -> None:
    """Raise `UsageError` if the configuration cannot be read."""
    with _readable():
        config.Config()


def catalog_properties(name: str, store: ObjectStore) -> dict[str, Any]:
    """Return the properties for opening a catalog and reaching its warehouse.

    Raises:
        NotFoundError: the configuration does not name the catalog.
        UsageError: the configuration cannot be read.
    """
    with _readable():
        configured: dict[str, Any] | None = config.Config().get_catalog_config(name)
    if configured is None:
        raise NotFoundError(
            f"PyIceberg has no catalog {name!r}; name it in .pyiceberg.yaml, or set "
            f"PYICEBERG_CATALOG__{name.upper()}__URI"
        )
    keep_secrets(configured)
    encryption = _encryption(store)
    if "s3.endpoint" in configured:
        return encryption | configured
    own = _access(store)
    if any(
        is_secret(key) or key.rpartition(".")[2] in _IDENTITIES
        for key in configured
        if key.startswith(("s3.", "client."))
    ):
        own = {key: value for key, value in own.items() if not is_secret(key)}
    return own | encryption | configured


def _encryption(store: ObjectStore) -> dict[str, str]:
    """Return the properties that encrypt each file of a table, if l0gc encrypts its own objects."""
    if not isinstance(store, S3Store) or store.config.sse is None:
        return {}
    key = store.config.sse_kms_key_id
    named = {"py-io-impl": f"{__package__}.encrypted.EncryptedFileIO", "l0gc.sse": store.config.sse}
    return named | ({"l0gc.sse-kms-key-id": key} if key else {})


def _access(store: ObjectStore) -> dict[str, str]:
    """Return PyIceberg's properties for l0gc's own access to the bucket."""
    if not isinstance(store, S3Store):
        return {}
    keys = store.access.session.get_credentials()
    frozen = None if keys is None else keys.get_frozen_credentials()
    endpoint = store.access.endpoint_url
    path_style = store.access.reach.bucket_url.endswith(f"/{store.config.bucket}")
    properties = {
        "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
        "s3.endpoint": endpoint,
        "s3.force-virtual-addressing": endpoint and not path_style and "true",
        "s3.proxy-uri": store.access.reach.proxy,
        "s3.region": store.access.region,
        "s3.access-key-id": frozen and frozen.access_key,
        "s3.secret-access-key": frozen and frozen.secret_key,
        "s3.session-token": frozen and frozen.token,
    }
    return {k: v for k, v in properties.items() if v}


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except _WRONG as e:
        mark = getattr(e, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1}"
        raise UsageError(f"PyIceberg cannot read .pyiceberg.yaml{line}: {getattr(e, 'problem', e)}") from e
