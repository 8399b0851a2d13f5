"""The tables of docs/scaling.md are what the formulas give, which the counted runs hold to account."""

from __future__ import annotations

from math import ceil, floor

from tests.scaling import case
from tests.scaling.paper import DOCUMENT, TABLES, names, rewritten


def test_the_document_has_each_table_once() -> None:
    assert sorted(names(DOCUMENT.read_text(encoding="utf-8"))) == sorted(TABLES)


def test_the_tables_are_what_the_formulas_give() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert rewritten(text) == text, "run python -m tests.scaling.paper --write"


def test_the_figures_between_the_tables_are_what_the_formulas_give() -> None:
    text = " ".join(DOCUMENT.read_text(encoding="utf-8").split())
    busy = case.partitions_in_time(case.each_of(case.housekeep()), case.HOUSEKEEP_S)
    cores = ceil(case.CORES * case.OBJECTS / case.keys_in_time())
    for said in (
        f"below {100 * floor(busy / 100):,} busy partitions",
        f"The case would be {ceil(case.PARTITIONS / busy)} of them",
        f"or from {cores} cores on",
    ):
        assert said in text
