"""The README's first session shows what the commands print, except for ids, times and sizes; and every command is
captured.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.captures import scenes
from l0gc.cli.main import effects

ROOT = Path(__file__).parents[2]
CAPTURES = ROOT / "docs/captures"


def recorded(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CAPTURES / "record.py"), "--check", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.weed
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.thorough
def test_the_sessions_of_the_readme_and_of_the_ladder_are_true() -> None:
    ended = recorded()
    assert ended.returncode == 0, ended.stderr


@pytest.mark.weed
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_readme_session_runs_without_java_within_90_seconds() -> None:
    """The session runs in an empty folder with a copy of the tree, an empty environment, and only the README's lines."""
    ended = recorded("--fresh")
    assert ended.returncode == 0, ended.stderr


def test_every_command_has_a_capture_scene(monkeypatch: pytest.MonkeyPatch) -> None:
    assert scenes.examples() == []
    assert set(scenes.LEFT_OUT) <= set(effects())
    monkeypatch.setattr(
        scenes, "SCENES", [s for s in scenes.SCENES if not s.command.startswith(("l0gc pin l", "l0gc merge"))]
    )
    assert [s.command for s in scenes.examples()] == ["l0gc merge --dry-run", "l0gc pin list"]


@pytest.mark.parametrize("columns", [80, 140])
def test_captures_fit_their_terminal_and_contain_no_secret_or_machine_path(columns: int) -> None:
    text = (CAPTURES / f"commands-{columns}.txt").read_text()
    assert text.count("\n$ l0gc ") > 30
    assert not re.search(r"Traceback|unexpected |AWS_SECRET|/root|/home/", text)
