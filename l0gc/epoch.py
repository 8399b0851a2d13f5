"""Cluster epochs: the valid values, and the predecessor of each.

An epoch is the offset of the controller log's last entry, unless an operator makes it jump. It is an int64 that only
grows. L0 keys store it in 18 digits, which is a tighter bound than 64 bits. Source: the cluster epoch of Redpanda Cloud
Topics.
"""

from __future__ import annotations

from typing import Final

EPOCH_DIGITS: Final = 18
MAX_EPOCH: Final = 10**EPOCH_DIGITS - 1
"""The largest epoch that an L0 key can hold. At one epoch per microsecond, it is reached after 31,000 years."""
HIGHEST_JUMP: Final = MAX_EPOCH - 10**12
"""The highest epoch that an operator may jump to. It leaves 10^12 epochs to continue with."""

NO_WATERMARK: Final = -1
"""A watermark below every epoch, which allows no deletion."""


def is_epoch(value: int) -> bool:
    """Return whether `value` can be a cluster epoch."""
    return 0 <= value <= MAX_EPOCH


def prev(epoch: int) -> int:
    """Return the predecessor of `epoch` on the number line; `NO_WATERMARK` for epoch 0."""
    return epoch - 1
