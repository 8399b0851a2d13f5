"""Sets with how many examples a property is tried: few in `make test`, ten times as many in `make release`."""

from __future__ import annotations

import os
from typing import Final

from hypothesis import settings

_TIMES: Final = int(os.environ.get("L0GC_TRIES", "1"))  # at import: a test's environment has no L0GC_ variables


def tries(examples: int) -> settings:
    """Return the settings of a test that tries this many examples in `make test`."""
    return settings(max_examples=examples * _TIMES)
