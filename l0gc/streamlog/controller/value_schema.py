"""The typed columns that a topic's values have in L1: their names, types and field ids, and how a schema may change (pure).

Why it is safe: a field id is assigned once, from a range that none of l0gc's own columns uses, and stays with its column.
A schema's number is assigned once, too. A controller log that was restored from a backup has forgotten the last ones, so
`published.json` also records them (`publication.reserve_numbers`, hazard 43). A column keeps its id only while its type
holds each value that it held before; otherwise it is dropped, and its name gets a new id. So an L1 object that was written
under an older number is read correctly under a newer one, and a column that it lacks is null.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import count as numbers_from
from typing import Any, Final, NamedTuple

import msgspec

from l0gc.errors import UsageError

VALUE_ERROR: Final = "value_error"
"""The column with the reason why a record's value does not fit the schema."""
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
"""l0gc's own columns in L1 and in Spark's source; a field with such a name gets the prefix `value_`."""
DECIMAL: Final = re.compile(r"decimal\((\d+), ?(\d+)\)")
_WIDER: Final = {("int", "long"), ("float", "double")}
_SIMPLE: Final = frozenset({"boolean", "int", "long", "float", "double", "date", "timestamp", "timestamptz", "string"})
_LIST: Final = "list"
_STRUCT: Final = "struct"
_ELEMENT: Final = "element"


class ValueColumn(msgspec.Struct, frozen=True, array_like=True):
    """A field of the values: its name, and Iceberg's name of its type.

    `children` are the fields of a struct, or the one element of a list. `id` is 0 until a schema assigns one.
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
        """Return a decimal's precision and scale, in digits; None for any other type."""
        match = DECIMAL.fullmatch(self.type)
        return None if match is None else (int(match[1]), int(match[2]))

    def type_json(self) -> Any:
        """Return the type in Iceberg's JSON form."""
        if self.type == _LIST:
            (element,) = self.children
            given = {"element-id": element.id, "element": element.type_json(), "element-required": False}
            return {"type": _LIST, **given}
        return {"type": _STRUCT, "fields": fields_json(self.children)} if self.type == _STRUCT else self.type


class ValueSchema(msgspec.Struct, frozen=True, array_like=True):
    """A topic's schema: its number, counted from 1, its columns, oldest first, and the highest field id of it and its
    predecessors.
    """

    number: int
    columns: tuple[ValueColumn, ...]
    last_id: int

    def to_json(self) -> dict[str, Any]:
        """Return the schema in Iceberg's JSON form, which `values.schema_formats` can read."""
        return {"type": _STRUCT, "schema-id": self.number, "fields": fields_json(self.columns)}


def fields_json(columns: Sequence[ValueColumn]) -> list[dict[str, Any]]:
    """Return the fields of a struct in Iceberg's JSON form."""
    return [{"id": c.id, "name": c.name, "required": False, "type": c.type_json()} for c in columns]


def each_column(columns: Iterable[ValueColumn]) -> Iterator[ValueColumn]:
    """Yield the columns and all columns nested in them."""
    for c in columns:
        yield c
        yield from each_column(c.children)


# -- evolution ------------------------------------------------------------------------------------------------------------


class Numbers(NamedTuple):
    """The highest schema number and the highest field id that were assigned."""

    schema: int = 0
    field: int = VALUE_ERROR_ID


NOTHING_GIVEN: Final = Numbers()


def numbers_of(schema: ValueSchema) -> Numbers:
    return Numbers(schema.number, schema.last_id)


def evolved(
    current: ValueSchema | None, requested: Sequence[ValueColumn], given: Numbers = NOTHING_GIVEN
) -> ValueSchema:
    """Return the schema that follows the current one if these columns are requested; the current one if nothing
    changes.

    Args:
        given: the highest numbers already assigned; new ones are above them.

    Raises:
        UsageError: a name or a type is not allowed.
    """
    before = () if current is None else current.columns
    above = Numbers(*map(max, given, NOTHING_GIVEN if current is None else numbers_of(current)))
    ids = numbers_from(above.field + 1)
    columns = _evolved(before, requested, ids, "", 1)
    if current is not None and columns == before:
        return current
    if not 1 <= sum(1 for _ in each_column(columns)) <= MAX_FIELDS:
        raise UsageError(f"a value schema has 1 to {MAX_FIELDS:,} fields; name those that queries need")
    names = [c.column.lower() for c in columns]
    if twice := next((c.column for c in columns if names.count(c.column.lower()) > 1), None):
        raise UsageError(f"two fields would become column {twice!r}, since case is ignored; leave one of them out")
    following = ValueSchema(above.schema + 1, columns, max(above.field, *(c.id for c in each_column(columns))))
    if max(numbers_of(following)) > MAX_NUMBER:
        raise UsageError(
            f"the cluster has assigned {MAX_NUMBER:,} field ids, which is the limit; create the topic anew"
        )
    return following


