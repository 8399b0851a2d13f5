"""Deleting batches of keys, and trying again only what failed.

A delete is idempotent and its keys were eligible for ever, so a retry is safe whatever happened to the first try. Retries
wait with full jitter; what cannot succeed (access denied, object lock) is reported and not retried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from l0gc.errors import AccessDeniedError, StoreError
from l0gc.runtime import Runtime
from l0gc.storage.objectstore import DeleteFailure, ObjectStore
from l0gc.sweep.scan import EligibleObject

_TRIES: Final = 6
_BACKOFF_S: Final = 0.2
_LONGEST_S: Final = 10.0
_RETRYABLE: Final = {"SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout", "503", "500", ""}


@dataclass(slots=True)
class DeleteOutcome:
    deleted: list[EligibleObject]
    failures: list[DeleteFailure] = field(default_factory=list)
    requests: int = 0


def delete_batch(store: ObjectStore, runtime: Runtime, objects: Sequence[EligibleObject]) -> DeleteOutcome:
    """Delete up to a page of objects, and say which are gone and which are not."""
    todo = {o.key: o for o in objects}
    given_up: list[DeleteFailure] = []
    requests = 0
    for attempt in range(1, _TRIES + 1):
        requests += 1
        try:
            failures = store.delete(list(todo))
        except AccessDeniedError:
            raise
        except StoreError as e:
            failures = [DeleteFailure(k, "", str(e)) for k in todo]
        given_up += [f for f in failures if f.code not in _RETRYABLE]
        again = {f.key: f for f in failures if f.code in _RETRYABLE}
        if not again or attempt == _TRIES:
            given_up += again.values()
            break
        todo = {k: todo[k] for k in again}
        runtime.clock.sleep(runtime.jitter(min(_LONGEST_S, _BACKOFF_S * 2**attempt)))
    lost = {f.key for f in given_up}
    return DeleteOutcome([o for o in objects if o.key not in lost], given_up, requests)
