"""The options of commands that export metrics, and the export to a text file, to a Pushgateway, or to both.

Metrics are exported when the run ends, even if it failed. Problems of the export are only notes, since metrics never
change a command's work or exit code.
"""

from __future__ import annotations

import functools
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

import click

from l0gc.cli.globals import options
from l0gc.cli.metrics import BY_NAME, COUNTER, METRICS, Key, Run, added_up, key_of, samples
from l0gc.cli.output import Output, measured
from l0gc.cli.signals import exit_code_of
from l0gc.runtime import SystemClock
from l0gc.settings import Settings

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

_PUSH_SECONDS: Final = 10.0
_JOB: Final = "l0gc"


@contextmanager
def measuring(step: str) -> Iterator[Run]:
    """Measure the block as a run of `step`, which is a part of the outer run if there is one."""
    run, outer, began = Run(step), measured.get(), time.monotonic()
    token = measured.set(run)
    try:
        yield run
    except BaseException as e:
        run.exit_code = exit_code_of(e)
        raise
    finally:
        measured.reset(token)
        run.seconds, run.ended_s = time.monotonic() - began, SystemClock().now_ms() / 1000
        if outer is not None:
            outer.parts.append(run)


def metrics_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for metrics to `command`, whose first argument is the settings, and export its metrics when it
    ends.
    """

    @functools.wraps(command)
    def wrapped(
        settings: Settings, *args: Any, metrics_file: str | None, pushgateway: str | None, **kwargs: Any
    ) -> Any:
        if not (metrics_file or pushgateway) or click.get_current_context().params.get("dry_run"):
            return command(settings, *args, **kwargs)
        step = click.get_current_context().command_path.split(" ", 1)[-1].replace(" ", "-")
        try:
            with measuring(step) as run:
                return command(settings, *args, **kwargs)
        finally:
            run.log_free = _log_free()
            if new := samples(run, settings.url or ""):
                _export(Output(settings), new, metrics_file, pushgateway)

    return _OPTIONS(wrapped)


_OPTIONS: Final = options([
    click.option("--metrics-file", metavar="PATH", help="Add the metrics of this run to a Prometheus text file."),
    click.option(
        "--pushgateway", envvar="L0GC_PUSHGATEWAY", metavar="URL", help="Send the metrics of this run to a Pushgateway."
    ),
])  # fmt: skip


def _log_free() -> int | None:
    """Return the free bytes on the disk of stdout or stderr, whichever has fewer; None if neither is a file."""
    free = []
    for descriptor in (1, 2):
        with suppress(OSError):
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                disk = os.fstatvfs(descriptor)
                free.append(disk.f_bavail * disk.f_frsize)
    return min(free, default=None)


def _export(out: Output, new: Mapping[Key, float], file: str | None, gateway: str | None) -> None:
    if file:
        try:
            write(Path(file), new, out.note)
        except OSError as e:
            out.note(f"the metrics were not written to {file}: {e.strerror or e}", "metrics_failed", needed=True)
    if gateway:
        try:
            push(gateway, new)
        except (OSError, ValueError, HTTPException) as e:
            out.note(f"the metrics were not sent to {gateway}: {e}", "metrics_failed", needed=True)


def write(path: Path, new: Mapping[Key, float], note: Callable[[str], None]) -> None:
    """Add a run to the values in the file, atomically: a reader sees the old file or the new one.

    Raises:
        OSError: the file cannot be read or written, and is unchanged.
    """
    from prometheus_client import write_to_textfile

    if path.exists() and not path.is_file():
        raise OSError("it is not a regular file, and would be replaced by one")  # such as /dev/null
    write_to_textfile(str(path), _Families(added_up(_read(path, note), new)))


def _read(path: Path, note: Callable[[str], None]) -> dict[Key, float]:
    from prometheus_client.parser import text_string_to_metric_families

    try:
        families = list(text_string_to_metric_families(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except ValueError as e:  # this includes files that are not UTF-8
        note(f"{path} does not hold metrics, and is replaced: {e}")
        return {}
    return {key_of(s.name, s.labels): s.value for f in families for s in f.samples}


def push(gateway: str, new: Mapping[Key, float]) -> None:
    """Send the values of a run. A Pushgateway does not add up values, so they cover only the last run.

    Raises:
        OSError, ValueError, HTTPException: the values were not accepted.
    """
    from prometheus_client import pushadd_to_gateway
    from prometheus_client.exposition import basic_auth_handler

    address = urlsplit(gateway)
    if address.scheme not in {"http", "https"}:
        raise ValueError("the URL must look like http://host:9091")

    def send(
        url: str, method: str, timeout: float | None, headers: list[tuple[str, str]], data: bytes
    ) -> Callable[[], None]:
        """Return a function that sends a request.

        A user and a password in the URL are moved to a header, since urllib would read them as a part of the host.
        """
        user, password = (unquote(part) if part is not None else None for part in (address.username, address.password))
        return basic_auth_handler(url, method, timeout, headers, data, user, password)

    bare = urlunsplit(address._replace(netloc=address.netloc.rpartition("@")[2]))
    newest = {(BY_NAME[name].last_run_name, labels): value for (name, labels), value in new.items()}
    first = next(iter(newest))[1]
    group = {name: value for name, value in first if name != "step"}
    pushadd_to_gateway(bare, _JOB, _Families(newest), group, timeout=_PUSH_SECONDS, handler=send)


class _Families:
    """The values in the form that the library collects, in the order of the table."""

    def __init__(self, values: Mapping[Key, float]) -> None:
        self._values = sorted(values.items())

    def collect(self) -> Iterator[Family]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for metric in METRICS:
            for name in dict.fromkeys((metric.name, metric.last_run_name)):
                counts = name == metric.name and metric.kind == COUNTER
                family = (CounterMetricFamily if counts else GaugeMetricFamily)(name, metric.help, labels=metric.labels)
                for (name_of_value, labels), value in self._values:
                    if name_of_value == name:
                        family.add_metric([dict(labels).get(label, "") for label in metric.labels], value)
                if family.samples:
                    yield family
