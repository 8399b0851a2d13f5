"""Sphinx makes a site of these documents, of the commands' help and of the library's docstrings: `make docs`.

It needs no network: nothing is fetched, and the theme brings its own files. A warning ends the build, so a link that leads
nowhere, or a document that no table of contents has, is an error.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs/programs")]

from l0gc import __version__  # noqa: E402 - after the path on which it is found

_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCE = _PROJECT["urls"]["Source"]
"""Where the repository is; only pyproject.toml says it."""
REPOSITORY = f"{SOURCE}/blob/main/"

project = _PROJECT["name"]
author = _PROJECT["authors"][0]["name"]
copyright = author
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.extlinks", "sphinx.ext.napoleon", "sphinx_click"]
extlinks = {"source": (f"{SOURCE}%s", None)}
exclude_patterns = ["captures", "images", "programs", "_build"]
suppress_warnings = ["myst.header", "myst.xref_missing"]
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
default_role = "code"  # as docstrings and comments here mean it
add_module_names = False
html_theme = "furo"
html_title = f"l0gc {__version__}"
html_show_sphinx = False
html_copy_source = False
pygments_style = "default"

_OUTSIDE = re.compile(r"\]\(\.\./\.\./([^)\s]*)\)")


def _lead_out(app: Any, document: str, source: list[str]) -> None:
    """Point links to files outside of this folder at the repository."""
    source[0] = _OUTSIDE.sub(rf"]({REPOSITORY}\1)", source[0])


def setup(app: Any) -> None:
    """Set up the extension; Sphinx calls this."""
    app.connect("source-read", _lead_out)
