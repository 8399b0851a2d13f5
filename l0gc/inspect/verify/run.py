"""verify: a flow of three stages over the whole bucket, which it reads once and does not change.

The order of the reads keeps suspects few; what makes a suspect a finding is the second reading (`confirm.py`), which holds
whatever the order was:

1. M, then the controller's snapshot, then the journals. Each of them can only be behind what is read after it: M(p) of a
   live partition is never below a published M, and no journal is ahead of the controller.
2. The listings, after the journals. What a journal needed when it was read and the listing lacks was reconciled and swept
   since, or it is missing. What the listing has and no journal names was written since, or is nobody's.
3. Every suspect again: the object itself, then the journal, then the controller.

A task that runs again because it failed reads of a later moment: nothing here relies on one. No process holds a list of all
keys. A task holds the references to what it lists, or the suspects of some journals; the driver holds numbers, and of each
task at most as many findings as were asked for.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from l0gc.errors import CorruptObjectError, SafetyError
from l0gc.inspect.overview import ahead_text
from l0gc.inspect.reading import published_m
from l0gc.inspect.verify.confirm import confirm
from l0gc.inspect.verify.findings import Checked, Kind, Suspect, VerifyResult, finding_of
from l0gc.inspect.verify.listings import Cut, InDoubt, Seen, compare, l0_references, l1_references
from l0gc.inspect.verify.reading import controller_faults, read_copy, unknown_journals
from l0gc.inspect.verify.rules import DOUBTFUL, Basis, check_journal, placed
from l0gc.keys import CONTROLLER_LOG, PUBLISHED_WATERMARK, journal_log
from l0gc.storage.workers import LOCAL, Stage, Workers
from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.controller.state import ControllerState

MAX_FINDINGS: Final = 1000
_OBJECTS_A_TASK: Final = 500_000
"""On a Spark cluster a task lists about so many objects, since it holds the references to them."""


def check_log_is_ours(state: ControllerState) -> None:
    """Raises `SafetyError` where another system keeps the log: nothing in the bucket could be compared with it."""
    if state.external_log:
        raise SafetyError(
            "this cluster's log is another system's, which l0gc cannot read, so there is nothing to compare the bucket "
            "with: verify it with that system's own means"
        )


def verify(
    cluster: Handles,
    workers: Workers[Handles],
    *,
    deep: bool = False,
    min_age_ms: int,
    max_findings: int = MAX_FINDINGS,
) -> VerifyResult:
    """Read the whole bucket once, and change nothing.

    Args:
        deep: read every block that a journal needs and every L1 object, and check their contents; and compare all
            checkpoints with their entries.
        min_age_ms: L1 objects younger than this, by the store's clock, may still be named by a journal.
        max_findings: how many findings to list; all are counted.

    Raises:
        NotInitialisedError, ClusterMismatchError: no cluster exists here, or another one.
        CorruptObjectError: the controller log cannot be read.
        StoreError: the store failed; nothing is known.
    """
    started = time.monotonic()
    now_ms = cluster.store.now_ms()
    # M, then the controller: what is compared with M is read after it.
    published, watermark_error = published_m(cluster, cluster.controller.snapshot().cluster_id)
    state = cluster.controller.snapshot()
    shown = msgspec.structs.replace(state, producers={})  # tasks need none of them
    basis = Basis(shown, published, now_ms - min_age_ms, state.to_be_closed_by(now_ms))
    suspects = list(_watermark_suspects(basis, watermark_error))
    suspects += [Suspect(kind, key=CONTROLLER_LOG, detail=text) for kind, text in controller_faults(cluster, deep=deep)]
    for folder in unknown_journals(cluster.store, state.journals):
        text = f"the controller knows journals 0 to {state.journals - 1} alone"
        suspects.append(Suspect(Kind.JOURNAL_UNKNOWN, key=folder, detail=text))

    listed = published.listed_objects if published is not None else -1
    slots = max(workers.slots, listed // _OBJECTS_A_TASK)
    readers = 1 if workers.engine == LOCAL else min(slots, state.journals)
    cut = Cut(basis, slots, 1 if workers.engine == LOCAL else slots)
    workers.say(f"reading the journals and the listings{' and every object' if deep else ''}")
    parts = workers.flow(
        range(state.journals),
        Stage(readers, partial(_read_journals, basis, cut, deep)),
        Stage(cut.tasks, partial(_compare, basis, readers, deep)),
        Stage(readers, partial(_read_again, basis, deep, max_findings)),
    )
    parts += _read_again(basis, deep, max_findings, cluster, suspects)

    seen = sum((p.seen for p in parts), Counter[str]())
    counts = sum((p.counts for p in parts), Counter[Kind]())
    first = heapq.nsmallest(max_findings, (s for p in parts for s in p.findings), key=_order)
    result = VerifyResult(
        state.epoch,
        basis.watermark,
        deep,
        findings=[finding_of(s) for s in first],
        total=counts.total(),
        counts={kind.value: n for kind, n in sorted(counts.items())},
        checked=Checked(journals=state.journals, partitions=state.partition_count),
    )
    for name, n in seen.items():
        setattr(result.checked if hasattr(result.checked, name) else result, name, n)
    result.seconds = time.monotonic() - started
    return result


def _watermark_suspects(basis: Basis, error: tuple[str, str] | None) -> Iterator[Suspect]:
    """What is wrong with the published M."""
    if error is not None:
        yield Suspect(Kind.WATERMARK_UNREADABLE, key=PUBLISHED_WATERMARK, detail=error[1])
    p = basis.published
    if p is not None and (max(p.watermark, p.cluster_epoch) > basis.state.epoch or p.watermark > p.cluster_epoch):
        where = f"M = {p.watermark}, which is published with cluster epoch {p.cluster_epoch},"
        text = ahead_text(where, max(p.watermark, p.cluster_epoch), min(p.cluster_epoch, basis.state.epoch))
        yield Suspect(Kind.WATERMARK_AHEAD, key=PUBLISHED_WATERMARK, detail=text)


# -- the first stage: journals ---------------------------------------------------------------------------------------------


def _read_journals(
    basis: Basis, cut: Cut, deep: bool, cluster: Handles, journals: Iterable[int]
) -> Iterator[tuple[int, Any]]:
    """What each journal says, one after another, since each may be large. With the first goes out who lists what."""
    for journal in journals:
        if journal == 0:
            yield from ((task, keys) for task in range(cut.tasks) for keys in cut.share(task))
        suspects: list[Suspect] = []
        try:
            copy = read_copy(cluster, journal, deep=deep)
        except CorruptObjectError as e:
            suspects.append(Suspect(Kind.LOG_UNREADABLE, journal, key=journal_log(journal), detail=str(e)))
        else:
            suspects += check_journal(copy, basis)
            for p in placed(copy, basis):
                yield from l0_references(cut, journal, p, deep=deep)
                yield from l1_references(cut, cluster, journal, p)
                extents = sum(len(o.extents) for o in p.state.objects)
                seen = Counter(extents=extents, index_objects=len(p.state.index), holes=len(p.state.holes))
                yield journal % cut.tasks, Seen(seen)
        yield from ((journal % cut.tasks, s) for s in suspects)
        if any(s.kind in DOUBTFUL for s in suspects):
            yield from ((task, InDoubt(journal)) for task in range(cut.tasks))


# -- the second stage: listings --------------------------------------------------------------------------------------------


def _compare(
    basis: Basis, readers: int, deep: bool, cluster: Handles, sent: Iterable[Any]
) -> Iterator[tuple[int, Suspect | Seen]]:
    """Suspects go to the task of their journal, counts to one: all L0 keys that are ahead at an epoch are one suspect."""
    for found in compare(basis, deep, cluster, sent):
        yield found.journal % readers if isinstance(found, Suspect) else 0, found


# -- the third stage: the second reading -----------------------------------------------------------------------------------


class _Confirmed(NamedTuple):
    """What a task saw, and its findings: all by their kind, and the first of them."""

    seen: Counter[str]
    counts: Counter[Kind]
    findings: list[Suspect]


def _read_again(
    basis: Basis, deep: bool, max_findings: int, cluster: Handles, sent: Iterable[Suspect | Seen]
) -> Iterator[_Confirmed]:
    suspects, seen = list[Suspect](), Seen()
    for item in sent:
        if isinstance(item, Suspect):
            suspects.append(item)
        else:
            seen.add(item)
    for epoch, (objects, key) in seen.ahead.items():
        text = f"{objects} objects are at epoch {epoch}, above the cluster epoch {basis.state.epoch}"
        suspects.append(Suspect(Kind.EPOCH_AHEAD, key=key, expected=epoch, detail=text))
    still = confirm(cluster, basis, suspects, deep=deep)
    first = heapq.nsmallest(max_findings, still, key=_order)
    yield _Confirmed(seen.counts, Counter(s.kind for s in still), first)


def _order(s: Suspect) -> tuple[Any, ...]:
    return s.topic, s.revision, s.partition, s.kind, s.offset, s.key, s.journal
