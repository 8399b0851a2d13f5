"""`python -m tests.scaling.paper [--write]`: the tables of `docs/scaling.md`, worked out anew.

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

from l0gc.storage.replica import CHECKPOINT_EVERY
from tests.scaling import case, model
from tests.scaling.case import DAY_S, SweepCase
from tests.scaling.model import Requests

DOCUMENT = Path(__file__).parents[2] / "docs" / "scaling.md"
_TABLE = re.compile(r"(<!-- table: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_MONTH_DAYS = 30


def number(x: float) -> str:
    """To three digits from a million on, which is what the assumptions are worth."""
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
    """A paragraph as wide as those around it."""
    return textwrap.fill(text, 122, break_long_words=False, break_on_hyphens=False)


def wrapped_below(text: str) -> str:
    """The same, behind a table."""
    return f"\n\n{wrapped(text)}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
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
        ("new objects", f"{number(case.PER_S)} a second", f"each with records of {case.PER_OBJECT} partitions"),
        ("shards", number(case.SHARDS), "the default"),
        ("a tick", duration(case.EPOCH_S), "the default"),
        ("`housekeep` every", duration(case.HOUSEKEEP_S), ""),
        ("`reconcile` every", duration(case.RECONCILE_S), ""),
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
        ("entries in each partition's log", f"{case.APPENDS:g} a second"),
        ("processes that upload, at one round trip for a batch's placeholders", number(case.upload_processes())),
    ]
    return table(["what follows", ""], rows)


def _runs() -> list[tuple[str, Requests, float]]:
    """Each command with what a run asks and how many runs there are in a day."""
    return [
        ("uploads of a day", DAY_S * case.uploads_per_s(), 1),
        ("`housekeep`, nonstop", case.housekeep(period_s=case.housekeep_seconds()), 0),
        ("`reconcile`", case.reconcile(), DAY_S / case.RECONCILE_S),
        ("`compute-watermark`", case.compute_watermark(scan=True), DAY_S / case.WATERMARK_S),
        ("`compute-watermark --no-scan`", case.compute_watermark(scan=False), DAY_S / case.WATERMARK_S),
        ("`sweep`", case.sweep(case.STEADY), DAY_S / case.SWEEP_S),
        ("`sweep` of the backlog, once", case.sweep(case.BACKLOG), 1),
    ]


def _requests() -> str:
    rows = []
    for name, run, times in _runs():
        a_day = times or DAY_S / case.housekeep_seconds()
        cells = [number(n) for n in (run.lists, run.gets, run.puts, run.deletes)]
        rows.append([name, *cells, dollars(run.dollars), f"{a_day:.0f}" if times else f"{a_day:.1f}"])
        rows[-1].append(dollars(a_day * run.dollars))
    return table(["one run", "LIST", "GET", "PUT", "DELETE", "$", "runs a day", "$ a day"], rows)


def _beside() -> str:
    sweeps = DAY_S / case.SWEEP_S
    full = Requests(lists=model.pages(case.OBJECTS))
    ours = Requests(lists=model.sweep_lists_bound(case.OBJECTS, case.STEADY, case.SHARDS))
    uploaded = case.PER_S * DAY_S * case.OBJECT_BYTES / 10**9 * model.STORED_DOLLARS
    kept = case.KEPT_UP * case.OBJECT_BYTES / 10**9 * model.STORED_DOLLARS
    rows = [
        ("`l0gc sweep`, every 20 minutes", number(sweeps * ours.lists), dollars(sweeps * ours.dollars), "the garbage"),
        ("a full listing, every 20 minutes", number(sweeps * full.lists), dollars(sweeps * full.dollars), "all"),
        ("a full listing, once a day", number(full.lists), dollars(full.dollars), "all, a day old at worst"),
        ("S3 Inventory, once a day", "0", dollars(case.OBJECTS * model.INVENTORY_DOLLARS), "all, a day old or more"),
        ("a lifecycle rule", "0", dollars(0), "ages in whole days, nothing of M"),
    ]
    note = wrapped_below(
        f"What is kept longer costs more than any listing. A day of uploads is {number(case.PER_S * DAY_S)} objects, or "
        f"{size(case.PER_S * DAY_S * case.OBJECT_BYTES)}: {dollars(uploaded)} for a month of having it. The bucket where "
        f"every job keeps up holds {size(case.KEPT_UP * case.OBJECT_BYTES)}, {dollars(kept)} a month; the one of 10^9 "
        f"objects {size(case.OBJECTS * case.OBJECT_BYTES)}."
    )
    return table(["to find what may go", "LIST a day", "$ a day", "sees"], rows) + note


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
    scans = DAY_S / case.WATERMARK_S
    rows = [
        ("all sweeps", number(a_day), number(case.DELETED_PER_CPU_S), a_day / case.DELETED_PER_CPU_S),
        (
            "one full listing by `compute-watermark`",
            number(case.OBJECTS),
            number(case.SPARK_LISTED_PER_CORE_S),
            case.OBJECTS / case.SPARK_LISTED_PER_CORE_S,
        ),
        (
            f"{scans:.0f} of them",
            number(scans * case.OBJECTS),
            number(case.SPARK_LISTED_PER_CORE_S),
            scans * case.OBJECTS / case.SPARK_LISTED_PER_CORE_S,
        ),
    ]
    return table(
        ["a day", "keys", "keys a core and second", "core hours"],
        ([a, b, c, f"{d / 3600:,.1f}"] for a, b, c, d in rows),
    )


def _logs() -> str:
    entries = case.APPENDS * DAY_S
    runs = DAY_S / case.RECONCILE_S
    kept = [case.partition_log(s).objects for s in (case.HOUSEKEEP_S, case.housekeep_seconds())]
    checkpoint = case.APPENDS * case.RECONCILE_S * model.PLACEHOLDER_BYTES
    per_day = entries / CHECKPOINT_EVERY * checkpoint
    everywhere = case.PARTITIONS

    def row(what: str, one: float, unit: Callable[[float], str] = size) -> list[str]:
        return [what, unit(one), unit(everywhere * one)]

    return table(
        ["", "a partition", "all partitions"],
        [
            row("entries a day", entries, number),
            row("their bytes", entries * model.ENTRY_BYTES),
            row("objects in the log, housekeeping every 5 minutes", kept[0], number),
            row(f"the same, housekeeping every {duration(case.housekeep_seconds())}", kept[1], number),
            row("a checkpoint: placeholders of 10 minutes", checkpoint),
            row("checkpoints that writers write in a day", per_day),
            row("rows for L1 objects, more each day, for ever", runs * model.L1_ROW_BYTES),
            row("the same after a year, in every checkpoint", 365 * runs * model.L1_ROW_BYTES),
            row("the state in memory", case.APPENDS * case.RECONCILE_S * model.STATE_BYTES),
            row("its report, in the driver of `compute-watermark`", model.REPORT_ROW_BYTES),
        ],
    ) + wrapped_below(
        f"The controller's log gets {DAY_S / case.EPOCH_S:.0f} ticks a day of about 150 bytes, and an entry for each "
        "topic and each run of a producer."
    )


def _limits() -> str:
    busy = case.partitions_in_time(case.each_of(case.housekeep()), case.HOUSEKEEP_S)
    idle = case.partitions_in_time(case.housekeep_idle(), case.HOUSEKEEP_S)
    plan = case.partitions_in_time(case.reconcile_plan(), case.RECONCILE_S)
    logs = case.prefixes(2 * case.PER_S * case.PER_OBJECT)
    rows = [
        ("`housekeep` in 5 minutes, busy partitions", f"{number(busy)} partitions", busy / case.PARTITIONS),
        ("the same, partitions that only tick", f"{number(idle)} partitions", idle / case.PARTITIONS),
        ("`reconcile` plans and commits in 10 minutes", f"{number(plan)} partitions", plan / case.PARTITIONS),
        (
            "`compute-watermark` lists all in 20 minutes",
            f"{number(case.keys_in_time())} keys",
            case.keys_in_time() / case.OBJECTS,
        ),
        (
            f"the states fit {size(case.MEMORY_BYTES)} of memory",
            f"{number(case.partitions_in_memory())} partitions",
            case.partitions_in_memory() / case.PARTITIONS,
        ),
        ("deletes in one S3 prefix", f"{number(model.WRITES_PER_S)} a second", model.WRITES_PER_S / case.PER_S),
        ("one topic", "100,000 partitions", 1.0),
        (
            "one sweeping process, by its processor",
            f"{number(case.DELETED_PER_CPU_S)} deletes a second",
            case.DELETED_PER_CPU_S / case.PER_S,
        ),
    ]
    rows.sort(key=lambda r: r[2])
    head = ["what", "holds up to", "share of the case"]
    spread = case.uploads_spread_per_s(case.upload_processes())
    return table(head, ([a, b, f"{100 * c:.0f} %"] for a, b, c in rows)) + wrapped_below(
        f"The logs want {logs} S3 prefixes of their own ({number(case.PER_S * case.PER_OBJECT)} entries a second, each "
        f"written and truncated), and one writer for each partition. If all {case.upload_processes()} uploads wrote to all "
        f"partitions, each would read what the others append: {number(spread.gets)} GETs a second, "
        f"{dollars(DAY_S * spread.dollars)} a day in place of {dollars(DAY_S * case.uploads_per_s().dollars)}."
    )


def _housekeep() -> str:
    each = case.each_of(case.housekeep()).total
    once = case.in_threads(case.housekeep())
    return wrapped(
        f"A busy partition's log takes {each:.0f} requests: two listings of its folder, the checkpoint and on average 50 "
        "entries behind it, a new checkpoint, the boundary, the DELETEs. At "
        f"{case.REQUEST_S * 1000:.0f} ms each over {case.THREADS} threads that is {duration(once)} for "
        f"{number(case.PARTITIONS)} partitions, and the logs have grown meanwhile: it settles at "
        f"{duration(case.housekeep_seconds())}, where {duration(case.HOUSEKEEP_S)} were planned."
    )


TABLES: dict[str, Callable[[], str]] = {
    "sweeps": _sweeps,
    "assumed": _assumed,
    "follows": _follows,
    "requests": _requests,
    "beside": _beside,
    "deletes": _deletes,
    "processor": _processor,
    "logs": _logs,
    "limits": _limits,
    "housekeep": _housekeep,
}


def rewritten(text: str) -> str:
    """The document with its tables as the formulas have them. Raises `KeyError` for a table that there is none of."""
    return _TABLE.sub(lambda m: f"{m[1]}{TABLES[m[2]]()}\n{m[3]}", text)


def names(text: str) -> list[str]:
    """The tables of the document."""
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
