"""`l0gc help COMMAND` is `l0gc COMMAND --help`."""

from __future__ import annotations

import click
import pytest

from l0gc.errors import UsageError
from tests.support.cli import ended_here, l0gc


def test_help_says_what_the_option_says() -> None:
    for name in ("", "sweep", "topic", "topic create"):
        said, expected = (ended_here(*words).stdout for words in (("help", *name.split()), (*name.split(), "--help")))
        assert said.decode().splitlines() == expected.decode().splitlines()
    for name in ("sweep", "topic", "topic create"):
        assert l0gc("help", *name.split())["command"] == name


def test_help_of_what_is_no_command_gets_a_sentence() -> None:
    with pytest.raises(click.UsageError, match="did you mean 'sweep'"):
        l0gc("help", "swep")
    with pytest.raises(click.UsageError) as caught:
        l0gc("help", "topic", "crate")
    assert "create" in caught.value.format_message()
    with pytest.raises(UsageError, match="sweep has no subcommands, so none called 'fast'"):
        l0gc("help", "sweep", "fast")
