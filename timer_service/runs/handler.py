"""Commands on runs -> rules -> store, in the consumer's transaction."""

from collections import defaultdict
from collections.abc import Sequence

from timer_service.core.consumer import CommandResult
from timer_service.core.database import Transaction
from timer_service.core.message import Command
from timer_service.runs import early, store
from timer_service.runs.batch import Batch, Work, run_key
from timer_service.runs.graph import Graph
from timer_service.runs.loading import load_consequences
from timer_service.runs.messages import CancelRun, JobStatus, ReportJobStatus, ResolveGroup, StartRun
from timer_service.runs.queries import run_view
from timer_service.runs.rules import UNFINISHED, RunKey
from timer_service.runs.store import JobKey
from timer_service.runs.writing import write

PAYLOADS = (StartRun, ResolveGroup, ReportJobStatus, CancelRun)


async def handle(
    tx: Transaction, commands: Sequence[Command], now: int, *, evaluating: bool
) -> Sequence[CommandResult]:
    """Apply commands in order, each seeing what those before it did, reading and writing each table once for all.

    With `evaluating`, jobs are let go and skipped as what they need ends; without, that is left for later.
    """
    runs = await store.lock_runs(tx, {run_key(command) for command in commands}, now)
    works = {key: Work(Graph(run)) for key, run in runs.items()}
    await _load(tx, commands, works, evaluating=evaluating)
    batch = Batch(now, evaluating, works)
    verdicts = [batch.apply(command) for command in commands]
    events = await write(tx, works, runs, now)
    return [
        CommandResult(verdict, _wake_at(batch, command, now, events=events), _view(batch, command))
        for verdict, command in zip(verdicts, commands, strict=True)
    ]


async def _load(tx: Transaction, commands: Sequence[Command], works: dict[RunKey, Work], *, evaluating: bool) -> None:
    """Read of each run as much as its commands can change."""
    graphs = {key: work.graph for key, work in works.items()}
    makers = {run_key(each) for each in commands if isinstance(each.payload, StartRun | ResolveGroup)}
    for key, command in await early.find(tx, makers):
        works[key].kept[command.position] = command
    whole = {run_key(each) for each in commands if isinstance(each.payload, ResolveGroup | CancelRun)}
    whole = {key for key in whole if graphs[key].run.digest is not None}
    await store.load_whole(tx, {key: graphs[key] for key in whole})
    reports = [(run_key(each), each.payload) for each in commands if isinstance(each.payload, ReportJobStatus)]
    reports = [(key, each) for key, each in reports if key not in whole and graphs[key].run.digest is not None]
    await store.load_jobs(tx, graphs, {(key, name) for key, each in reports for name in _named(each)})
    ends = _ends([(key, each) for key, each in reports if evaluating and graphs[key].run.evaluated])
    await load_consequences(tx, graphs, ends[False], ends[True])


def _named(report: ReportJobStatus) -> list[str]:
    return [report.job_name, *(report.dropped_jobs or ())]


def _ends(reports: Sequence[tuple[RunKey, ReportJobStatus]]) -> dict[bool, set[JobKey]]:
    """Return which jobs are reported to have ended, by whether they have failed."""
    ends: dict[bool, set[JobKey]] = defaultdict(set)
    for key, report in reports:
        if report.status not in UNFINISHED:
            ends[report.status is not JobStatus.SUCCESS].add((key, report.job_name))
        ends[True] |= {(key, name) for name in report.dropped_jobs or ()}
    return ends


def _wake_at(batch: Batch, command: Command, now: int, *, events: int) -> int | None:
    """Return when there is something to do for the outbox or the sweep."""
    return now if events else batch.works[run_key(command)].graph.run.sweep_at


def _view(batch: Batch, command: Command) -> dict[str, object] | None:
    run = batch.works[run_key(command)].graph.run
    return None if command.reply_to is None or run.digest is None else {"run": run_view(run)}
