"""Show a shared log in readable form, with a JSON object for each entry and each part of a checkpoint.

It reads the objects that exist when the listing begins, and changes nothing. An object reports each unreadable part,
and the rest is shown. Packed rows are unpacked a few at a time while they are written, so an entry or a checkpoint
takes little more memory than its size.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import numpy as np

from l0gc.errors import CorruptObjectError, L0gcError, NotFoundError, ObjectNotFoundError
from l0gc.storage.entry import StoredEntry
from l0gc.storage.log import SharedLog
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.entries import ControllerMachine, decode_controller_entry
from l0gc.streamlog.controller.state import ControllerState
from l0gc.streamlog.journal.admission import check_object
from l0gc.streamlog.journal.checkpoint import JournalMachine
from l0gc.streamlog.journal.entries import EditedTopic, ObjectExtents, Purged, decode_journal_entry
from l0gc.streamlog.journal.rows import (
    BLOCK,
    NAME,
    NUMBER,
    Rows,
    name_text,
    unpack,
)
from l0gc.streamlog.journal.shared import SharedObject
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.journal.topic import TopicState

_READ_AT_ONCE: Final = 8
_ROWS_AT_ONCE: Final = 1000
_NAMES: Final = {"base": "base_offset", "last": "last_offset", "offset": "log_start_offset"}


@dataclass(frozen=True, slots=True)
class Table:
    """Rows that are written as a list of objects, a few at a time."""

    columns: Mapping[str, Sequence[Any] | Rows]

    @classmethod
    def of(cls, rows: Rows) -> Table:
        """Return a table of rows of one of the packed types."""
        return cls({_NAMES.get(name, name): rows[name] for name in rows.dtype.names or ()})

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def pieces(self) -> Iterator[bytes]:
        yield b"["
        for at in range(0, len(self), _ROWS_AT_ONCE):
            columns = [_values(c[at : at + _ROWS_AT_ONCE]) for c in self.columns.values()]
            rows = [dict(zip(self.columns, row, strict=True)) for row in zip(*columns, strict=True)]
            yield (b"," if at else b"") + msgspec.json.encode(rows)[1:-1]
        yield b"]"


def _values(column: Sequence[Any] | Rows) -> list[Any]:
    if not isinstance(column, np.ndarray):
        return list(column)
    return [name_text(v) for v in column] if column.dtype.kind == "V" else column.tolist()


@dataclass(frozen=True, slots=True)
class LogLine:
    """An object of the output; `damaged` is whether it describes something unreadable.

    Attributes:
        offset: The offset of the entry, which is the epoch in the controller's log. A line of a checkpoint has
            `checkpoint` instead: the offset after which it was taken.
        time: When it was written, by the store's clock.
        bytes: The size of its object.
        entry: Its kind: `objects`, `advance`, `barrier`, `reconciled` and `closed` in a journal; `bootstrap`,
            `create_topic`, `delete_topic`, `tick` and `init_producer` in the controller's log. The following fields are
            its content.
        objects: In an entry of the kind `objects`, the L0 objects, each with its blocks, and with the records of each
            partition in them.
        error: Why the entry cannot be read.
    """

    data: Mapping[str, Any]
    damaged: bool = False

    def pieces(self) -> Iterator[bytes]:
        """Yield the object as JSON, in pieces."""
        return _json(self.data)


def _json(value: Any) -> Iterator[bytes]:
    if isinstance(value, Table):
        yield from value.pieces()
    elif isinstance(value, Mapping):
        for n, (key, v) in enumerate(value.items()):
            yield (b"," if n else b"{") + msgspec.json.encode(key) + b":"
            yield from _json(v)
        yield b"}" if value else b"{}"
    elif isinstance(value, list):
        for n, v in enumerate(value):
            yield b"," if n else b"["
            yield from _json(v)
        yield b"]" if value else b"[]"
    else:
        yield msgspec.json.encode(value)


def show_log(
    cluster: ClusterHandles, journal: int | None, start: int = 0, *, checkpoint: bool = False
) -> Iterator[LogLine]:
    """Yield the entries of a log from offset `start` to its current end.

    Args:
        journal: the number of the journal; None for the controller's log.
        checkpoint: show the newest checkpoint first. If entries from `start` on are gone, it is always shown.

    Raises:
        NotInitialisedError: there is no cluster at the URL.
        NotFoundError: the cluster has no such journal.
    """
    names = _topic_names(cluster, journal)
    log = (cluster.controller if journal is None else cluster.journal(journal)).replica.log
    folder = log.list_folder()
    offsets = sorted(o for o in folder.entries if o >= start)
    gone = folder.checkpoints and start <= folder.checkpoints[-1] and start not in folder.entries
    if folder.checkpoints and (checkpoint or gone):
        yield from _checkpoint(cluster, log, journal, folder.checkpoints[-1], names)

    def read(offset: int) -> StoredEntry | LogLine:
        try:
            return log.get(offset)
        except ObjectNotFoundError:
            return LogLine({"offset": offset, "truncated": True})  # truncated since the listing
        except CorruptObjectError as e:
            return _damaged({"offset": offset}, e)

    first = folder.checkpoints[-1] + 1 if folder.checkpoints else 0
    expected = min([max(start, first), *offsets[:1]])
    for at in range(0, len(offsets), _READ_AT_ONCE):
        for offset, entry in zip(
            offsets[at:], cluster.parallel.map(read, offsets[at : at + _READ_AT_ONCE]), strict=False
        ):
            if offset > expected:
                missing = f"the entries {expected} to {offset - 1} are missing, though a later one is there"
                yield _damaged({"offset": expected}, CorruptObjectError(missing))
            expected = offset + 1
            yield entry if isinstance(entry, LogLine) else _entry(log, journal, entry, names)


def _topic_names(cluster: ClusterHandles, journal: int | None) -> dict[int, str]:
    """Return the names of topics by revision; empty if the controller's log, which may be the log to show, cannot be
    read.
    """
    with suppress(CorruptObjectError):
        state = cluster.controller.snapshot()
        if journal is not None and journal >= state.journals:
            raise NotFoundError(f"the cluster has the journals 0 to {state.journals - 1}, not {journal}")
        topics = [*(d.topic for d in state.deleted), *state.topics.values()]
        return {t.revision: t.name for t in topics}
    return {}


def _damaged(where: Mapping[str, Any], error: Exception) -> LogLine:
    return LogLine({**where, "error": str(error)}, damaged=True)


def _time(ms: int) -> str | int:
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    except OverflowError:
        return ms
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# -- entries ------------------------------------------------------------------------------------------------------------


def _entry(log: SharedLog, journal: int | None, landed: StoredEntry, names: Mapping[int, str]) -> LogLine:
    where = {"offset": landed.offset, "time": _time(landed.time_ms), "bytes": landed.weight}
    try:
        if journal is None:
            entry: msgspec.Struct = decode_controller_entry(landed.offset, landed.payload)
        else:
            entry = decode_journal_entry(landed.payload, log.entry_key(landed.offset))
        return LogLine({**where, **entry_tree(entry, names)})
    except (L0gcError, ValueError) as e:
        return _damaged(where, e)


def entry_tree(entry: msgspec.Struct, names: Mapping[int, str]) -> dict[str, Any]:
    """Return an entry's kind and content. `names` has the names of topics by revision."""
    kind = re.sub("(?<=[a-z])(?=[A-Z])", "_", type(entry).__name__).lower()
    return {"entry": kind, **_tree(entry, names)}


