"""`l0gc upload`, and `l0gc producer describe|list`, which show the positions of uploads."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from l0gc.api import Cluster
from l0gc.cli.globals import FILE, CommandGroup, cli_command, epoch_interval_option
from l0gc.cli.metrics_options import metrics_options
from l0gc.cli.options import PRODUCER, TOPIC, cluster_options, operation_options
from l0gc.cli.output import Output, epoch
from l0gc.cli.signals import exit_code_of
from l0gc.errors import StoppedError
from l0gc.formatting import count, moment, size
from l0gc.operations import Upload

if TYPE_CHECKING:
    from l0gc.streamlog.ingest.result import UploadResult
    from l0gc.streamlog.producers import JournalView, ProducerList, ProducerView


@cli_command("upload")
@click.argument("topic", shell_complete=TOPIC)
@click.argument("files", nargs=-1, required=True, type=FILE, metavar="FILE...")
@operation_options(Upload)
@cluster_options(metrics_options, epoch_interval_option)
def upload_command(
    out: Output, cluster: Cluster, topic: str, files: tuple[str, ...], producer: str | None, **options: Any
) -> None:
    """Upload newline-delimited records (- is stdin) into TOPIC.

    Without --partition and --key-field, records are spread round-robin over the partitions, starting at a random one.
    gzip and zstd files are unpacked; for --producer, a file is the same input whether packed or not. A UTF-8 byte order
    mark is removed.

    \b
    Example:
      l0gc upload events day-1.ndjson day-2.ndjson.gz --key-field user
      tail -n +1 log.ndjson | l0gc upload events - --partition 0
    """
    upload = partial(cluster.upload, topic, *files, producer=producer, **options)
    try:
        out.finish(upload, _uploaded, title=f"uploading to {topic}", reports=True)
    except BaseException as e:
        done: UploadResult | None = vars(e).get("so_far")
        if done is None or not done.records:
            raise
        again = "they would land again if repeated" if producer is None else "repeat it as it was: nothing lands twice"
        committed = f"{count(done.records, 'record was', 'records were')} committed before that; {again}"
        if isinstance(e, KeyboardInterrupt):
            raise StoppedError(f"stopped: {committed}", exit_code_of(e)) from e
        out.note(committed)
        raise


def _uploaded(result: UploadResult) -> list[str]:
    text = f"{count(result.records, 'record')} ({size(result.bytes)}) in {count(len(result.objects), 'L0 object')}, "
    text += count(len(result.placeholders), "placeholder")
    if result.skipped and not result.records:
        text = f"nothing new: {count(result.skipped, 'record')} had landed before"
    elif result.skipped:
        text += f"; {result.skipped:,} had landed before"
    if result.retries:
        text += f"; {count(result.retries, 'batch', 'batches')} stamped anew"
    return [text]


_INPUTS_SHOWN: Final = 3
_DIGITS_SHOWN: Final = 12


@click.group("producer", cls=CommandGroup)
def producer_command() -> None:
    """Show producers, and the positions of their uploads.

    \b
    Example:
      l0gc producer list
      l0gc producer describe nightly
    """


@producer_command.command("describe")
@click.argument("name", shell_complete=PRODUCER)
@cluster_options()
def describe(out: Output, cluster: Cluster, name: str) -> None:
    """Show the newest run of producer NAME, and its position in each journal.

    \b
    Example:
      l0gc producer describe nightly
    """
    out.finish(lambda: cluster.producers.describe(name), _described, title="reading", indent=13)


@producer_command.command("list")
@cluster_options()
def list_all(out: Output, cluster: Cluster) -> None:
    """List the producers that the controller has recorded.

    \b
    Example:
      l0gc producer list
    """

    def lines(producers: ProducerList) -> list[str]:
        shown = [
            f"{p.name}  id {p.producer_id}  epoch {p.epoch}  last run {moment(p.began_ms)}" for p in producers.producers
        ]
        return shown or ["no producers exist; l0gc upload --producer NAME creates one"]

    out.finish(cluster.producers.list, lines)


def _described(view: ProducerView) -> list[str]:
    lines = [
        f"producer     {view.name}: id {view.producer_id}, epoch {view.epoch}, last epoch {epoch(view.last_epoch)}",
        f"began        {moment(view.began_ms)}; last used {moment(view.last_used_ms)}",
        f"expires      {moment(view.expires_ms)}, unless another run begins before",
    ]
    for j in view.journals:
        lines += _journal(j)
    if view.unknown_journals:
        begin = "it may begin there" if view.may_begin else "the run is too old to begin there, upload again"
        lines.append(f"unknown      in {count(view.unknown_journals, 'journal')}; {begin}")
    return [*lines, *(f"broken       {e}" for e in view.errors)]


def _journal(j: JournalView) -> list[str]:
    state = f"epoch {j.epoch}, next sequence {j.next_sequence}, last landed {moment(j.last_landed_ms)}"
    rest = [j.meaning]
    rest += [f"input {_short(i.input)}: {count(i.landed, 'record')} landed" for i in j.inputs[:_INPUTS_SHOWN]]
    if (more := len(j.inputs) - _INPUTS_SHOWN) > 0:
        rest.append(f"and {count(more, 'input')} before (--json has them)")
    return [f"journal {j.journal:<4} {state}", *(f"{'':13}{line}" for line in rest)]


def _short(input_id: str) -> str:
    """Return the shortened hash, and the number after the point, which counts inputs with the same content."""
    digest, point, nth = input_id.partition(".")
    return digest[:_DIGITS_SHOWN] + point + nth
