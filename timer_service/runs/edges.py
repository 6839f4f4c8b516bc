"""What jobs need, as edges. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from timer_service.runs.messages import GroupNeed, IfFailed, NewJob
from timer_service.runs.rules import Edge


def edges_of(jobs: Iterable[NewJob], members: Mapping[str, Sequence[str]]) -> tuple[list[Edge], list[Edge]]:
    """Return the edges from jobs to jobs, and those to groups: of a group that is resolved, its members stand for it.

    A job needs another once. If it does so by name and as a member of a group, skip is the stricter.
    """
    concrete: dict[tuple[str, str], Edge] = {}
    waiting: list[Edge] = []
    for job in jobs:
        for need in job.read_needs():
            if isinstance(need, GroupNeed) and need.group not in members:
                waiting.append(Edge(need.group, job.name, need.if_failed))
                continue
            for name in members[need.group] if isinstance(need, GroupNeed) else [need.job]:
                if (name, job.name) not in concrete or need.if_failed is IfFailed.SKIP:
                    concrete[name, job.name] = Edge(name, job.name, need.if_failed)
    return list(concrete.values()), waiting
