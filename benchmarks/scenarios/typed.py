"""Measures what typed columns cost a reconcile, and what they save a query, next to the JSON in `value`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.measure import BenchmarkFailedError, Goal, Ratio, Result, Sample, interleave
from benchmarks.scenarios.basic import check
from benchmarks.scenarios.tables import create_table, metadata_files
from benchmarks.setting import BENCHMARKS, BUCKET, Setting
from benchmarks.support.goals import ratio

PLAIN: Final = "without a schema"
TYPED: Final = "12 columns"
MISFITS: Final = "misfits in each batch"
COLUMNS: Final = (
    *("month", "day", "dep_time", "dep_delay", "arr_delay", "carrier"),
    *("flight", "tailnum", "origin", "air_time", "distance", "time_hour"),
)
UPLOADS: Final = 3
EVERY: Final = 5_000
"""One line in this many does not fit; far more lines are parsed at once, so every batch has misfits."""
MISFIT: Final = b'{"carrier": "AA", "distance": "far"}\n'
CPU_GOALS: Final = {TYPED: 4.0, MISFITS: 5.0}
QUERIES: Final = ("sum", "group by", "range")
SAVED: Final = 15


def typed(setting: Setting) -> Result:
    """Run `l0gc reconcile` with and without 12 typed columns; query them in DuckDB, and the JSON of the same table."""
    file, records = setting.flights_file()
    with_misfits = _with_misfits(file, setting.bench.scratch / "misfits.ndjson")
    schema = setting.bench.scratch / "schema.json"

    def loaded(lines: Path, *options: str | Path) -> str:
        prefix = setting.new_prefix()
        setting.l0gc(prefix, "init")
        setting.l0gc(prefix, "topic", "create", "flights", "--partitions", "8", *options)
        for _ in range(UPLOADS):
            setting.upload(prefix, lines)
        return prefix

    def lift(name: str, prefix: str, misfits: int) -> Sample:
        sample = setting.l0gc(prefix, "reconcile", "--engine", "local")
        check(name, sample, UPLOADS * records)
        if sample.output["misfits"] != misfits:
            raise BenchmarkFailedError(f"{name}: {sample.output['misfits']} records do not fit, not {misfits}")
        return sample

    inferred = loaded(file)
    fields = {f["name"]: f for f in setting.l0gc(inferred, "topic", "infer", "flights").output["fields"]}
    schema.write_text(json.dumps({"fields": [fields[name] for name in COLUMNS]}))
    given = ("--value-schema", schema)
    kinds = {
        PLAIN: (file, (), 0),
        TYPED: (file, given, 0),
        MISFITS: (with_misfits, given, UPLOADS * (records // EVERY)),
    }

    def reconcile(name: str, _: int) -> Sample:
        lines, options, misfits = kinds[name]
        return lift(name, loaded(lines, *options), misfits)

    samples = interleave({name: partial(reconcile, name) for name in kinds}, setting.runs)
    goals = []
    for name, limit in CPU_GOALS.items():
        cpu, wall = ratio(samples, name, PLAIN, lambda s: s.cpu), ratio(samples, name, PLAIN)
        text = f"{cpu.text()}, wall {wall.of_medians:.2f}"
        goals.append(Goal(f"reconcile, {name} / {PLAIN}, user + sys", cpu.of_medians, limit, text))

    prefix = loaded(file, *given)
    lift(TYPED, prefix, 0)
    create_table(setting, prefix)
    setting.l0gc(prefix, "table", "sync", "flights")
    table = f"s3://{BUCKET}/{metadata_files(setting, prefix)[-1]}"

    def query(what: str, how: str) -> Callable[[int], Sample]:
        script = BENCHMARKS / "peers" / "typed_queries.py"
        return lambda _: setting.bench.run([sys.executable, script, what, how, table])

    queries = {f"DuckDB, {what}, {how}": query(what, how) for what in QUERIES for how in ("typed", "JSON")}
    samples |= interleave(queries, setting.runs)
    for what in QUERIES:
        ours, theirs = (samples[f"DuckDB, {what}, {how}"] for how in ("typed", "JSON"))
        if ours[0].output["rows"] != theirs[0].output["rows"]:
            raise BenchmarkFailedError(f"{what}: {ours[0].output['rows']} is not {theirs[0].output['rows']}")
        saved = Ratio.of([s.job or 0.0 for s in theirs], [s.job or 0.0 for s in ours])
        text = f"{saved.of_medians:.0f} times as fast (round by round {saved.pairwise:.0f})"
        goals.append(Goal(f"DuckDB, {what}: typed / JSON", 1 / saved.of_medians, 1 / SAVED, text))
    return Result("typed", f"{UPLOADS * records:,} records, 12 of 19 fields as columns", samples, goals)


def _with_misfits(file: Path, target: Path) -> Path:
    """Write the same lines, some of them with a text in place of a number."""
    with file.open("rb") as lines, target.open("wb") as out:
        out.writelines(MISFIT if n % EVERY == 0 else line for n, line in enumerate(lines, 1))
    return target
