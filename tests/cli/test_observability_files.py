"""docs/reference/metrics.md and the examples for Prometheus and Grafana name the existing metrics, and no others."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.programs import alerts as table
from l0gc.cli.metrics import BY_NAME, LABELS, MEASURED, METRICS
from l0gc.inspect.causes import CODES, PAUSED

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "examples/prometheus"
NAME = re.compile(r"\bl0gc_\w+")


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    dashboard = json.loads((ROOT / "examples/grafana/l0gc.json").read_text())
    return [p for p in dashboard["panels"] if p["type"] != "row"]


def expressions() -> dict[str, str]:
    found = {rule["alert"]: rule["expr"] for rule in alerts()}
    for panel in panels():
        for i, target in enumerate(panel["targets"]):
            found[f"{panel['title']} {i}"] = target["expr"]
    return found


EXPRESSIONS = expressions()


def test_the_document_has_the_table_of_the_code() -> None:
    assert (ROOT / "docs/reference/metrics.md").read_text().count("\n| `l0gc_") == len(METRICS)


def test_rules_and_dashboard_match_the_tables_of_failures() -> None:
    assert (PROMETHEUS / "alerts.yml").read_text() == table.rules(), "run: make check"
    assert table.DASHBOARD.read_text() == table.dashboard(), "run: make check"
    assert [rule["alert"] for rule in alerts()] == [a.name for a in table.ALERTS]


def test_each_cause_that_status_can_name_has_one_alert() -> None:
    """Causes that need a person at once have their own alert; those that the next runs should end share one."""
    exprs = [rule["expr"] for rule in alerts() if rule["expr"].partition(" unless ")[0].count("l0gc_cause{")]
    exprs = [expr.partition(" unless ")[0] for expr in exprs]
    for code in set(CODES) - {PAUSED}:
        matches = [m for e in exprs for m in re.findall(r'cause(=~|!~)"([^"]+)"', e)]
        assert sum((code in codes.split("|")) == (how == "=~") for how, codes in matches) == 1, code


def test_the_document_names_no_other_metrics() -> None:
    named = set(NAME.findall((ROOT / "docs/reference/metrics.md").read_text()))
    assert named - {"l0gc_last_run_"} <= {n for m in METRICS for n in (m.name, m.last_run_name)}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_an_expression_uses_metrics_and_labels_that_there_are(name: str) -> None:
    expr = EXPRESSIONS[name]
    assert NAME.findall(expr)
    assert set(NAME.findall(expr)) <= set(BY_NAME)
    labels = set(re.findall(r"(\w+)(?:=~|!~|!=|=)\"", expr))
    causes = re.findall(r"cause[=!]~\"([^\"]+)\"", expr)
    assert {code for codes in causes for code in codes.split("|")} <= set(CODES)
    labels |= {label for by in re.findall(r"(?:by|on|ignoring) \(([^)]*)\)", expr) for label in by.split(", ")}
    assert labels <= {*LABELS, "cause", "severity", "instance"}
    assert expr.count("(") == expr.count(")")
    for step in re.findall(r"(?:step|command)!?=~?\"([^\"$]+)\"", expr):
        assert set(step.split("|")) <= set(MEASURED)


def test_counters_get_a_rate_and_gauges_do_not() -> None:
    for name, expr in EXPRESSIONS.items():
        for metric in NAME.findall(expr):
            rated = re.search(rf"(rate|increase)\({metric}\b", expr) is not None
            assert rated == metric.endswith("_total"), name


def test_every_alert_says_what_to_do() -> None:
    for rule in alerts():
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert set(rule["annotations"]) == {"summary", "description"}
