"""How findings are told."""

from __future__ import annotations

from l0gc.inspect.verify import findings as kinds
from l0gc.inspect.verify.findings import KINDS, finding_of, suspect
from l0gc.keys import PartitionId


def test_every_kind_has_a_severity_and_a_next_step() -> None:
    named = {v for k, v in vars(kinds).items() if k.isupper() and isinstance(v, str) and not k.startswith("_")}
    assert named == set(KINDS)
    assert {k.severity for k in KINDS.values()} == {"loss", "danger", "waste"}
    assert all(k.next_step for k in KINDS.values())


def test_a_finding_is_one_line_with_its_place_and_its_next_step() -> None:
    f = finding_of(suspect(kinds.L0_MISSING, PartitionId("events", 3, 7), "some/key", 12, "gone,\nand a\tline"))
    assert (f.topic, f.partition, f.offset, f.severity) == ("events", 7, 12, "loss")
    assert f.line == f"l0_missing events/7 at record 12: some/key: gone, and a line; {f.next_step}"


def test_what_does_not_apply_is_none() -> None:
    f = finding_of(suspect(kinds.WATERMARK_UNREADABLE, None, "published.json", -1, "no JSON"))
    assert (f.topic, f.partition, f.offset) == (None, None, None)
    assert f.line.startswith("watermark_unreadable: published.json: no JSON; ")
