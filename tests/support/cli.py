"""Running l0gc's commands: in this process, where one Java serves many of them, or in one of their own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from l0gc.cli.main import cli
from l0gc.cli.output import taking_results

BIN = [sys.executable, "-c", "from l0gc.cli.main import main; main()"]


def l0gc(*args: str) -> dict[str, Any]:
    """Run a command here, and return what it prints with `--json`. Raises what the command raises."""
    with taking_results() as results:
        cli.main(list(args), prog_name="l0gc", standalone_mode=False)
    return results[-1].data


def printed(*args: str) -> bytes:
    """Run a command here, and return what it prints. Raises what the command raises."""
    body = io.BytesIO()
    with io.TextIOWrapper(body) as out, contextlib.redirect_stdout(out):
        cli.main(list(args), prog_name="l0gc", standalone_mode=False)
        out.flush()
        return body.getvalue()


@dataclass(frozen=True)
class Ended:
    """How a command of its own process ended."""

    code: int
    stdout: bytes
    stderr: str

    @property
    def data(self) -> dict[str, Any]:
        result = json.loads(self.stdout)
        assert isinstance(result, dict)
        return result


def start(args: Sequence[str], environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a command in its own process."""
    return subprocess.Popen(
        [*BIN, *args],
        env={**os.environ, **(environment or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def l0gc_process(
    *args: str, environment: Mapping[str, str] | None = None, stdin: bytes = b"", timeout: float = 120
) -> Ended:
    """Run a command in its own process, to its end."""
    process = start(args, environment)
    try:
        out, err = process.communicate(stdin, timeout=timeout)
    finally:
        process.kill()
        process.wait()
    return Ended(process.returncode, out, err.decode())
