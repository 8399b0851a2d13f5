"""Decide whether Spark can start with this machine's variables and folders, before its Java starts.

If one of them is wrong, Java and pyspark end without naming the cause. Sessions and doctor use the same check.
"""

from __future__ import annotations

import os
import subprocess
from importlib.metadata import version
from pathlib import Path

from l0gc.errors import UsageError


def check_surroundings() -> None:
    """Raise `UsageError` if a variable or a folder of this machine would prevent the start of Spark."""
    try:
        os.getcwd()  # noqa: PTH109 - only whether it exists
    except FileNotFoundError as e:
        raise UsageError("the working folder was deleted, and Spark starts in it: change to another folder") from e
    java = os.environ.get("JAVA_HOME")
    if java and not (Path(java) / "bin" / "java").exists():
        raise UsageError(f"JAVA_HOME is {java}, which has no bin/java: correct it, or unset it to use the java on PATH")
    if "SPARK_HOME" in os.environ and "PYSPARK_GATEWAY_PORT" not in os.environ:
        _check_spark_home(os.environ["SPARK_HOME"])
    for folder in filter(None, os.environ.get("SPARK_LOCAL_DIRS", "").split(",")):
        parent = next(p for p in (Path(folder).absolute(), *Path(folder).absolute().parents) if p.exists())
        if not (parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)):
            raise UsageError(
                f"SPARK_LOCAL_DIRS names {folder}, where Spark cannot write: name another folder, or unset it"
            )


def _check_spark_home(home: str) -> None:
    remedy = "unset SPARK_HOME to use the Spark of the pyspark package"
    if not (Path(home) / "bin" / "spark-submit").exists():
        raise UsageError(f"SPARK_HOME is {home!r}, which has no bin/spark-submit: {remedy}")
    package_version = version("pyspark")
    jars = [jar.stem.rpartition("-")[2] for jar in (Path(home) / "jars").glob("spark-core_*.jar")]
    if any(jar.split(".")[:2] != package_version.split(".")[:2] for jar in jars):
        raise UsageError(
            f"SPARK_HOME is {home}, of Spark {jars[0]}, and the pyspark package is {package_version}: {remedy}"
        )


def check_python(python: str) -> None:
    """Raise `UsageError` if the interpreter chosen for the workers on this machine cannot import l0gc."""
    run = subprocess.run([python, "-c", "import l0gc, pyspark"], capture_output=True, text=True, check=False)
    if run.returncode != 0:
        last = (run.stderr.strip().splitlines() or ["it ended at once"])[-1]
        raise UsageError(
            f"Spark's workers would run {python} (PYSPARK_PYTHON or spark.pyspark.python), which cannot import l0gc "
            f"({last}): unset it to use this interpreter, or install l0gc there"
        )