def _tree(struct: msgspec.Struct, names: Mapping[int, str]) -> dict[str, Any]:
    """Return the fields of a struct by name, with packed rows as tables."""
    if isinstance(struct, ObjectExtents):
        return _object(struct, names)
    if isinstance(struct, EditedTopic):
        named = {"topic": names[struct.revision]} if struct.revision in names else {}
        rows = {name: getattr(struct.change, name) for name in ("added", "removed", "starts", "misfits")}
        identity = {"revision": struct.revision, "topic_id": struct.topic_id}
        shared = {"shared": [_shared(o) for o in struct.change.shared]} if struct.shared else {}
        return named | identity | {name: Table.of(kind) for name, kind in rows.items() if len(kind)} | shared
    if isinstance(struct, Purged):
        return {"names": [name_text(name) for name in unpack(struct.names, NAME)]}
    tree: dict[str, Any] = {}
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        if name == "revision" and value in names:
            tree["topic"] = names[value]
        tree[name] = _plain(value, names)
    return tree


def _plain(value: Any, names: Mapping[int, str]) -> Any:
    if isinstance(value, msgspec.Struct):
        return _tree(value, names)
    if isinstance(value, list | tuple):
        return [_plain(v, names) for v in value]
    if isinstance(value, dict):
        return {str(k): _plain(v, names) for k, v in value.items()}
    return value


