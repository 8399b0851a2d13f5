"""Measures whether costs grow with objects and journals: many partitions, idle clusters, a large journal, many writers.

A proxy counts requests, in rounds that are not timed. Contention is measured through the same proxy with a delay, so
that a lost race costs as much as on S3.
"""

from __future__ import annotations

import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.measure import BenchmarkFailedError, Goal, Ratio, Result, Sample, Spread, interleave
from benchmarks.scenarios.basic import check, wall_goal
from benchmarks.scenarios.watermark import FAR_S
from benchmarks.setting import BENCHMARKS, BUCKET, Setting
from benchmarks.support.proxy import CountingProxy

FIELD: Final = "tailnum"
FEW: Final = 16
MANY: Final = 1_024
MOST: Final = 16_384
UPLOAD_GOALS: Final = {MANY: 1.2, MOST: 2.0}
READ_GOAL: Final = 1.5
OBJECTS_GOAL: Final = 40
IDLE_S: Final = 2.0
IDLE_REQUESTS: Final = (12, 20)
HUGE: Final = 100_000
HUGE_S: Final = {"topic create": 10.0, "housekeep": 10.0, "status": 10.0, "compute-watermark": 20.0}
HUGE_MIB: Final = 500 * 1e6 / (1 << 20)
REPLAY_S: Final = 5.0
REPLAY_MIB: Final = 400 * 1e6 / (1 << 20)
EXTENT_BYTES: Final = 48
CHECKPOINT_SHARE: Final = 1.5
L1_FEW: Final = 1_000
ROWS_MIB: Final = 12.0
HEAD_S: Final = 0.1
ROWS_REPLAY_S: Final = 1.5
ROWS_LATER_S: Final = 0.3
DELAY_S: Final = 0.02
WRITERS: Final = (1, 4, 16, 32)
ONE_JOURNAL_GOAL: Final = 0.7
APPENDS_GOAL: Final = 4.0
FAIRNESS_GOAL: Final = 3.0
LOGS: Final = "l0gc/"


def partitions(setting: Setting) -> Result:
    """Upload and read the same records in 16, 1,024 and 16,384 partitions, before and after a reconcile."""
    file, records = setting.flights_file()
    newest: dict[int, str] = {}
    written: dict[int, tuple[int, int]] = {}

    def uploading(count: int, _: int) -> Sample:
        newest[count] = _cluster(setting, count)
        sample = setting.l0gc(newest[count], "upload", "flights", file, "--key-field", FIELD)
        check("l0gc upload", sample, records)
        written[count] = len(setting.keys(f"{newest[count]}/{LOGS}")), len(sample.output["objects"])
        return sample

    def reading(count: int, _: int, **environment: str) -> Sample:
        target = setting.bench.scratch / "read.ndjson"
        command = f"exec {setting.program('l0gc')} read flights >{target}"
        where = {"L0GC_URL": f"s3://{BUCKET}/{newest[count]}"} | environment
        sample = setting.bench.run(["sh", "-c", command], where)
        if sum(1 for _ in target.open("rb")) != records:
            raise BenchmarkFailedError(f"l0gc read gave another number of records than {records}")
        return sample

    counts = (FEW, MANY, MOST)
    samples = interleave({f"upload, {c:,}": partial(uploading, c) for c in counts}, setting.runs)
    samples |= interleave({f"read L0, {c:,}": partial(reading, c) for c in (FEW, MANY)}, setting.runs)
    for count in (FEW, MANY):
        setting.l0gc(newest[count], "reconcile")
    samples |= interleave({f"read L1, {c:,}": partial(reading, c) for c in (FEW, MANY)}, setting.runs)
    with CountingProxy(setting.bench.environment["AWS_ENDPOINT_URL_S3"], LOGS, delay_s=FAR_S) as proxy:
        far = {f"read L1, {c:,}, far": partial(reading, c, AWS_ENDPOINT_URL_S3=proxy.endpoint_url) for c in (FEW, MANY)}
        samples |= interleave(far, setting.runs)
    goals = []
    for count, limit in UPLOAD_GOALS.items():
        found = _walls(samples, f"upload, {count:,}", f"upload, {FEW:,}")
        goals.append(Goal(f"upload, {count:,} / {FEW} partitions", found.of_medians, limit, found.text()))
    for level in ("L0", "L1"):
        found = _walls(samples, f"read {level}, {MANY:,}", f"read {level}, {FEW:,}")
        goals.append(Goal(f"read {level}, {MANY:,} / {FEW} partitions", found.of_medians, READ_GOAL, found.text()))
    for count, (below, objects) in written.items():
        goals.append(Goal(f"objects below {LOGS} with {count:,} partitions", below, objects + OBJECTS_GOAL, f"{below}"))
    return Result("journals-partitions", f"{records:,} flights by {FIELD}, from start to exit", samples, goals)


