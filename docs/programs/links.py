"""Links to documents from texts in the code: a text names only a document's file, as `l0gc help` does, not its folder."""

from __future__ import annotations

import os
import re
from pathlib import Path

DOCS = Path(__file__).parents[1]
PAGES = {
    path.name: path for layer in ("first-hour", "work", "reference", "why") for path in (DOCS / layer).glob("*.md")
}
"""The documents of the README's four layers by their names, which are unique."""

_LINK = re.compile(r"\]\(([\w-]+\.md)(#[^)\s]*)?\)")


def linked_from(page: Path, text: str) -> str:
    """Return a text with the path from a page to each document that it links to."""
    return _LINK.sub(lambda m: f"]({os.path.relpath(PAGES[m[1]], page.parent)}{m[2] or ''})", text)
