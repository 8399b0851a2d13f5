"""Types a newcomer's path through the documents: the README's first session, then the tutorial up to cron and alerts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
import yaml

from l0gc.storage.config import StoreConfig
from tests.docs.test_blocks import FENCED, environment
from tests.examples.command_lines import parse

ROOT: Final = Path(__file__).parents[2]
README: Final = (ROOT / "README.md").read_text()
TUTORIAL: Final = (ROOT / "docs/first-hour/tutorial.md").read_text()
BLOCKS: Final = FENCED.findall(TUTORIAL)
SESSIONS: Final = [text for language, text in BLOCKS if language == "console"]
(CRONTAB,) = [text for language, text in BLOCKS if not language]
(PROMETHEUS,) = [text for language, text in BLOCKS if language == "yaml"]
RULES: Final = ROOT / "examples/prometheus/alerts.yml"


def typed(text: str) -> list[tuple[str, str]]:
    """Return each command after a `$ `, and what the document shows below it."""
    commands: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            commands.append((line.removeprefix("$ "), []))
        elif commands:
            commands[-1][1].append(line)
    return [(command, "\n".join(shown)) for command, shown in commands]


def alike(text: str) -> str:
    """Return a text without the parts that differ from run to run: numbers, the cluster's URL, and line breaks."""
    text = re.sub(r"s3://[\w./-]+\w/?", "URL", " ".join(text.split()))
    return re.sub(r"\d[\d,.:-]*", "#", text)


def sentences(shown: str) -> list[str]:
    """Return what a document shows of an output, as pieces that do not depend on lines left out between them."""
    return [alike(piece) for piece in re.split(r"\n(?=\S)", shown) if piece.strip()]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a clone of the repository and its environment, where the documents expect it."""
    clone = tmp_path / "l0gc"
    clone.mkdir()
    (clone / "examples").symlink_to(ROOT / "examples")
    (clone / ".venv").symlink_to(sys.prefix)
    return tmp_path


@pytest.mark.weed
@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_a_newcomer_types_the_readme_and_the_tutorial_up_to_cron(bucket: StoreConfig, home: Path) -> None:
    def run(line: str, environment: dict[str, str]) -> str:
        line = line.replace("/tmp/flights", f"{home}/flights")
        ended = subprocess.run(
            ["bash", "-c", line], cwd=home / "l0gc", env=environment, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, f"{line}: {ended.stderr}"
        return ended.stdout + ended.stderr

    own = environment({"HOME": str(home), "L0GC_URL": bucket.url})
    session = README[README.index("$ l0gc init") :].split("```")[0]
    for command, _ in typed(session):
        run(command, own)
    *sessions, metrics = SESSIONS
    for block in sessions:
        for command, shown in typed(block):
            printed = alike(run(command, own))
            for sentence in sentences(shown):
                assert sentence in printed, command

    for line in CRONTAB.splitlines():  # with cron's environment, and nothing else
        run(line.split(maxsplit=5)[5], {"HOME": str(home), "PATH": "/usr/bin:/bin"})
    ((command, shown),) = typed(metrics)
    assert [alike(line) for line in run(command, own).splitlines()] == [alike(line) for line in shown.splitlines()]


def test_cron_runs_commands_that_l0gc_takes() -> None:
    commands = [line.partition("/bin/")[2] for line in CRONTAB.splitlines()]
    assert [parse(command)[0] for command in commands] == ["gc", "verify"]


def test_the_rules_that_prometheus_is_given_have_the_alerts_that_are_named() -> None:
    (path,) = yaml.safe_load(PROMETHEUS)["rule_files"]
    assert ROOT / path.removeprefix("l0gc/") == RULES
    named = set(re.findall(r"`(L0gc\w+)`", TUTORIAL))
    assert named
    assert named <= set(re.findall(r"alert: (\w+)", RULES.read_text()))
