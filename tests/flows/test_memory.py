"""The memory of a process that reads records does not grow with their number."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import Final

import pytest

import l0gc
from l0gc.storage.config import StoreConfig

pytestmark = [pytest.mark.weed, pytest.mark.slow, pytest.mark.thorough]

RECORDS: Final = 1_200_000
HELD_MB: Final = 300
"""The MB for records fetched ahead and decoded, and for malloc's arenas of each thread. If each thread decoded, it
would be 430.
"""
READING: Final = """
import os, sys, l0gc

def peak():  # of this program: ru_maxrss begins with that of its parent
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) >> 10

with l0gc.open(os.environ["L0GC_URL"]) as cluster:
    read = {"arrow": cluster.read_arrow, "lines": cluster.read_lines}[sys.argv[1]]
    for _ in cluster.read_arrow("events", columns=["offset"]):  # loads what reading needs
        pass
    before = peak()
    for _ in read("events"):
        pass
    print(peak() - before)
"""


@pytest.fixture(scope="module")
def records() -> list[bytes]:
    chosen = random.Random(1)
    return [chosen.randbytes(80).hex().encode() for _ in range(RECORDS)]


def test_reading_holds_a_part_of_the_records(bucket: StoreConfig, records: list[bytes]) -> None:
    with l0gc.open(bucket.url) as cluster:
        cluster.init(create_bucket=True, shards=4)
        cluster.topics.create("events", partitions=8)
        cluster.upload("events", records)
        cluster.reconcile()
    for what in ("arrow", "lines"):
        command = [sys.executable, "-c", READING, what]
        held = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        assert held < HELD_MB, f"{what} held {held} MB of {sum(map(len, records)) >> 20}"
