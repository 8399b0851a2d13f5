"""Six commands report each answer of a store with one cause and one exit code, as in docs/first-hour/stores.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from l0gc.cli.main import cli
from l0gc.cli.output import taking_results
from l0gc.errors import L0gcError
from tests.support.scripted_s3 import Scripted, assert_no_secrets

pytestmark = [pytest.mark.usefixtures("credentials"), pytest.mark.thorough, pytest.mark.slow]
TABLE = Path(__file__).parents[2] / "docs/first-hour/stores.md"
ROW = re.compile(r"^\| (\d{3}) (\w+) \| (.+) \| (\d) \|$", re.MULTILINE)


class Row(NamedTuple):
    """A row of the table: an answer, a part of the sentence, and the exit code."""

    status: int
    code: str
    says: str
    exit_code: int


ROWS = [Row(int(s), c, says, int(e)) for s, c, says, e in ROW.findall(TABLE.read_text())]
COMMANDS = (
    ["doctor"], ["status"], ["gc"], ["upload", "events", "FILE"], ["sweep"], ["read", "events"],
)  # fmt: skip


def test_the_table_has_many_answers() -> None:
    assert len(ROWS) >= 25


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r.status}-{r.code}")
def test_every_command_says_of_an_answer_what_the_table_says(
    row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("l0gc.storage.access.ATTEMPTS", 1)
    lines = tmp_path / "lines"
    lines.write_text("a\nb\n")
    with Scripted(row.status, row.code) as server:
        endpoint = server.store.config.endpoint_url or ""
        for command in COMMANDS:
            words = [str(lines) if word == "FILE" else word for word in command]
            with pytest.raises(L0gcError) as e, taking_results() as results:
                cli.main([*words, "--url", "s3://bucket/p", "--endpoint-url", endpoint], "l0gc", standalone_mode=False)
            said = str(results[-1].data) if results else str(e.value)
            assert row.says in said, command
            assert (e.value.exit_code, "\n" in str(e.value)) == (row.exit_code, False), command
            assert_no_secrets(e.value)