def check_value_schema(schema: ValueSchema) -> None:
    """Raise `UsageError` if no log can have led to this schema."""
    ids = [c.id for c in each_column(schema.columns)]
    if (
        not 1 <= schema.number <= MAX_NUMBER
        or len(set(ids)) != len(ids)
        or not all(FIRST_ID <= i <= schema.last_id <= MAX_NUMBER for i in ids)
    ):
        raise UsageError("its value schema has an impossible number or field ids")
    if evolved(schema, schema.columns) != schema:
        raise UsageError("its value schema has impossible columns")


def _evolved(
    before: Sequence[ValueColumn], requested: Sequence[ValueColumn], ids: Iterator[int], where: str, depth: int
) -> tuple[ValueColumn, ...]:
    if depth > MAX_DEPTH:
        raise UsageError(f"field {where!r} is nested more than {MAX_DEPTH} deep; leave it out")
    names = [c.name.lower() for c in requested]
    for c in requested:
        if not 0 < len(c.name) <= MAX_NAME or not c.name.isprintable() or "." in c.name:
            raise UsageError(f"field name {c.name[:50]!r} must have 1 to {MAX_NAME} printable characters without a dot")
        if names.count(c.name.lower()) > 1:
            raise UsageError(f"field {where + c.name!r} occurs twice, since tables ignore case; leave one of them out")
    current = {c.name: c for c in before}
    by_name = {c.name: c for c in requested}
    both = [*(by_name[name] for name in current if name in by_name), *(c for c in requested if c.name not in current)]
    return tuple(_evolved_one(current.get(c.name), c, ids, where + c.name, depth) for c in both)


def _evolved_one(
    current: ValueColumn | None, c: ValueColumn, ids: Iterator[int], where: str, depth: int
) -> ValueColumn:
    digits = c.decimal
    nested = c.type in {_LIST, _STRUCT}
    if not (nested or c.type in _SIMPLE or (digits and digits[1] <= digits[0] <= 38 and digits[0])):
        raise UsageError(f"field {where!r} has type {c.type[:50]}, which l0gc does not support; leave it out")
    if nested != bool(c.children) or (c.type == _LIST and [e.name for e in c.children] != [_ELEMENT]):
        raise UsageError(
            f"field {where!r} is a {c.type} without contents, or with several; define its contents, or leave it out"
        )
    if current is not None and not _holds(current, c):
        current = None
    number = next(ids) if current is None else current.id
    before = () if current is None else current.children
    return ValueColumn(number, c.name, c.type, _evolved(before, c.children, ids, f"{where}.", depth + 1))


def _holds(current: ValueColumn, c: ValueColumn) -> bool:
    """Return whether a column can keep its id: its values in older objects can be read as its new type. A list or a
    struct that keeps no field is another column, since readers would find none of its fields there.
    """
    if c.type in {_LIST, _STRUCT}:
        fields = {f.name: f for f in c.children}
        return current.type == c.type and any(f.name in fields and _holds(f, fields[f.name]) for f in current.children)
    old, digits = current.decimal, c.decimal
    more_digits = old is not None and digits is not None and old[1] == digits[1] and old[0] <= digits[0]
    return current.type == c.type or (current.type, c.type) in _WIDER or more_digits


def changes(before: ValueSchema | None, after: ValueSchema) -> list[str]:
    """Describe in words how columns differ between two schemas, lost columns first."""
    old, new = ({} if s is None else dict(_paths(s.columns)) for s in (before, after))
    same = {path for path in old if path in new and old[path].id == new[path].id}
    lost = [
        f"replaces {path} ({c.type}) by {new[path].type}" if path in new else f"drops {path} ({c.type})"
        for path, c in old.items()
        if path not in same
    ]
    wider = [f"widens {p} ({old[p].type}) to {new[p].type}" for p in old if p in same and old[p].type != new[p].type]
    return [*lost, *wider, *(f"adds {path} ({c.type})" for path, c in new.items() if path not in old)]


def loses(before: ValueSchema | None, after: ValueSchema) -> bool:
    """Return whether `after` lacks a column of `before`."""
    ids = {c.id for c in each_column(after.columns)}
    return before is not None and any(c.id not in ids for c in each_column(before.columns))


def _paths(columns: Iterable[ValueColumn], where: str = "") -> Iterator[tuple[str, ValueColumn]]:
    """Yield the columns and all columns nested in them, each with its path."""
    for c in columns:
        yield where + c.name, c
        yield from _paths(c.children, f"{where}{c.name}.")
