"""Changes value schemas while processes run, and checks L1 by separate rules.

A number's columns are always the same here, so that each L1 object can be checked by its own bytes when it is named.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow.parquet as pq

from l0gc.streamlog.controller.value_schema import ValueSchema
from tests.simulation.shadow_l1 import Span, Wrong

_FIRST: Final[list[dict[str, Any]]] = [{"name": "who", "type": "string"}, {"name": "n", "type": "int"}]
_WIDER: Final[list[dict[str, Any]]] = [_FIRST[0], {"name": "n", "type": "long"}]
_MORE: Final[list[dict[str, Any]]] = [
    {"name": "tags", "type": {"type": "list", "element": "string"}},
    {"name": "x", "type": "double"},
]
SCHEMAS: Final[tuple[list[dict[str, Any]], ...]] = (_FIRST, _WIDER, [*_WIDER, _MORE[0]], [*_WIDER, *_MORE])
"""The fields of value schema 1, and of its successors."""
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {"who": (str,), "n": (int,), "tags": (list,), "x": (int, float)}
ALTERED = "value schemas altered"


def place_of(schema: ValueSchema | None) -> int:
    """Return the place of a topic's schema in `SCHEMAS`, from 1 on; 0 without a schema. The number in the log grows by
    more than 1.
    """
    if schema is None:
        return 0
    wide = any(c.name == "n" and c.type_json() == "long" for c in schema.columns)
    return len(schema.columns) if wide and len(schema.columns) > 2 else 1 + wide


def check_columns(key: str, body: bytes, places: Mapping[int, int]) -> int:
    """Return the place in `SCHEMAS` of the schema that wrote an L1 object. Raises `Wrong` if the object's columns are
    not those of the schema.

    Args:
        places: the value of `place_of` for each number in the log.
    """
    with pq.ParquetFile(io.BytesIO(body)) as file:
        named = int((file.metadata.metadata or {}).get(b"l0gc.value_schema", 0))
        number = places[named] if named else 0
        rows = file.read().to_pylist()
    fields = SCHEMAS[number - 1] if number else []
    for row in rows:
        wanted, fits = _columns(row["value"], fields, wide=number > 1)
        found = {name: v for name, v in row.items() if name in _TYPES or name == "value_error"}
        if number and (found.pop("value_error", "none") is None) != fits:
            raise Wrong(f"{key}: value schema {number} and {row['value']!r} gave {row}")
        if found != wanted:
            raise Wrong(f"{key}: value schema {number} and {row['value']!r} gave {found}")
    return number


def _columns(value: bytes, fields: Iterable[Mapping[str, Any]], *, wide: bool) -> tuple[dict[str, Any], bool]:
    """Return the columns of a value, and whether the whole value fits."""
    nothing: dict[str, Any] = {str(f["name"]): None for f in fields}
    try:
        given = json.loads(value)
    except ValueError:
        return nothing, False
    if not isinstance(given, dict):
        return nothing, False
    found: dict[str, Any] = {name: given.get(name) for name in nothing}
    kept = {
        name: v
        for name, v in found.items()
        if isinstance(v, _TYPES[name]) and (wide or not isinstance(v, int) or v < 2**31)
    }
    return nothing | kept, all(v is None or name in kept for name, v in found.items())


def check_merged(
    numbers: Mapping[str, int], added: Mapping[str, tuple[int, Span]], removed: Mapping[str, tuple[int, Span]]
) -> None:
    """Raise `Wrong` if a merge has lost columns because it wrote by an older schema than that of its sources."""
    for key, (p, span) in added.items():
        before = [numbers[k] for k, (q, old) in removed.items() if q == p and span.base <= old.base <= span.last]
        if numbers[key] < max(before, default=0):
            raise Wrong(f"merged columns of value schema {max(before)} into those of {numbers[key]} in {key}")
