"""The joins of verify: what the listings have beside what the logs, and what reports say beside what the logs say.

Rows that come out of here are suspects, which a second look decides on (`verify/confirm.py`), and counts of what is well:
those are grouped by what has to stay apart, a row for each suspect and one for everything of a kind that is well. So each
side is read once.
"""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from l0gc.inspect.verify import findings as kinds
from l0gc.inspect.verify.rules import DELETED, FOREIGN, Basis
from l0gc.spark.verify_sources import L0, L1, STATE, SUSPECTS, TOP

ROWS: Final = StructType(
    [*SUSPECTS.fields, StructField("n", LongType(), False), StructField("bytes", LongType(), False)]
)
"""A suspect, or so many things of one kind that are as they should be."""

REFERENCED: Final = "l0_referenced"
WAITING: Final = "l0_waiting"
ELIGIBLE: Final = "l0_eligible"
NO_L0: Final = "l0_unparsable"
NAMED: Final = "l1_named"
YOUNG: Final = "l1_young"
OF_DELETED: Final = "l1_of_deleted_topic"
NO_L1: Final = "l1_unparsable"

_PARTITION: Final = ["topic", "revision", "partition"]
_MONOTONE: Final = ["gc_epoch", "max_applied_epoch", "next_offset", "last_reconciled_offset", "log_offset"]
_ABSENT: Final[dict[str, Any]] = {
    "topic": "",
    "revision": -1,
    "partition": -1,
    "key": "",
    "offset": -1,
    "detail": "",
    "ref": "",
    "n": 1,
    "bytes": 0,
}


def as_rows(frame: DataFrame) -> DataFrame:
    """`frame` with the columns of `ROWS`; what it lacks is absent."""

    def column(f: StructField) -> Column:
        if f.name == "kind":
            return F.col("kind")
        absent = F.lit(_ABSENT[f.name])
        value = F.coalesce(F.col(f.name), absent) if f.name in frame.columns else absent
        return value.cast(f.dataType).alias(f.name)

    return frame.select(*(column(f) for f in ROWS.fields))


def log_suspects(logs: DataFrame) -> DataFrame:
    """What the logs show by themselves."""
    return as_rows(logs.filter(~F.col("row").isin(STATE, L0, L1)).withColumnRenamed("row", "kind"))


def report_suspects(reports: DataFrame) -> DataFrame:
    """What reports show by themselves."""
    return as_rows(reports.filter(F.col("kind") != TOP))


def reports_ahead(reports: DataFrame, logs: DataFrame) -> DataFrame:
    """Partitions of which a report says more than the log."""
    most = [F.max(c).alias(c) for c in _MONOTONE]
    tops = reports.filter(F.col("kind") == TOP)
    best = tops.groupBy(*_PARTITION).agg(*most, F.max_by("key", "gc_epoch").alias("key"))
    held = [F.col(c).alias(f"held_{c}") for c in _MONOTONE]
    states = logs.filter(F.col("row") == STATE).select(*_PARTITION, *held)
    more = F.lit(False)
    for c in _MONOTONE:
        more = more | (F.col(c) > F.col(f"held_{c}"))
    found = best.join(states, _PARTITION).filter(more)
    top = F.to_json(F.struct(*_PARTITION, *_MONOTONE, "key"))
    return as_rows(found.select(F.lit(kinds.REPORT_AHEAD).alias("kind"), *_PARTITION, "key", top.alias("ref")))


def l0_rows(listing: DataFrame, logs: DataFrame, basis: Basis) -> DataFrame:
    """Every L0 object beside the placeholders that refer to it."""
    fields = [*_PARTITION, "offset", "end", "ref"]
    by_key = (
        logs.filter(F.col("row") == L0)
        .groupBy("key")
        .agg(F.max("end").alias("end"), F.collect_list(F.struct(*fields)).alias("refs"))
    )
    kind = (
        F.when(F.isnull("bytes"), kinds.L0_MISSING)
        .when(F.col("end") > F.col("bytes"), kinds.L0_SHORT)
        .when(F.isnull("epoch"), NO_L0)
        .when(F.col("epoch") > basis.cluster_epoch, kinds.EPOCH_AHEAD)
        .when(F.isnotnull("refs"), REFERENCED)
        .when(F.col("epoch") <= basis.watermark, ELIGIBLE)
        .otherwise(WAITING)
    )
    lost = F.col("kind").isin(kinds.L0_MISSING, kinds.L0_SHORT)
    cut = F.filter("refs", lambda r: F.isnull("bytes") | (r["end"] > F.col("bytes")))
    grouped = (
        listing.join(by_key, "key", "full_outer")
        .withColumn("kind", kind)
        .withColumn("at", F.when(lost, F.col("key")))
        .withColumn("refs", F.when(lost, cut))
        .withColumn("above", F.when(F.col("kind") == kinds.EPOCH_AHEAD, F.col("epoch")))
        .groupBy("kind", "at", "refs", "above")
        .agg(F.count("*").alias("n"), F.sum("bytes").alias("bytes"), F.min("key").alias("key"))
    )
    text = F.format_string(f"%d objects are at epoch %d, above the cluster epoch {basis.cluster_epoch}", "n", "above")
    exploded = grouped.select("*", F.posexplode_outer("refs").alias("nth", "r")).select(
        "kind",
        *(F.col(f"r.{c}").alias(c) for c in [*_PARTITION, "offset"]),
        "key",
        F.when(F.isnotnull("above"), text).alias("detail"),
        F.coalesce(F.col("r.ref"), F.col("above").cast("string")).alias("ref"),
        F.when(F.col("nth") > 0, 0).otherwise(F.col("n")).alias("n"),
        "bytes",
    )
    return as_rows(exploded)


def l1_rows(listing: DataFrame, logs: DataFrame, ahead: DataFrame, basis: Basis) -> DataFrame:
    """Every L1 object beside the log that names it.

    Where a report says more than the log, the log has lost entries, which may have named what now seems an orphan.
    """
    listed = listing.select("key", "bytes", "modified_ms", "owner", *(F.col(c).alias(f"own_{c}") for c in _PARTITION))
    refs = logs.filter(F.col("row") == L1).select("key", "end", "offset", "ref", *_PARTITION)
    kind = (
        F.when(F.isnull("bytes"), kinds.L1_MISSING)
        .when(F.col("end") != F.col("bytes"), kinds.L1_SIZE)
        .when(F.isnotnull("ref"), NAMED)
        .when(F.col("owner") == FOREIGN, NO_L1)
        .when(F.col("owner") == DELETED, OF_DELETED)
        .when(F.col("modified_ms") > basis.young_after_ms, YOUNG)
        .otherwise(kinds.L1_ORPHAN)
    )
    suspected = F.col("kind").isin(kinds.L1_MISSING, kinds.L1_SIZE, kinds.L1_ORPHAN)
    own = [F.coalesce(c, f"own_{c}").alias(c) for c in _PARTITION]
    apart = [*_PARTITION, "key", "offset", "ref"]
    rows = (
        listed.join(refs, "key", "full_outer")
        .select(kind.alias("kind"), "key", *own, "offset", "ref", "bytes")
        .select("kind", *(F.when(suspected, F.col(c)).alias(c) for c in apart), "bytes")
        .groupBy("kind", *apart)
        .agg(F.count("*").alias("n"), F.sum("bytes").alias("bytes"))
    )
    lost_entries = ahead.select(*_PARTITION).withColumn("kind", F.lit(kinds.L1_ORPHAN))
    return as_rows(rows.join(lost_entries, ["kind", *_PARTITION], "left_anti"))
