"""The client accepts `docker-compose.yml`, and everything in it listens on loopback alone."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def _client() -> list[str] | None:
    if shutil.which("docker") is None:
        return None
    command = ["docker", "compose"]
    return command if subprocess.run([*command, "version"], capture_output=True, check=False).returncode == 0 else None


def test_the_client_accepts_it_and_ports_are_published_on_loopback_alone() -> None:
    client = _client()
    if client is None:
        pytest.skip("there is no docker compose client here")
    shown = subprocess.run(
        [*client, "-f", str(ROOT / "docker-compose.yml"), "config", "--format", "json"], capture_output=True, check=True
    )
    services = json.loads(shown.stdout)["services"]
    assert set(services) == {"minio", "l0gc"}
    assert all(port["host_ip"] == "127.0.0.1" for port in services["minio"]["ports"])
