"""Typed columns on Spark: the source parses values into the same columns that Spark's own Parquet reader finds in L1."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import l0gc
from l0gc.keys import L1_DATA
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from tests.flows.spark_topics import load
from tests.integrations.spark.test_typed import FIELDS, NAMES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.weed, pytest.mark.spark, pytest.mark.slow, pytest.mark.thorough]

RECORDS = 500


def values(first: int) -> list[bytes]:
    """Return records of every type, some without a field; every tenth does not fit."""
    chance = random.Random(first)

    def value(n: int) -> dict[str, Any]:
        day = f"20{chance.randrange(10, 99)}-0{chance.randrange(1, 10)}-1{chance.randrange(10)}"
        whole = {
            "id": n,
            "key": f"é{n}",
            "price": f"{chance.randrange(-9999, 9999)}.{chance.randrange(100):02}",
            "at": f"{day}T10:00:0{n % 10}.{n:06}+0{n % 9}:30",
            "local": f"{day}T23:59:59",
            "day": day,
            "tags": [None, *map(str, range(n % 4))],
            "place": {"lat": chance.uniform(-90, 90)} if n % 3 else None,
        }
        return {name: v for name, v in whole.items() if chance.random() < 0.9}

    return [msgspec.json.encode(value(n)) if n % 10 else b"[%d]" % n for n in range(first, first + RECORDS)]


def test_the_source_and_sparks_own_reader_of_l1_agree(
    spark: SparkSession, cluster: l0gc.Cluster, bucket: StoreConfig, tmp_path: Path
) -> None:
    cluster.topics.create("events", partitions=2, value_schema={"fields": FIELDS})
    cluster.upload("events", values(0))
    assert cluster.reconcile().misfits == RECORDS // 10
    cluster.upload("events", values(RECORDS))
    frame = load(spark, bucket, topic="events", columns="*")
    wanted = ["partition", "offset", *NAMES]
    from_both = sorted(frame.select(wanted).collect(), key=lambda row: row[:2])
    assert len(from_both) == 2 * RECORDS
    assert cluster.reconcile().misfits == RECORDS // 10
    store = S3Store(bucket)
    for n, key in enumerate(key for page in store.scan(L1_DATA) for key in page.keys):
        (tmp_path / f"{n}.parquet").write_bytes(store.get(key).body)
    own = spark.read.parquet(str(tmp_path)).select(wanted)
    assert own.dtypes == frame.select(wanted).dtypes
    assert sorted(own.collect(), key=lambda row: row[:2]) == from_both
    assert frame.where("value_error IS NOT NULL").count() == 2 * RECORDS // 10
    assert cluster.status().misfits == cluster.topics.describe("events").misfits == 2 * RECORDS // 10
