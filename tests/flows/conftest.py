"""Fixtures of the flows that use `format("l0gc")` in Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import l0gc
import l0gc.spark
from l0gc.storage.config import StoreConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def spark(one_spark: SparkSession) -> SparkSession:
    l0gc.spark.register(one_spark)
    return one_spark


@pytest.fixture
def cluster(bucket: StoreConfig) -> Iterator[l0gc.Cluster]:
    with l0gc.open(bucket.url) as opened:
        opened.init(create_bucket=True, shards=4)
        yield opened
