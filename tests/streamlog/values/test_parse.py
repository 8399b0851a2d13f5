"""Values to typed columns: which values fit, which do not and why; a row depends on its own bytes alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from l0gc.streamlog.controller.value_schema import FIRST_ID, VALUE_ERROR, VALUE_ERROR_ID, evolved
from l0gc.streamlog.values import parse
from l0gc.streamlog.values.fits import MAX_NESTING
from l0gc.streamlog.values.parse import ValueParser
from l0gc.streamlog.values.schema_formats import columns_of
from tests.support.processes import modules_after
from tests.support.tries import tries

PLACE: Final = {"type": "struct", "fields": [{"name": "lat", "type": "float"}, {"name": "day", "type": "date"}]}
FIELDS: Final = [
    ("id", "long"), ("small", "int"), ("x", "double"), ("f", "float"), ("ok", "boolean"), ("s", "string"),
    ("price", "decimal(6, 2)"), ("at", "timestamptz"), ("local", "timestamp"), ("day", "date"), ("key", "string"),
    ("tags", {"type": "list", "element": "string"}), ("times", {"type": "list", "element": "timestamptz"}),
    ("place", PLACE), ("places", {"type": "list", "element": PLACE}),
]  # fmt: skip
SCHEMA: Final = evolved(None, columns_of({"fields": [{"name": n, "type": t} for n, t in FIELDS]}))
PARSER: Final = ValueParser(SCHEMA)
NAMES: Final = PARSER.fields.names


class Alone(ValueParser):
    """A parser that fits each value alone, without pyarrow's parser."""

    def _together(self, values: pa.Array) -> list[pa.Array] | None:
        return None


ALONE: Final = Alone(SCHEMA)


def rows_of(parser: ValueParser, some: Sequence[bytes]) -> list[dict[str, Any]]:
    table = pa.table(parser.parse(pa.array(some, pa.binary())), schema=parser.fields)
    table.validate(full=True)
    assert table.num_rows == len(some)
    return [
        {n: v.replace(tzinfo=UTC) if isinstance(v, datetime) and v.tzinfo else v for n, v in row.items()}
        for row in table.to_pylist()
    ]


def row(value: bytes) -> dict[str, Any]:
    """Return one value's non-null columns, after a check that parsing it alone gives the same."""
    (found,), (alone,) = rows_of(PARSER, [value]), rows_of(ALONE, [value])
    assert repr(found) == repr(alone)
    return {n: v for n, v in found.items() if v is not None}


def test_columns_have_the_ids_of_the_schema_also_nested_ones() -> None:
    ids = {f.name: f.metadata[b"PARQUET:field_id"] for f in PARSER.fields}
    assert (ids["id"], ids[VALUE_ERROR]) == (b"%d" % FIRST_ID, b"%d" % VALUE_ERROR_ID)
    element = PARSER.fields.field("places").type.value_field
    assert element.metadata[b"PARQUET:field_id"] == b"10020"
    assert [f.metadata[b"PARQUET:field_id"] for f in element.type] == [b"10021", b"10022"]
    assert all(f.nullable for f in PARSER.fields)
    assert "value_key" in NAMES


