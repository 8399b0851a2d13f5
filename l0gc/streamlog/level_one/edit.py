"""Change one journal's lists of L1 objects: the flow *select, write, land* that all four kinds of edit share.

A kind selects partitions by the state that `states` returns, writes what it adds, and lands it. What makes it safe:
everything that an edit names is durable first. Whether it still fits is decided where it lands, partition by partition
(`journal/edits.py`), and nothing is deleted here. What a run wrote for a partition that refuses it is an orphan, for
vacuum.
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
    """Edits the lists of some topics in one journal; a kind adds what it selects, writes and counts.

    Attributes:
        errors: those of the kind's result. What goes wrong with the journal ends its part of the run and no other.
    """

    def __init__(self, handle: JournalHandle, topics: Mapping[int, Topic], errors: list[str]) -> None:
        self.handle, self.topics, self.errors = handle, topics, errors

    @contextmanager
    def recording_errors(self, *also: type[L0gcError]) -> Iterator[None]:
        """Record a failure of the journal among the errors. Raises `StoreError`, unless it is recorded also."""
        recorded: tuple[type[L0gcError], ...] = (
            CorruptObjectError, ObjectNotFoundError, ProtocolError, UsageError, *also,
        )  # fmt: skip
        try:
            yield
        except recorded as e:
            self.errors.append(f"journal {self.handle.journal}: {e}")

    def states(self) -> dict[int, TopicState]:
        """Return copies of what the journal has of the topics now, by revision."""
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
        """Land the columns of some partitions' changes, given with their topics' revisions, as one edit, and the shared
        objects of these topics.
        """
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
