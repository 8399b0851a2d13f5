"""Text from other writers in the bucket never controls the operator's terminal, whichever command shows it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from l0gc.collect.deletion import set_pause
from l0gc.collect.record import Attempt, write_attempt
from l0gc.errors import L0gcError
from l0gc.storage.s3 import S3Store
from tests.support.cli import founded

pytestmark = pytest.mark.weed

EVIL = "evil\x1b[2J\x1b]0;title\x07\nl0gc: all is well\r\x9b31m\u202egnp\u2066\u200b [red]x[/red]"
KEY = "level_zero/data/evil\u202e\x9b2J\u2028[red]/x"
"""A hostile key with characters that XML can contain; S3 sends other characters in another form."""
ACTS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]")

COMMANDS = (
    ("status",), ("status", "--json"), ("producer", "list"), ("producer", "describe", EVIL), ("explain", KEY),
    ("explain", "--partition", EVIL), ("sweep", "--dry-run"), ("sweep",), ("compute-watermark", "--engine", "local"),
    ("compute-watermark", "--engine", "local", "--json"), ("pause", "--why", "again"), ("runs", "list"),
    ("runs", "show", EVIL), ("log", "show"), ("log", "show", "--json"), ("doctor",), ("topic", "describe", EVIL),
    ("upload", EVIL, EVIL), ("upload", "events", EVIL), ("reconcile", EVIL), ("read", EVIL), ("config", "show"),
    ("status", "--log-format", "json", "-v"), ("sweep", "--min-age", EVIL), (EVIL,), ("status", "--config", EVIL),
    ("resume",),
)  # fmt: skip


Run = Callable[..., tuple[int, str, str]]


def test_no_command_prints_what_a_terminal_would_act_on(store: S3Store, run_here: Run) -> None:
    founded()
    store.put(KEY, b"x")
    set_pause(store, EVIL, EVIL)
    write_attempt(store, Attempt("housekeep", 1, EVIL))
    write_attempt(store, Attempt("reconcile", 1, f"{EVIL} {KEY}"))
    ended = {args: run_here(*args) for args in COMMANDS}
    shown = {args: out + err for args, (_, out, err) in ended.items()}
    raw = {args: found for args, text in shown.items() if (found := ACTS.findall(text))}
    assert raw == {}
    assert not any("\nl0gc: all is well" in text for text in shown.values())
    visible = "evil\\x1b[2J\\x1b]0;title\\x07\\nl0gc: all is well\\r\\x9b31m\\u202egnp\\u2066\\u200b [red]x[/red]"
    assert visible in shown[("resume",)]
    assert "\\u202e\\x9b2J\\u2028[red]/x" in shown["compute-watermark", "--engine", "local"]
    assert {code for code, _, _ in ended.values()} <= {0, 1, 2, 4, 5}


def test_an_error_says_it_on_one_line(run_here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise L0gcError(EVIL)

    monkeypatch.setattr("l0gc.cli.options.library", fail)
    code, out, err = run_here("status", "--url", "s3://x")
    assert (code, out, err.count("\n")) == (1, "", 1)
    code, out, err = run_here("status", "--url", "s3://x", "-v")
    assert (code, out) == (1, "")
    assert not ACTS.findall(err)
