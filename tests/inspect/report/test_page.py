"""The page: well-formed, self-contained, and safe to open whatever names and reasons the bucket contains."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l0gc.collect.deletion import Pause
from l0gc.collect.history import RunEntry
from l0gc.inspect.laggards import Laggards
from l0gc.inspect.overview import Cause, DatedHolder, Overview, PinCost
from l0gc.inspect.overview_reader import garbage_of
from l0gc.inspect.report.facts import (
    HEALTHY,
    NEEDS_YOU,
    WAITING,
    DeletedBar,
    EpochBar,
    Report,
    TopicFacts,
    TrendPoint,
    Verdict,
    deleted_bars,
    epoch_bars,
    forecast,
    lags,
    saved,
    sweeps_of,
    thinned,
    trend_points,
)
from l0gc.inspect.report.page import (
    Chart,
    Scale,
    commands_of,
    deleted_chart,
    epochs_chart,
    height_scale,
    nice_step,
    render,
    short_number,
    short_size,
    time_ticks,
    trend_chart,
)
from l0gc.inspect.verify.findings import Finding, VerifyResult
from l0gc.keys import KeyLayout
from l0gc.streamlog.journal.topic import Hole
from l0gc.watermark.scans import ScanRow, ScanSnapshot
from l0gc.watermark.source import UNRECONCILED, Holder
from tests.inspect.report.support import DAY_MS, run_entry, scan_rows, summary, totals, unit

NOW = 1_795_000_000_000
VOID = {"meta"}
HOSTILE = "<script>alert(1)</script>'\"><img src=http://evil.example onerror=x>{{ 7 * 191 }}&amp;"


def lag(topic: str, partition: int, gc_epoch: int, records: int, reason: str) -> Holder:
    return Holder(topic, partition, gc_epoch, UNRECONCILED, reason, records)


def facts(**changes: object) -> Report:
    """Return a report on a cluster about which everything is known."""
    rows = [ScanRow(e, e * 10, e << 20, NOW - e, "t/0" if e > 6 else "", 2 if e > 6 else 0) for e in range(1, 9)]
    scan = ScanSnapshot(totals(NOW - 5 * 60_000, unparsable=2, unparsable_samples=["level_zero/data/README"]), rows)
    runs = [run_entry(NOW - DAY_MS + n * 3_600_000, 100 + n) for n in range(5)]
    scans = [totals(NOW - n * DAY_MS, eligible_objects=n, eligible_bytes=n << 30) for n in range(5, 0, -1)]
    o = Overview(
        cluster_id="01d33ec7-e55d-4ecd-a6e1-ff4a6936e0f0", as_of_ms=NOW, external_log=False, cluster_epoch=9, topics=1,
        partitions=2, watermark=6, published_ms=NOW - 60_000, computable_watermark=6, lag_ms=2 * 3_600_000,
        lag_at_least=True,
        causes=[Cause("unreconciled", "t/0 at 6: 7 records are not in L1 yet", "l0gc reconcile && l0gc compute-watermark")],
        warnings=[Cause("local_clock", "this machine's clock is 99 s behind", "set the clock (NTP)")],
        next="l0gc reconcile && l0gc compute-watermark", paused=Pause("disk audit", "ann@ops1", NOW - DAY_MS),
        held_back_by=[DatedHolder("t", n, 6, UNRECONCILED, "7 unreconciled records") for n in (0, 1)],
        records=41, unreconciled_records=7, held_partitions=12, lost_records=70, holes=3,
        laggards=Laggards(
            partitions=1, garbage_bytes=1 << 30,
            sentence="t/0 has lagged for 30 d, keeps 1 GiB: l0gc reconcile && l0gc compute-watermark",
        ),
        pins=[
            PinCost("backup", 6, NOW, NOW + DAY_MS, "<b>nightly</b>", -1, 3 << 20),
            PinCost("audit", None, NOW, NOW + 1, "", 0, 0),
        ],
        garbage=garbage_of(scan, 6, runs, 0.023), runs=[*runs, run_entry(NOW, None)], runs_total=9,
        errors=["journal 1 cannot be read: entry 3 is damaged"], notes=["3 scans cannot be read"],
    )  # fmt: skip
    report = Report(
        overview=o, url="s3://b/p/",
        verdict=Verdict(NEEDS_YOU, "journal 1 cannot be read: entry 3 is damaged. And 1 other cause, below.", "damaged"),
        by_topic=[TopicFacts("t", 2, 1, 0, 41, 7, 3, 6), TopicFacts("u", 4, 2, 1, 0, 0, 0, 6)],
        given_up=[Hole("t", 1, 1200, 1249, "t1"), Hole("u", 0, 0, 9, "u0")],
        behind=[lag("t", 0, 6, 7, "7 unreconciled records")], others_behind=1, others_lag=3,
        epochs=epoch_bars(rows, 6), trend=trend_points(scans, sweeps_of(runs)), saved=saved(runs, 0.023),
        forecast=forecast(scans, runs, 5 << 30, 0.023), deleted=deleted_bars(runs),
        findings=VerifyResult(
            8, 6, True, [Finding("l1_missing", "loss", 0, "t", 0, "level_one/data/k", 0, "gone", "restore it")], 3
        ),
    )  # fmt: skip
    for name, value in changes.items():
        setattr(report if name in Report.__struct_fields__ else o, name, value)
    return report


class Reader(HTMLParser):
    """Checks that each element is closed by its own end tag, and collects elements and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def texts(page: str) -> str:
    """Return the visible text, with single spaces."""
    return re.sub(r" (?=[,.:])", "", " ".join(" ".join(read(page).text).split()))


