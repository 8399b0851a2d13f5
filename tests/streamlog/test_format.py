"""The format of a bucket: l0gc does not touch a format that it does not support."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from l0gc.errors import (
    AmbiguousWriteError,
    CorruptObjectError,
    L0gcError,
    NotInitialisedError,
    StoreError,
    UnsupportedFormatError,
)
from l0gc.keys import CONTROLLER_LOG, FORMAT
from l0gc.runtime import Runtime
from l0gc.storage.entry import seal, unseal
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.format import VERSION, Format, check_format, encode_format, remember_etags, write_format
from tests.support.memory_store import MemoryStore, TakesPlainEtags, failing, lose_reply, memory_cluster, once


def process_on(store: MemoryStore) -> ClusterHandles:
    return ClusterHandles(store, Runtime(store.clock, random.Random(9)))


def contents(store: MemoryStore) -> dict[str, bytes]:
    return {k: o.body for k, o in store.objects.items()}


def with_format(**changes: object) -> MemoryStore:
    store = MemoryStore()
    memory_cluster(store)
    store.put(
        FORMAT, seal(FORMAT, json.dumps(json.loads(unseal(FORMAT, store.objects[FORMAT].body)) | changes).encode())
    )
    return store


COMMANDS: dict[str, Callable[[ClusterHandles], object]] = {
    "snapshot": lambda c: c.controller.snapshot(),
    "epoch": lambda c: c.controller.epoch(),
    "layout": lambda c: c.controller.layout(),
    "advance": lambda c: c.controller.advance(),
    "create topic": lambda c: c.controller.create_topic("t", 1),
    "bootstrap": lambda c: c.controller.bootstrap(shards=4),
    "identity": lambda c: c.identity(),
}


def test_founding_a_cluster_writes_its_format_first() -> None:
    written: list[str] = []
    store = MemoryStore(fault=lambda call: written.append(call.key) if call.kind == "put_if_absent" else None)
    memory_cluster(store)
    assert list(dict.fromkeys(written)) == [FORMAT, f"{CONTROLLER_LOG}log/{0:020}"]
    assert json.loads(unseal(FORMAT, store.objects[FORMAT].body)) == {
        "version": VERSION,
        "min_reader_version": VERSION,
        "min_writer_version": VERSION,
        "etags": "quoted",
    }


def test_a_process_reads_the_format_once() -> None:
    store = MemoryStore()
    memory_cluster(store)
    requested: list[str] = []
    store.fault = lambda call: requested.append(call.key) if call.when == "before" else None
    cluster = process_on(store)
    for _ in range(3):
        cluster.controller.snapshot()
    assert requested.count(FORMAT) == 1
    assert requested[0] == FORMAT


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("changes", [{"min_reader_version": VERSION + 1}, {"min_writer_version": VERSION + 1}])
def test_a_bucket_of_a_later_format_is_refused_by_every_command(command: str, changes: dict[str, int]) -> None:
    store = with_format(version=VERSION + 1, **changes)
    before = contents(store)
    with pytest.raises(UnsupportedFormatError, match=rf"has format {VERSION + 1}, .*supports format {VERSION}") as e:
        COMMANDS[command](process_on(store))
    assert e.value.exit_code == 6
    assert contents(store) == before


def test_a_later_compatible_format_is_read() -> None:
    store = with_format(version=VERSION + 1, later={"field": 1})
    assert process_on(store).controller.epoch() == 0


def test_a_later_format_may_be_open_to_readers_alone() -> None:
    store = with_format(version=VERSION + 1, min_writer_version=VERSION + 1)
    assert check_format(store, only_reads=True)
    with pytest.raises(UnsupportedFormatError):
        check_format(store)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", [f"log/{0:020}.json", f"checkpoint/{99:020}.json"])
def test_a_bucket_of_the_first_edition_is_refused_by_every_command(command: str, name: str) -> None:
    store = MemoryStore()
    store.put(f"{CONTROLLER_LOG}{name}", b'{"id":"x"}')
    before = contents(store)
    with pytest.raises(UnsupportedFormatError, match="laid out by the first edition of l0gc") as e:
        COMMANDS[command](process_on(store))
    assert e.value.exit_code == 6
    assert contents(store) == before


def test_a_bucket_without_a_cluster_is_called_that() -> None:
    with pytest.raises(NotInitialisedError):
        process_on(MemoryStore()).controller.snapshot()


def test_a_cluster_whose_format_is_gone_is_refused() -> None:
    store = MemoryStore()
    memory_cluster(store)
    store.delete([FORMAT])
    with pytest.raises(CorruptObjectError, match=rf"{FORMAT}, which records its layout, is missing: restore it"):
        process_on(store).controller.snapshot()


def test_a_cluster_that_is_founded_while_another_process_reads_is_seen() -> None:
    store = MemoryStore()
    store.fault = once(lambda: memory_cluster(store), "list", CONTROLLER_LOG)
    assert process_on(store).controller.epoch() == 0


@pytest.mark.parametrize(
    "body",
    [
        *(
            b"",
            b"{",
            b"\xff",
            encode_format(Format()).replace(b"4", b"5", 1),
            encode_format(Format()).partition(b"\n")[0],
        ),
        *(
            seal(FORMAT, text)
            for text in (b"[]", b'{"version":0}', b'{"version":"2"}', b'{"version":2,"etags":"other"}')
        ),
        seal(FORMAT, b"[" * 100_000),
    ],
)
def test_a_format_that_cannot_be_read_is_named(body: bytes) -> None:
    store = MemoryStore()
    memory_cluster(store)
    store.put(FORMAT, body)
    with pytest.raises(CorruptObjectError, match=FORMAT):
        process_on(store).controller.snapshot()


def test_a_format_whose_write_got_no_reply_is_read() -> None:
    store = MemoryStore(fault=lose_reply(FORMAT))
    assert write_format(store) == check_format(store)


def test_an_unwritable_format_founds_no_cluster() -> None:
    store = MemoryStore(fault=failing(AmbiguousWriteError("cut"), "put_if_absent", FORMAT))
    with pytest.raises(StoreError, match="could not be written"):
        memory_cluster(store)
    assert store.objects == {}


# -- the form of ETags ----------------------------------------------------------------------------------------------------


def test_the_form_that_the_probe_found_is_known_to_later_processes() -> None:
    store = TakesPlainEtags()
    store.quotes_etags = False  # as the probe sets it
    memory_cluster(store)
    store.quotes_etags = True  # as in a new process
    process_on(store).controller.snapshot()
    assert not store.quotes_etags
    store.put("k", b"1")
    store.put_if_match("k", b"2", store.get("k").etag)


def test_init_again_remembers_another_form() -> None:
    store = TakesPlainEtags()
    memory_cluster(store)
    with pytest.raises(L0gcError):
        store.put_if_match(FORMAT, b"x", store.get(FORMAT).etag)
    assert remember_etags(store, quoted=False)
    assert not remember_etags(store, quoted=False)
    store.quotes_etags = True
    form = check_format(store)
    assert form is not None
    assert form.etags == "plain"
    assert not store.quotes_etags


@pytest.mark.parametrize("only_reads", [False, True])
def test_an_l0gc_of_the_format_before_shared_objects_refuses_the_bucket(
    monkeypatch: pytest.MonkeyPatch, *, only_reads: bool
) -> None:
    """Hazard 26: an older l0gc would drop the rows of shared L1 objects, and take the objects for orphans."""
    store = MemoryStore()
    memory_cluster(store)
    monkeypatch.setattr("l0gc.streamlog.format.VERSION", 3)
    with pytest.raises(UnsupportedFormatError, match=r"needs an l0gc that supports format 4, but this one .* format 3"):
        check_format(store, only_reads=only_reads)
