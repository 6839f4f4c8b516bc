"""Which metrics and labels a PromQL query uses, and which ones the service has."""

import inspect
from collections.abc import Iterable
from typing import NamedTuple

import promql_parser as promql
from prometheus_client import CollectorRegistry

from timer_service.app.slices import SLICES
from timer_service.core.ports.health import HEALTHY
from timer_service.core.ports.metrics_port import MetricsPort
from timer_service.core.values.errors import Code
from timer_service.metrics import Metrics

ADDED_BY_PROMETHEUS = frozenset({"job", "instance"})
"""Labels that Prometheus adds."""


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
    """Return the labels of each metric of the service by its name, once everything was measured."""
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.watch(broker=bool, database=bool, flows=lambda: {"commands": HEALTHY})
    for name, method in vars(MetricsPort).items():
        if not name.startswith("_"):
            _, *parameters = inspect.signature(method).parameters.values()
            getattr(metrics, name)(*("x" if each.annotation is str else 1 for each in parameters))
    samples = [sample for family in registry.collect() for sample in family.samples]
    return {each.name: frozenset(each.labels) for each in samples if not each.name.endswith("_created")}


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
    return {"table": leased | due | counted, "flow": {"commands", "events", "queries", "requests"}, "code": set(Code)}
