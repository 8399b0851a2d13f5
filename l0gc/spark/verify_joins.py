"""The joins of verify: the objects in the listings with those that the journals refer to.

Rows that come out of here are suspects, which a second reading decides on (`inspect/verify/confirm.py`), and counts of what
is well: those are grouped by what has to stay apart, a row for each suspect and one for everything of a kind that is well.
So each side is read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from l0gc.inspect.verify import findings as kinds
from l0gc.inspect.verify.basis import DELETED, FOREIGN, LATER, Basis
from l0gc.spark.verify_sources import L0, L1, ROWS

REFERENCED: Final = "l0_referenced"
WAITING: Final = "l0_waiting"
ELIGIBLE: Final = "l0_eligible"
NO_L0: Final = "l0_unparsable"
NAMED: Final = "l1_named"
YOUNG: Final = "l1_young"
OF_DELETED: Final = "l1_of_deleted_topic"
NO_L1: Final = "l1_unparsable"

_PLACE: Final = ["journal", "topic", "revision", "partition"]
_ABSENT: Final[dict[str, Any]] = {"n": 1, "bytes": 0, "topic": "", "key": "", "detail": "", "ref": b""}


def as_rows(frame: DataFrame) -> DataFrame:
    """`frame` with the columns of `ROWS`; what it lacks is absent."""

    def column(f: StructField) -> Column:
        if f.name == "kind":
            return F.col("kind")
        absent = F.lit(_ABSENT.get(f.name, -1))
        value = F.coalesce(F.col(f.name), absent) if f.name in frame.columns else absent
        return value.cast(f.dataType).alias(f.name)

    return frame.select(*(column(f) for f in ROWS.fields))


def l0_rows(listing: DataFrame, journals: DataFrame, basis: Basis) -> DataFrame:
    """Every L0 object with the journals that refer to it."""
    fields = [*_PLACE, "offset", "expected"]
    by_key = (
        journals.filter(F.col("kind") == L0)
        .groupBy("key")
        .agg(F.max("expected").alias("end"), F.collect_list(F.struct(*fields)).alias("refs"))
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
    cut = F.filter("refs", lambda r: F.isnull("bytes") | (r["expected"] > F.col("bytes")))
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
        *(F.col(f"r.{c}").alias(c) for c in [*_PLACE, "offset"]),
        "key",
        F.when(F.isnotnull("above"), text).alias("detail"),
        F.coalesce(F.col("r.expected"), F.col("above")).alias("expected"),
        F.when(F.col("nth") > 0, 0).otherwise(F.col("n")).alias("n"),
        "bytes",
    )
    return as_rows(exploded)


def l1_rows(listing: DataFrame, journals: DataFrame, basis: Basis, doubtful: Sequence[int]) -> DataFrame:
    """Every L1 object with the journal that names it.

    Args:
        doubtful: journals that may have lost entries; what those do not name may have been named by them.
    """
    listed = listing.select("key", "bytes", "modified_ms", "owner", *(F.col(c).alias(f"own_{c}") for c in _PLACE))
    refs = journals.filter(F.col("kind") == L1).select("key", "expected", "offset", *_PLACE)
    kind = (
        F.when(F.isnull("bytes"), kinds.L1_MISSING)
        .when(F.col("expected") != F.col("bytes"), kinds.L1_SIZE)
        .when(F.isnotnull("expected"), NAMED)
        .when(F.col("owner") == FOREIGN, NO_L1)
        .when(F.col("owner") == DELETED, OF_DELETED)
        .when((F.col("owner") == LATER) | (F.col("modified_ms") > basis.young_after_ms), YOUNG)
        .when(F.col("own_journal").isin(*doubtful), YOUNG)
        .otherwise(kinds.L1_ORPHAN)
    )
    suspected = F.col("kind").isin(kinds.L1_MISSING, kinds.L1_SIZE, kinds.L1_ORPHAN)
    own = [F.coalesce(c, f"own_{c}").alias(c) for c in _PLACE]
    apart = [*_PLACE, "key", "offset", "expected"]
    return as_rows(
        listed.join(refs, "key", "full_outer")
        .select(kind.alias("kind"), "key", *own, "offset", "expected", "bytes")
        .select("kind", *(F.when(suspected, F.col(c)).alias(c) for c in apart), "bytes")
        .groupBy("kind", *apart)
        .agg(F.count("*").alias("n"), F.sum("bytes").alias("bytes"))
    )
