"""Find the command that `l0gc` runs, and turn every error into one sentence and its exit code.

A command's module is imported when that command runs, so `l0gc --help` is fast and `sweep` never pays for Spark.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
import traceback
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import click
from click.shell_completion import CompletionItem

from l0gc import __version__
from l0gc.cli import logs, signals
from l0gc.cli.globals import GLOBAL_OPTIONS, Command, options
from l0gc.cli.signals import INTERRUPTED, OutputClosedError, exit_code_of
from l0gc.cli.terminal import UNENCODABLE, escaped, fitted
from l0gc.errors import L0gcError, OutputFailedError, suggestion, unexpected
from l0gc.redaction import without_secrets
from l0gc.runtime import use_one_arena

START: Final = "Start"
DATA: Final = "Data"
EVERY_DAY: Final = "Every day"
STEPS_OF_GC: Final = "Steps of gc"
TROUBLE: Final = "When something is wrong"
PROTECT: Final = "Protect"
GIVES_UP: Final = "Gives up data for good"
TOOL: Final = "Tool"
GROUPS: Final = (START, DATA, EVERY_DAY, STEPS_OF_GC, TROUBLE, PROTECT, GIVES_UP, TOOL)

CHANGES: Final = "changes"
GOES_ON: Final = "goes on"
READS: Final = "reads"
APART: Final = "apart"


Effect = tuple[str, str]
"""The effect of a command on a cluster, and the role whose policy allows it (docs/work/operate-permissions.md; empty if
none is described).

