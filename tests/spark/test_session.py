"""What Spark's Java is started with."""

from __future__ import annotations

import stat
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from l0gc.spark.session import _log4j


@pytest.mark.parametrize(("verbose", "level"), [(False, "off"), (True, "warn")])
def test_javas_logging_is_settled_where_nobody_else_can_write(verbose: bool, level: str) -> None:
    path = Path(urlsplit(_log4j(verbose)).path)
    assert f"rootLogger.level = {level}\n" in path.read_text()
    assert stat.S_IMODE(path.parent.stat().st_mode) == stat.S_IRWXU
    assert _log4j(verbose) == path.as_uri()
