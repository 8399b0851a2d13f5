"""Schemas from users: Iceberg's, Arrow's and JSON Schema's JSON become columns, or an error names the field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from l0gc.errors import UsageError
from l0gc.streamlog.controller.value_schema import evolved
from l0gc.streamlog.values.schema_formats import columns_of
from tests.streamlog.controller.test_value_schema import fields, shown

ARROW = {
    "schema": {
        "fields": [
            {"name": "i", "type": {"name": "int", "bitWidth": 32, "isSigned": True}, "children": []},
            {"name": "u", "type": {"name": "int", "bitWidth": 32, "isSigned": False}, "children": []},
            {"name": "f", "type": {"name": "floatingpoint", "precision": "SINGLE"}, "children": []},
            {"name": "d", "type": {"name": "decimal", "precision": 9, "scale": 2}, "children": []},
            {"name": "t", "type": {"name": "timestamp", "unit": "NANOSECOND", "timezone": "UTC"}, "children": []},
            {"name": "n", "type": {"name": "timestamp", "unit": "SECOND"}, "children": []},
            {"name": "b", "type": {"name": "bool"}, "children": []},
            {"name": "day", "type": {"name": "date", "unit": "DAY"}, "children": []},
            {"name": "s", "type": {"name": "utf8"}, "children": []},
            {
                "name": "l",
                "type": {"name": "list"},
                "children": [{"name": "item", "type": {"name": "floatingpoint", "precision": "DOUBLE"}}],
            },
            {
                "name": "r",
                "type": {"name": "struct"},
                "children": [{"name": "x", "type": {"name": "int", "bitWidth": 64}}],
            },
        ]
    }
}
JSON_SCHEMA: dict[str, Any] = {
    "type": "object",
    "$defs": {
        "Place": {"type": "object", "properties": {"lat": {"type": "number"}, "zip": {"type": "string"}}},
        "a/b ~": {"const": 7},
    },
    "properties": {
        "id": {"type": "integer"},
        "small": {"type": "integer", "format": "int32"},
        "price": {"type": ["number", "null"]},
        "at": {"type": "string", "format": "date-time"},
        "day": {"type": "string", "format": "date"},
        "ok": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "place": {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]},
        "maybe": {"allOf": [{"$ref": "#/$defs/Place"}], "default": None, "description": "as pydantic writes it"},
        "kind": {"enum": ["a", "b", None]},
        "flag": {"const": True},
        "level": {"enum": [1, 2.5]},
        "escaped": {"$ref": "#/$defs/a~1b%20~0"},
        "second": {"$ref": "#/properties/place/anyOf/0"},
        "same": {"oneOf": [{"type": "integer"}, {"type": "integer", "minimum": 3}]},
        "big": {"type": "integer", "format": "uint64"},
    },
}


def test_arrow_iceberg_and_json_schemas_are_accepted() -> None:
    assert shown(columns_of(ARROW)) == [
        *(
            ("i", "int"),
            ("u", "long"),
            ("f", "float"),
            ("d", "decimal(9, 2)"),
            ("t", "timestamptz"),
            ("n", "timestamp"),
        ),
        *(("b", "boolean"), ("day", "date"), ("s", "string"), ("l", ["list", ("element", "double")])),
        ("r", ["struct", ("x", "long")]),
    ]
    at_root: dict[str, Any] = {"$ref": "#/$defs/Event", "$defs": {**JSON_SCHEMA["$defs"], "Event": JSON_SCHEMA}}
    at_root["$defs"]["Event"] = JSON_SCHEMA | {
        "properties": JSON_SCHEMA["properties"] | {"second": {"$ref": "#/$defs/Place"}}
    }
    assert columns_of(at_root) == columns_of(JSON_SCHEMA)
    assert shown(columns_of(json.dumps(JSON_SCHEMA))) == [
        *(
            ("id", "long"),
            ("small", "int"),
            ("price", "double"),
            ("at", "timestamptz"),
            ("day", "date"),
            ("ok", "boolean"),
        ),
        ("tags", ["list", ("element", "string")]),
        ("place", ["struct", ("lat", "double"), ("zip", "string")]),
        ("maybe", ["struct", ("lat", "double"), ("zip", "string")]),
        *(("kind", "string"), ("flag", "boolean"), ("level", "double"), ("escaped", "long")),
        ("second", ["struct", ("lat", "double"), ("zip", "string")]),
        *(("same", "long"), ("big", "decimal(20, 0)")),
    ]
    listed = {"type": "list", "element-id": 9, "element": {"type": "struct", "fields": [{"name": "x", "type": "long"}]}}
    iceberg = columns_of(fields(("a", "decimal(9,2)"), ("l", listed)))
    assert shown(iceberg) == [("a", "decimal(9, 2)"), ("l", ["list", ("element", ["struct", ("x", "long")])])]


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ("", "not JSON"),
        ("[]", "neither"),
        ("{}", "neither"),
        ('{"fields": [1]}', "has no name"),
        ('{"fields": [{"name": "a"}]}', "'a' of the value schema has no type"),
        ('{"fields": 7}', "not an array"),
        ('{"properties": {"a": true}}', "'a' of the value schema does not say what it holds"),
        ('{"type": "array"}', "does not say"),
        ('{"properties": {}}', "without properties"),
        ({"properties": {"a": {}}}, "'a' of the value schema does not say"),
        ({"properties": {"s": {"properties": {"a": {}}}}}, "'s.a' of the value schema does not say"),
        ({"properties": {"a": {"enum": ["x", 1]}}}, "several types"),
        ({"properties": {"a": {"enum": [None]}}}, "always null"),
        ({"properties": {"a": {"const": {"x": 1}}}}, "without properties"),
        ({"properties": {"a": {"allOf": [{"type": "string"}, {"minLength": 1}]}}}, "allOf of several"),
        ({"properties": {"a": {"type": "array", "items": [{"type": "string"}]}}}, "a tuple"),
        ({"properties": {"a": {"type": "array", "prefixItems": [{"type": "string"}]}}}, "a tuple"),
        ({"properties": {"a": {"type": "array", "items": {}}}}, "'a.element' of the value schema does not say"),
        ({"properties": {"a": {"$ref": "other.json"}}}, "refers to 'other.json', which is not in this schema"),
        ({"properties": {"a": {"$ref": "#/$defs/b"}}}, "which does not exist"),
        ({"properties": {"a": {"$ref": "#/properties/b", "type": "string"}}}, "resolves only one"),
        (fields(("a", "uuid")), "type uuid"),
        ({"properties": {"a": {"type": "file"}}}, "type 'file'"),
        ({"properties": {"a": {"type": 7}}}, "type '7'"),
        *(
            (
                {
                    "fields": [
                        {"name": "a", "type": {"name": kind}, "children": [{"name": "x", "type": {"name": "utf8"}}] * 2}
                    ]
                },
                f"Arrow's type '{kind}'",
            )
            for kind in ("map", "duration", "time", "binary", "fixedsizebinary", "union", "null")
        ),
        (fields(("a", "decimal(39, 2)")), "decimal"),
        (fields(("a", "decimal(2, 3)")), "decimal"),
        (fields(("a", {"type": "map"})), "type map"),
        (fields(("a", {"type": "struct", "fields": []})), "without contents"),
        (fields(("a", "int"), ("A", "int")), "ignore case"),
        (fields(("a.b", "int")), "without a dot"),
        (fields(("", "int")), "printable"),
        (fields(("a\n", "int")), "printable"),
        (fields(("x" * 201, "int")), "200"),
        (fields(("key", "int"), ("value_key", "int")), "value_key"),
        ({"properties": {"a": {"type": "object"}}}, "without properties"),
        ({"properties": {"a": {"type": ["string", "integer"]}}}, "several types"),
        ({"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}}, "several types"),
        ({"properties": {"a": {"$ref": "#/properties/a"}}}, "refers to itself"),
        ({"properties": {"a": {"$ref": "http://x/y"}}}, "not in this schema"),
        (fields(*((f"f{i}", "int") for i in range(1001))), "1 to 1,000"),
    ],
)
def test_what_no_columns_can_be_made_of_is_refused_with_a_sentence(given: Any, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        evolved(None, columns_of(given))
