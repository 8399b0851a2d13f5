"""Write notes and errors to stderr, with `-v` also the steps of the work, as text or as JSON, one event per line.

Only l0gc's own loggers are shown. The loggers of libraries stay unchanged at every `-v`: botocore's would log signed
requests, and py4j's a traceback on Ctrl-C. Secrets are removed (`l0gc/redaction.py`), whichever library wrote them into
a message, and characters on which a terminal would act are escaped.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final

import click
import msgspec

from l0gc.cli.signals import exit_code_of
from l0gc.cli.terminal import escaped, fitted, is_utf8, json_text
from l0gc.errors import UsageError
from l0gc.events import NOTE, event
from l0gc.redaction import without_secrets
from l0gc.settings import Settings

TEXT: Final = "text"
JSON: Final = "json"
FORMATS: Final = (TEXT, JSON)
_LEVELS: Final = {logging.DEBUG: "debug", logging.INFO: "info", NOTE: "note", logging.WARNING: "warning"}
_ROOT: Final = logging.getLogger("l0gc")
_log: Final = logging.getLogger(__name__)
_running: ContextVar[bool] = ContextVar("running", default=False)


def _cleared(value: Any) -> Any:
    if isinstance(value, str):
        return without_secrets(value if is_utf8(value) else escaped(value))
    if isinstance(value, dict):
        return {k: _cleared(v) for k, v in value.items()}
    return [_cleared(v) for v in value] if isinstance(value, list) else value


class LogHandler(logging.Handler):
    """Writes events to stderr.

    Attributes:
        format_name: `text` or `json`.
        run_id: an id that connects the events of a run.
        run: the name of the run's record, once the store's clock has been read for it; otherwise empty.
        command: the running command.
    """

    def __init__(self) -> None:
        super().__init__()
        self.format_name = TEXT
        self.run_id = ""
        self.run = ""
        self.command = ""

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format_name == TEXT
        line = escaped(without_secrets(f"l0gc: {record.getMessage()}")) if text else self._json(record)
        with suppress(OSError):  # its reader has closed it, or the disk is full; the work continues
            for part in fitted([line], 6, sys.stderr) if text else [line]:
                click.echo(part, err=True)

    def _json(self, record: logging.LogRecord) -> str:
        row = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": _LEVELS.get(record.levelno, "error"),
            "run_id": self.run_id,
            **({"run": self.run} if self.run else {}),
            "command": self.command,
            "event": getattr(record, "event", record.name.rsplit(".", 1)[-1]),
            "message": record.getMessage(),
        }
        # A result also has a `run_id`, which is the name of its record.
        row |= {name: value for name, value in getattr(record, "fields", {}).items() if name not in row}
        # Each text is cleared alone, since a URL in one text and an @ in the next would look like one secret.
        return json_text(_cleared(msgspec.to_builtins(row, enc_hook=str)))


HANDLER: Final = LogHandler()


def set_up(format_name: str, verbose: int, command: str, run_id: str, *, quiet: bool = False) -> None:
    """Set the output of this process's later events. Raises `UsageError` for an unknown format."""
    if format_name not in FORMATS:
        raise UsageError(f"the log format {format_name!r} is not one of {', '.join(FORMATS)}")
    HANDLER.format_name, HANDLER.command, HANDLER.run_id, HANDLER.run = format_name, command, run_id, ""
    if HANDLER not in _ROOT.handlers:
        _ROOT.addHandler(HANDLER)
        logging.getLogger().addHandler(
            logging.NullHandler()
        )  # otherwise the first message of another library would add a handler
    least = logging.WARNING if quiet else NOTE
    _ROOT.setLevel(least if not verbose else logging.INFO if verbose == 1 else logging.DEBUG)


def running(step: str) -> str:
    """Return the command to run again for a step, which is the user's command; the step may be a part of it."""
    return HANDLER.command or step


def error(message: str, exit_code: int, **fields: Any) -> None:
    """Log the error of a run, or of a step in it."""
    _log.error("%s", message, extra=event("error", exit_code=exit_code, **fields))


@contextmanager
def logging_command(settings: Settings, command: str, run_id: str) -> Iterator[None]:
    """Set up the log of a command for the block. If another command runs this one, use that command's log."""
    if _running.get():
        yield
        return
    token = _running.set(True)
    began = time.monotonic()
    code = 1
    try:
        set_up(settings.log_format, settings.verbose, command, run_id, quiet=settings.quiet)
        _log.info("%s begins", command, extra=event("command_began"))
        yield
        code = 0
    except BaseException as e:
        code = exit_code_of(e)
        raise
    finally:
        seconds = round(time.monotonic() - began, 3)
        ended = event("command_ended", exit_code=code, seconds=seconds)
        _log.info("%s ended after %.1f s with %d", command, seconds, code, extra=ended)
        _running.reset(token)
