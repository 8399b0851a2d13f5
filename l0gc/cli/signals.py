"""Handle SIGINT, SIGTERM and SIGHUP: the first signal ends a command in an orderly way, the second at once. Set exit
codes.

A signal is raised as `SignalInterrupt` in the main thread, so everything is closed on the way out: temporary folders
are removed, Java ends, and one line reports the work that was done. Work that can end between two of its steps uses
`stopping` instead. A signal that was ignored when the command was started, as under `nohup`, stays ignored.

A request that hangs does not delay the end. The main thread may wait in another library, where signals do not reach it.
Therefore Python also writes each signal to a pipe, which a thread reads. That thread reports that the run is stopping,
and ends the process and its Java after a grace period, or at once at the second signal. It is always safe to run the
command again: the next append reads an unfinished one back, and an object that no journal names is garbage.

Nothing is raised while a lock of `threading` is acquired or released. These methods are written in Python, so the lock
would stay locked and the process would never end. The signal is sent again a moment later.
"""

from __future__ import annotations

import _thread
import atexit
import fcntl
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from l0gc.errors import L0gcError, StoppedError

SIGNALS: Final = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
INTERRUPTED: Final = 128 + signal.SIGINT
_AGAIN_S: Final = 0.02
STOPPING: Final = "stopping (a second signal ends it at once)"
_SAID_AFTER_S: Final = 0.3
"""How long to wait before the report that the run is stopping. Most runs have ended by then, with their own report."""
GRACE_S: Final = 8.0
"""How long a run may take to stop in an orderly way; systemd and Kubernetes wait longer."""
_LAST_WORD_S: Final = 0.2
_watch: Final = list[int]()
"""The end of the pipe to which Python writes signals, once this module listens to them."""
_sent_again: Final = list[int]()
"""The signals that this process sent to itself again."""
_WAITING: Final = ("join", "_wait_for_tstate_lock", "_shutdown")
"""The functions of `threading` that wait without holding a lock."""
_dropped: Final = set[int]()
"""The signals whose exception was lost and that are sent again; they do not count as second signals."""


