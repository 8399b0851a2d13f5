"""The typed columns that a topic's values have in L1: their names, types and field ids, and how a schema may change (pure).

A schema is given as Iceberg's JSON, as a JSON Schema, or as Arrow's JSON, and is printed as Iceberg's. What makes it safe: a
field id is given once, from a range that no column of l0gc's own uses, and stays with its column. So is a schema's number.
A controller log that was restored from a backup has forgotten the last ones, so what was given is in `published.json`, too
(`publication.reserve_numbers`, hazard 43). A schema only grows: by
columns, and by types that hold each value they held before. So an L1 object that was written under an older number is read
correctly under a newer one, and a column that it lacks is null.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from itertools import count as numbers_from
from typing import Any, Final, Literal, NamedTuple

import msgspec

from l0gc.errors import UsageError

VALUE_ERROR: Final = "value_error"
"""The column that says why a record's value does not fit the schema."""
VALUE_ERROR_ID: Final = 10_000
FIRST_ID: Final = VALUE_ERROR_ID + 1
"""The field ids of values' columns begin here; those of l0gc's own columns are far below."""
MAX_FIELDS: Final = 1_000
MAX_NUMBER: Final = 2**30
"""The limit of field ids and of schemas' numbers. Iceberg reads both as 32 bits, and uses some ids above this itself."""
MAX_DEPTH: Final = 16
MAX_NAME: Final = 200
OWN_COLUMNS: Final = frozenset(
    {"offset", "timestamp", "key", "value", "epoch", "partition", "create_time", "headers", "topic", VALUE_ERROR}
)
"""The own columns of L1 and of Spark's source; a field of such a name gets the prefix `value_`."""
DECIMAL: Final = re.compile(r"decimal\((\d+), ?(\d+)\)")
_WIDER: Final = {("int", "long"), ("float", "double")}
_SIMPLE: Final = frozenset({"boolean", "int", "long", "float", "double", "date", "timestamp", "timestamptz", "string"})
_LIST: Final = "list"
_STRUCT: Final = "struct"
_ELEMENT: Final = "element"


class ValueColumn(msgspec.Struct, frozen=True, array_like=True):
    """A field of the values: its name there, and its type by Iceberg's name.

    `children` are the fields of a struct, or the one element of a list. `id` is 0 until a schema has given it one.
    """

    id: int
    name: str
    type: str
    children: tuple[ValueColumn, ...] = ()

    @property
    def column(self) -> str:
        """Return the column's name at the top level of L1 and of tables."""
        return f"value_{self.name}" if self.name.lower() in OWN_COLUMNS else self.name

    @property
    def decimal(self) -> tuple[int, int] | None:
        """Return a decimal's digits, and how many of them follow the point; None for another type."""
        found = DECIMAL.fullmatch(self.type)
        return None if found is None else (int(found[1]), int(found[2]))

    def type_json(self) -> Any:
        """Return the type as Iceberg's JSON has it."""
        if self.type == _LIST:
            (element,) = self.children
            given = {"element-id": element.id, "element": element.type_json(), "element-required": False}
            return {"type": _LIST, **given}
        return {"type": _STRUCT, "fields": fields_json(self.children)} if self.type == _STRUCT else self.type


