"""Read the schemas that users give: Iceberg's or Arrow's JSON, or a JSON Schema (pure).

A field that has exactly one meaning as a column is resolved. Any other is refused with its path and the reason, and never
becomes text, since no record would fit such a column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from l0gc.errors import UsageError
from l0gc.streamlog.controller.value_schema import DECIMAL, MAX_DEPTH, ValueColumn

_LIST: Final = "list"
_STRUCT: Final = "struct"
_ELEMENT: Final = "element"
_UINT64: Final = "decimal(20, 0)"
"""The type for unsigned integers of 64 bits, which do not fit a long."""


def columns_of(given: str | Mapping[str, Any]) -> tuple[ValueColumn, ...]:
    """Return the columns, without ids, of a schema in Iceberg's or Arrow's JSON, or of a JSON Schema.

    Raises `UsageError` if it is another format, or has a field that cannot become a column.
    """
    try:
        schema = msgspec.json.decode(given) if isinstance(given, str) else given
    except (msgspec.DecodeError, UnicodeError, RecursionError) as e:
        raise UsageError(f"the value schema is not JSON: {e}; see what l0gc topic infer prints") from e
    schema = schema.get("schema", schema) if isinstance(schema, Mapping) else {}
    if schema.get("fields"):
        return tuple(_of_field(f, "") for f in _each(schema["fields"], ""))
    if isinstance(schema, Mapping) and {*schema} & _DESCRIBES:
        top = _JsonSchema(schema).column("", schema, "", 0)
        if top.type == _STRUCT:
            return top.children
    raise UsageError(
        "the value schema is neither Iceberg's or Arrow's JSON with fields nor a JSON Schema with properties"
    )


def _refused(where: str, why: str) -> UsageError:
    return UsageError(f"field {where!r} of the value schema {why}")


def _each(given: Any, where: str) -> Sequence[Any]:
    if not isinstance(given, list | tuple):
        raise _refused(where, "has fields that are not an array")
    return given


# -- Iceberg and Arrow ----------------------------------------------------------------------------------------------------


def _of_field(f: Any, where: str) -> ValueColumn:
    """Return the column for a field of Iceberg's or Arrow's JSON; Arrow's type is an object with a name."""
    if not isinstance(f, Mapping) or not isinstance(f.get("name"), str):
        raise _refused(where or "?", "has no name")
    name = f["name"]
    kind, where = f.get("type"), f"{where}.{name}" if where else name
    if isinstance(kind, Mapping) and "name" in kind:
        return _of_arrow(name, kind, _each(f.get("children") or (), where), where)
    return _of_iceberg(name, kind, where)


def _of_iceberg(name: str, kind: Any, where: str) -> ValueColumn:
    if isinstance(kind, str):
        digits = DECIMAL.fullmatch(kind)
        return ValueColumn(0, name, f"decimal({int(digits[1])}, {int(digits[2])})" if digits else kind)
    if not isinstance(kind, Mapping) or not isinstance(kind.get("type"), str):
        raise _refused(where, "has no type")
    if kind["type"] == _LIST:
        return ValueColumn(0, name, _LIST, (_of_iceberg(_ELEMENT, kind.get("element"), f"{where}.{_ELEMENT}"),))
    return ValueColumn(
        0, name, kind["type"], tuple(_of_field(f, where) for f in _each(kind.get("fields") or (), where))
    )


_OF_ARROW: Final = {"bool": "boolean", "date": "date", "utf8": "string", "largeutf8": "string", "utf8view": "string"}


def _of_arrow(name: str, kind: Mapping[str, Any], children: Sequence[Any], where: str) -> ValueColumn:
    match kind["name"]:
        case "int" if kind.get("bitWidth") in {8, 16, 32, 64}:
            signed, width = bool(kind.get("isSigned", True)), kind["bitWidth"]
            small = width < 32 or (width == 32 and signed)
            return ValueColumn(0, name, "int" if small else "long" if signed or width < 64 else _UINT64)
        case "floatingpoint":
            return ValueColumn(0, name, "double" if kind.get("precision") == "DOUBLE" else "float")
        case "decimal":
            return ValueColumn(0, name, f"decimal({kind.get('precision')}, {kind.get('scale')})")
        case "timestamp":
            return ValueColumn(0, name, "timestamptz" if kind.get("timezone") else "timestamp")
        case "list" | "largelist" | "fixedsizelist" if len(children) == 1:
            return ValueColumn(0, name, _LIST, (msgspec.structs.replace(_of_field(children[0], where), name=_ELEMENT),))
        case "struct":
            return ValueColumn(0, name, _STRUCT, tuple(_of_field(f, where) for f in children))
        case str(other) if other in _OF_ARROW:
            return ValueColumn(0, name, _OF_ARROW[other])
    raise _refused(where, f"has Arrow's type {kind['name']!r}, which JSON values do not have; leave it out")


