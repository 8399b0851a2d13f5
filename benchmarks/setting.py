"""The setting that the benchmarks share: programs, rounds and inputs.

Every upload has its own prefix in one bucket, so that no run finds another one's objects.
"""

from __future__ import annotations

import itertools
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import boto3

from benchmarks.measure import Bench, BenchmarkFailedError, Sample
from l0gc.embedded.sample import write_files
from l0gc.errors import installing

BUCKET: Final = "bench"
KEY_FIELD: Final = "carrier"
PARTITIONS: Final = 8
BENCHMARKS: Final = Path(__file__).parent


@dataclass
class Setting:
    """The setting that the benchmarks share."""

    bench: Bench
    runs: int
    flights: int | None
    numbers: itertools.count[int]

    def program(self, name: str) -> str:
        """Return a program's path, next to this Python or on PATH.

        Raises:
            BenchmarkFailedError: the program is missing.
        """
        beside = Path(sys.executable).with_name(name)
        found = str(beside) if beside.is_file() else shutil.which(name)
        if found is None:
            raise BenchmarkFailedError(f"there is no {name}; {installing('server,bench')}")
        return found

    def l0gc(self, prefix: str, *arguments: str | Path, json: bool = True) -> Sample:
        """Run an l0gc command on a prefix."""
        flags = ["--json"] if json else []
        return self.bench.run([self.program("l0gc"), *arguments, *flags], {"L0GC_URL": f"s3://{BUCKET}/{prefix}"})

    def new_cluster(self) -> str:
        """Return a fresh prefix with a cluster and its topic."""
        prefix = self.new_prefix()
        self.l0gc(prefix, "init")
        self.l0gc(prefix, "topic", "create", "flights", "--partitions", str(PARTITIONS))
        return prefix

    def keys(self, prefix: str, containing: str = "") -> list[str]:
        """Return the keys below a prefix of the benchmarks' bucket that contain this text."""
        where = self.bench.environment
        client = boto3.client(
            "s3",
            endpoint_url=where["AWS_ENDPOINT_URL_S3"],
            region_name=where["AWS_REGION"],
            aws_access_key_id=where["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=where["AWS_SECRET_ACCESS_KEY"],
        )
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [o["Key"] for page in pages for o in page.get("Contents", []) if containing in o["Key"]]

    def new_prefix(self) -> str:
        return f"run-{next(self.numbers):04}"

    def upload(self, prefix: str, file: Path) -> Sample:
        """Upload the lines of `file` with l0gc."""
        return self.l0gc(prefix, "upload", "flights", file, "--key-field", KEY_FIELD)

    def flights_file(self) -> tuple[Path, int]:
        """Return the flights as one file, which is written once, and how many there are."""
        folder = self.bench.scratch / "flights"
        file = folder / "flights-000.ndjson"
        if not file.exists():
            write_files(folder, 1, self.flights)
        return file, _count_lines(file)

    @property
    def quick(self) -> bool:
        """Whether the run only has to show that the benchmarks work."""
        return self.flights is not None


def _count_lines(file: Path) -> int:
    with file.open("rb") as lines:
        return sum(1 for _ in lines)
