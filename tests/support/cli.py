"""Runs l0gc's commands, either in this process, which is cheap and uses one Java for many, or each in its own process."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from l0gc.api import cluster as library
from l0gc.cli.main import cli, main
from l0gc.cli.output import taking_results
from l0gc.runtime import Runtime
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.probe import probe
from l0gc.streamlog import founding
from l0gc.streamlog.cluster import ClusterHandles
from tests.support.memory_store import FEW_JOURNALS

BIN = [sys.executable, "-c", "from l0gc.cli.main import main; main()"]


_PASSED: dict[str, list[str]] = {}
"""The checks that each server passed."""

JSON_PAGE = Path(__file__).parents[2] / "docs/reference/json.md"


def opens(found: ClusterHandles, monkeypatch: pytest.MonkeyPatch) -> ClusterHandles:
    """Let the library and the commands open this cluster, whatever URL they are given."""

    @contextlib.contextmanager
    def opened(config: object, **settings: object) -> Iterator[tuple[ClusterHandles, ObjectStore]]:
        yield found, found.store

    monkeypatch.setattr(library, "open_cluster", opened)
    monkeypatch.setenv("L0GC_URL", "s3://bucket")
    return found


def l0gc(*args: str) -> dict[str, Any]:
    """Run a command here, and return what it prints with `--json`. Raises what the command raises.

    Each run shows that docs/reference/json.md explains what the command prints.
    """
    with taking_results() as results:
        cli.main(list(args), prog_name="l0gc", standalone_mode=False)
    data = results[-1].data
    name = next((n for n in (" ".join(args[:2]), args[0]) if n in documented_fields()), "")
    assert set(data) <= documented_fields().get(name, set(data)), f"{JSON_PAGE} does not explain them: l0gc {name}"
    return data


def founded(partitions: int = 2, topic: str = "events", *, shards: int = 4) -> None:
    """Create a cluster with a topic in a new bucket, by the commands."""
    with mock.patch.object(founding, "probe", _probe_once):
        l0gc("init", "--create-bucket", "--shards", str(shards), "--journals", str(FEW_JOURNALS))
    l0gc("topic", "create", topic, "--partitions", str(partitions))


def _probe_once(store: ObjectStore, runtime: Runtime) -> list[str]:
    """Probe a server with quoted ETags once in this process, since every test that founds a cluster would repeat the
    probe.
    """
    server = os.environ.get("AWS_ENDPOINT_URL_S3", "")
    if server not in _PASSED:
        passed = probe(store, runtime)
        if not server or not store.quotes_etags:
            return passed
        _PASSED[server] = passed
    return _PASSED[server]


def text_of(*args: str) -> list[str]:
    """Run a command here, and return the lines that it prints without `--json`."""
    with taking_results() as results:
        cli.main(list(args), prog_name="l0gc", standalone_mode=False)
    return results[-1].text


@functools.cache
def documented_fields() -> dict[str, set[str]]:
    """Return the fields of each command's JSON that its section in docs/reference/json.md explains."""
    sections = re.split(r"^#{2,3} l0gc (.+)$", JSON_PAGE.read_text(), flags=re.MULTILINE)[1:]
    fields = {
        name: set(re.findall(r"^\| `([a-z_0-9]+)` \|", text.partition("| field | meaning |")[2], re.MULTILINE))
        for name, text in zip(sections[::2], sections[1::2], strict=True)
    }
    return {name: found for name, found in fields.items() if found}


def printed(*args: str) -> bytes:
    """Run a command here, and return what it prints. Raises what the command raises."""
    body = io.BytesIO()
    with io.TextIOWrapper(body) as out, contextlib.redirect_stdout(out):
        cli.main(list(args), prog_name="l0gc", standalone_mode=False)
        out.flush()
        return body.getvalue()


@dataclass(frozen=True)
class Ended:
    """The end of a command in its own process."""

    code: int
    stdout: bytes
    stderr: str

    @property
    def data(self) -> dict[str, Any]:
        result = json.loads(self.stdout)
        assert isinstance(result, dict)
        return result


def ended_here(*args: str, environment: Mapping[str, str] | None = None, stdin: bytes = b"") -> Ended:
    """Run a command here to its end, and return what `l0gc_process` would: how it ended and what it printed."""
    out, err = (io.TextIOWrapper(io.BytesIO()) for _ in range(2))
    with (
        mock.patch.dict(os.environ, environment or {}),
        mock.patch.multiple(sys, argv=["l0gc", *args], stdin=io.TextIOWrapper(io.BytesIO(stdin))),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as e:
            code = e.code
        out.flush()
        err.flush()
    assert isinstance(code, int)
    return Ended(code, out.buffer.getvalue(), err.buffer.getvalue().decode())


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
    *args: str, environment: Mapping[str, str] | None = None, stdin: bytes = b"", timeout: float = 600
) -> Ended:
    """Run a command in its own process, to its end."""
    process = start(args, environment)
    try:
        out, err = process.communicate(stdin, timeout=timeout)
    finally:
        process.kill()
        process.wait()
    return Ended(process.returncode, out, err.decode())
