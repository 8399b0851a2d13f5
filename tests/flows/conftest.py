"""What flows share: one Spark session for all the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from l0gc.embedded.seaweedfs import SeaweedFS
from tests.support.spark import shared_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def one_spark(weed: SeaweedFS) -> Iterator[SparkSession]:
    """One session for all of them; its workers have the environment of its start, so that names the server."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in weed.environment().items():
            patch.setenv(name, value)
        with shared_spark() as spark:
            yield spark
