"""Runs a healthy cluster for a fortnight, on a store in memory with a clock that the test moves: no rule fires.

`l0gc gc` runs every ten minutes with the options that the documents advise, `l0gc verify` every night. Each run's
metrics are scraped, and the real rules are evaluated over them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from docs.programs.alerts import RULES
from l0gc.cli.metrics import Key, Run, added_up, samples
from l0gc.inspect.overview_reader import read_overview
from l0gc.keys import L1_DATA, journal_log
from l0gc.operations import Sweep
from l0gc.streamlog.pins import create_pin
from tests.support.memory_store import Call, memory_cluster, store_of
from tests.support.promql import NAME, Labels, Scraped, evaluate, seconds
from tests.support.reconcile import put
from tests.test_api import over

TICK_S, HOUR_S, DAY_S = 600, 3600, 86_400
URL = "s3://b/p"
DAYS = 14
RULE = {rule["alert"]: rule for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]}


class Monitor:
    """Prometheus: the contents of the jobs' files over time, and since when each rule's expression has held."""

    def __init__(self) -> None:
        self.files: dict[str, dict[Key, float]] = {}
        self.scraped = Scraped()
        self.since_s: dict[tuple[str, Labels], float] = {}

    def scrape(self, run: Run, now_s: float) -> None:
        self.files[run.step] = added_up(self.files.get(run.step, {}), samples(run, URL))
        for (name, labels), value in self.files[run.step].items():
            series = self.scraped.series.setdefault(frozenset({NAME: name, **dict(labels)}.items()), [])
            series.append((now_s, value))
            if len(series) > 600 and series[1][0] < now_s - 3 * DAY_S:  # only the range of the last success is longer
                del series[1]

    def firing(self, now_s: float) -> set[str]:
        """Return the alerts that fire at this time. Must be called at least every half hour."""
        holds = {
            (name, labels) for name, rule in RULE.items() for labels in evaluate(rule["expr"], self.scraped, now_s)
        }
        self.since_s = {key: self.since_s.get(key, now_s) for key in holds}
        return {name for (name, _), since_s in self.since_s.items() if now_s - since_s >= seconds(RULE[name]["for"])}


@pytest.mark.thorough
def test_no_alert_fires_in_a_healthy_fortnight(monkeypatch: pytest.MonkeyPatch) -> None:
    handles = memory_cluster(bootstrap=False)
    handles.controller.bootstrap(shards=4, journals=2)  # each run reads every journal, and two are enough
    handles.controller.create_topic("events", 2)
    store, monitor, chance = store_of(handles), Monitor(), random.Random(52)

    def run(step: str, work: Callable[[Run], object]) -> None:
        job = Run(step)
        try:
            work(job)
        except KeyboardInterrupt:
            job.exit_code = 130
        job.ended_s = store.now_ms() / 1000
        job.seen = read_overview(handles)
        monitor.scrape(job, job.ended_s)

    def gc(job: Run) -> None:
        def around(step: str, call: Callable[..., Any] | None) -> None:
            part = Run(step, due=call is not None)
            job.parts.append(part)
            try:
                result = call() if call is not None else None
            except KeyboardInterrupt:
                part.exit_code = 130
                raise
            finally:
                part.ended_s = store.now_ms() / 1000
            part.data = result.to_json() if result is not None else {}

        job.data = cluster.gc(run_step=around, sweep=Sweep(min_age_s=HOUR_S, max_delete_ratio=0.5)).to_json()

    def interrupt(call: Call) -> None:
        if (
            call.kind == "put_if_absent"
            and call.key.startswith(journal_log(0))
            and any(k.startswith(L1_DATA) for k in store.objects)
        ):
            store.fault = lambda call: None
            raise KeyboardInterrupt

    with over(handles, monkeypatch) as cluster:
        for tick in range(DAYS * DAY_S // TICK_S):
            day, hour = divmod(tick * TICK_S, DAY_S)
            busy = day % 7 < 5 and 8 * HOUR_S <= hour < 20 * HOUR_S
            for _ in range(chance.randrange(4) if busy else 0):
                put(handles, "events", {chance.randrange(2): [b"a"] * 3})
            if hour == 9 * HOUR_S and day == 1:
                create_pin(handles, "backup", 6 * HOUR_S * 1000, level_one=False, why="backup")
            if hour == 10 * HOUR_S and day in (2, 9):
                store.fault = interrupt
            run("gc", gc)
            store.fault = lambda call: None
            if hour == 3 * HOUR_S:
                run("verify", lambda job: job.data.update(cluster.verify().to_json()))
            if tick % 3 == 0:
                assert monitor.firing(store.now_ms() / 1000) == set(), (
                    day,
                    hour / HOUR_S,
                    read_overview(handles).causes,
                )
            store.clock.sleep(TICK_S)