def check_alone(page: str) -> None:
    """Check that the page runs and fetches nothing, and that its policy forbids both."""
    reader = read(page)
    assert {tag for tag, _ in reader.elements} <= {
        "html", "head", "meta", "title", "style", "body", "header", "main", "footer", "section", "h1", "h2", "h3", "p",
        "div", "span", "strong", "code", "bdi", "a", "ul", "li", "dl", "dt", "dd", "details", "summary", "table", "thead",
        "tbody", "tr", "th", "td", "pre", "svg", "defs", "pattern", "rect", "line", "circle", "text",
    }  # fmt: skip
    for tag, attributes in reader.elements:
        assert not {"src", "srcset", "style", "xlink:href", "action", "data"} & set(attributes), tag
        assert not any(name.startswith("on") for name in attributes), tag
        assert (attributes.get("href") or "#").startswith("#")
    style = page[page.index("<style>") : page.index("</style>")]
    assert "@import" not in style
    assert set(re.findall(r"url\(([^)]*)\)", style)) == {"#hatch"}
    policy = [a["content"] for _, a in reader.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_the_page_is_well_formed_and_stands_alone() -> None:
    page = render(facts())
    check_alone(page)
    assert "http://" not in page
    assert "https://" not in page


def test_the_page_says_what_an_operator_asks() -> None:
    shown = texts(render(facts()))
    for words in (
        "01d33ec7-e55d-4ecd-a6e1-ff4a6936e0f0, 2026-11-18 11:06 UTC by the store's clock",
        "Sweeps are paused since 2026-11-17 11:06 UTC by ann@ops1: disk audit",
        "1 journal cannot be read",
        "The first 2 of 12 partitions",
        "7 of 41 records",
        "u, holds M (1 journal cannot be read)",
        "3 findings of l0gc verify, below",
        "Needs you: journal 1 cannot be read: entry 3 is damaged. And 1 other cause, below.",
        "Next: export L0GC_URL=s3://b/p/ l0gc reconcile && l0gc compute-watermark",
        "M is the newest epoch that no partition can still need: every L0 object at or below M may go, none above it.",
        "Two epochs behind the cluster epoch is normal. This M was published 60 s ago",
        "In a week, unswept 5.0 GiB",
        "Saved by sweeps 5.0 KiB 510 objects",
        "510 objects (5.0 KiB) in 5 runs since 2026-11-17 11:06 UTC. They would cost $0.00 a month.",
        "a sweep, and what it left",
        "unreconciled t/0 at 6: 7 records are not in L1 yet l0gc reconcile && l0gc compute-watermark",
        "local_clock this machine's clock is 99 s behind set the clock (NTP)",
        "3 epochs behind 9, or 2 h at least",
        "Garbage now 21.0 MiB 210 objects, under $0.01 a month",
        "t/0 and 1 more 6 7 unreconciled records",
        "Who keeps garbage of the others t/0 has lagged for 30 d, keeps 1 GiB: l0gc reconcile && l0gc compute-watermark",
        "70 records in 3 holes.",
        "t/1 1,200 to 1,249 50 u/0 0 to 9 10 The first 2 of 3 holes.",
        "And 1 other, none of them more than 3 epochs behind",
        "killed, or still running",
        "And 3 older runs on record",
        "And 2 more findings",
        "By l0gc verify --deep at epoch 8",
        "2 keys among the L0 objects are not l0gc's",
        "level_zero/data/README",
        "Not shown: 3 scans cannot be read",
        "Dollars at $0.023 a GB and month, S3 Standard in us-east-1",
        "M = 6",
    ):
        assert words in shown, words


def test_the_verdict_comes_first_in_a_colour_that_agrees_with_it() -> None:
    for state, colour, word in (
        (HEALTHY, "good", "Healthy"),
        (WAITING, "warn", "Waiting"),
        (NEEDS_YOU, "bad", "Needs you"),
    ):
        page = render(facts(verdict=Verdict(state, "as it is.", "paused"), errors=[], findings=None))
        main = page[page.index("<main>") :]
        assert main.index(f'<div class="banner verdict {colour}">') < 20
        assert f"<strong>{word}:</strong> as it is." in main
        assert re.findall(r'class="banner ([a-z ]+)"', main) == [f"verdict {colour}"]  # the pause is not shown twice


@pytest.mark.parametrize("known", [None, Laggards(garbage_bytes=0)])
def test_a_page_without_laggards_or_holes_does_not_mention_them(known: Laggards | None) -> None:
    page = render(facts(laggards=known, given_up=[], holes=0, lost_records=0))
    check_alone(page)
    assert "Who keeps garbage" not in page
    assert "given up" not in page


def test_the_page_names_each_pin_and_what_it_keeps() -> None:
    said = texts(render(facts()))
    assert "backup (<b>nightly</b>)" in said
    assert "3.0 MiB" in said
    assert "l0gc pin delete" in said
    assert "l0gc pin delete" not in texts(render(facts(pins=[])))


def test_partitions_with_a_normal_lag_are_folded_away() -> None:
    late, fine = lag("t", 0, 4, 7, "late"), lag("t", 1, 7, 0, "fine")
    page = render(facts(behind=[late, fine], others_behind=30, others_lag=1))
    folded = page.index("<summary>31 partitions with a normal lag</summary>")
    assert page.index(">late<") < folded < page.index(">fine<")
    assert "None: each M(p) is at most 2 epochs behind" in texts(render(facts(behind=[fine])))


def test_commands_can_be_copied_with_a_quoted_url() -> None:
    page = render(facts(url="s3://b/it's $HOME/"))
    assert (
        '<pre class="copy">export L0GC_URL=&#39;s3://b/it&#39;&#34;&#39;&#34;&#39;s $HOME/&#39;\nl0gc reconcile' in page
    )
    assert "user-select: all" in page
    assert '<code class="copy">l0gc reconcile &amp;&amp; l0gc compute-watermark</code>' in page
    assert "<pre" not in render(facts(next="set the clock (NTP)"))


def hostile(x: object) -> object:
    """Return `x` with every text in it replaced by harmful HTML."""
    if isinstance(x, str):
        return HOSTILE
    if isinstance(x, list):
        return [hostile(i) for i in x]
    if isinstance(x, RunEntry):
        ended = x.summary and msgspec.structs.replace(x.summary, run_id=HOSTILE, engine=HOSTILE, outcome=HOSTILE)
        return msgspec.structs.replace(x, run_id=HOSTILE, summary=ended)
    if isinstance(x, msgspec.Struct) and not isinstance(x, KeyLayout):  # which refuses such a template
        return msgspec.structs.replace(x, **{n: hostile(v) for n, v in msgspec.structs.asdict(x).items()})
    return x


def test_no_text_from_the_bucket_is_taken_for_html() -> None:
    f = hostile(facts())
    assert isinstance(f, Report)
    page = render(f)
    check_alone(page)
    assert "<script" not in page
    assert "<img" not in page
    assert "1337" not in page
    assert "<script>alert(1)</script>" in "".join(read(page).text)


@given(st.text(max_size=40))
@settings(max_examples=25)
def test_any_pause_or_topic_name_leaves_the_page_whole(text: str) -> None:
    behind = [lag(text, 0, 1, 0, text)]
    check_alone(render(facts(paused=Pause(text, text, 0), behind=behind, url=text, notes=[text])))


@pytest.mark.parametrize(
    "changes",
    [
        {"garbage": None, "epochs": [], "trend": [], "runs": [], "deleted": [], "findings": None, "paused": None},
        {"behind": [], "by_topic": [], "held_back_by": [], "watermark": -1, "published_ms": -1},
        {"external_log": True, "cluster_epoch": -1, "computable_watermark": None, "held_back_by": []},
        {"findings": VerifyResult(1, 0, False), "errors": [f"e{n}" for n in range(100)]},
        {"epochs": []},
    ],
    ids=["nothing is known", "no M", "external log", "no findings", "no objects"],
)
def test_a_page_without_some_of_the_facts_is_whole(changes: dict[str, object]) -> None:
    check_alone(render(facts(**changes)))


def test_a_large_cluster_makes_a_small_page() -> None:
    name = "topic" * 20
    behind, others, _ = lags(200_000, [unit(name, dict.fromkeys(range(1000), 1), 10) for _ in range(100)])
    rows = [ScanRow(e, e, e, e, "topic" * 20 + "/0", 100_000) for e in range(100_000)]
    runs = [run_entry(NOW - n * 1_200_000, n) for n in range(1000)]
    scans = [totals(NOW - n * 1_200_000, eligible_bytes=n) for n in range(500, 0, -1)]
    page = render(
        facts(
            behind=behind,
            others_behind=others,
            by_topic=[TopicFacts(name, 10**6, 10**4, 1, 10**15, 10**12, 10**9, 1)] * 50,
            epochs=epoch_bars(rows, 50_000),
            trend=trend_points(thinned(scans), []),
            runs=[RunEntry("r" * 25, NOW, 1, summary(NOW, 1))] * 20,
            deleted=deleted_bars(runs),
            errors=["e" * 2000] * 10_000,
        )
    )
    assert len(page) < 300_000


def test_days_have_their_own_words() -> None:
    page = render(facts(deleted=[DeletedBar(n * DAY_MS, 5, 50, 3, True) for n in range(4)]))
    assert "<title>1970-01-02, 3 runs: 5 objects, 50 B</title>" in page
    assert "the runs of each day" in page


def test_figures_for_people() -> None:
    assert [short_number(n) for n in (0, 999, 1500, 2_000_000, 5 * 10**9)] == ["0", "999", "1.5k", "2M", "5G"]
    assert [short_size(n) for n in (0, 512, 1536, 2 << 20, 5 << 40)] == ["0 B", "512 B", "1.5 KiB", "2 MiB", "5 TiB"]


CONTRASTS: dict[float, dict[str, tuple[str, ...]]] = {
    4.5: dict.fromkeys(("ink", "soft"), ("paper", "card", "warn", "bad")),
    3.0: {
        "eligible": ("paper",), "deleted": ("paper",), "m": ("paper",), "held": ("paper", "rule", "held-line"),
        "good-rule": ("card",), "warn-rule": ("warn",), "bad-rule": ("bad",),
    },
}  # fmt: skip
"""The contrast that WCAG AA requires of text and of chart marks, with the backgrounds of each colour."""


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_every_text_and_mark_has_wcag_aa_contrast(scheme: int) -> None:
    sheet = (Path(__file__).parents[3] / "l0gc/inspect/report/style.css").read_text()
    block = re.findall(r":root \{(.*?)\}", sheet, re.DOTALL)[scheme]
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
    used = {
        name for marks in CONTRASTS.values() for name in [*marks, *(g for grounds in marks.values() for g in grounds)]
    }
    assert used == set(colours)
    for least, marks in CONTRASTS.items():
        for name, grounds in marks.items():
            for ground in grounds:
                light, dark = sorted((_luminance(colours[name]), _luminance(colours[ground])), reverse=True)
                assert (light + 0.05) / (dark + 0.05) >= least, (name, ground)


def _luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(
    ("remedy", "commands"),
    [
        ("l0gc reconcile && l0gc compute-watermark", "l0gc reconcile && l0gc compute-watermark"),
        ("fix what it reports, then l0gc housekeep --barrier", ""),
        ("restore that object, or give up its records: l0gc give-up --object k; then l0gc reconcile && l0gc gc", ""),
        ("l0gc compute-watermark --reports PATH", "l0gc compute-watermark --reports PATH"),
        ("set the clock (NTP)", ""),
        ("nothing", ""),
        ("nothing to do: 2 objects become garbage in about 9 min, or now with l0gc gc --housekeep-barrier", ""),
        ("wait until its reason no longer holds, then l0gc resume", ""),
        ("remove that record; l0gc reconcile; rm -rf /", ""),
        ("not-l0gc sweep", ""),
    ],
)  # fmt: skip
def test_remedies_commands_can_be_copied_and_run(remedy: str, commands: str) -> None:
    assert commands_of(remedy) == commands


# -- charts --------------------------------------------------------------------------------------------------------------

numbers = st.one_of(st.integers(0, 1000), st.integers(0, 2**62))
moments = st.integers(0, 4_000_000_000_000)


def check_within(c: Chart) -> None:
    """Check that bars exceed the edge by no more than a rounding error."""
    for t in [*c.x_ticks, *c.y_ticks, *([c.line] if c.line else [])]:
        assert 0 <= t.at <= 100
        assert t.anchor in {"start", "middle", "end"}
    for b in c.bars:
        assert b.x >= 0
        assert b.y >= 0
        assert b.width >= 0
        assert b.height >= 0
        assert b.x + b.width <= 100.01
        assert b.y + b.height == pytest.approx(100, abs=0.01)
    for p in c.points:
        assert 0 <= p.x <= 100
        assert 0 <= p.y <= 100
    assert len(c.y_ticks) <= 6


@given(scan_rows(), st.one_of(st.integers(-1, 600), st.integers(-1, 2**62)))
def test_the_chart_of_epochs_stays_within_its_edges(rows: list[ScanRow], m: int) -> None:
    bars = epoch_bars(rows, m)
    c = epochs_chart(bars, m, lambda b: "")
    check_within(c)
    assert len(c.bars) == len(bars)
    assert len(c.x_ticks) <= 7
    assert c.line is not None
    for mark, b in zip(c.bars, bars, strict=True):
        assert mark.height > 0
        # The position may be off by rounding.
        assert mark.x + mark.width <= c.line.at + 0.01 if b.eligible else mark.x >= c.line.at - 0.01


@given(st.lists(numbers, min_size=1, max_size=120))
def test_taller_bars_are_of_more_objects(amounts: list[int]) -> None:
    bars = [DeletedBar(n * DAY_MS, amount, 0, 1, True) for n, amount in enumerate(amounts)]
    c = deleted_chart(bars, lambda b: "")
    check_within(c)
    heights = sorted(zip(amounts, (b.height for b in c.bars), strict=True))
    assert all(low[1] <= high[1] for low, high in pairwise(heights))
    assert all((height > 0) == (amount > 0) for amount, height in heights)
    assert len(c.x_ticks) <= 8


@pytest.mark.parametrize("n", [1, 2, 7, 8, 30, 120])
def test_deletion_bars_fill_the_width_and_label_the_newest(n: int) -> None:
    c = deleted_chart([DeletedBar(i * DAY_MS, 5, 0, 1, True) for i in range(n)], lambda b: "")
    left, right = c.bars[0].x, 100 - c.bars[-1].x - c.bars[-1].width
    assert left == pytest.approx(right, abs=0.01)
    assert max(b.width for b in c.bars) < 10
    last = c.bars[-1]
    assert c.x_ticks[-1].at == pytest.approx(last.x + last.width / 2, abs=0.01)


def test_a_sweep_has_a_mark_on_the_line_of_its_own() -> None:
    points = [TrendPoint(0, 9, 90), TrendPoint(10, 2, 20, 7, 70)]
    c = trend_chart("a", points, lambda p: p.objects, lambda p: f"{p.deleted_objects} deleted")
    assert [(p.kind, p.title) for p in c.points] == [("dot", "0 deleted"), ("swept", "7 deleted")]


@given(st.lists(st.tuples(moments, numbers), min_size=1, max_size=50), st.booleans())
def test_a_trend_goes_from_left_to_right_within_its_edges(values: list[tuple[int, int]], binary: bool) -> None:
    points = [TrendPoint(ms, n, n) for ms, n in sorted(values)]
    c = trend_chart("a", points, lambda p: p.bytes, lambda p: "", binary=binary)
    check_within(c)
    assert [p.x for p in c.points] == sorted(p.x for p in c.points)
    assert 1 <= len(c.x_ticks) <= 6


@given(st.floats(-1e9, 1e9), st.floats(1, 1e12), st.lists(st.floats(-2e12, 2e12), min_size=2, max_size=9))
def test_a_scale_rises_and_ends_at_its_ends(low: float, span: float, values: list[float]) -> None:
    scale = Scale(low, low + span)
    places = [scale.at(v) for v in sorted(values)]
    assert places == sorted(places)
    assert all(0 <= p <= 100 for p in places)
    assert (scale.at(low), scale.at(low + span)) == (0, 100)


@given(numbers, st.booleans())
def test_a_step_is_round_and_the_smallest_that_is_enough(span: int, binary: bool) -> None:
    step = nice_step(span, 5, binary=binary)
    assert step * 5 >= span
    assert step == 1 or step * 5 / (2 if binary else 2.5) < span
    digits = str(step).rstrip("0")
    assert step & (step - 1) == 0 if binary else digits in {"1", "2", "5"}


def test_ticks_begin_at_zero_and_cover_the_highest_value() -> None:
    _, ticks = height_scale([7, 93])
    assert [(t.label, t.at) for t in ticks] == [("0", 100), ("20", 80), ("40", 60), ("60", 40), ("80", 20), ("100", 0)]
    assert [t.label for t in height_scale([0])[1]] == ["0", "1"]


@pytest.mark.parametrize(
    ("m", "label", "at"),
    [
        (-1, "\N{LEFTWARDS ARROW} no M is published", 0),
        (3, "\N{LEFTWARDS ARROW} M = 3", 0),
        (9, "M = 9", 0),
        (14, "M = 14", 50),
        (19, "M = 19", 100),
        (30, "M = 30 \N{RIGHTWARDS ARROW}", 100),
    ],
)
def test_m_stands_after_its_epoch_or_at_the_edge_with_an_arrow(m: int, label: str, at: float) -> None:
    bars = [EpochBar(e, e, 1, 1, e <= m, 0) for e in range(10, 20)]
    line = epochs_chart(bars, m, lambda b: "").line
    assert line is not None
    assert (line.label, line.at) == (label, at)


def test_moments_on_the_axis_are_round_ones() -> None:
    start = 20_000 * DAY_MS
    assert [t.label for t in time_ticks(Scale(start + 1, start + 4 * DAY_MS))] == ["5 Oct", "6 Oct", "7 Oct", "8 Oct"]
    hours = time_ticks(Scale(start + 3_600_000, start + 5 * 3_600_000))
    assert [t.label for t in hours] == [f"4 Oct 0{h}:00" for h in range(1, 6)]
    assert (hours[0].anchor, hours[-1].anchor) == ("start", "end")
    assert [t.minor for t in hours] == [False, True, False, True, False]
