"""No thread of Arrow's decodes what is read from the bucket.

Such a thread may still hold Python's memory when the process ends, and release it then: the process aborts, though its
work is done and its output is printed (apache/arrow issues 34314 and 50482).
"""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import os
from l0gc.collect.record import RecordedObject, encode_segment, read_segment
from l0gc.inspect.verify.replay import l1_fault
from l0gc.streamlog.reader import read_topic
from l0gc.watermark.external_files import read_table
from tests.support.memory_store import store_of, topic_in_memory
from tests.support.reconcile import named, put, reconcile

cluster = topic_in_memory(2)
store = store_of(cluster)
put(cluster, "events", {0: [b"a" * 100] * 300, 1: [b"b"] * 3})
segment = encode_segment([RecordedObject("a", 1, 2, 3)])
store.put("segment", segment)

def records():
    return len(list(read_topic(cluster, cluster.controller.snapshot().topic("events"))))

def in_l1():
    assert reconcile(cluster).records == 303
    return records()

readers = {
    "L0": records,
    "L1": in_l1,
    "verify": lambda: [l1_fault(store, k, store.head(k).size) for k in named(cluster, "events")],
    "segment": lambda: read_segment(store, "segment"),
    "external log": lambda: read_table("r.parquet", segment, ()),
}
for name, read in readers.items():
    before = len(os.listdir("/proc/self/task"))
    read()
    assert len(os.listdir("/proc/self/task")) == before, name
"""


def test_no_reader_starts_a_thread_of_arrows() -> None:
    found = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