# -- JSON Schema ----------------------------------------------------------------------------------------------------------

_WAYS: Final = ("anyOf", "oneOf", "allOf")
_DESCRIBES: Final = frozenset({"$ref", "type", "properties", "items", "prefixItems", "enum", "const", *_WAYS})
"""The keywords that describe a value."""
_OF_FORMAT: Final = {
    ("integer", "int32"): "int",
    ("integer", "uint64"): _UINT64,
    ("number", "float"): "float",
    ("string", "date-time"): "timestamptz",
    ("string", "date"): "date",
}
_OF_TYPE: Final = {"integer": "long", "number": "double", "boolean": "boolean", "string": "string"}
_OF_CONSTANT: Final = {str: "string", bool: "boolean", int: "integer", float: "number"}


class _JsonSchema:
    """Resolves the parts of one JSON Schema."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def column(self, name: str, given: Any, where: str, depth: int) -> ValueColumn:
        """Return the column of a field. Raises `UsageError`."""
        if depth > 2 * MAX_DEPTH:
            raise _refused(where, "refers to itself, or is nested too deeply; leave it out")
        if not isinstance(given, Mapping) or not (described := {*given} & _DESCRIBES):
            raise _refused(where, "does not say what it holds; give it a type, or leave it out")
        if by := described & {"$ref", *_WAYS}:
            if len(described) > 1:
                raise _refused(
                    where, f"has {' and '.join(sorted(described))}, of which l0gc resolves only one; leave it out"
                )
            return self._resolved(name, given, by.pop(), where, depth)
        kind = self._kind(given, where)
        if kind == "object":
            fields = given.get("properties")
            if not isinstance(fields, Mapping) or not fields:
                raise _refused(where, "is an object without properties; name them, or leave it out")
            inner = (self.column(n, f, f"{where}.{n}" if where else n, depth + 1) for n, f in fields.items())
            return ValueColumn(0, name, _STRUCT, tuple(inner))
        if kind == "array":
            if "prefixItems" in given or isinstance(given.get("items"), list):
                raise _refused(where, "is a tuple, whose items have different types; leave it out")
            element = self.column(_ELEMENT, given.get("items"), f"{where}.{_ELEMENT}", depth + 1)
            return ValueColumn(0, name, _LIST, (element,))
        if kind not in _OF_TYPE:
            raise _refused(where, f"has type {kind!r}; leave it out, or give it another type")
        return ValueColumn(0, name, _OF_FORMAT.get((kind, str(given.get("format", ""))), _OF_TYPE[kind]))

    def _resolved(self, name: str, given: Mapping[str, Any], by: str, where: str, depth: int) -> ValueColumn:
        """Return the column for the schema that a field refers to, if there is exactly one."""
        if by == "$ref":
            return self.column(name, self._referred(given[by], where), where, depth + 1)
        ways = given[by] if isinstance(given[by], list) else [given[by]]
        if by != "allOf":
            ways = [way for way in ways if not isinstance(way, Mapping) or way.get("type") != "null"]
        if by == "allOf" and len(ways) > 1:
            raise _refused(where, "has allOf of several schemas; leave it out, or write them as one")
        columns = {self.column(name, way, where, depth + 1): None for way in ways}
        if len(columns) != 1:
            raise _refused(where, "has several types; leave it out, or give it one type")
        return next(iter(columns))

    def _referred(self, ref: Any, where: str) -> Any:
        target: Any = self._root
        if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
            raise _refused(where, f"refers to {ref!r}, which is not in this schema; copy it to $defs")
        for part in unquote(ref).split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and key.isdecimal() and int(key) < len(target):
                target = target[int(key)]
            elif isinstance(target, Mapping) and key in target:
                target = target[key]
            else:
                raise _refused(where, f"refers to {ref!r}, which does not exist; define it, or leave the field out")
        return target

    def _kind(self, given: Mapping[str, Any], where: str) -> str:
        """Return the one type of JSON that a schema without references describes."""
        if "type" in given:
            kinds = given["type"] if isinstance(given["type"], list) else [given["type"]]
        elif "enum" in given or "const" in given:
            constants = given["enum"] if isinstance(given.get("enum"), list) else [given.get("const")]
            kinds = ["null" if v is None else _OF_CONSTANT.get(type(v), "object") for v in constants]
        else:
            kinds = ["object" if "properties" in given else "array"]
        names = {str(kind) for kind in kinds} - {"null"}
        names -= {"integer"} if "number" in names else set()
        if len(names) != 1:
            raise _refused(
                where,
                "has several types; leave it out, or give it one type" if names else "is always null; leave it out",
            )
        return names.pop()
