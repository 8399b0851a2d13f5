"""What a command ends with."""

from __future__ import annotations

import click

from l0gc.cli.signals import code_of
from l0gc.errors import L0gcError

INTERRUPTED = 130
OUTPUT_CLOSED = 141


class OutputClosedError(Exception):
    """The reader of stdout has closed it, as `head` does."""


def exit_code_of(e: BaseException | None) -> int:
    """The exit code of a command that raised `e`; of one that raised nothing, 0."""
    match e:
        case None:
            return 0
        case L0gcError() | click.ClickException() | click.exceptions.Exit():
            return e.exit_code
        case KeyboardInterrupt():
            return code_of(e)
        case click.exceptions.Abort():  # click's word for Ctrl-C, and for an answer that is not given
            return code_of(e.__cause__ or e)
        case OutputClosedError():
            return OUTPUT_CLOSED
        case _:
            return 1
