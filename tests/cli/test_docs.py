"""The documents agree with the commands, options, files and tests."""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from docs.programs import commands, tables
from docs.programs.links import PAGES
from l0gc import errors
from l0gc.cli.help import pages
from l0gc.cli.main import COMMANDS, cli, load
from l0gc.cli.options import common_options
from l0gc.collect.vacuum import GARBAGE
from l0gc.inspect import explain
from l0gc.settings import Settings
from tests.support.processes import modules_after

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted(PAGES.values()),
    *sorted((ROOT / "examples").rglob("*.md")),
]


def _name(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


COMMON = "options of every command"

HAZARDS = [*range(1, 47)]
"""The numbers of the hazards for which docs/why/hazards.md has a guard, a mutant and a test."""

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
USED = re.compile(r"(?:^|[`$&|;(] ?|n )l0gc ([a-z][a-z-]+)", re.MULTILINE)
FIELD_TABLE = re.compile(r"^\| field \| meaning \|\n((?:\|.*\n)+)", re.MULTILINE)
FIELD_ROW = re.compile(r"^\| `([a-z_0-9]+)` \|", re.MULTILINE)
JSON_BLOCK = re.compile(r"^```json\n(.*?)^```", re.MULTILINE | re.DOTALL)
TEST = re.compile(r"(tests/[\w/]+\.py)::(\w+)")
GUARD = re.compile(r"(l0gc/[\w/]+\.py)(?:::(\w+(?:\.\w+)?))?")


def _leaves() -> Iterator[tuple[str, click.Command]]:
    """Yield every command that does something: `topic create`, not `topic`."""
    for name in COMMANDS:
        command = load(name)
        if isinstance(command, click.Group):
            for sub, leaf in command.commands.items():
                yield f"{name} {sub}", leaf
        else:
            yield name, command


LEAVES = dict(_leaves())


def _options(command: click.Command) -> set[str]:
    return {
        o
        for p in command.params
        if isinstance(p, click.Option)
        for o in (*p.opts, *p.secondary_opts)
        if o.startswith("--")
    }


@common_options
def _nothing(settings: Settings) -> None:
    """Take the common options and do nothing."""


COMMON_OPTIONS = {
    o for p in click.command()(_nothing).params if isinstance(p, click.Option) for o in p.opts if o.startswith("--")
}


def _sections(document: str) -> dict[str, str]:
    """Return the sections of a page by their headings, without `l0gc` and in lower case."""
    sections: dict[str, str] = {}
    heading = ""
    fenced = False
    for line in (ROOT / document).read_text().splitlines(keepends=True):
        fenced ^= line.startswith("```")
        if line.startswith("#") and not fenced:
            heading = line.strip("#` \n").removeprefix("l0gc ").lower()
            sections[heading] = ""
        else:
            sections[heading] = sections.get(heading, "") + line
    return sections


SECTIONS = _sections("docs/reference/commands.md")
JSON = _sections("docs/reference/json.md")


# -- commands and their help --------------------------------------------------------------------------------------------


def test_every_command_and_nothing_else_has_a_section() -> None:
    groups = {name.split(" ")[0] for name in LEAVES if " " in name}
    about = {"commands", COMMON, "options for spark", "the log", "metrics", "exit codes", "what is printed where"}
    assert set(SECTIONS) - {""} - about == set(LEAVES) | groups
    assert set(JSON) - {"json"} == set(LEAVES)


def test_the_page_of_commands_is_up_to_date() -> None:
    """If this fails, run docs/programs/commands.py."""
    text = commands.PAGE.read_text()
    assert tables.page(commands.PAGE, commands.page(text)) == text


@pytest.mark.parametrize("document", sorted(PAGES.values()), ids=_name)
def test_the_tables_of_a_page_are_up_to_date(document: Path) -> None:
    """If this fails, run docs/programs/tables.py."""
    text = document.read_text()
    assert tables.page(document, text) == text


def test_every_error_is_explained_with_a_remedy() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (\d+) \| .* \| (.*) \| (.*) \|$", (ROOT / "docs/reference/errors.md").read_text(), re.MULTILINE
    )
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, errors.L0gcError)]
    assert sorted(row[0] for row in rows) == sorted(k.__name__ for k in kinds if k is not errors.L0gcError)
    assert [row[0] for row in rows if not row[2] or not row[3]] == []


