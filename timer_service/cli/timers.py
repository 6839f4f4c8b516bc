"""`timer-service timers`: over the broker, never the database."""

import json
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from timer_service.cli.arguments import instant
from timer_service.cli.connecting import open_client, with_client
from timer_service.cli.listing import first, terminal_width
from timer_service.cli.running import run
from timer_service.cli.showing import details, document, outcome_line, table, wire
from timer_service.client import Outcome, State
from timer_service.config import load_config
from timer_service.core.instant import parse_instant

app = typer.Typer(help="Schedule, look up and cancel timers, and watch them fire.", no_args_is_help=True)

Tenant = Annotated[str, typer.Argument(help="Who owns the timer.")]
Call = Annotated[str, typer.Argument(help="Its serviceCallId.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_CAME_TO_NOTHING = {"not_found", "already_reached", "ignored_reached", "ignored_stale"}
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


@app.command()
def schedule(  # noqa: PLR0917 - typer's way
    tenant: Tenant,
    call: Call,
    at: Annotated[str | None, typer.Option(help="Due time: ISO 8601 with an offset.")] = None,
    in_: Annotated[str | None, typer.Option("--in", help="Due after: 500ms, 10s, 5m, 2h, 1d or 1h30m.")] = None,
    data: Annotated[str | None, typer.Option(help="JSON that comes back in the event (default: none).")] = None,
    as_json: AsJson = False,  # noqa: FBT002 - typer's way
) -> None:
    """Schedule a timer, or change its due time or data, and wait for the outcome."""
    due_at = _due_at(at, in_)
    extra = {} if data is None else {"data": _json(data)}
    _tell(run(with_client(lambda client: client.schedule(tenant, call, due_at, **extra))), tenant, call, as_json)


@app.command()
def cancel(tenant: Tenant, call: Call, as_json: AsJson = False) -> None:  # noqa: FBT002 - typer's way
    """Cancel a timer that has not fired yet, and wait for the outcome."""
    _tell(run(with_client(lambda client: client.cancel(tenant, call))), tenant, call, as_json)


@app.command()
def retry(tenant: Tenant, call: Call, as_json: AsJson = False) -> None:  # noqa: FBT002 - typer's way
    """Fire a Failed timer at once, and wait for the outcome."""
    _tell(run(with_client(lambda client: client.retry(tenant, call))), tenant, call, as_json)


@app.command()
def get(tenant: Tenant, call: Call, as_json: AsJson = False) -> None:  # noqa: FBT002 - typer's way
    """Show one timer."""
    timer = run(with_client(lambda client: client.get(tenant, call)))
    if timer is None:
        typer.echo(f"not found: {tenant}/{call}", err=True)
        raise typer.Exit(1)
    typer.echo(json.dumps(document(timer)) if as_json else "\n".join(details(timer, datetime.now(UTC))))


@app.command("list")
def list_(  # noqa: PLR0917 - typer's way
    tenant: Tenant,
    state: Annotated[State | None, typer.Option(case_sensitive=False, help="Only those of this state.")] = None,
    due_before: Annotated[str | None, typer.Option(help="Only those due before: ISO 8601 with an offset.")] = None,
    due_after: Annotated[
        str | None, typer.Option(help="Only those due then or later: ISO 8601 with an offset.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="The most to show.")] = 50,
    as_json: AsJson = False,  # noqa: FBT002 - typer's way
) -> None:
    """List timers in order of due time."""
    before = None if due_before is None else instant("--due-before", due_before)
    after = None if due_after is None else instant("--due-after", due_after)
    found = run(
        with_client(
            lambda client: first(client.list(tenant, state=state, due_before=before, due_after=after), limit + 1)
        )
    )
    if as_json:
        typer.echo(json.dumps([document(timer) for timer in found[:limit]]))
        return
    for line in table(found[:limit], datetime.now(UTC), terminal_width()):
        typer.echo(line)
    if len(found) > limit:
        typer.echo(f"There are more than {limit}; see them with --limit or --due-after.", err=True)


@app.command()
def count(tenant: Tenant, as_json: AsJson = False) -> None:  # noqa: FBT002 - typer's way
    """Count timers by state."""
    counts = run(with_client(lambda client: client.count(tenant)))
    oldest = {} if counts.oldest_due is None else {"oldestDue": wire(counts.oldest_due)}
    found = {"counts": dict(counts.by_state), "overdue": counts.overdue, "exact": counts.exact, **oldest}
    if as_json:
        typer.echo(json.dumps(found))
        return
    at_least = "" if counts.exact else " or more"
    for name, number in {**counts.by_state, "overdue": counts.overdue}.items():
        typer.echo(f"{name:<10} {number:>9}{at_least}")


@app.command()
def watch(
    tenant: Annotated[str, typer.Argument(help="Only this tenant's.")] = "*",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,  # noqa: FBT002 - typer's way
) -> None:
    """Print DueTimeReached events as they come."""
    with suppress(KeyboardInterrupt):
        run(_watch(tenant, as_json=as_json))


def _tell(outcome: Outcome, tenant: str, call: str, as_json: bool) -> None:  # noqa: FBT001
    """Print an outcome; exit with 1 when the command came to nothing."""
    if as_json:
        timer = {} if outcome.timer is None else {"timer": document(outcome.timer)}
        typer.echo(json.dumps({"commandId": outcome.command_id, "outcome": outcome.name, **timer}))
    else:
        typer.echo(outcome_line(outcome, tenant, call), err=outcome.name in _CAME_TO_NOTHING)
    if outcome.name in _CAME_TO_NOTHING:
        raise typer.Exit(1)


async def _watch(tenant: str, *, as_json: bool) -> None:
    config = load_config()
    async with open_client(config) as client:
        async for event in client.watch(tenant):
            typer.echo(json.dumps(event) if as_json else event_line(event))


def event_line(event: dict[str, Any]) -> str:
    """Write a DueTimeReached for a person."""
    payload = event["payload"]
    late = parse_instant(payload["reachedAt"]) - parse_instant(payload["dueAt"])
    data = f"  {json.dumps(payload['data'])}" if "data" in payload else ""
    name = f"{payload['tenantId']}/{payload['serviceCallId']}"
    return f"{payload['reachedAt']}  {name}  due {payload['dueAt']} (+{late} ms){data}"


def _due_at(at: str | None, in_: str | None) -> datetime:
    if (at is None) == (in_ is None):
        raise typer.BadParameter("give either --at or --in")
    if in_ is not None:
        return datetime.now(UTC) + _duration(in_)
    return instant("--at", at)


def _duration(text: str) -> timedelta:
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise typer.BadParameter(f"--in {text!r}: use 500ms, 10s, 5m, 2h, 1d or a sum such as 1h30m")
    try:
        return sum((timedelta(**{_UNITS[unit]: float(number)}) for number, unit in parts), timedelta())
    except OverflowError as error:
        raise typer.BadParameter(f"--in {text!r} is too long") from error


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"--data is not JSON: {error}") from error
