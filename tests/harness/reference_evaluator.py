"""A simple evaluator of graphs, without counters. The evaluator of the service must agree with it."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from timer_service.runs.graph import Edge
from timer_service.runs.messages import IfFailed, JobStatus

Edges = list[Edge]


def evaluate_from_scratch(
    names: AbstractSet[str], edges: Edges, ended: Mapping[str, JobStatus]
) -> tuple[set[str], set[str]]:
    """Return the ready jobs and the skipped jobs. Every job is evaluated again until nothing changes."""
    ends = dict(ended)
    while True:
        needs = {name: [edge for edge in edges if edge.job == name] for name in names - ends.keys()}
        to_skip = {
            name
            for name, of in needs.items()
            if any(
                each.if_failed is IfFailed.SKIP and ends.get(each.upstream, JobStatus.SUCCESS) is not JobStatus.SUCCESS
                for each in of
            )
        }
        if not to_skip:
            break
        ends |= dict.fromkeys(to_skip, JobStatus.SKIPPED)
    ready = {name for name in names - ends.keys() if all(edge.upstream in ends for edge in edges if edge.job == name)}
    return ready, {name for name, status in ends.items() if status is JobStatus.SKIPPED and name not in ended}