@pytest.mark.parametrize("name", LEAVES)
def test_every_command_takes_the_common_options(name: str) -> None:
    assert _options(LEAVES[name]) >= COMMON_OPTIONS


@pytest.mark.parametrize("name", LEAVES)
def test_a_section_shows_real_json_and_explains_each_of_its_fields(name: str) -> None:
    examples = [json.loads(block) for block in JSON_BLOCK.findall(JSON[name])]
    assert examples, "an example of what --json prints belongs here"
    fields = {f for table in FIELD_TABLE.findall(JSON[name]) for f in FIELD_ROW.findall(table)}
    assert fields == {key for example in examples for key in example}


@pytest.mark.parametrize("name", [*LEAVES, *sorted({n.split(" ")[0] for n in LEAVES if " " in n})])
def test_a_commands_help_has_an_example(name: str) -> None:
    first, _, sub = name.partition(" ")
    command = load(first)
    if sub:
        assert isinstance(command, click.Group)
        command = command.commands[sub]
    assert command.help is not None
    assert re.search(rf"Example:\n(.*\n)*?\s+(.*\| )?l0gc {first}\b", command.help)


def test_short_help_is_how_the_long_help_begins() -> None:
    for name, row in COMMANDS.items():
        short, long = row.text, load(name).help or ""
        first_line = " ".join(long.split("\n\n")[0].split())
        if first_line != short:
            assert re.split(r"\W", first_line)[0] == re.split(r"\W", short)[0]
            assert len(short) <= len(first_line)


def test_all_exit_codes_are_documented() -> None:
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, errors.L0gcError)]
    codes = {int(c) for c in re.findall(r"^\| (\d+) \|", SECTIONS["exit codes"], re.MULTILINE)}
    assert codes == {0, 129, 130, 141, 143} | {k.exit_code for k in kinds}


# -- imports --------------------------------------------------------------------------------------------------------------


def test_help_imports_nothing_heavy() -> None:
    loaded = modules_after("from l0gc.cli.main import cli; cli.main(['--help'], standalone_mode=False)")
    heavy = {"pyspark", "boto3", "botocore", "obstore", "numpy", "pyarrow", "pandas", "rich", "prometheus_client"}
    assert loaded & heavy == set()


def test_commands_that_read_no_journal_do_without_numpy() -> None:
    modules = ", ".join(
        f"l0gc.cli.{COMMANDS[name].module}" for name in ("topic", "epoch", "sweep", "pause", "runs", "config")
    )
    assert "numpy" not in modules_after(f"import {modules}")


def _on_a_quiet_cluster(call: str) -> str:
    return f"""
import contextlib, l0gc.api.cluster
from tests.support.memory_store import topic_in_memory
handles = topic_in_memory()
l0gc.api.cluster.open_cluster = lambda *given, **settings: contextlib.nullcontext((handles, handles.store))
with l0gc.open("s3://b/p") as cluster:
    cluster.{call}
"""


@pytest.mark.parametrize("call", ["compute_watermark()", "sweep(dry_run=True)", "gc(); cluster.gc()"])
def test_commands_on_a_quiet_cluster_import_nothing_for_records_tables_and_terminals(call: str) -> None:
    loaded = modules_after(_on_a_quiet_cluster(call))
    heavy = {"pyarrow", "numpy.ma", "crc32c", "pyspark", "rich", "prometheus_client", "jinja2", "boto3"}
    assert loaded & heavy <= modules_after("import numpy")  # numpy 1 imports its masked arrays itself


