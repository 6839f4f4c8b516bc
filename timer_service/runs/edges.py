"""The edges of a job as they are stored: a JSON object with the names of the jobs at the other ends, by `if_failed`."""

from collections.abc import Callable, Sequence
from operator import attrgetter

from pydantic_core import from_json, to_json

from timer_service.runs.graph import Edge
from timer_service.runs.messages import IfFailed

_IF_FAILED = {str(each): each for each in IfFailed}


def write_needs(edges: Sequence[Edge]) -> str | None:
    """Return the JSON of the jobs that a job needs, given the edges to it; None without edges."""
    return _write(edges, attrgetter("upstream"))


def write_needed_by(edges: Sequence[Edge]) -> str | None:
    """Return the JSON of the jobs that need a job, given the edges from it; None without edges."""
    return _write(edges, attrgetter("job"))


def read_needs(text: str) -> list[tuple[str, IfFailed]]:
    """Return the jobs that a job needs, ordered by name."""
    names = from_json(text)
    return sorted((name, if_failed) for key, if_failed in _IF_FAILED.items() for name in names.get(key, ()))


def read_needed_by(upstream: str, text: str) -> list[Edge]:
    """Return the edges from a job to the jobs that need it."""
    names = from_json(text)
    return [Edge(upstream, job, if_failed) for key, if_failed in _IF_FAILED.items() for job in names.get(key, ())]


def _write(edges: Sequence[Edge], other_end: Callable[[Edge], str]) -> str | None:
    if not edges:
        return None
    names = {key: [other_end(edge) for edge in edges if edge.if_failed is each] for key, each in _IF_FAILED.items()}
    return to_json(names).decode()  # with members of an enum as keys, it takes three times as long
