"""Which metrics and labels a PromQL query uses, and which ones the service has."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import promql_parser as promql
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from timer_service.app.service import FLOWS
from timer_service.app.slices import SLICES
from timer_service.core.values.errors import Code
from timer_service.metrics import Metrics

ADDED_BY_PROMETHEUS = frozenset({"job", "instance", "le"})
"""Labels that Prometheus adds, and the one of the buckets of a histogram."""

SUFFIXES: Mapping[str, tuple[str, ...]] = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
}
"""The endings of the names under which Prometheus stores a metric, by its type."""


class Selected(NamedTuple):
    """One metric in a query."""

    name: str
    labels: frozenset[str]
    """The labels by which it is selected or grouped."""
    values: frozenset[tuple[str, str]]
    """The values of labels that the query names."""


def selected(query: str) -> list[Selected]:
    """Return the metrics that a query uses. Raises `ValueError` if it is not PromQL."""
    found: list[Selected] = []
    groups: list[frozenset[str]] = []

    def enter(expr: promql.Expr) -> None:
        if isinstance(expr, promql.AggregateExpr):
            groups.append(frozenset(expr.modifier.labels if expr.modifier else ()))
        if isinstance(expr, promql.VectorSelector):
            found.append(_selected(expr, groups))

    def leave(expr: promql.Expr) -> None:
        if isinstance(expr, promql.AggregateExpr):
            groups.pop()

    promql.walk(promql.parse(query), enter, leave)
    return found


def _selected(selector: promql.VectorSelector, groups: list[frozenset[str]]) -> Selected:
    matchers = selector.matchers.matchers
    return Selected(
        selector.name or "",
        frozenset().union(*groups, (each.name for each in matchers)),
        frozenset((each.name, value) for each in matchers for value in each.value.split("|")),
    )


def metrics_of_the_service() -> dict[str, frozenset[str]]:
    """Return the labels of each metric of the service by its name, with the metrics that only have a value later."""
    registry = CollectorRegistry()
    Metrics(registry)
    found: dict[str, frozenset[str]] = {}
    for collector in registry._collector_to_names:
        if isinstance(collector, MetricWrapperBase):
            names = [f"{collector._name}{suffix}" for suffix in SUFFIXES[str(collector._type)]]
        else:
            names = [sample.name for family in collector.collect() for sample in family.samples]
        found |= dict.fromkeys(names, frozenset(getattr(collector, "_labelnames", ())))
    return found


def unknown(queries: Iterable[str]) -> list[str]:
    """Return the metrics in queries that the service does not have, and the labels that its metrics do not have."""
    known = {**metrics_of_the_service(), "up": frozenset[str]()}
    found = []
    for query in queries:
        for each in selected(query):
            if each.name not in known:
                found.append(each.name)
            else:
                found += [f"{each.name}{{{label}}}" for label in each.labels - known[each.name] - ADDED_BY_PROMETHEUS]
    return found


def unknown_values(queries: Iterable[str]) -> list[str]:
    """Return the values of labels that queries name and the service never gives: tables, states, flows and codes."""
    known = _values_of_labels()
    counted = {(rows.table, rows.state) for each in SLICES for rows in each.counted}
    found = []
    for each in (each for query in queries for each in selected(query)):
        found += [f"{label}={value}" for label, value in each.values if value not in known.get(label, {value})]
        values = dict(each.values)
        if each.name == "timer_rows" and "state" in values and (values["table"], values["state"]) not in counted:
            found.append(f"{values['table']} {values['state']}")
    return found


def _values_of_labels() -> dict[str, set[str]]:
    leased = {table.name for each in SLICES for table in each.leased} | {
        name for each in SLICES for name in each.overdue
    }
    due = {table.name for each in SLICES for table in each.due}
    counted = {rows.table for each in SLICES for rows in each.counted}
    return {"table": leased | due | counted, "flow": set(FLOWS), "code": set(Code)}
