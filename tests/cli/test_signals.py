"""Signals to a run: the first one requests its end, the second one ends it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from l0gc.cli.signals import exit_code_of, stop_event, stopping
from l0gc.errors import StoppedError

TWICE = """
import signal
from l0gc.cli.signals import exit_code_of, stopping
heard = []
with stopping(lambda: print("stop", flush=True), heard):
    signal.raise_signal({number})
    print(heard, flush=True)
    signal.raise_signal({number})
    print("still here", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_kills_the_process(number: signal.Signals) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", TWICE.format(number=int(number))], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (-number, f"stop\n[{int(number)}]\n")


def test_signals_mean_afterwards_what_they_meant_before() -> None:
    before = signal.getsignal(signal.SIGTERM)
    heard: list[int] = []
    with stopping(lambda: None, heard):
        assert signal.getsignal(signal.SIGTERM) != before
        signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_run_that_a_signal_stopped_ends_with_its_code() -> None:
    def run() -> None:
        with stop_event() as stop:
            signal.raise_signal(signal.SIGTERM)
            assert stop.is_set()
            raise StoppedError("the rest is left", 3)

    with pytest.raises(StoppedError, match="the rest is left") as ended:
        run()
    assert ended.value.exit_code == 128 + signal.SIGTERM


ENTRY = """
import builtins, os, signal
from l0gc.cli.entry import main
imported = builtins.__import__
def interrupted(name, *args, **more):
    if name == "l0gc.cli.main":
        os.kill(os.getpid(), {number})
    return imported(name, *args, **more)
builtins.__import__ = interrupted
main()
"""
WORKING = """
import os, signal, sys
from l0gc.cli import signals
from l0gc.cli.main import cli, main
import click
@click.command("work")
def work():
    {work}
cli.add_command(work)
cli.resolve_command = lambda ctx, args: ("work", work, [])
sys.argv = ["l0gc", "work"]
main()
"""
RAISE = "os.kill(os.getpid(), {number}); print('went on')"
FINALIZER = """
    class Dropped:
        def __del__(self): os.kill(os.getpid(), {number}); sum(range(1000))
    Dropped()
    import time
    time.sleep(60)
"""
RUN = """
    class Dropped:
        def __del__(self): os.kill(os.getpid(), {number}); sum(range(1000))
    def interrupt(): raise KeyboardInterrupt
    import time
    heard = []
    with signals.stop_on_interrupt(lambda: f"heard {{len(heard)}}"):
        with signals.stopping(interrupt, heard):
            Dropped()
            time.sleep(60)
"""
IN_A_LOCK = """
    import threading, time
    def interrupt(frame, event, arg):
        if event == "return" and frame.f_code is threading.Condition.__enter__.__code__:
            sys.settrace(None)
            os.kill(os.getpid(), {number}); sum(range(1000))
        return interrupt
"""
LOCKED = (
    IN_A_LOCK
    + """    lock = threading.Condition(threading.Lock())
    sys.settrace(interrupt)
    with signals.stop_on_interrupt(lambda: f"left locked: {not lock.acquire(blocking=False)}"):
        with lock:
            pass
        time.sleep(60)
"""
)
STOPPING_LOCKED = (
    IN_A_LOCK
    + """    stop, heard = threading.Event(), []
    with signals.stopping(stop.set, heard):
        sys.settrace(interrupt)
        stop.wait(60)
    raise signals.SignalInterrupt(heard[0])
"""
)
WAITING = """
    import threading
    for wait in (threading.Event().wait, threading.Semaphore(0).acquire):
        signals.listen()
        threading.Timer(0.1, os.kill, (os.getpid(), {number})).start()
        try:
            wait(timeout=60)
        except KeyboardInterrupt as e:
            last = e
    raise last
"""
REPORTED = """
    with signals.stop_on_interrupt(lambda: "two of three are done; l0gc work continues from there"):
        os.kill(os.getpid(), {number})
"""
AGAIN = "stopped: running the command again is safe"


def ended(code: str, *before: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*before, sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_one_line_and_its_exit_code(number: signal.Signals) -> None:
    done = ended(WORKING.format(work=RAISE.format(number=int(number))))
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", f"l0gc: {AGAIN}\n")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (ENTRY, "stopped: nothing was done"),
        (WORKING.replace("{work}", FINALIZER), AGAIN),
        (WORKING.replace("{work}", RUN.replace("{{", "{").replace("}}", "}")), "stopped: heard 1"),
        (WORKING.replace("{work}", LOCKED), "stopped: left locked: False"),
        (WORKING.replace("{work}", STOPPING_LOCKED), AGAIN),
        (WORKING.replace("{work}", WAITING), AGAIN),
        (WORKING.replace("{work}", REPORTED), "stopped: two of three are done; l0gc work continues from there"),
    ],
    ids=[
        "while importing",
        "in a finalizer, where Python drops it",
        "there, in a run of steps",
        "in a lock, which would stay locked",
        "in the lock that the command's end needs",
        "while waiting for a lock",
        "reported by the command",
    ],
)
def test_wherever_it_comes(code: str, said: str) -> None:
    done = ended(code.replace("{number}", "15"))
    assert (done.returncode, done.stdout, done.stderr) == (143, "", f"l0gc: {said}\n")


LAST = """
    import atexit, signal
    def late(): os.kill(os.getpid(), {number}); sum(range(1000))
    if "{when}" == "atexit":
        atexit.register(late)
    else:
        class Late:
            def __del__(self): late()
        sys.modules["late"] = Late()
    print("done")
"""


@pytest.mark.parametrize("when", ["atexit", "finalizing"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_after_the_end_changes_nothing(number: signal.Signals, when: str) -> None:
    done = ended(WORKING.format(work=LAST.format(number=int(number), when=when)))
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_a_signal_that_was_ignored_stays_ignored() -> None:
    done = ended(WORKING.format(work=RAISE.format(number=int(signal.SIGHUP))), "nohup")
    assert (done.returncode, done.stdout, done.stderr.removeprefix("nohup: ignoring input\n")) == (0, "went on\n", "")


def test_a_run_that_is_stopped_by_the_command_has_the_signals_code() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    heard: list[int] = []
    with pytest.raises(KeyboardInterrupt) as e, stopping(interrupt, heard):
        signal.raise_signal(signal.SIGTERM)
    assert (exit_code_of(e.value), heard) == (143, [signal.SIGTERM])
    assert exit_code_of(KeyboardInterrupt()) == 130
