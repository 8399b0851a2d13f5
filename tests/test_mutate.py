"""`make mutants` changes the part that it is given, and runs its mirroring tests."""

from __future__ import annotations

import tomllib

import pytest

from tests.mutate import configuration, is_text


@pytest.mark.parametrize(
    ("part", "module", "mirror"),
    [
        ("l0gc/collect/plan.py", "l0gc/collect/plan.py", "tests/collect/test_plan.py"),
        ("l0gc/watermark", "l0gc/watermark/compute.py", "tests/watermark/test_compute.py"),
    ],
)
def test_a_part_is_changed_and_its_mirroring_tests_run(part: str, module: str, mirror: str) -> None:
    section = tomllib.loads(configuration(part))["tool"]["mutmut"]
    assert module in section["only_mutate"]
    assert mirror in section["pytest_add_cli_args_test_selection"]
    assert {"docs", "Makefile", "examples"} <= set(section["also_copy"])


@pytest.mark.parametrize("part", ["l0gc/nothing.py", "tests/near.py", "docs"])
def test_what_is_not_a_module_of_l0gc_is_refused(part: str) -> None:
    with pytest.raises(SystemExit, match="is not a module of l0gc"):
        configuration(part)


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ('"Check it"', '"XXCheck itXX"', True),
        ('"Check it"', '"CHECK IT"', True),
        ("bound > 0", "bound >= 0", False),
        ("True", "False", False),
    ],
)
def test_only_a_change_of_a_texts_case_or_marks_is_left_out(before: str, after: str, text: bool) -> None:
    assert is_text(f"# name: survived\n--- a.py\n+++ a.py\n@@ -1 +1 @@\n-{before}\n+{after}\n") is text
