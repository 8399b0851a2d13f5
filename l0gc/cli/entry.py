"""Where the process begins, before click is imported: until a signal is listened to, Ctrl-C ends it without a word."""

import gc
import signal
import sys


def main() -> None:
    """Run a command and exit with its code; see `l0gc.cli.main`."""
    # Imports leave no cycles, and looking for them took a tenth of a short command's CPU: 40 ms alone for the eleventh time.
    gc.set_threshold(10_000, 30)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # else it is a traceback
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
        gc.freeze()  # else Python looks for cycles once more in all that it gives up anyway
