"""Runs programs that fork, close and exit at random moments while they use a cluster; each must end.

    python -m tests.flows.forks FIRST COUNT

Each program is a forked child of this process, which itself never uses a cluster. It opens one, has threads read, send
and list, and then forks, closes it, or exits, with iterators and senders left over. The threads end because the cluster
is closed while they use it. Two faults of Python are avoided: a child that is forked while a thread imports a module
waits for that module forever, so this process has imported all of l0gc; and until 3.14 Python unwinds a daemon thread at
its end, which aborts the process if the thread is in Arrow's C++, so no thread here is a daemon.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import l0gc
from l0gc.api.results import Record
from l0gc.errors import L0gcError

PATIENCE_S = 60


def work(cluster: l0gc.Cluster, seed: int) -> None:
    """Use the cluster until a call is refused."""
    choose = random.Random(seed)
    calls: list[Callable[[], object]] = [
        lambda: list(cluster.read("t")),
        lambda: list(cluster.read("t", pin=True)),
        lambda: list(cluster.read_arrow("t")),
        lambda: cluster.upload("t", [b"%d" % n for n in range(choose.randrange(50))]),
        lambda: cluster.topics.describe("t"),
        cluster.housekeep,
        cluster.reconcile,
        cluster.status,
    ]
    while True:
        choose.choice(calls)()


def at_work(cluster: l0gc.Cluster, seed: int) -> None:
    with suppress(l0gc.errors.UsageError):
        work(cluster, seed)


def refused(call: Callable[[], object]) -> None:
    """Check that a call on an older handle works, or is refused with an `L0gcError`."""
    with suppress(L0gcError):
        call()


def program(seed: int) -> None:
    choose = random.Random(seed)
    with l0gc.open(os.environ["L0GC_URL"]) as cluster:
        records = cluster.read("t", pin=choose.random() < 0.5)
        next(records, None)
        arrow = cluster.read_arrow("t")
        stack: Any = cluster.producers.sender("t", f"p{seed}")
        sender = stack.__enter__()
        for n in range(choose.randrange(4)):
            threading.Thread(target=at_work, args=(cluster, seed * 10 + n)).start()
        time.sleep(choose.random() / 2)
        end = choose.randrange(4)
        if end == 0:
            ended(os.fork() or child(cluster, records, arrow, sender))
        elif end == 1:
            return  # with threads active, and the iterator left over
        elif end == 2:
            sys.exit(0)
        else:
            cluster.close()
    refused(lambda: list(records))
    refused(arrow.read_all)
    refused(lambda: sender.send([Record(b"", partition=0)], {0: 1 << 40}))
    refused(cluster.status)


def child(cluster: l0gc.Cluster, records: Any, arrow: Any, sender: Any) -> int:
    """Check that handles from before the fork are refused, and that a cluster opened here works; then exit."""
    calls: list[Callable[[], object]] = [cluster.status, lambda: next(records), arrow.read_all]
    calls.append(lambda: sender.send([Record(b"", partition=0)], {0: 1 << 40}))
    for call in calls:
        try:
            call()
        except l0gc.errors.UsageError as e:
            if "before this process was forked" not in str(e):
                raise
        except StopIteration:  # the iterator had fetched all its records before
            pass
    with l0gc.open(os.environ["L0GC_URL"]) as own:
        own.read_arrow("t").read_all()
        own.upload("t", [b"of a child"])
        own.compute_watermark()
        own.sweep()
    sys.exit(0)


def ended(process: int) -> None:
    _, status = os.waitpid(process, 0)
    if status:
        raise AssertionError(f"a child ended with {status}")


def main(first: int, count: int) -> None:
    for module in pkgutil.walk_packages(l0gc.__path__, "l0gc."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for seed in range(first, first + count):
        process = os.fork()
        if not process:
            signal.alarm(PATIENCE_S)
            program(seed)
            sys.exit(0)
        _, status = os.waitpid(process, 0)
        if status:
            sys.exit(f"the program of seed {seed} ended with {status}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