def test_a_record_has_its_fields_by_their_types() -> None:
    found = row(
        b'{"id": 7, "small": -1, "x": 1, "f": 0.5, "ok": true, "s": "\\u00e4\\u0000", "price": 12.5, "key": "k", "z": [1],'
        b' "at": "2024-01-31T10:00:00.000001+01:00", "local": "2024-01-31 10:00:00","day": "2024-01-31", "tags": ["a",null],'
        b' "times": ["2024-01-31T10:00:00Z"], "place": {"lat": 1.5, "z": 1}, "places": [{}, null, {"day": "0001-01-01"}]}'
    )
    assert found == {
        "id": 7, "small": -1, "x": 1.0, "f": 0.5, "ok": True, "s": "ä\0", "price": Decimal("12.50"), "value_key": "k",
        "at": datetime(2024, 1, 31, 9, 0, 0, 1, UTC), "local": datetime(2024, 1, 31, 10), "day": date(2024, 1, 31),
        "tags": ["a", None], "times": [datetime(2024, 1, 31, 10, tzinfo=UTC)], "place": {"lat": 1.5, "day": None},
        "places": [{"lat": None, "day": None}, None, {"lat": None, "day": date(1, 1, 1)}],
    }  # fmt: skip
    assert row(b"{}") == row(b'{"id": null, "place": null, "new": {"a": 1}}') == {}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "truncated"), (b"null", "got `null`"), (b"[1]", "got `array`"), (b"7", "got `number`"), (b"\xff{}", "utf-8"),
        (b'{"s": "\xff"}', "utf-8"), (b'{"other": "\xff"}', "utf-8"), (b"{}{}", "trailing"), (b"{}\n{}", "trailing"),
        (b'{"id": "7"}', "Expected `long`, got `string` - at `$.id`"), (b'{"id": 7.0}', "$.id"), (b'{"id": true}', "$.id"),
        (b'{"id": 9223372036854775808}', "$.id"), (b'{"small": 2147483648}', "$.small"), (b'{"x": NaN}', "malformed"),
        (b'{"other": Infinity}', "malformed"), (b'{"x": 1e999}', "$.x"), (b'{"f": 1e39}', "$.f"), (b'{"ok": 1}', "$.ok"),
        (b'{"x": 1' + b"0" * 400 + b"}", "$.x"), (b'{"s": 1}', "$.s"), (b'{"s": "\\ud800"}', "truncated"),
        (b'{"price": 12345.00}', "$.price"), (b'{"price": 0.001}', "$.price"), (b'{"price": "NaN"}', "$.price"),
        (b'{"price": 1e400}', "$.price"), (b'{"price": 1e999999999}', "$.price"), (b'{"price": 1e-999999999}', "$.price"),
        (b'{"at": "2024-01-31T10:00:00"}', "$.at"), (b'{"at": 1706695200}', "$.at"), (b'{"at": "2024-01-31"}', "$.at"),
        (b'{"at": "0001-01-01T00:00:00+05:00"}', "$.at"), (b'{"local": "2024-01-31T10:00:00Z"}', "$.local"),
        (b'{"day": "2024-02-30"}', "$.day"), (b'{"day": 19000}', "$.day"), (b'{"day": "0000-01-01"}', "$.day"),
        (b'{"tags": "a"}', "$.tags"), (b'{"place": []}', "$.place"), (b'{"price": "1_0"}', "$.price"),
        (b'{"price": " 1"}', "$.price"), (b'{"at": "9999-12-31T23:00:00-01:00"}', "in the years 1 to 9999 of UTC"),
        (b'{"at": "2024-01-31T10:00:60Z"}', "$.at"), (b'{"at": "2024-01-31T10:00:00+24:00"}', "$.at"),
        (b'{"other": ' + b"[" * MAX_NESTING + b"]" * MAX_NESTING + b"}", "nested more than 200"),
        (b'{"other": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001, "nested more than 200"),
    ],
)  # fmt: skip
def test_a_misfit_is_null_and_its_reason_is_named(value: bytes, why: str) -> None:
    found = row(value)
    assert list(found) == [VALUE_ERROR]
    assert why in found[VALUE_ERROR]


@pytest.mark.parametrize(
    "value",
    [
        b'{"id": 1, "id": 7}', b' {"id": 7}', b'{"id": 7}\n', b'{\n"id":\n7\n}', b'{"id": 7, "other": 1e999}',
        b'{"\\u0069d": 7}',
        b'{"id": 7, "other": "Infinity"}', b'{"id": 7, "other": ": NaN"}', b'{"id": 7, "z": 1, "z": 2}',
        b'{"id": 7, "other": ' + b"[" * (MAX_NESTING - 1) + b"]" * (MAX_NESTING - 1) + b"}",
        b'{"id": 7, "other": [' + b",".join([b"[]"] * 1000) + b"]}",
        b'{"id": 7, "other": "' + b"[" * 1000 + b'"}',
    ],
)  # fmt: skip
def test_unusual_json_fits_whatever_is_parsed_with_it(value: bytes) -> None:
    assert row(value) == {"id": 7}
    assert [r["id"] for r in rows_of(PARSER, [b'{"id": 1}', value, b"", b'{"id": 3}'])] == [1, 7, None, 3]


