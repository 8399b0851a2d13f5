"""`l0gc upload`."""

from __future__ import annotations

import contextlib
import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import click

from l0gc.cli.exit_codes import INTERRUPTED
from l0gc.cli.metrics_options import metrics_options
from l0gc.cli.options import FILE, Size, common_options, open_cluster
from l0gc.cli.output import Output
from l0gc.errors import StoppedError, UsageError
from l0gc.figures import count, size
from l0gc.settings import Settings

if TYPE_CHECKING:
    from l0gc.streamlog.ingest.uploader import Uploader, UploadResult

_PACKERS = 2


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
    from l0gc.streamlog.ingest.inputs import open_inputs
    from l0gc.streamlog.ingest.partitioner import ByField, FixedPartition, InTurn, Partitioner
    from l0gc.streamlog.ingest.uploader import ProducerSession, Uploader
    from l0gc.watermark.reports import publish_reports, report_of

    if partition is not None and key_field is not None:
        raise UsageError("--partition and --key-field exclude each other")
    out = Output(settings)
    with contextlib.ExitStack() as stack:
        cluster, store = stack.enter_context(open_cluster(settings))
        cluster.controller.tick_if_due()
        state = cluster.controller.snapshot()
        target = state.topic(topic)
        spread: Partitioner = (
            FixedPartition(partition, target.partitions)
            if partition is not None
            else ByField(key_field, target.partitions)
            if key_field is not None
            else InTurn(target.partitions)
        )
        inputs = open_inputs(files, spread.describe() if producer is not None else None, stack)
        session = None
        if producer is not None:
            p = cluster.controller.init_producer(producer)
            session = ProducerSession(producer, p.producer_id, p.epoch)
        packers = stack.enter_context(ThreadPoolExecutor(_PACKERS, "pack"))
        committer = stack.enter_context(ThreadPoolExecutor(1, "commit"))
        show = stack.enter_context(out.progress(f"uploading to {topic}"))
        landed = [0, 0]

        def progress(records: int, n: int) -> None:
            landed[0] += records
            landed[1] += n
            show(f"{count(landed[0], 'record')}, {size(landed[1])}")

        uploader = Uploader(
            cluster,
            target,
            spread,
            packers=packers,
            committer=committer,
            batch_bytes=batch_bytes,
            producer=session,
            progress=progress,
        )
        stack.callback(_measure, out, uploader)
        try:
            result = uploader.run(inputs)
            reports = []
            for handle in uploader.touched.values():
                with handle.replica.lock:
                    reports.append(report_of(state.cluster_id, handle.partition, handle.state, handle.replica.offset))
            publish_reports(store, cluster.runtime, "upload", reports)
        except BaseException as e:
            if landed[0]:
                again = "repeat it as it was: nothing lands twice" if producer else "they would land again if repeated"
                out.note(f"{count(landed[0], 'record')} before that are committed and stay; {again}")
                if isinstance(e, KeyboardInterrupt):
                    raise StoppedError("the upload was stopped", INTERRUPTED) from e
            raise
    out.result(
        _data(result),
        [
            f"{count(result.records, 'record')} ({size(result.bytes)}) in {count(len(result.objects), 'L0 object')}, "
            f"{count(len(result.placeholders), 'placeholder')}"
            + (f"; {result.skipped:,} had landed before" if result.skipped else "")
            + (f"; {count(result.retries, 'batch', 'batches')} stamped anew" if result.retries else "")
        ],
    )


def _data(result: UploadResult) -> dict[str, Any]:
    return {
        "records": result.records,
        "bytes": result.bytes,
        "skipped": result.skipped,
        "objects": result.objects,
        "placeholders": result.placeholders,
        "retries": result.retries,
    }


def _measure(out: Output, uploader: Uploader) -> None:
    """What an upload did, also one that failed, and what its fences did."""
    from l0gc.streamlog.journal.fence import sum_of

    fences = sum_of(handle.fence.counters for handle in uploader.touched.values())
    out.measure({**_data(uploader.result), "fence": dataclasses.asdict(fences)})
