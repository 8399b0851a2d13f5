"""`l0gc upload`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from l0gc.cli.metrics_options import metrics_options
from l0gc.cli.names import PRODUCER, TOPIC
from l0gc.cli.options import FILE, common_options, open_cluster
from l0gc.cli.output import Output
from l0gc.cli.signals import code_of
from l0gc.cli.units import Size
from l0gc.errors import StoppedError
from l0gc.formatting import count, size
from l0gc.settings import Settings
from l0gc.streamlog.ingest.formats import AUTO, FORMATS, plain_size

if TYPE_CHECKING:
    from l0gc.streamlog.ingest.inputs import Input
    from l0gc.streamlog.ingest.result import UploadResult
    from l0gc.streamlog.ingest.uploader import Uploader


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
    from l0gc.streamlog.ingest.job import open_upload

    out = Output(settings)
    with contextlib.ExitStack() as stack:
        cluster, _ = stack.enter_context(open_cluster(settings))
        show = stack.enter_context(out.progress(f"uploading to {topic}"))
        landed = [0, 0]
        total: int | None = None

        def progress(records: int, n: int) -> None:
            landed[0] += records
            landed[1] += n
            done = landed[0] + landed[1]  # what ends a record is a byte of its file; the last one may lack it
            done = done if total is None else min(done, total)
            show(f"{count(landed[0], 'record')}, {size(landed[1])}", done=done, total=total)

        uploader, inputs = open_upload(
            cluster,
            topic,
            files,
            stack,
            partition=partition,
            key_field=key_field,
            producer=producer,
            batch_bytes=batch_bytes,
            form=form,
            progress=progress,
        )
        stack.callback(_measure, out, uploader)
        total = _total(files, inputs, form)
        try:
            result = uploader.run(inputs)
        except BaseException as e:
            if landed[0]:
                again = "repeat it as it was: nothing lands twice" if producer else "they would land again if repeated"
                committed = f"{count(landed[0], 'record')} before that are committed and stay; {again}"
                if isinstance(e, KeyboardInterrupt):
                    raise StoppedError(f"stopped: {committed}", code_of(e)) from e
                out.note(committed)
            raise
    placeholders = len(result.placeholders)
    text = f"{count(result.records, 'record')} ({size(result.bytes)}) in {count(len(result.objects), 'L0 object')}, "
    text += count(placeholders, "placeholder")
    if result.skipped and not result.records:
        text = f"nothing new: all {count(result.skipped, 'record')} had landed before"
    elif result.skipped:
        text += f"; {result.skipped:,} had landed before"
    if result.retries:
        text += f"; {count(result.retries, 'batch', 'batches')} stamped anew"
    out.result(_data(result, result.placeholders.json() if out.tells_data else placeholders), [text])
    out.measure({"placeholders": placeholders})


def _total(files: Sequence[str], inputs: Sequence[Input], form: str) -> int | None:
    """How many bytes there are to upload; None where nobody knows before the end, as of stdin."""
    sizes = [i.size if i.size is not None else plain_size(f, form) for f, i in zip(files, inputs, strict=True)]
    known = [n for n in sizes if n is not None]
    return sum(known) if len(known) == len(sizes) else None


def _data(result: UploadResult, placeholders: Any) -> dict[str, Any]:
    return {
        "records": result.records,
        "bytes": result.bytes,
        "skipped": result.skipped,
        "objects": result.objects,
        "placeholders": placeholders,
        "retries": result.retries,
    }


def _measure(out: Output, uploader: Uploader) -> None:
    """What an upload did, also one that failed, and what its fences did."""
    from l0gc.streamlog.journal.fence import sum_of

    result = uploader.result
    fences = sum_of([journal.fence.counters for journal in uploader.journals])
    out.measure({**_data(result, len(result.placeholders)), "fence": dataclasses.asdict(fences)})
