"""Where the process begins. Apart from `main`, which imports click: until a signal is listened to, Ctrl-C is a traceback."""

from __future__ import annotations

import sys

from l0gc.cli import signals


def main() -> None:
    """Run a command and exit with its code; see `l0gc.cli.main`."""
    signals.listen()
    try:
        from l0gc.cli.main import main as run
    except KeyboardInterrupt as e:
        sys.stderr.write("l0gc: stopped: nothing was done\n")
        sys.exit(signals.exit_code_of(e))
    run()
