"""Writes what has come of runs, with the events that tell of it, in the transaction that has them locked."""

from collections.abc import Mapping, Sequence
from itertools import islice

from timer_service.core import outbox
from timer_service.core.data import dump_data
from timer_service.core.database import Row, Transaction
from timer_service.core.message import Event
from timer_service.runs import early, events, rules, store
from timer_service.runs.batch import Work
from timer_service.runs.messages import RunStatus
from timer_service.runs.rules import Job, Run, RunKey
from timer_service.runs.store import JobKey

_READY_AT_ONCE = 500
"""How many JobReady are held in memory, each with what its upstreams put out."""


async def write(tx: Transaction, works: Mapping[RunKey, Work], before: Mapping[RunKey, Run], now: int) -> int:
    """Write runs that were `before` as they were read; return how many events there are to publish."""
    await _write_graphs(tx, works)
    completed = [key for key, work in works.items() if _is_complete(work)]
    counts = await store.counts(tx, completed)
    told: list[Event] = []
    for key, work in works.items():
        run = work.graph.run
        if key in counts:
            status = RunStatus.CANCELLED if work.cancelled else rules.completed_as(counts[key])
            run = run._replace(status=status)
        work.graph.run = rules.settled(run, now)
        told += _events(work, now)
        if key in counts:
            told.append(events.run_completed(work.graph.run, counts[key], now))
    await store.put_runs(tx, [work.graph.run for key, work in works.items() if work.graph.run != before[key]])
    ready = await _announce_ready(tx, works, now)
    await outbox.add(tx, told, now)
    return ready + len(told)


async def _write_graphs(tx: Transaction, works: Mapping[RunKey, Work]) -> None:
    await store.add_jobs(tx, [each for key, work in works.items() for each in _new_jobs(key, work)])
    await store.put_jobs(
        tx,
        [
            (key, work.graph.jobs[name])
            for key, work in works.items()
            for name in sorted(work.graph.changed - work.added.keys())
        ],
    )
    await store.put_outputs(
        tx,
        [
            ((key, name), text)
            for key, work in works.items()
            for name, text in work.outputs.items()
            if name not in work.added
        ],
    )
    await store.add_needs(tx, [(key, edge) for key, work in works.items() for edge in work.edges])
    await store.add_group_needs(tx, [(key, edge) for key, work in works.items() for edge in work.group_edges])
    await store.put_groups(
        tx, [(key, work.graph.groups[name]) for key, work in works.items() for name in work.touched_groups]
    )
    await early.keep(tx, [(key, each) for key, work in works.items() for each in work.kept.values()])
    await early.forget(tx, [(key, each) for key, work in works.items() for each in work.applied])


def _new_jobs(key: RunKey, work: Work) -> list[tuple[RunKey, Job, str | None, str | None]]:
    return [
        (
            key,
            work.graph.jobs[name],
            dump_data(new.payload) if "payload" in new.model_fields_set else None,
            work.outputs.get(name),
        )
        for name, new in work.added.items()
    ]


def _is_complete(work: Work) -> bool:
    run = work.graph.run
    return work.cancelled or (run.status is RunStatus.RUNNING and run.evaluated and not run.going)


def _events(work: Work, now: int) -> list[Event]:
    graph = work.graph
    told = [events.job_skipped(graph.run, graph.jobs[name], cause, now) for name, cause in graph.skipped.items()]
    if work.stuck:
        told.append(events.run_stuck(graph.run, work.stuck, now))
    if work.rejected is not None:
        told.append(events.run_rejected(graph.run, work.rejected, now))
    return told


async def _announce_ready(tx: Transaction, works: Mapping[RunKey, Work], now: int) -> int:
    """Put the JobReady of all jobs that were let go into the outbox, with what their upstreams have put out by now."""
    ready = iter([(key, name) for key, work in works.items() for name in work.graph.ready])
    count = 0
    while places := list(islice(ready, _READY_AT_ONCE)):
        count += len(places)
        await outbox.add(tx, await _ready_events(tx, works, places, now), now)
    return count


async def _ready_events(
    tx: Transaction, works: Mapping[RunKey, Work], places: Sequence[JobKey], now: int
) -> list[Event]:
    outputs: dict[JobKey, list[Row]] = {}
    for row in await store.upstream_outputs(tx, places):
        if row["outputs"] is None:
            continue
        outputs.setdefault((RunKey(row["tenant_id"], row["run_id"]), row["job_name"]), []).append(row)
    told = []
    for row in await store.given(tx, places):
        key, name = RunKey(row["tenant_id"], row["run_id"]), row["job_name"]
        graph = works[key].graph
        told.append(events.job_ready(graph.run, row, outputs.get((key, name), ()), graph.ready[name], now))
    return told
