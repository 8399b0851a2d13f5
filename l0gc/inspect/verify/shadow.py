"""Verify that no object in the records of shadow runs was needed later. Records and logs are read, and data is not
listed.

The record of a shadow run has the objects that a sweep would have deleted. If one of them was needed later, it is named
by a partition that waits for it, an entry that landed after the run's M, a pin with a lower M, or the store's access
log. Therefore the records are listed first and the journals read afterwards. Each recorded object is looked up among
the objects that the journals name at or below the highest recorded epoch; a healthy cluster has no such objects.

An entry that named an object and was truncated after its records were lifted is not read. These entries are counted,
and are few if this check runs daily. A journal that was set back or is damaged names too little, which is also a
finding.
"""

from __future__ import annotations

import heapq
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple
from urllib.parse import unquote

import msgspec
import numpy as np

from l0gc.collect.history import KEEP_RUNS, RunEntry, list_runs, shadowed
from l0gc.epoch import NO_WATERMARK
from l0gc.errors import CorruptObjectError, NotFoundError, ObjectNotFoundError, UsageError
from l0gc.formatting import count, moment
from l0gc.inspect.verify.findings import (
    DOUBTFUL,
    ClusterSnapshot,
    Kind,
    ShadowProof,
    Suspect,
    VerifyResult,
    check_journal,
    described,
    of_object,
    placed,
    unread_log,
)
from l0gc.inspect.verify.replay import read_copy
from l0gc.inspect.verify.run import MAX_FINDINGS, confirm, finding_order, read_snapshot, result_of
from l0gc.keys import CONTROLLER_LOG, journal_log
from l0gc.redaction import without_secrets
from l0gc.storage.entry import Place
from l0gc.storage.log import SharedLog
from l0gc.storage.objectstore import LocalFolder, ObjectStore
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import Pin
from l0gc.streamlog.journal.entries import Objects, decode_journal_entry
from l0gc.streamlog.journal.rows import NUMBER, unpack
from l0gc.streamlog.journal.summary import unit_name
from l0gc.watermark.source import LogEnd

_ENTRIES_AT_ONCE: Final = 64
_ACCESS: Final = re.compile(
    r"\S+ (?P<bucket>\S+) \[(?P<time>[^\]]+)\] \S+ (?P<requester>\S+) \S+ (?P<operation>[A-Z][A-Z0-9]*\.\S+) (?P<key>\S+) "
    r'(?:"[^"]*"|-) (?P<status>[0-9]{3}|-) '
)
"""The start of a line of an S3 server access log, up to the status of the reply."""
_READS: Final = (".GET.OBJECT", "_GET", ".SELECT.OBJECT")
"""The endings of the names of operations that read an object, including those that copy it."""
_SECOND_MS: Final = 1000


class AccessLogs(NamedTuple):
    """S3 server access logs, with the relevant bucket and folder."""

    source: ObjectStore | LocalFolder
    url: str
    bucket: str
    prefix: str


class LoggedRead(NamedTuple):
    """A successful request for an object's bytes."""

    key: str
    ms: int
    text: str


@dataclass(slots=True)
class _Needs:
    """The needs of objects at or below `limit`, by key: waiting partitions, entries (as suspects with journal and
    offset), and reads.
    """

    limit: int
    waiting: dict[str, list[Suspect]] = field(default_factory=dict)
    landed: dict[str, list[tuple[int, Suspect]]] = field(default_factory=dict)
    reads: dict[str, list[LoggedRead]] = field(default_factory=dict)


