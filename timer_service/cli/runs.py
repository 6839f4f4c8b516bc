"""`timer-service runs`: over the broker, never the database."""

import json
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from timer_service.cli.connecting import with_client
from timer_service.cli.listing import first, terminal_width
from timer_service.cli.running import run as run_main
from timer_service.cli.showing_runs import graph_document, graph_lines, run_document, run_outcome_line, run_table
from timer_service.client import Outcome, RunStatus

app = typer.Typer(help="Job graphs: start, report, look at, cancel.", no_args_is_help=True)

Tenant = Annotated[str, typer.Argument(help="Who owns the run.")]
Name = Annotated[str, typer.Argument(metavar="RUN", help="Its runId.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_WENT_WELL = {"started", "recorded", "resolved", "cancelled", "unchanged", "kept"}


@app.command()
def start(
    tenant: Tenant,
    run: Name,
    file: Annotated[
        typer.FileText, typer.Argument(help='{"jobs": […], "groups": […]} as in docs/runs.md; - for stdin.')
    ],
    as_json: AsJson = False,  # noqa: FBT002 - typer's way
) -> None:
    """Start a run and wait for the outcome."""
    graph = _read(file.read(), "FILE")
    jobs, groups = graph.get("jobs", []), graph.get("groups", [])
    _tell(
        run_main(with_client(lambda client: client.runs.start(tenant, run, jobs, groups=groups))), tenant, run, as_json
    )


@app.command()
def resolve(
    tenant: Tenant,
    run: Name,
    group: Annotated[str, typer.Argument(help="The group's name.")],
    file: Annotated[typer.FileText, typer.Argument(help='{"jobs": […]}; - for stdin.')],
    as_json: AsJson = False,  # noqa: FBT002 - typer's way
) -> None:
    """Name the jobs of a dynamic group, and wait for the outcome."""
    jobs = _read(file.read(), "FILE").get("jobs", [])
    _tell(
        run_main(with_client(lambda client: client.runs.resolve_group(tenant, run, group, jobs))), tenant, run, as_json
    )


@app.command()
def report(  # noqa: PLR0917 - typer's way
    tenant: Tenant,
    run: Name,
    job: Annotated[str, typer.Argument(help="The job's name.")],
    status: Annotated[str, typer.Argument(help="dispatched, running, success, failed, cancelled, …")],
    outputs: Annotated[str | None, typer.Option(help="A JSON object for the jobs that need this one.")] = None,
    as_json: AsJson = False,  # noqa: FBT002 - typer's way
) -> None:
    """Tell how far a job has come, and wait for the outcome."""
    given = None if outputs is None else _read(outputs, "--outputs")
    told = with_client(lambda client: client.runs.report(tenant, run, job, status, outputs=given))
    _tell(run_main(told), tenant, run, as_json)


@app.command()
def cancel(tenant: Tenant, run: Name, as_json: AsJson = False) -> None:  # noqa: FBT002 - typer's way
    """End every job of a run that has not ended."""
    _tell(run_main(with_client(lambda client: client.runs.cancel(tenant, run))), tenant, run, as_json)


@app.command()
def get(tenant: Tenant, run: Name, as_json: AsJson = False) -> None:  # noqa: FBT002 - typer's way
    """Draw a run's graph, with each job's status."""
    found = run_main(with_client(lambda client: client.runs.get(tenant, run)))
    if found is None:
        typer.echo(f"not found: {tenant}/{run}", err=True)
        raise typer.Exit(1)
    typer.echo(json.dumps(graph_document(found)) if as_json else "\n".join(graph_lines(found, terminal_width())))


@app.command("list")
def list_(
    tenant: Tenant,
    status: Annotated[RunStatus | None, typer.Option(case_sensitive=False, help="Only those of it.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="The most to show.")] = 50,
    as_json: AsJson = False,  # noqa: FBT002 - typer's way
) -> None:
    """List runs, newest first."""
    found = run_main(with_client(lambda client: first(client.runs.list(tenant, status=status), limit + 1)))
    if as_json:
        typer.echo(json.dumps([run_document(each) for each in found[:limit]]))
        return
    for line in run_table(found[:limit], datetime.now(UTC), terminal_width()):
        typer.echo(line)
    if len(found) > limit:
        typer.echo(f"There are more than {limit}; see them with --limit or --status.", err=True)


def _read(text: str, option: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option} must be JSON: {error}") from error
    if not isinstance(found, dict):
        raise typer.BadParameter(f"{option} must be a JSON object")
    return found


def _tell(outcome: Outcome, tenant: str, name: str, as_json: bool) -> None:  # noqa: FBT001
    """Print an outcome; exit with 1 when the command came to nothing."""
    if as_json:
        run = {} if outcome.run is None else {"run": run_document(outcome.run)}
        typer.echo(json.dumps({"commandId": outcome.command_id, "outcome": outcome.name, **run}))
    else:
        typer.echo(run_outcome_line(outcome, tenant, name), err=outcome.name not in _WENT_WELL)
    if outcome.name not in _WENT_WELL:
        raise typer.Exit(1)
