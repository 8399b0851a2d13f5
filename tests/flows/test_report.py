"""`l0gc report` on a real server: the page appears as a whole or not at all, with the facts, and nothing else changes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from l0gc.errors import UsageError
from l0gc.storage.s3 import S3Store
from tests.flows.test_sweep import a_bucket
from tests.support.cli import ended_here, l0gc

pytestmark = pytest.mark.weed


def test_a_report_describes_the_bucket_and_changes_nothing_in_it(store: S3Store, tmp_path: Path) -> None:
    a_bucket(store)
    l0gc("topic", "create", "events", "--partitions", "2")
    l0gc("sweep")
    l0gc("pause", "--why", "<b>audit</b>", "--by", "ann")
    before = {k: m for p in store.scan("") for k, m in zip(p.keys, p.modified_ms, strict=True)}
    findings = tmp_path / "findings.json"
    findings.write_text('{"findings":[],"total":0,"deep":false,"cluster_epoch":5,"watermark":3}')
    page = tmp_path / "report.html"
    page.write_text("what was there before")

    facts = l0gc("report", "-o", str(page), "--findings", str(findings), "--price-gb-month", "0.05")
    assert facts["output"] == str(page)
    assert facts["url"] == store.config.url
    overview = facts["overview"]
    assert (overview["watermark"], overview["cluster_epoch"], overview["partitions"]) == (2, 5, 2)
    assert (overview["paused"]["by"], facts["findings"]["total"], overview["price_gb_month"]) == ("ann", 0, 0.05)
    assert [(t["topic"], t["partitions"], t["gc_epoch"]) for t in facts["by_topic"]] == [("events", 2, 4)]
    assert [r["deleted"] for r in overview["runs"]] == [100]
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert text.endswith("</html>\n")
    assert "&lt;b&gt;audit&lt;/b&gt;" in text
    assert sorted(f.name for f in tmp_path.iterdir()) == ["findings.json", "report.html"]
    assert {k: m for p in store.scan("") for k, m in zip(p.keys, p.modified_ms, strict=True)} == before

    ended = ended_here("report", "-o", "-")
    assert (ended.code, ended.stderr) == (0, "")
    assert ended.stdout.startswith(b"<!doctype html>")
    named = ended_here("report", "-o", str(page), "--json")
    assert json.loads(named.stdout)["overview"]["watermark"] == 2


@pytest.mark.usefixtures("store")
def test_what_cannot_be_read_or_written_is_said_in_a_sentence(tmp_path: Path) -> None:
    l0gc("init", "--create-bucket")
    for args, words in (
        (("-o", "-", "--json"), "both print to stdout"),
        (("--findings", str(tmp_path / "none")), "cannot read the findings"),
        (("-o", str(tmp_path / "no folder" / "report.html")), "cannot write .*: No such file"),
        (("-o", str(tmp_path)), "cannot write .*directory"),
        (("-o", "."), "cannot write .*directory"),
    ):
        with pytest.raises(UsageError, match=words):
            l0gc("report", *args)
    assert list(tmp_path.iterdir()) == []
    device = tmp_path / "null"
    device.symlink_to(os.devnull)
    l0gc("report", "-o", str(device))
    assert device.is_char_device()  # it has not been replaced by a file
