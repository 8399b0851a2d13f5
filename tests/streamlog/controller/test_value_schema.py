"""Value schemas: accepted and refused ones, how they are stored and changed, and stable column ids."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.errors import CorruptObjectError, UsageError
from l0gc.keys import CONTROLLER_LOG, PUBLISHED_WATERMARK
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.decisions import NOT_GIVEN
from l0gc.streamlog.controller.entries import AlterTopic, CreateTopic
from l0gc.streamlog.controller.value_schema import (
    FIRST_ID,
    OWN_COLUMNS,
    VALUE_ERROR,
    ValueColumn,
    ValueSchema,
    changes,
    each_column,
    evolved,
    loses,
)
from l0gc.streamlog.values.schema_formats import columns_of
from tests.support.controller import FOUNDED, MACHINE, created, landed, state_of
from tests.support.memory_store import Call, another_process, copy_of, memory_cluster, put_back, store_of
from tests.support.topics import topics_of


def fields(*some: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"name": name, "type": kind} for name, kind in some]}


def schema(*some: tuple[str, Any]) -> ValueSchema:
    return evolved(None, columns_of(fields(*some)))


def shown(columns: tuple[ValueColumn, ...]) -> Any:
    """Return the columns as pairs of name and type."""
    return [(c.name, [c.type, *shown(c.children)] if c.children else c.type) for c in columns]


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
        (fields(("x", "int")), fields(("x", "date"))),
        ({"type": "list", "element": "long"}, {"type": "list", "element": "int"}),
    ],
)  # fmt: skip
def test_a_column_of_another_type_is_replaced_under_a_new_id(before: Any, after: Any) -> None:
    first = schema(("a", before), ("b", "int"))
    second = evolved(first, columns_of(fields(("a", after), ("b", "int"))))
    ids = {c.id for c in each_column(first.columns)}
    assert not ids & {c.id for c in each_column(second.columns[:1])}
    assert second.columns[1] == first.columns[1]
    assert loses(first, second)
    assert changes(first, second)[0].startswith("replaces a (")


def test_a_dropped_column_leaves_its_id_to_nobody() -> None:
    first = schema(("a", "int"), ("b", fields(("x", "int"), ("y", "string"))))
    second = evolved(first, columns_of(fields(("b", fields(("x", "int"))))))
    assert [(c.name, c.id) for c in each_column(second.columns)] == [("b", FIRST_ID + 1), ("x", FIRST_ID + 2)]
    assert changes(first, second) == ["drops a (int)", "drops b.y (string)"]
    third = evolved(second, columns_of(fields(("a", "int"), ("b", fields(("x", "long"), ("y", "string"))))))
    ids = {c.name: c.id for c in each_column(third.columns)}
    assert ids == {"b": FIRST_ID + 1, "x": FIRST_ID + 2, "y": FIRST_ID + 4, "a": FIRST_ID + 5}
    assert not loses(second, third)
    assert changes(second, third) == ["widens b.x (int) to long", "adds b.y (string)", "adds a (int)"]
    reused = ValueSchema(3, (*second.columns, ValueColumn(FIRST_ID + 3, "c", "int")), second.last_id)
    state = state_of(FOUNDED, CreateTopic("t", 1, 1, "id-t", None, None, first), AlterTopic("t", 1, None, None, second))
    with pytest.raises(UsageError, match="does not follow"):
        MACHINE.check(state, 3, msgspec.msgpack.encode(AlterTopic("t", 1, None, None, reused)))


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
        evolved(first, columns_of(two))
    except UsageError:
        return
    ids = {c.id for c in each_column(first.columns)}
    later = [c.id for c in each_column(both.columns)]
    assert len(set(later)) == len(later)
    assert min({*later} - ids, default=FIRST_ID + len(ids)) > max(ids)
    assert evolved(first, columns_of(two)).last_id >= first.last_id


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
        ValueSchema(3, schema(("a", "int")).columns, FIRST_ID),  # skips a number
        ValueSchema(2, (ValueColumn(FIRST_ID + 7, "a", "int"),), FIRST_ID + 7),  # a different id
        ValueSchema(2, (ValueColumn(FIRST_ID, "a", "int"), ValueColumn(FIRST_ID, "b", "int")), FIRST_ID),  # an id twice
        ValueSchema(2, (ValueColumn(FIRST_ID, "a", "string"),), FIRST_ID),
        ValueSchema(2, (ValueColumn(FIRST_ID, "b", "int"),), FIRST_ID),
        ValueSchema(1, (), FIRST_ID),
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


# -- several processes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reading", range(1, 9))
def test_two_that_alter_a_schema_at_once_both_get_theirs(reading: int) -> None:
    """One process reserves its numbers while the other's schema lands, and then decides again on that schema."""
    a = memory_cluster()
    b = another_process(a)

    def schema(*names: str) -> dict[str, Any]:
        return {"fields": [{"name": name, "type": "int"} for name in names]}

    topics_of(a).create("t", 1, value_schema=schema("x"))
    left = [reading]

    def fault(call: Call) -> None:
        if call.key == PUBLISHED_WATERMARK and call.when == "before":
            left[0] -= 1
            if left[0] == 0:
                topics_of(b).alter("t", value_schema=schema("x", "y"))
                b.controller.advance()

    store_of(a).fault = fault
    found = topics_of(a).alter("t", value_schema=schema("x", "y", "z")).value_schema
    store_of(a).fault = lambda call: None
    assert found is not None
    assert [c.name for c in found.columns] == ["x", "y", "z"]
    assert another_process(a).controller.snapshot().topic("t").value_schema == found
    assert left[0] <= 0


# -- a controller log that was restored ------------------------------------------------------------------------------------


def test_a_restored_controller_log_gives_no_field_id_twice() -> None:
    cluster = memory_cluster()
    cluster.controller.create_topic("t", 1, columns=columns_of({"fields": [{"name": "a", "type": "int"}]}))
    copy = copy_of(store_of(cluster), CONTROLLER_LOG)

    def altered(process: ClusterHandles, *names: str) -> ValueSchema:
        fields = [{"name": name, "type": "int"} for name in names]
        found = process.controller.alter_topic("t", NOT_GIVEN, columns_of({"fields": fields}))[0].value_schema
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
    assert altered(restored, "a", "c", "b") == new, "a schema that changes nothing gets no number"
    again = another_process(cluster)
    state = again.controller.snapshot()
    again.controller.replica.write_checkpoint()
    assert another_process(cluster).controller.snapshot() == state
