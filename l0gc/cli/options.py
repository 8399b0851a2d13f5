"""The options that every command takes, and the arguments that a command gets from them: its settings, or its output
and its cluster.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args, get_origin

import click
from click.core import ParameterSource

from l0gc import api
from l0gc.api import Cluster, Engine
from l0gc.cli.globals import GLOBAL_OPTIONS, Decorator, on_command_line, options
from l0gc.cli.logs import logging_command
from l0gc.cli.output import Output
from l0gc.cli.signals import holding
from l0gc.cli.terminal import escaped, fitted, is_utf8
from l0gc.cli.units import HELD, Number, Whole, as_size, duration, size_within, span_of, starts, time_ms
from l0gc.errors import UsageError
from l0gc.formatting import STANDARD_PRICE, as_duration
from l0gc.operations import Gc, Offset, Operation, bounded, default_of, step_of, texts_of, types_of, written
from l0gc.redaction import without_secrets
from l0gc.runtime import Runtime
from l0gc.settings import FileSettings, Settings, check_variables, load_settings
from l0gc.storage.config import ENDPOINT_VARIABLES, first_of
from l0gc.storage.workers import AUTO, LOCAL, SPARK

_DEADLINE_S: Final = 3.0
"""How long completion may look for names. A shell waits for them and cannot show an error, so after a failure none are
offered.
"""
_MOST_NAMES: Final = 200
"""The most names that completion offers."""

_NAMES: Final = {*Settings.__struct_fields__}


EVERY_DAY: Final = frozenset({
    *(f"no-{step}" for step in ("reconcile", "sweep", "vacuum")),
    *(f"sweep-{option}" for option in ("grace", "min-age", "max-delete-ratio")),
    "dry-run", "shadow", "vacuum-max-delete-ratio",
})  # fmt: skip
"""The options of `gc` that its help shows. The other options of its steps are also accepted, but are better set in the
settings file.
"""


class OperationOption(click.Option):
    """An option of an operation, which the environment and the operation's section in the settings file can also set.

    Args:
        step: the step, for an option of a step of `gc`; the operation is that of the step.
    """

    def __init__(self, operation: type[Operation], name: str, *, step: bool) -> None:
        self.section, self.key = operation.command(), written(operation, name)
        kind, default = types_of(operation)[name], default_of(operation, name)
        flag, dest = (f"{self.section}-{self.key}", f"{operation.__name__}_{name}") if step else (self.key, name)
        text, attributes = texts_of(operation).get(name, ""), dict[str, Any]()
        if kind is bool or step_of(kind) is not None:
            attributes["is_flag"] = True
            text = text.removeprefix("False to ") if default else text
            text = text[:1].upper() + text[1:] or f"Leave {self.key.removeprefix('no-')} out."
        else:
            attributes |= _type_of(name, kind)
            if default is not None:
                attributes |= {"default": _shown(name, default), "show_default": True}
        envvar = f"L0GC_{self.section}_{self.key}".replace("-", "_").upper()
        hidden = (step or operation is Gc) and flag not in EVERY_DAY
        super().__init__([f"--{flag}", dest], help=text, envvar=envvar, hidden=hidden, **attributes)

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        value, source = super().consume_value(ctx, opts)
        if source is not ParameterSource.DEFAULT or ctx.resilient_parsing:
            return value, source
        file, _ = settings_file(ctx)
        section = file.sections.get(self.section, {})
        if self.key not in section:
            return value, source
        value = section[self.key]
        try:
            self.type_cast_value(ctx, value)
        except click.BadParameter as e:
            where = f"the config file {file.path} has {self.key} = {value!r} in [{self.section}]"
            raise UsageError(f"{where}: {e.message}") from e
        return value, ParameterSource.DEFAULT_MAP


def _type_of(name: str, kind: Any) -> dict[str, Any]:
    """Return the type of an option, as keywords for click."""
    if dict[Offset, Offset] in get_args(kind):
        return {"type": starts, "metavar": "OFFSET|PARTITION:OFFSET,…"}
    kind, bounds = bounded(kind)
    if name.endswith("_s"):
        return {"type": duration}
    if name.endswith("_time_ms"):
        return {"type": time_ms, "metavar": "TIME"}
    if name.endswith("_bytes"):
        return {"type": size_within(int(bounds.ge or 1), int(bounds.le or HELD))}
    if get_origin(kind) is Literal:
        return {"type": click.Choice(get_args(kind))}
    if get_origin(kind) is tuple:
        return {"type": span_of(name, "000-249 or 7"), "metavar": "FIRST-LAST"}
    if kind is Path:
        return {"type": click.Path(file_okay=False, path_type=Path), "metavar": "DIR"}
    if kind is int:
        return {
            "type": Whole(*cast(tuple[int | None, int | None], (bounds.ge, bounds.le))),
            "metavar": "N",
        }
    if kind is float:
        least = bounds.ge if bounds.gt is None else bounds.gt
        return {"type": Number(least, bounds.le, min_open=bounds.gt is not None), "metavar": "N"}
    return {"metavar": "NAME", "shell_complete": PRODUCER if name == "producer" else None}


def _shown(name: str, value: Any) -> Any:
    """Return a default in the form in which users write it."""
    if name.endswith("_s"):
        return as_duration(value)
    return as_size(value) if name.endswith("_bytes") else value


def operation_options(operation: type[Operation]) -> Decorator:
    """Add the options of an operation to a command, which receives them as the keywords of the library's method."""
    plain, steps = list[OperationOption](), list[OperationOption]()
    for name, kind in types_of(operation).items():
        plain.append(OperationOption(operation, name, step=False))
        if step := step_of(kind):
            steps += [OperationOption(step, n, step=True) for n in types_of(step) if n != "dry_run"]

    def keywords(of: type[Operation], given: dict[str, Any], prefix: str = "") -> dict[str, Any]:
        chosen = dict[str, Any]()
        for name, kind in types_of(of).items():
            value = given.pop(prefix + name, False)
            step = step_of(kind)
            if step is not None:
                options = keywords(step, given, f"{step.__name__}_")
                chosen[name] = None if value else step(**options)
            else:
                chosen[name] = not value if kind is bool and default_of(of, name) else value
        return chosen

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def wrapped(*args: Any, **given: Any) -> Any:
            options = keywords(operation, given)
            return command(*args, **options, **given)

        wrapped.__click_params__ = [*getattr(command, "__click_params__", []), *reversed([*plain, *steps])]  # type: ignore[attr-defined]
        return wrapped

    return decorate


