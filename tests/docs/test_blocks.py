"""Every block of the documents runs here, or in a named test, or has a written reason why nothing runs it."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import l0gc
from l0gc.keys import KeyLayout
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from tests.examples.command_lines import parse

ROOT: Final = Path(__file__).parents[2]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block of a document."""

    document: str
    text: str


def _blocks() -> list[Block]:
    listed = subprocess.run(["git", "ls-files", "-z", "*.md"], cwd=ROOT, capture_output=True, check=True).stdout
    names = sorted({*filter(None, listed.decode().split("\0"))})
    return [
        Block(name, text)
        for name in names
        if (ROOT / name).is_file()
        for _, text in FENCED.findall((ROOT / name).read_text())
    ]


BLOCKS: Final = _blocks()

WHOLE_DOCUMENTS: Final = {
    "docs/reference/commands.md": "tests/cli/test_docs.py::test_the_page_of_commands_is_up_to_date",
    "docs/reference/json.md": "tests/cli/test_docs.py::test_a_section_shows_real_json_and_explains_each_of_its_fields",
    "docs/work/library.md": "tests/test_api.py::test_the_page_has_the_docstrings_and_the_example",
}
"""Documents that a program writes, and the test that compares them with its present output."""

_ENGINES: Final = "tests/integrations/iceberg/test_engines.py::test_every_engine_reads_what_read_gives"
_BACKUP: Final = "tests/flows/test_backup.py::test_a_backup_of_a_busy_cluster_is_restored"
_COPIED_TABLES: Final = "tests/flows/test_backup.py::test_a_restored_copy_syncs_no_table_of_production_and_gets_its_own"
_SESSIONS: Final = "tests/cli/test_captures.py::test_the_sessions_of_the_readme_and_of_the_ladder_are_true"

_TUTORIAL_PAGE: Final = "docs/first-hour/tutorial.md"
_TUTORIAL: Final = "tests/docs/test_tutorial.py::test_a_newcomer_types_the_readme_and_the_tutorial_up_to_cron"
_REST: Final = "tests/integrations/iceberg/test_rest.py::server"

