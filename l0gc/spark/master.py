"""Find out, without pyspark, which master a session uses, whether it answers, and whether Spark could start here.

Spark tries to reach a standalone master for a minute before it gives up; a single connection shows the same at once.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from l0gc.errors import L0gcError, UsageError

_LOCAL: Final = re.compile(r"local(\[.*\])?")
STANDALONE: Final = "spark://"
"""The prefix of the URL of a standalone master."""
_CONNECT: Final = "sc://"
CONNECT_CANNOT: Final = "a Spark Connect server cannot run l0gc's jobs"
_CONNECT_SECONDS: Final = 5.0


def is_connect(session: object) -> bool:
    """Return whether a session uses Spark Connect, whose driver is its server."""
    return type(session).__module__.startswith("pyspark.sql.connect.")


def has_java() -> bool:
    """Return whether this machine has a Java that Spark would use."""
    home = os.environ.get("JAVA_HOME")
    return bool(home and (Path(home) / "bin" / "java").exists()) or shutil.which("java") is not None


def has_user() -> bool:
    """Return whether this process's user has a name. Without a name, for example in OpenShift's containers, Java and
    Hadoop fail.
    """
    try:
        return bool(pwd.getpwuid(os.geteuid()).pw_name)
    except KeyError:
        return False


def is_local(master: str) -> bool:
    """Return whether tasks run in the driver's own process: `local`, `local[4]`, `local[*]`."""
    return _LOCAL.fullmatch(master) is not None


def cores_named(master: str, conf: Mapping[str, str], machine: int) -> int | None:
    """Return how many tasks Spark runs at once on a master, if the master's URL and the settings determine it.

    Args:
        machine: the number of cores of this machine.
    """
    if is_local(master):
        number = master.removeprefix("local").strip("[]").partition(",")[0]
        return machine if number == "*" else int(number or 1)

    def setting(name: str) -> int:
        value = conf.get(name, "")
        return int(value) if value.isdecimal() else 0

    executors = setting("spark.dynamicAllocation.maxExecutors") or setting("spark.executor.instances")
    return setting("spark.cores.max") or executors * (setting("spark.executor.cores") or 1) or None


def check_master(master: str) -> None:
    """Check that a standalone master accepts connections; one of several (`spark://a:7077,b:7077`) is enough. Other
    kinds of masters are not checked.

    Raises:
        UsageError: the URL of a standalone master lacks a host and a port, or the master is a server of Spark Connect.
        L0gcError: none of the masters accepts connections.
    """
    if master.startswith(_CONNECT):  # the URL may contain a token
        raise UsageError(f"{CONNECT_CANNOT} (--master {_CONNECT}…): name the cluster itself, or use --engine local")
    if not master.startswith(STANDALONE):
        return
    problem = ""
    for address in master.removeprefix(STANDALONE).split(","):
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise UsageError(f"--master {master!r} must look like spark://host:port")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
            return
        except OSError as e:
            problem = e.strerror or str(e)
    raise L0gcError(
        f"no Spark master takes connections at {master} ({problem}): check --master and whether the cluster runs"
    )