def idle(setting: Setting) -> Result:
    """Measure housekeeping and status of an idle cluster: 1,024 partitions with a tick due, and 100,000 partitions."""
    file, _ = setting.flights_file()
    prefix = _cluster(setting, MANY, journals=4)
    setting.l0gc(prefix, "upload", "flights", file, "--key-field", FIELD)
    setting.l0gc(prefix, "housekeep")
    due = ["--epoch-interval", "0"]
    samples = interleave(
        {
            "housekeep, 1,024": lambda _: setting.l0gc(prefix, "housekeep", *due),
            "status, 1,024": lambda _: setting.l0gc(prefix, "status"),
        },
        setting.runs,
    )
    counts = _requests(setting, prefix, "housekeep", *due)
    used, (each, more) = 4, IDLE_REQUESTS
    goals = [wall_goal(samples, name, IDLE_S) for name in samples]
    total = sum(counts.values())
    goals.append(
        Goal("requests of an idle housekeep, 4 journals", total, each * used + more, f"{total} {dict(counts)}")
    )
    huge = setting.new_prefix()
    setting.l0gc(huge, "init")
    create = setting.l0gc(huge, "topic", "create", "huge", "--partitions", str(HUGE))
    large = {"topic create": [create]}
    for command in ("housekeep", "status", "compute-watermark"):
        large[command] = [setting.l0gc(huge, command) for _ in range(min(2, setting.runs))]
    for command, runs in large.items():
        samples[f"{command}, {HUGE:,}"] = runs
        median, peak = Spread.of([s.wall for s in runs]).median, max(s.rss_mib for s in runs)
        goals.append(Goal(f"{command}, {HUGE:,} partitions, wall", median, HUGE_S[command], f"{median:.2f} s"))
        goals.append(Goal(f"{command}, {HUGE:,} partitions, peak MiB", peak, HUGE_MIB, f"{peak:.0f}"))
    return Result("journals-idle", "commands with nothing to do but to look", samples, goals)


def replay(setting: Setting) -> Result:
    """Write the history of a journal with 1,000,000 unreconciled extents, and replay it in another process."""
    extents = 50_000 if setting.quick else 1_000_000
    script = BENCHMARKS / "drivers" / "large_journal.py"
    prefix = setting.new_prefix()
    where = {"L0GC_URL": f"s3://{BUCKET}/{prefix}"}
    sizes = setting.bench.run([sys.executable, script, "fill", str(extents)], where).output

    def run(_: int) -> Sample:
        sample = setting.bench.run([sys.executable, script, "replay"], where)
        if sample.output["extents"] != extents:
            raise BenchmarkFailedError(f"the journal was to hold {extents} extents, and has {sample.output['extents']}")
        return sample

    samples = interleave({"replay": run}, setting.runs)
    seconds = Spread.of([s.job or 0.0 for s in samples["replay"]]).median
    peak = max(s.rss_mib for s in samples["replay"])
    entry, checkpoint = sizes["entry_bytes"] / extents, sizes["checkpoint_bytes"] / extents
    share = sizes["checkpoints_bytes"] / sizes["entry_bytes"]
    goals = [
        Goal("replay, s", seconds, REPLAY_S, f"{seconds:.2f}"),
        Goal("replay, peak MiB of the process", peak, REPLAY_MIB, f"{peak:.0f}"),
        Goal("bytes for an extent in entries", entry, EXTENT_BYTES, f"{entry:.1f}"),
        Goal("bytes for an extent in the checkpoint", checkpoint, EXTENT_BYTES, f"{checkpoint:.1f}"),
        Goal("bytes of all checkpoints / of all entries", share, CHECKPOINT_SHARE, f"{share:.2f}"),
    ]
    return Result("journals-replay", f"{extents:,} extents of 100,000 partitions, 1,000 in each object", samples, goals)


