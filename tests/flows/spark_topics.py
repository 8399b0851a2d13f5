"""Uses topics in Spark for the flows: as data frames, and in queries whose drivers are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from l0gc.storage.config import StoreConfig
from tests.support import stream_copy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def load(spark: SparkSession, bucket: StoreConfig, **options: str) -> DataFrame:
    return spark.read.format("l0gc").options(url=bucket.url, endpointUrl=bucket.endpoint_url or "", **options).load()


def driver(url: str, topic: str, checkpoint: Path, *given: str) -> subprocess.Popen[bytes]:
    """Start a query into a topic as a process group, with Java and its workers; see `stream_copy`."""
    root = Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, stream_copy.__file__, url, topic, checkpoint.as_uri(), *given],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def recorded(checkpoint: Path, folder: str) -> int:
    """Return how many micro-batches have begun ("offsets") or ended ("commits")."""
    place = checkpoint / folder
    return sum(f.name.isdecimal() for f in place.iterdir()) if place.is_dir() else 0
