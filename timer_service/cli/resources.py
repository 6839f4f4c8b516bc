"""The commands that all resources have: list, get, watch, and commands with an outcome. A resource describes itself.

Each decorator registers a function that asks the client. It adds the options, and prints the answer as text or JSON.
"""

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple, TypeVar, get_args

import typer

from timer_service.cli.connection import broker_command
from timer_service.cli.output import one_line, print_table
from timer_service.cli.parameters import All, AsJson, Cursor, Limit, Tenant
from timer_service.client import CommandError, Outcome, QueryError, TimerClient
from timer_service.client.answers import read_cursor, read_rows
from timer_service.client.view import View
from timer_service.core.values.codec import plain_words

AsJsonLines = Annotated[bool, typer.Option("--json", help="Print each event as a line of JSON.")]

_PAGE_ROWS = 1000
"""The most that the service returns at once."""

_F = TypeVar("_F", bound=Callable[..., Any])


class Rows(NamedTuple):
    """A list: the query that returns it in pages, and its table."""

    query: str
    field: str
    """The field of the answer that holds the rows."""
    view: type[View]
    head: Sequence[str]
    row: Callable[[Any, datetime], Sequence[str]]
    """Returns the cells of a view. The second argument is the time now."""
    colours: Mapping[str, str] = {}
    noun: str | None = None

    def print(self, documents: Sequence[Mapping[str, Any]], cursor: str | None, *, as_json: bool) -> None:
        """Print rows as the service sent them. `cursor` is set if there are more."""
        noun, now = self.noun or self.field, datetime.now(UTC)
        rows = [] if as_json else [self.row(self.view.read(each), now) for each in documents]
        if as_json:
            typer.echo(json.dumps(documents))
        elif rows:
            print_table(self.head, rows, self.colours)
        else:
            typer.echo(f"no {noun}", err=True)
        if cursor is not None:
            more = f"Add --all for all of them, or --cursor {cursor} for the next page."
            typer.echo(f"There are more {noun}. {more}", err=True)


class Outcomes(NamedTuple):
    """The outcomes of the commands of a resource."""

    state: Callable[[Outcome], str]
    """Returns the state of the resource after the command; empty if it is not known."""
    with_effect: Collection[str]
    explanations: Mapping[str, str]
    """A sentence for the outcomes that need one."""


def list_command(app: typer.Typer, rows: Rows, text: str, *, name: str = "list", **filters: Any) -> None:
    """Register a command that prints rows. `filters`: its arguments and options, by their names in the query."""

    async def command(
        client: TimerClient,
        tenant: str,
        *,
        limit: int,
        everything: bool,
        cursor: str | None,
        as_json: bool,
        **wanted: Any,
    ) -> None:
        found: list[Mapping[str, Any]] = []
        most = None if everything else limit
        given = {name: _wire(value) for name, value in wanted.items() if value is not None}
        while True:
            size = _PAGE_ROWS if most is None else min(_PAGE_ROWS, most - len(found))
            after = {} if cursor is None else {"cursor": cursor}
            page = await client.query(tenant, rows.query, {**given, **after, "limit": size})
            found += read_rows(page, rows.field)
            cursor = read_cursor(page, cursor)
            if cursor is None or len(found) == most:
                break
        rows.print(found, cursor, as_json=as_json)

    command.__doc__ = text
    broker_command(app, name)(_with_parameters(command, {"tenant": Tenant, **filters, **_PAGING}))


def outcome_command(
    app: typer.Typer,
    outcomes: Outcomes,
    *,
    name: str | None = None,
    check: Callable[..., None] | None = None,
    explain: Callable[[Outcome], str | None] = lambda _: None,
    also_effective: Collection[str] = (),
) -> Callable[[_F], _F]:
    """Return a decorator for a function that sends a command and returns its outcome. `explain`: another sentence."""

    def show(outcome: Outcome, subject: str) -> None:
        state = outcomes.state(outcome)
        sentence = explain(outcome) or explain_limit(outcome) or outcomes.explanations.get(outcome.name)
        text = f"{outcome.name}: {subject}" + (f" ({state})" if state else "") + (f": {sentence}" if sentence else "")
        typer.echo(one_line(text), err=not has_effect(outcome))

    def has_effect(outcome: Outcome) -> bool:
        return outcome.name in outcomes.with_effect or outcome.name in also_effective

    return _printed(app, name, show, check, is_success=has_effect)


def get_command(app: typer.Typer, show: Callable[[Any], None], *, name: str | None = None) -> Callable[[_F], _F]:
    """Return a decorator for a function that reads something, or None if it does not exist. `show` prints it."""
    return _printed(app, name, lambda found, _: show(found), None, is_success=lambda _: True)


