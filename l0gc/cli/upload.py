"""`l0gc upload`."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import click

from l0gc.cli.exit_codes import INTERRUPTED
from l0gc.cli.metrics_options import metrics_options
from l0gc.cli.options import FILE, Size, common_options, open_cluster
from l0gc.cli.output import Output
from l0gc.errors import StoppedError
from l0gc.figures import count, size
from l0gc.settings import Settings

if TYPE_CHECKING:
    from l0gc.streamlog.ingest.result import UploadResult
    from l0gc.streamlog.ingest.uploader import Uploader


@click.command("upload")
@click.argument("topic")
@click.argument("files", nargs=-1, required=True, type=FILE, metavar="FILE...")
@click.option("--partition", type=int, metavar="N", help="Everything to partition N.")
@click.option("--key-field", metavar="F", help="To the partition that field F of the JSON record hashes to; its key.")
@click.option("--producer", metavar="NAME", help="Makes a cut-off upload repeatable: no record twice, none lost.")
@click.option("--batch-bytes", type=Size(), default="4MiB", show_default=True, help="Records in one L0 object.")
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
) -> None:
    """Upload newline-delimited records (- is stdin) into TOPIC.

    Without --partition and --key-field, records go to the partitions in turn.

    \b
    Example:
      l0gc upload events day-1.ndjson day-2.ndjson --key-field user --producer nightly
      tail -n +1 log.ndjson | l0gc upload events - --partition 0
    """
    from l0gc.streamlog.ingest.job import open_upload

    out = Output(settings)
    with contextlib.ExitStack() as stack:
        cluster, _ = stack.enter_context(open_cluster(settings))
        show = stack.enter_context(out.progress(f"uploading to {topic}"))
        landed = [0, 0]

        def progress(records: int, n: int) -> None:
            landed[0] += records
            landed[1] += n
            show(f"{count(landed[0], 'record')}, {size(landed[1])}")

        uploader, inputs = open_upload(
            cluster,
            topic,
            files,
            stack,
            partition=partition,
            key_field=key_field,
            producer=producer,
            batch_bytes=batch_bytes,
            progress=progress,
        )
        stack.callback(_measure, out, uploader)
        try:
            result = uploader.run(inputs)
        except BaseException as e:
            if landed[0]:
                again = "repeat it as it was: nothing lands twice" if producer else "they would land again if repeated"
                out.note(f"{count(landed[0], 'record')} before that are committed and stay; {again}")
                if isinstance(e, KeyboardInterrupt):
                    raise StoppedError("the upload was stopped", INTERRUPTED) from e
            raise
    placeholders = len(result.placeholders)
    out.result(
        _data(result, result.placeholders.json() if out.tells_data else placeholders),
        [
            f"{count(result.records, 'record')} ({size(result.bytes)}) in {count(len(result.objects), 'L0 object')}, "
            f"{count(placeholders, 'placeholder')}"
            + (f"; {result.skipped:,} had landed before" if result.skipped else "")
            + (f"; {count(result.retries, 'batch', 'batches')} stamped anew" if result.retries else "")
        ],
    )
    out.measure({"placeholders": placeholders})


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
    fences = sum_of(journal.fence.counters for journal in uploader.journals)
    out.measure({**_data(result, len(result.placeholders)), "fence": dataclasses.asdict(fences)})
