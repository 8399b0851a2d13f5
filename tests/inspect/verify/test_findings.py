"""How findings are printed."""

from __future__ import annotations

from l0gc.inspect.verify.findings import Kind, Suspect, finding_of


def test_every_kind_has_a_severity_and_a_next_step() -> None:
    assert {k.severity for k in Kind} == {"loss", "danger", "waste"}
    assert all(k.next_step for k in Kind)


def test_a_finding_is_one_line_with_its_place_and_its_next_step() -> None:
    f = finding_of(Suspect(Kind.L0_MISSING, 4, "events", 3, 7, "some/key", 12, detail="gone,\nand a\tline"))
    assert (f.journal, f.topic, f.partition, f.offset, f.severity) == (4, "events", 7, 12, "loss")
    assert f.line == f"l0_missing events/7 at record 12: some/key: gone, and a line; {f.next_step}"


def test_a_field_that_does_not_apply_is_none() -> None:
    f = finding_of(Suspect(Kind.WATERMARK_UNREADABLE, key="published.json", detail="no JSON"))
    assert (f.journal, f.topic, f.partition, f.offset) == (None, None, None, None)
    assert f.line.startswith("watermark_unreadable: published.json: no JSON; ")


def test_a_finding_about_a_topic_as_a_whole_names_no_partition() -> None:
    f = finding_of(Suspect(Kind.TOPIC_MISPLACED, 4, "events", 3, key="l0gc/journal/0004/", detail="it is elsewhere"))
    assert (f.topic, f.partition) == ("events", None)
    assert f.line.startswith("topic_misplaced events: l0gc/journal/0004/: ")
