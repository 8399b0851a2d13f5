"""The library: the whole loop through `l0gc.open`, and the contract on which programs may rely."""

from __future__ import annotations

import dataclasses
import inspect
import io
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
import pytest

import l0gc
from l0gc import api, errors
from l0gc.api import results
from l0gc.api.engine import Work, choose_engine
from l0gc.api.estimate import LISTING, EngineEstimate, SparkTarget
from l0gc.cli.main import APART, COMMANDS, TOOL, cli
from l0gc.cli.options import OperationOption
from l0gc.collect.record import read_attempts
from l0gc.errors import CorruptObjectError
from l0gc.keys import journal_log
from l0gc.operations import OPERATIONS, types_of
from l0gc.settings import Settings
from l0gc.storage.config import StoreConfig
from l0gc.storage.parallel import Parallel
from l0gc.streamlog import reader
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.delete_records import delete_records
from tests.collect.test_sweep_local import Failing, a_cluster, level_zero
from tests.support.cli import opens
from tests.support.memory_store import another_process, copy_of, memory_cluster, publish_m, store_of, topic_in_memory
from tests.support.reconcile import put

ROOT = Path(__file__).parents[1]
URL = "s3://bucket/prefix"

CONTRACT = {
    "init": "cluster_id cluster_epoch created",
    "upload": "records objects placeholders retries",
    "housekeep": "cluster_epoch advanced checkpoints",
    "reconcile": "records l1_objects partitions",
    "merge": "merged lost errors",
    "compute-watermark": "watermark previous_watermark cluster_epoch partitions held_back_by listing published",
    "listing": "objects bytes eligible_objects eligible_bytes unparsable",
    "sweep": "watermark listed eligible deleted bytes failed held_by_age unparsable requests engine seconds run_id",
    "topic": "name revision partitions",
    "expire": "partitions records l1_objects bytes lost starts errors",
    "delete-records": "partitions records l1_objects bytes lost starts errors",
    "status": "cluster_id cluster_epoch watermark computable_watermark held_back_by unreconciled_records garbage",
}
"""The fields that each command's JSON has at least."""


def has_the_names_of(command: str, result: object) -> None:
    assert [name for name in CONTRACT[command].split() if not hasattr(result, name)] == []


@contextmanager
def over(handles: ClusterHandles, monkeypatch: pytest.MonkeyPatch) -> Iterator[l0gc.Cluster]:
    """Open the library on a cluster in memory."""
    opens(handles, monkeypatch)
    with l0gc.open(URL) as cluster:
        yield cluster


def test_a_damaged_journal_refuses_uploads_as_damaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handles = topic_in_memory(1)
    put(handles, "events", {0: [b"a"]})
    publish_m(handles, 0)
    key = max(k for k in store_of(handles).objects if k.startswith(journal_log(0) + "log/"))
    store_of(handles).put(key, b"nonsense")
    with (
        over(another_process(handles), monkeypatch) as cluster,
        pytest.raises(CorruptObjectError, match=rf"{key}.*; restore the named object from a version or a backup$"),
    ):
        cluster.upload("events", io.BytesIO(b"b\n"))


# -- the loop -------------------------------------------------------------------------------------------------------------


