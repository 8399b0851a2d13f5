"""The site, the man pages and the package's own page are built without the network, from this checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from docs.programs.links import DOCS, PAGES
from l0gc.cli.main import COMMANDS, cli

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NO_NETWORK = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
LINK = re.compile(r"\]\(([^)\s]+)\)")


def leaves(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """Yield a command and those below it."""
    yield name, command
    if isinstance(command, click.Group):
        for sub, below in command.commands.items():
            yield from leaves(below, f"{name} {sub}")


def every_command() -> dict[str, click.Command]:
    context = click.Context(cli)
    found: dict[str, click.Command] = {}
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        found |= dict(leaves(command, f"l0gc {name}"))
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; a warning of Sphinx ends the build."""
    folder = tmp_path_factory.mktemp("site")
    ended = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", str(folder / "trees"), "docs", str(folder)],
        cwd=ROOT,
        env={**os.environ, **NO_NETWORK},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return folder


@pytest.mark.thorough
def test_the_site_has_every_document_every_option_and_the_api(site: Path) -> None:
    for document in PAGES.values():
        assert (site / document.relative_to(DOCS).with_suffix(".html")).is_file()
    reference = (site / "reference/cli.html").read_text()
    for name, command in every_command().items():
        assert re.search(rf"<h\d>{name.rpartition(' ')[2]}<", reference), name
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert option.opts[0] in reference
    api = (site / "reference/api.html").read_text()
    for name in (
        "l0gc.api.open",
        "l0gc.api.Cluster.upload",
        "l0gc.api.Cluster.sweep",
        "l0gc.api.Cluster.explain",
        "l0gc.api.Topics.create",
    ):
        assert f'id="{name}"' in api


@pytest.mark.thorough
def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text()
        loaded = re.findall(r'<(?:script|img)[^>]* src="([^"]*)"|<link rel="stylesheet"[^>]* href="([^"]*)"', text)
        assert not [u for pair in loaded for u in pair if "//" in u], page
        led = {page.parent / path for path in re.findall(r' href="([^"#:?]+)[#"?]', text)}
        assert [path for path in led if not (path.is_file() and path.resolve().is_relative_to(site))] == [], page


def test_every_command_has_a_man_page_with_all_of_its_options(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "docs/programs/man_pages.py", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, **NO_NETWORK},
        check=True,
    )
    commands = {"l0gc": cli, **every_command()}
    assert {p.name for p in tmp_path.iterdir()} == {f"{name.replace(' ', '-')}.1" for name in commands}
    for name, command in commands.items():
        page = (tmp_path / f"{name.replace(' ', '-')}.1").read_text()
        assert page.startswith(f'.TH "{name.upper()}" "1"')
        assert "\x08" not in page
        assert "..." not in page.split(".SH SYNOPSIS")[0]
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert option.opts[0].replace("-", r"\-") in page, (name, option.opts)


def test_links_and_the_picture_of_the_readme_work_outside_the_repository() -> None:
    text = (ROOT / "README.md").read_text()
    for change in PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(change["pattern"], change["replacement"], text)
    source = PROJECT["project"]["urls"]["Source"]
    targets = LINK.findall(text)
    assert len(targets) > 20
    assert [t for t in targets if not t.startswith(("https://", "#"))] == []
    (picture,) = [t for t in targets if t.endswith(".png")]
    assert picture.startswith("https://raw.githubusercontent.com/")
    for target in (t for t in targets if t.startswith(f"{source}/blob/main/")):
        assert (ROOT / target.removeprefix(f"{source}/blob/main/").partition("#")[0]).exists(), target


def test_the_package_says_whose_it_is_and_where() -> None:
    project = PROJECT["project"]
    assert project["authors"]
    assert {"Homepage", "Documentation", "Changelog", "Issues", "Source"} <= set(project["urls"])
    assert project["dynamic"] == ["readme"]
    supported = {
        c.rpartition(" ")[2] for c in project["classifiers"] if c.startswith("Programming Language :: Python :: 3.")
    }
    assert f"{sys.version_info[0]}.{sys.version_info[1]}" in supported
    assert re.fullmatch(r"\d+\.\d+\.\d+", project["version"])


def test_where_the_repository_is_only_the_package_says() -> None:
    place = PROJECT["project"]["urls"]["Source"].removeprefix("https://github.com/")
    said = re.findall(r"github(?:usercontent)?\.com/([\w-]+/[\w-]+)", (ROOT / "pyproject.toml").read_text())
    assert len(said) > 5
    assert set(said) == {place}
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    texts = (
        ROOT / name for name in listed.split("\0") if name.endswith((".md", ".py", ".rst", ".toml", ".yaml", ".yml"))
    )
    elsewhere = [p.name for p in texts if p.is_file() and f"github.com/{place}" in p.read_text()]
    assert elsewhere == ["pyproject.toml"]


def test_the_changelog_has_unreleased_and_current_sections() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert headings[1].startswith(PROJECT["project"]["version"])
