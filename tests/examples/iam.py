"""Converts the policies of docs/work/operate-permissions.md to JSON. `python -m tests.examples.iam` writes them to
examples/iam.

A role's commands, in the table there, are those that have it in their row of `COMMANDS`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from l0gc.cli.main import effects
from l0gc.collect.vacuum import GARBAGE
from l0gc.keys import FORMAT

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "iam"
BUCKET = "arn:aws:s3:::BUCKET"
_CODE = re.compile(r"`([^`]+)`")
_CALLS = re.compile(r"`\w+\..*")
_ROLE = re.compile(r"^(\| (\w+)[^|]*\| )([^|]*) \|", re.MULTILINE)
PAGE = ROOT / "docs/work/operate-permissions.md"


def page(text: str) -> str:
    """Return docs/work/operate-permissions.md with each role's commands; the Spark calls after them are written by
    hand.
    """

    def row(m: re.Match[str]) -> str:
        own = [f"`{name}`" for name, (_, role) in effects().items() if role == m[2]]
        return f"{m[1]}{', '.join([*own, *_CALLS.findall(m[3])])} |" if own else m[0]

    return _ROLE.sub(row, text)


def policies() -> dict[str, dict[str, Any]]:
    """Return a policy for each row of the table, by the name of its file."""
    text = PAGE.read_text().split("\n## ")[0]
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")]
    header, rows = rows[0], rows[2:]
    actions = [_CODE.findall(cell)[0] for cell in header[2:5]]
    return {
        row[0].split(" ")[0]: _policy(_CODE.findall(row[1]), dict(zip(actions, row[2:5], strict=True)), row[5])
        for row in rows
    }


def _policy(commands: list[str], objects: dict[str, str], also: str) -> dict[str, Any]:
    statements = [_allow("s3:ListBucket", BUCKET)]
    for action, cell in objects.items():
        paths = ["*"] if cell.startswith("everything") else _CODE.findall(cell.split(";")[0])
        if "[garbage]" in cell:
            kinds = [kind for kind in GARBAGE.values() if kind.command in commands or "gc" in commands]
            paths = [*dict.fromkeys(f"{place}*" for kind in kinds for place in kind.folders), *paths]
        paths += _CODE.findall(cell.split(";")[1])[1:] if ";" in cell else []  # after the option that needs them
        if action == "s3:GetObject" and not {"*", "l0gc/*"} & set(paths):
            paths.insert(0, FORMAT)  # every role needs it
        if paths:
            statements.append(_allow(action, *(f"{BUCKET}/PREFIX/{path}" for path in paths)))
    for part in filter(None, also.split("; ")):
        allowed = [c for c in _CODE.findall(part) if c.startswith("s3:")]
        paths = [c for c in _CODE.findall(part) if not c.startswith("s3:")]
        where = [f"{BUCKET}/PREFIX/{path}" for path in paths] or [BUCKET]
        statements += [_allow(action, *where) for action in allowed]
    return {"Version": "2012-10-17", "Statement": statements}


def _allow(action: str, *resources: str) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": action, "Resource": list(resources)}


def written(policy: dict[str, Any]) -> str:
    """Return a policy as its file contains it."""
    return json.dumps(policy, indent=2) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, policy in policies().items():
        (FOLDER / f"{name}.json").write_text(written(policy))
