"""Open, create and check tables in their catalog, define their schema, and translate a catalog's errors.

Each answer of a catalog has a time limit, since PyIceberg itself would wait for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import pyiceberg.exceptions as failed
from msgspec.structs import replace
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import AddSchemaUpdate, AssertCurrentSchemaId, SetCurrentSchemaUpdate, SetPropertiesUpdate
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)
from requests.exceptions import RequestException

from l0gc.errors import (
    AccessDeniedError,
    AmbiguousWriteError,
    L0gcError,
    NotFoundError,
    SafetyError,
    StoreError,
    StoreTimeoutError,
    UsageError,
)
from l0gc.integrations.iceberg.configuration import catalog_properties
from l0gc.integrations.iceberg.plan import check_owner
from l0gc.storage.objectstore import ObjectStore
from l0gc.streamlog.controller.state import TopicTable
from l0gc.streamlog.controller.value_schema import VALUE_ERROR, VALUE_ERROR_ID, ValueSchema, fields_json
from l0gc.streamlog.level_one.parquet import FIELD_IDS

ANSWER_SECONDS: Final = 120.0
"""How long a catalog may take for one answer."""
OWNER: Final = "l0gc.cluster-id"
CLUSTER_URL: Final = "l0gc.url"
REVISION: Final = "l0gc.revision"
"""The table's properties that identify its owner. The summary of each snapshot repeats them."""
VALUES: Final = "l0gc.value-schema"
"""The property with the number of the value schema that determines the table's columns."""
VERSIONS_KEPT: Final = 10
"""How many older metadata files a table names."""


def _column(path: str, kind: IcebergType, *, required: bool = True) -> NestedField:
    name = path.rpartition(".")[2]
    return NestedField(field_id=FIELD_IDS[path], name=name, field_type=kind, required=required)


_HEADERS: Final = ListType(
    element_id=FIELD_IDS["headers.element"],
    element=StructType(
        _column("headers.element.key", StringType()),
        _column("headers.element.value", BinaryType(), required=False),
    ),
    element_required=True,
)
SCHEMA: Final = Schema(
    _column("offset", LongType()),
    _column("timestamp", TimestamptzType()),
    _column("key", BinaryType(), required=False),
    _column("value", BinaryType()),
    _column("epoch", LongType()),
    _column("partition", IntegerType(), required=False),
    _column("create_time", TimestamptzType(), required=False),
    _column("headers", _HEADERS, required=False),
)
"""l0gc's own columns, in order of their ids, since catalogs assign ids anew in this order. Objects of older versions
lack the column `partition`. By Iceberg's rules, readers take its value from the list of files; PyIceberg does so only
if it is optional.
"""
SPEC: Final = PartitionSpec(
    PartitionField(source_id=FIELD_IDS["partition"], field_id=1000, transform=IdentityTransform(), name="partition")
)


def schema_with(schema: ValueSchema, number: int) -> Schema:
    """Return a table's schema with this number: l0gc's own columns and those of a value schema, with the ids of L1
    objects.
    """
    columns = fields_json([replace(c, name=c.column) for c in schema.columns])
    error = {"id": VALUE_ERROR_ID, "name": VALUE_ERROR, "required": False, "type": "string"}
    typed = Schema.model_validate({"type": "struct", "fields": [*columns, error]})
    return Schema(*SCHEMA.fields, *typed.fields, schema_id=number)


def evolve(table: Table, schema: ValueSchema) -> None:
    """Give a table the columns of a value schema, unless it has these or those of a later one.

    The columns keep their ids. PyIceberg's own functions to create a table or add a column assign new ids, with which
    every reader would find only nulls in L1 objects.

    Raises:
        CommitFailedException: the table was changed since it was loaded; nothing was committed.
        SafetyError: the table has other columns than its value schema.
    """
    number = int(table.properties.get(VALUES, 0))
    next_schema = schema_with(schema, 1 + max(s.schema_id for s in table.metadata.schemas))
    if number == schema.number and table.schema().as_struct() != next_schema.as_struct():
        raise SafetyError(
            f"table {'.'.join(table.name())} has other columns than value schema {number} of its topic: another program "
            "changed it; drop it with l0gc table drop, and create it again"
        )
    if number < schema.number:
        with table.transaction() as transaction:
            transaction._apply(
                (
                    AddSchemaUpdate(schema=next_schema),
                    SetCurrentSchemaUpdate(),
                    SetPropertiesUpdate(updates={VALUES: str(schema.number)}),
                ),
                (AssertCurrentSchemaId.model_validate({"current-schema-id": table.schema().schema_id}),),
            )


