"""Rows become values: a value gives the same columns back, or an error names the column."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from l0gc.errors import UsageError
from l0gc.streamlog.controller.value_schema import ValueSchema, evolved
from l0gc.streamlog.ingest.records import records_of
from l0gc.streamlog.values.encode import values_of
from l0gc.streamlog.values.parse import ValueParser
from l0gc.streamlog.values.schema_formats import columns_of
from tests.support.typed_values import a_line, fields_of

PLACE = {"type": "struct", "fields": [{"name": "lat", "type": "float"}, {"name": "day", "type": "date"}]}
FIELDS = {
    "id": "long", "small": "int", "x": "double", "f": "float", "ok": "boolean", "s": "string", "price": "decimal(38, 10)",
    "at": "timestamptz", "local": "timestamp", "day": "date", "key": "string", "places": {"type": "list", "element": PLACE},
}  # fmt: skip
SCHEMA = evolved(None, columns_of({"fields": [{"name": n, "type": t} for n, t in FIELDS.items()]}))
AT = datetime(2024, 1, 31, 10, 0, 0, 123_456)


def parsed(values: list[bytes], schema: ValueSchema = SCHEMA) -> pa.Table:
    parser = ValueParser(schema)
    return pa.table(parser.parse(pa.array(values, pa.binary())), schema=parser.fields)


def encoded(table: Any, schema: ValueSchema = SCHEMA) -> list[bytes]:
    return [fields[0] for fields in records_of(table, schema=schema)]


def test_a_row_has_all_its_digits_and_microseconds_in_its_value() -> None:
    row = {
        "id": 2**63 - 1, "small": -1, "x": -0.0, "f": 0.5, "ok": True, "s": "ä\0", "price": Decimal("1.0000000001"),
        "at": AT.replace(tzinfo=UTC), "local": AT, "day": date(1, 1, 1), "value_key": "k",
        "places": [{"lat": 1.5, "day": None}, None],
    }  # fmt: skip
    (value,) = encoded(pa.Table.from_pylist([row], schema=parsed([]).drop_columns("value_error").schema))
    assert json.loads(value, parse_float=str) == {
        "id": 2**63 - 1, "small": -1, "x": "-0.0", "f": "0.5", "ok": True, "s": "ä\0", "price": "1.0000000001",
        "at": "2024-01-31T10:00:00.123456Z", "local": "2024-01-31T10:00:00.123456", "day": "0001-01-01", "key": "k",
        "places": [{"lat": "1.5", "day": None}, None],
    }  # fmt: skip
    (found,) = parsed([value]).to_pylist()
    assert found == {**row, "value_error": None}
    assert str(found["x"]) == "-0.0"


def test_rows_of_any_schema_give_back_the_columns_that_they_had() -> None:
    counts = Counter[str]()
    for seed in range(60):
        r = Random(seed)
        fields = fields_of(r, 6)
        schema = evolved(None, columns_of({"fields": fields}))
        table = parsed([a_line(r, fields, 0.02) for _ in range(50)], schema)
        rows = table.drop_columns("value_error")
        again = parsed(values_of(rows.combine_chunks().to_batches()[0], schema, "the table"), schema)
        assert repr(again.drop_columns("value_error").to_pylist()) == repr(rows.to_pylist()), fields
        assert again["value_error"].null_count == 50, again["value_error"]
        counts["rows"] += 50
    assert counts["rows"] == 3_000


def test_frames_of_pandas_and_polars_are_encoded_by_the_schema() -> None:
    rows = {"id": [1, None], "s": ["a", None], "x": [0.5, 1.0], "at": [AT.replace(tzinfo=UTC)] * 2}
    polars = encoded(pl.DataFrame(rows, schema_overrides={"at": pl.Datetime("us", "UTC")}))
    pandas = encoded(pd.DataFrame(rows))
    assert polars == pandas
    assert [json.loads(v) for v in polars] == [
        {"id": 1, "x": 0.5, "s": "a", "at": "2024-01-31T10:00:00.123456Z"}, {"x": 1.0, "at": "2024-01-31T10:00:00.123456Z"},
    ]  # fmt: skip
    assert encoded(pl.DataFrame({"s": ["a", "b"]}, schema={"s": pl.Categorical})) == [b'{"s":"a"}', b'{"s":"b"}']


@pytest.mark.parametrize(
    ("column", "why"),
    [
        (("x", pa.array([float("nan")])), "column 'x' of the table has NaN or infinity"),
        (("x", pa.array([float("inf")])), "has NaN or infinity"), (("f", pa.array([1e39])), "beyond a float"),
        (("id", pa.array(["7"])), "column 'id' of the table is string, and the topic's value schema has long"),
        (("id", pa.array([7.5])), "does not fit long"), (("small", pa.array([2**31])), "does not fit int"),
        (("id", pa.array([True])), "is bool"), (("s", pa.array([b"a"])), "is binary"), (("s", pa.array([1])), "is int64"),
        (("x", pa.array([2**53 + 1])), "does not fit double"), (("price", pa.array([0.1])), "is double"),
        (("price", pa.array([Decimal("1.00000000001")])), "does not fit decimal"),
        (("at", pa.array([AT])), "is timestamp"), (("local", pa.array([AT.replace(tzinfo=UTC)])), "is timestamp"),
        (("at", pa.array([1_000_000_001], pa.timestamp("ns", "UTC"))), "does not fit timestamptz"),
        (("places", pa.array([[{"lat": 1.0, "z": 1}]])), "has a field 'z', which is not in the topic's value schema"),
        (("places", pa.array([[{"lat": float("nan")}]])), "field 'lat' of column 'places' of the table has NaN"),
        (("other", pa.array([1])), "has a column 'other', and records .* and those of the topic's value"),
    ],
)  # fmt: skip
def test_what_would_lose_something_is_refused_by_the_columns_name(column: tuple[str, pa.Array], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        encoded(pa.table({column[0]: column[1]}))


def test_rows_without_values_need_a_topic_with_a_value_schema() -> None:
    with pytest.raises(
        UsageError, match="the table has a column 'id', and records are taken from the columns value, key"
    ):
        [*records_of(pa.table({"id": [1]}))]


def test_typed_columns_next_to_values_are_passed_over() -> None:
    values = [b'{"id": 1}', b"nonsense"]
    both = parsed(values).append_column("value", pa.array(values, pa.binary()))
    assert [fields[0] for fields in records_of(both)] == values
    edited = (
        both.replace_schema_metadata().select(["value", "id"]).cast(pa.schema({"value": pa.binary(), "id": pa.int64()}))
    )
    with pytest.raises(UsageError, match="has a column 'id'"):
        [*records_of(edited)]
