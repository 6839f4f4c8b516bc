"""The commands that all resources have: list, get, watch, and commands with an outcome. A resource describes itself.

Each command calls a method of the client with its parameters, and prints the answer as text or JSON.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, NamedTuple

import typer

from timer_service.cli.connection import add_command
from timer_service.cli.output import format_time, one_line, print_table
from timer_service.cli.parameters import All, AsJson, Cursor, Json, Limit, Tenant, TenantOrAll
from timer_service.client import CommandError, Counts, Outcome, QueryError, TimerClient, WorkflowCounts
from timer_service.client.answers import read_cursor, read_rows
from timer_service.client.events import Event
from timer_service.client.view import View
from timer_service.core.values.codec import plain_words

AsJsonLines = Annotated[bool, typer.Option("--json", help="Print each event as a line of JSON.")]

_PAGE_ROWS = 1000
"""The most that the service returns at once."""
_PAGING = {"limit": (Limit, 50), "everything": All, "cursor": Cursor, "as_json": AsJson}

Page = tuple[Sequence[Mapping[str, Any]], str | None]
"""Rows as the service sends them, and the cursor of the next page; None if there is none."""


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
    page: Callable[[TimerClient, str, int, Any], Awaitable[Page]] | None = None
    """Returns at most so many rows of a tenant after a cursor, and the next cursor; without it, `query` is sent."""

    def print(self, documents: Sequence[Mapping[str, Any]], cursor: str | None, *, as_json: bool) -> None:
        """Print rows, as JSON as the service sent them. `cursor` is set if there are more."""
        noun, now = self.noun or self.field, datetime.now(UTC)
        if as_json:
            typer.echo(json.dumps(documents))
        elif documents:
            print_table(self.head, [self.row(self.view.read(each), now) for each in documents], self.colours)
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


class Resource(NamedTuple):
    """A group of commands. `parameters` of a method: the type of each parameter of the command, as `add_command`."""

    app: typer.Typer
    calls: Callable[[TimerClient], Any]
    """Returns the object whose methods the commands call."""
    outcomes: Outcomes = Outcomes(lambda _: "", (), {})
    key_length: int = 2
    """How many of the first parameters name a thing: the tenant, and its id or ids."""

    def command(
        self,
        name: str,
        text: str,
        parameters: Mapping[str, Any],
        *,
        call: Callable[..., Awaitable[Outcome]] | None = None,
        check: Callable[..., None] | None = None,
        explain: Callable[[Outcome], str | None] = lambda _: None,
        also_effective: Collection[str] = (),
    ) -> None:
        """Add a command with an outcome. It calls the method of the client with its name, or `call` with the client.

        `explain`: another sentence about an outcome.
        """

        def show(outcome: Outcome, subject: str) -> None:
            state = self.outcomes.state(outcome)
            sentence = explain(outcome) or explain_limit(outcome) or self.outcomes.explanations.get(outcome.name)
            line = (
                f"{outcome.name}: {subject}" + (f" ({state})" if state else "") + (f": {sentence}" if sentence else "")
            )
            typer.echo(one_line(line), err=not has_effect(outcome))

        def has_effect(outcome: Outcome) -> bool:
            return outcome.name in self.outcomes.with_effect or outcome.name in also_effective

        self._add(name, text, call, show, parameters, is_success=has_effect, check=check)

    def get(
        self,
        text: str,
        show: Callable[[Any], None],
        parameters: Mapping[str, Any] = {},
        *,
        name: str = "get",
        call: Callable[..., Awaitable[Any]] | None = None,
    ) -> None:
        """Add a command that gets a value as in `command`, and prints it with `show` or says that it does not exist."""
        self._add(name, text, call, lambda found, _: show(found), parameters)

    def list(self, rows: Rows, text: str, filters: Mapping[str, Any] = {}, *, name: str = "list") -> None:
        """Add a command that prints rows. `filters`: its parameters, by their names in the query."""

        async def run(
            client: TimerClient,
            *,
            tenant: str,
            limit: int,
            everything: bool,
            cursor: Any,
            as_json: bool,
            **wanted: Any,
        ) -> None:
            given = {name: _wire(value) for name, value in wanted.items() if value is not None}
            read_page = rows.page or partial(_query_page, rows, given)
            found: list[Mapping[str, Any]] = []
            while True:
                size = _PAGE_ROWS if everything else min(_PAGE_ROWS, limit - len(found))
                page, cursor = await read_page(client, tenant, size, cursor)
                found += page
                if cursor is None or (len(found) == limit and not everything):
                    break
            rows.print(found, cursor, as_json=as_json)

        add_command(self.app, name, text, run, {"tenant": Tenant, **_PAGING, **filters})

    def watch(self, text: str, filters: Mapping[str, Any] = {}, *, method: str = "watch") -> None:
        """Add a command that prints the events that a method of the client yields, until Ctrl-C."""

        async def run(client: TimerClient, *, tenant: str, as_json: bool, **wanted: Any) -> None:
            with suppress(asyncio.CancelledError):  # Ctrl-C
                await print_events(getattr(self.calls(client), method)(tenant, **_given(wanted)), as_json=as_json)

        def awaited(*, tenant: str, **values: Any) -> str:
            whose = "all tenants" if tenant == "*" else f"tenant {tenant}"
            about = [f" and {each.removesuffix('_id')} {values[each]}" for each in filters if values[each] is not None]
            return f"events of {whose}{''.join(about)}"

        parameters = {"tenant": (TenantOrAll, "*"), **filters, "as_json": AsJsonLines}
        add_command(self.app, "watch", text, run, parameters, awaited=awaited)

    def _add(
        self,
        name: str,
        text: str,
        call: Callable[..., Awaitable[Any]] | None,
        show: Callable[[Any, str], None],
        parameters: Mapping[str, Any],
        *,
        is_success: Callable[[Any], bool] = lambda _: True,
        check: Callable[..., None] | None = None,
    ) -> None:
        """Add a command that gets a value and prints it. It ends with 1 if there is none, or it is no success."""

        async def run(client: TimerClient, *, as_json: bool, **values: Any) -> None:
            given = _given(values)
            method = getattr(self.calls(client), name) if call is None else partial(call, client)
            found = await method(**given)
            subject = "/".join(map(str, [*given.values()][: self.key_length]))
            if found is None:
                typer.echo(f"not found: {one_line(subject)}", err=True)
            elif as_json:
                typer.echo(json.dumps(found.document()))
            else:
                show(found, subject)
            if found is None or not is_success(found):
                raise typer.Exit(1)

        add_command(self.app, name, text, run, {"tenant": Tenant, **parameters, "as_json": AsJson}, check=check)


async def print_events(events: AsyncIterator[Event], *, as_json: bool) -> None:
    """Print events as lines."""
    async for event in events:
        typer.echo(json.dumps(event.raw) if as_json else event_line(event))


def event_line(event: Event) -> str:
    """Return an event as a line: when it happened, its type, its tenant, and the fields of its payload."""
    payload = {name: each for name, each in event.raw["payload"].items() if name != "tenantId"}
    head = [format_time(event.created_at, milliseconds=True), event.type, event.tenant]
    fields = (f"{name}={each if isinstance(each, str) else json.dumps(each)}" for name, each in payload.items())
    return one_line("  ".join([*head, *fields]))


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


def print_counts(counts: Counts | WorkflowCounts) -> None:
    """Print numbers with their names."""
    numbers = {**counts.by_state, "overdue": counts.overdue} if isinstance(counts, Counts) else counts.by_status
    suffix = "" if counts.exact else " or more"
    for name, number in numbers.items():
        typer.echo(f"{name:<10} {number:>9,}{suffix}")


async def _query_page(
    rows: Rows, filters: Mapping[str, Any], client: TimerClient, tenant: str, size: int, cursor: str | None
) -> Page:
    """Return a page of the answer to the query of `rows`."""
    after = {} if cursor is None else {"cursor": cursor}
    page = await client.query(tenant, rows.query, {**filters, **after, "limit": size})
    return read_rows(page, rows.field), read_cursor(page, cursor)


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that were given, as the client takes them."""
    return {
        name: value.value if isinstance(value, Json) else value for name, value in values.items() if value is not None
    }


def _wire(value: Any) -> Any:
    """Return a filter as the query takes it: an instant as text."""
    return format_time(value, milliseconds=True) if isinstance(value, datetime) else value
