"""The session of a local job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.thorough, pytest.mark.usefixtures("no_spark")]

OF_A_CLUSTER: Final = """
spark.eventLog.enabled true
spark.eventLog.dir {none}
spark.serializer org.apache.spark.serializer.KryoSerializer
spark.kryo.registrationRequired true
spark.task.cpus 2
"""
JOB: Final = """
from l0gc.spark.session import get_session
spark = get_session("test", master="local[1]", conf={"spark.log.level": "OFF"})
print(spark.createDataFrame([(1,), (1,)], ["a"]).groupBy("a").count().collect()[0][1])
"""


def test_a_clusters_defaults_do_not_stop_a_local_job(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(OF_A_CLUSTER.format(none=tmp_path / "none"))
    environment = {**os.environ, "SPARK_CONF_DIR": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", JOB], env=environment, check=False, capture_output=True, text=True, timeout=300
    )
    assert (ended.returncode, ended.stdout) == (0, "2\n"), ended.stderr[-2000:]