ELSEWHERE: Final = {
    ("README.md", "$ python3 -m venv"): _SESSIONS,
    ("README.md", "$ source .venv"): _SESSIONS,
    ("docs/first-hour/is-it-safe.md", "$ l0gc gc --shadow"): _SESSIONS,
    ("README.md", "import l0gc"): "tests/examples/test_readme.py::test_the_python_in_the_readme_runs",
    ("docs/work/external-log.md", "result = cluster"):
        "tests/spark/test_frames.py::test_data_frames_are_given_as_reports_and_partitions",
    ("docs/work/spark.md", "def enrich"):
        "tests/flows/test_spark_plans.py::test_a_view_keeps_its_plan_across_micro_batches",
    ("docs/work/spark.md", "CREATE TEMPORARY VIEW"): "tests/flows/test_spark_sql.py::test_the_documents_sql_reads_topics",
    ("docs/work/spark.md", "with l0gc.spark.pinned"):
        "tests/flows/test_spark_sql.py::test_the_documents_pinned_data_frame_outlives_its_topic",
    ("docs/work/spark.md", "with l0gc.spark.own_errors"):
        "tests/flows/test_spark_sql.py::test_the_error_of_a_stream_ends_with_l0gcs_sentence",
    ("examples/kafka/README.md", "l0gc topic create clicks"):
        "tests/integrations/test_kafka.py::test_a_bridge_that_is_killed_and_started_again_lands_each_record_once",
    ("docs/work/operate-spark.md", "spark-submit --master"):
        "tests/flows/test_spark_cluster.py::test_spark_submit_ends_with_the_commands_exit_code",
    ("docs/work/operate-permissions.md", '[{"Effect": "Allow"'):
        "tests/examples/test_iam.py::test_each_role_does_its_work_and_nobody_elses",
    ("docs/work/operate-backup.md", "l0gc pin create backup --ttl 2d"): _BACKUP,
    ("docs/work/operate-backup.md", "rclone copy --size-only --fast-list $BUCKET/level_one"): _BACKUP,
    ("docs/work/operate-backup.md", "rclone copy --fast-list $COPY $RESTORED"): _BACKUP,
    ("docs/work/operate-backup.md", "l0gc epoch advance --above $EPOCH --yes"): _BACKUP,
    ("docs/work/operate-backup.md", 'l0gc pause --why "restoring'): _BACKUP,
    ("docs/work/operate-backup.md", "l0gc table drop $TOPIC --forget"): _COPIED_TABLES,
    ("docs/work/operate-backup.md", "rclone copyto $COPY/l0gc/watermarks/published.json"): _BACKUP,
    ("docs/work/tables.md", "catalog:\n  lake:\n    type: sql"): _ENGINES,
    ("docs/work/tables.md", "catalog:\n  lake:\n    type: rest"): _REST,
    ("docs/work/tables.md", "from pyiceberg"): _ENGINES,
    ("docs/work/tables.md", "import polars"): _ENGINES,
    ("docs/work/tables.md", "import duckdb"): _ENGINES,
    ("docs/work/tables.md", "    s3.endpoint"): _ENGINES,
    ("docs/work/tables.md", "ATTACH 'lakehouse'"): _REST,
    ("docs/work/tables.md", "SELECT get_json"):
        "tests/flows/test_spark_sql.py::test_the_documents_sql_of_a_table_counts_its_users",
    (_TUTORIAL_PAGE, "$ l0gc upload flights /tmp/flights/*.ndjson --key-field carrier --producer f"): _TUTORIAL,
    (_TUTORIAL_PAGE, "$ l0gc upload flights /tmp/flights/*.ndjson --key-field carrier --producer s"): _TUTORIAL,
    (_TUTORIAL_PAGE, "$ l0gc status"): _TUTORIAL,
    (_TUTORIAL_PAGE, "$ l0gc gc --shadow --houseke"): _TUTORIAL,
    (_TUTORIAL_PAGE, "$ l0gc verify --shadow"): _TUTORIAL,
    (_TUTORIAL_PAGE, '$ l0gc pause --why "end of t'): _TUTORIAL,
    (_TUTORIAL_PAGE, "$ l0gc resume"): _TUTORIAL,
    (_TUTORIAL_PAGE, "$ l0gc runs list"): _TUTORIAL,
    (_TUTORIAL_PAGE, "$ env | grep -E '^(AWS|L0GC)"): _TUTORIAL,
    (_TUTORIAL_PAGE, "*/10 * * * * . $HOME/l0gc.en"): _TUTORIAL,
    (_TUTORIAL_PAGE, "$ grep -E '^l0gc_(epoch_lag|"): _TUTORIAL,
    (_TUTORIAL_PAGE, "rule_files:"): _TUTORIAL,
}  # fmt: skip
"""Blocks that another test runs."""

NOT_RUN: Final = {
    ("README.md", " records ──upload"): "a picture",
    ("docs/why/architecture.md", "            cli/  parse"): "a picture",
    ("docs/why/safety.md", "bound(p) ="): "a formula",
    ("docs/why/safety.md", "epochs  "): "a picture",
    ("CONTRIBUTING.md", "pip install"): "it downloads; CI begins with it",
    ("docs/work/external-log.md", "func key"): "it needs Go",
    ("docs/work/external-log.md", "fn key"): "it needs a crate of uuids",
    ("docs/work/external-log.md", "BEGIN ISOLATION"): "it needs Postgres",
    (
        "docs/work/operate-spark.md",
        "python -m venv l0gc-env",
    ): "it downloads 300 MB, and venv-pack, which nothing else needs",
    (
        "docs/work/tables.md",
        "pip install",
    ): "it downloads; its commands run in tests/integrations/iceberg/test_engines.py",
    ("docs/work/tables.md", "SELECT json_extract"): "it needs Trino",
    ("examples/README.md", "$ docker compose up"): "it needs Docker; tests/test_compose.py runs it where Docker is",
    ("examples/iam/README.md", "$ sed 's|BUCKET"): "it changes an AWS account",
    ("examples/systemd/README.md", "# useradd"): "it changes the machine as root",
}
"""Blocks that nothing runs, with the reasons."""