class ValueSchema(msgspec.Struct, frozen=True, array_like=True):
    """A topic's schema: its number, from 1 on, and its columns, the oldest first."""

    number: int
    columns: tuple[ValueColumn, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the schema as Iceberg's JSON has it; `columns_of` reads it again."""
        return {"type": _STRUCT, "schema-id": self.number, "fields": fields_json(self.columns)}


def fields_json(columns: Sequence[ValueColumn]) -> list[dict[str, Any]]:
    """Return the fields of a struct as Iceberg's JSON has them."""
    return [{"id": c.id, "name": c.name, "required": False, "type": c.type_json()} for c in columns]


def each_column(columns: Iterable[ValueColumn]) -> Iterator[ValueColumn]:
    """Yield the columns and all columns nested in them."""
    for c in columns:
        yield c
        yield from each_column(c.children)


# -- evolution ------------------------------------------------------------------------------------------------------------


class Numbers(NamedTuple):
    """The highest number of a schema, and the highest field id, that were given."""

    schema: int = 0
    field: int = VALUE_ERROR_ID


NOTHING_GIVEN: Final = Numbers()


def numbers_of(schema: ValueSchema) -> Numbers:
    return Numbers(schema.number, max(c.id for c in each_column(schema.columns)))


def evolved(known: ValueSchema | None, wanted: Sequence[ValueColumn], given: Numbers = NOTHING_GIVEN) -> ValueSchema:
    """Return the schema that follows the known one when these columns are wanted; the known one if nothing changes.

    Args:
        given: a new number and new field ids are above these.

    Raises:
        UsageError: a column is dropped, or has a type that cannot hold its values so far; a name or a type is not possible.
    """
    before = () if known is None else known.columns
    above = Numbers(*map(max, given, NOTHING_GIVEN if known is None else numbers_of(known)))
    ids = numbers_from(above.field + 1)
    columns = _evolved(before, wanted, ids, "", 1)
    if known is not None and columns == before:
        return known
    if not 1 <= sum(1 for _ in each_column(columns)) <= MAX_FIELDS:
        raise UsageError(f"a value schema has 1 to {MAX_FIELDS:,} fields; name those that queries need")
    names = [c.column.lower() for c in columns]
    if twice := next((c.column for c in columns if names.count(c.column.lower()) > 1), None):
        raise UsageError(f"two fields would become column {twice!r}, since case is ignored; leave one of them out")
    following = ValueSchema(above.schema + 1, columns)
    if max(numbers_of(following)) > MAX_NUMBER:
        raise UsageError(f"the cluster has given {MAX_NUMBER:,} field ids, which is the limit; create the topic anew")
    return following


def check_value_schema(schema: ValueSchema) -> None:
    """Raise `UsageError` if no log can have led to this schema."""
    ids = [c.id for c in each_column(schema.columns)]
    if (
        not 1 <= schema.number <= MAX_NUMBER
        or len(set(ids)) != len(ids)
        or not all(FIRST_ID <= i <= MAX_NUMBER for i in ids)
    ):
        raise UsageError("its value schema has an impossible number or field ids")
    if evolved(schema, schema.columns) != schema:
        raise UsageError("its value schema has impossible columns")


def _evolved(
    before: Sequence[ValueColumn], wanted: Sequence[ValueColumn], ids: Iterator[int], where: str, depth: int
) -> tuple[ValueColumn, ...]:
    if depth > MAX_DEPTH:
        raise UsageError(f"field {where!r} is nested more than {MAX_DEPTH} deep; leave it out")
    by_name = {c.name: c for c in wanted}
    names = [c.name.lower() for c in wanted]
    for c in wanted:
        if not 0 < len(c.name) <= MAX_NAME or not c.name.isprintable() or "." in c.name:
            raise UsageError(f"field name {c.name[:50]!r} must have 1 to {MAX_NAME} printable characters without a dot")
        if names.count(c.name.lower()) > 1:
            raise UsageError(f"field {where + c.name!r} occurs twice, since tables ignore case; leave one of them out")
    if gone := next((c.name for c in before if c.name not in by_name), None):
        raise UsageError(f"field {where + gone!r} is in the topic's value schema, and cannot be dropped; name it, too")
    known = {c.name: c for c in before}
    both = [*(by_name[c.name] for c in before), *(c for c in wanted if c.name not in known)]
    return tuple(_evolved_one(known.get(c.name), c, ids, where + c.name, depth) for c in both)


def _evolved_one(known: ValueColumn | None, c: ValueColumn, ids: Iterator[int], where: str, depth: int) -> ValueColumn:
    digits = c.decimal
    nested = c.type in {_LIST, _STRUCT}
    if not (nested or c.type in _SIMPLE or (digits and digits[1] <= digits[0] <= 38 and digits[0])):
        raise UsageError(f"field {where!r} has type {c.type[:50]}, which l0gc does not support; use for example string")
    if nested != bool(c.children) or (c.type == _LIST and [e.name for e in c.children] != [_ELEMENT]):
        raise UsageError(
            f"field {where!r} is a {c.type} without contents, or with several; say what it holds, or leave it out"
        )
    if known is not None and known.type != c.type and (known.type, c.type) not in _WIDER:
        old = known.decimal
        if old is None or digits is None or old[1] != digits[1] or old[0] > digits[0]:
            raise UsageError(
                f"field {where!r} is {known.type}, and cannot become {c.type}: only int becomes long, float double, and a "
                "decimal one with more digits"
            )
    number = next(ids) if known is None else known.id
    before = () if known is None else known.children
    return ValueColumn(number, c.name, c.type, _evolved(before, c.children, ids, f"{where}.", depth + 1))


# -- what users give ------------------------------------------------------------------------------------------------------


def columns_of(given: str | Mapping[str, Any]) -> tuple[ValueColumn, ...]:
    """Return the columns of a schema: Iceberg's or Arrow's JSON, or a JSON Schema; without ids.

    Raises `UsageError`: it is none of them, or has something of which no column can be made.
    """
    try:
        found = msgspec.json.decode(given) if isinstance(given, str) else given
        found = found.get("schema", found) if isinstance(found, Mapping) else {}
        if found.get("fields"):
            return tuple(map(_of_field, found["fields"]))
        if found.get("properties"):
            return _of_json_schema("", found, found).children
    except (msgspec.DecodeError, UnicodeError, RecursionError, KeyError, TypeError, ValueError, AttributeError) as e:
        raise UsageError(f"the value schema cannot be read: {e!r}; see what l0gc topic infer prints") from e
    raise UsageError(
        "the value schema is neither Iceberg's or Arrow's JSON with fields nor a JSON Schema with properties"
    )


def _of_field(f: Mapping[str, Any]) -> ValueColumn:
    """Return the column for a field of Iceberg's or Arrow's JSON; Arrow's type is an object with a name."""
    kind = f["type"]
    if isinstance(kind, Mapping) and "name" in kind:
        return _of_arrow(str(f["name"]), kind, f.get("children", ()))
    return _of_iceberg(str(f["name"]), kind)


def _of_iceberg(name: str, kind: Any) -> ValueColumn:
    if not isinstance(kind, Mapping):
        digits = DECIMAL.fullmatch(str(kind))
        return ValueColumn(0, name, f"decimal({int(digits[1])}, {int(digits[2])})" if digits else str(kind))
    if kind["type"] == _LIST:
        return ValueColumn(0, name, _LIST, (_of_iceberg(_ELEMENT, kind["element"]),))
    return ValueColumn(0, name, str(kind["type"]), tuple(map(_of_field, kind.get("fields", ()))))


def _of_arrow(name: str, kind: Mapping[str, Any], children: Sequence[Mapping[str, Any]]) -> ValueColumn:
    match kind["name"]:
        case "int":
            signed, width = bool(kind.get("isSigned", True)), int(kind["bitWidth"])
            return ValueColumn(0, name, "int" if width < 32 or (width == 32 and signed) else "long")
        case "floatingpoint":
            return ValueColumn(0, name, "double" if kind["precision"] == "DOUBLE" else "float")
        case "decimal":
            return ValueColumn(0, name, f"decimal({int(kind['precision'])}, {int(kind['scale'])})")
        case "timestamp":
            return ValueColumn(0, name, "timestamptz" if kind.get("timezone") else "timestamp")
        case "list" | "largelist" | "fixedsizelist":
            (element,) = children
            return ValueColumn(0, name, _LIST, (msgspec.structs.replace(_of_field(element), name=_ELEMENT),))
        case "struct":
            return ValueColumn(0, name, _STRUCT, tuple(map(_of_field, children)))
        case other:
            return ValueColumn(0, name, {"bool": "boolean", "date": "date"}.get(other, "string"))


_OF_FORMAT: Final = {
    ("integer", "int32"): "int",
    ("number", "float"): "float",
    ("string", "date-time"): "timestamptz",
    ("string", "date"): "date",
}
_OF_TYPE: Final = {"integer": "long", "number": "double", "boolean": "boolean", "string": "string"}


def _of_json_schema(name: str, given: Mapping[str, Any], root: Mapping[str, Any], depth: int = 0) -> ValueColumn:
    if depth > 2 * MAX_DEPTH:
        raise UsageError(f"field {name!r} of the JSON Schema refers to itself; leave it out")
    if (at := given.get("$ref")) is not None:
        found: Any = root
        for part in str(at).removeprefix("#/").split("/"):
            found = found[part]
        return _of_json_schema(name, found, root, depth + 1)
    ways = [w for w in given.get("anyOf", given.get("oneOf", ())) if w.get("type") != "null"]
    if len(ways) == 1:
        return _of_json_schema(name, ways[0], root, depth + 1)
    implied = "object" if "properties" in given else "array" if "items" in given else "string"
    kinds = given.get("type", [] if ways else implied)
    kinds = {kinds} if isinstance(kinds, str) else set(kinds) - {"null"}
    kinds -= {"integer"} if "number" in kinds else set()
    kind = kinds.pop() if len(kinds) == 1 else "string" if not kinds and not ways else ""
    if kind == "object" and given.get("properties"):
        fields = given["properties"].items()
        return ValueColumn(0, name, _STRUCT, tuple(_of_json_schema(n, f, root, depth + 1) for n, f in fields))
    if kind == "array" and given.get("items"):
        return ValueColumn(0, name, _LIST, (_of_json_schema(_ELEMENT, given["items"], root, depth + 1),))
    if kind not in _OF_TYPE:
        raise UsageError(
            f"field {name!r} of the JSON Schema has several types, or does not say what it holds; leave it out, or give it "
            "one type"
        )
    return ValueColumn(0, name, _OF_FORMAT.get((kind, given.get("format", "")), _OF_TYPE[kind]))


# -- what records show ----------------------------------------------------------------------------------------------------

_MIXED: Final = "mixed"
_UNKNOWN: Final = "unknown"


def inferred(values: Iterable[bytes]) -> tuple[ValueColumn, ...]:
    """Return the columns that the values, JSON objects, have in common.

    A field gets no column if its values have several types, or if its name is not possible. If all are null, it is a string.
    Values that are not objects are passed over.
    """
    found = ValueColumn(0, "", _UNKNOWN)
    for value in values:
        try:
            record = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue
        if isinstance(record, dict):
            found = _joined(found, _shape("", record, 1))
    return _proposed(found).children


def _shape(name: str, value: Any, depth: int) -> ValueColumn:
    match value:
        case None:
            return ValueColumn(0, name, _UNKNOWN)
        case bool():
            return ValueColumn(0, name, "boolean")
        case int():
            return ValueColumn(0, name, "long" if -(2**63) <= value < 2**63 else "double")
        case float():
            return ValueColumn(0, name, "double")
        case str():
            return ValueColumn(0, name, _text_type(value))
        case _ if depth > MAX_DEPTH:
            return ValueColumn(0, name, _MIXED)
        case list():
            element = ValueColumn(0, _ELEMENT, _UNKNOWN)
            for v in value:
                element = _joined(element, _shape(_ELEMENT, v, depth + 1))
            return ValueColumn(0, name, _LIST, (element,))
    fields = tuple(_shape(n, v, depth + 1) for n, v in value.items())
    return ValueColumn(0, name, _STRUCT, fields)


def _text_type(value: str) -> Literal["timestamptz", "timestamp", "date", "string"]:
    if not value[:4].isdecimal():
        return "string"
    with suppress(msgspec.ValidationError):
        return "timestamp" if msgspec.convert(value, datetime).tzinfo is None else "timestamptz"
    with suppress(msgspec.ValidationError):
        msgspec.convert(value, date)
        return "date"
    return "string"


def _joined(a: ValueColumn, b: ValueColumn) -> ValueColumn:
    """Return a shape that fits both."""
    if _UNKNOWN in {a.type, b.type}:
        return b if a.type == _UNKNOWN else a
    if a.type == b.type == _STRUCT:
        fields = {c.name: c for c in a.children}
        for c in b.children:
            fields[c.name] = _joined(fields[c.name], c) if c.name in fields else c
        return ValueColumn(0, a.name, _STRUCT, tuple(fields.values()))
    if a.type == b.type == _LIST:
        return ValueColumn(0, a.name, _LIST, (_joined(a.children[0], b.children[0]),))
    kinds = {a.type, b.type}
    if len(kinds) == 1:
        return a
    if kinds <= {"long", "double"}:
        return ValueColumn(0, a.name, "double")
    return ValueColumn(0, a.name, "string" if kinds <= {"string", "date", "timestamp", "timestamptz"} else _MIXED)


def _proposed(shape: ValueColumn) -> ValueColumn:
    """Return a shape without the parts that cannot become columns."""
    if shape.type == _UNKNOWN:
        return ValueColumn(0, shape.name, "string" if shape.name else _STRUCT)
    if shape.type not in {_LIST, _STRUCT}:
        return shape
    fields = [_proposed(c) for c in shape.children]
    kept = list[ValueColumn]()
    for c in fields:
        if c.type == _MIXED or (c.type in {_LIST, _STRUCT} and not c.children):
            continue
        with_it = [*(msgspec.structs.replace(k, id=0) for k in kept), c]
        try:
            evolved(None, with_it)
        except UsageError:
            continue
        kept.append(c)
    return ValueColumn(0, shape.name, shape.type, tuple(kept))
