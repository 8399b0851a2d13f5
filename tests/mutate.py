"""Change a part of l0gc in each small way, and list what its quick tests miss: `python -m tests.mutate PART`.

PART is a module (`l0gc/collect/plan.py`) or a folder. mutmut makes the changes in a copy of the checkout, `build/mutants`,
and runs the tests that mirror the part and need no server. Each change that is listed needs a test, unless it makes no
difference, or a test of another part fails under it. Changes to the text of messages are left out.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

from tests.near import ROOT, mirrors_of

COPY = ROOT / "build/mutants"
IN_PROCESS = "not weed and not spark and not thorough"


def configuration(part: str) -> str:
    """Return mutmut's section of pyproject.toml for a part, as TOML. Raise SystemExit if the part has no modules."""
    path = ROOT / part
    modules = [path] if path.suffix == ".py" else sorted(path.rglob("*.py"))
    names = [module.relative_to(ROOT).as_posix() for module in modules if module.is_file()]
    if not names or not part.startswith("l0gc/"):
        raise SystemExit(f"{part!r} is not a module of l0gc; name one, for example PART=l0gc/collect/plan.py")
    settings = {
        "source_paths": ["l0gc"],
        "only_mutate": names,
        "also_copy": [name for name in _tracked_tops() if name not in ("l0gc", "tests", "pyproject.toml")],
        "pytest_add_cli_args": ["-m", IN_PROCESS],
        "pytest_add_cli_args_test_selection": mirrors_of(names),
    }
    return "\n[tool.mutmut]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())


def main(part: str) -> None:
    section = configuration(part)
    shutil.rmtree(COPY, ignore_errors=True)
    for name in _git("ls-files"):
        (COPY / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, COPY / name)
    with (COPY / "pyproject.toml").open("a") as file:
        file.write(section)
    _mutmut("run", "--max-children", "2")
    for line in _mutmut("results").splitlines():
        name, _, outcome = line.strip().partition(": ")
        if outcome not in ("killed", "") and not is_text(change := _mutmut("show", name)):
            print(change)  # noqa: T201


def is_text(change: str) -> bool:
    """Return whether a change, given as a diff, affects only the text of a message: its case, or a mark around it."""
    sides = ["".join(line[1:] for line in change.splitlines()[3:] if line[:1] == side) for side in "-+"]
    return sides[0].lower() == sides[1].replace("XX", "").lower()


def _tracked_tops() -> list[str]:
    """Return the files and folders at the top of the checkout that tests may read."""
    return sorted({name.split("/")[0] for name in _git("ls-files")})


def _git(*arguments: str) -> list[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def _mutmut(*arguments: str) -> str:
    """Run mutmut in the copy; let the run itself show its progress."""
    shows = None if arguments[0] == "run" else subprocess.PIPE
    command = [sys.executable, "-m", "mutmut", *arguments]
    return subprocess.run(command, cwd=COPY, stdout=shows, text=True, check=True).stdout or ""


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("Name the part to change, for example: make mutants PART=l0gc/collect/plan.py")
    main(sys.argv[1])
