"""Value schemas: what is read, what it becomes, how it may change, and that ids stay."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.errors import CorruptObjectError, UsageError
from l0gc.keys import CONTROLLER_LOG, PUBLISHED_WATERMARK
from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.controller.decisions import NOT_GIVEN
from l0gc.streamlog.controller.entries import AlterTopic, CreateTopic
from l0gc.streamlog.controller.value_schema import (
    FIRST_ID,
    OWN_COLUMNS,
    VALUE_ERROR,
    ValueColumn,
    ValueSchema,
    columns_of,
    each_column,
    evolved,
    fields_json,
    inferred,
)
from l0gc.streamlog.topics import alter_topic, create_topic
from tests.support.controller import FOUNDED, MACHINE, created, landed, state_of
from tests.support.memory_store import Call, another_process, copy_of, memory_cluster, put_back, store_of


def fields(*some: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"name": name, "type": kind} for name, kind in some]}


def schema(*some: tuple[str, Any]) -> ValueSchema:
    return evolved(None, columns_of(fields(*some)))


def shown(columns: tuple[ValueColumn, ...]) -> Any:
    """Names and types, as pairs."""
    return [(c.name, [c.type, *shown(c.children)] if c.children else c.type) for c in columns]


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
JSON_SCHEMA = {
    "type": "object",
    "$defs": {"Place": {"type": "object", "properties": {"lat": {"type": "number"}, "zip": {"type": "string"}}}},
    "properties": {
        "id": {"type": "integer"},
        "small": {"type": "integer", "format": "int32"},
        "price": {"type": ["number", "null"]},
        "at": {"type": "string", "format": "date-time"},
        "day": {"type": "string", "format": "date"},
        "ok": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "place": {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]},
        "any": {},
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
        ("any", "string"),
    ]
    listed = {"type": "list", "element-id": 9, "element": {"type": "struct", "fields": [{"name": "x", "type": "long"}]}}
    iceberg = columns_of(fields(("a", "decimal(9,2)"), ("l", listed)))
    assert shown(iceberg) == [("a", "decimal(9, 2)"), ("l", ["list", ("element", ["struct", ("x", "long")])])]


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ("", "cannot be read"), ("[]", "neither"), ("{}", "neither"), ('{"fields": [1]}', "cannot be read"),
        ('{"fields": [{"name": "a"}]}', "cannot be read"), ('{"properties": {"a": true}}', "cannot be read"),
        ('{"properties": {}}', "neither"), (fields(("a", "uuid")), "type uuid"),
        (fields(("a", "decimal(39, 2)")), "decimal"), (fields(("a", "decimal(2, 3)")), "decimal"),
        (fields(("a", {"type": "map"})), "type map"), (fields(("a", {"type": "struct", "fields": []})), "without contents"),
        (fields(("a", "int"), ("A", "int")), "ignore case"), (fields(("a.b", "int")), "without a dot"),
        (fields(("", "int")), "printable"), (fields(("a\n", "int")), "printable"), (fields(("x" * 201, "int")), "200"),
        (fields(("key", "int"), ("value_key", "int")), "value_key"),
        ({"properties": {"a": {"type": "object"}}}, "does not say what it holds"),
        ({"properties": {"a": {"type": ["string", "integer"]}}}, "several types"),
        ({"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}}, "several types"),
        ({"properties": {"a": {"$ref": "#/properties/a"}}}, "refers to itself"),
        ({"properties": {"a": {"$ref": "http://x/y"}}}, "cannot be read"),
        (fields(*((f"f{i}", "int") for i in range(1001))), "1 to 1,000"),
    ],
)  # fmt: skip
def test_what_no_columns_can_be_made_of_is_refused_with_a_sentence(given: Any, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        evolved(None, columns_of(given))


def test_a_field_named_like_an_l1_column_is_renamed() -> None:
    from l0gc.streamlog.level_one.parquet import L1_FILE

    assert {*L1_FILE.names, VALUE_ERROR} <= OWN_COLUMNS
    names = [c.column for c in schema(("key", "int"), ("Offset", "int"), ("keys", "int"), (VALUE_ERROR, "int")).columns]
    assert names == ["value_key", "value_Offset", "keys", "value_value_error"]


def test_a_schema_gets_columns_and_wider_types_and_keeps_its_ids() -> None:
    first = schema(("a", "int"), ("s", fields(("x", "float"))), ("d", "decimal(4, 2)"))
    assert [c.id for c in each_column(first.columns)] == [FIRST_ID, FIRST_ID + 1, FIRST_ID + 2, FIRST_ID + 3]
    wanted = fields(("n", "date"), ("d", "decimal(9, 2)"), ("s", fields(("y", "int"), ("x", "double"))), ("a", "long"))
    second = evolved(first, columns_of(wanted))
    assert second.number == 2
    assert [(c.name, c.type, c.id - FIRST_ID) for c in each_column(second.columns)] == [
        ("a", "long", 0), ("s", "struct", 1), ("x", "double", 2), ("y", "int", 4), ("d", "decimal(9, 2)", 3),
        ("n", "date", 5),
    ]  # fmt: skip
    assert evolved(second, columns_of(wanted)) is second


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("int", "string"), ("long", "int"), ("double", "float"), ("int", "double"), ("string", "int"), ("date", "timestamp"),
        ("timestamp", "timestamptz"), ("decimal(4, 2)", "decimal(4, 1)"), ("decimal(4, 2)", "decimal(3, 2)"),
        ("decimal(4, 2)", "double"), ("decimal(4, 2)", "decimal(6, 3)"), ("int", fields(("x", "int"))),
        (fields(("x", "int")), "int"), (fields(("x", "int")), fields(("y", "int"))),
        ({"type": "list", "element": "long"}, {"type": "list", "element": "int"}),
    ],
)  # fmt: skip
def test_any_other_change_is_refused(before: Any, after: Any) -> None:
    with pytest.raises(UsageError, match=r"cannot become|cannot be dropped"):
        evolved(schema(("a", before)), columns_of(fields(("a", after))))


def test_a_column_cannot_be_dropped() -> None:
    with pytest.raises(UsageError, match="field 'a' is in the topic's value schema, and cannot be dropped"):
        evolved(schema(("a", "int")), columns_of(fields(("b", "int"))))


NAMES = st.text("abcxyz_ä ", min_size=1, max_size=6).filter(str.isprintable)
SIMPLE = st.sampled_from(["boolean", "int", "long", "float", "double", "date", "timestamp", "timestamptz", "string"])
DIGITS = st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: f"decimal({p}, {s})"))


def several(kinds: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(NAMES, kinds, min_size=1, max_size=4).map(lambda d: fields(*d.items()))


KINDS = st.recursive(
    SIMPLE | DIGITS, lambda inner: several(inner) | inner.map(lambda k: {"type": "list", "element": k}), max_leaves=6
)
SCHEMAS = several(KINDS)


@given(SCHEMAS, SCHEMAS)
def test_a_grown_schema_round_trips_with_its_ids(one: Any, two: Any) -> None:
    try:
        first = evolved(None, columns_of(one))
    except UsageError:
        return
    assert evolved(first, columns_of(json.dumps(first.to_json()))) is first
    try:
        both = evolved(first, columns_of({"fields": [*one["fields"], *two["fields"]]}))
    except UsageError:
        return
    ids = {c.id for c in each_column(first.columns)}
    later = [c.id for c in each_column(both.columns)]
    assert len(set(later)) == len(later)
    assert ids <= set(later)
    assert both.columns[: len(first.columns)] == first.columns
    assert min({*later} - ids, default=FIRST_ID + len(ids)) > max(ids)


# -- in the controller's log ----------------------------------------------------------------------------------------------


def test_a_topic_has_the_schema_that_it_was_created_or_altered_with() -> None:
    first = schema(("a", "int"))
    second = evolved(first, columns_of(fields(("a", "long"), ("b", "string"))))
    state = state_of(
        FOUNDED, CreateTopic("t", 1, 1, "id-t", None, None, first), created("u"),
        AlterTopic("t", 1, 5, None), AlterTopic("t", 1, 5, None, second), AlterTopic("u", 2, None, None, first),
    )  # fmt: skip
    assert (state.topics["t"].value_schema, state.topics["t"].retention_ms) == (second, 5)
    assert state.topics["u"].value_schema == first
    assert MACHINE.decode(MACHINE.encode(state), "checkpoint") == state


@pytest.mark.parametrize(
    "bad",
    [
        ValueSchema(3, schema(("a", "int")).columns),  # a number is skipped
        ValueSchema(2, (ValueColumn(FIRST_ID + 7, "a", "int"),)),  # another id
        ValueSchema(2, (ValueColumn(FIRST_ID, "a", "int"), ValueColumn(FIRST_ID, "b", "int"))),  # an id twice
        ValueSchema(2, (ValueColumn(FIRST_ID, "a", "string"),)),
        ValueSchema(2, (ValueColumn(FIRST_ID, "b", "int"),)),
        ValueSchema(1, ()),
    ],
)
def test_an_entry_with_a_schema_that_does_not_follow_is_refused(bad: ValueSchema) -> None:
    state = state_of(FOUNDED, CreateTopic("t", 1, 1, "id-t", None, None, schema(("a", "int"))))
    with pytest.raises(UsageError):
        MACHINE.check(state, 2, msgspec.msgpack.encode(AlterTopic("t", 1, None, None, bad)))
    with pytest.raises(CorruptObjectError):
        MACHINE.apply(state, landed(2, AlterTopic("t", 1, None, None, bad)))
    state.topics["t"] = msgspec.structs.replace(state.topics["t"], value_schema=msgspec.structs.replace(bad, number=0))
    with pytest.raises(CorruptObjectError):
        MACHINE.decode(MACHINE.encode(state), "checkpoint")


# -- proposed -------------------------------------------------------------------------------------------------------------


def test_a_schema_is_inferred_from_records() -> None:
    columns = inferred(
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
            ("big", "double"),
        ),
    ]
    assert evolved(None, columns_of({"fields": fields_json(columns)})).number == 1


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(NAMES | st.text(max_size=3), VALUES, max_size=5), max_size=4))
def test_what_is_inferred_is_a_schema(records: list[dict[str, Any]]) -> None:
    if columns := inferred([msgspec.json.encode(r) for r in records]):
        assert evolved(None, columns_of({"fields": fields_json(columns)})).number == 1


# -- several processes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reading", range(1, 9))
def test_two_that_alter_a_schema_at_once_both_get_theirs(reading: int) -> None:
    """One reserves its numbers while the other's schema lands: it decides again on that."""
    a = memory_cluster()
    b = another_process(a)

    def columns(*names: str) -> tuple[ValueColumn, ...]:
        return columns_of({"fields": [{"name": name, "type": "int"} for name in names]})

    create_topic(a, "t", 1, columns=columns("x"))
    left = [reading]

    def fault(call: Call) -> None:
        if call.key == PUBLISHED_WATERMARK and call.when == "before":
            left[0] -= 1
            if left[0] == 0:
                alter_topic(b, "t", NOT_GIVEN, columns("x", "y"))
                b.controller.advance()

    store_of(a).fault = fault
    found = alter_topic(a, "t", NOT_GIVEN, columns("x", "y", "z"))[0].value_schema
    store_of(a).fault = lambda call: None
    assert found is not None
    assert [c.name for c in found.columns] == ["x", "y", "z"]
    assert another_process(a).controller.snapshot().topic("t").value_schema == found
    assert left[0] <= 0


