"""`l0gc upload`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from l0gc.cli.metrics_options import metrics_options
from l0gc.cli.names import PRODUCER, TOPIC
from l0gc.cli.options import FILE, common_options, library
from l0gc.cli.output import Output
from l0gc.cli.signals import exit_code_of
from l0gc.cli.units import Size
from l0gc.errors import StoppedError
from l0gc.formatting import count, size
from l0gc.settings import Settings
from l0gc.streamlog.ingest.formats import AUTO, FORMATS

if TYPE_CHECKING:
    from l0gc.streamlog.ingest.result import UploadResult


@click.command("upload")
@click.argument("topic", type=TOPIC)
@click.argument("files", nargs=-1, required=True, type=FILE, metavar="FILE...")
@click.option("--partition", type=int, metavar="N", help="Everything to partition N.")
@click.option("--key-field", metavar="F", help="To the partition that field F of the JSON record hashes to; its key.")
@click.option(
    "--producer", type=PRODUCER, metavar="NAME", help="Makes a cut-off upload repeatable: no record twice, none lost."
)
@click.option("--batch-bytes", type=Size(), default="4MiB", show_default=True, help="Records in one L0 object.")
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default=AUTO, show_default=True,
    help="auto: lines of text, also gzip and zstd; refuses anything else. raw: any bytes, cut at newlines.",
)  # fmt: skip
@common_options
@metrics_options
def command(
    settings: Settings,
    topic: str,
    files: tuple[str, ...],
    partition: int | None,
    key_field: str | None,
    producer: str | None,
    batch_bytes: int,
    form: str,
) -> None:
    """Upload newline-delimited records (- is stdin) into TOPIC.

    Without --partition and --key-field, records are spread round-robin over the partitions. Files that are packed with
    gzip or zstd are unpacked; a file is the same input to --producer whether it is packed or not. A UTF-8 byte order
    mark is dropped.

    \b
    Example:
      l0gc upload events day-1.ndjson day-2.ndjson.gz --key-field user --producer nightly
      tail -n +1 log.ndjson | l0gc upload events - --partition 0
    """
    out = Output(settings)
    with library(settings) as cluster, out.progress(f"uploading to {topic}") as show:
        try:
            result = cluster.upload(
                topic,
                *files,
                partition=partition,
                key_field=key_field,
                producer=producer,
                batch_bytes=batch_bytes,
                format=form,
                progress=show,
            )
        except BaseException as e:
            _explain(out, e, repeatable=producer is not None)
            raise
    out.measure({"fence": dataclasses.asdict(result.fence)})
    text = f"{count(result.records, 'record')} ({size(result.bytes)}) in {count(len(result.objects), 'L0 object')}, "
    text += count(len(result.placeholders), "placeholder")
    if result.skipped and not result.records:
        text = f"nothing new: all {count(result.skipped, 'record')} had landed before"
    elif result.skipped:
        text += f"; {result.skipped:,} had landed before"
    if result.retries:
        text += f"; {count(result.retries, 'batch', 'batches')} stamped anew"
    out.result(result.to_json(), [text])


def _explain(out: Output, e: BaseException, *, repeatable: bool) -> None:
    """What was committed before `e`: for the metrics, and as a sentence. Raises `StoppedError` if a signal ended it."""
    done: UploadResult | None = getattr(e, "result", None)
    if done is None:
        return
    out.measure({**done.to_json(), "fence": dataclasses.asdict(done.fence)})
    if not done.records:
        return
    again = "repeat it as it was: nothing lands twice" if repeatable else "they would land again if repeated"
    committed = f"{count(done.records, 'record')} before that are committed and stay; {again}"
    if isinstance(e, KeyboardInterrupt):
        raise StoppedError(f"stopped: {committed}", exit_code_of(e)) from e
    out.note(committed)