@pytest.mark.parametrize("call", ["status()", "gc(); cluster.gc()"])
def test_commands_on_a_quiet_cluster_define_one_dataclass_at_most(call: str) -> None:
    """A dataclass takes forty times as long to define as a struct, which was a tenth of these commands' CPU time. The
    result of `gc` is one, since the signature of a struct would need the results of all commands.
    """
    found = modules_after(
        f"""{_on_a_quiet_cluster(call)}
import dataclasses, sys, l0gc.cli.gc, l0gc.cli.status
ours = [m for name, m in sys.modules.items() if name.startswith("l0gc")]
print(*{{f"dataclass:{{c.__qualname__}}" for m in ours for c in vars(m).values() if dataclasses.is_dataclass(c)}})
        """
    )
    assert {name for name in found if name.startswith("dataclass:")} <= {"dataclass:GcResult"}


def test_commands_that_do_without_spark_do_not_import_it() -> None:
    modules = [f"l0gc.cli.{c.module}" for n, c in COMMANDS.items() if n not in {"reconcile", "compute-watermark"}]
    first = "next((m for m in modules if importlib.import_module(m) and 'pyspark' in sys.modules), 'none')"
    loaded = modules_after(f"import importlib, sys; modules = {modules}; print('first:' + {first})")
    assert "first:none" in loaded


def test_commands_on_a_cluster_without_tables_do_not_import_pyiceberg() -> None:
    loaded = modules_after(
        f"""
import contextlib, importlib, l0gc.api.cluster
from l0gc.cli.main import cli
from tests.support.memory_store import topic_in_memory
for module in {[c.module for c in COMMANDS.values()]}:
    importlib.import_module("l0gc.cli." + module)
with contextlib.redirect_stdout(None):
    cli.main(["--help"], standalone_mode=False)
handles = topic_in_memory()
l0gc.api.cluster.open_cluster = lambda *given, **settings: contextlib.nullcontext((handles, handles.store))
with l0gc.open("s3://b/p") as cluster:
    cluster.status(), cluster.sweep(), cluster.gc(), cluster.tables.list()
        """
    )
    assert loaded & {"pyiceberg", "sqlalchemy", "requests"} == set()


def test_help_of_spark_commands_does_not_import_spark() -> None:
    loaded = modules_after("import l0gc.cli.reconcile, l0gc.cli.compute_watermark, l0gc.cli.gc, l0gc.cli.status")
    assert loaded & {"pyspark", "prometheus_client"} == set()


# -- the documents --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", DOCUMENTS, ids=_name)
def test_links_lead_somewhere(document: Path) -> None:
    dead = []
    for target in LINK.findall(document.read_text()):
        path, _, anchor = target.partition("#")
        if "://" in path:
            continue
        file = document.parent / path if path else document
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            dead.append(target)
    assert dead == []


def _anchors(file: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=_name)
def test_commands_and_options_in_the_documents_exist(document: Path) -> None:
    known = {o for leaf in LEAVES.values() for o in _options(leaf)} | {"--help", "--version"}
    for code in CODE.findall(document.read_text()):
        for name in USED.findall(code):
            assert name in COMMANDS, code
        for line in code.splitlines():
            if re.search(r"(^|[ `$])l0gc [a-z]", line):
                used = line[line.index("l0gc ") :].split("#")[0].split("|")[0]
                assert set(re.findall(r"(?<!\w)--[a-z][a-z-]+", used)) <= known, line


@functools.cache
def _definitions(file: Path) -> set[str]:
    """Return functions, classes and constants of a module, and methods as `Class.method`."""
    names: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{f.name}" for f in node.body if isinstance(f, ast.FunctionDef)}
    return names


