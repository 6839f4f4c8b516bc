"""The edges of a run's graph, as values and as stored JSON, and the checks of a graph. Pure."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from typing import NamedTuple

from pydantic_core import from_json, to_json

from timer_service.runs.messages import FlawCode, IfFailed, NewJob

_MAX_PATH = 100
_IF_FAILED = {str(each): each for each in IfFailed}


class Edge(NamedTuple):
    """A need: `job` waits for `upstream`, which is a job or, in the edges to groups, an unresolved group."""

    upstream: str
    job: str
    if_failed: IfFailed


Edges = Mapping[str, Sequence[Edge]]
"""Edges by upstream."""


class Flaw(NamedTuple):
    """The reason why a graph is invalid. `path` names the jobs at fault."""

    code: FlawCode
    path: Sequence[str]


def build_edges(jobs: Iterable[NewJob], members: Mapping[str, Sequence[str]]) -> tuple[list[Edge], list[Edge]]:
    """Return the edges of new jobs to jobs and to groups. `members` holds the jobs of each resolved group.

    A need for a resolved group becomes one edge for each job in it. There is at most one edge between two jobs. If a
    job needs another one both by name and as a member of a group, `skip` wins over `run`.
    """
    to_jobs: list[Edge] = []
    to_groups: list[Edge] = []
    for job in jobs:
        own = job.name
        needed = _with_members(job, members) if job.needed_groups else job.needed_jobs
        to_jobs += [Edge(name, own, if_failed) for name, if_failed in needed]
        to_groups += [Edge(group, own, if_failed) for group, if_failed in job.needed_groups if group not in members]
    return to_jobs, to_groups


def _with_members(job: NewJob, members: Mapping[str, Sequence[str]]) -> Collection[tuple[str, IfFailed]]:
    """Return the jobs that a job needs by name or as members of resolved groups."""
    needed = dict(job.needed_jobs)
    for group, if_failed in job.needed_groups:
        for name in members.get(group, ()):
            if name not in needed or if_failed is IfFailed.SKIP:
                needed[name] = if_failed
    return needed.items()


def by_upstream(edges: Iterable[Edge]) -> dict[str, list[Edge]]:
    """Return edges by upstream."""
    grouped = defaultdict[str, list[Edge]](list)
    for edge in edges:
        grouped[edge.upstream].append(edge)
    return grouped


def check_names(new: Sequence[NewJob], known: Collection[str], groups: Collection[str]) -> Flaw | None:
    """Return the flaw of a duplicate job name or an unknown need among new jobs, or None.

    `known` are the jobs of the run so far, and `groups` are its groups.
    """
    counts = Counter(job.name for job in new)
    for name, count in counts.items():
        if count > 1 or name in known:
            return Flaw(FlawCode.DUPLICATE_JOB, [name])
    for job in new:
        for name, _ in job.needed_jobs:
            if name not in counts and name not in known:
                return Flaw(FlawCode.UNKNOWN_UPSTREAM, [job.name, name])
        for group, _ in job.needed_groups:
            if group not in groups:
                return Flaw(FlawCode.UNKNOWN_UPSTREAM, [job.name, group])
    return None


def find_cycle(new: Iterable[str], known: Edges, added: Edges) -> Flaw | None:
    """Return a cycle through `new` jobs, or None. Each of the `added` edges begins or ends at one of them.

    A topological sort of the jobs that need new jobs, directly or not, cannot reach the jobs of a cycle.
    """
    edges = _edges_from(new, known, added)
    open_needs = dict(Counter(edge.job for edge in chain.from_iterable(edges.values())))  # a Counter is slow below
    sorted_jobs = [name for name in edges if name not in open_needs]
    for name in sorted_jobs:  # the loop appends to this list
        for edge in edges[name]:
            left = open_needs[edge.job] - 1
            if left:
                open_needs[edge.job] = left
            else:
                del open_needs[edge.job]
                sorted_jobs.append(edge.job)
    return _cycle(chain.from_iterable(edges[name] for name in open_needs)) if open_needs else None


def _edges_from(new: Iterable[str], known: Edges, added: Edges) -> dict[str, Sequence[Edge]]:
    """Return the edges from `new` jobs and from all jobs that need them, directly or not."""
    queue = list(new)
    found = set(queue)
    edges: dict[str, Sequence[Edge]] = {}
    for name in queue:  # the loop appends to this list
        edges[name] = [*known.get(name, ()), *added.get(name, ())]
        for edge in edges[name]:
            if edge.job not in found:
                found.add(edge.job)
                queue.append(edge.job)
    return edges


def _cycle(edges: Iterable[Edge]) -> Flaw:
    """Return a cycle of edges that have one."""
    upstreams = defaultdict[str, list[str]](list)
    for edge in sorted(edges):  # sorted, so that the result is deterministic
        upstreams[edge.job].append(edge.upstream)
    try:
        TopologicalSorter(upstreams).prepare()
    except CycleError as error:
        return Flaw(FlawCode.CYCLE, error.args[1][:_MAX_PATH])
    raise AssertionError("the graph has no cycle")


def write_needs(edges: Iterable[Edge]) -> str | None:
    """Return the JSON of the jobs that a job needs, given the edges to it; None without edges."""
    return _write([(edge.upstream, edge.if_failed) for edge in edges])


def write_needed_by(edges: Iterable[Edge]) -> str | None:
    """Return the JSON of the jobs that need a job, given the edges from it; None without edges."""
    return _write([(edge.job, edge.if_failed) for edge in edges])


def _write(others: Sequence[tuple[str, IfFailed]]) -> str | None:
    """Return an object with the names of the jobs at the other ends of edges, by `if_failed`."""
    if not others:
        return None
    skip = [name for name, if_failed in others if if_failed is IfFailed.SKIP]
    run = [name for name, if_failed in others if if_failed is IfFailed.RUN]
    return to_json({"skip": skip, "run": run}).decode()


def read_needs(text: str) -> list[tuple[str, IfFailed]]:
    """Return the jobs that a job needs, ordered by name."""
    names = from_json(text)
    return sorted((name, if_failed) for key, if_failed in _IF_FAILED.items() for name in names.get(key, ()))


def read_needed_by(upstream: str, text: str) -> list[Edge]:
    """Return the edges from a job to the jobs that need it."""
    names = from_json(text)
    return [Edge(upstream, job, if_failed) for key, if_failed in _IF_FAILED.items() for job in names.get(key, ())]
