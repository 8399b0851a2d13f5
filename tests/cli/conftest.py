"""Fixtures that tests of commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from l0gc.cli import main as entry


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs a command in this process as a shell would; it gives the exit code, stdout and
    stderr.
    """
    monkeypatch.setattr("l0gc.cli.signals.listen", lambda: None)  # pytest handles the signals itself

    def run(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["l0gc", *args])
        with pytest.raises(SystemExit) as ended:
            entry.main()
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capfd.readouterr()

    return run