def verify_shadow(cluster: ClusterHandles, logs: AccessLogs | None = None) -> VerifyResult:
    """Find the objects in the records of shadow runs that were needed.

    Raises:
        NotFoundError: no shadow run is on record.
        NotInitialisedError, ClusterMismatchError, CorruptObjectError, StoreError: see `verify`.
        UsageError: the files are not access logs.
    """
    started = time.monotonic()
    runs, _ = list_runs(cluster.store, KEEP_RUNS, parallel=cluster.parallel, shadow=True)
    if not runs:
        raise NotFoundError(
            "no shadow run is on record, so there is nothing to verify; l0gc sweep --shadow and l0gc gc --shadow leave one"
        )
    now_ms = cluster.store.now_ms()
    snapshot, suspects = read_snapshot(cluster, now_ms, young_after_ms=0)
    bounds = [r.summary.bound for r in runs if r.summary is not None]
    needs = _Needs(max([snapshot.watermark, *bounds]))
    proof = ShadowProof(runs=len(runs), since_ms=runs[0].started_ms, until_ms=now_ms)
    for journal in range(snapshot.state.journals):
        suspects += _read_journal(cluster, snapshot, journal, runs, needs, proof)
    if logs is not None:
        _read_access_logs(cluster, snapshot, logs, needs, proof)
    pins = [p for p in snapshot.state.pins.values() if p.in_effect and not p.level_one]
    for run in runs:
        suspects += _needed(cluster, run, pins, needs, proof)

    findings = confirm(cluster, snapshot, suspects)
    proof.sum_up(
        "none was needed" if not findings else f"stop: {count(len(findings), 'finding')} of l0gc verify --shadow"
    )
    first = heapq.nsmallest(MAX_FINDINGS, findings, key=finding_order)
    result = result_of(snapshot, Counter(s.kind for s in findings), first, deep=False)
    result.shadow, result.seconds = proof, time.monotonic() - started
    return result


def _needed(
    cluster: ClusterHandles, run: RunEntry, pins: Sequence[Pin], needs: _Needs, proof: ShadowProof
) -> Iterator[Suspect]:
    """Yield a suspect for each object in a run's record that is needed, or was needed since the run."""
    ends, bound = (run.summary.ends, run.summary.bound) if run.summary is not None else ({}, NO_WATERMARK)
    for pin in pins:
        if pin.watermark < bound:
            text = f"pin {pin.name!r} holds M at {pin.watermark}"
            yield _of_run(Suspect(Kind.SHADOW_NEEDED, key=CONTROLLER_LOG, detail=text), run)
    for row in shadowed(cluster.store, run.run_id, cluster.parallel):
        proof.objects += 1
        proof.bytes += row.size
        waiting = needs.waiting.get(row.key, ())
        yield from (_of_run(s, run) for s in waiting)
        for offset, s in needs.landed.get(row.key, ()) if not waiting else ():
            if offset > _end_of(ends, s.journal, offset):
                yield _of_run(s, run)
        for read in needs.reads.get(row.key, ()):
            if read.ms + _SECOND_MS > run.started_ms:  # times in the access log are in whole seconds
                yield _of_run(Suspect(Kind.SHADOW_READ, key=row.key, detail=read.text), run)


def _of_run(s: Suspect, run: RunEntry) -> Suspect:
    return msgspec.structs.replace(s, detail=f"{s.detail}, and run {run.run_id} would have deleted what that needs")


def _end_of(ends: dict[str, LogEnd], journal: int, unknown: int) -> int:
    """Return the offset at which a journal's log ended in a run's record, or `unknown`."""
    return ends.get(unit_name(journal), (0, Place(unknown)))[1].offset


# -- journals ------------------------------------------------------------------------------------------------------------