class PatientCatalog:
    """A catalog with a time limit for each answer, after which `StoreTimeoutError` is raised."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._catalog, name)
        if not callable(attribute):
            return attribute
        return lambda *args, **named: answered(lambda: attribute(*args, **named))


def answered(call: Callable[[], Any]) -> Any:
    """Return the call's result, or raise its error. Raises `StoreTimeoutError` if the call takes too long; it may still
    take effect.
    """
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append((call(), None))
        except BaseException as e:  # noqa: BLE001 - it is raised below
            outcome.append((None, e))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(ANSWER_SECONDS)
    if not outcome:
        raise StoreTimeoutError(f"no answer within {ANSWER_SECONDS:g} s")
    result, error = outcome[0]
    if error is not None:
        raise error
    return result


def open_catalog(name: str, store: ObjectStore) -> Catalog:
    """Return PyIceberg's catalog with this name.

    Raises:
        NotFoundError, UsageError: see `catalog_properties`.
        StoreError: the catalog does not answer, or refuses.
    """
    given = catalog_properties(name, store)
    with explained(name):
        return PatientCatalog(answered(lambda: load_catalog(name, **given)))  # type: ignore[return-value]


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Turn an error of a catalog or its warehouse into an error of l0gc.

    Raises:
        AccessDeniedError: the catalog or the warehouse denies access.
        AmbiguousWriteError: it is unknown whether the catalog committed.
        StoreError: any other error. A conflict is raised unchanged.
    """
    try:
        yield
    except (L0gcError, failed.CommitFailedException, failed.NoSuchTableError) as e:
        if isinstance(e, StoreTimeoutError):
            raise StoreTimeoutError(f"catalog {name!r}: {e}") from e
        raise
    except (failed.UnauthorizedError, failed.ForbiddenError, failed.OAuthError, PermissionError) as e:
        raise AccessDeniedError(f"catalog {name!r} or its warehouse refuses: {_sentence(e)}") from e
    except failed.CommitStateUnknownException as e:
        raise AmbiguousWriteError(
            f"catalog {name!r} may or may not have committed: {_sentence(e)}; run l0gc table sync again"
        ) from e
    except OSError as e:
        if "ACCESS_DENIED" in str(e) or isinstance(e, PermissionError):
            raise AccessDeniedError(f"catalog {name!r}: the warehouse refuses: {_sentence(e)}") from e
        raise StoreError(f"catalog {name!r} or its warehouse cannot be reached: {_sentence(e)}") from e
    except _FAILED as e:
        raise StoreError(f"catalog {name!r} failed: {_sentence(e)}") from e


_FAILED: tuple[type[Exception], ...] = (
    RequestException,
    ValueError,
    *(e for e in vars(failed).values() if isinstance(e, type) and issubclass(e, Exception)),
)
with suppress(ImportError):
    from sqlalchemy.exc import SQLAlchemyError

    _FAILED = (*_FAILED, SQLAlchemyError)


def _sentence(e: Exception) -> str:
    """Return the first line of an error's message, without parts that may be long."""
    e = getattr(next(iter(e.args), None), "reason", e)  # the last error in urllib3
    lines = str(e).strip().splitlines()
    return (lines[0] if lines else type(e).__name__)[:300]


def check_location(table: Table, spec: TopicTable) -> None:
    """Raise `SafetyError` if the table, or a metadata file that it names, is not at the location where it was created.

    A program with access only to the catalog can make the table name another table's files, which a sync would then
    delete (hazard 32).
    """
    folder = metadata_folder(table)
    files = [table.metadata_location, *(old.metadata_file for old in table.metadata.metadata_log)]
    if table.location() != (spec.location or table.location()) or not all(f.startswith(folder) for f in files):
        raise SafetyError(
            f"table {spec.table} in catalog {spec.catalog!r} was created at {spec.location}, and has its metadata at "
            f"{table.metadata_location} now, or names older metadata elsewhere: somebody changed it there, and nothing was "
            f"changed or deleted; put it back, or end it with l0gc table drop {spec.topic} --forget"
        )


def metadata_folder(table: Table) -> str:
    return f"{table.location().rstrip('/')}/metadata/"


def create_in_catalog(catalog: Catalog, spec: TopicTable, cluster_id: str, url: str) -> Table:
    """Return the table in its catalog. Create it if it does not exist; otherwise check it as `load_table` does."""
    from pyiceberg.table import TableProperties as P

    properties = {
        OWNER: cluster_id,
        CLUSTER_URL: url,
        REVISION: str(spec.revision),
        "format-version": "2",
        "gc.enabled": "false",
        P.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
        P.METADATA_PREVIOUS_VERSIONS_MAX: str(VERSIONS_KEPT),
        P.DEFAULT_NAME_MAPPING: SCHEMA.name_mapping.model_dump_json(),
    }
    with explained(spec.catalog):
        catalog.create_namespace_if_not_exists(spec.table.rpartition(".")[0])
        catalog.create_table_if_not_exists(spec.table, SCHEMA, partition_spec=SPEC, properties=properties)
    return load_table(catalog, spec, cluster_id, url)


def load_table(catalog: Catalog, spec: TopicTable, cluster_id: str, url: str) -> Table:
    """Return the table as it currently is in its catalog.

    Raises:
        NotFoundError: the table does not exist.
        UsageError: l0gc did not create the table.
        ClusterMismatchError: see `check_owner`.
        SafetyError: its columns or its partitioning are not those that l0gc gave it; see `check_location`, too.
    """
    with explained(spec.catalog):
        try:
            table: Table = catalog.load_table(spec.table)
        except failed.NoSuchTableError as e:
            raise NotFoundError(
                f"catalog {spec.catalog!r} has no table {spec.table}; end it with l0gc table drop {spec.topic}, "
                "then create it again"
            ) from e
    table.catalog = catalog
    owner = table.properties.get(OWNER)
    if owner is None:
        raise UsageError(
            f"table {spec.table} exists in catalog {spec.catalog!r}, and l0gc did not create it; use another name "
            "(--table)"
        )
    cluster_url, revision = table.properties.get(CLUSTER_URL, ""), int(table.properties.get(REVISION, -1))
    check_owner(owner, cluster_url, revision, spec, cluster_id, url)
    check_location(table, spec)
    columns = {f.field_id: (f.name, f.field_type, f.required) for f in table.schema().fields}
    ours = {f.field_id: (f.name, f.field_type, f.required) for f in SCHEMA.fields}
    parts = [(f.source_id, f.transform) for f in table.spec().fields]
    if any(columns.get(i) != c for i, c in ours.items()) or parts != [(f.source_id, f.transform) for f in SPEC.fields]:
        raise SafetyError(
            f"table {spec.table} in catalog {spec.catalog!r} has other columns or partitions than l0gc gives it; "
            "drop it there, or use another name (--table)"
        )
    return table
