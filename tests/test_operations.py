"""Every option of every operation arrives: through the command, the environment, the settings file, the library and
`gc`.
"""

from __future__ import annotations

import importlib
import inspect
import re
import runpy
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

import msgspec
import pytest

from l0gc import api
from l0gc.api.gc import Due
from l0gc.api.groups import Tables
from l0gc.cli.main import cli
from l0gc.errors import EndedError, UsageError
from l0gc.operations import (
    OPERATIONS,
    Gc,
    Merge,
    Operation,
    Read,
    Reconcile,
    Sweep,
    bounded,
    default_of,
    step_of,
    texts_of,
    types_of,
    written,
)
from l0gc.streamlog.level_one.merge import MAX_BYTES
from l0gc.streamlog.level_one.merge_plan import MergeRule
from l0gc.streamlog.level_one.reconcile import reconcile
from tests.collect.test_sweep_shadow import PARTIAL
from tests.support.cli import opens
from tests.support.memory_store import publish_m, topic_in_memory
from tests.support.merge import a_cluster, fill
from tests.support.tries import sampled

ROOT: Final = Path(__file__).parents[1]
ARGUMENTS: Final = {"upload": ("events", "some.ndjson"), "table-sync": (), "read": ("events", "--json")}
"""The arguments that a command requires, besides its options."""


def options_of(operation: type[Operation]) -> list[str]:
    return [name for name, kind in types_of(operation).items() if step_of(kind) is None]


def another(operation: type[Operation], name: str) -> tuple[Any, str]:
    """Return a value that is not the option's default, and its form on the command line."""
    kind, default = bounded(types_of(operation)[name])[0], default_of(operation, name)
    if kind is bool:
        return not default, ""
    if name.endswith("_s"):
        return 7 * 60, "7m"
    if name.endswith("_time_ms"):
        return 1_767_225_600_000, "2026-01-01T00:00:00Z"
    if name.endswith("_bytes"):
        return 3 << 20, "3MiB"
    if get_origin(kind) is Literal:
        other = next(value for value in get_args(kind) if value != default)
        return other, other
    if get_origin(kind) is tuple:
        return (1, 2), "1-2"
    return {int: (3, "3"), float: (0.25, "0.25"), str: ("x", "x"), Path: (Path("kept"), "kept")}[kind]


class Arrived(UsageError):
    """Ends the call whose arguments the test reads."""


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str], dict[str, Any]]:
    """Return a function that makes another function end with its arguments, by name, and returns where they are."""

    def spy(place: Any, name: str) -> dict[str, Any]:
        real, call = getattr(place, name), dict[str, Any]()

        def called(*args: Any, **kwargs: Any) -> None:
            call.update(inspect.signature(real).bind_partial(*args, **kwargs).arguments)
            raise Arrived(name)

        monkeypatch.setattr(place, name, called)
        return call

    opens(topic_in_memory(4), monkeypatch)
    return spy


def method_of(operation: type[Operation]) -> tuple[Any, str]:
    return (
        (Tables, "sync")
        if operation.command() == "table-sync"
        else (api.Cluster, operation.command().replace("-", "_"))
    )


def run(operation: type[Operation], *options: str) -> None:
    command = operation.command()
    words = command.split("-") if command == "table-sync" else [command]
    with pytest.raises(Arrived):
        cli.main([*words, *ARGUMENTS.get(command, ()), *options], prog_name="l0gc", standalone_mode=False)


def given_as(
    source: str, section: str, key: str, text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> list[str]:
    """Give a value in one of the three ways; return the command's arguments for it."""
    if source == "flag":
        return [f"--{key}", text] if text else [f"--{key}"]
    if source == "environment":
        monkeypatch.setenv(f"L0GC_{section}_{key}".replace("-", "_").upper(), text or "1")
        return []
    (tmp_path / "l0gc.toml").write_text(f"[{section}]\n{key} = {repr(text) if text else 'true'}\n")
    return ["--config", str(tmp_path / "l0gc.toml")]


SOURCES = ("flag", "environment", "file")
Seen = Callable[[Any, str], dict[str, Any]]
each_operation = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)


