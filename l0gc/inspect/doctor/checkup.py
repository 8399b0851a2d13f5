"""The result of a check, how an unexpected failure of one is reported, and the checks of this machine.

A check tries the thing itself, below a separate folder or with a request that cannot take effect, and leaves nothing
behind. If it cannot try something, it reports a warning, never ok. Of
Java, Spark and the libraries, none is started but `java -version`.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from l0gc import __version__
from l0gc.errors import EndedError, L0gcError, StoreUnreachableError, ThrottledError
from l0gc.formatting import Outcome

OK: Final = "ok"
WARNING: Final = "warning"
FAILURE: Final = "failure"
JAVA: Final = 17
_LIBRARIES: Final = ("boto3", "obstore", "pyarrow", "msgspec")


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor's: what was checked, how it is, and the remedy unless it is well.

    `exit_code` is what a failure ends the command with: 6 where the store lacks something, else the error's own.
    """

    name: str
    status: str
    text: str
    remedy: str = ""
    exit_code: int = 6


@dataclass(frozen=True)
class DoctorResult(Outcome):
    """All checks, in the order in which they were made."""

    checks: list[Check]

    @property
    def problem(self) -> EndedError | None:
        """The first failure, with its remedy, as the error that the command ends with."""
        failed = next((c for c in self.checks if c.status == FAILURE), None)
        return (
            None if failed is None else EndedError(f"{failed.name}: {failed.text}; {failed.remedy}", failed.exit_code)
        )

    def to_json(self) -> dict[str, Any]:
        """The checks, and how many of them are a failure or a warning."""
        found = [c.status for c in self.checks]
        return super().to_json() | {"failures": found.count(FAILURE), "warnings": found.count(WARNING)}


def ok(name: str, text: str) -> Check:
    return Check(name, OK, text)


def warning(name: str, text: str, remedy: str) -> Check:
    return Check(name, WARNING, text, remedy)


def failure(name: str, text: str, remedy: str, exit_code: int = 6) -> Check:
    return Check(name, FAILURE, text, remedy, exit_code)


def guarded(name: str, check: Callable[[], Iterable[Check]], remedy: str) -> list[Check]:
    """The check's lines, or what ended it as a failure with this remedy."""
    try:
        return list(check())
    except (StoreUnreachableError, ThrottledError) as e:  # which is nobody's policy or setting
        return [failure(name, str(e), "then run l0gc doctor again", e.exit_code)]
    except L0gcError as e:
        return [failure(name, str(e), remedy, e.exit_code)]


# -- this machine --------------------------------------------------------------------------------------------------------


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
