"""Threads that use l0gc's types for the first time at once do not crash the process."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from l0gc.streamlog.journal.entries import Objects
from l0gc.streamlog.journal.producers import InputSpan
from tests.support.journal import batch, extents_of

_PROGRAM = """
import sys, threading
sys.setswitchinterval(1e-6)
from l0gc.storage.entry import StoredEntry
from l0gc.streamlog.journal.checkpoint import JournalMachine
payload = bytes.fromhex("%s")
ready = threading.Barrier(16)
def work():
    machine = JournalMachine(0)
    ready.wait()
    state = machine.initial()
    machine.apply(state, StoredEntry(0, 0, payload, 0, 0))
    machine.decode(machine.encode(state), "it")
threads = [threading.Thread(target=work) for _ in range(16)]
[t.start() for t in threads]
[t.join() for t in threads]
"""


@pytest.mark.thorough
def test_many_threads_may_decode_a_type_for_the_first_time() -> None:
    """msgspec crashes if threads learn one type at once; a decoder that is built at import has already learned it."""
    payload = msgspec.msgpack.encode(Objects([extents_of(5, producer=batch(0, inputs=[InputSpan("i", 0, 1)]))]))
    for _ in range(20):
        assert subprocess.run([sys.executable, "-c", _PROGRAM % payload.hex()], check=False).returncode == 0
