"""Measures the cost of a sync of a topic's Iceberg table, and of reading the table and its Parquet files."""

from __future__ import annotations

import sys
from functools import partial
from typing import Final

from benchmarks.measure import BenchmarkFailedError, Goal, Ratio, Result, Sample, interleave
from benchmarks.scenarios.basic import check, wall_goal
from benchmarks.setting import BENCHMARKS, BUCKET, Setting

SYNC_S: Final = 3.0
READ_GOAL: Final = 1.1
COMMITS_GOAL: Final = 1
NEW: Final = 1_000
UPLOADS: Final = 5


def tables(setting: Setting) -> Result:
    """Sync 1,000 new objects, and 10 more and 20 dropped of 100,000; read a table, and its Parquet files."""
    many = 10_000 if setting.quick else 100_000
    commits: dict[str, list[int]] = {}

    def sync(what: str, prefix: str, added: int, removed: int) -> Sample:
        before = _commits(setting, prefix)
        sample = setting.l0gc(prefix, "table", "sync", "flights")
        (found,) = sample.output["tables"]
        if (found["added"], found["removed"]) != (added, removed):
            raise BenchmarkFailedError(f"a sync of {added} more and {removed} dropped objects was {found}")
        commits.setdefault(what, []).append(_commits(setting, prefix) - before)
        return sample

    def first(what: str, _: int) -> Sample:
        return sync(what, _topic(setting, NEW), NEW, 0)

    def changed(what: str, number: int) -> Sample:
        _change(setting, large, many, number + 1)
        return sync(what, large, 10, 20)

    large = _topic(setting, many)
    setting.l0gc(large, "table", "sync", "flights")
    syncs = {f"{NEW:,} new objects": first, f"10 more, 20 dropped of {many:,}": changed}
    samples = interleave({what: partial(run, what) for what, run in syncs.items()}, setting.runs)
    goals = [wall_goal(samples, what, SYNC_S) for what in syncs]
    for what, found in commits.items():
        goals.append(Goal(f"commits to the catalog, {what}", max(found), COMMITS_GOAL, str(max(found))))

    files, records = _records(setting)

    def read(engine: str, how: str, _: int) -> Sample:
        script = BENCHMARKS / "peers" / "table_readers.py"
        sample = setting.bench.run([sys.executable, script, engine, how, *files[how]])
        check(f"{engine}, {how}", sample, records)
        return sample

    engines = ("DuckDB", "PyIceberg")
    readers = {f"{e}, {how}": partial(read, e.lower(), how) for e in engines for how in files}
    samples |= interleave(readers, setting.runs)
    for engine in engines:
        ours, theirs = ([s.job or 0.0 for s in samples[f"{engine}, {how}"]] for how in files)
        apart = Ratio.of(ours, theirs)
        goals.append(Goal(f"{engine}: table / the same Parquet files", apart.of_medians, READ_GOAL, apart.text()))
    title = f"syncs from start to exit; {records:,} records in {len(files['plain'])} objects read"
    return Result("tables", title, samples, goals)


def _topic(setting: Setting, objects: int) -> str:
    """Return a fresh prefix with a topic of this many generated L1 objects, and its table."""
    prefix = setting.new_prefix()
    _change(setting, prefix, objects, 0)
    create_table(setting, prefix)
    return prefix


def _change(setting: Setting, prefix: str, objects: int, round_: int) -> None:
    script = BENCHMARKS / "drivers" / "tables.py"
    where = {"L0GC_URL": f"s3://{BUCKET}/{prefix}"}
    setting.bench.run([sys.executable, script, str(objects), str(round_)], where)


def _records(setting: Setting) -> tuple[dict[str, list[str]], int]:
    """Return the metadata file and the data files of a table with the flights, several times, and the number of
    records.
    """
    file, records = setting.flights_file()
    prefix = setting.new_cluster()
    for _ in range(UPLOADS):
        setting.upload(prefix, file)
        setting.l0gc(prefix, "reconcile", "--engine", "local")
    create_table(setting, prefix)
    setting.l0gc(prefix, "table", "sync", "flights")
    plain = [f"s3://{BUCKET}/{key}" for key in setting.keys(f"{prefix}/level_one/data/")]
    return {"table": [f"s3://{BUCKET}/{metadata_files(setting, prefix)[-1]}"], "plain": plain}, UPLOADS * records


def create_table(setting: Setting, prefix: str) -> None:
    """Create the table of a prefix, which has its name, in a catalog in SQLite."""
    where = {"TYPE": "sql", "URI": f"sqlite:///{setting.bench.scratch}/lake.db", "WAREHOUSE": f"s3://{BUCKET}/lake"}
    setting.bench.environment.update({f"PYICEBERG_CATALOG__LAKE__{name}": value for name, value in where.items()})
    setting.l0gc(prefix, "table", "create", "flights", "--catalog", "lake", "--table", f"bench.{prefix}")


def metadata_files(setting: Setting, prefix: str) -> list[str]:
    """Return the newest metadata files of a table, by number; each commit writes the next one."""
    return sorted(setting.keys(f"lake/bench/{prefix}/metadata/", ".metadata.json"))


def _commits(setting: Setting, prefix: str) -> int:
    """Return how many commits a table has had."""
    return int(metadata_files(setting, prefix)[-1].rpartition("/")[2].partition("-")[0])
