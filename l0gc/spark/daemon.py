"""What Spark's JVM starts for Python workers here: pyspark's own daemon, with pyspark imported from where it is installed.

Spark puts a zip of pyspark first on the workers' path. A zip keeps no compiled code, so every daemon would compile pyspark
anew, 0.6 s of CPU each. The zip is left out only if it is the one inside the installed pyspark: the code is the same.
"""

from __future__ import annotations

import os
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path


def _without_zips(path: list[str]) -> list[str]:
    """`path` without pyspark's zips, or `path` if an installed pyspark does not stand in for them."""
    zips = [p for p in path if p.endswith(".zip") and Path(p).name.startswith(("pyspark", "py4j"))]
    rest = [p for p in path if p not in zips]
    kept, sys.path[:] = list(sys.path), rest
    try:
        found = find_spec("pyspark")
    finally:
        sys.path[:] = kept
    home = str(Path(found.origin).parent) if found is not None and found.origin else ""
    return rest if home and all(p.startswith(home) for p in zips) else path


def main() -> None:
    """Run `pyspark.daemon` in this process."""
    sys.path[:] = _without_zips(sys.path)
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(p for p in inherited if p in sys.path)
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
