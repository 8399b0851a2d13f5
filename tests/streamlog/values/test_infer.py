"""Proposed schemas: the types that the records show, without rounding, and a reason for each field that is omitted."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from l0gc.streamlog.controller.value_schema import evolved, fields_json
from l0gc.streamlog.values.infer import inferred
from l0gc.streamlog.values.schema_formats import columns_of
from tests.streamlog.controller.test_value_schema import NAMES, shown


def test_a_schema_is_inferred_from_records() -> None:
    columns, left_out = inferred(
        [
            b'{"id": 1, "x": 1, "at": "2024-01-31T10:00:00Z", "day": "2024-01-31", "tags": [], "n": null, "mix": 1, "a.b": 1}',  # noqa: E501
            b'{"id": 2, "x": 1.5, "at": "2024-01-31T10:00:00.25Z", "tags": ["a"], "n": null, "mix": "1", "s": {"u": 0.5}}',
            b"nonsense",
            b"",
            b"[1]",
            b'{"id": 3, "day": "soon", "s": {"v": [1, 2.5]}, "big": 123456789012345678901234567890}',
        ]
    )
    assert shown(columns) == [
        *(
            ("id", "long"),
            ("x", "double"),
            ("at", "timestamptz"),
            ("day", "string"),
            ("tags", ["list", ("element", "string")]),
        ),
        *(
            ("n", "string"),
            ("s", ["struct", ("u", "double"), ("v", ["list", ("element", "double")])]),
            ("big", "decimal(38, 0)"),
        ),
    ]
    assert [(f.field, f.reason.split(",")[0]) for f in left_out] == [
        ("mix", "has values of several types"),
        ("a.b", "field name 'a.b' must have 1 to 200 printable characters without a dot"),
    ]
    assert evolved(None, columns_of({"fields": fields_json(columns)})).number == 1


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(NAMES | st.text(max_size=3), VALUES, max_size=5), max_size=4))
def test_what_is_inferred_is_a_schema(records: list[dict[str, Any]]) -> None:
    columns, left_out = inferred([msgspec.json.encode(r) for r in records])
    proposed = {c.name for c in columns} | {f.field.split(".")[0] for f in left_out}
    assert proposed >= {name for r in records for name in r if name and "." not in name}
    if columns:
        assert evolved(None, columns_of({"fields": fields_json(columns)})).number == 1


def test_integers_beyond_a_long_are_decimals_and_never_doubles() -> None:
    def types(first: bytes, value: int) -> list[str]:
        return [c.type for c in inferred([b'{"id": %b}' % first, b'{"id": %d}' % value])[0]]

    assert [types(b"1", value) for value in (2**63, 10**20 - 1)] == [["decimal(20, 0)"]] * 2
    assert [types(b"1", value) for value in (10**20, -(10**25))] == [["decimal(38, 0)"]] * 2
    assert types(b"1", 10**38) == []
    assert types(b"0.5", 2**63) == ["double"]


def test_what_is_left_out_is_named_with_its_reason() -> None:
    columns, left_out = inferred([b'{"id": 1, "ID": 2, "": 3, "s": {"a.b": 1, "x": []}, "m": [1, "a"], "o": {}}'])
    assert shown(columns) == [("id", "long")]
    assert {f.field: f.reason for f in left_out} == {
        "ID": "field 'id' occurs twice, since tables ignore case; leave one of them out",
        "": "field name '' must have 1 to 200 printable characters without a dot",
        "s.a.b": "field name 'a.b' must have 1 to 200 printable characters without a dot",
        "s.x": "is always empty",
        "m.element": "has values of several types, or values that no column can hold",
        "o": "is always empty",
    }
    assert inferred([b'{"first": "0001-01-01T00:00:00Z", "last": "9999-12-31"}'])[0][0].type == "timestamptz"
