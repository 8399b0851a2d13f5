"""The size of a reader's window, for the tests of reading."""

from __future__ import annotations

import pytest

from l0gc.streamlog import reader


@pytest.fixture(params=[1, 1 << 25])
def window_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Set how many bytes a reader holds; a test may choose another size with `indirect=True`."""
    size = request.param
    assert isinstance(size, int)
    monkeypatch.setattr(reader, "WINDOW_BYTES", size)
    return size