@pytest.mark.parametrize("document", DOCUMENTS, ids=_name)
def test_functions_and_tests_that_the_documents_name_exist(document: Path) -> None:
    text = document.read_text()
    missing = [
        f"{file}::{name}"
        for file, name in [*TEST.findall(text), *GUARD.findall(text)]
        if not (ROOT / file).is_file() or (name and name not in _definitions(ROOT / file))
    ]
    assert missing == []


def test_every_hazard_has_a_row_with_a_guard() -> None:
    rows = re.findall(
        r"^\| (\d+) \| .* \| .*l0gc/\w.* \| .* \|$", (ROOT / "docs/why/hazards.md").read_text(), re.MULTILINE
    )
    assert [int(n) for n in rows] == HAZARDS


def test_each_kind_of_garbage_is_described_wherever_kinds_are() -> None:
    stored = (ROOT / "docs/reference/format.md").read_text().partition("\n## ")[0]
    grows = (ROOT / "docs/why/scaling.md").read_text().partition("\n## What grows\n")[2].partition("\n## ")[0]
    folders = {folder for kind in GARBAGE.values() for folder in kind.folders}
    own = {folder for kind in GARBAGE.values() if kind.old is not None for folder in kind.folders}
    expiring = [name.replace("_", " ") for name, kind in GARBAGE.items() if kind.old is not None]
    assert [f for f in folders if f"`{f}" not in stored] == []
    assert [name for name in expiring if f"| {name} |" not in grows] == []
    assert [f for f in own if not any(re.fullmatch(pattern, f"{f}a/b") for pattern, _, _ in explain._OWN)] == []


def test_the_group_itself_has_help() -> None:
    assert cli.help is not None
    assert "Example:" in cli.help


def test_readme_or_task_table_links_every_document() -> None:
    linked = set(LINK.findall((ROOT / "README.md").read_text()))
    linked |= {f"docs/work/{target}" for target in LINK.findall((ROOT / "docs/work/operations.md").read_text())}
    names = {_name(d) for d in DOCUMENTS}
    assert {n for n in names if not n.startswith("examples/")} - {"README.md"} <= linked


def test_the_folders_of_the_documents_are_the_readmes_four_layers() -> None:
    section = (ROOT / "README.md").read_text().partition("\n## Documentation\n")[2].partition("\n## ")[0]
    layers = re.split(r"^\*\*(.+)\*\*$", section, flags=re.MULTILINE)[1:]
    shown = {
        (title.lower().replace(" ", "-"), link.split("/")[1])
        for title, links in zip(layers[::2], layers[1::2], strict=True)
        for link in LINK.findall(links)
        if link.startswith("docs/")
    }
    assert shown == {(page.parent.name, page.parent.name) for page in PAGES.values()}
    assert {p.stem for p in PAGES.values()} | {"README"} == set(pages())


@pytest.mark.parametrize("document", DOCUMENTS, ids=_name)
def test_no_table_of_a_document_is_broken_by_an_empty_line(document: Path) -> None:
    """Rows need a header above them: after an empty line they are text with bars."""
    blocks = re.split(r"\n\s*\n", re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL))
    rows = [block for block in blocks if block.lstrip().startswith("|")]
    assert [block for block in rows if not re.match(r"\s*\|.*\|\n *\|[ :|-]+\|(\n|$)", block)] == []


def test_messages_that_the_documents_quote_are_in_the_code() -> None:
    sources = [ast.parse(path.read_text()) for path in (ROOT / "l0gc").rglob("*.py")]
    texts = [n.value for s in sources for n in ast.walk(s) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    quotes = [q for d in DOCUMENTS for q in re.findall(r"(?:prints|answers|message) `([^`]+ [^`]+)`", _on_one_line(d))]
    messages = [q for q in quotes if not q.startswith("l0gc ")]
    assert messages
    assert [q for q in messages if not any(q in text for text in texts)] == []


def _on_one_line(document: Path) -> str:
    return re.sub(r"\s+", " ", document.read_text())
