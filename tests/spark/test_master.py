"""Masters: which of them are local, and whether a standalone one answers."""

from __future__ import annotations

import socket

import pytest

from l0gc.errors import L0gcError, UsageError
from l0gc.spark.master import check_master, is_local


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2]", "local[4,2]"])
def test_tasks_of_a_local_master_run_here(master: str) -> None:
    assert is_local(master)


@pytest.mark.parametrize(
    "master", ["spark://h:7077", "yarn", "k8s://https://h:6443", "local-cluster[2,1,1024]", "locals"]
)
def test_other_masters_have_executors_elsewhere(master: str) -> None:
    assert not is_local(master)


def test_one_of_several_masters_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_master(f"spark://127.0.0.1:1,127.0.0.1:{port}")
    with pytest.raises(L0gcError, match=f"spark://127.0.0.1:{port}"):
        check_master(f"spark://127.0.0.1:{port}")


@pytest.mark.parametrize(
    "master", ["spark://", "spark://h", "spark://h:", "spark://:7077", "spark://h:x", "spark://h:70777"]
)
def test_a_standalone_master_needs_host_and_port(master: str) -> None:
    with pytest.raises(UsageError, match="spark://host:port"):
        check_master(master)


@pytest.mark.parametrize("master", ["yarn", "local[*]", "k8s://https://127.0.0.1:1"])
def test_other_masters_are_left_to_spark(master: str) -> None:
    check_master(master)
