"""Topics as Spark's data frames, for the flows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from l0gc.storage.config import StoreConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def load(spark: SparkSession, bucket: StoreConfig, **options: str) -> DataFrame:
    return spark.read.format("l0gc").options(url=bucket.url, endpointUrl=bucket.endpoint_url or "", **options).load()
