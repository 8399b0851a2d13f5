"""Run the quick tests of what changed: `python -m tests.near [BASE]`, BASE being a commit (default: main).

A changed module runs the tests of its name in the folder that mirrors its package (`l0gc/collect/plan.py`:
`tests/collect/test_plan*.py`), or that whole folder if it has none. A changed test file runs itself. A change of l0gc that
leaves CHANGELOG.md as it was is reported.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]


def mirrors_of(changed: list[str], root: Path = ROOT) -> list[str]:
    """Return the test files, or folders, that mirror changed files, sorted."""
    near: set[str] = set()
    for name in changed:
        path = PurePosixPath(name)
        if path.parts[0] == "tests" and path.name.startswith("test_") and (root / path).exists():
            near.add(name)
        elif path.parts[0] == "l0gc" and path.suffix == ".py":
            folder = root.joinpath("tests", *path.parts[1:-1])
            mirrors = [m for where in (folder, root / "tests") for m in where.glob(f"test_{path.stem}*.py")]
            if not mirrors:
                mirrors = [folder] if folder.is_dir() else [*root.glob(f"tests/test_{path.parts[1]}*.py")]
            near |= {m.relative_to(root).as_posix() for m in mirrors}
    return sorted(near)


def _changed(base: str) -> list[str]:
    """Return the files that differ from where this branch left `base`, and those that git does not track yet."""
    names: list[str] = []
    for command in (["diff", "--name-only", "--merge-base", base], ["ls-files", "--others", "--exclude-standard"]):
        listed = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True)
        names += listed.stdout.splitlines()
    return names


def main(base: str = "main") -> int:
    """Run the tests of changed files; return pytest's exit code, or 0 if no changed file has tests."""
    changed = _changed(base)
    if "CHANGELOG.md" not in changed and any(name.startswith("l0gc/") for name in changed):
        print("CHANGELOG.md is unchanged; it needs a line if a user can see the change")  # noqa: T201
    near = mirrors_of(changed)
    if not near:
        return 0
    run = [sys.executable, "-m", "pytest", "-q", "-m", "not thorough", *near]
    return subprocess.run(run, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
