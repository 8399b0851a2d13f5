"""All checks, and those of the cluster that is in the bucket, if one is there: its format, logs, topics and watermark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from l0gc.epoch import NO_WATERMARK
from l0gc.errors import NotInitialisedError, SafetyError
from l0gc.formatting import count
from l0gc.inspect.doctor import checkup, store
from l0gc.inspect.doctor.checkup import FAILURE, Check, DoctorResult, failure, guarded, ok, warning
from l0gc.inspect.journals import Journals, read_journals
from l0gc.inspect.verify.findings import Kind
from l0gc.inspect.verify.rules import Basis, check_places
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.controller.state import ControllerState
from l0gc.streamlog.format import check_format
from l0gc.watermark.publication import read_published, watermark_of

_SHOWN: Final = 5
_OLD_CONTROLLER: Final = "the controller log is older than that: restore the newest one (docs/operations.md)"


def examine(handles: Handles, bucket: S3Store, progress: Callable[[str], None]) -> DoctorResult:
    """Make all checks; `progress` is called with the name of each part before."""
    parts: list[tuple[str, Callable[[], Iterable[Check]], str]] = [
        ("java", checkup.java, "install Java 17 or newer"),
        ("spark", checkup.spark, "pip install l0gc"),
        ("versions", checkup.versions, "pip install l0gc"),
        ("bucket", lambda: store.reachable(bucket, handles.runtime), "then run l0gc doctor again, for the rest"),
        ("permissions", lambda: store.permissions(bucket, handles.runtime), "check the credentials' policy"),
        ("settings", lambda: store.settings(bucket), "ask the owner of the bucket"),
        ("store", lambda: store.promises(bucket, handles.runtime), "see what the store says above"),
        ("cluster", lambda: cluster(handles), "see docs/operations.md, recovery"),
    ]
    checks: list[Check] = []
    for name, check, remedy in parts:
        progress(name)
        found = guarded(name, check, remedy)
        checks += found
        if name == "bucket" and any(c.status == FAILURE for c in found):
            break  # without a bucket the rest says the same over and over
    return DoctorResult(checks)


_unsafe: Final = partial(failure, exit_code=SafetyError.exit_code)
"""A failure over which the commands would refuse to go on."""


def cluster(handles: Handles) -> Iterator[Check]:
    """Whether it exists, whether its logs can be read, and whether they and M fit together (hazards 10 and 11).

    Raises:
        UnsupportedFormatError, CorruptObjectError: its format or its controller log cannot be read, so nothing is known.
    """
    form = check_format(handles.store)
    try:
        state = handles.controller.snapshot()
    except NotInitialisedError:
        yield warning("cluster", "not founded yet", "l0gc init")
        return
    topics = f"{count(len(state.topics), 'topic')} with {count(state.partition_count, 'partition')}"
    log = "an external log" if state.external_log else f"epoch {state.epoch}, {topics}"
    yield ok("cluster", f"{state.cluster_id}, {log}, {count(state.shards, 'shard')}")
    if form is not None:
        yield ok("format", f"version {form.version}, with {form.etags} ETags")
    if not state.external_log:
        yield from _journals(handles, state)
    yield from _watermark(handles)


def _journals(handles: Handles, state: ControllerState) -> Iterator[Check]:
    """Every journal is replayed, also those without a topic: what the controller has forgotten may lie in any of them."""
    journals = read_journals(handles, state, NO_WATERMARK)
    errors = journals.errors
    for error in errors[:_SHOWN]:
        yield _unsafe("journals", error, "restore the named object from a version or a backup; M waits until then")
    if len(errors) > _SHOWN:
        yield _unsafe("journals", f"{len(errors) - _SHOWN} more cannot be read", "run l0gc verify, which names all")
    if not errors:
        used = len(state.journals_in_use())
        yield ok("journals", f"{count(state.journals, 'journal')} can be read, {used} in use")
    yield from _placement(journals, state)
    epoch, where = journals.highest()
    # Read last: journals go on with the epoch while they are read.
    if epoch > (now := handles.controller.snapshot().epoch):
        yield _unsafe("epoch", f"{where} is at epoch {epoch}, above the cluster epoch {now}", _OLD_CONTROLLER)


def _placement(journals: Journals, state: ControllerState) -> Iterator[Check]:
    basis = Basis(state, NO_WATERMARK, 0)
    wrong = [
        s
        for r in journals.readings
        if r.state is not None
        for s in check_places(r.journal, r.state, basis)
        if s.kind in {Kind.TOPIC_MISPLACED, Kind.TOPIC_UNKNOWN}
    ]
    for s in wrong[:_SHOWN]:
        yield _unsafe("placement", f"journal {s.journal}: {s.detail}", s.kind.next_step)
    if len(wrong) > _SHOWN:
        yield _unsafe("placement", f"{len(wrong) - _SHOWN} more like these", "run l0gc verify, which names all")
    if not wrong:
        yield ok("placement", "every topic is in the journals that the controller has placed it in")


def _watermark(handles: Handles) -> Iterator[Check]:
    state = handles.controller.snapshot()
    try:
        published, _ = read_published(handles.store, state.cluster_id)
    except SafetyError as e:
        yield _unsafe("watermark", str(e), "stop sweeps until you know who wrote it")
        return
    if published is None:
        yield ok("watermark", "nothing is published yet")
        return
    # Of an external log the epoch that was published with M is all that is known. Another one is read again: M may have been
    # published since the snapshot.
    epoch = published.cluster_epoch if state.external_log else handles.controller.snapshot().epoch
    known = max(watermark_of(published), published.cluster_epoch)
    if known > epoch:
        text = f"M = {published.watermark} is published with cluster epoch {published.cluster_epoch}, above {epoch}"
        yield _unsafe("watermark", text, _OLD_CONTROLLER)
    else:
        yield ok("watermark", f"M = {published.watermark}")
