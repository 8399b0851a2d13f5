"""Threads that meet l0gc's types for the first time at once do not crash the process."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import sys, threading
sys.setswitchinterval(1e-6)
from l0gc.streamlog.journal.state import PartitionMachine
from l0gc.keys import PartitionId
from l0gc.storage.log import Landed
payload = (
    b'{"type":"placeholders","epoch":1,"placeholders":[{"key":"k","start":0,"length":1,"records":1,"crc32c":0,'
    b'"base_offset":0,"producer":{"producer_id":1,"epoch":0,"sequence":0,"inputs":[{"input_id":"i","start":0,"end":1}]}}]}'
)
ready = threading.Barrier(16)
def work():
    machine = PartitionMachine(PartitionId("t", 1, 0))
    ready.wait()
    state = machine.initial()
    machine.apply(state, Landed(0, 0, payload, 0))
    machine.decode(machine.encode(state), "it")
threads = [threading.Thread(target=work) for _ in range(16)]
[t.start() for t in threads]
[t.join() for t in threads]
"""


def test_many_threads_may_decode_a_type_for_the_first_time() -> None:
    """msgspec crashes where threads learn one type at once; a decoder that is built at import has learned it."""
    for _ in range(20):
        assert subprocess.run([sys.executable, "-c", _PROGRAM], check=False).returncode == 0