EXAMPLES: Final = {
    "airflow/*.py": "tests/examples/test_schedules.py",  # parsed: Airflow conflicts with the other libraries
    "cron/*": "tests/examples/test_schedules.py",  # its command lines are parsed: the tests have no cron
    "external_log/*.py": "tests/docs/test_blocks.py",
    "flights_to_ndjson.py": "tests/docs/test_blocks.py",
    "follow_to_sqlite.py": "tests/examples/test_programs.py",
    "grafana/*": "tests/cli/test_observability_files.py",  # its queries name metrics that exist
    "iam/*.json": "tests/examples/test_iam.py",
    "ingest_service.py": "tests/examples/test_programs.py",
    "kafka/*.py": "tests/integrations/test_kafka.py",  # mypy alone reads spark_kafka.py: its jar is not available
    "kubernetes/*.yaml": "tests/examples/test_schedules.py",  # parsed, like those of cron
    "notebook.py": "tests/examples/test_programs.py",
    "orchestrated_task.py": "tests/examples/test_programs.py",
    "prometheus/*": "tests/cli/test_observability_files.py",
    "spark_parquet.py": "tests/examples/test_spark_examples.py",
    "spark_submit/*.py": "tests/flows/test_spark_cluster.py",
    "spark_wordcount.py": "tests/examples/test_spark_examples.py",
    "systemd/*": "tests/examples/test_schedules.py",  # parsed, like those of cron
}
"""The test that runs an example, or reads one that cannot run here. The documents among them are in `BLOCKS`."""

HERE: Final[set[Block]] = set()
"""Blocks that the tests below run."""


def found(document: str, first: str) -> Block:
    """Return the only block of a document that begins like that."""
    (block,) = [b for b in BLOCKS if b.document == document and b.text.startswith(first)]
    return block


def here(document: str, first: str) -> str:
    """Return the text of a block that a test below runs."""
    HERE.add(found(document, first))
    return found(document, first).text


README_CONTEXTS = here("README.md", "context = ")
MAKE_TARGETS = here("README.md", "make demo") + here("CONTRIBUTING.md", "make check")
ONE_TEST = here("docs/why/architecture.md", ".venv/bin/python -m pytest")
EXTERNAL_COMMANDS = here("docs/work/external-log.md", "l0gc init --external-log --shards 16")
EXTERNAL_PYTHON = here("docs/work/external-log.md", "import l0gc")
KEY_OF_JAVA = here("docs/work/external-log.md", "static String key")
KEY_OF_SQL = here("docs/work/external-log.md", "CREATE MACRO key")
NO_SHARD = here("docs/work/external-log.md", "l0gc init --external-log --shards 1 --key")
EXTERNAL_SESSION = here("examples/external_log/README.md", "$ export")
FORMAT_FILE = here("docs/reference/format.md", '{"version"')
SEALED = here("docs/reference/format.md", '{"boundary"')
INVENTORY = here("docs/work/operate-schedule.md", "SELECT")
ON_A_CLUSTER = here("docs/work/operate-spark.md", "l0gc compute-watermark --master")
INFER = here("docs/work/tables.md", "l0gc topic infer")
METRICS = here("docs/reference/metrics.md", "l0gc gc")
PIN = here("docs/work/operate-stop.md", "with cluster.pin(")
DOCTOR = here("docs/first-hour/stores.md", "$ l0gc doctor")
FLIGHTS = here("examples/README.md", "$ python examples/flights")
SPARK = [
    here("docs/work/spark.md", first)
    for first in (
        "import l0gc.spark",
        "day = spark",
        "events = (",
        "keyed = rows",
        "with l0gc.open",
        "rows = spark.read.csv",
    )
]


def test_every_block_of_every_document_is_run_or_there_is_a_reason() -> None:
    known = [*HERE, *(found(*place) for place in [*ELSEWHERE, *NOT_RUN])]
    assert len(known) == len(set(known))
    assert set(known) == {b for b in BLOCKS if b.document not in WHOLE_DOCUMENTS}


def test_tests_that_are_said_to_run_a_block_exist() -> None:
    for named in {*WHOLE_DOCUMENTS.values(), *ELSEWHERE.values()}:
        file, _, name = named.partition("::")
        assert f"def {name}" in (ROOT / file).read_text(), named


def test_every_example_has_a_test() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "examples"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    examples = [name.removeprefix("examples/") for name in listed.splitlines() if not name.endswith(".md")]
    matching = {name: [pattern for pattern in EXAMPLES if fnmatch(name, pattern)] for name in examples}
    assert {name: patterns for name, patterns in matching.items() if len(patterns) != 1} == {}
    assert {pattern for patterns in matching.values() for pattern in patterns} == set(EXAMPLES)
    for pattern, test in EXAMPLES.items():
        assert re.split(r"[/*.]", pattern)[0].partition("_")[0] in (ROOT / test).read_text(), pattern


