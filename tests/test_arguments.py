"""Any value in any argument of the library (hazard 31): a sentence before the first write, or an entry that all can
read.
"""

from __future__ import annotations

import inspect
import pickle
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import click
import numpy as np
import pytest

import l0gc
from l0gc import api, operations
from l0gc.api.cluster import Cluster
from l0gc.cli.main import cli
from l0gc.cli.output import taking_results
from l0gc.errors import L0gcError, UsageError
from l0gc.storage.config import StoreConfig
from l0gc.streamlog.cluster import ClusterHandles
from tests.support.cli import opens
from tests.support.memory_store import MemoryStore, another_process, copy_of, memory_cluster, put_back, store_of
from tests.test_api import URL, over

ODD: Final[list[Any]] = [
    None, True, False, 0, 1, -1, -2, 7, 2**38, 2**53, 2**62 + 1, 2**63, 2**64, -(2**70), 0.0, 2.0, 0.5, -1.0, 5e9, 1e308,
    float("nan"), float("inf"), "", "t", "\udc80", "a\0b", 'a"b', "a\nb", "x" * 1000, "../x", "ä" * 300, b"t",
    bytearray(b"t"), [], [1], ["t"], ["\udc80"], (1, 2), (1.0, 2), (0, 2**70), {}, {"dry_run": True}, timedelta(days=7),
    timedelta(-1), datetime(2026, 1, 1, tzinfo=UTC), datetime.min,
    Decimal(4), Decimal("NaN"), np.int64(3), np.float64(2), np.str_("t"), np.bool_(True), object(), Path("x"), Path("a\0b"),
]  # fmt: skip
"""Values that a caller may give by mistake."""
GROUPS: Final = {
    "topics": api.Topics,
    "pins": api.Pins,
    "producers": api.Producers,
    "runs": api.Runs,
    "tables": api.Tables,
}
NEEDED: Final[dict[str, Any]] = {
    "name": "t", "topic": "t", "partitions": 1, "run_id": "run", "why": "why", "journal": 0, "checkpoint": "/nowhere",
    "catalog": "lake", "key": "k",
}  # fmt: skip
"""A value for each argument that has no default."""


def methods() -> Iterator[tuple[str, inspect.Signature]]:
    for group, kind in [("", Cluster), *GROUPS.items()]:
        for name, member in vars(kind).items():
            if inspect.isfunction(member) and not name.startswith("_") and name not in ("close", "handles"):
                yield f"{group}.{name}".removeprefix("."), inspect.signature(member)


METHODS: Final = dict(methods())


def arguments_of(name: str) -> list[str]:
    """Return each argument of a method; each of its options is one, by its own name."""
    found = list[str]()
    for argument, parameter in METHODS[name].parameters.items():
        options = re.search(r"(\w+)Keywords", str(parameter.annotation))
        found += getattr(operations, options[1]).__struct_fields__ if options else [argument]
    return found[1:]


def call(cluster: Cluster, name: str, given: dict[str, Any]) -> None:
    """Call a method, with valid values for what else it needs, and consume its whole result."""
    method: Any = cluster
    for part in name.split("."):
        method = getattr(method, part)
    needed = {n: NEEDED[n] for n, p in METHODS[name].parameters.items() if n in NEEDED and p.default is p.empty}
    result = method("t", given["sources"]) if "sources" in given else method(**(needed | given))
    if hasattr(result, "__enter__"):
        with result:
            pass
    elif inspect.isgenerator(result):
        list(result)


def in_memory(monkeypatch: pytest.MonkeyPatch) -> ClusterHandles:
    monkeypatch.setattr(MemoryStore, "config", StoreConfig.from_url(URL), raising=False)
    monkeypatch.setattr(MemoryStore, "access", SimpleNamespace(endpoint_url=None), raising=False)
    monkeypatch.setattr(MemoryStore, "create_bucket", lambda self: False, raising=False)
    handles = memory_cluster()
    handles.controller.create_topic("t", 1)
    return handles


def read_by_another(handles: ClusterHandles) -> None:
    """Read both kinds of log, as any other process would."""
    other = another_process(handles)
    other.controller.snapshot()
    for journal in range(2):
        _ = other.journal(journal).state