def rows(setting: Setting) -> Result:
    """Measure M, a replay, `status` and a quiet `gc` of a journal with 500,000 L1 objects, next to one with 1,000."""
    many, script = 50_000 if setting.quick else 500_000, BENCHMARKS / "drivers" / "l1_rows.py"
    prefixes, sizes = {n: setting.new_prefix() for n in (L1_FEW, many)}, dict[int, int]()

    def driver(count: int, *arguments: str) -> Sample:
        where = {"L0GC_URL": f"s3://{BUCKET}/{prefixes[count]}"}
        return setting.bench.run([sys.executable, script, *arguments], where)

    def reading(what: str, _: int) -> Sample:
        sample = driver(many, what)
        if sample.output["rows"] != many:
            raise BenchmarkFailedError(f"the journal was to list {many} L1 objects, and lists {sample.output['rows']}")
        return sample

    def command(count: int, name: str, _: int) -> Sample:
        return setting.l0gc(prefixes[count], name)

    for count, prefix in prefixes.items():
        sizes[count] = driver(count, "fill", str(count)).output["checkpoint_bytes"]
        for _ in range(2):  # the first gc computes M and notes that nothing is due
            setting.l0gc(prefix, "gc")
    runs = {what: partial(reading, what) for what in ("head", "replay")}
    runs |= {f"{name}, {n:,} rows": partial(command, n, name) for name in ("status", "gc") for n in prefixes}
    samples = interleave(runs, setting.runs)
    mib = sizes[many] * (500_000 / many) / (1 << 20)
    goals = [Goal("checkpoint of 500,000 rows, MiB", mib, ROWS_MIB, f"{mib:.1f}")]
    for what, limit in (("head", HEAD_S), ("replay", ROWS_REPLAY_S)):
        seconds = Spread.of([s.job or 0.0 for s in samples[what]]).median
        goals.append(Goal(f"{what}, s", seconds, limit, f"{seconds:.2f}"))
    for name in ("status", "gc"):
        walls = [Spread.of([s.wall for s in samples[f"{name}, {n:,} rows"]]).median for n in prefixes]
        later = walls[1] - walls[0]
        goals.append(Goal(f"{name}, s more than with {L1_FEW:,} rows", later, ROWS_LATER_S, f"{later:.2f}"))
    title = f"{many:,} L1 objects of 128 MiB in 100 partitions, rows alone; head: M without the rows"
    return Result("journals-rows", title, samples, goals)