# -- a controller log that was restored ------------------------------------------------------------------------------------


def test_a_restored_controller_log_gives_no_field_id_twice() -> None:
    cluster = memory_cluster()
    create_topic(cluster, "t", 1, columns=columns_of({"fields": [{"name": "a", "type": "int"}]}))
    copy = copy_of(store_of(cluster), CONTROLLER_LOG)

    def altered(process: Handles, *names: str) -> ValueSchema:
        fields = [{"name": name, "type": "int"} for name in names]
        found = alter_topic(process, "t", NOT_GIVEN, columns_of({"fields": fields}))[0].value_schema
        assert found is not None
        return found

    lost = [altered(cluster, "a", "b"), altered(cluster, "a", "b", "c")]
    assert [s.number for s in lost] == [2, 3]
    put_back(store_of(cluster), CONTROLLER_LOG, copy)
    restored = another_process(cluster)
    restored.controller.advance_above(100)
    new = altered(restored, "a", "c", "b")
    assert new.number > max(s.number for s in lost)
    ids = {c.id for s in lost for c in s.columns if c.name != "a"}
    assert not ids & {c.id for c in new.columns}
    assert altered(restored, "a", "c", "b") == new, "what changes nothing gets no number"
    again = another_process(cluster)
    state = again.controller.snapshot()
    again.controller.replica.write_checkpoint()
    assert another_process(cluster).controller.snapshot() == state
