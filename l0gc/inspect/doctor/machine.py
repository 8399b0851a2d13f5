"""Checks of this machine: Java, Spark and the libraries, without starting any of them but `java -version`."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from l0gc import __version__
from l0gc.inspect.doctor.checkup import Check, failure, ok, warning

JAVA: Final = 17
_LIBRARIES: Final = ("boto3", "obstore", "pyarrow", "msgspec")


def java_version(text: str) -> int | None:
    """The major version in what `java -version` prints."""
    m = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if m is None:
        return None
    return int(m[2]) if m[1] == "1" and m[2] else int(m[1])


def java() -> Iterator[Check]:
    """Java 17 or newer, for work on Spark."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    remedy = "install one (apt-get install openjdk-17-jre-headless), or set JAVA_HOME"
    needs = (
        "without it, reconcile, merge, compute-watermark, verify and gc run in this process, which suits small buckets"
    )
    if found is None or not Path(found).exists():
        yield warning("java", f"not found; {needs}", remedy)
        return
    try:
        answer = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as e:
        yield warning("java", f"{found} does not start ({e}); {needs}", remedy)
        return
    version = java_version(answer.stderr + answer.stdout)
    if version is None or version < JAVA:
        yield warning("java", f"{found} is version {version or 'unknown'}, below {JAVA}; {needs}", remedy)
    else:
        yield ok("java", f"{version} ({found})")


def spark() -> Iterator[Check]:
    """pyspark 4, as installed."""
    try:
        version = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        yield failure("spark", "pyspark is not installed", "pip install 'pyspark>=4'")
        return
    if int(version.split(".")[0]) < 4:
        yield failure("spark", f"pyspark {version} has no Python data sources", "pip install 'pyspark>=4'")
    else:
        yield ok("spark", f"pyspark {version}")


def versions() -> Iterator[Check]:
    """What to put into a bug report."""
    libraries = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in _LIBRARIES)
    yield ok("versions", f"l0gc {__version__}, Python {platform.python_version()}, {libraries}")
