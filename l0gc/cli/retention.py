"""What the commands share that set a retention, or delete records: options, units, and how a result is printed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from l0gc.cli.output import Output
from l0gc.formatting import count, size, span
from l0gc.streamlog.controller.decisions import NOT_SET, NotSet, RetentionSettings
from l0gc.streamlog.controller.entries import UNLIMITED

if TYPE_CHECKING:
    from l0gc.streamlog.level_one.expire import ExpireResult

DEFAULT: Final = "default"
_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_BYTES: Final = {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}


class Quantity(click.ParamType[int | str]):
    """A number as Kafka has it, or one with a unit; -1 for unlimited, `default` for the cluster's setting."""

    name = "quantity"

    def __init__(self, units: dict[str, int], example: str) -> None:
        self._units, self._example = units, example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        text = str(value).strip().lower()
        if text in {DEFAULT, str(UNLIMITED)}:
            return DEFAULT if text == DEFAULT else UNLIMITED
        number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
        factor = self._units.get(text[len(number) :], 1 if text == number else 0)
        if not factor or not (number.isascii() and number.isdecimal()):
            self.fail(f"{value!r} is none; write {self._example}, -1 for unlimited, or {DEFAULT}", param, ctx)
        return int(number) * factor


def retention_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--retention-ms` and `--retention-bytes`."""
    for option in (
        click.option(
            "--retention-bytes", type=Quantity(_BYTES, "1073741824 or 1GiB"), metavar="N",
            help="Delete the oldest L1 objects of a partition while the others are as large as this. -1: unlimited.",
        ),
        click.option(
            "--retention-ms", type=Quantity(_MS, "604800000 or 7d"), metavar="N",
            help="Delete L1 objects whose newest record is older than this. -1: unlimited.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def settings_of(ms: int | str | None, size: int | str | None) -> RetentionSettings:
    """What the options say."""

    def one(value: int | str | None) -> int | NotSet | None:
        if value is None:
            return NOT_SET
        return None if isinstance(value, str) else value

    return RetentionSettings(one(ms), one(size))


def retention_text(ms: int | None, bytes_: int | None) -> str:
    """A retention, for people; None where it is the cluster's."""
    kept_ms = DEFAULT if ms is None else "unlimited" if ms == UNLIMITED else span(ms) if ms >= 1000 else f"{ms} ms"
    kept_bytes = DEFAULT if bytes_ is None else "unlimited" if bytes_ == UNLIMITED else size(bytes_)
    if kept_ms == kept_bytes:
        return f"retention {kept_ms}"
    return f"retention {kept_ms} and {kept_bytes}"


def tell(out: Output, result: ExpireResult, *, dry_run: bool) -> None:
    """What was deleted; raises `PartialFailureError` if something was left out."""
    verb = "would be deleted" if dry_run else "deleted"
    text = "nothing to delete"
    if result.partitions:
        text = f"{count(result.records, 'record')} of {count(result.partitions, 'partition')} {verb}"
    if result.l1_objects:
        text += f", with {count(result.l1_objects, 'L1 object')} ({size(result.bytes)}) for vacuum"
    lines = [text]
    lines += [
        f"{s.topic}/{s.partition} begins at offset {s.log_start_offset} (was {s.previous})" for s in result.starts
    ]
    if result.partitions > len(result.starts) > 0:
        lines.append(f"and {count(result.partitions - len(result.starts), 'partition')} more")
    if result.lost:
        lines.append(f"{count(result.lost, 'partition')} changed meanwhile; the next run takes them")
    out.result({"dry_run": dry_run, **asdict(result)}, lines)
    if result.problem is not None:
        raise result.problem
