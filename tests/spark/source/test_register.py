"""`import l0gc.spark` is cheap: a program that only registers the format should not wait for what it may not use."""

from __future__ import annotations

import subprocess
import sys

import l0gc.spark


def test_importing_l0gc_spark_imports_nothing_heavy() -> None:
    code = "import sys, l0gc.spark; print([m for m in ('pyspark', 'numpy', 'pyarrow', 'boto3') if m in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"
    assert l0gc.spark.__all__ == ["register"]