def test_what_the_sites_first_page_shows_is_what_the_readme_shows() -> None:
    (shown,) = re.findall(
        r"^\.\. code-block:: console\n\n((?:   .*\n|\n)+)", (ROOT / "docs/index.rst").read_text(), re.MULTILINE
    )
    readme = (ROOT / "README.md").read_text().splitlines()
    assert [line for line in shown.splitlines() if line[3:] not in readme] == []


def test_a_file_of_contexts_is_read_as_the_readme_has_it(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(README_CONTEXTS)
    config = ["--config", str(tmp_path / "config.toml")]

    def settings(*context: str) -> dict[str, Any]:
        shown = json.loads(_run(["l0gc", "config", "show", "--json", *config, *context], {}))
        return {s["name"]: s["value"] for s in shown["settings"]}

    assert settings()["url"] == "s3://dev-streams/l0gc"
    prod = settings("--context", "prod")
    assert [prod[name] for name in ("url", "region", "profile")] == ["s3://streams/prod", "eu-central-1", "sweeper"]


def test_targets_that_contributors_are_told_of_exist() -> None:
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for line in MAKE_TARGETS.splitlines():
        assert line.split()[:1] == ["make"]
        assert line.split()[1] in targets


@pytest.mark.thorough
@pytest.mark.parametrize("line", ONE_TEST.splitlines())
def test_the_ways_to_run_one_test_find_tests(line: str) -> None:
    words = shlex.split(line)
    assert words[:3] == [".venv/bin/python", "-m", "pytest"]
    where = [] if any(w.startswith("tests/") for w in words) else ["tests/storage"]  # to import them all takes a minute
    command = [sys.executable, *words[1:], *where, "--collect-only", "-q", "-p", "no:cacheprovider"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-500:]


def test_a_line_that_needs_a_cluster_of_ones_own_is_taken() -> None:
    assert parse(ON_A_CLUSTER.strip())[0] == "compute-watermark"


def test_the_query_sums_up_an_inventory_by_epoch(tmp_path: Path) -> None:
    layout, name = KeyLayout(), "01234567-89ab-cdef-0123-456789abcdef"
    keys = [f"my-cluster/{layout.format(shard, epoch, name)}" for shard, epoch in ((0, 3), (7, 5), (9, 3))]
    keys += [f"my-cluster/level_zero/data/{foreign}" for foreign in ("README", f"000/{3:017}/{name}")]
    keys += [f"another/{layout.format(0, 3, name)}", f"my-cluster/{layout.format(0, 3, name)}.copy"]
    written = pa.array(range(len(keys)), pa.timestamp("ms", "UTC"))
    rows = pa.table({"key": keys, "size": [10**n for n in range(len(keys))], "last_modified_date": written})
    pq.write_table(rows, tmp_path / "0.parquet")
    query = INVENTORY.replace("s3://inventories/my-bucket/daily/data", str(tmp_path))
    assert [row[:3] for row in duckdb.sql(query).fetchall()] == [(3, 2, 101), (5, 1, 10)]


@pytest.mark.weed
def test_a_new_cluster_matches_the_documented_format(bucket: StoreConfig, store: S3Store) -> None:
    with l0gc.open(bucket.url) as cluster:
        cluster.init(create_bucket=True, shards=4)
        cluster.topics.create("t", partitions=1)
        cluster.housekeep()
        cluster.compute_watermark()
    assert store.get("l0gc/format.json").body.decode().strip() == FORMAT_FILE.strip()
    sealed = store.get("l0gc/watermarks/published.json").body.decode().splitlines()
    assert [list(json.loads(line))[:1] for line in SEALED.splitlines()[1:]] == [list(json.loads(sealed[1]))]
    assert len(sealed) == 2


@pytest.mark.weed
def test_the_doctor_says_what_the_document_of_stores_shows(bucket: StoreConfig) -> None:
    with l0gc.open(bucket.url) as cluster:
        cluster.init(create_bucket=True, shards=4)
    command, _, *shown = DOCTOR.splitlines()
    assert bucket.endpoint_url is not None
    line = (
        command.removeprefix("$ ")
        .replace("s3://scratch", bucket.url)
        .replace("https://store.example", bucket.endpoint_url)
    )
    said = _run(shlex.split(line), {})
    for line in shown:
        assert line in said


@pytest.mark.thorough
@pytest.mark.weed
def test_the_session_of_the_examples_uploads_flights(bucket: StoreConfig, tmp_path: Path) -> None:
    with l0gc.open(bucket.url) as cluster:
        cluster.init(create_bucket=True, shards=4)
    printed = _session(FLIGHTS.replace("/tmp/flights", str(tmp_path)), {})
    assert printed[0].splitlines() == [str(tmp_path / f"flights-{n:03}.ndjson") for n in range(4)]
    assert "20,000 records (" in printed[2]


@pytest.mark.weed
def test_the_pin_of_a_program_ends_with_its_block(bucket: StoreConfig) -> None:
    with l0gc.open(bucket.url) as cluster:
        cluster.init(create_bucket=True, shards=4)
        cluster.topics.create("events", partitions=1)
        cluster.upload("events", io.BytesIO(b"1\n2\n"))
        names: dict[str, Any] = {"cluster": cluster}
        exec(compile(PIN.replace("...", "pinned = cluster.pins.list()"), "operate-stop.md", "exec"), names)
        assert [p.name for p in names["pinned"]] == ["export"]
        assert cluster.pins.list() == []


@pytest.mark.weed
def test_the_metrics_of_gc_are_written_where_the_document_says(bucket: StoreConfig, tmp_path: Path) -> None:
    with l0gc.open(bucket.url) as cluster:
        cluster.init(create_bucket=True, shards=4)
    _run(shlex.split(METRICS.replace("/var/lib/node_exporter/textfile", str(tmp_path))), {})
    assert "l0gc_" in (tmp_path / "l0gc-gc.prom").read_text()


@pytest.mark.weed
@pytest.mark.thorough
def test_the_blocks_about_an_external_log_run(
    bucket: StoreConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run the example's session in a new folder, and then the document's commands and its Python."""
    url = f"{bucket.url}segments-of-mine"
    with l0gc.open(bucket.url) as cluster:
        cluster.init(create_bucket=True)
    own = {"L0GC_URL": url}
    exported = tmp_path / "not" / "there"
    session = EXTERNAL_SESSION.replace("s3://my-bucket/segments-of-mine", url).replace("/tmp/export", str(exported))
    printed = _session(session, own)
    shown = [line for line in EXTERNAL_SESSION.splitlines() if line.startswith("{")]
    assert [line for text in printed for line in text.splitlines() if line.startswith("{")] == shown

    other = {"L0GC_URL": f"{bucket.url}another"}
    commands = EXTERNAL_COMMANDS.replace("exported/", f"{exported}/").replace("4711", "12")  # the export has epoch 12
    assert "M = " in _shell(commands, other)

    third = f"{bucket.url}third"
    with l0gc.open(third) as cluster:
        cluster.init(external_log=True)
    code = EXTERNAL_PYTHON.replace("s3://bucket/prefix", third)
    exec(compile(code, "external-log.md", "exec"), {})
    assert capsys.readouterr().out == "4650\n"


def _stamped(key: str, epoch: int) -> None:
    template = shlex.split(EXTERNAL_COMMANDS.splitlines()[0])[-1]
    found = KeyLayout(template, 16).parse(key)
    assert found is not None, key
    assert found.epoch == epoch


def test_keys_that_the_sql_of_the_document_stamps_are_keys() -> None:
    with duckdb.connect() as database:
        database.execute(KEY_OF_SQL)
        for epoch in range(50):
            ((key,),) = database.execute(f"SELECT key({epoch})").fetchall()
            _stamped(key, epoch)


@pytest.mark.thorough
def test_keys_that_the_java_of_the_document_stamps_are_keys(tmp_path: Path) -> None:
    program = "for (long e = 0; e < 50; e++) System.out.println(key(e));"
    main = f"public static void main(String[] args) {{ {program} }}"
    (tmp_path / "Keys.java").write_text(f"class Keys {{ {KEY_OF_JAVA} {main} }}")
    ended = subprocess.run(
        ["java", str(tmp_path / "Keys.java")], capture_output=True, text=True, check=True, timeout=120
    )
    for epoch, key in enumerate(ended.stdout.splitlines()):
        _stamped(key, epoch)
    assert epoch == 49


def test_keys_without_a_shard_are_keys_of_the_one_shard() -> None:
    template = shlex.split(NO_SHARD)[-1]
    layout, name = KeyLayout(template, 1), "01234567-89ab-cdef-0123-456789abcdef"
    assert layout.epochs([f"segments/{e:020}-{name}.seg" for e in (0, 4711, 10**18)]) == [0, 4711, -1]


@pytest.mark.spark
@pytest.mark.weed
@pytest.mark.thorough
def test_the_blocks_about_spark_run_one_after_another(
    one_spark: SparkSession, bucket: StoreConfig, tmp_path: Path
) -> None:
    with l0gc.open(bucket.url) as cluster:
        cluster.init(create_bucket=True, shards=4)
        for topic in ("flights", "clicks", "views", "copy"):
            cluster.topics.create(topic, partitions=4)
        cluster.upload("clicks", [b"one"])
        cluster.upload("flights", [b"one"] * 4)  # one in each partition
    (tmp_path / "flights").mkdir()
    (tmp_path / "flights" / "one.csv").write_text("carrier,delay\nUA,3\nAA,-2\n")
    first, *others = SPARK
    rows = one_spark.range(3)
    names: dict[str, Any] = {"URL": bucket.url, "PLACE": str(tmp_path / "checkpoint"), "rows": rows}
    for number, text in enumerate([first, *others]):
        code = text.replace("s3://bucket/prefix", bucket.url).replace("/data/flights", str(tmp_path / "flights"))
        code = code.replace("/checkpoints/copy", str(tmp_path / "checkpoint"))
        exec(compile(code, f"spark.md, block {number}", "exec"), names)
        if (query := names.pop("query", None)) is not None:
            query.processAllAvailable()
            query.stop()
    assert (names["lag"].batch_id, names["lag"].records_behind) == (0, 0)
    with l0gc.open(bucket.url) as cluster:
        assert sorted(r.key for r in cluster.read("flights") if r.key) == [b"0", b"1", b"2", b"AA", b"UA"]


_PIPED: Final = re.compile(r"^(?:\$ )?((?:l0gc|printf) (?!.*\[OPTIONS\]).*(?: > | \| ).*)$", re.MULTILINE)
_PIPED_ELSEWHERE: Final = {
    "l0gc epoch show > epoch && rclone": _BACKUP,
    "l0gc completion zsh > ": "tests/cli/test_completion.py::test_each_shell_has_its_script",  # this test needs zsh
}


@pytest.mark.weed
@pytest.mark.thorough
def test_lines_with_pipes_and_redirections_run_in_a_shell(bucket: StoreConfig, tmp_path: Path) -> None:
    lines = {line for block in BLOCKS for line in _PIPED.findall(block.text)}
    elsewhere = {line for line in lines for begin in _PIPED_ELSEWHERE if line.startswith(begin)}
    assert len(elsewhere) == len(_PIPED_ELSEWHERE)
    with l0gc.open(bucket.url) as cluster:
        cluster.init(create_bucket=True, shards=4)
        for topic in ("events", "flights"):
            cluster.topics.create(topic, partitions=2)
            cluster.upload(topic, [b'{"id": 1, "name": "a\\"b"}'])
    for folder in (".local/share/bash-completion/completions", ".config/fish/completions"):
        (tmp_path / folder).mkdir(parents=True)
    for line in sorted(lines - elsewhere):
        _shell(f"cd {tmp_path}; {line}", {"HOME": str(tmp_path)})
    _shell(f"cd {tmp_path}\n{INFER}", {})
    with l0gc.open(bucket.url) as cluster:
        schema = cluster.topics.describe("events").value_schema
    assert schema is not None
    assert [f["name"] for f in schema["fields"]] == ["id", "name"]


# -- running blocks -----------------------------------------------------------------------------------------------------


def environment(own: dict[str, str]) -> dict[str, str]:
    """Return this environment, with l0gc and the Python of these tests first on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "COLUMNS": "200", **own}


def _run(words: list[str], own: dict[str, str]) -> str:
    ended = subprocess.run(words, cwd=ROOT, env=environment(own), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"{words}: {ended.stderr}"
    return ended.stdout


def _shell(line: str, own: dict[str, str]) -> str:
    return _run(["bash", "-ec", line], own)


def _session(text: str, own: dict[str, str]) -> list[str]:
    """Return what each command of a session prints; the commands follow `$ `."""
    return [_shell(line.removeprefix("$ "), own) for line in text.splitlines() if line.startswith("$ ")]
