"""Start the process before click is imported. Until the signal handler is set, Ctrl-C ends it silently."""

import gc
import signal
import sys

_AT_START = 200_000


def main() -> None:
    """Run a command and exit with its code; see `l0gc.cli.main`."""
    # Imports create 130,000 objects and no garbage cycles. Searching them took a tenth of a short command's CPU time.
    gc.set_threshold(_AT_START)
    gc.callbacks.append(_look_more_often)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # otherwise Python prints a traceback
    from l0gc.cli import signals

    try:
        signals.listen()
        from l0gc.cli.main import main as run
    except KeyboardInterrupt as e:
        sys.stderr.write("l0gc: stopped: nothing was done\n")
        sys.exit(signals.exit_code_of(e))
    try:
        run()
    finally:
        gc.freeze()  # otherwise Python searches everything for cycles again before it exits


def _look_more_often(phase: str, _: dict[str, int]) -> None:
    """Lower the threshold of collections, since the replies of a long command leave cycles."""
    if phase == "stop":
        gc.callbacks.remove(_look_more_often)
        if gc.get_threshold()[0] == _AT_START:  # otherwise the command has set its own threshold
            gc.set_threshold(10_000, 30)