@pytest.mark.weed
def test_the_whole_loop_runs_without_spark_and_without_a_command(bucket: StoreConfig, tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    path.write_bytes(b'{"user":"ann"}\n{"user":"bob"}\n')
    with l0gc.open(bucket.url) as cluster:
        founded = cluster.init(create_bucket=True, shards=8, journals=2)
        assert (founded.created, cluster.init().created) == (True, False)
        topic = cluster.topics.create("events", partitions=4, journals=2)
        known = cluster.topics.list().topics[0]
        there = cluster.topics.create("events", 4, 2)
        assert (topic.created, there.created) == (True, False)
        assert topic.to_json() | {"created": False} == there.to_json() == known.to_json() | {"created": False}
        assert {topic.topic_id, there.topic_id} == {known.topic_id}
        assert cluster.topics.list() == [known]

        uploaded = cluster.upload("events", path, key_field="user", producer="nightly")
        assert (uploaded.records, uploaded.skipped) == (2, 0)
        again = cluster.upload("events", str(path), key_field="user", producer="nightly")
        assert (again.records, again.skipped) == (0, 2)
        with path.open("rb") as f:
            cluster.upload("events", f, [b"three", b"four"], (b"%d" % n for n in range(3)), partition=1)
            assert not f.closed  # the file is the caller's
        records = list(cluster.read("events"))
        assert sorted(r.key for r in records if r.key is not None) == [b"ann", b"bob"]
        ones = [r.value for r in cluster.read("events", partition=1) if r.key is None]
        assert ones == [*path.read_bytes().splitlines(), b"three", b"four", b"0", b"1", b"2"]
        assert [r.offset for r in cluster.read("events", partition=1, start=2)][:1] == [2]

        reconciled = cluster.reconcile()
        assert (reconciled.records, reconciled.errors) == (9, [])
        for _ in range(3):
            cluster.upload("events", [b"more"], partition=1)
            cluster.reconcile()
        records = list(cluster.read("events"))
        planned, merged = cluster.merge(dry_run=True), cluster.merge()
        assert (planned.objects_before, merged.objects_before, merged.objects_after) == (4, 4, 1)
        assert list(cluster.read("events")) == records
        assert cluster.merge(topic="events", fan_in=2).objects_before == 0
        epoch = cluster.epoch
        housekept = cluster.housekeep(barrier=True)
        assert housekept.cluster_epoch == cluster.epoch > epoch
        assert not cluster.compute_watermark(scan=False, dry_run=True).published
        computed = cluster.compute_watermark()
        assert computed.published
        assert computed.listing is not None
        objects = computed.listing.eligible_objects
        assert objects > 0
        tried = cluster.sweep(dry_run=True)
        swept = cluster.sweep()
        assert tried.deleted == swept.deleted == objects
        assert cluster.sweep().deleted == 0
        assert not any(removed.objects for removed in cluster.vacuum().deleted.values())
        assert list(cluster.read("events")) == records

        now = cluster.status()
        assert (now.watermark, now.unreconciled_records) == (computed.watermark, 0)
        assert {a.command for a in now.attempts} >= {"housekeep", "reconcile", "compute-watermark", "sweep"}
        assert cluster.topics.alter("events", retention_bytes=0).retention_bytes == 0
        would, expired = cluster.expire(dry_run=True), cluster.expire()
        assert would == expired
        assert expired.records == len(records)
        cluster.upload("events", [b"last"], partition=1)
        deleted = cluster.delete_records("events", 1, before_offset=-1)
        assert (deleted.records, list(cluster.read("events"))) == (1, [])
        described = cluster.topics.describe("events", partition=1)
        assert described.offsets[0].log_start_offset == described.offsets[0].next_offset
        assert cluster.topics.delete("events").revision == topic.revision
        assert cluster.topics.list() == []
    for command, result in {
        "init": founded, "upload": uploaded, "housekeep": housekept, "reconcile": reconciled, "merge": merged,
        "listing": computed.listing, "expire": expired, "delete-records": deleted,
        "compute-watermark": computed, "sweep": swept, "topic": topic, "status": now,
    }.items():  # fmt: skip
        has_the_names_of(command, result)


@pytest.mark.weed
def test_the_readmes_snippet_runs(
    bucket: StoreConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (snippet,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    named = re.search(r'l0gc\.open\("([^"]+)"\)', snippet)
    assert named is not None
    (tmp_path / "day-1.ndjson").write_bytes(b'{"user":"ann"}\n{"user":"bob"}\n')
    monkeypatch.chdir(tmp_path)
    with l0gc.open(bucket.url) as cluster:
        cluster.init(create_bucket=True, shards=8)
    left: dict[str, Any] = {}
    exec(snippet.replace(named[1], bucket.url), left)
    assert len(left["records"]) == 2
    assert "objects would be deleted" in capsys.readouterr().out


@pytest.mark.weed
@pytest.mark.spark
@pytest.mark.thorough
def test_with_a_session_spark_does_the_work(bucket: StoreConfig) -> None:
    from tests.support.spark import shared_spark

    with shared_spark() as spark, l0gc.open(bucket.url) as cluster:
        cluster.init(create_bucket=True, shards=8)
        cluster.topics.create("events", partitions=4)
        cluster.upload("events", [b"%d" % n for n in range(100)])
        assert cluster.reconcile(spark).records == 100
        cluster.housekeep(barrier=True)
        computed = cluster.compute_watermark(spark)
        assert computed.listing is not None
        assert cluster.sweep().deleted == computed.listing.eligible_objects == 1
        assert len(list(cluster.read("events"))) == 100


@pytest.mark.parametrize("reconciled", [False, True])
def test_a_read_with_a_pin_ignores_later_deletions(monkeypatch: pytest.MonkeyPatch, *, reconciled: bool) -> None:
    """The deletions stay invisible even if this process reads the journals anew for another call."""
    monkeypatch.setattr(reader, "WINDOW_BYTES", 1)  # one partition after another, as in a large topic
    handles = topic_in_memory(3)
    with over(handles, monkeypatch) as cluster:
        cluster.upload("events", [b"%d" % n for n in range(9000)])
        if reconciled:
            cluster.reconcile()
        records = cluster.read("events", pin=True)
        got = [next(records)]
        delete_records(another_process(handles), "events", before_offset=-1)
        cluster.topics.describe("events")
        assert list(cluster.read("events")) == []
        assert len(got + list(records)) == 9000


# -- failures -------------------------------------------------------------------------------------------------------------


def test_a_partial_deletion_error_reports_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    handles = a_cluster(Failing(), watermark=4)
    before = len(level_zero(handles))
    with over(handles, monkeypatch) as cluster, pytest.raises(errors.PartialFailureError, match="locked") as raised:
        cluster.sweep()
    result = raised.value.result
    assert isinstance(result, api.SweepResult)
    assert result.failed > 0
    assert result.deleted == before - len(level_zero(handles)) > 0
    assert not read_attempts(handles.store, handles.parallel).known["sweep"].ok


def test_a_journal_that_cannot_be_kept_is_an_error_after_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    handles = memory_cluster()
    topic = handles.controller.create_topic("events", 2, 2)[0]
    handles.store.put(f"{journal_log(topic.journals[1])}log/{0:020}", b"{}")
    with over(handles, monkeypatch) as cluster:
        with pytest.raises(errors.PartialFailureError, match="housekeeping failed for 1 log") as raised:
            cluster.housekeep(barrier=True)
        assert isinstance(raised.value.result, api.HousekeepResult)
        assert raised.value.result.barriers == 1
        with pytest.raises(errors.PartialFailureError, match="could not be closed"):
            cluster.topics.delete("events")
        assert cluster.topics.list() == []


def test_a_missing_topic_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    handles = topic_in_memory(2)
    with over(handles, monkeypatch) as cluster:
        with pytest.raises(errors.NotFoundError):
            cluster.read("event")
        with pytest.raises(errors.UsageError, match="0 to 1"):
            cluster.read("events", partition=2)
        with pytest.raises(errors.UsageError, match="exclude each other"):
            cluster.upload("events", [b"{}"], partition=0, key_field="user")
    with pytest.raises(errors.UsageError, match="s3://bucket"):
        l0gc.open("bucket")


def test_a_closed_cluster_is_refused_and_its_threads_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    with over(memory_cluster(), monkeypatch) as cluster:
        assert cluster.epoch >= 0
    for use in (cluster.status, cluster.housekeep, cluster.topics.list, lambda: cluster.epoch):
        with pytest.raises(errors.UsageError, match="is closed"):
            use()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("pin", [False, True])
def test_iterators_and_senders_are_refused_once_their_cluster_is_closed(
    begun: bool, pin: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The threads that they would wait for have ended."""
    for limit in ("WINDOW_BYTES", "ROWS"):  # so that partitions are read one after another
        monkeypatch.setattr(reader, limit, 1)
    handles = topic_in_memory(4, 2)
    put(handles, "events", {p: [b"a", b"b"] for p in range(4)})
    with (
        Parallel(2) as handles.parallel,
        over(handles, monkeypatch) as cluster,
        cluster.producers.sender("events", "bridge") as sender,
    ):
        left: list[Iterator[Any]] = [
            read("events", pin=pin) for read in (cluster.read, cluster.read_lines, cluster.read_arrow)
        ]
        if begun:
            assert all(next(some) for some in left)
            sender.send([api.Record(b"c", partition=0)], {0: 1})
    there = copy_of(store_of(handles))
    for some in left:
        with pytest.raises(errors.UsageError, match="is closed"):
            list(some)
    with pytest.raises(errors.UsageError, match="is closed"):
        sender.send([api.Record(b"d", partition=0)], {0: 2})
    assert copy_of(store_of(handles)) == there


def test_a_program_publishes_m_for_its_own_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program is that of docs/work/external-log.md."""
    handles = memory_cluster(bootstrap=False)
    handles.controller.bootstrap(shards=4, external_log=True)
    theirs = api.ExternalEpochs(cluster_epoch=50, partitions={("t", 0): 3}, gc_epochs={("t", 0): 40})
    with over(handles, monkeypatch) as cluster:
        assert cluster.compute_watermark(external=theirs, scan=False, dry_run=True).published is False
        result = cluster.compute_watermark(external=theirs, scan=False)
        assert (result.watermark, result.listing, cluster.status().watermark) == (40, None, 40)
        with pytest.raises(errors.SafetyError, match="the list of partitions is empty"):
            cluster.compute_watermark(external=dataclasses.replace(theirs, partitions={}))
    own = memory_cluster()
    with over(own, monkeypatch) as cluster, pytest.raises(errors.SafetyError, match="init --external-log"):
        cluster.compute_watermark(external=theirs, scan=False)


@pytest.mark.parametrize(
    ("wanted", "cores", "cluster", "java", "size", "chosen", "why"),
    [
        ("local", 32, True, True, 10**9, "local", "--engine"),
        ("spark", 2, False, False, 5, "spark", "--engine"),
        (
            "auto",
            32,
            True,
            False,
            10**9,
            "spark",
            "1,000,000,000 things: 8,333.3 s estimated in this process, 1,959.6 s on",
        ),
        (
            "auto",
            32,
            True,
            True,
            5,
            "local",
            "5 things: 0.0 s estimated in this process, 6.5 s on Spark (there, 32 cores)",
        ),
        ("auto", 32, True, True, -1, "spark", "the number of things is not known, and a cluster is given"),
        ("auto", 32, False, True, -1, "local", "the number of things is not known"),
        (
            "auto",
            2,
            False,
            True,
            10**9,
            "local",
            "Spark (there, 2 cores) would take longer, however much there is to do",
        ),
        ("auto", 32, False, True, 10**9, "spark", "s on Spark (there, 32 cores)"),
        ("auto", 32, False, False, 10**9, "local", "which needs Java 17"),
    ],
)
def test_the_engine_is_the_named_or_cheaper_one(
    wanted: str,
    cores: int,
    cluster: bool,
    java: bool,
    size: int,
    chosen: str,
    why: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    work = Work(lambda enough: size, "things", LISTING)
    found, reason = choose_engine(wanted, work, SparkTarget("there", cores, cluster), cores=2, java=java)
    assert found == chosen
    assert why in reason
    assert bool(caplog.messages) == ("Java" in why)


def test_what_one_process_must_do_stays_here_and_spark_is_refused() -> None:
    work = Work(lambda enough: 10**9, "things", LISTING, limits="--max-objects")
    there = SparkTarget("there", 32, cluster=True)
    with pytest.raises(errors.UsageError, match="only one process can keep --max-objects: use --engine local"):
        choose_engine("spark", work, there, cores=2, java=True)
    assert choose_engine("auto", work, there, cores=2, java=True) == (
        "local", "only one process can keep --max-objects",
    )  # fmt: skip


def test_nobody_counts_further_than_the_size_from_which_spark_is_faster() -> None:
    asked = list[int]()

    def size(enough: int) -> int:
        asked.append(enough)
        return enough

    there = SparkTarget("there", 32, cluster=True)
    assert choose_engine("auto", Work(size, "things", LISTING), there, cores=2, java=True)[0] == "spark"
    assert asked == [EngineEstimate(LISTING, 0, 2, there).break_even]
    here = SparkTarget("local[2]", 2)
    assert choose_engine("auto", Work(size, "things", LISTING), here, cores=2, java=True)[0] == "local"
    assert len(asked) == 1


# -- imports, and the contract --------------------------------------------------------------------------------------------


def test_the_environment_names_the_region_unless_the_program_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[StoreConfig] = []
    expected: list[dict[str, Any]] = []

    @contextmanager
    def opened(config: StoreConfig, **settings: Any) -> Iterator[tuple[Any, Any]]:
        seen.append(config)
        expected.append(settings)
        yield None, None

    monkeypatch.setattr(api.cluster, "open_cluster", opened)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://botocore-reads-this:1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    l0gc.open(URL)
    place: dict[str, Any] = {"endpoint_url": "http://mine:2", "region": "eu-north-1", "profile": "p"}
    l0gc.open(URL, **place, cluster_id="ours", epoch_interval_s=5, store_timeout_s=30, idle_timeout_s=20)
    assert seen == [
        StoreConfig("bucket", "prefix/", None, "eu-west-1"),
        StoreConfig("bucket", "prefix/", "http://mine:2", "eu-north-1", "p", timeout_s=30, idle_s=20),
    ]
    assert expected[1] == {"expected_cluster_id": "ours", "epoch_interval_s": 5}


@pytest.mark.parametrize(
    ("code", "not_loaded"),
    [
        ("import l0gc; l0gc.errors.L0gcError", "boto3 botocore numpy pyarrow pyspark click msgspec l0gc.api"),
        ("import l0gc; l0gc.open('s3://b/p').close()", "botocore pyspark click rich l0gc.cli"),
    ],
)
def test_the_import_loads_nothing_that_is_not_used(code: str, not_loaded: str) -> None:
    loaded = f"{code}\nimport sys; print([m for m in {not_loaded.split()} if m in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"


def test_a_name_that_l0gc_does_not_have_is_an_attribute_error() -> None:
    assert l0gc.Cluster is api.Cluster
    with pytest.raises(AttributeError, match="no attribute 'opne'"):
        l0gc.opne  # type: ignore[attr-defined]  # noqa: B018


def test_the_page_has_the_docstrings_and_the_example() -> None:
    """If this fails, run docs/programs/library.py."""
    module = runpy.run_path(str(ROOT / "docs/programs/library.py"))
    text = (ROOT / "docs/work/library.md").read_text()
    assert text.partition(module["BEGIN"])[2] == "\n" + module["reference"]()
    blocks = [block.split("```")[0] for block in text.split("```python\n")[1:]]
    assert blocks[0] in (ROOT / "examples/notebook.py").read_text()
    (follower,) = [block for block in blocks if "caught_up=database.commit" in block]
    assert follower in (ROOT / "examples/follow_to_sqlite.py").read_text()


OTHERWISE = {"epoch show": "epoch", "epoch advance": "advance_epoch", "log show": "log"}
GROUPS = {"topic": "topics", "producer": "producers", "runs": "runs", "pin": "pins", "table": "tables"}


_OUTPUT: Final = {"metrics_file", "pushgateway", "yes", "all_partitions", "output", "save_plan", "list", "watch"}
"""Options about output on this machine, or about confirmation."""
_ENGINE: Final = {"engine", "master", "conf", "send_credentials"}
"""Options that make the `spark` of a method."""
_UNITS: Final = {"_s", "_ms"}
"""Suffixes of parameters with a unit, which the option has in its value instead."""
EXCEPTIONS: Final = {
    "give-up --object": "objects",
    "housekeep --accept-set-back": "a method of its own: accept_set_back",
    "log show --controller": "the log that is shown without a journal",
    "log show --from": "start",
    "read --follow": "a method of its own: follow",
    "read --format": "how the records are written; the library returns them",
    "read --from": "start",
    "read --interval": "interval_s of follow",
    "runs show --all": "each",
    "topic alter --defaults": "a method of its own: alter_defaults",
    "undelete --run": "run_id",
    "upload FILE...": "sources",
}
"""Options without a parameter of their name: the parameter's name, or the reason."""


def _commands() -> dict[str, click.Command]:
    """Return the commands that act on a cluster."""
    context = click.Context(cli)
    found = dict[str, click.Command]()
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        leaves = command.commands if isinstance(command, click.Group) else {"": command}
        found |= {f"{name} {leaf}".rstrip(): each for leaf, each in leaves.items()}
    apart = {name for name, row in COMMANDS.items() if row.group == TOOL or row.effect == (APART, "")}
    return {name: each for name, each in found.items() if name.split()[0] not in apart}


def _method(command: str) -> Any:
    group, _, leaf = command.rpartition(" ")
    place = getattr(api, GROUPS[group].capitalize()) if group in GROUPS else l0gc.Cluster
    return getattr(place, OTHERWISE.get(command, leaf.replace("-", "_")), None)


def test_the_library_does_what_the_commands_do() -> None:
    assert [command for command in sorted(_commands()) if _method(command) is None] == []


def test_every_command_or_its_method_is_run_by_a_test() -> None:
    """A test counts only outside of this file and those that list all commands."""
    lists = {"test_api.py", "test_refused.py", "test_docs.py", "iam.py"}
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py") if path.name not in lists)
    untested = []
    for command in _commands():
        words = '"(?:, ?"| )'.join(command.split())
        method = OTHERWISE.get(command, command.rpartition(" ")[2].replace("-", "_"))
        place = rf"{GROUPS[command.split()[0]]}\." if command.split()[0] in GROUPS else ""
        if not re.search(rf"[\"']{' '.join(command.split())}\b|\"{words}\"|\.{place}{method}\(", tests):
            untested.append(command)
    assert untested == []


def test_the_library_takes_what_the_commands_take() -> None:
    """Each option has a parameter of its name, except those about the output, the engine and the connection."""
    connection = {*Settings.__struct_fields__} | {"config", "context"}
    missing = set()
    for command, each in _commands().items():
        method = _method(command)
        parameters = set() if isinstance(method, property) else set(inspect.signature(method).parameters)
        if any(isinstance(p, OperationOption) for p in each.params):
            parameters |= set(types_of(OPERATIONS[command.replace(" ", "-")]))
        if "external" in parameters:
            parameters |= {f.name for f in dataclasses.fields(api.ExternalFiles)}
        for p in each.params:
            if isinstance(p, OperationOption) and p.section != command.replace(" ", "-"):
                continue  # an option of a step of gc, which takes it as a struct
            names = {o.removeprefix("--").replace("-", "_") for o in p.opts if not o.startswith("-") or "--" in o}
            names |= {n.removeprefix("no_") for n in names}
            known = parameters | {n.removesuffix(u) for n in parameters for u in _UNITS}
            if not names & (known | connection | _OUTPUT | _ENGINE):
                missing.add(f"{command} {p.opts[0] if p.param_type_name == 'option' else p.human_readable_name}")
    assert missing == set(EXCEPTIONS)


_SECTION: Final = re.compile(r"^#{2,3} l0gc (.+)$(?s:(.*?))(?=^#{2,3} l0gc |\Z)", re.MULTILINE)
_FIELD: Final = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
_FIELDS_OF: Final = "<!-- generated: fields of "


def result_of(command: str) -> Any:
    """Return the class that a command's method returns."""
    name = str(inspect.signature(_method(command)).return_annotation).removesuffix(" | None")
    return getattr(api, name.removeprefix("Iterator[").removesuffix("]"))


def test_results_have_as_attributes_what_the_contract_promises() -> None:
    """Each field in a command's table is an attribute of its method's result; the lines of a log are in `data`."""
    promised, methods = dict[str, list[str]](), _commands().keys() - {"epoch show", "log show"}
    for section in _SECTION.finditer((ROOT / "docs/reference/json.md").read_text()):
        if _FIELDS_OF in section[2] and section[1] in methods:
            table = section[2].partition(_FIELDS_OF)[2].split("\n\n")[1]
            promised[section[1]] = _FIELD.findall(table)
    assert len(promised) > 25
    missing = {}
    for command, names in promised.items():
        kind = result_of(command)
        there = {*getattr(kind, "__struct_fields__", ()), *getattr(kind, "__dataclass_fields__", ())}
        there |= {name for name in names if isinstance(inspect.getattr_static(kind, name, None), property)}
        if set(names) - there:
            missing[command] = sorted(set(names) - there)
    assert missing == {}


GOOD = """
from pathlib import Path
import l0gc
from l0gc.api import Record, SweepResult

def nightly(url: str, days: list[Path]) -> int:
    with l0gc.open(url, region="eu-west-1", cluster_id="x") as cluster:
        if not any(t.name == "events" for t in cluster.topics.list()):
            cluster.topics.create("events", partitions=8)
        cluster.upload("events", *days, key_field="user", producer="nightly")
        cluster.upload("events", [b"one", b"two"], open("x", "rb"), "-", partition=3)
        cluster.housekeep()
        cluster.reconcile(topic="events")
        m: int = cluster.compute_watermark(scan=False).watermark
        try:
            swept: SweepResult = cluster.sweep(min_age_s=60.0)
        except l0gc.errors.PartialFailureError as e:
            print(e, e.exit_code, e.result)
            return 1
        record: Record | None = next(cluster.read("events", partition=3), None)
        return m + swept.deleted + cluster.epoch + cluster.status().lag_epochs + (record.offset if record else 0)
"""
BAD = """
import l0gc
l0gc.opne("s3://b/p")
with l0gc.open("s3://b/p") as cluster:
    cluster.upload("events", "day.ndjson", partition="3")
    cluster.sweep(True)
    cluster.sweep().removed
    cluster.read("events").offset
"""


@pytest.mark.thorough
@pytest.mark.slow
def test_a_users_script_is_checked_against_the_types(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(GOOD)
    bad.write_text(BAD)
    mypy = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path / 'cache'}"]
    ended = subprocess.run(
        [*mypy, "--follow-imports=silent", good, bad], cwd=ROOT, capture_output=True, text=True, check=False
    )
    wrong = [line for line in ended.stdout.splitlines() if ": error:" in line]
    assert [int(line.rpartition("bad.py:")[2].partition(":")[0]) for line in wrong] == [3, 5, 6, 7, 8], ended.stdout


def test_a_half_read_iterator_is_refused_after_its_with_block(monkeypatch: pytest.MonkeyPatch) -> None:
    handles = topic_in_memory(1, 1)
    put(handles, "events", {0: [b"a", b"b", b"c"]})
    with over(handles, monkeypatch) as cluster:
        left: list[Iterator[Any]] = [cluster.read("events"), cluster.read("events", pin=True), cluster.log(0)]
        for some in left:
            next(some)
    for some in left:
        with pytest.raises(errors.UsageError, match="is closed"):
            next(some)


def test_a_topic_that_was_created_again_is_refused_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    handles = topic_in_memory(1, 1)
    put(handles, "events", {0: [b"a", b"b", b"c"]})
    with over(handles, monkeypatch) as cluster:
        topic_id = cluster.topics.describe("events").topic_id
        assert len(list(cluster.read("events", 0, 2, topic_id=topic_id))) == 1
        cluster.topics.delete("events")
        cluster.topics.create("events", partitions=1)
        cluster.upload("events", [b"d", b"e", b"f"])
        assert [r.value for r in cluster.read("events", 0, 2)] == [b"f"]  # only the id distinguishes them
        for read in (cluster.read, cluster.read_arrow, cluster.read_lines):
            with pytest.raises(errors.NotFoundError, match=f"not {topic_id}: it was deleted and created again"):
                next(iter(read("events", 0, 2, topic_id=topic_id)))


def test_the_signature_of_every_public_class_can_be_shown() -> None:
    """`help` shows it, and so does the site."""
    classes = [c for c in (api.GcResult, *vars(results).values()) if inspect.isclass(c)]
    assert all(inspect.signature(c) is not None for c in classes)
    assert len(classes) > 20