@pytest.mark.parametrize(
    ("value", "kept", "why"),
    [
        (b'{"id": "7", "s": "a"}', {"s": "a"}, "Expected `long`, got `string` - at `$.id`"),
        (b'{"tags": ["a", 1, "b"]}', {"tags": ["a", None, "b"]}, "Expected `string`, got `number` - at `$.tags[1]`"),
        (b'{"place": {"lat": "1", "day": "2024-01-31"}}', {"place": {"lat": None, "day": date(2024, 1, 31)}}, "$.place.lat"),
        (b'{"places": [{"lat": "1"}, {"lat": 1}]}', {"places": [{"lat": None, "day": None}, {"lat": 1.0, "day": None}]},
         "$.places[0].lat"),
        (b'{"id": 7.5, "ok": 1, "x": 1}', {"x": 1.0},
         "got a number with a fraction or an exponent - at `$.id`; Expected `boolean`, got `number` - at `$.ok`"),
    ],
)  # fmt: skip
def test_a_misfit_leaves_all_other_fields_as_they_are(value: bytes, kept: dict[str, Any], why: str) -> None:
    found = row(value)
    assert why in found.pop(VALUE_ERROR)
    assert found == kept


@pytest.mark.parametrize("price", ["1e2", '"1e2"', '"1."', "0e5", "0.10000", '"+1"', "9999.99", "-0", '".5"'])
def test_decimals_are_what_python_has_them(price: str) -> None:
    assert row(b'{"price": %s}' % price.encode()) == {"price": Decimal(price.strip('"'))}


@pytest.mark.parametrize(
    ("kind", "text"),
    [("decimal(2, 1)", "99"), ("decimal(2, 1)", "-99"), ("decimal(38, 10)", "9e37"), ("decimal(38, 38)", "1")],
)
def test_a_decimal_beyond_its_column_is_null_whatever_its_neighbours(kind: str, text: str) -> None:
    parser = ValueParser(evolved(None, columns_of({"fields": [{"name": "d", "type": kind}]})))
    small, beyond = b'{"d": 0.1}', b'{"d": %s}' % text.encode()
    assert [r["d"] for r in rows_of(parser, [small, beyond, small])] == [Decimal("0.1"), None, Decimal("0.1")]
    assert [r["d"] for r in rows_of(parser, [beyond])] == [None]
    assert "more digits than it has" in rows_of(parser, [beyond])[0][VALUE_ERROR]


def test_a_column_with_a_name_in_any_script_has_misfits() -> None:
    names = ["größe", "価格", "\U0001f600"]
    parser = ValueParser(evolved(None, columns_of({"fields": [{"name": n, "type": "int"} for n in names]})))
    for name in names:
        good, bad = (f'{{"{name}": {v}}}'.encode() for v in ("1", '"1"'))
        found = rows_of(parser, [good, bad, good])
        assert [r[name] for r in found] == [1, None, 1]
        assert [r[VALUE_ERROR] for r in found] == [None, f"Expected `int`, got `string` - at `$.{name}`", None]


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59.999999999Z"])
def test_the_first_and_the_last_time_fit(text: str) -> None:
    assert row(f'{{"at": "{text}", "local": "{text[:-1]}"}}'.encode()) == {
        "at": datetime.fromisoformat(text), "local": datetime.fromisoformat(text[:-1])
    }  # fmt: skip


def test_times_are_cut_to_microseconds_whatever_is_parsed_with_them() -> None:
    found = row(b'{"at": "2024-01-31T10:00:00.123456789Z"}')
    assert found == {"at": datetime(2024, 1, 31, 10, 0, 0, 123456, UTC)}


def test_rows_stay_in_their_places_over_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse, "BATCH_ROWS", 7)
    monkeypatch.setattr(parse, "BATCH_BYTES", 80)
    monkeypatch.setattr(parse, "PIECE_ROWS", 3)
    some = [b'{"id": %d, "s": "%s"}' % (i, b"x" * (i % 50)) if i % 5 else b'{"id": "%d"}' % i for i in range(100)]
    found = rows_of(PARSER, some)
    assert [r["id"] for r in found] == [i if i % 5 else None for i in range(100)]
    assert [r[VALUE_ERROR] is None for r in found] == [bool(i % 5) for i in range(100)]
    assert rows_of(PARSER, []) == []


# -- random values ------------------------------------------------------------------------------------------------------