@pytest.mark.thorough
@pytest.mark.parametrize("name", METHODS)
def test_any_argument_is_refused_before_writing_or_means_what_was_said(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    handles = in_memory(monkeypatch)
    store, first = store_of(handles), copy_of(store_of(handles))
    for argument in arguments_of(name):
        for value in ODD:
            before = copy_of(store)
            if before != first:
                put_back(store, "", first)
                handles, before = memory_cluster(store, bootstrap=False), first
            with over(handles, monkeypatch) as cluster:
                try:
                    call(cluster, name, {argument: value})
                except UsageError:
                    assert copy_of(store) == before, f"{name}({argument}={value!r}) wrote something"
                except L0gcError:
                    pass
                except Exception as e:  # noqa: BLE001 - whatever comes of the inside
                    pytest.fail(f"{name}({argument}={value!r}) raises {e!r}")
            read_by_another(handles)


TEXTS: Final = (
    "", "0", "-1", "1.5", "8.0", "1e3", "1e999", "nan", "inf", "true", "99999999999999999999", "9" * 400,
    "-9223372036854775809d",
    "1e308d", "99999999999999999999TiB", "\udc80", 'a"b', "a\nb", "x" * 1000, "../x", "ä", "t/0", "t/-1", "0-", "5-1",
    "0-99999999999999999999999", "\u0664",
)  # fmt: skip
"""The texts of options; each option is given a third of them."""


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        elif name not in ("demo", "completion", "server", "help", "doctor"):  # these start or need a server
            yield (*path, name)


@pytest.mark.thorough
@pytest.mark.parametrize("path", list(commands(cli)), ids=" ".join)
def test_any_option_text_is_refused_before_writing_or_means_what_was_said(
    path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    handles = opens(in_memory(monkeypatch), monkeypatch)
    store, first = store_of(handles), copy_of(store_of(handles))
    command: Any = cli
    for part in path:
        command = command.get_command(click.Context(command), part)
    needed = [p for p in command.params if isinstance(p, click.Argument) and p.required]
    for n, parameter in enumerate(command.params):
        some = TEXTS[n % 3 :: 3]
        for text in () if parameter.name in ("watch", "master", "conf") else some:  # these have no end, or start Spark
            before = copy_of(store)
            if before != first:
                put_back(store, "", first)
                handles, before = opens(memory_cluster(store, bootstrap=False), monkeypatch), first
            named = [text if p is parameter else NEEDED.get(str(p.name), "t") for p in needed]
            option = isinstance(parameter, click.Option) and not parameter.is_flag
            given = [*path, *([f"{parameter.opts[-1]}={text}"] if option else []), "--", *map(str, named)]
            try:
                with taking_results():
                    cli.main(given, prog_name="l0gc", standalone_mode=False)
            except (UsageError, click.UsageError):
                assert copy_of(store) == before, f"{given} wrote something"
            except (L0gcError, click.ClickException, click.Abort):
                pass
            except Exception as e:  # noqa: BLE001 - whatever comes of the inside
                pytest.fail(f"{given} raises {e!r}")
            read_by_another(handles)


CASES: Final[dict[str, Callable[[Any], object]]] = {
    "retention_ms cannot be 604800000.0: ": lambda c: c.topics.alter(
        "t", retention_ms=timedelta(7) / timedelta(milliseconds=1)
    ),
    "partitions cannot be 4.0: ": lambda c: c.topics.create("u", partitions=8 / 2),
    "partitions cannot be True: ": lambda c: c.topics.create("u", partitions=True),
    "retention_bytes cannot be 5000000000.0: ": lambda c: c.topics.alter_defaults(retention_bytes=5e9),
    "above cannot be 1000.0: ": lambda c: c.advance_epoch(above=1e3),
    "journals cannot be 16.0: ": lambda c: c.init(journals=16.0),
    "shards cannot be 8.0: ": lambda c: c.init(shards=8.0),
    "start cannot be -5: ": lambda c: c.read("t", 0, -5),
    "partition cannot be '0': ": lambda c: c.read_lines("t", "0"),
    "min_age_s cannot be datetime.timedelta(days=-1): it must not be negative": lambda c: c.sweep(
        min_age_s=timedelta(-1)
    ),
    "retention_ms cannot be datetime.timedelta(days=-1): it must not be negative": lambda c: c.topics.alter(
        "t", retention_ms=timedelta(-1)
    ),
    "before_time_ms cannot be datetime.datetime(2026, 1, 1, 0, 0): it names no time zone": lambda c: c.delete_records(
        "t", before_time_ms=datetime(2026, 1, 1)
    ),
    "confirm cannot be True: ": lambda c: c.topics.alter("t", confirm=True),
    "gone cannot be 5: ": lambda c: c.sweep(gone=5),
    "each cannot be 'all': ": lambda c: c.runs.show("r", each="all"),
    "url cannot be None: ": lambda c: l0gc.open(None),  # type: ignore[arg-type]
    "region cannot be 5: ": lambda c: l0gc.open(URL, region=5),  # type: ignore[arg-type]
    "epoch_interval_s cannot be '10m': ": lambda c: l0gc.open(URL, epoch_interval_s="10m"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("refused", CASES)
def test_an_argument_of_another_type_is_refused_with_its_name(refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    handles = in_memory(monkeypatch)
    before = copy_of(store_of(handles))
    with over(handles, monkeypatch) as cluster, pytest.raises(UsageError, match=re.escape(refused)):
        CASES[refused](cluster)
    assert copy_of(store_of(handles)) == before
    read_by_another(handles)


def test_durations_are_taken_as_timedelta_or_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    handles = in_memory(monkeypatch)
    with over(handles, monkeypatch) as cluster:
        topics = [cluster.topics.alter("t", retention_ms=ms) for ms in (timedelta(hours=1), 3_600_000)]
        assert [t.retention_ms for t in topics] == [3_600_000, 3_600_000]
        assert [t.altered for t in topics] == [True, False]
        lives: list[float | timedelta] = [timedelta(minutes=1), 60, 60.0]
        pins = [cluster.pins.create(f"p{n}", ttl_s=s) for n, s in enumerate(lives)]
        assert {p.expires_ms - p.created_ms for p in pins} == {60_000}
        assert cluster.delete_records("t", before_time_ms=datetime(2026, 1, 1, tzinfo=UTC), dry_run=True).records == 0
    assert operations.Sweep.of({"min_age_s": timedelta(minutes=1)}) == operations.Sweep(min_age_s=60)


def test_a_pickled_cluster_opens_again_and_a_closed_one_is_refused() -> None:
    with l0gc.open(URL, region="eu-west-1", endpoint_url="http://127.0.0.1:1", cluster_id="c") as cluster:
        with pickle.loads(pickle.dumps(cluster)) as other:
            assert (other.url, other.store.config) == (cluster.url, cluster.store.config)
            assert other.handles() is not cluster.handles()
        assert cluster.handles() is not None  # closing the other one does not close this one
    with pytest.raises(UsageError, match="is closed"):
        pickle.dumps(cluster)
