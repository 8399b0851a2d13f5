"""The tables of docs/why/scaling.md are those that the formulas give, which counted runs confirm."""

from __future__ import annotations

import re
import subprocess
import sys

from docs.programs import scaling
from docs.programs.scaling import Requests
from tests.scaling import case
from tests.scaling.paper import DOCUMENT, TABLES, names, rewritten


def test_the_document_has_each_table_once() -> None:
    assert sorted(names(DOCUMENT.read_text(encoding="utf-8"))) == sorted(TABLES)


def test_the_tables_are_what_the_formulas_give() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert rewritten(text) == text, "run python -m tests.scaling.paper --write"


def test_no_part_of_the_worked_case_is_below_it() -> None:
    shares = [int(m) for m in re.findall(r"\| ([0-9]+) % \|", TABLES["limits"]())]
    assert len(shares) >= 9
    assert min(shares) >= 100


def test_the_journals_cost_at_most_15_percent_of_what_the_data_costs() -> None:
    journals = case.DAY_S * case.metadata_per_s().dollars
    housekeeping = case.DAY_S / case.HOUSEKEEP_S * case.housekeep().dollars
    assert journals + housekeeping <= 0.15 * case.DAY_S * Requests(puts=case.PER_S).dollars


def test_the_script_prints_the_hours_and_dollars_of_the_document() -> None:
    ended = subprocess.run(
        [sys.executable, scaling.__file__, "--objects", "1e9"], capture_output=True, text=True, check=True, timeout=60
    )
    text = DOCUMENT.read_text(encoding="utf-8")
    assert ended.stdout.splitlines() == case.BUCKET.lines()
    assert "in one process 2.31 h, on Spark with 16 cores 1.74 h" in ended.stdout
    assert "| all, in one process | 1 million | 2.3 h | $5.00 |" in text
    assert "13,016 LIST" in ended.stdout


def test_nothing_runs_more_often_in_a_day_than_it_can() -> None:
    """A row once had 72 full listings a day, of 1.7 hours each."""
    rows = re.findall(r"\| `compute-watermark` \|.*\| ([0-9]+) \| \$[^|]* \|", TABLES["requests"]())
    assert [int(n) * case.BUCKET.listing_spark_s <= case.DAY_S for n in rows] == [True]
