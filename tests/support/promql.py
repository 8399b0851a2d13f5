"""Evaluates a PromQL expression over scraped metrics files as Prometheus would, as far as l0gc's rules need it.

`promql-parser` parses; an expression that this module does not support raises. `tests/flows/test_alerts.py` asks the
real promtool the same if it is installed.
"""

from __future__ import annotations

import operator
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import promql_parser as ast
from prometheus_client.parser import text_string_to_metric_families
from promql_parser import AggModifierType, LabelModifierType, MatchOp

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]

NAME = "__name__"
COMPARED: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt, "<": operator.lt, "==": operator.eq, "!=": operator.ne, ">=": operator.ge, "<=": operator.le,
}  # fmt: skip
COMPUTED: Mapping[str, Callable[[float, float], float]] = {
    "-": operator.sub, "+": operator.add, "*": operator.mul, "/": lambda a, b: a / b if b else float("nan"),
}  # fmt: skip
SETS = ("and", "or", "unless")
AGGREGATED: Mapping[str, Callable[[Iterable[float]], float]] = {"max": max, "min": min, "sum": sum}


@dataclass
class Scraped:
    """The values of each series with their times: a metrics file stays until the next run replaces it."""

    series: dict[Labels, list[tuple[float, float]]] = field(default_factory=dict)
    last_s: float = 0.0
    vanished_s: float = float("inf")
    """The time at which the files, or their machine, were lost; an instant vector finds no series from then on."""

    def add(self, at_s: float, text: str) -> None:
        self.last_s = max(self.last_s, at_s)
        for family in text_string_to_metric_families(text):
            for s in family.samples:
                labels = frozenset({NAME: s.name, **s.labels}.items())
                self.series.setdefault(labels, []).append((at_s, s.value))

    def values(self, labels: Labels, from_s: float, to_s: float) -> list[float]:
        """Return the values of a series from `from_s` to `to_s`."""
        known = self.series[labels]
        first = bisect_right(known, (from_s, float("inf"))) - 1
        return [v for at_s, v in known[max(0, first) :] if at_s <= to_s and from_s < self.vanished_s]


def evaluate(expr: str, scraped: Scraped, at_s: float) -> Vector:
    """Return the series that an expression gives at a time."""
    found = _Query(scraped, at_s).value(ast.parse(expr))
    assert isinstance(found, dict), "a rule's expression is a vector"
    return found


def fires(rule: Mapping[str, Any], scraped: Scraped, at_s: float) -> list[dict[str, str]]:
    """Return the labels of a rule's alerts that fire at a time: those that its expression gives throughout its `for`
    until then.
    """
    lasts_s = seconds(rule["for"])
    known = {t for samples in scraped.series.values() for t, _ in samples if at_s - lasts_s < t <= at_s}
    then = [evaluate(rule["expr"], scraped, t) for t in sorted({at_s - lasts_s, *known, at_s})]
    return [dict(labels) for labels in then[-1] if all(labels in vector for vector in then)]


def seconds(duration: str) -> int:
    """Return the seconds of a rule's `for`."""
    return int(duration[:-1]) * {"m": 60, "h": 3600}[duration[-1]]


