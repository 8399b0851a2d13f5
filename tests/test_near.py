"""`make near` runs the tests that mirror changed files, and no others."""

from __future__ import annotations

import pytest

from tests.near import ROOT, mirrors_of


@pytest.mark.parametrize(
    ("changed", "near"),
    [
        ("l0gc/collect/plan.py", {"tests/collect/test_plan.py"}),
        ("l0gc/streamlog/journal/fence.py", {"tests/streamlog/journal/test_fence.py"}),
        ("tests/collect/test_plan.py", {"tests/collect/test_plan.py"}),
        ("l0gc/cli/terminal.py", {"tests/cli/test_terminal.py"}),
        ("l0gc/collect/__init__.py", {"tests/collect"}),
        ("README.md", set()),
        ("tests/collect/test_that_was_removed.py", set()),
    ],
)
def test_a_changed_file_runs_its_mirror(changed: str, near: set[str]) -> None:
    assert near <= set(mirrors_of([changed]))
    assert near or mirrors_of([changed]) == []


def test_every_module_has_mirrors_of() -> None:
    modules = [p.relative_to(ROOT).as_posix() for p in (ROOT / "l0gc").rglob("*.py") if p.parent != ROOT / "l0gc"]
    assert [m for m in modules if not mirrors_of([m])] == []