class SignalInterrupt(KeyboardInterrupt):
    """A signal that asks the command to end. It is not an `Exception`, so that handlers of errors do not catch it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


class OutputClosedError(Exception):
    """The reader of stdout has closed it, as `head` does."""

    exit_code: Final = 141


def exit_code_of(e: BaseException | None) -> int:
    """Return the exit code of a command that raised `e`; 0 for None."""
    match e:
        case None:
            return 0
        case KeyboardInterrupt():
            return e.exit_code if isinstance(e, SignalInterrupt) else INTERRUPTED
    from click.exceptions import Abort, ClickException, Exit

    match e:
        case L0gcError() | OutputClosedError() | ClickException() | Exit():
            return e.exit_code
        case Abort():  # click raises this on Ctrl-C, and if a question gets no answer
            return exit_code_of(e.__cause__) if isinstance(e.__cause__, KeyboardInterrupt) else INTERRUPTED
    return 1


def listen() -> None:
    """Make the first signal from now on raise `SignalInterrupt` in the main thread, and the second kill the process."""
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _heard)
    sys.unraisablehook = _unraisable
    if not _watch:
        pipe = os.pipe()
        # The numbers are above the standard ones: if stdin is closed, a command that reads it would read the pipe.
        out, into = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3) for end in pipe]
        for end in pipe:
            os.close(end)
        os.set_blocking(into, False)
        _watch.append(into)
        _thread.start_new_thread(_keep_to_the_grace, (out,))
    signal.set_wakeup_fd(_watch[0], warn_on_full_buffer=False)


def _keep_to_the_grace(out: int) -> None:
    """Report that the run is stopping if that takes a moment. End the process after the grace, or at the second signal."""
    due, number, said = float("inf"), 0, True
    while True:
        left = max(0.0, due - time.monotonic()) if number else None
        ready = select.select([out], [], [], left if said else _SAID_AFTER_S)[0]
        heard = os.read(out, 1)[0] if ready else 0
        if heard in _sent_again:
            _sent_again.remove(heard)
        elif heard in SIGNALS and not number:
            due, number, said = time.monotonic() + GRACE_S, heard, False
        elif heard in SIGNALS:
            _end_now(heard, "")
        elif time.monotonic() >= due:
            _end_now(
                number,
                f"stopped, but some work did not end within {GRACE_S:.0f} s: running the command again is safe, and l0gc gc "
                "deletes what no journal names",
            )
        elif not said:
            said = True
            _thread.start_new_thread(_say, (STOPPING,))


def _end_now(number: int, why: str) -> None:
    """End the process after a moment in which a last message can be printed, or in which the signal can end the
    process.
    """
    if why:
        _thread.start_new_thread(_say, (why,))  # in a thread, since the reader of stderr may block
    if (gateway := sys.modules.get("l0gc.spark.gateway")) is not None:
        gateway.end_java_at_once()
    time.sleep(_LAST_WORD_S)
    if sys.stderr is not None and sys.stderr.isatty():
        os.write(2, b"\x1b[?25h")  # shows the cursor, which the progress display hides
    os._exit(128 + number)


def _say(text: str) -> None:
    import logging

    logging.getLogger(__name__).error("%s", text)


def _heard(number: int, frame: FrameType | None) -> None:
    if _put_off(number, frame):
        return
    _dropped.discard(number)
    for each in SIGNALS:
        if signal.getsignal(each) is _heard:
            signal.signal(each, signal.SIG_DFL)
    raise SignalInterrupt(number)


def _put_off(number: int, frame: FrameType | None) -> bool:
    """Return whether the signal interrupted a lock. If so, it is sent again."""
    if _in_a_lock(frame):
        _send_again(number)
        return True
    return False


def _in_a_lock(frame: FrameType | None) -> bool:
    """Return whether the main thread is in a function of `threading` that may hold a lock."""
    while frame is not None and frame.f_code.co_filename != threading.__file__:
        frame = frame.f_back
    if frame is None or frame.f_code.co_name in _WAITING:
        return False
    if frame.f_code is threading.Condition.wait.__code__:
        return bool(frame.f_locals["self"]._is_owned())  # while it waits, it has released its lock
    return True


def _send_again(number: int) -> None:
    """Send a signal to this process a moment later, without `threading`, which the signal may have interrupted."""

    def send() -> None:
        time.sleep(_AGAIN_S)
        _sent_again.append(number)
        os.kill(os.getpid(), number)

    _thread.start_new_thread(send, ())


def ended(code: int) -> None:
    """Mark the command as ended: from now on, a signal only makes Python end sooner, with the same code.

    Python removes its handlers when it exits. Without this function, a signal at that time would kill the process, and
    a finished command would look as if it was stopped without a report.
    """

    def heard(number: int, frame: Any) -> None:
        os._exit(code)

    signal.set_wakeup_fd(-1)
    for number in SIGNALS:
        if signal.getsignal(number) in (_heard, signal.SIG_DFL):
            signal.signal(number, heard)
    atexit.unregister(_ignore)
    atexit.register(_ignore)


def _ignore() -> None:
    """Ignore the signals, since the rest of Python's exit is short. Python keeps ignored signals ignored."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _unraisable(what: sys.UnraisableHookArgs) -> None:
    """Send a signal again if Python dropped its exception, which it does in a finalizer.

    Other failures of finalizers are not shown, since they are consequences of the end of Java.
    """
    if isinstance(what.exc_value, SignalInterrupt):
        number = what.exc_value.exit_code - 128
        _dropped.add(number)
        for each in SIGNALS:
            if signal.getsignal(each) == signal.SIG_DFL:
                signal.signal(each, _heard)
        _send_again(number)


@contextmanager
def stop_on_interrupt(done: Callable[[], str]) -> Iterator[None]:
    """Turn a signal in the block into a `StoppedError`; `done` returns a sentence about the remaining state and the
    command that continues.

    Raises:
        StoppedError: a signal ended the block.
    """
    try:
        yield
    except KeyboardInterrupt as e:
        raise StoppedError(f"stopped: {done()}", exit_code_of(e)) from e


@contextmanager
def heeding(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Pass the signals in the block to the handler, except those that are ignored, for example by nohup."""
    heeded = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heeded}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def stopping(stop: Callable[[], None], signals: list[int]) -> Iterator[None]:
    """Let a signal end the run in good order. A second one kills it, which is safe because of its record."""

    def heard(number: int, frame: FrameType | None) -> None:
        if _put_off(number, frame):  # this may be the very lock that `stop` needs
            return
        if number in _dropped:
            _dropped.discard(number)
        elif signals:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        if not signals:
            signals.append(number)
        try:
            stop()
        except KeyboardInterrupt:
            raise SignalInterrupt(number) from None

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with heeding(heard):
        yield


@contextmanager
def holding() -> Iterator[threading.Event]:
    """Yield an event that the first signal sets. The signal is raised after the block instead of in it."""
    stop, signals = threading.Event(), list[int]()
    with stopping(stop.set, signals):
        yield stop
    if signals:
        raise SignalInterrupt(signals[0])


@contextmanager
def stop_event() -> Iterator[threading.Event]:
    """Yield an event that the first signal sets, and that ends a run in good order; see `stopping`.

    Raises:
        StoppedError: the run stopped. The error has the signal's exit code.
    """
    stop, signals = threading.Event(), list[int]()
    with stopping(stop.set, signals):
        try:
            yield stop
        except StoppedError as e:
            raise StoppedError(str(e), 128 + signals[0] if signals else e.exit_code) from e
