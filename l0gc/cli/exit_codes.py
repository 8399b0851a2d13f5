"""What a command ends with."""

from __future__ import annotations

import click

from l0gc.errors import L0gcError

INTERRUPTED = 130
OUTPUT_CLOSED = 141


class OutputClosedError(Exception):
    """Whoever read our stdout has gone, as `head` does; there is nobody to tell."""


def exit_code_of(e: BaseException | None) -> int:
    """The exit code of a command that raised `e`; of one that raised nothing, 0."""
    match e:
        case None:
            return 0
        case L0gcError() | click.ClickException() | click.exceptions.Exit():
            return e.exit_code
        case KeyboardInterrupt() | click.exceptions.Abort():
            return INTERRUPTED
        case OutputClosedError():
            return OUTPUT_CLOSED
        case _:
            return 1