def check_text(parameters: Iterable[click.Parameter], values: Mapping[str, Any]) -> None:
    """Raise `UsageError` if an argument is not valid text; only a path may have any bytes."""
    for p in parameters:
        value = values.get(p.name or "")
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, str) and not isinstance(p.type, click.Path) and not is_utf8(item):
                raise UsageError(
                    f"{p.opts[0] if p.param_type_name == 'option' else p.human_readable_name} is not UTF-8: {item}"
                )


def settings_file(context: click.Context) -> tuple[FileSettings, set[str]]:
    """Return the contents of the settings file for a command, and the names of the values that take precedence over the
    environment.

    The context is that of the command, or else that of `l0gc --context NAME COMMAND`; a context from the environment
    has the lowest precedence.
    """
    flags = on_command_line(context)
    # While options are read, click has a marker instead of None for a missing one.
    of_environment = {n: v if isinstance(v := context.params.get(n), str) else None for n in ("context", "config")}
    chosen, path = ((of_environment | flags)[n] for n in ("context", "config"))
    key = f"{__name__} {path} {chosen}"  # each option of an operation calls this
    if key not in context.meta:
        context.meta[key] = load_settings(path, chosen)
    file: FileSettings = context.meta[key]
    return file, {k for k in file.of_context if k not in flags} if "context" in flags else set()


def settings_of(context: click.Context) -> Settings:
    """Return the settings of a command, or of a line that is still being typed. Raises `UsageError`."""
    file, first = settings_file(context)
    given = {k: v for k, v in context.params.items() if v is not None and (k != "verbose" or v)}
    said = file.values | given | {k: file.values[k] for k in first} | on_command_line(context)
    return Settings(**{k: v for k, v in said.items() if k in _NAMES})


def common_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the common options to `command`, which receives them as its first argument, a `Settings`."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        context = click.get_current_context()
        check_text(context.command.params, kwargs)
        check_variables(os.environ)
        settings = settings_of(context)
        rest = {k: v for k, v in kwargs.items() if k not in {*_NAMES, "config", "context"}}
        with logging_command(settings, context.command_path.split(" ", 1)[-1], Runtime().new_id()):
            return command(settings, *args, **rest)

    return options(GLOBAL_OPTIONS)(wrapped)


