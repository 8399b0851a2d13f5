"""The tables of docs/scaling.md are what the formulas give, which the counted runs hold to account."""

from __future__ import annotations

import re

from tests.scaling import case
from tests.scaling.model import Requests
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
