"""Write the tables of the documents that follow from the code: `.venv/bin/python -m docs.programs.tables`.

Each table is between `<!-- generated: NAME -->` and `<!-- end -->`. A name is a key of `TABLES`, or `fields of` and the
classes whose docstrings describe a command's JSON.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import msgspec

from docs.programs import alerts, commands
from docs.programs.links import PAGES, linked_from
from l0gc import errors
from l0gc.cli.metrics import MEASURED, METRICS, OBSERVING
from l0gc.collect.vacuum import GARBAGE
from l0gc.errors import L0gcError
from l0gc.inspect.causes import CAUSES
from l0gc.operations import texts_of
from l0gc.streamlog.controller import state
from l0gc.streamlog.controller.entries import ControllerEntry
from l0gc.streamlog.journal import checkpoint, producers, shared
from l0gc.streamlog.journal import rows as packed
from l0gc.streamlog.journal.entries import ClosedTopic, EditedTopic, JournalEntry, ObjectExtents

ROOT = Path(__file__).parents[2]
PLACE = re.compile(r"(<!-- generated: ([^>]+) -->\n\n).*?(<!-- end -->)", re.DOTALL)
FIELDS_OF = "fields of "


def page(path: Path, text: str) -> str:
    """Return a page's text with its tables as they follow from the code."""
    return PLACE.sub(lambda m: f"{m[1]}{linked_from(path, _table(m[2]))}\n{m[3]}", text)


def _table(name: str) -> str:
    return _fields(name.removeprefix(FIELDS_OF)) if name.startswith(FIELDS_OF) else TABLES[name]()


def rows(head: Sequence[str], cells: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *cells))


def _fields(names: str) -> str:
    """Return the descriptions of the fields that are in the JSON, from the docstrings of a result's classes."""
    cells = []
    for name in names.split(" and "):
        module, _, kind = name.rpartition(".")
        result = getattr(importlib.import_module(module), kind)
        hidden: frozenset[str] = getattr(result, "hidden", frozenset())
        cells += [(f"`{field}`", text) for field, text in texts_of(result).items() if field not in hidden]
    return rows(("field", "meaning"), cells)


def _causes() -> str:
    return rows(
        ("code", "meaning", "remedy"),
        ((f"`{code}`", row.meaning, _linked(code, row.remedy)) for code, row in CAUSES.items()),
    )


_PAGES = {
    "old_controller": "operate-logs.md#the-controller-log-was-restored-from-a-backup",
    "set_back_journal": "operate-logs.md#a-journal-was-set-back",
    "damaged_watermark": "operate-logs.md#publishedjson-was-lost-or-is-damaged",
    "damaged_journal": "operate-logs.md#a-log-entry-or-a-checkpoint-is-damaged-or-missing",
    "damaged_object": "operate-lost.md#a-lost-l0-object",
    "pinned": "operate-stop.md#pins",
    "paused": "operate-stop.md#pause",
    "overdue_table": "tables.md",
    "brought_back": "operate-stop.md#undo-a-sweep",
}
"""The documents that explain a cause in more detail."""


def _linked(code: str, remedy: str) -> str:
    return f"{remedy} ([more]({_PAGES[code]}))" if code in _PAGES else remedy


def _errors() -> str:
    cells = []
    for kind in tree(L0gcError):
        parent = kind.__mro__[1]
        cells.append(
            (
                f"`{kind.__name__}`",
                str(kind.exit_code),
                f"`{parent.__name__}`" if parent is not L0gcError else "",
                _first_paragraph(kind),
                _remedy(kind) or _remedy(parent),
            )
        )
    return rows(("error", "exit code", "is a", "raised when", "remedy"), cells)


def tree(kind: type[L0gcError]) -> Iterator[type[L0gcError]]:
    """Yield the errors of `l0gc.errors` below one, each before those below it, in the order of the module."""
    order = list(vars(errors).values())
    for below in sorted((k for k in kind.__subclasses__() if k in order), key=order.index):
        if below.__mro__[1] is kind:
            yield below
            yield from tree(below)


def _remedy(kind: type) -> str:
    _, _, remedy = inspect.cleandoc(kind.__doc__ or "").partition("\n\nRemedy: ")
    return " ".join(remedy.split())


def _metrics() -> str:
    several = {MEASURED: "all", OBSERVING: "all but upload"}
    return rows(
        ("metric", "type", "steps", "meaning"),
        ((f"`{m.name}`", m.kind, several.get(m.steps, ", ".join(m.steps)), m.help) for m in METRICS),
    )


def _alerts() -> str:
    return rows(
        ("alert", "severity", "when", "what to do"),
        (
            (a.name, a.severity, f"{a.when}{'' if a.lasts == '0m' else f' (for {a.lasts})'}.", a.remedy)
            for a in alerts.ALERTS
        ),
    )


def _kinds() -> str:
    return rows(
        ("kind", "what it is", "lies below", "deleted by", "goes"),
        (
            (f"`{name}`", kind.text, ", ".join(f"`{p}`" for p in kind.folders), f"`{kind.command}`", kind.goes)
            for name, kind in GARBAGE.items()
        ),
    )


