"""Run another program that is killed when the process that started it ends.

Run as a script: `python -I -S bound_exec.py PARENT_PID PROGRAM [ARGUMENT...]`.

On Linux, this process asks the kernel to send it SIGKILL when its parent ends, for whatever reason; the setting
survives `execv`. The parent may have ended before that, so its pid is compared afterwards. This runs after an ordinary
spawn, not in the forked child of a threaded Python (`preexec_fn`), which a lock that another thread held at the fork
can hang. On other systems, the program is simply started.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Bind this process to its parent, then replace it by the program. Return only if the parent has already ended."""
    parent, program, *arguments = sys.argv[1:]
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() == int(parent):
        os.execv(program, [program, *arguments])  # noqa: S606 - becoming that program is the whole point


if __name__ == "__main__":
    main()
