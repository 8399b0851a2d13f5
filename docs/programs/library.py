"""Write the parts of the documents and of l0gc that follow from l0gc/api and l0gc/operations.py: `.venv/bin/python -m
docs.programs.library`.

These are the reference in docs/work/library.md, from the docstrings, and l0gc/api/keywords.py, with the options as
keywords, for which type checkers need a `TypedDict`.
"""

from __future__ import annotations

import inspect
import re
import textwrap
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from docs.programs.links import PAGES, linked_from
from l0gc import api, operations
from l0gc.operations import Operation

PAGE = PAGES["library.md"]
BEGIN = "## Reference\n"
KEYWORDS = Path(__file__).parents[2] / "l0gc/api/keywords.py"
KEYWORDS_HEAD = '''"""The keywords of the library's methods: the options in l0gc/operations.py (docs/programs/library.py)."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal, TypedDict

'''
_WIDTH = 100


def reference() -> str:
    """Return the page's text below its heading `Reference`."""
    parts = [_entry("l0gc.open", api.open)]
    parts += [_entry(f"cluster.{name}", member) for name, member in _members(api.Cluster)]
    for group, kind in (
        ("topics", api.Topics),
        ("producers", api.Producers),
        ("runs", api.Runs),
        ("pins", api.Pins),
        ("tables", api.Tables),
    ):
        parts += [_entry(f"cluster.{group}.{name}", member) for name, member in _members(kind)]
    return linked_from(PAGE, "\n".join(parts))


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public members in their order: those with a docstring."""
    found = {name: m for part in reversed(kind.__mro__) for name, m in vars(part).items()}
    return ((name, m) for name, m in found.items() if not name.startswith("_") and getattr(m, "__doc__", None))


def _operation(member: Any) -> type[Operation] | None:
    """Return the operation whose options a method takes as keywords."""
    keywords = getattr(member, "__annotations__", {}).get("options", "")
    name = re.search(r"(\w+)Keywords", str(keywords))
    return getattr(operations, name[1]) if name else None


def _entry(name: str, member: Callable[..., object] | property) -> str:
    if isinstance(member, property):
        assert member.fget is not None
        head = f"{name}: {inspect.signature(member.fget).return_annotation}"
    else:
        head = _signature(name, member)
    text = inspect.cleandoc(member.__doc__ or "")
    text = re.sub(r"\nArgs:\n", "\n", text).replace("\nRaises:\n", "\nRaises:\n\n")
    text = re.sub(r"^    (\w+): ", r"- `\1`: ", text, flags=re.MULTILINE)
    operation = _operation(member)
    text, raises, errors = text.partition("\n\nRaises:\n")
    if operation is not None:
        text += "" if "\n- `" in text else "\n"
        for option, meaning in operations.texts_of(operation).items():
            text += "\n" + textwrap.fill(
                f"- `{option}`: {meaning[:1].lower()}{meaning[1:]}", 120, subsequent_indent="    "
            )
    return f"```python\n{head}\n```\n\n{text}{raises}{errors}\n"


def _signature(name: str, function: Callable[..., object]) -> str:
    """Return a signature on one line if it fits, else with each argument on its own line."""
    signature = inspect.signature(function)
    arguments = [re.sub(r" = <function .*", " = ...", str(p).replace("'", "")) for p in signature.parameters.values()]
    kinds = [p.kind for p in signature.parameters.values()]
    operation = _operation(function)
    if operation is not None:
        arguments.pop()
        if inspect.Parameter.KEYWORD_ONLY not in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
            arguments.append("*")
        for name_, kind in operations.types_of(operation).items():
            if name_ in signature.parameters:
                continue
            default = operations.default_of(operation, name_)
            shown = f"{type(default).__name__}()" if isinstance(default, Operation) else repr(default)
            arguments.append(f"{name_}: {_keyword_text(name_, kind)} = {shown}")
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        arguments.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    arguments = [a for a in arguments if a != "self"]
    returned = f" -> {signature.return_annotation}"
    line = f"{name}({', '.join(arguments)}){returned}"
    if len(line) <= _WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {a}," for a in arguments), f"){returned}"])


def keywords() -> str:
    """Return the text of l0gc/api/keywords.py."""
    steps = sorted(k.__name__ for t in operations.types_of(operations.Gc).values() if (k := operations.step_of(t)))
    methods = [*_members(api.Cluster), *_members(api.Tables)]
    parts = [KEYWORDS_HEAD + f"from l0gc.operations import {', '.join(steps)}\n"]
    for kind in operations.OPERATIONS.values():
        own = next(inspect.signature(m).parameters for _, m in methods if _operation(m) is kind)  # by position, too
        options = {name: t for name, t in operations.types_of(kind).items() if name not in own}
        fields = "\n".join(f"    {name}: {_keyword_text(name, t)}" for name, t in options.items())
        parts.append(f"class {kind.__name__}Keywords(TypedDict, total=False):\n{fields}\n")
    return "\n\n".join(parts)


def _keyword_text(name: str, kind: Any) -> str:
    """Return the type of a keyword; the library also takes a `timedelta` for seconds, and a `datetime` for a point in
    time.
    """
    if name.endswith("_time_ms"):
        return type_text(kind).replace("int", "int | datetime")
    return type_text(kind) + (" | timedelta" if name.endswith("_s") else "")


def type_text(kind: Any) -> str:
    """Return a type without its bounds."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return type_text(arguments[0])
    if origin in (Union, types.UnionType):
        return " | ".join(map(type_text, arguments))
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]".replace("'", '"')
    if origin is not None:
        return f"{origin.__name__}[{', '.join(map(type_text, arguments))}]"
    return "None" if kind is type(None) else str(kind.__name__)


def main() -> None:
    """Replace the page's reference, and the keywords."""
    KEYWORDS.write_text(keywords())
    text = PAGE.read_text()
    PAGE.write_text(text[: text.index(BEGIN) + len(BEGIN)] + "\n" + reference())


if __name__ == "__main__":
    main()
