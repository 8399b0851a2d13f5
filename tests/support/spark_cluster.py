"""A standalone Spark cluster on this machine, from the pip-installed pyspark: one master and workers, each a process.

Its processes run as on other machines: without credentials, profile or settings, in a Python that has the libraries but
not l0gc.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyspark

from tests.support.processes import parents

_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"
HIDDEN: Final = "HIDDEN_MODULES"
"""A variable of the executors' environment that lists the modules that their Python cannot import."""

_START_S: Final = 200.0


@dataclass
class SparkCluster:
    """A running cluster. `url` is the value of `--master`; logs and work files are in `folder`."""

    url: str
    conf: dict[str, str]
    folder: Path
    _pids: list[int] = field(default_factory=list)

    @property
    def options(self) -> list[str]:
        """Return the options that let a command run here."""
        return [
            "--engine",
            "spark",
            "--master",
            self.url,
            *(o for k, v in self.conf.items() for o in ("--conf", f"{k}={v}")),
        ]

    def executors(self) -> list[int]:
        """Return the process ids of the executors that are alive: children of the workers."""
        found = []
        for pid, parent in parents().items():
            with suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
                if parent in self._pids and b"CoarseGrainedExecutorBackend" in line:
                    found.append(pid)
        return sorted(found)


def _free_port() -> int:
    """Return an unused port below those that systems give to clients, so that no client takes it before Spark does."""
    while True:
        port = random.SystemRandom().randrange(15_000, 32_000)
        with socket.socket() as s, suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port


@contextmanager
def spark_cluster(
    folder: Path,
    workers: int = 2,
    memory_mb: int = 512,
    *,
    cores: int = 1,
    hosts: Sequence[str] = ("127.0.0.1",),
    shuffle_service: bool = False,
) -> Iterator[SparkCluster]:
    """Start a cluster with `workers` workers of `cores` cores each; at the end, stop every process by its id.

    Args:
        folder: the folder for logs and work files.
        hosts: the addresses of the workers, in turn; Spark regards each as a machine.
        shuffle_service: let the first worker serve what executors have written for each other, also after their death.
    """
    home = Path(pyspark.__file__).parent
    port = _free_port()
    url = f"spark://127.0.0.1:{port}"
    bare = folder / "home"
    bare.mkdir()
    environment = {
        "PATH": os.environ["PATH"],
        **{name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ},
        "HOME": str(bare),
        "AWS_EC2_METADATA_DISABLED": "true",
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    service = {"spark.shuffle.service.enabled": "true", "spark.shuffle.service.port": str(_free_port())}
    serving = {"SPARK_WORKER_OPTS": " ".join(f"-D{k}={v}" for k, v in service.items())}
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *args: str, more: Mapping[str, str] | None = None) -> None:
        log = (folder / f"{name}.log").open("wb")
        command = [str(home / "bin" / "spark-class"), *args]
        # Each has its own session, so that its children can be stopped with it.
        started.append(
            subprocess.Popen(
                command, env={**environment, **(more or {})}, stdout=log, stderr=log, start_new_session=True
            )
        )
        log.close()

    try:
        start("master", _MASTER, "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(_free_port()))
        _until(lambda: _listens(port))
        for n in range(workers):
            start(
                f"worker{n}", _WORKER, "--host", hosts[n % len(hosts)], "--cores", str(cores),
                "--memory", f"{memory_mb + 128}m", "--webui-port", str(_free_port()), url,
                more=serving if shuffle_service and n == 0 else None,
            )  # fmt: skip
        for n in range(workers):
            _until(lambda n=n: b"Successfully registered" in (folder / f"worker{n}.log").read_bytes())
        conf = {
            "spark.pyspark.python": str(_python_without_l0gc(folder)),
            "spark.executor.memory": f"{memory_mb}m",
            "spark.executor.cores": str(cores),
            **(service if shuffle_service else {}),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        yield SparkCluster(url, conf, folder, [p.pid for p in started])
    except Exception as e:
        e.add_note(_logs(folder))
        raise
    finally:
        for process in reversed(started):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _python_without_l0gc(folder: Path) -> Path:
    """Return this interpreter without the folders from which l0gc could be imported.

    Its pyspark is the installed one and not the zip that Spark brings, which every process would compile anew.
    """
    site = folder / "site"
    site.mkdir()
    zips = str(Path(pyspark.__file__).parent)
    (site / "sitecustomize.py").write_text(
        "import os, sys\n"
        f"kept = [p for p in sys.path if not p.startswith({zips!r})]\n"
        "sys.path[:] = [p for p in kept if not os.path.isdir(os.path.join(p, 'l0gc'))]\n"
        f"sys.modules.update(dict.fromkeys(os.environ.get({HIDDEN!r}, '').split()))\n"
    )
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site}:$PYTHONPATH exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def _listens(port: int) -> bool:
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


def _until(ready: object) -> None:
    assert callable(ready)
    deadline = time.monotonic() + _START_S
    while not ready():
        if time.monotonic() > deadline:
            raise AssertionError("the Spark cluster did not start")
        time.sleep(0.1)


def _logs(folder: Path) -> str:
    """Return the last lines of the master, the workers and the executors."""
    logs = [*sorted(folder.glob("*.log")), *sorted((folder / "work").rglob("stderr"))]
    return "\n".join(f"-- {p.relative_to(folder)}\n{p.read_text(errors='replace')[-3000:]}" for p in logs)
