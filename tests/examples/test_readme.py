"""The README's Python runs unchanged, against a real server and another bucket."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import l0gc
from l0gc.storage.config import StoreConfig

README = Path(__file__).parents[2] / "README.md"
SNIPPET = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.weed
def test_the_python_in_the_readme_runs(
    bucket: StoreConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("day-1.ndjson").write_bytes(b'{"user":"ann"}\n{"user":"bob"}\n')
    with l0gc.open(bucket.url) as cluster:
        cluster.init(create_bucket=True, shards=4)
    (code,) = SNIPPET.findall(README.read_text())
    names: dict[str, Any] = {}
    exec(compile(code.replace("s3://my-bucket/my-cluster", bucket.url), "README.md", "exec"), names)
    assert {record.key for record in names["records"]} == {b"ann", b"bob"}
    assert capsys.readouterr().out == "0 objects would be deleted\n"
