"""Values parsed together, values fitted alone, and a reference that shares no code with them, over random records."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, Final

import duckdb
import pyarrow as pa
import pytest

from l0gc.streamlog.controller.value_schema import VALUE_ERROR, ValueSchema, evolved
from l0gc.streamlog.values.parse import ValueParser
from l0gc.streamlog.values.schema_formats import columns_of
from tests.support.memory_store import memory_cluster, store_of
from tests.support.reconcile import put, reconcile
from tests.support.typed_reference import expected_columns
from tests.support.typed_values import a_line, fields_of

TOGETHER: Final = 50
"""Records that are parsed at once."""
PARTS: Final = (0, 0, 0.02, 0.3)
"""The share of values in each batch that may not fit."""


class BothRoads(ValueParser):
    """A parser that parses values on both roads, and counts those of the fast one."""

    def __init__(self, schema: ValueSchema) -> None:
        super().__init__(schema)
        self.counts = Counter[str]()

    def rows(self, values: list[bytes]) -> list[tuple[dict[str, Any], bool]]:
        """Return each value's columns by field name, and whether all of it fits; fail if the roads differ."""
        given = pa.array(values, pa.binary())
        alone = _rows(self._alone(given))
        if (together := self._together(given)) is not None:
            assert repr(_rows(together)) == repr(alone), values
        self.counts["together" if together is not None else "alone"] += len(values)
        names = [c.name for c in self._columns]
        return [(dict(zip(names, row, strict=False)), row[-1] is None) for row in alone]


def _rows(arrays: list[pa.Array]) -> list[tuple[Any, ...]]:
    return [*zip(*(map(_plain, a.to_pylist()) for a in arrays), strict=True)]


def _plain(value: Any) -> Any:
    """Return the value with Python's own UTC."""
    if isinstance(value, dict):
        return {name: _plain(v) for name, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo else value


def _drawn(seed: int) -> tuple[Random, list[dict[str, Any]]]:
    r = Random(seed)
    return r, fields_of(r, 6)


def _differences(seed: int, counts: Counter[str]) -> list[str]:
    r, fields = _drawn(seed)
    kinds = {f["name"]: f["type"] for f in fields}
    parser = BothRoads(evolved(None, columns_of({"fields": fields})))
    found = []
    for odd in PARTS:
        lines = [a_line(r, fields, odd) for _ in range(TOGETHER)]
        expected = [expected_columns(line, kinds) for line in lines]
        found += [
            f"{kinds} {line!r}: {got}, but the reference has {want}"
            for line, got, want in zip(lines, parser.rows(lines), expected, strict=True)
            if repr(got) != repr(want)
        ]
        counts["fit"] += sum(fits for _, fits in expected)
    counts += parser.counts
    counts["records"] += len(PARTS) * TOGETHER
    return found


@pytest.mark.parametrize(
    ("seeds", "records"),
    [
        (range(60), 12_000),
        pytest.param(range(100, 600), 10**5, marks=pytest.mark.thorough),
        pytest.param(range(600, 5_600), 10**6, marks=[pytest.mark.thorough, pytest.mark.release]),
    ],
)
def test_both_roads_and_the_reference_give_the_same_values(seeds: range, records: int) -> None:
    counts = Counter[str]()
    assert [text for seed in seeds for text in _differences(seed, counts)][:5] == []
    assert counts["records"] == records
    assert counts["together"] > records // 5, "few values took the fast road"
    assert records // 2 < counts["fit"] < records * 19 // 20


@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(10, 150), marks=pytest.mark.thorough)])
def test_duckdb_reads_in_l1_the_values_of_the_reference(seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        r, fields = _drawn(seed)
        kinds = {f["name"]: f["type"] for f in fields}
        schema = columns_of({"fields": fields})
        lines = [a_line(r, fields, odd) for odd in PARTS for _ in range(TOGETHER)]
        cluster = memory_cluster()
        cluster.controller.create_topic("events", 1, columns=schema)
        put(cluster, "events", {0: lines})
        cluster.controller.advance(None)
        expected = [expected_columns(line, kinds) for line in lines]
        assert reconcile(cluster, "events").misfits == sum(not fits for _, fits in expected)
        (body,) = (o.body for key, o in store_of(cluster).objects.items() if key.startswith("level_one/"))
        (tmp_path / "l1.parquet").write_bytes(body)
        names = ", ".join('"' + c.column.replace('"', '""') + '"' for c in schema)
        with duckdb.connect() as duck:
            read = f"SELECT {names}, {VALUE_ERROR} FROM '{tmp_path / 'l1.parquet'}' ORDER BY \"offset\""
            rows = duck.sql(read).fetchall()
        for line, row, (values, fits) in zip(lines, rows, expected, strict=True):
            found = dict(zip(kinds, map(_plain, row), strict=False))
            assert (repr(found), row[-1] is None) == (repr(values), fits), (kinds, line)
            assert fits == (row[-1] is None), json.dumps(row[-1])