INNER = st.recursive(
    st.sampled_from(
        [
            *(
                None,
                True,
                0,
                -1,
                2**31,
                2**63,
                10**40,
                0.5,
                -0.0,
                1e300,
                1e-320,
                3.4028235677973366e38,
                "",
                "1",
                "a\nb",
                "NaN",
            ),
            *(
                "2024-01-31T10:00:00Z",
                "2024-01-31T10:00:00",
                "2024-01-31",
                "0001-01-01T00:00:00Z",
                "2024-01-31T10:00:00.1234567Z",
            ),
        ]
    )
    | st.text(max_size=4)
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.decimals(-1000, 1000, places=2).map(str),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["lat", "day", "z"]), inner, max_size=3)
    ),
    max_leaves=5,
)
GOOD = st.fixed_dictionaries(
    {},
    optional={
        "id": st.integers(-(2**63), 2**63 - 1),
        "small": st.integers(-(2**31), 2**31 - 1),
        "x": st.integers() | st.floats(allow_nan=False, allow_infinity=False),
        "f": st.floats(width=32, allow_nan=False, allow_infinity=False),
        "ok": st.booleans(),
        "s": st.text(max_size=5),
        "price": st.decimals(-9999, 9999, places=2).map(str),
        "day": st.dates().map(str),
        "at": st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)).map(lambda t: t.isoformat() + "+02:30"),
        "local": st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)).map(datetime.isoformat),
        "tags": st.lists(st.text(max_size=3) | st.none(), max_size=3),
        "place": st.fixed_dictionaries(
            {}, optional={"lat": st.floats(width=16, allow_nan=False, allow_infinity=False), "z": INNER}
        ),
        "z": INNER,
    },
)
ANY = st.dictionaries(st.sampled_from([n for n, _ in FIELDS] + ["z"]), INNER, max_size=4)
JSON = (GOOD | ANY).map(lambda record: json.dumps(record, ensure_ascii=False).encode(errors="replace"))
HOSTILE = st.sampled_from(
    [
        *(
            b"",
            b"{",
            b"}",
            b"{}",
            b"{}{}",
            b"{}\n{}",
            b"null",
            b'{"s":"}',
            b'{"tags":[{}',
            b'"}',
            b'{"id":1}',
            b"\n",
            b"[]",
            b" {}",
        ),
        *(
            b'{"z":NaN}',
            b'{"x":Infinity}',
            b'{"id":1,"id":2}',
            b'{"z":"\\ud800"}',
            b'{"s":"\xff"}',
            b'{"z":1e999}',
            b'{"id":01}',
        ),
    ]
)
CUT = st.tuples(JSON, st.integers(0, 40), st.binary(max_size=2)).map(lambda c: c[0][: c[1]] + c[2] + c[0][c[1] + 1 :])


@given(st.lists(JSON | HOSTILE | CUT, max_size=6))
@tries(80)
def test_a_row_depends_on_its_own_bytes_alone(some: list[bytes]) -> None:
    together = rows_of(PARSER, some)
    assert repr(together) == repr(rows_of(ALONE, some))
    assert repr(together) == repr([rows_of(PARSER, [value])[0] for value in some])


@given(st.lists(GOOD, min_size=1, max_size=6))
@example([{"x": 2**53 + 1}])
@tries(50)
def test_what_fits_has_the_values_that_python_reads(some: list[dict[str, Any]]) -> None:
    found = rows_of(PARSER, [json.dumps(record).encode() for record in some])
    for got, record in zip(found, some, strict=True):
        if "x" in record and abs(record["x"]) > 1e308:
            continue
        assert got[VALUE_ERROR] is None
        for name in ("id", "small", "f", "ok", "s", "tags"):
            assert got[name] == record.get(name)
        assert got["x"] == (float(record["x"]) if "x" in record else None)
        assert got["price"] == (Decimal(record["price"]) if "price" in record else None)
        assert got["day"] == (date.fromisoformat(record["day"]) if "day" in record else None)
        assert got["at"] == (datetime.fromisoformat(record["at"]) if "at" in record else None)


WITHOUT_PANDAS = """
from l0gc.columns import binary
from l0gc.streamlog.controller.value_schema import evolved
from l0gc.streamlog.values.parse import ValueParser
from l0gc.streamlog.values.schema_formats import columns_of
parser = ValueParser(evolved(None, columns_of({"fields": [{"name": "id", "type": "long"}]})))
assert parser.parse(binary([b'{"id": 7}']))[0][0].as_py() == 7
"""


def test_values_are_parsed_without_pandas_which_takes_long_to_import() -> None:
    assert "pandas" not in modules_after(WITHOUT_PANDAS)