def _read_journal(
    cluster: ClusterHandles,
    snapshot: ClusterSnapshot,
    journal: int,
    runs: Sequence[RunEntry],
    needs: _Needs,
    proof: ShadowProof,
) -> list[Suspect]:
    """Add the objects that a journal needs, or that landed in it since the first run. Return faults that make the
    journal doubtful.
    """
    try:
        copy = read_copy(cluster, journal, snapshot.published)
    except CorruptObjectError as e:
        return [unread_log(journal, e)]
    layout, live = snapshot.layout, placed(copy, snapshot)
    for topic, state in live:
        for o, epoch in zip(state.objects, layout.epochs([o.key for o in state.objects]), strict=True):
            if epoch <= needs.limit:
                s = of_object(Kind.SHADOW_NEEDED, journal, topic, o, f"{described(o)} wait for it")
                needs.waiting.setdefault(o.key, []).append(s)
    ends = [r.summary.ends for r in runs if r.summary is not None and f"journal {journal}" in r.summary.ends]
    first = min((_end_of(e, journal, -1) for e in ends), default=copy.end.offset) + 1
    names = {topic.revision: topic.name for topic, _ in live}
    log = SharedLog(cluster.store, journal_log(journal), cluster.runtime, parallel=cluster.parallel)
    try:
        begins = max(
            first, log.boundary.read()[0]
        )  # a stale writer may have created an entry below it again (hazard 7)
    except CorruptObjectError as e:
        return [unread_log(journal, e)]
    entries = log.list_folder().entries
    offsets = sorted(o for o in entries if begins <= o <= copy.end.offset)
    proof.entries += len(offsets)
    proof.entries_gone += copy.end.offset + 1 - first - len(offsets)

    def objects_of(offset: int) -> list[Suspect]:
        try:
            entry = decode_journal_entry(log.get(offset).payload, log.entry_key(offset))
        except ObjectNotFoundError:  # truncated in the meantime
            return []
        objects = entry.objects if isinstance(entry, Objects) else []
        text = f"entry {offset} of journal {journal} names it"
        return [
            Suspect(
                Kind.SHADOW_NEEDED,
                journal,
                names.get(o.revision, ""),
                o.revision if o.revision in names else -1,
                int(np.min(unpack(o.partitions, NUMBER))),
                o.key,
                detail=text,
            )
            for o, epoch in zip(objects, layout.epochs([o.key for o in objects]), strict=True)
            if epoch <= needs.limit
        ]

    for at in range(0, len(offsets), _ENTRIES_AT_ONCE):
        batch = offsets[at : at + _ENTRIES_AT_ONCE]
        for offset, shadows in zip(batch, cluster.parallel.map(objects_of, batch), strict=True):
            for s in shadows:
                needs.landed.setdefault(s.key, []).append((offset, s))
    return [s for s in check_journal(copy, snapshot) if s.kind in DOUBTFUL]


# -- access logs ---------------------------------------------------------------------------------------------------------


def _read_access_logs(
    cluster: ClusterHandles, snapshot: ClusterSnapshot, logs: AccessLogs, needs: _Needs, proof: ShadowProof
) -> None:
    """Add the reads of L0 objects at or below the limit. Raises `UsageError` if a file is not an access log."""
    proof.log_lines = 0

    def read(key: str) -> tuple[int, list[int], list[LoggedRead]]:
        """Return the number of lines in a file, the times of its first and last request, and the relevant reads."""
        lines, times, reads = 0, list[int](), list[LoggedRead]()
        for line in logs.source.get(key).body.decode(errors="replace").splitlines():
            m = _ACCESS.match(line)
            if m is None:
                continue
            try:
                ms = int(datetime.strptime(m["time"], "%d/%b/%Y:%H:%M:%S %z").timestamp()) * _SECOND_MS
            except ValueError:
                continue
            lines, times = lines + 1, [min([ms, *times]), max([ms, *times])]
            name = unquote(unquote(m["key"]))  # S3 encodes the key twice
            parsed = snapshot.layout.parse(name.removeprefix(logs.prefix)) if name.startswith(logs.prefix) else None
            is_read = m["bucket"] == logs.bucket and m["operation"].endswith(_READS) and m["status"].startswith("2")
            if parsed is not None and parsed.epoch <= needs.limit and is_read:
                who = without_secrets(m["requester"])
                text = f"{who} read it at {moment(ms)} ({m['operation']})"
                reads.append(LoggedRead(name.removeprefix(logs.prefix), ms, text))
        if not lines:
            raise UsageError(f"{logs.url}: {key or 'it'} has no line of an S3 server access log")
        return lines, times, reads

    for page in logs.source.scan(""):
        late = [k for k, at in zip(page.keys, page.modified_ms, strict=True) if at >= proof.since_ms]
        for lines, times, reads in cluster.parallel.map(read, late):
            proof.log_lines += lines
            proof.logs_from_ms = min(times[0], proof.logs_from_ms if proof.logs_from_ms >= 0 else times[0])
            proof.logs_until_ms = max(times[1], proof.logs_until_ms)
            for r in reads:
                needs.reads.setdefault(r.key, []).append(r)
    if not proof.log_lines:
        raise UsageError(
            f"{logs.url} has no access log that is newer than the first shadow run, of {moment(proof.since_ms)}; "
            "S3 delivers them within hours"
        )
