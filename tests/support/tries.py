"""Sets with how many examples and cases a rule is tried: few in `make test`, all cases in `make thorough`, and ten
times as many examples in `make release`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Any, Final

import pytest
from hypothesis import settings

_TIMES: Final = int(os.environ.get("L0GC_TRIES", "1"))  # at import: a test's environment has no L0GC_ variables


def tries(examples: int) -> settings:
    """Return the settings of a test that tries this many examples in `make test`."""
    return settings(max_examples=examples * _TIMES)


def sampled(cases: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """Return the parameters of a test that proves one rule for each case: `make test` tries those in `quick`, `make
    thorough` the others.
    """
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)), marks=() if case in quick else pytest.mark.thorough
        )
        for case in cases
    ]