@pytest.mark.parametrize(
    ("operation", "source"),
    sampled(
        [(operation, source) for operation in OPERATIONS.values() for source in SOURCES],
        [(operation, "flag") for operation in OPERATIONS.values()]
        + [(OPERATIONS["merge"], source) for source in SOURCES],
    ),
    ids=lambda value: value if isinstance(value, str) else value.command(),
)
def test_a_command_hands_each_option_to_its_method(
    operation: type[Operation], source: str, seen: Seen, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    call = seen(*method_of(operation))
    for name in options_of(operation):
        value, text = another(operation, name)
        with monkeypatch.context() as m:
            run(operation, *given_as(source, operation.command(), written(operation, name), text, m, tmp_path))
        own = {n: v for n, v in call.items() if n in types_of(operation)}
        assert operation(**call["options"], **own) == msgspec.structs.replace(operation(), **{name: value})


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("step", [name for name, kind in types_of(Gc).items() if step_of(kind)])
def test_the_command_gc_hands_each_option_to_its_step(
    step: str, source: str, seen: Seen, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    operation: Any = step_of(types_of(Gc)[step])
    call = seen(api.Cluster, "gc")
    for name in [n for n in types_of(operation) if n != "dry_run"]:
        value, text = another(operation, name)
        section, key = operation.command(), written(operation, name)
        with monkeypatch.context() as m:
            arguments = given_as(source, section, key, text, m, tmp_path)
            run(Gc, *[a.replace("--", f"--{section}-") if source == "flag" else a for a in arguments])
        assert call["options"] == msgspec.structs.asdict(
            msgspec.structs.replace(Gc(), **{step: operation(**{name: value})})
        )
    run(Gc, f"--no-{operation.command()}")
    assert call["options"][step] is None


CORE: Final = {
    "init": ("l0gc.streamlog.founding", "found_cluster"),
    "upload": ("l0gc.streamlog.ingest.uploader", "open_upload"),
    "read": ("l0gc.streamlog.reader", "read_topic"),
    "housekeep": ("l0gc.streamlog.housekeep", "housekeep"),
    "reconcile": ("l0gc.streamlog.level_one.reconcile", "reconcile"),
    "merge": ("l0gc.streamlog.level_one.merge", "plan_merge"),
    "expire": ("l0gc.streamlog.level_one.expire", "expire"),
    "table-sync": ("l0gc.integrations.iceberg.sync", "sync_tables"),
    "compute-watermark": ("l0gc.watermark.pipeline", "run_pipeline"),
    "sweep": ("l0gc.collect.sweep", "SweepRun"),
    "vacuum": ("l0gc.collect.vacuum", "VacuumRun"),
    "verify": ("l0gc.inspect.verify.run", "verify"),
}
"""The function that does an operation's work."""
ELSEWHERE: Final = {
    ("merge", "dry_run"),
    ("read", "pin"),
    ("read", "topic_id"),
    ("verify", "shadow"),
    ("verify", "access_logs"),
}
"""Options that decide which function is called, if any: each has its own test, here or in test_api.py."""


def arrived(call: Any, name: str) -> Any:
    """Return a call's value of an option, in seconds: from an argument of its name, or one with an attribute of that
    name.
    """
    stem = name.removesuffix("_s")
    for argument in [call, *call.values()]:
        for key, divisor in ((name, 1), (f"{stem}_ms", 1000), ("keep_ms", 1000)):
            fields = getattr(argument, "__dataclass_fields__", getattr(argument, "__struct_fields__", ()))
            known = argument if argument is call else fields
            found = (argument[key] if argument is call else getattr(argument, key)) if key in known else None
            if found is not None:
                return found / divisor if divisor > 1 else found
    return None


@each_operation
def test_each_option_arrives_where_the_work_is_done(
    operation: Any, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It arrives by the operation's own method, and as a step of `gc`."""
    command = operation.command()
    if command == "gc":
        return  # its options are those of its steps
    step = command.replace("-", "_")
    nothing = dict.fromkeys(name for name, kind in types_of(Gc).items() if step_of(kind))
    for question in [name for name in vars(Due) if name.startswith("no_")]:
        monkeypatch.setattr(Due, question, lambda self: "")
    call = seen(importlib.import_module(CORE[command][0]), CORE[command][1])
    with api.open("s3://bucket") as cluster:
        method: Any = cluster.tables.sync if command == "table-sync" else getattr(cluster, step)
        if command == "read":
            method = lambda **options: [*cluster.read("events", **options)]  # noqa: E731
        ways: list[Callable[..., Any]] = [partial(method, *(("events", [b"x"]) if command == "upload" else ()))]
        if step in nothing:
            ways.append(lambda **options: cluster.gc(**nothing | {step: operation(**options)}))
        for name in options_of(operation):
            value, _ = another(operation, name)
            for way in ways if (command, name) not in ELSEWHERE else ():
                call.clear()
                with pytest.raises((Arrived, EndedError)):
                    way(**{name: value})
                if name == "scan":
                    assert call.get("scan") is None
                else:
                    assert arrived(call, name) == value, name


EFFECTS: Final = {
    ("gc", "shadow"): "test_gc_in_shadow_deletes_no_data_and_skips_nothing_later",
}
"""Options that only set another one, with the tests of their effect in tests/collect/test_sweep_shadow.py."""


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """Return the options that l0gc has not read yet, by their commands; building or checking an operation is not a
    read.
    """
    left = {(kind.command(), name) for kind in OPERATIONS.values() for name in options_of(kind)}

    def read(self: Operation, name: str) -> Any:
        reader = Path(sys._getframe(1).f_code.co_filename)
        if ROOT / "l0gc" in reader.parents and reader.name != "operations.py":
            left.discard((type(self).command(), name))
        return object.__getattribute__(self, name)

    monkeypatch.setattr(Operation, "__getattribute__", read, raising=False)
    return left


def test_every_option_is_read_by_the_run_that_takes_it(
    unread: set[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An option that arrives but is never read would be accepted without an effect."""
    handles = a_cluster()
    fill(handles, 4)
    publish_m(handles, 0)
    opens(handles, monkeypatch)
    with api.open("s3://bucket") as cluster:
        cluster.init()
        cluster.upload("events", [b"x"])
        assert [*cluster.read("events")]
        cluster.tables.sync()
        for operation in (
            "housekeep",
            "reconcile",
            "merge",
            "expire",
            "compute_watermark",
            "sweep",
            "vacuum",
            "verify",
            "gc",
        ):
            getattr(cluster, operation)()
    assert unread == set(EFFECTS)
    shadow = (ROOT / "tests/collect/test_sweep_shadow.py").read_text()
    assert all(f"def {name}(" in shadow for name in EFFECTS.values())


def test_every_option_is_used_in_a_test_of_its_effect() -> None:
    """The test is in another file, and runs the option's operation, by the command or the library."""
    tests = [path.read_text() for path in (ROOT / "tests").rglob("*.py") if path.name != Path(__file__).name]
    unused = []
    for kind in OPERATIONS.values():
        command = kind.command().replace("-", '(?:-| |", "|_)')
        runs = re.compile(rf"\b{kind.__name__}\(|\b{command}\(|[\"' ]{command}[\"' ]")
        for name in options_of(kind):
            flag = f"--(?:{kind.command()}-)?{written(kind, name)}"
            uses = re.compile(rf"\b{name}=|{flag}\b|\"{name}\"")
            if not any(uses.search(test) and runs.search(test) for test in tests):
                unused.append(f"{kind.command()} {name}")
    assert unused == []


def test_whether_a_shadow_run_is_whole_is_tested_with_each_option() -> None:
    """An option is exempt if its runs leave nothing or if it resembles a tested limit; every other option has its own
    test there.
    """
    partial_runs = {name for options in PARTIAL for name in options} | {"max_delete_ratio", "grace_s"}
    leave_nothing = {"dry_run", "shadow", "record", "record_dir", "max_rate", "purge_versions"}
    assert partial_runs | leave_nothing == set(types_of(Sweep))


def test_a_dry_merge_merges_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    handles = a_cluster()
    fill(handles, 4)
    opens(handles, monkeypatch)
    with api.open("s3://bucket") as cluster:
        for planned in (cluster.merge(dry_run=True), cluster.gc(merge=Merge(dry_run=True)).merge):
            assert planned is not None
            assert planned.dry_run
        assert planned is not None
        assert cluster.merge().objects_before == planned.objects_before > 0


# -- the descriptions -----------------------------------------------------------------------------------------------------


@each_operation
def test_each_option_is_described_and_nothing_else(operation: type[Operation]) -> None:
    assert list(texts_of(operation)) == options_of(operation)
    assert all(text[0].isupper() or text.startswith("auto") for text in texts_of(operation).values())


def test_the_keywords_of_the_library_are_the_options() -> None:
    """If this fails, run docs/programs/library.py."""
    keywords = runpy.run_path(str(ROOT / "docs/programs/library.py"))["keywords"]
    assert (ROOT / "l0gc/api/keywords.py").read_text() == keywords()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_objects", 0),
        ("max_rate", 0),
        ("max_delete_ratio", 1.5),
        ("min_age_s", -1),
        ("dry_run", "yes"),
        ("up_to", -1),
    ],
)
def test_an_out_of_bounds_value_is_refused_from_every_source(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{name} cannot be {value!r}: expected"):
        Sweep(**{name: value})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[sweep]\nmin-agee = "1h"', r"unknown option 'min-agee' in \[sweep\]; did you mean 'min-age'"),
        ('[sweep]\nmin-age = "soon"', r"has min-age = 'soon' in \[sweep\]: 'soon' is not a valid duration"),
        ("[sweep]\nmax-objects = 0", r"has max-objects = 0 in \[sweep\]: 0 is not in the range"),
        ("[swep]\nmin-age = 1", "unknown setting 'swep'"),
    ],
)
def test_a_wrong_option_in_the_settings_file_is_named_with_its_place(
    text: str, said: str, seen: Seen, tmp_path: Path
) -> None:
    seen(api.Cluster, "sweep")
    (tmp_path / "l0gc.toml").write_text(text)
    with pytest.raises(UsageError, match=said):
        cli.main(["sweep", "--config", str(tmp_path / "l0gc.toml")], prog_name="l0gc", standalone_mode=False)


def test_flags_precede_environment_context_and_file(
    seen: Seen, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    call = seen(api.Cluster, "sweep")
    (tmp_path / "l0gc.toml").write_text('sweep.min-age = "1s"\n[contexts.prod.sweep]\nmin-age = "2s"\n')
    file = ["--config", str(tmp_path / "l0gc.toml")]
    found = []
    for arguments, variable in (
        (file, ""),
        ([*file, "--context", "prod"], ""),
        (file, "3s"),
        ([*file, "--min-age", "4s"], "3s"),
    ):
        monkeypatch.setenv("L0GC_SWEEP_MIN_AGE", variable)
        run(Sweep, *file, *arguments)
        found.append(call["options"]["min_age_s"])
    assert found == [1, 2, 3, 4]


def test_merge_and_reconcile_rules_default_to_their_options() -> None:
    merge = Merge()
    assert MergeRule() == MergeRule(merge.target_bytes, merge.fan_in)
    assert merge.max_bytes == MAX_BYTES
    rounds = inspect.signature(reconcile).parameters["round_bytes"].default
    assert rounds == Reconcile().round_bytes


@pytest.mark.parametrize("name", ["from_time_ms", "before_time_ms"])
def test_a_time_before_1990_has_to_be_given_as_text(name: str) -> None:
    for number in (1, 1_767_225_600):
        with pytest.raises(UsageError, match=f"{name} cannot be {number}: .* are 1970-.* probably in another unit"):
            Read.of({name: number})
    moment = datetime(1985, 1, 1, tzinfo=UTC)
    assert getattr(Read.of({name: moment}), name) == 473_385_600_000
    assert getattr(Read.of({name: 0}), name) == 0


def test_deleting_before_a_number_of_seconds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    opens(topic_in_memory(1), monkeypatch)
    with api.open("s3://bucket") as cluster:
        with pytest.raises(UsageError, match="probably in another unit"):
            cluster.delete_records("events", before_time_ms=1_767_225_600)
        assert cluster.delete_records("events", before_time_ms=datetime(1985, 1, 1, tzinfo=UTC)).records == 0