def watch_command(app: typer.Typer, to_line: Callable[[Mapping[str, Any]], str]) -> Callable[[_F], _F]:
    """Return a decorator for a function that returns the events to print until Ctrl-C."""

    def register(function: _F) -> _F:
        async def command(client: TimerClient, tenant: str, *, as_json: bool, **more: Any) -> None:
            whose = "all tenants" if tenant == "*" else f"tenant {tenant}"
            about = "".join(f" and {name} {value}" for name, value in more.items() if value is not None)
            typer.echo(one_line(f"Waiting for events of {whose}{about}. Stop with Ctrl-C."), err=True)
            with suppress(asyncio.CancelledError):  # Ctrl-C
                await print_events(function(client, tenant, **more), to_line, as_json=as_json)

        command.__doc__ = function.__doc__
        broker_command(app, "watch")(_with_parameters(command, {"as_json": AsJsonLines}, function))
        return function

    return register


async def print_events(
    events: AsyncIterator[Mapping[str, Any]], to_line: Callable[[Mapping[str, Any]], str], *, as_json: bool
) -> None:
    """Print events as lines."""
    async for event in events:
        try:
            line = json.dumps(event) if as_json else to_line(event)
        except Exception:  # noqa: BLE001 - on a broker without accounts, others can publish what is no event
            typer.echo(one_line(f"Cannot be read as an event: {json.dumps(event)}"), err=True)
        else:
            typer.echo(line)


def explain_limit(outcome: Outcome) -> str | None:
    """Return a sentence for an outcome that a limit of the tenant caused."""
    if (limit := outcome.limit) is None:
        return None
    return f"the tenant may have {limit.most} of {limit.name}; see `timer-service tenants usage`"


def rejection_text(error: CommandError | QueryError) -> str:
    """Return why the service refused a command or query, with the wrong fields as the user wrote them."""
    if not error.errors:
        return one_line(str(error))
    faults = (f"{each['path'].removeprefix('payload.')} {plain_words(each['reason'])}" for each in error.errors)
    return one_line(f"{error.code}: {'; '.join(faults)}")


def print_counts(numbers: Mapping[str, int], *, exact: bool) -> None:
    """Print numbers with their names."""
    for name, number in numbers.items():
        typer.echo(f"{name:<10} {number:>9,}{'' if exact else ' or more'}")


_PAGING = {"limit": (Limit, 50), "everything": (All, False), "cursor": Cursor, "as_json": AsJson}


def _printed(
    app: typer.Typer,
    name: str | None,
    show: Callable[[Any, str], None],
    check: Callable[..., None] | None,
    *,
    is_success: Callable[[Any], bool],
) -> Callable[[_F], _F]:
    def register(function: _F) -> _F:
        names = [*inspect.signature(function).parameters][1:]

        async def command(client: TimerClient, *, as_json: bool, **values: Any) -> None:
            found = await function(client, **values)
            given = [str(values[name]) for name in names if values[name] is not None]
            subject = "/".join(given[:2])
            if found is None:
                typer.echo(f"not found: {one_line(subject)}", err=True)
                raise typer.Exit(1)
            if as_json:
                typer.echo(json.dumps(found.document()))
            else:
                show(found, subject)
            if not is_success(found):
                raise typer.Exit(1)

        command.__doc__ = function.__doc__
        to_register = _with_parameters(command, {"as_json": AsJson}, function)
        broker_command(app, name or function.__name__, check=check)(to_register)
        return function

    return register


def _with_parameters(
    command: Callable[..., Awaitable[None]], more: Mapping[str, Any], function: Callable[..., Any] | None = None
) -> Callable[..., Awaitable[None]]:
    """Give a command the parameters of a function, and `more`: a type, or a type and a default, by name."""
    kept = [] if function is None else [*inspect.signature(function, eval_str=True).parameters.values()]
    first = kept or [inspect.Parameter("client", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    parameters = [each.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD) for each in first]
    parameters += [_parameter(name, each) for name, each in more.items()]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _parameter(name: str, wanted: Any) -> inspect.Parameter:
    annotation, default = wanted if isinstance(wanted, tuple) else (wanted, _default_of(wanted))
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, annotation=annotation, default=default)


def _default_of(annotation: Any) -> Any:
    """Return the default of an option: False of a flag, None of a type that allows it; an argument has none."""
    (wanted, *_) = get_args(annotation)
    if wanted is bool:
        return False
    return None if type(None) in get_args(wanted) else inspect.Parameter.empty


def _wire(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value