def _entries(union: object) -> str:
    """Return the entries of a log: their tags, what follows the tag, and what they do."""
    cells = (
        (f"`{kind.__struct_config__.tag}`", kind.__name__, _elements(kind), _first_paragraph(kind))
        for kind in get_args(union)
    )
    return rows(("tag", "entry", "elements after the tag", "effect"), cells)


def _arrays(*kinds: type) -> str:
    return rows(("array", "elements"), ((kind.__name__.lstrip("_"), _elements(kind)) for kind in kinds))


def _elements(kind: type) -> str:
    """Return the fields of a struct that is stored as an array, in order, with their types."""
    types = kind.__annotations__
    return ", ".join(f"{field.name}: {_type(str(types[field.name]))}" for field in msgspec.structs.fields(kind))


_TYPES = (
    (r"\bInt62\b", "int"),
    (r"\bstr\b", "string"),
    (r"\bKind\b", "string"),
    (r" \| None", " or nil"),
    (r"\blist\[", "list["),
    (r"\btuple\[(\w+), \.\.\.\]", r"list[\1]"),
    (r"\btuple\[([\w, ]+)\]", r"[\1]"),
    (r"\bdict\[(\w+), ", r"map[\1 to "),
    (r"\b_(?=[A-Z])", ""),
)


def _type(annotation: str) -> str:
    for pattern, text in _TYPES:
        annotation = re.sub(pattern, text, annotation)
    return annotation


def _first_paragraph(kind: type) -> str:
    return " ".join(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].split())


def _packed_rows() -> str:
    sizes = {"i": "i", "u": "u", "V": "bytes "}
    cells = []
    for name, kind in PACKED.items():
        columns = ((column, kind.fields[column][0]) for column in kind.names)
        shown = ", ".join(f"{column} {sizes[of.kind]}{of.itemsize}" for column, of in columns)
        cells.append((name, str(kind.itemsize), shown))
    return rows(("row", "bytes", "columns"), cells)


PACKED: dict[str, Any] = {
    "BLOCK": packed.BLOCK,
    "EXTENT": packed.EXTENT,
    "START": packed.START,
    "MISFITS": packed.MISFITS,
    "L1": packed.L1_ROW,
    "SHARED": shared.SHARED_ROW,
    "DROPPED": packed.DROPPED,
}
"""The packed rows, by their names in docs/reference/format.md."""


def _parts() -> str:
    """Return the packages, lowest first, by the first sentences of their docstrings, with their modules."""
    cells = []
    for part in PARTS:
        folder = ROOT / "l0gc" / part
        names = sorted(p.stem for p in folder.glob("*.py") if not p.stem.startswith("__"))
        text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
        what = " ".join(text.split("\n\n")[0].split()) if part else "Small modules, without I/O except for one file."
        cells.append((f"`{part}/`" if part else "the ground", what, ", ".join(f"`{name}`" for name in names)))
    return rows(("part", "what it does", "modules"), cells)


PARTS = (
    "", "storage", "watermark", "collect", "streamlog", "streamlog/controller", "streamlog/journal", "streamlog/ingest",
    "streamlog/values", "streamlog/level_one", "inspect", "inspect/verify", "inspect/report", "spark", "api", "integrations",
    "integrations/spark", "integrations/iceberg", "cli", "embedded",
)  # fmt: skip


def _dependencies() -> str:
    """Return each library of pyproject.toml with the comment that says why it is needed."""
    cells, group = [], ""
    for line in (ROOT / "pyproject.toml").read_text().splitlines():
        if begin := re.fullmatch(r"(\w+) = \[", line):
            group = begin[1]
        if library := re.fullmatch(r' {4}"([\w-]+)(?:\[[\w,-]+\])?>=[^"]*",  # (.+)', line):
            extra = "" if group == "dependencies" else f"`{group}`"
            cells.append((f"`{library[1]}`", extra, f"{library[2]}."))
    return rows(("library", "extra", "why"), cells)


TABLES: dict[str, Callable[[], str]] = {
    "causes": _causes,
    "errors": _errors,
    "metrics": _metrics,
    "alerts": _alerts,
    "kinds of garbage": _kinds,
    "entries of the controller log": partial(_entries, ControllerEntry),
    "entries of a journal": partial(_entries, JournalEntry),
    "state of the controller": partial(
        _arrays,
        state.ControllerState,
        state.Topic,
        state.DeletedTopic,
        state.Producer,
        state.LastTick,
        state.EpochTime,
        state.Jump,
        state.Pin,
        state.TopicTable,
    ),
    "arrays of a journal's entries": partial(
        _arrays,
        ObjectExtents,
        producers.ProducerBatch,
        producers.InputSpan,
        EditedTopic,
        shared.PackedShared,
        ClosedTopic,
    ),
    "state of a journal": partial(
        _arrays,
        checkpoint._Checkpoint,
        checkpoint._Topic,
        checkpoint._Object,
        checkpoint._Rows,
        producers.ProducerState,
        producers.LandedSequence,
        producers.InputProgress,
    ),
    "packed rows": _packed_rows,
    "parts": _parts,
    "dependencies": _dependencies,
    "commands": commands.all_commands,
    "common options": commands.common,
    "Spark options": commands.spark,
    "metrics options": commands.metrics,
}


if __name__ == "__main__":
    for path in PAGES.values():
        path.write_text(page(path, path.read_text()))
