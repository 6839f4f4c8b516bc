"""The edges of a run's graph, and what can be wrong with them. Pure."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from typing import NamedTuple

from timer_service.core.message import Position
from timer_service.runs.messages import MOST_JOBS, MOST_NEEDS, FlawCode, IfFailed, NewJob

_LONGEST_PATH = 100


class Edge(NamedTuple):
    """A job needs another job or, in the edges to groups, an unresolved group."""

    upstream: str
    job: str
    if_failed: IfFailed


class Flaw(NamedTuple):
    """Why a graph can't be run, and the jobs at fault."""

    code: FlawCode
    path: Sequence[str]


class Edges(NamedTuple):
    """The edges that new jobs bring with them."""

    to_jobs: Sequence[Edge]
    to_groups: Sequence[Edge]


class Addition(NamedTuple):
    """The edges to jobs that one command added to the graph."""

    position: Position
    edges: Sequence[Edge]


def edges_of(jobs: Iterable[NewJob], members: Mapping[str, Sequence[str]]) -> Edges:
    """Return the edges of new jobs. `members` are the jobs of each resolved group: they stand for the group.

    A job needs another job once. If it needs it by name and as a member of a group, skip is the stricter.
    """
    to_jobs: dict[tuple[str, str], Edge] = {}
    to_groups: list[Edge] = []
    for job in jobs:
        for name, if_failed in job.needed_jobs:
            to_jobs[name, job.name] = Edge(name, job.name, if_failed)
        for group, if_failed in job.needed_groups:
            if group not in members:
                to_groups.append(Edge(group, job.name, if_failed))
                continue
            for name in members[group]:
                if (name, job.name) not in to_jobs or if_failed is IfFailed.SKIP:
                    to_jobs[name, job.name] = Edge(name, job.name, if_failed)
    return Edges(list(to_jobs.values()), to_groups)


def check_names(new: Sequence[NewJob], known: Collection[str], groups: Collection[str]) -> Flaw | None:
    """Return what is wrong with the names of new jobs, or of what they need, in a run with these jobs and groups."""
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


def check_size(
    new: Sequence[NewJob], members: Mapping[str, Collection[str]], waiting: Sequence[Edge], *, jobs: int, needs: int
) -> Flaw | None:
    """Return the job at which a run of so many jobs and needs becomes too large, when `new` jobs are added to it.

    `waiting` are the edges of jobs that will need each of them. A need of an unresolved group counts as one. Counted
    before the edges are built: ten thousand jobs that need a group of ten thousand would be a hundred million edges.
    """
    if jobs + len(new) > MOST_JOBS:
        return Flaw(FlawCode.TOO_LARGE, [new[MOST_JOBS - jobs].name])
    for name, count in chain(((edge.job, len(new)) for edge in waiting), _needs_of(new, members)):
        needs += count
        if needs > MOST_NEEDS:
            return Flaw(FlawCode.TOO_LARGE, [name])
    return None


def _needs_of(new: Iterable[NewJob], members: Mapping[str, Collection[str]]) -> Iterator[tuple[str, int]]:
    for job in new:
        of_groups = [len(members[group]) if group in members else 1 for group, _ in job.needed_groups]
        yield job.name, len(job.needs) - len(of_groups) + sum(of_groups)


def find_cycle(known: Iterable[Edge], additions: Sequence[Addition]) -> tuple[Position, Flaw] | None:
    """Return the position of the first addition that closes a cycle, and the cycle; None if there is none.

    `known` edges have no cycle. Looks at the whole graph once, and again only to find the addition.
    """
    known = list(known)
    if not _has_cycle(known, additions):
        return None
    first, last = 0, len(additions) - 1  # the first addition that closes a cycle is between them
    while first < last:
        middle = (first + last) // 2
        if _has_cycle(known, additions[: middle + 1]):
            last = middle
        else:
            first = middle + 1
    return additions[first].position, _cycle(known, additions[: first + 1])


def _has_cycle(known: Sequence[Edge], additions: Sequence[Addition]) -> bool:
    """Return whether some job can't come to its turn when jobs are taken in the order of their needs."""
    needs = Counter[str]()
    downstream = defaultdict[str, list[str]](list)
    for upstream, job, _ in chain(known, *(each.edges for each in additions)):
        needs[job] += 1
        downstream[upstream].append(job)
    free = [name for name in downstream if name not in needs]
    for name in free:  # grows as it is walked
        for job in downstream.get(name, ()):
            needs[job] -= 1
            if not needs[job]:
                free.append(job)
    return any(needs.values())


def _cycle(known: Sequence[Edge], additions: Sequence[Addition]) -> Flaw:
    upstreams = defaultdict[str, list[str]](list)
    for edge in sorted(chain(known, *(each.edges for each in additions))):  # so that always the same cycle is named
        upstreams[edge.job].append(edge.upstream)
    try:
        TopologicalSorter(upstreams).prepare()
    except CycleError as error:
        return Flaw(FlawCode.CYCLE, error.args[1][:_LONGEST_PATH])
    raise AssertionError("the graph has no cycle")
