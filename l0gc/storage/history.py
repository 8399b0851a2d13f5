"""What a bucket on S3 keeps in addition to its current objects: old versions, delete markers and unfinished uploads.

Nothing is decided here. Deletes name a key and a version id, so a request that was made for one version never touches a
newer one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

from l0gc.errors import ObjectNotFoundError, StoreError
from l0gc.storage.connection import Connection
from l0gc.storage.objectstore import (
    OFF,
    PAGE_SIZE,
    DeleteFailure,
    UnfinishedUpload,
    VersionedKey,
    VersionPage,
    VersionsDeleted,
)


class S3History:
    """`History` of a bucket on S3."""

    def __init__(self, store: Connection) -> None:
        self._store = store
        self._bucket = store.config.bucket
        self._cut = len(store.config.prefix)

    def _full(self, key: str) -> str:
        return self._store.config.prefix + key

    def versioning(self) -> str:
        r = self._store.call("get", "", lambda: self._store.client.get_bucket_versioning(Bucket=self._bucket))
        return str(r.get("Status", OFF)).lower()

    def versions(self, prefix: str, after: str = "") -> Iterator[VersionPage]:
        at: dict[str, str] = {"KeyMarker": self._full(after)} if after else {}
        while True:
            r = self._store.call(
                "list",
                "",
                lambda at=dict(at): self._store.client.list_object_versions(  # type: ignore[misc]
                    Bucket=self._bucket, Prefix=self._full(prefix), MaxKeys=PAGE_SIZE, **at
                ),
            )
            page = self._page(r)
            if len(page):
                yield page
            if not r.get("IsTruncated"):
                return
            before, at = at, {"KeyMarker": r["NextKeyMarker"]}
            if r.get("NextVersionIdMarker"):
                at["VersionIdMarker"] = r["NextVersionIdMarker"]
            self._goes_on(prefix, before, at)

    def _page(self, response: Any) -> VersionPage:
        """The page in key order: S3 answers with versions and markers apart. What was out of order stays so, and is seen."""
        versions = [(v["Key"], v, False) for v in response.get("Versions", [])]
        markers = [(m["Key"], m, True) for m in response.get("DeleteMarkers", [])]
        rows: list[tuple[str, Any, bool]] = list(heapq.merge(versions, markers, key=itemgetter(0)))
        return VersionPage(
            [key[self._cut :] for key, _, _ in rows],
            [v["VersionId"] for _, v, _ in rows],
            [marker for _, _, marker in rows],
            [bool(v["IsLatest"]) for _, v, _ in rows],
            [v.get("Size", 0) for _, v, _ in rows],
            [int(v["LastModified"].timestamp() * 1000) for _, v, _ in rows],
        )

    def delete(self, objects: Sequence[VersionedKey]) -> VersionsDeleted:
        named = [
            {"Key": self._full(o.key), "VersionId": o.version_id} if o.version_id else {"Key": self._full(o.key)}
            for o in objects
        ]
        r = self._store.call(
            "delete",
            objects[0].key,
            lambda: self._store.once.delete_objects(
                Bucket=self._bucket,
                Delete={"Objects": named},  # type: ignore[typeddict-item]
            ),
        )
        plain = {o.key for o in objects if not o.version_id}  # of a version that goes, the answer names its marker, too
        failures = [
            DeleteFailure(
                key := e.get("Key", "")[self._cut :],
                e.get("Code", ""),
                e.get("Message", ""),
                "" if key in plain else e.get("VersionId", ""),  # a store may call the object as it is `null`
            )
            for e in r.get("Errors", [])
        ]
        made = {
            key: d["DeleteMarkerVersionId"]
            for d in r.get("Deleted", [])
            if d.get("DeleteMarker") and "DeleteMarkerVersionId" in d and (key := d["Key"][self._cut :]) in plain
        }
        return VersionsDeleted(failures, made)

    def uploads(self, prefix: str) -> Iterator[list[UnfinishedUpload]]:
        at: dict[str, str] = {}
        while True:
            r = self._store.call(
                "list",
                "",
                lambda at=dict(at): self._store.client.list_multipart_uploads(  # type: ignore[misc]
                    Bucket=self._bucket, Prefix=self._full(prefix), MaxUploads=PAGE_SIZE, **at
                ),
            )
            found = [
                UnfinishedUpload(
                    u["Key"][self._cut :],
                    u["UploadId"],
                    int(u["Initiated"].timestamp() * 1000) if u.get("Initiated") else 0,
                )
                for u in r.get("Uploads", [])
            ]
            if found:
                yield found
            if not r.get("IsTruncated"):
                return
            before, at = at, {"KeyMarker": r["NextKeyMarker"], "UploadIdMarker": r["NextUploadIdMarker"]}
            self._goes_on(prefix, before, at)

    def _goes_on(self, prefix: str, before: dict[str, str], at: dict[str, str]) -> None:
        if at == before:
            raise StoreError(f"the listing of {self._store.full(prefix)} does not go on: the store repeats its markers")

    def abort(self, upload: UnfinishedUpload) -> None:
        try:
            self._store.call(
                "delete",
                upload.key,
                lambda: self._store.client.abort_multipart_upload(
                    Bucket=self._bucket, Key=self._full(upload.key), UploadId=upload.upload_id
                ),
            )
        except ObjectNotFoundError:
            return