@dataclass
class _Query:
    scraped: Scraped
    at_s: float

    def value(self, e: Any) -> Vector | float:
        match e:
            case ast.NumberLiteral():
                return float(e.val)
            case ast.ParenExpr():
                return self.value(e.expr)
            case ast.VectorSelector():
                return {labels: values[-1] for labels, values in self._selected(e, self.at_s).items()}
            case ast.Call():
                return self._called(e)
            case ast.AggregateExpr():
                return self._aggregated(e)
            case ast.BinaryExpr():
                return self._combined(str(e.op), self.value(e.lhs), self.value(e.rhs), e.modifier)
        raise NotImplementedError(str(e))

    def _selected(self, e: Any, from_s: float) -> dict[Labels, list[float]]:
        found = {}
        for labels in self.scraped.series:
            of = dict(labels)
            matches = of[NAME] == e.name and all(_matches(m, of.get(m.name, "")) for m in e.matchers.matchers)
            if matches and (values := self.scraped.values(labels, from_s, self.at_s)):
                found[labels] = values
        return found

    def _called(self, e: Any) -> Vector | float:
        if e.func.name == "time":
            return self.at_s
        if e.func.name == "absent":
            return {} if self.value(e.args[0]) else {frozenset(): 1.0}
        (selector,) = e.args
        range_s = selector.range.total_seconds()
        series = self._selected(selector.vector_selector, self.at_s - range_s)
        functions: dict[str, Callable[[list[float]], float]] = {
            "min_over_time": min,
            "max_over_time": max,
            "increase": _increase,
            "rate": lambda values: _increase(values) / range_s,
        }
        function = functions[e.func.name]
        return {_without_name(labels): function(values) for labels, values in series.items()}

    def _aggregated(self, e: Any) -> Vector:
        assert e.modifier.type == AggModifierType.By
        inner = self.value(e.expr)
        assert isinstance(inner, dict)
        groups: dict[Labels, Vector] = {}
        for labels, value in inner.items():
            groups.setdefault(_only(labels, e.modifier.labels), {})[labels] = value
        if str(e.op) == "topk":
            most = int(e.param.val)
            return {
                labels: group[labels]
                for group in groups.values()
                for labels in sorted(group, key=group.__getitem__)[-most:]
            }
        return {key: AGGREGATED[str(e.op)](group.values()) for key, group in groups.items()}

    def _combined(self, op: str, a: Vector | float, b: Vector | float, modifier: Any) -> Vector:
        if isinstance(a, float) or isinstance(b, float):
            return _with_number(op, a, b)

        def key(labels: Labels) -> Labels:
            if modifier is None or modifier.matching is None:
                return _without_name(labels)
            assert modifier.matching.type == LabelModifierType.Include
            return _only(labels, modifier.matching.labels)

        if op in SETS:
            ours, theirs = {key(labels) for labels in a}, {key(labels) for labels in b}
            if op == "or":
                return a | {labels: v for labels, v in b.items() if key(labels) not in ours}
            return {labels: v for labels, v in a.items() if (key(labels) in theirs) == (op == "and")}
        others = {key(labels): v for labels, v in b.items()}
        pairs = {labels: (v, others[key(labels)]) for labels, v in a.items() if key(labels) in others}
        if op in COMPARED:
            return {labels: v for labels, (v, w) in pairs.items() if COMPARED[op](v, w)}
        return {_without_name(labels): COMPUTED[op](v, w) for labels, (v, w) in pairs.items()}


def _with_number(op: str, a: Vector | float, b: Vector | float) -> Vector:
    if isinstance(a, dict) and isinstance(b, float):
        if op in COMPARED:
            return {labels: v for labels, v in a.items() if COMPARED[op](v, b)}
        return {_without_name(labels): COMPUTED[op](v, b) for labels, v in a.items()}
    assert isinstance(a, float)
    assert isinstance(b, dict)
    return {_without_name(labels): COMPUTED[op](a, v) for labels, v in b.items()}


def _increase(values: list[float]) -> float:
    return sum(b - a if b >= a else b for a, b in pairwise(values))


def _matches(matcher: Any, value: str) -> bool:
    if matcher.op in (MatchOp.Equal, MatchOp.NotEqual):
        return bool(value == matcher.value) == bool(matcher.op == MatchOp.Equal)
    return (re.fullmatch(matcher.value, value) is not None) == bool(matcher.op == MatchOp.Re)


def _only(labels: Labels, names: Iterable[str]) -> Labels:
    wanted = set(names)
    return frozenset((k, v) for k, v in labels if k in wanted)


def _without_name(labels: Labels) -> Labels:
    return frozenset((k, v) for k, v in labels if k != NAME)