def cluster_options(*more: Decorator) -> Decorator:
    """Add the common options, and more, to a command, which receives its output and the cluster instead of the
    settings.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def opened(settings: Settings, **kwargs: Any) -> Any:
            out = Output(settings)
            with library(settings) as cluster, out.observing(cluster):
                return command(out, cluster, **kwargs)

        return options([common_options, *more])(opened)

    return decorate


spark_options: Final = options([
    click.option("--master", envvar="L0GC_MASTER", help="The Spark cluster.  [default: local[*]]"),
    click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A Spark setting; may be repeated."),
    click.option(
        "--send-credentials/--no-send-credentials", default=None,
        help="Whether a cluster's executors get the driver's credentials.  [default: if the driver's do not come "
             "from a role]",
    ),
])  # fmt: skip
"""A decorator that adds the options for starting Spark."""


def engine_options(where: str = "Where it runs") -> Decorator:
    """Return a decorator that adds the options for the engine to a command whose first argument is the settings.

    The command receives them as `engine`, whose session ends with the command.

    Args:
        where: the start of the help of `--engine`.
    """
    choice = click.option(
        "--engine", type=click.Choice([AUTO, LOCAL, SPARK]), default=AUTO, show_default=True,
        help=f"{where}: auto uses this process for small work, which needs no Java.",
    )  # fmt: skip

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def wrapped(
            settings: Settings,
            *args: Any,
            engine: str,
            master: str | None,
            conf: tuple[str, ...],
            send_credentials: bool | None,
            **kwargs: Any,
        ) -> Any:
            name = click.get_current_context().command_path.split(" ", 1)[-1]
            with Engine(
                engine,
                master=master,
                conf=_pairs(conf),
                send_credentials=send_credentials,
                app=name,
                verbose=settings.verbose > 1,
            ) as chosen:
                return command(settings, *args, engine=chosen, **kwargs)

        return choice(spark_options(wrapped))

    return decorate


def _pairs(conf: tuple[str, ...]) -> dict[str, str]:
    """Return the user's KEY=VALUE settings. Raises `UsageError`."""
    pairs: dict[str, str] = {}
    for item in conf:
        key, separator, value = item.partition("=")
        if not separator:
            raise UsageError(f"--conf {item!r} must look like KEY=VALUE")
        pairs[key] = value
    return pairs


def moment_of(cluster: Cluster, time: int | None) -> datetime | None:
    """Return the time for a value of `time_ms`, which may be an age."""
    if time is None:
        return None
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
        milliseconds=time if time > 0 else max(time + cluster.handles().now_ms(), 0)
    )


price_option: Final = click.option(
    "--price-gb-month", type=Number(min=0), default=STANDARD_PRICE, show_default=True, metavar="DOLLARS",
    help="The store's price per GB and month.",
)  # fmt: skip
"""The option of commands that show the cost of garbage."""


def library(settings: Settings) -> Cluster:
    """Return the cluster of a command, for a `with` block. Raises `UsageError` if no URL is set."""
    if not settings.url:
        raise UsageError("no URL: say where the cluster is with --url s3://bucket/prefix or L0GC_URL")
    of_boto3 = first_of(
        os.environ, ENDPOINT_VARIABLES
    )  # boto3 reads the variable itself, unless a profile forbids that
    cluster = api.open(
        settings.url,
        endpoint_url=None if settings.endpoint_url == of_boto3 else settings.endpoint_url,
        region=settings.region,
        profile=settings.profile,
        sse=settings.sse,
        sse_kms_key_id=settings.sse_kms_key_id,
        store_timeout_s=settings.store_timeout,
        idle_timeout_s=settings.idle_timeout,
        cluster_id=settings.cluster_id,
        epoch_interval_s=settings.epoch_interval,
    )
    cluster.handles().writing = holding
    return cluster


yes_option: Final = click.option(
    "--yes", is_flag=True, help="Do not ask for confirmation; needed if there is no terminal."
)
"""The option of commands that ask for confirmation."""


def asked(out: Output, cluster: Cluster, verb: str, what: str) -> None:
    """Ask the user, in a question that names the cluster, and return if the user agrees.

    Raises:
        UsageError: there is no terminal for a question, or the answer is no.
    """
    where = f"in {without_secrets(cluster.url)} (cluster {cluster.handles().identity().cluster_id})"
    if out.json or not sys.stdin.isatty() or not sys.stderr.isatty():
        raise UsageError(f"this would {verb} {what}, {where}: there is no terminal to ask at; give --yes to confirm")
    question = escaped(f"I{where[1:]} this {verb}s {what}. {verb.capitalize()} it?")
    if not click.confirm("\n".join(fitted([question], 0, sys.stderr)), err=True):
        raise UsageError(f"nothing is {verb.removesuffix('e')}ed")


def completing(names: Callable[[Cluster], Iterable[str]]) -> Callable[..., list[str]]:
    """Return a function that completes an argument with names in the bucket."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        candidates: list[str] = []

        def look() -> None:
            try:
                with library(settings_of(context)) as cluster:
                    candidates.extend(names(cluster))
            except Exception:  # noqa: BLE001, S110 - no names; the command itself will say what is wrong
                pass

        thread = threading.Thread(
            target=look, daemon=True
        )  # it may outlast the deadline, but must not outlast this process
        thread.start()
        thread.join(_DEADLINE_S)
        return [n for n in sorted(candidates) if n.startswith(incomplete)][:_MOST_NAMES]

    return complete


TOPIC: Final = completing(lambda cluster: [t.name for t in cluster.topics.list()])
PRODUCER: Final = completing(lambda cluster: [p.name for p in cluster.producers.list().producers])
RUN: Final = completing(lambda cluster: [r.run_id for r in cluster.runs.list(_MOST_NAMES).runs])