CHANGES: the command changes the cluster or its data, and is refused if a log was set back. GOES_ON: the command also
runs then, and may write to the bucket, but not to a log. READS: the command writes nothing. APART: the command needs no
cluster.
"""


class CommandRow(NamedTuple):
    """A command, or a group of commands.

    Attributes:
        module: the name of its module in this package.
        text: the description in the list of commands.
        group: the group in that list.
        effect: its effect on a cluster; for a group, the effect of each of its commands.
    """

    module: str
    text: str
    group: str
    effect: Effect | Mapping[str, Effect]


_ROWS: Final[dict[str, tuple[str, str, str, Effect | Mapping[str, Effect]]]] = {
    "init": ("cluster", "Probe the store and create a cluster.", START, (GOES_ON, "founder")),
    "server": ("demo", "Run an S3 server on this machine, in the foreground, until Ctrl-C.", START, (APART, "")),
    "demo": ("demo", "Run the whole loop on an embedded S3 server, with sample data.", START, (APART, "")),
    "doctor": ("status", "Check store, credentials, machine and cluster.", START, (GOES_ON, "")),
    "topic": (
        "topic",
        "Create, alter, delete, list and describe topics; propose their schema.",
        DATA,
        {
            "create": (CHANGES, "administrator"),
            "alter": (CHANGES, "administrator"),
            "delete": (CHANGES, "administrator"),
            "list": (READS, "viewer"),
            "describe": (READS, "viewer"),
            "infer": (READS, "reader"),
        },
    ),
    "upload": ("upload", "Upload newline-delimited records into a topic.", DATA, (CHANGES, "uploader")),
    "read": ("read", "Print a topic's records, byte for byte as uploaded.", DATA, (READS, "reader")),
    "producer": (
        "upload",
        "Show producers, and the positions of their uploads.",
        DATA,
        {"list": (READS, ""), "describe": (READS, "viewer")},
    ),
    "table": (
        "table",
        "Present a topic's L1 as an Iceberg table, for DuckDB, Spark, Trino and others.",
        DATA,
        {"create": (CHANGES, ""), "sync": (CHANGES, ""), "list": (READS, ""), "drop": (CHANGES, "")},
    ),
    "gc": ("gc", "Housekeep, reconcile, collect and vacuum, each if it is due.", EVERY_DAY, (CHANGES, "collector")),
    "status": ("status", "Show M, what holds it back, and what to do next.", EVERY_DAY, (READS, "viewer")),
    "report": ("status", "Write a page about the cluster as one HTML file.", EVERY_DAY, (READS, "reporter")),
    "verify": (
        "status",
        "Check that the bucket has the objects that the journals name.",
        EVERY_DAY,
        (READS, "verifier"),
    ),
    "housekeep": ("cluster", "Tick, slide idle windows, keep the logs short.", STEPS_OF_GC, (CHANGES, "housekeeper")),
    "reconcile": ("reconcile", "Lift unreconciled records from L0 to L1.", STEPS_OF_GC, (CHANGES, "reconciler")),
    "merge": ("reconcile", "Merge small L1 objects into large ones.", STEPS_OF_GC, (CHANGES, "reconciler")),
    "expire": ("topic", "Delete records beyond their topic's retention.", STEPS_OF_GC, (CHANGES, "expirer")),
    "compute-watermark": (
        "compute_watermark",
        "Compute M from the journals and the listing, and publish it.",
        STEPS_OF_GC,
        (CHANGES, "computer"),
    ),
    "sweep": ("sweep", "Delete the L0 objects that M allows.", STEPS_OF_GC, (CHANGES, "sweeper")),
    "vacuum": (
        "sweep",
        "Delete all other garbage: dropped L1 objects, orphans, old records.",
        STEPS_OF_GC,
        (CHANGES, "vacuumer"),
    ),
    "explain": ("status", "Explain why an object is kept or may be deleted.", TROUBLE, (READS, "viewer")),
    "pause": ("cluster", "Pause all sweeps of this cluster.", TROUBLE, (GOES_ON, "pauser")),
    "resume": ("cluster", "Let sweeps continue after l0gc pause.", TROUBLE, (GOES_ON, "pauser")),
    "runs": (
        "runs",
        "List, show and search the records of past sweeps and vacuums.",
        TROUBLE,
        dict.fromkeys(("list", "show", "find"), (READS, "sweeper")),
    ),
    "undelete": (
        "runs",
        "Bring back the objects that a sweep or a vacuum deleted from a versioned bucket.",
        TROUBLE,
        (GOES_ON, ""),
    ),
    "log": ("read", "Show the contents of the cluster's logs.", TROUBLE, {"show": (READS, "viewer")}),
    "pin": (
        "pin",
        "Create, list and delete pins.",
        PROTECT,
        {"create": (CHANGES, "pinner"), "list": (READS, "viewer"), "delete": (CHANGES, "pinner")},
    ),
    "delete-records": (
        "topic",
        "Delete a topic's records before an offset or a time.",
        GIVES_UP,
        (CHANGES, "expirer"),
    ),
    "give-up": ("topic", "Give up lost records, so that their partition can continue.", GIVES_UP, (CHANGES, "expirer")),
    "epoch": (
        "cluster",
        "Show or advance the cluster epoch.",
        GIVES_UP,
        {"show": (READS, "viewer"), "advance": (CHANGES, "administrator")},
    ),
    "config": ("help", "Show the settings that commands use.", TOOL, {"show": (READS, "")}),
    "completion": ("help", "Print a script that makes a shell complete l0gc.", TOOL, (READS, "")),
    "help": ("help", "Show the help of a command, or a page of the documents.", TOOL, (READS, "")),
    "version": ("help", "Show the version.", TOOL, (READS, "")),
}
COMMANDS: Final = {name: CommandRow(*row) for name, row in _ROWS.items()}
"""All commands, in the order of the documents."""


def effects() -> dict[str, Effect]:
    """Return the effect of each command on a cluster, by its words after `l0gc`, e.g. `topic create`."""
    by_command = dict[str, Effect]()
    for name, command in COMMANDS.items():
        if isinstance(command.effect, tuple):
            by_command[name] = command.effect
        else:
            by_command |= {f"{name} {leaf}": effect for leaf, effect in command.effect.items()}
    return by_command


def load(name: str) -> click.Command:
    """Return the command with this name from its module, which may have several commands."""
    module = importlib.import_module(f"l0gc.cli.{COMMANDS[name].module}")
    command = getattr(module, f"{name.replace('-', '_')}_command", None) or module.command
    assert isinstance(command, click.Command)
    return command


class LazyGroup(Command, click.Group):
    """A group that lists its commands by name, and imports each on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return load(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            hint = suggestion(name, COMMANDS, "l0gc --help lists the commands")
            raise click.UsageError(f"Command {name!r} does not exist; {hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command without the empty line that click prints on Ctrl-C."""
        with signals.stop_on_interrupt(lambda: "running the command again is safe"):
            return super().invoke(ctx)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the names of the commands, without importing them, and then the group's own options."""
        names = [CompletionItem(n, help=c.text) for n, c in COMMANDS.items() if n.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands first, then the global options, which the commands take."""
        for group in GROUPS:
            with formatter.section(group):
                formatter.write_dl([(name, c.text) for name, c in COMMANDS.items() if c.group == group])
        super().format_options(ctx, formatter)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@options(GLOBAL_OPTIONS)
@click.version_option(__version__, prog_name="l0gc")
def cli(**_: Any) -> None:
    """Garbage collection for level-zero objects in object storage.

    \b
    Example:
      export L0GC_URL=s3://bucket/prefix
      l0gc init && l0gc topic create events --partitions 8
      l0gc upload events events.ndjson
      l0gc reconcile && l0gc housekeep && l0gc compute-watermark
      l0gc sweep --dry-run
    """


def main() -> None:
    """Run a command and exit with its code."""
    signals.listen()
    use_one_arena()
    _open_what_is_closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=UNENCODABLE)
    # Arrow's own allocator keeps freed memory for each thread, 40 MiB in an upload. pyarrow reads this on its first
    # import.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy would start threads for work that l0gc does not have
    verbose = any(a == "--verbose" or (a.startswith("-v") and set(a[1:]) == {"v"}) for a in sys.argv[1:])
    logs.set_up(_log_format(sys.argv[1:]), 0, "", "")  # for errors before the command begins
    try:
        code = _run()
    except (click.exceptions.Abort, KeyboardInterrupt) as e:
        code = _fail("stopped: running the command again is safe", exit_code_of(e))
    except click.ClickException as e:
        e.message = escaped(without_secrets(e.message))  # type: ignore[misc]  # it is about to be shown, and to nobody else
        if logs.HANDLER.format_name == logs.JSON:
            code = _fail(e.format_message(), e.exit_code)
        else:
            _show(e)
            code = e.exit_code
    except OutputFailedError as e:
        _give_up_stdout()
        code = _fail(str(e), e.exit_code, trace=verbose)
    except L0gcError as e:
        code = _fail(str(e), e.exit_code, trace=verbose)
    except OutputClosedError as e:
        _give_up_stdout()
        code = e.exit_code
    except OSError as e:
        code = _fail(_of_stdout(e) or _of_this_machine(e), 1, trace=verbose)
    except Exception as e:  # noqa: BLE001 - the last resort: one sentence, and the traceback with -v
        code = _fail(f"{unexpected(e)} (run it with -v for the traceback)", 1, trace=verbose)
    code = code if isinstance(code, int) else 0
    signals.ended(code)
    sys.exit(code)


def _run() -> Any:
    try:
        return cli.main(prog_name="l0gc", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as e:
        click.echo(e.ctx.get_help(), color=e.ctx.color)  # a group without a command shows its help
        return 0


def _show(e: click.ClickException) -> None:
    """Show an error in the command line as click does, but break lines between words."""
    if isinstance(e, click.UsageError) and e.ctx is not None:
        click.echo(f"{e.ctx.get_usage()}\nTry '{e.ctx.command_path} --help' for help.\n", err=True)
    for line in fitted([f"Error: {e.format_message()}"], 7, sys.stderr):
        click.echo(line, err=True)


def _open_what_is_closed() -> None:
    """Open stdin, stdout and stderr if the caller closed them, since the next file or connection would get their
    numbers.

    stdin and stdout are opened in the opposite direction, so that their use fails as if they were closed.
    """
    for number, name, flags, mode in (
        (0, "stdin", os.O_WRONLY, "r"),
        (1, "stdout", os.O_RDONLY, "w"),
        (2, "stderr", os.O_WRONLY, "w"),
    ):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, flags), number, inheritable=True)  # the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def _give_up_stdout() -> None:
    """Discard the rest of stdout's buffer, so that the flush at exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _of_stdout(e: OSError) -> str:
    """Return a sentence about stdout if click failed to write help to it. Other output raises other errors."""
    if not any(frame.f_code is click.echo.__code__ for frame, _ in traceback.walk_tb(e.__traceback__)):
        return ""
    _give_up_stdout()
    return f"stdout could not be written: {'it is closed' if e.errno == errno.EBADF else e.strerror}"


def _of_this_machine(e: OSError) -> str:
    """Return a sentence about a local file, folder or disk that failed. No other `OSError` gets here."""
    where, said = str(e.filename or ""), e.strerror or str(e)
    if e.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no space left{f' for {where}' if where else ''}: free some, or set TMPDIR to a folder that has more"
    if e.errno == errno.EBADF:
        return "stdin is closed, and the command reads from it"
    if "temporary directory" in said:
        return f"{said[:1].lower()}{said[1:]}: set TMPDIR to a writable folder"
    return f"{where}: {said}" if where else f"unexpected {type(e).__name__}: {said} (run it with -v for the traceback)"


def _log_format(args: list[str]) -> str:
    """Return the requested log format, if it can be read before the command is known."""
    log_format = os.environ.get("L0GC_LOG_FORMAT", logs.TEXT)
    for option, value in zip(args, [*args[1:], ""], strict=False):
        name, given, inline = option.partition("=")
        if name == "--log-format":
            log_format = inline if given else value
    return log_format if log_format in logs.FORMATS else logs.TEXT


def _fail(message: str, code: int, *, trace: bool = False) -> int:
    fields = {}
    if code == INTERRUPTED and sys.stderr.isatty():
        click.echo("\r", err=True, nl=False)  # overwrites the ^C that the terminal shows
    if trace and logs.HANDLER.format_name == logs.JSON:
        fields["traceback"] = traceback.format_exc()
    elif trace:
        for line in without_secrets(traceback.format_exc()).splitlines():
            click.echo(escaped(line), err=True)
    logs.error(message, code, **fields)
    return code
