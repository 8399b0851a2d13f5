"""Text from other writers in the bucket reaches the terminal as visible characters of one line."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from l0gc.cli import demo
from l0gc.cli.output import is_coloured
from l0gc.cli.terminal import escaped, is_utf8, json_escaped, json_text

HOSTILE = [
    ("\x1b[2J", "\\x1b[2J"),
    ("a\nl0gc: all is well", "a\\nl0gc: all is well"),
    ("a\r\tb", "a\\r\\tb"),
    ("\x00\x07\x7f", "\\x00\\x07\\x7f"),
    ("\x9b31m", "\\x9b31m"),  # the same as ESC [ if a terminal supports C1
    ("\u202egnp.exe", "\\u202egnp.exe"),
    ("\u2066x\u2069", "\\u2066x\\u2069"),
    ("a\u200bb\ufeff", "a\\u200bb\\ufeff"),
    ("one\u2028two\u2029", "one\\u2028two\\u2029"),
    ("\U000e0041", "\\U000e0041"),
    ("\udcff", "\\xff"),  # a byte of an argument that is not UTF-8
    ("\ud900", "\\ud900"),
]


@pytest.mark.parametrize(("text", "shown"), HOSTILE)
def test_what_a_terminal_would_act_on_is_shown_as_what_it_is(text: str, shown: str) -> None:
    assert escaped(text) == shown
    assert escaped(shown) == shown


def test_the_worlds_letters_stay() -> None:
    text = "Ärger & мир & 世界 & \N{SMILING FACE WITH SUNGLASSES} [red]x[/red] \\x"
    assert escaped(text) == text
    assert is_utf8(text)
    assert not is_utf8("a\udcffb")


@pytest.mark.parametrize("text", [text for text, _ in HOSTILE if is_utf8(text)])
def test_json_keeps_its_value_and_holds_nothing_that_a_terminal_acts_on(text: str) -> None:
    line = json_text({text: [text, 1]})
    assert msgspec.json.decode(line) == {text: [text, 1]}
    assert escaped(line) == line
    assert json_escaped(line) == line


@pytest.mark.parametrize(
    ("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_no_color_and_plain_terminals_get_no_colours(
    environment: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in {"TERM": "xterm", **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert is_coloured() == coloured
    demo._Demo(quiet=False).say("text")
    assert ("\x1b[" in capsys.readouterr().out) <= coloured
    modules = Path(demo.__file__).parent.glob("*.py")
    assert [m.name for m in modules if "secho(" in m.read_text()] == []  # secho would not check `is_coloured`
