"""The edges of a run's graph, and the checks of a graph. Pure."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

from timer_service.core.values.message import Position
from timer_service.runs.messages import MAX_JOBS, MAX_NEEDS, FlawCode, IfFailed, NewJob

_MAX_PATH = 100


class Edge(NamedTuple):
    """A need: `job` waits for `upstream`, which is a job or, in the edges to groups, an unresolved group."""

    upstream: str
    job: str
    if_failed: IfFailed


UPSTREAM_OF, JOB_OF, KIND_OF = (itemgetter(Edge._fields.index(name)) for name in ("upstream", "job", "if_failed"))
"""For loops in C: a run has up to 100,000 edges."""


class Flaw(NamedTuple):
    """The reason why a graph is invalid. `path` names the jobs at fault."""

    code: FlawCode
    path: Sequence[str]


class NewEdges(NamedTuple):
    """The edges that a command adds to a graph."""

    to_jobs: Sequence[Edge]
    to_groups: Sequence[Edge]


class AddedEdges(NamedTuple):
    """The edges to jobs that one command added, with the position of the command."""

    position: Position
    edges: Sequence[Edge]


def build_edges(jobs: Iterable[NewJob], members: Mapping[str, Sequence[str]]) -> NewEdges:
    """Return the edges of new jobs. `members` holds the jobs of each resolved group.

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
    return NewEdges(to_jobs, to_groups)


def _with_members(job: NewJob, members: Mapping[str, Sequence[str]]) -> Collection[tuple[str, IfFailed]]:
    """Return the jobs that a job needs by name or as members of resolved groups."""
    needed = dict(job.needed_jobs)
    for group, if_failed in job.needed_groups:
        for name in members.get(group, ()):
            if name not in needed or if_failed is IfFailed.SKIP:
                needed[name] = if_failed
    return needed.items()


def check_names(new: Sequence[NewJob], known: Collection[str], groups: Collection[str]) -> Flaw | None:
    """Return the first duplicate job name or unknown need among new jobs, or None.

    `known` are the jobs of the run so far, and `groups` are its groups.
    """
    counts = Counter(job.name for job in new)
    groups = frozenset(groups)  # a command has up to 1,000 in a list
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
    new: Sequence[NewJob],
    members: Mapping[str, Collection[str]],
    downstream: Sequence[Edge],
    *,
    jobs: int,
    needs: int,
) -> Flaw | None:
    """Return the job that makes a run too large when `new` jobs are added to it, or None.

    `jobs` and `needs` are the counts so far. `downstream` are the edges to the jobs that need the resolved group.
    A job that needs an unresolved group has one need for it. The check runs before the edges are built, because ten
    thousand jobs that need a group of ten thousand jobs would make a hundred million edges.
    """
    if jobs + len(new) > MAX_JOBS:
        return Flaw(FlawCode.TOO_LARGE, [new[MAX_JOBS - jobs].name])
    for name, count in chain(((edge.job, len(new)) for edge in downstream), _count_needs(new, members)):
        needs += count
        if needs > MAX_NEEDS:
            return Flaw(FlawCode.TOO_LARGE, [name])
    return None


def _count_needs(new: Iterable[NewJob], members: Mapping[str, Collection[str]]) -> Iterator[tuple[str, int]]:
    for job in new:
        of_groups = [len(members[group]) if group in members else 1 for group, _ in job.needed_groups]
        yield job.name, len(job.needs) - len(of_groups) + sum(of_groups)


def find_cycle(known: Iterable[Edge], added: Sequence[AddedEdges]) -> tuple[Position, Flaw] | None:
    """Return the position of the first command whose edges close a cycle, and the cycle. None if there is no cycle.

    The `known` edges have no cycle. The whole graph is searched once, and again only to find the command at fault.
    """
    known = list(known)
    if not _has_cycle(known, added):
        return None
    first, last = 0, len(added) - 1  # binary search for the first edges that close a cycle
    while first < last:
        middle = (first + last) // 2
        if _has_cycle(known, added[: middle + 1]):
            last = middle
        else:
            first = middle + 1
    return added[first].position, _cycle(known, added[: first + 1])


def _has_cycle(known: Sequence[Edge], added: Sequence[AddedEdges]) -> bool:
    """Return whether the graph has a cycle: a topological sort cannot reach the jobs of a cycle."""
    edges = list(chain(known, *(each.edges for each in added)))
    needs = dict(Counter(map(JOB_OF, edges)))  # a run has up to 100,000 edges, and a Counter counts down slowly
    downstream = defaultdict[str, list[str]](list)
    for upstream, job, _ in edges:
        downstream[upstream].append(job)
    sorted_jobs = [name for name in downstream if name not in needs]
    for name in sorted_jobs:  # the loop appends to this list
        for job in downstream.get(name, ()):
            if left := needs[job] - 1:
                needs[job] = left
            else:
                del needs[job]
                sorted_jobs.append(job)
    return bool(needs)


def _cycle(known: Sequence[Edge], added: Sequence[AddedEdges]) -> Flaw:
    upstreams = defaultdict[str, list[str]](list)
    for edge in sorted(chain(known, *(each.edges for each in added))):  # sorted, so that the result is deterministic
        upstreams[edge.job].append(edge.upstream)
    try:
        TopologicalSorter(upstreams).prepare()
    except CycleError as error:
        return Flaw(FlawCode.CYCLE, error.args[1][:_MAX_PATH])
    raise AssertionError("the graph has no cycle")
