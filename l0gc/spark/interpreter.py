"""What Spark's JVM starts as Python here: this interpreter, with pyspark imported from where it is installed.

Spark puts a zip of pyspark first on the path of every Python that it starts: three to look up, make and plan data sources,
and one for the work. A zip keeps no compiled code, so each of them would compile pyspark anew, half a second of CPU each.
Only the zips inside the installed pyspark are left out, so the code is the same.
"""

from __future__ import annotations

import atexit
import functools
import shlex
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import pyspark

_TRIES, _AGAIN_S = 40, 0.05
_SCRIPT: Final = """\
#!/bin/sh
rest=
IFS=:
set -f
for entry in $PYTHONPATH; do
  case $entry in
    {home}/*.zip) ;;
    *) rest=${{rest:+$rest:}}$entry ;;
  esac
done
PYTHONPATH=$rest exec {python} "$@"
"""


def own_folder(purpose: str) -> Path:
    """A new folder that only this user can write to, gone at this process's end: nobody else may say what Spark runs."""
    folder = Path(tempfile.mkdtemp(prefix=f"l0gc-{purpose}-"))
    atexit.register(_remove, folder)
    return folder


def _remove(folder: Path) -> None:
    """Remove a folder, also while a worker that is about to end still writes to it."""
    for _ in range(_TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(_AGAIN_S)


@functools.cache
def without_zips() -> str:
    """A program to start instead of this interpreter, gone at this process's end; this one if pyspark is in a zip."""
    home = Path(pyspark.__file__).parent
    if not home.is_dir():
        return sys.executable
    script = own_folder("python") / "python"
    script.write_text(_SCRIPT.format(home=shlex.quote(str(home)), python=shlex.quote(sys.executable)))
    script.chmod(0o700)
    return str(script)
