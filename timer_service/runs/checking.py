"""What can be wrong with a graph. Pure."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from timer_service.runs.messages import MOST_JOBS, MOST_NEEDS, FlawCode, GroupNeed, NewJob
from timer_service.runs.rules import Edge

_LONGEST_PATH = 100


class Flaw(NamedTuple):
    """Why a graph can't be run, and the jobs at fault."""

    code: FlawCode
    path: list[str]


def check_names(new: Sequence[NewJob], known: Collection[str], groups: Collection[str]) -> Flaw | None:
    """Return what is wrong with the names of new jobs, and of what they need, in a run with these jobs and groups."""
    counts = Counter(job.name for job in new)
    for name, count in counts.items():
        if count > 1 or name in known:
            return Flaw(FlawCode.DUPLICATE_JOB, [name])
    for job in new:
        for need in job.read_needs():
            if isinstance(need, GroupNeed):
                if need.group not in groups:
                    return Flaw(FlawCode.UNKNOWN_UPSTREAM, [job.name, need.group])
            elif need.job not in counts and need.job not in known:
                return Flaw(FlawCode.UNKNOWN_UPSTREAM, [job.name, need.job])
    return None


def check_size(
    new: Sequence[NewJob], members: Mapping[str, Collection[str]], waiting: Sequence[Edge], *, jobs: int, edges: int
) -> Flaw | None:
    """Return where a run of so many jobs and edges becomes too large, when new jobs join it and `waiting` need each.

    Counted before it is built: ten thousand jobs that need a group of ten thousand would be a hundred million edges.
    """
    if jobs + len(new) > MOST_JOBS:
        return Flaw(FlawCode.TOO_LARGE, [new[MOST_JOBS - jobs].name])
    counts = [(edge.job, len(new)) for edge in waiting]
    for job in new:
        of_groups = [members.get(need.group, ()) for need in job.read_needs() if isinstance(need, GroupNeed)]
        counts.append((job.name, len(job.needs) - len(of_groups) + sum(map(len, of_groups))))
    for name, count in counts:
        edges += count
        if edges > MOST_NEEDS:
            return Flaw(FlawCode.TOO_LARGE, [name])
    return None


def check_order(edges: Iterable[Edge], group_edges: Iterable[Edge]) -> Flaw | None:
    """Return a cycle among edges. A group that is not resolved stands in the graph as a node of its own."""
    upstreams = defaultdict[str, list[str]](list)
    for edge in edges:
        upstreams[f"job {edge.job}"].append(f"job {edge.upstream}")
    for edge in group_edges:
        upstreams[f"job {edge.job}"].append(f"group {edge.upstream}")
    try:
        TopologicalSorter(upstreams).prepare()
    except CycleError as error:
        return Flaw(FlawCode.CYCLE, [node.partition(" ")[2] for node in error.args[1][:_LONGEST_PATH]])
    return None
