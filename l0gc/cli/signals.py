"""What SIGINT, SIGTERM and SIGHUP do to a command: the first ends it in good order, the second at once; and exit codes.

Each is raised as `Interrupted` where the main thread is, so that whatever is open is closed on the way out: temporary
folders go, Java goes, and one line says what was done. Work that can end between two of its steps asks for `stopping`
instead. A signal that was ignored when the command was started, as under `nohup`, stays ignored.

A request that hangs holds nobody up. The main thread may be in another library's wait, where no signal reaches it, or wait
for threads that are. So Python also writes each signal into a pipe. A thread that reads it says that the run stops, ends the
process after a grace, with the Java that it started, and at once at the second signal. Wherever that is, running the command
again is safe: an append under way is read back by the next one, and an object that no journal names is garbage.

Nothing is raised in the middle of a lock of `threading`: its methods are written in Python, so the lock would stay locked,
and the threads that need it would keep the process for ever. Such a signal is sent once more, a moment later.
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
_SAID_AFTER_S: Final = 0.3
"""Most runs have ended by then, and have said what was done."""
GRACE_S: Final = 8.0
"""How long a run may take to stop in good order: systemd and Kubernetes wait longer."""
_LAST_WORD_S: Final = 0.2
_watch: Final = list[int]()
"""The end of the pipe that Python writes signals into, once they are listened to."""
_sent_again: Final = list[int]()
"""Signals that this process sent itself once more."""
_WAITING: Final = ("join", "_wait_for_tstate_lock", "_shutdown")
"""Functions of `threading` that wait, and hold no lock."""
_dropped: Final = set[int]()
"""Signals whose exception was lost, and that are sent once more: they do not count as second ones."""


class Interrupted(KeyboardInterrupt):
    """A signal asks the command to end; no `except Exception` takes it for an error."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


class OutputClosedError(Exception):
    """The reader of stdout has closed it, as `head` does."""

    exit_code: Final = 141


def exit_code_of(e: BaseException | None) -> int:
    """Return the exit code of a command that raised `e`; of one that raised nothing, 0."""
    match e:
        case None:
            return 0
        case KeyboardInterrupt():
            return e.exit_code if isinstance(e, Interrupted) else INTERRUPTED
    from click.exceptions import Abort, ClickException, Exit

    match e:
        case L0gcError() | OutputClosedError() | ClickException() | Exit():
            return e.exit_code
        case Abort():  # click's word for Ctrl-C, and for an answer that is not given
            return exit_code_of(e.__cause__) if isinstance(e.__cause__, KeyboardInterrupt) else INTERRUPTED
    return 1


def listen() -> None:
    """From now on the first signal raises `Interrupted` in the main thread, and the second one kills the process."""
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _heard)
    sys.unraisablehook = _unraisable
    if not _watch:
        pipe = os.pipe()
        # Above the standard ones: where stdin is closed, a command that reads it would read the pipe.
        out, into = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3) for end in pipe]
        for end in pipe:
            os.close(end)
        os.set_blocking(into, False)
        _watch.append(into)
        _thread.start_new_thread(_keep_to_the_grace, (out,))
    signal.set_wakeup_fd(_watch[0], warn_on_full_buffer=False)


def _keep_to_the_grace(out: int) -> None:
    """Say that the run stops, if it takes a moment; end the process after the grace, or at the second signal."""
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
                number, f"stopped, but some work did not end within {GRACE_S:.0f} s: running the command again is safe"
            )
        elif not said:
            said = True
            _thread.start_new_thread(_say, ("stopping (a second signal ends it at once)",))


def _end_now(number: int, why: str) -> None:
    """End the process, after a moment for a last word, or for the signal itself to end it."""
    if why:
        _thread.start_new_thread(_say, (why,))  # whoever has stderr may not take it
    if (gateway := sys.modules.get("l0gc.spark.gateway")) is not None:
        gateway.end_java_at_once()
    time.sleep(_LAST_WORD_S)
    if sys.stderr is not None and sys.stderr.isatty():
        os.write(2, b"\x1b[?25h")  # progress hides the cursor
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
    raise Interrupted(number)


def _put_off(number: int, frame: FrameType | None) -> bool:
    """Return whether the signal came in the middle of a lock; it is sent once more then."""
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
        return bool(frame.f_locals["self"]._is_owned())  # it has given its lock back while it waits
    return True


def _send_again(number: int) -> None:
    """Send a signal to this process a moment later; nothing of `threading` is used, in the middle of which it may be."""

    def send() -> None:
        time.sleep(_AGAIN_S)
        _sent_again.append(number)
        os.kill(os.getpid(), number)

    _thread.start_new_thread(send, ())


def ended(code: int) -> None:
    """The command has ended, and said what there was to say: a signal now only makes Python end sooner, with the same code.

    Without this, Python, which gives up its handlers as it exits, would be killed by it, and a command that is done would
    look like one that was stopped without a word.
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
    """What Python does after this is short, and it keeps what is ignored."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _unraisable(what: sys.UnraisableHookArgs) -> None:
    """Python drops what is raised in a finalizer, which is where the signal may have come: it is sent once more.

    Other failures of a finalizer mean nothing to a user, since Java has gone.
    """
    if isinstance(what.exc_value, Interrupted):
        number = what.exc_value.exit_code - 128
        _dropped.add(number)
        for each in SIGNALS:
            if signal.getsignal(each) == signal.SIG_DFL:
                signal.signal(each, _heard)
        _send_again(number)


@contextmanager
def stop_on_interrupt(done: Callable[[], str]) -> Iterator[None]:
    """If a signal ends what is inside, `done` says what stays, and which command goes on.

    Raises:
        StoppedError: a signal has.
    """
    try:
        yield
    except KeyboardInterrupt as e:
        raise StoppedError(f"stopped: {done()}", exit_code_of(e)) from e


@contextmanager
def heeding(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """The handler gets the signals inside, but for those that nohup has ignored."""
    heeded = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heeded}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def stopping(stop: Callable[[], None], signals: list[int]) -> Iterator[None]:
    """A signal ends the run in good order; the second one kills it, which the record is made for."""

    def heard(number: int, frame: FrameType | None) -> None:
        if _put_off(number, frame):  # it may be the very lock that `stop` needs
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
            raise Interrupted(number) from None

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with heeding(heard):
        yield


@contextmanager
def stop_event() -> Iterator[threading.Event]:
    """For a run that ends in good order once the event is set, as the first signal does; see `stopping`.

    Raises:
        StoppedError: as the run did, with the signal's exit code.
    """
    stop, signals = threading.Event(), list[int]()
    with stopping(stop.set, signals):
        try:
            yield stop
        except StoppedError as e:
            raise StoppedError(str(e), 128 + signals[0] if signals else e.exit_code) from e
