"""Collects every text that l0gc prints from the code, and checks it: its advice must exist and be harmless.

A text is a string of the package that is neither a docstring nor a key. A command that it names has to exist with these
options, a page of the documents has to be in the wheel, and no text asks a person to delete an object.
"""

from __future__ import annotations

import ast
import difflib
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest

import l0gc
from docs.programs.alerts import RULES
from l0gc.cli.help import pages
from l0gc.cli.main import COMMANDS, load

PACKAGE = Path(l0gc.__file__).parent
COMMAND = re.compile(r"\bl0gc ((?:[a-z][a-z-]*)(?: (?:--[a-z][a-z-]+|[a-z][a-z-]*|[A-Z][A-Z_]*))*)")
DELETES = re.compile(
    r"(?<!to )(?<!can )(?<!cannot )\b(?:remove|delete (?:it|them|(?:that|this|those|these|the) "
    r"(?:objects?|record|journal|run|entry|file|one)))\b(?! with l0gc)",
    re.IGNORECASE,
)
FILE = re.compile(r"\bdocs/|\w\.md\b")


class Text(NamedTuple):
    """A text, and its place in the code."""

    place: str
    text: str


def texts() -> Iterator[Text]:
    """Yield each string of the package's code; what an f-string inserts is `…`."""
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        apart = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
        apart |= {id(part) for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) for part in n.values}
        for node in ast.walk(tree):
            if id(node) in apart:
                continue
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield Text(f"{path.relative_to(PACKAGE)}:{node.lineno}", node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = (str(p.value) if isinstance(p, ast.Constant) else "…" for p in node.values)
                yield Text(f"{path.relative_to(PACKAGE)}:{node.lineno}", "".join(parts))


@functools.cache
def all_texts() -> list[Text]:
    """Return the texts of the package and of the alerts' rules; reading them takes seconds."""
    return [*texts(), Text(RULES.name, RULES.read_text())]


def operations() -> list[Text]:
    """Return the pages of the documents that an operator follows."""
    return [Text(name, path.read_text()) for name, path in pages().items() if name.startswith("operat")]


def unknown(words: list[str]) -> str:
    """Return the part of a command line that does not exist; empty if all of it does."""
    name, rest = words[0], words[1:]
    if name not in COMMANDS:  # a misspelt command, or a sentence about l0gc: "l0gc reads only these"
        misspelt = len(name) > 3 and not name.endswith("s") and difflib.get_close_matches(name, COMMANDS, 1, 0.75)
        return name if misspelt or any(word.startswith("--") for word in rest) else ""
    command = load(name)
    if isinstance(command, click.Group):
        if not rest or rest[0].startswith("-") or rest[0].isupper():
            return ""
        if rest[0] not in command.commands:
            return f"{name} {rest[0]}"
        command, rest = command.commands[rest[0]], rest[1:]
    options = {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help"}
    return next((word for word in rest if word.startswith("--") and word not in options), "")


def test_the_texts_are_found() -> None:
    said = " ".join(t.text for t in all_texts())
    for words in ("l0gc compute-watermark", "no URL: say where", "l0gc resume", "restore that object"):
        assert words in said, words


@pytest.mark.parametrize("name", ["gc --no-such", "swep", "compute-watermak", "garbage --dry-run", "topic crate"])
def test_a_wrong_command_line_is_noticed(name: str) -> None:
    assert unknown(name.split())


def test_every_command_that_a_text_names_exists() -> None:
    wrong = [
        (t.place, m[0], missing)
        for t in all_texts()
        for m in COMMAND.finditer(t.text)
        if (missing := unknown(m[1].split()))
    ]
    assert wrong == []


def test_every_page_that_a_text_names_exists() -> None:
    named = {(t.place, m[1]) for t in all_texts() for m in re.finditer(r"\bl0gc help ([a-z-]+)", t.text)}
    assert len(named) > 10
    assert [page for page in named if page[1] not in {*pages(), *COMMANDS}] == []
    assert [t for t in all_texts() if FILE.search(t.text)] == []


def test_no_text_asks_a_person_to_delete_an_object() -> None:
    assert [
        (t.place, t.text[max(0, m.start() - 60) : m.end() + 60])
        for t in [*all_texts(), *operations()]
        if (m := DELETES.search(t.text))
    ] == []
