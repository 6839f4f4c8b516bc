"""`timer-service timers`: over the broker, never the database."""

import json
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from timer_service.cli.running import run
from timer_service.client import Outcome, TimerClient
from timer_service.config import load_config
from timer_service.core.instant import format_instant, parse_instant

app = typer.Typer(help="Schedule timers and watch them fire.", no_args_is_help=True)

_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


@app.command()
def schedule(  # noqa: PLR0917 - typer's way
    tenant: Annotated[str, typer.Argument(help="Who owns the timer.")],
    call: Annotated[str, typer.Argument(help="Its serviceCallId.")],
    at: Annotated[str | None, typer.Option(help="Due time: ISO 8601 with an offset.")] = None,
    in_: Annotated[str | None, typer.Option("--in", help="Due after: 500ms, 10s, 5m, 2h, 1d or 1h30m.")] = None,
    data: Annotated[str | None, typer.Option(help="JSON that comes back in the event.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,  # noqa: FBT002 - typer's way
) -> None:
    """Schedule a timer and wait for its outcome."""
    due_at = _due_at(at, in_)
    extra = {} if data is None else {"data": _json(data)}
    outcome = run(_schedule(tenant, call, due_at, extra))
    due = format_instant(int(due_at.timestamp() * 1000))
    if as_json:
        typer.echo(json.dumps({"commandId": outcome.command_id, "outcome": outcome.name, "dueAt": due}))
    else:
        typer.echo(f"{outcome.name}: {tenant}/{call} at {due}")


@app.command()
def watch(
    tenant: Annotated[str, typer.Argument(help="Only this tenant's.")] = "*",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,  # noqa: FBT002 - typer's way
) -> None:
    """Print DueTimeReached events as they come."""
    with suppress(KeyboardInterrupt):
        run(_watch(tenant, as_json=as_json))


async def _schedule(tenant: str, call: str, due_at: datetime, extra: dict[str, Any]) -> Outcome:
    config = load_config()
    async with TimerClient.connect(config.broker_url, subject_prefix=config.subject_prefix) as client:
        try:
            return await client.schedule(tenant, call, due_at, **extra)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error


async def _watch(tenant: str, *, as_json: bool) -> None:
    config = load_config()
    async with TimerClient.connect(config.broker_url, subject_prefix=config.subject_prefix) as client:
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
    try:
        return datetime.fromtimestamp(parse_instant(at) / 1000, UTC)
    except ValueError as error:
        raise typer.BadParameter(f"--at {error}") from error


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
