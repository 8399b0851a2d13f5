"""Change one journal's lists of L1 objects: the flow *select, write, land* that all four kinds of edit share.

A kind selects partitions from the state that `states` returns, writes the objects that it adds, and lands the edit. Why it
is safe: every object that an edit adds is durable first. Whether the edit still fits is decided where it lands, partition
by partition (`journal/edits.py`), and nothing is deleted here. If a partition refuses an edit, the objects written for it
are orphans, which vacuum deletes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from l0gc.errors import CorruptObjectError, L0gcError, ObjectNotFoundError, ProtocolError, UsageError
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.journal.entries import Edit, EditedTopic, Kind
from l0gc.streamlog.journal.handle import JournalHandle, LandedEdit
from l0gc.streamlog.journal.rows import Rows
from l0gc.streamlog.journal.shared import SharedObject
from l0gc.streamlog.journal.topic import TopicState


class Editor:
    """Edits the lists of some topics in one journal; each kind of edit adds how it selects, writes and counts.

    Attributes:
        errors: the errors of the kind's result. A failure of the journal ends only the journal's part of the run.
    """

    def __init__(self, handle: JournalHandle, topics: Mapping[int, Topic], errors: list[str]) -> None:
        self.handle, self.topics, self.errors = handle, topics, errors

    @contextmanager
    def recording_errors(self, *also: type[L0gcError]) -> Iterator[None]:
        """Record a failure of the journal among the errors. Raises `StoreError`, unless `also` includes it."""
        recorded: tuple[type[L0gcError], ...] = (
            CorruptObjectError, ObjectNotFoundError, ProtocolError, UsageError, *also,
        )  # fmt: skip
        try:
            yield
        except recorded as e:
            self.errors.append(f"journal {self.handle.journal}: {e}")

    def states(self) -> dict[int, TopicState]:
        """Return copies of the journal's current states of the topics, by revision."""
        return {state.revision: state for state in self.handle.topics(self.topics.values())}

    def land(
        self,
        kind: Kind,
        epoch: int,
        changes: Iterable[tuple[int, Mapping[str, Rows]]],
        *,
        shared: Mapping[int, Sequence[SharedObject]] = {},
        dry_run: bool = False,
    ) -> LandedEdit:
        """Land partitions' changes, given as (revision, columns), and the topics' shared objects, as one edit."""
        of_topic: dict[int, list[Mapping[str, Rows]]] = {}
        for revision, columns in changes:
            of_topic.setdefault(revision, []).append(columns)
        topics = [
            EditedTopic.of(revision, self.topics[revision].topic_id, shared.get(revision, ()), **_joined(parts))
            for revision, parts in sorted(of_topic.items())
        ]
        return self.handle.land(Edit(kind, epoch, topics), dry_run=dry_run) if topics else LandedEdit()


def _joined(changes: Sequence[Mapping[str, Rows]]) -> dict[str, Rows]:
    return {name: np.concatenate([c[name] for c in changes]) for name in changes[0]}
