"""Instructions for contributors are true: the worked example exists, and the hooks and the workflow run what `make`
runs.
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


def recipe(target: str) -> list[str]:
    """Return the commands of a target of the Makefile."""
    lines = MAKEFILE.split(f"\n{target}:", 1)[1].splitlines()[1:]
    return [line.strip() for line in lines[: next(i for i, line in enumerate(lines) if not line.startswith("\t"))]]


def test_the_hooks_run_what_make_lint_runs() -> None:
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    hooks = [hook["entry"].replace(".venv/bin", "$(BIN)") for hook in local["hooks"]]
    tools = re.search(r"^style: (.+)$", MAKEFILE, re.MULTILINE)
    assert tools is not None
    assert hooks == [command for tool in tools[1].split() for command in recipe(tool)]
    assert re.search(r"^lint: .*\bstyle\b", MAKEFILE, re.MULTILINE)


def test_the_workflow_runs_targets_that_exist_on_each_python_that_is_supported() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/checks.yml").read_text())["jobs"]
    job = jobs["checks"]
    runs = [step["run"] for each in jobs.values() for step in each["steps"] if "run" in step]
    assert [run.split()[1] for run in runs] == ["lint", "test", "docs", "lowest"]
    for run in runs:
        assert re.search(rf"^{run.split()[1]}:", MAKEFILE, re.MULTILINE)
    supported = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    assert job["strategy"]["matrix"]["python"] == supported


def test_the_worked_example_of_a_new_option_is_there() -> None:
    section = CONTRIBUTING.split("## A first change", 1)[1].split("\n## ", 1)[0]
    files = re.findall(r"`((?:l0gc|tests|docs)/[\w/]+\.(?:py|md))`", section)
    assert len(files) >= 6
    for file in files:
        assert re.search(r"up.to", (ROOT / file).read_text(), re.IGNORECASE), f"{file} has nothing of the example"
    (test,) = re.findall(r"`(test_\w+)`", section)
    assert f"def {test}(" in (ROOT / "tests/collect/test_plan.py").read_text()
    for target in re.findall(r"`make (\w+)`", CONTRIBUTING):
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), target


def test_a_bug_report_asks_for_what_contributors_are_told_to_include() -> None:
    template = (ROOT / ".github/ISSUE_TEMPLATE/bug_report.md").read_text()
    section = CONTRIBUTING.split("## Report a bug", 1)[1].split("\n## ", 1)[0]
    for wanted in re.findall(r"`([^`]+)`", section):
        assert f"`{wanted}`" in template, wanted
