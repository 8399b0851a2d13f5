"""`l0gc pin`: what it prints and what it refuses; and the pins that other commands name."""

from __future__ import annotations

import re

import pytest

import l0gc as library
from l0gc.errors import NotFoundError, UsageError
from l0gc.storage.config import StoreConfig
from tests.support.cli import ended_here, founded, l0gc, printed, text_of

pytestmark = pytest.mark.weed


@pytest.fixture
def cluster(bucket: StoreConfig) -> StoreConfig:
    founded()
    return bucket


def test_a_pin_is_created_listed_and_deleted(cluster: StoreConfig) -> None:
    assert text_of("pin", "list") == ["no pins exist; create one with l0gc pin create NAME"]
    created = l0gc("pin", "create", "backup", "--ttl", "6h", "--why", "nightly")
    shown = {k: created[k] for k in ("name", "level_one", "in_effect", "why")}
    assert shown == {"name": "backup", "level_one": False, "in_effect": True, "why": "nightly"}
    assert created["expires_ms"] - created["created_ms"] == 6 * 3_600_000
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", created["expires"])
    assert created["watermark"] < created["epoch"]
    assert l0gc("pin", "list") == {"pins": [created]}
    (line,) = text_of("pin", "list")
    assert re.fullmatch(r"backup  epoch \d+, M stays at \d+ or below, ends at [-\d]+ [:\d]+Z, nightly", line)
    assert l0gc("pin", "delete", "backup") == created
    assert l0gc("pin", "list") == {"pins": []}
    assert "L1 alone" in text_of("pin", "create", "table", "--level-one")[0]


def test_what_cannot_be_meant_is_one_sentence(cluster: StoreConfig) -> None:
    l0gc("pin", "create", "there")
    for arguments, code, message in (
        ("create there", 2, "pin 'there' exists, and ends at .*; delete it with l0gc pin delete, or use another name"),
        (
            "create new --ttl 0s",
            2,
            "a pin lasts at most 366 d, not 0 s; use for example 1d",
        ),
        ("create new --ttl -1d", 2, "'-1d' is not a valid duration; use for example 30s, 15m, 2h or 7d"),
        ("create new --ttl 400d", 2, "a pin lasts at most 366 d, not 400 d"),
        ("create table-1-x", 2, "pin names that begin with 'table-' are reserved for tables; use another name"),
        ("create new --ttl", 2, "Option '--ttl' requires an argument"),
        ("delete ther", 5, "pin 'ther' does not exist, or has ended; did you mean 'there'"),
    ):
        ended = ended_here("pin", *arguments.split())
        assert ended.code == code
        assert re.search(message, ended.stderr), ended.stderr
    assert [p["name"] for p in l0gc("pin", "list")["pins"]] == ["there"]


@pytest.mark.thorough
def test_what_holds_m_is_named_with_its_age_and_bytes(
    cluster: StoreConfig, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("pin") / "records"
    file.write_bytes(b"".join(b'{"n":%d}\n' % n for n in range(100)))
    l0gc("compute-watermark", "--engine", "local")
    pin = l0gc("pin", "create", "backup", "--why", "nightly")
    for _ in range(2):
        l0gc("epoch", "advance")
        l0gc("upload", "events", str(file))
        l0gc("reconcile", "--engine", "local")
    l0gc("housekeep", "--barrier")
    computed = l0gc("compute-watermark", "--engine", "local")
    assert computed["watermark"] == pin["watermark"]
    assert [(h["kind"], h["gc_epoch"]) for h in computed["held_back_by"]] == [("pinned", pin["watermark"])]
    assert any(line.startswith("held back by a pin at ") for line in text_of("compute-watermark", "--engine", "local"))
    status = l0gc("status")
    (held,) = status["pins"]
    assert (held["name"], held["watermark"]) == ("backup", pin["watermark"])
    assert held["l0_bytes"] == computed["listing"]["bytes"] > 0
    assert [c["cause"] for c in status["causes"]] == ["pinned"]
    assert any(line.startswith("pins") and "backup (nightly)" in line for line in text_of("status"))
    l0gc("pin", "delete", "backup")
    assert l0gc("compute-watermark", "--engine", "local")["watermark"] > pin["watermark"]
    assert l0gc("status")["pins"] == []


def test_a_pin_is_a_with_block(cluster: StoreConfig) -> None:
    with library.open(cluster.url) as opened:
        with opened.pin("read", ttl_s=60) as pin:
            assert opened.pins.list() == [pin]
            with pytest.raises(UsageError, match="pin 'read' exists"), opened.pin("read"):
                pass
        assert opened.pins.list() == []
        with pytest.raises(ZeroDivisionError), opened.pin("read"):
            raise ZeroDivisionError
        assert opened.pins.list() == []
        with pytest.raises(NotFoundError), opened.pin("read"):
            opened.pins.delete("read")


def test_a_read_that_pins_keeps_what_it_reads_and_ends_its_pin(
    cluster: StoreConfig, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("pin") / "records"
    file.write_bytes(b"a\nb\nc\nd\n")
    l0gc("upload", "events", str(file))
    assert printed("read", "events", "--pin") == printed("read", "events")
    with library.open(cluster.url) as opened, library.open(cluster.url) as other:
        records = opened.read("events", pin=True)
        assert other.pins.list() == []
        first = next(records)
        (pin,) = other.pins.list()
        assert pin.name.startswith("read-")
        assert "reads topic events" in pin.why
        other.reconcile()
        other.topics.delete("events")
        for _ in range(3):
            other.advance_epoch()
        other.compute_watermark()
        other.sweep()
        other.vacuum(l1_grace_s=0, orphan_age_s=0)
        assert {r.value for r in (first, *records)} == {b"a", b"b", b"c", b"d"}
        assert other.pins.list() == []
