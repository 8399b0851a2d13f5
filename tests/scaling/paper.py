"""`python -m tests.scaling.paper [--write]`: the tables of `docs/why/scaling.md`, worked out anew.

Each stands there between `<!-- table: NAME -->` and `<!-- end -->`. Without `--write` it says whether the document is as the
formulas have it.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from docs.programs import scaling as model
from docs.programs.scaling import Requests
from l0gc.streamlog.journal.handle import APPEND_INTERVAL_S
from tests.scaling import case
from tests.scaling.case import DAY_S, SweepCase

DOCUMENT = Path(__file__).parents[2] / "docs/why/scaling.md"
_TABLE = re.compile(r"(<!-- table: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_MONTH_DAYS = 30


def number(x: float) -> str:
    """Return a number with three digits from a million on, which is as precise as the assumptions are."""
    if x < 10**6:
        return f"{x:,.0f}"
    for size, name in ((10**12, "trillion"), (10**9, "billion")):
        if x >= size:
            return f"{x / size:.3g} {name}"
    return f"{x / 10**6:.3g} million"


def dollars(x: float) -> str:
    return f"${x:,.2f}" if x < 100 else f"${x:,.0f}"


def duration(seconds: float) -> str:
    for size, name in ((2 * DAY_S, "days"), (2 * 3600, "h"), (2 * 60, "min")):
        if seconds >= size:
            return f"{seconds / (size / 2):.1f} {name}"
    return f"{seconds:.0f} s"


def size(n: float) -> str:
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if n >= unit:
            return f"{n / unit:.3g} {name}"
    return f"{n:.0f} B"


def wrapped(text: str) -> str:
    """Return a paragraph as wide as those around it."""
    return textwrap.fill(text, 122, break_long_words=False, break_on_hyphens=False)


def wrapped_below(text: str) -> str:
    """Return the same for a paragraph after a table."""
    return f"\n\n{wrapped(text)}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(f"| {' | '.join(r)} |" for r in (head, ["---"] * len(head), *rows))


# -- the tables -----------------------------------------------------------------------------------------------------------


def _sweeps() -> str:
    def how(c: SweepCase) -> str:
        if not c.run:
            return "worked out"
        return "counted in `make thorough`" if c.thorough else "counted"

    return table(
        ["keys", "garbage", "shards", "pages of all", "of garbage + shards", "bound", "LIST", ""],
        (
            [
                number(c.keys),
                number(c.garbage),
                number(c.shards),
                f"{model.pages(c.keys):,}",
                f"{model.pages(c.garbage) + c.shards:,}",
                f"{model.sweep_lists_bound(c.keys, c.garbage, c.shards):,}",
                f"{c.lists:,}",
                how(c),
            ]
            for c in case.SWEEPS
        ),
    )


def _assumed() -> str:
    rows = [
        ("L0 objects in the bucket", number(case.OBJECTS), f"of {size(case.OBJECT_BYTES)}"),
        ("partitions", number(case.PARTITIONS), "all of them busy"),
        ("journals", number(case.JOURNALS), "each holds a topic of 1,000 partitions, and has one writer"),
        (
            "new objects",
            f"{number(case.PER_S)} a second",
            f"each with records of {case.PER_OBJECT} partitions of a topic",
        ),
        ("shards", number(case.SHARDS), "the default"),
        ("a tick", duration(case.EPOCH_S), "the default"),
        ("`housekeep` every", duration(case.HOUSEKEEP_S), ""),
        ("`reconcile` every", duration(case.RECONCILE_S), ""),
        ("`reconcile --round-bytes`", f"{case.ROUND_BYTES >> 30} GiB", f"so {case.ROUNDS} rounds"),
        ("`compute-watermark` and `sweep` every", duration(case.SWEEP_S), ""),
        ("a small request", f"{case.REQUEST_S * 1000:.0f} ms", "AWS: tens of milliseconds"),
        ("a LIST of 1,000 keys", f"{case.PAGE_S * 1000:.0f} ms", "a guess"),
        ("Spark", f"{case.CORES} cores", "one page at a time on each"),
    ]
    return table(["assumed", "", ""], rows)


def _follows() -> str:
    rows = [
        ("how far M is behind: 10^9 objects / 10^4 a second", duration(case.LAG_S)),
        ("objects where every job keeps up", f"{number(case.KEPT_UP)}, for {duration(case.LIFE_S)} each"),
        ("garbage for each sweep, however far M is behind", number(case.STEADY)),
        ("its share of the bucket", f"{100 * case.STEADY / case.OBJECTS:.1f} %"),
        ("garbage for the first sweep when M has caught up", number(case.BACKLOG)),
        ("objects for each journal", f"{case.PER_JOURNAL:g} a second"),
        ("entries in each journal, at the pace of busy writers", f"{case.APPENDS:g} a second"),
    ]
    return table(["what follows", ""], rows)


def _runs() -> list[tuple[str, Requests, float]]:
    """Return each command with the requests of a run and the number of runs in a day."""
    return [
        ("L0 objects of a day", DAY_S * Requests(puts=case.PER_S), 1),
        ("journal entries and checkpoints of a day", DAY_S * case.metadata_per_s(), 1),
        ("`housekeep`", case.housekeep(), DAY_S / case.HOUSEKEEP_S),
        ("`reconcile`", case.reconcile(), DAY_S / case.RECONCILE_S),
        ("`compute-watermark`", case.compute_watermark(scan=True), 1),
        ("`compute-watermark --no-scan`", case.compute_watermark(scan=False), DAY_S / case.WATERMARK_S),
        ("`sweep`", case.sweep(case.STEADY), DAY_S / case.SWEEP_S),
        ("`sweep` of the backlog, once", case.sweep(case.BACKLOG), 1),
    ]


def _requests() -> str:
    rows = []
    for name, run, times in _runs():
        cells = [number(n) for n in (run.lists, run.gets, run.puts, run.deletes)]
        rows.append([name, *cells, dollars(run.dollars), f"{times:.0f}", dollars(times * run.dollars)])
    data = DAY_S * Requests(puts=case.PER_S).dollars
    journals = DAY_S * case.metadata_per_s().dollars
    housekeeping = DAY_S / case.HOUSEKEEP_S * case.housekeep().dollars
    note = wrapped_below(
        f"The journals cost {dollars(journals)} a day, and {dollars(housekeeping)} to housekeep: "
        f"together {100 * (journals + housekeeping) / data:.0f} % of the PUTs of the data itself."
    )
    return table(["one run", "LIST", "GET", "PUT", "DELETE", "$", "runs a day", "$ a day"], rows) + note


def _few() -> str:
    rows = []
    for partitions in (1000, 10_000, 100_000):
        alone, together = (case.few_records(partitions, shared=shared) for shared in (False, True))
        cells = [f"{number(r.puts)} PUT, {dollars(r.dollars)}" for r in (*together, *alone)]
        rows.append([number(partitions), *cells])
    return table(
        ["partitions", "shared objects: reconciles", "drains and merges", "one each: reconciles", "merges"], rows
    )


def _beside() -> str:
    sweeps = DAY_S / case.SWEEP_S
    full, most = case.BUCKET.listing, DAY_S // case.BUCKET.listing_spark_s
    ours = Requests(lists=model.sweep_lists_bound(case.OBJECTS, case.STEADY, case.SHARDS))
    uploaded = case.PER_S * DAY_S * case.OBJECT_BYTES / 10**9 * model.STORED_DOLLARS
    kept = case.KEPT_UP * case.OBJECT_BYTES / 10**9 * model.STORED_DOLLARS
    rows = [
        ("`l0gc sweep`, every 20 minutes", number(sweeps * ours.lists), dollars(sweeps * ours.dollars), "the garbage"),
        (
            f"full listings without a break, {case.CORES} cores: {most:.0f} a day",
            number(most * full.lists),
            dollars(most * full.dollars),
            f"all, {duration(case.BUCKET.listing_spark_s)} old at worst",
        ),
        ("a full listing, once a day", number(full.lists), dollars(full.dollars), "all, a day old at worst"),
        ("S3 Inventory, once a day", "0", dollars(case.OBJECTS * model.INVENTORY_DOLLARS), "all, a day old or more"),
        ("a lifecycle rule", "0", dollars(0), "ages in whole days, nothing of M"),
    ]
    note = wrapped_below(
        f"Keeping objects longer costs more than any listing. A day of uploads is {number(case.PER_S * DAY_S)} objects, or "
        f"{size(case.PER_S * DAY_S * case.OBJECT_BYTES)}: {dollars(uploaded)} for a month of having it. The bucket where "
        f"every job keeps up holds {size(case.KEPT_UP * case.OBJECT_BYTES)}, {dollars(kept)} a month; the one of 10^9 "
        f"objects {size(case.OBJECTS * case.OBJECT_BYTES)}."
    )
    return table(["way to find garbage", "LIST a day", "$ a day", "sees"], rows) + note


def _deletes() -> str:
    rows = []
    for rate in (model.WRITES_PER_S, case.PER_S, 2 * case.PER_S, 10 * model.WRITES_PER_S):
        left = rate - case.PER_S
        rows.append(
            [
                number(rate),
                number(case.prefixes(rate + case.PER_S)),
                duration(case.STEADY / rate),
                "never" if left <= 0 else duration(case.BACKLOG / left),
                f"{rate / case.DELETED_PER_CPU_S:.2f}",
            ]
        )
    head = [
        "deletes a second",
        "S3 prefixes",
        f"{number(case.STEADY)} objects",
        f"{number(case.BACKLOG)} objects",
        "processors",
    ]
    return table(head, rows)


def _processor() -> str:
    a_day = case.PER_S * DAY_S
    rows = [
        ("all sweeps", number(a_day), number(case.DELETED_PER_CPU_S), a_day / case.DELETED_PER_CPU_S),
        (
            "one full listing by `compute-watermark`",
            number(case.OBJECTS),
            number(case.SPARK_LISTED_PER_CORE_S),
            case.OBJECTS / case.SPARK_LISTED_PER_CORE_S,
        ),
    ]
    return table(
        ["a day", "keys", "keys a core and second", "core hours"],
        ([a, b, c, f"{d / 3600:,.1f}"] for a, b, c, d in rows),
    )


def _listing() -> str:
    yours = case.BUCKET

    def row(what: str, lists: float, seconds: float) -> list[str]:
        return [what, number(lists), duration(seconds), dollars(Requests(lists=lists).dollars)]

    return table(
        ["what is listed", "LIST", "how long", "$"],
        [
            row(f"all, on Spark with {yours.cores} cores", yours.listing.lists, yours.listing_spark_s),
            row("all, in one process", yours.listing.lists, yours.listing_here_s),
            row("the garbage of one sweep, by skip-scan", yours.skip_scan.lists, yours.skip_scan_s),
        ],
    ) + wrapped_below(
        f"So {case.CORES} cores list the bucket at most {DAY_S // yours.listing_spark_s:.0f} times a day; every 20 minutes "
        f"would take {number(-(-case.CORES * yours.listing_spark_s // case.WATERMARK_S))} cores. "
        f"The sweep that follows the skip-scan deletes for {duration(yours.sweep_run_s)}, at "
        f"{number(yours.deletes_per_s)} objects a second."
    )


def _yours() -> str:
    def row(b: model.Bucket) -> list[str]:
        return [
            number(b.objects),
            number(b.per_second),
            number(b.garbage),
            duration(b.listing_here_s),
            duration(b.listing_spark_s),
            dollars(b.listing.dollars),
            number(b.skip_scan.lists),
            duration(b.sweep_run_s),
            dollars(b.sweeps_dollars),
            dollars(b.stored_dollars),
        ]

    head = ["objects", "new a second", "garbage a sweep", "full listing, one process", "Spark, 16 cores", "$"]
    head += ["a sweep: LIST", "how long", "sweeps of a day, $", "storage of a month, $"]
    return table(head, map(row, case.BUCKETS))


def _logs() -> str:
    entries = case.APPENDS * DAY_S
    kept = case.journal_log().objects
    checkpoints = entries / case.CHECKPOINT_ENTRIES
    state = case.UNRECONCILED * (model.STATE_OBJECT_BYTES + case.PER_OBJECT * model.STATE_EXTENT_BYTES)

    def row(what: str, one: float, unit: Callable[[float], str] = size) -> list[str]:
        return [what, unit(one), unit(case.JOURNALS * one)]

    return table(
        ["", "a journal", "all journals"],
        [
            row("entries a day", entries, number),
            row("their bytes", entries * case.ENTRY_BYTES),
            row("objects in the log, housekeeping every 5 minutes", kept, number),
            row("a checkpoint: extents of 10 minutes, 64 L1 rows for each partition", case.CHECKPOINT),
            row("checkpoints that writers write in a day", checkpoints, number),
            row("their bytes", checkpoints * case.CHECKPOINT),
            row("unreconciled extents in memory", state),
        ],
    ) + wrapped_below(
        f"The controller's log gets {DAY_S / case.EPOCH_S:.0f} ticks a day, and an entry for each topic and each run of a "
        f"producer. A busy writer that is alone in its journal appends once in {APPEND_INTERVAL_S * 1000:.0f} ms, an idle "
        "one at once."
    )


def _limits() -> str:
    keep = case.journals_in_time(case.housekeep(), case.HOUSEKEEP_S)
    idle = case.journals_in_time(case.housekeep_idle(), case.HOUSEKEEP_S)
    plan = case.journals_in_time(case.JOURNALS * case.reconcile_journal(), case.RECONCILE_S)
    rows = [
        ("`housekeep` in 5 minutes, busy journals", f"{number(keep)} journals", keep / case.JOURNALS),
        ("the same, journals that only tick", f"{number(idle)} journals", idle / case.JOURNALS),
        ("`reconcile` plans and commits in 10 minutes", f"{number(plan)} journals", plan / case.JOURNALS),
        (
            "objects a second in one journal",
            number(case.objects_possible()),
            case.objects_possible() / case.PER_JOURNAL,
        ),
        (
            f"`compute-watermark` lists all in a day, {case.CORES} cores",
            f"{number(case.keys_in_time())} keys",
            case.keys_in_time() / case.OBJECTS,
        ),
        (
            f"the journals' states fit {size(case.MEMORY_BYTES)} of memory",
            f"{number(case.journals_in_memory())} journals",
            case.journals_in_memory() / case.JOURNALS,
        ),
        (
            f"deletes in the {case.DELETE_PREFIXES} S3 prefixes that they need",
            f"{number(case.DELETE_PREFIXES * model.WRITES_PER_S - case.PER_S)} a second",
            (case.DELETE_PREFIXES * model.WRITES_PER_S - case.PER_S) / case.PER_S,
        ),
        ("one topic", "1,000,000 partitions", 10**6 / case.PARTITIONS),
        (
            "one sweeping process, by its processor",
            f"{number(case.DELETED_PER_CPU_S)} deletes a second",
            case.DELETED_PER_CPU_S / case.PER_S,
        ),
    ]
    rows.sort(key=lambda r: r[2])
    return table(["what", "holds up to", "share of the case"], ([a, b, f"{100 * c:.0f} %"] for a, b, c in rows))


TABLES: dict[str, Callable[[], str]] = {
    "sweeps": _sweeps,
    "assumed": _assumed,
    "follows": _follows,
    "few": _few,
    "requests": _requests,
    "beside": _beside,
    "deletes": _deletes,
    "processor": _processor,
    "listing": _listing,
    "yours": _yours,
    "logs": _logs,
    "limits": _limits,
}


def rewritten(text: str) -> str:
    """Return the document with its tables as the formulas give them. Raises `KeyError` for a table that does not exist."""
    return _TABLE.sub(lambda m: f"{m[1]}{TABLES[m[2]]()}\n{m[3]}", text)


def names(text: str) -> list[str]:
    """Return the names of the document's tables."""
    return [m[2] for m in _TABLE.finditer(text)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.scaling.paper", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the tables into the document")
    options = parser.parse_args()
    before = DOCUMENT.read_text(encoding="utf-8")
    after = rewritten(before)
    if options.write:
        DOCUMENT.write_text(after, encoding="utf-8")
    elif before != after:
        sys.stderr.write(f"{DOCUMENT} is not as the formulas have it; run python -m tests.scaling.paper --write\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
