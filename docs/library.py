"""Write the reference in docs/library.md again, from the docstrings of l0gc/api: `.venv/bin/python docs/library.py`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from l0gc import api

PAGE = Path(__file__).parent / "library.md"
BEGIN = "## Reference\n"
_WIDTH = 100


def reference() -> str:
    """What the page says below its heading `Reference`."""
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
    return "\n".join(parts)


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """The public ones, in their order: those with a docstring."""
    found = {name: m for part in reversed(kind.__mro__) for name, m in vars(part).items()}
    return ((name, m) for name, m in found.items() if not name.startswith("_") and getattr(m, "__doc__", None))


def _entry(name: str, member: Callable[..., object] | property) -> str:
    if isinstance(member, property):
        assert member.fget is not None
        head = f"{name}: {inspect.signature(member.fget).return_annotation}"
    else:
        head = _signature(name, member)
    text = inspect.cleandoc(member.__doc__ or "")
    text = re.sub(r"\nArgs:\n", "\n", text).replace("\nRaises:\n", "\nRaises:\n\n")
    text = re.sub(r"^    (\w+): ", r"- `\1`: ", text, flags=re.MULTILINE)
    return f"```python\n{head}\n```\n\n{text}\n"


def _signature(name: str, function: Callable[..., object]) -> str:
    """On one line if it fits, else with an argument on each."""
    signature = inspect.signature(function)
    arguments = [re.sub(r" = <function .*", " = ...", str(p).replace("'", "")) for p in signature.parameters.values()]
    kinds = [p.kind for p in signature.parameters.values()]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        arguments.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    arguments = [a for a in arguments if a != "self"]
    returned = f" -> {signature.return_annotation}"
    line = f"{name}({', '.join(arguments)}){returned}"
    if len(line) <= _WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {a}," for a in arguments), f"){returned}"])


def main() -> None:
    """Replace the page's reference."""
    text = PAGE.read_text()
    PAGE.write_text(text[: text.index(BEGIN) + len(BEGIN)] + "\n" + reference())


if __name__ == "__main__":
    main()