def contention(setting: Setting) -> Result:
    """Compare many uploads into one journal with as many journals, through a proxy that delays each request by 20 ms."""
    file, _ = setting.flights_file()
    parts = _split(file, setting.bench.scratch / "parts", max(WRITERS), 2_000 if setting.quick else 10_000)
    samples: dict[str, list[Sample]] = {}
    rows = ["writers  journals  records/s  PUTs/append  slowest/fastest"]
    rates: dict[tuple[int, bool], float] = {}
    goals = []
    with CountingProxy(setting.bench.environment["AWS_ENDPOINT_URL_S3"], "level_zero/", delay_s=DELAY_S) as proxy:
        for writers, shared in [*((w, True) for w in WRITERS), (16, False)]:
            runs = []
            for _ in range(min(3, setting.runs)):
                runs.append(_contend(setting, proxy, parts[:writers], shared=shared))
            rates[writers, shared] = Spread.of([r.output["rate"] for r in runs]).median
            puts, apart = (Spread.of([r.output[k] for r in runs]).median for k in ("puts", "apart"))
            journals = 1 if shared else writers
            rows.append(f"{writers:7}  {journals:8}  {rates[writers, shared]:9,.0f}  {puts:11.2f}  {apart:15.2f}")
            samples[f"{writers} writers, {journals} journal{'s' if journals > 1 else ''}"] = runs
            if shared:
                goals.append(Goal(f"PUTs for each append, {writers} writers", puts, APPENDS_GOAL, f"{puts:.2f}"))
                goals.append(Goal(f"slowest / fastest of {writers}", apart, FAIRNESS_GOAL, f"{apart:.2f}"))
    loss = rates[16, False] / rates[16, True]
    text = f"{rates[16, True] / rates[16, False]:.2f} of it (goal at least {ONE_JOURNAL_GOAL})"
    goals.append(Goal("16 journals / 1 journal, records/s", loss, 1 / ONE_JOURNAL_GOAL, text))
    return Result(
        "journals-contention", f"10,000 flights for each writer, {DELAY_S * 1000:.0f} ms more", samples, goals, rows
    )


def _contend(setting: Setting, proxy: CountingProxy, files: list[Path], *, shared: bool) -> Sample:
    """Upload all files at once, each in its own process: into one topic, or each into a topic with its own journal."""
    prefix = setting.new_prefix()
    setting.l0gc(prefix, "init", "--journals", str(max(WRITERS)))
    topics = ["flights"] if shared else [f"flights-{n}" for n in range(len(files))]
    for topic in topics:
        setting.l0gc(prefix, "topic", "create", topic, "--partitions", "64")
    before = proxy.counts["APPEND"]
    where = {"L0GC_URL": f"s3://{BUCKET}/{prefix}", "AWS_ENDPOINT_URL_S3": proxy.endpoint_url}

    def run(n: int) -> Sample:
        upload: list[str | Path] = [setting.program("l0gc"), "upload", topics[n % len(topics)], files[n]]
        return setting.bench.run([*upload, "--key-field", FIELD, "--batch-bytes", "128KiB", "--json"], where)

    with ThreadPoolExecutor(len(files)) as pool:
        done = list(pool.map(run, range(len(files))))
    puts = proxy.counts["APPEND"] - before
    landed = len(setting.keys(f"{prefix}/l0gc/journal/", "/log/"))
    slowest, fastest = max(s.wall for s in done), min(s.wall for s in done)
    records = sum(s.output["records"] for s in done)
    output = {"rate": records / slowest, "puts": puts / landed, "apart": slowest / fastest}
    return replace(done[0], wall=slowest, cpu=sum(s.cpu for s in done), output=output)


def _cluster(setting: Setting, count: int, journals: int = 1) -> str:
    prefix = setting.new_prefix()
    setting.l0gc(prefix, "init")
    topic = ["topic", "create", "flights", "--partitions", str(count), "--journals", str(journals)]
    setting.l0gc(prefix, *topic)
    return prefix


def _requests(setting: Setting, prefix: str, *command: str) -> Counter[str]:
    with CountingProxy(setting.bench.environment["AWS_ENDPOINT_URL_S3"], "level_zero/") as proxy:
        where = {"L0GC_URL": f"s3://{BUCKET}/{prefix}", "AWS_ENDPOINT_URL_S3": proxy.endpoint_url}
        setting.bench.run([setting.program("l0gc"), *command, "--json"], where)
        return Counter(proxy.counts)


def _walls(samples: dict[str, list[Sample]], ours: str, theirs: str) -> Ratio:
    return Ratio.of([s.wall for s in samples[ours]], [s.wall for s in samples[theirs]])


def _split(file: Path, folder: Path, parts: int, lines: int) -> list[Path]:
    """Return this many files of this many lines each."""
    folder.mkdir(exist_ok=True)
    files = []
    with file.open("rb") as source:
        for n in range(parts):
            files.append(folder / f"{n:02}.ndjson")
            files[-1].write_bytes(b"".join(source.readline() for _ in range(lines)))
    return files
