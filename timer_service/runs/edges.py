"""The edges of a job as they are stored: a JSON object with the names of the jobs at the other ends, by `if_failed`."""

from collections.abc import Iterable, Sequence

from pydantic_core import from_json, to_json

from timer_service.runs.graph import JOB_OF, KIND_OF, UPSTREAM_OF, Edge
from timer_service.runs.messages import IfFailed

_RUN = IfFailed.RUN
_IF_FAILED = {str(each): each for each in IfFailed}


def write_needs(edges: Sequence[Edge]) -> str | None:
    """Return the JSON of the jobs that a job needs, given the edges to it; None without edges."""
    return _write(edges, map(UPSTREAM_OF, edges))


def write_needed_by(edges: Sequence[Edge]) -> str | None:
    """Return the JSON of the jobs that need a job, given the edges from it; None without edges."""
    return _write(edges, map(JOB_OF, edges))


def read_needs(text: str) -> list[tuple[str, IfFailed]]:
    """Return the jobs that a job needs, ordered by name."""
    names = from_json(text)
    return sorted((name, if_failed) for key, if_failed in _IF_FAILED.items() for name in names.get(key, ()))


def read_needed_by(upstream: str, text: str) -> list[Edge]:
    """Return the edges from a job to the jobs that need it."""
    names = from_json(text)
    return [Edge(upstream, job, if_failed) for key, if_failed in _IF_FAILED.items() for job in names.get(key, ())]


def _write(edges: Sequence[Edge], names: Iterable[str]) -> str | None:
    """Write the names of the jobs at the other ends. A run has up to 100,000 edges, so loops in C find them."""
    if not edges:
        return None
    by_failure: dict[str, list[str]] = {"skip": [], "run": []}  # with members of the enum, it takes three times as long
    kinds = list(map(KIND_OF, edges))
    if _RUN not in kinds:
        by_failure["skip"] = list(names)
    else:
        for name, kind in zip(names, kinds, strict=True):
            by_failure[kind.value].append(name)
    return to_json(by_failure).decode()
