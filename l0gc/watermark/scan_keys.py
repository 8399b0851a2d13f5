"""Where scan snapshots lie, and which of them are old; what is in one is `scans.py`'s.

It is a separate module because a vacuum uses it at every start, and must not wait for pyarrow.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from l0gc.keys import SCANS
from l0gc.storage.objectstore import ObjectStore

KEEP_SCANS: Final = 1000
"""The most snapshots that are kept."""
KEEP_DAYS: Final = 90
_DAY_MS: Final = 86_400_000
_KEY: Final = re.compile(re.escape(SCANS) + r"([0-9]{15})-[0-9a-f-]{36}\.parquet")


def scan_key(run_ms: int, new_id: str) -> str:
    """The key of a run's snapshot; they sort by time."""
    return f"{SCANS}{run_ms:015}-{new_id}.parquet"


def list_scans(store: ObjectStore) -> list[str]:
    """The keys of the snapshots that there are, the oldest first."""
    return sorted(k for k in store.list(SCANS).modified_ms if _KEY.fullmatch(k))


def old_scans(keys: Sequence[str], now_ms: int, keep: int = KEEP_SCANS) -> list[str]:
    """Those of the keys that are snapshots, and older than `KEEP_DAYS`, or not among the `keep` newest."""
    snapshots = sorted(k for k in keys if _KEY.fullmatch(k))
    before_ms = now_ms - KEEP_DAYS * _DAY_MS
    return [k for i, k in enumerate(snapshots) if i < len(snapshots) - keep or _run_ms(k) < before_ms]


def _run_ms(key: str) -> int:
    m = _KEY.fullmatch(key)
    assert m is not None
    return int(m[1])