def _object(o: ObjectExtents, names: Mapping[int, str]) -> dict[str, Any]:
    partitions = check_object(o)  # raises an error if the rows do not fit together
    blocks = unpack(o.blocks, BLOCK)
    numbers = np.repeat(np.arange(len(blocks)), blocks["extents"])
    fields = {f: getattr(o, f) for f in ("key", "epoch", "revision", "topic_id", "start")}
    return {
        **({"topic": names[o.revision]} if o.revision in names else {}),
        **fields,
        **({} if o.producer is None else {"producer": _tree(o.producer, names)}),
        "blocks": _blocks(blocks, o.start),
        "extents": Table({"partition": partitions, "records": unpack(o.records, NUMBER), "block": numbers}),
    }


def _blocks(blocks: Rows, start: int) -> Table:
    """Return the blocks, with the start of each, which is not stored."""
    lengths = blocks["length"].astype(np.int64)
    return Table({"start": start + np.cumsum(lengths) - lengths, **Table.of(blocks).columns})


# -- checkpoints --------------------------------------------------------------------------------------------------------


def _checkpoint(
    cluster: ClusterHandles, log: SharedLog, journal: int | None, offset: int, names: Mapping[int, str]
) -> Iterator[LogLine]:
    key, where = log.checkpoint_key(offset), {"checkpoint": offset}
    try:
        kept = log.get_checkpoint(offset)
        head = {**where, "time": _time(kept.time_ms), "bytes": kept.weight}
        state: ControllerState | JournalState
        if journal is None:
            state = ControllerMachine().decode(kept.payload, key)
        else:
            state = JournalMachine(journal).decode(kept.payload, key)
    except (CorruptObjectError, ObjectNotFoundError) as e:  # a newer one may have replaced it since the listing
        yield _damaged(where, e)
        return
    parts = _controller_parts(state) if isinstance(state, ControllerState) else _journal_parts(state, names)
    for n, part in enumerate(parts):
        yield LogLine({**(where if n else head), **part})


def _controller_parts(state: ControllerState) -> Iterator[dict[str, Any]]:
    apart = {"topics", "deleted", "producers"}
    yield {f: _plain(getattr(state, f), {}) for f in state.__struct_fields__ if f not in apart}
    yield from ({"topic": topic.name, **_tree(topic, {})} for topic in state.topics.values())
    for d in state.deleted:
        yield {"deleted_topic": d.topic.name, "deleted_epoch": d.deleted_epoch, **_tree(d.topic, {})}
    yield from ({"producer": name, **_tree(p, {})} for name, p in state.producers.items())


def _journal_parts(state: JournalState, names: Mapping[int, str]) -> Iterator[dict[str, Any]]:
    apart = {"topics", "producers", "closed_revisions", "dropped"}
    yield {f: getattr(state, f) for f in state.__struct_fields__ if f not in apart}
    if len(state.closed_revisions):
        yield {"closed_revisions": state.closed_revisions.tolist()}
    if len(state.dropped):
        yield {"dropped": Table.of(state.dropped)}
    for topic in state.topics.values():
        yield from _topic_parts(topic, names)
    for producer_id, producer in state.producers.items():
        yield {"producer": producer_id, **_tree(producer, {})}


def _topic_parts(topic: TopicState, names: Mapping[int, str]) -> Iterator[dict[str, Any]]:
    identity = {**({"topic": names[topic.revision]} if topic.revision in names else {}), "revision": topic.revision}
    columns = {
        "partition": topic.partitions,
        "next_offset": topic.next_offsets,
        "last_reconciled_offset": topic.reconciled,
        "log_start_offset": topic.log_start,
    }
    misfits = {"misfits": topic.misfits} if topic.misfits else {}
    yield {**identity, "topic_id": topic.topic_id, **misfits, "partitions": Table(columns)}
    for o in topic.objects:
        fields = {"object": o.key, "epoch": o.epoch, "log_offset": o.log_offset}
        yield {**identity, **fields, "blocks": _blocks(o.blocks, o.start), "extents": Table.of(o.extents)}
    if len(topic.l1):
        yield {**identity, "l1": Table.of(topic.l1)}
    for shared in topic.shared:
        yield {**identity, **_shared(shared)}


def _shared(o: SharedObject) -> dict[str, Any]:
    """Return a shared L1 object with the rows that are still listed."""
    fields = {"shared": name_text(o.name), "epoch": o.epoch, "bytes": o.bytes, "time_ms": o.time_ms}
    return {**fields, "rows": Table.of(o.rows[o.is_named])}
