"""Unfinished multipart uploads below the L0 prefix: their parts cost money, and no listing of objects shows them.

An upload is aborted only if its key is an L0 key at or below M (hazard 13 goes for them, too). Completing it later could
only bring about an object that M already gives up: no partition takes a placeholder for it any more.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from l0gc.collect.plan import Removal
from l0gc.errors import StoreError
from l0gc.storage.objectstore import ObjectStore


@dataclass(slots=True)
class UploadsResult:
    """`note` says why not all of them were listed, where the store or the credentials did not allow it."""

    aborted: int = 0
    held_by_age: int = 0
    requests: int = 0
    note: str = ""


def abort_uploads(store: ObjectStore, plan: Removal, stop: threading.Event) -> UploadsResult:
    """Abort the unfinished uploads of keys that M gives up; a dry run only counts them. Ends when `stop` is set."""
    result, layout = UploadsResult(), plan.layout
    result.requests = 1  # for the first page, also if it is empty
    try:
        for number, page in enumerate(store.history.uploads(layout.data_prefix)):
            result.requests += number > 0
            for upload in page:
                if stop.is_set():
                    return result
                parsed = layout.parse(upload.key)
                if parsed is None or parsed.epoch > plan.watermark:
                    continue
                if not plan.first_shard <= parsed.shard < plan.end_shard:
                    continue
                if upload.initiated_ms > plan.older_than_ms:
                    result.held_by_age += 1
                    continue
                if not plan.dry_run:
                    store.history.abort(upload)
                result.aborted += 1
    except StoreError as e:
        result.note = f"unfinished multipart uploads were not all listed: {e}"
    return result
