"""M: what each partition may still need, what the whole cluster may, and the one place where that is published.

`publish` is for systems that keep their own log: see `external_log.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from l0gc.watermark.external_log import publish as publish

__all__ = ["publish"]


def __getattr__(name: str) -> Any:
    """`publish`, imported when it is used: it needs pyarrow, which a sweep does without."""
    if name == "publish":
        from l0gc.watermark.external_log import publish

        return publish
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
