"""File access of PyIceberg for a bucket that requires encryption of each write, which Arrow's S3 client cannot request.

Files are read, listed and deleted as usual. A written file is buffered until it is closed, and then sent as one object
by l0gc's own client, with the encryption of `--sse`. A table's metadata files are small. A file is not sent if writing
it failed.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store

SSE: Final = "l0gc.sse"
SSE_KEY: Final = "l0gc.sse-kms-key-id"
"""The properties that determine the encryption."""


class EncryptedFileIO(PyArrowFileIO):
    """The file access that the property `py-io-impl` names."""

    def __init__(self, properties: dict[str, str]) -> None:
        super().__init__(properties)
        self._stores: dict[str, S3Store] = {}

    def new_output(self, location: str) -> PyArrowFile:
        file = super().new_output(location)
        scheme, bucket, path = self.parse_location(location, self.properties)
        if not scheme.startswith("s3"):
            return file
        key = path.removeprefix(f"{bucket}/")
        return _EncryptedFile(file, lambda body: self._store(bucket).put(key, body))

    def _store(self, bucket: str) -> S3Store:
        """Return the store of the bucket, with the keys of the catalog's configuration or of the catalog."""
        if bucket not in self._stores:
            config = StoreConfig(
                bucket, "", self._property("endpoint"), self._property("region"),
                sse=self.properties[SSE], sse_kms_key_id=self.properties.get(SSE_KEY),
            )  # fmt: skip
            store = S3Store(config)
            if key := self._property("access-key-id"):
                store.access.session.set_credentials(
                    key, self._property("secret-access-key") or "", self._property("session-token")
                )
            self._stores[bucket] = store
        return self._stores[bucket]

    def _property(self, name: str) -> str | None:
        return self.properties.get(f"s3.{name}") or self.properties.get(f"client.{name}")


class _EncryptedFile(PyArrowFile):
    def __init__(self, file: PyArrowFile, send: Callable[[bytes], Any]) -> None:
        super().__init__(file.location, file._path, file._filesystem, file._buffer_size)
        self._send = send

    def create(self, overwrite: bool = False) -> Any:
        if not overwrite and self.exists():
            raise FileExistsError(f"Cannot create file, already exists: {self.location}")
        return _Body(self._send)


class _Body(io.BytesIO):
    """A buffer that is sent when it is closed."""

    def __init__(self, send: Callable[[bytes], Any]) -> None:
        super().__init__()
        self._send: Callable[[bytes], Any] | None = send

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self._send = None
        super().__exit__(kind, e, trace)

    def close(self) -> None:
        send, self._send = self._send, None
        if send is not None:
            send(self.getvalue())
        super().close()
