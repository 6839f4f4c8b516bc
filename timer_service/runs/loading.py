"""Reads as much of runs as can follow from the end of some of their jobs."""

from collections.abc import Collection, Mapping

from timer_service.core.database import Reader
from timer_service.runs import store
from timer_service.runs.graph import Graph
from timer_service.runs.messages import IfFailed
from timer_service.runs.rules import Edge, RunKey
from timer_service.runs.store import JobKey

_DEEPEST = 50
"""Levels of a cascade that are read one by one. Of a deeper one the whole run is read: that is four crossings."""


async def load_consequences(
    reader: Reader, graphs: Mapping[RunKey, Graph], succeeded: Collection[JobKey], failed: Collection[JobKey]
) -> None:
    """Read who needs jobs that end, and, level by level, who needs those that a failure among them skips.

    Level by level, for it costs what it reads. Asked for in one, PostgreSQL has no index for what is on the way.
    """
    seen = {place for place in (*succeeded, *failed) if place[1] in graphs[place[0]].jobs}
    edges = await store.load_downstream(reader, graphs, seen)
    fails = {place for place in seen if place in failed or graphs[place[0]].jobs[place[1]].waits}
    level = {(key, edge.job) for key, edge in edges if (key, edge.upstream) in fails and _skips(graphs[key], edge)}
    for _ in range(_DEEPEST):
        level -= seen
        if not level:
            return
        seen |= level
        edges = await store.load_downstream(reader, graphs, level)
        level = {(key, edge.job) for key, edge in edges if _skips(graphs[key], edge)}
    deep = {key: graphs[key] for key, _ in level}
    for graph in deep.values():
        graph.downstream.clear()
    await store.load_whole(reader, deep)


def _skips(graph: Graph, edge: Edge) -> bool:
    return edge.if_failed is IfFailed.SKIP and graph.jobs[edge.job].waits
