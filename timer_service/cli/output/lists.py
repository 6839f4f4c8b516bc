"""Lists: reading them page by page, and printing them."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import typer

from timer_service.client import TimerClient
from timer_service.client.answers import read_cursor, read_rows

_PAGE_ROWS = 1000
"""The most that the service returns at once."""


class Listing(NamedTuple):
    """The rows of a list as on the wire. `cursor` is set if there are more."""

    rows: Sequence[Mapping[str, Any]]
    cursor: str | None


class ListQuery(NamedTuple):
    """A query that returns pages: its name, and the field that holds the rows."""

    name: str
    field: str


async def read_list(
    client: TimerClient,
    tenant: str,
    query: ListQuery,
    filters: Mapping[str, Any],
    *,
    limit: int | None,
    cursor: str | None,
) -> Listing:
    """Read up to `limit` rows after `cursor`; without a limit, all rows."""
    wanted = {name: value for name, value in filters.items() if value is not None}
    rows: list[Mapping[str, Any]] = []
    while True:
        size = _PAGE_ROWS if limit is None else min(_PAGE_ROWS, limit - len(rows))
        after = {} if cursor is None else {"cursor": cursor}
        page = await client.query(tenant, query.name, {**wanted, **after, "limit": size})
        rows += read_rows(page, query.field)
        cursor = read_cursor(page, cursor)
        if cursor is None or (limit is not None and len(rows) >= limit):
            return Listing(rows, cursor)


def print_list(
    listing: Listing,
    noun: str,
    to_lines: Callable[[Sequence[Mapping[str, Any]]], Iterable[str]],
    *,
    as_json: bool,
) -> None:
    """Print rows, as JSON or as lines. Say on stderr if there are more rows, or no rows."""
    if as_json:
        typer.echo(json.dumps(listing.rows))
    elif listing.rows:
        for line in to_lines(listing.rows):
            typer.echo(line)
    else:
        typer.echo(f"no {noun}", err=True)
    if listing.cursor is not None:
        typer.echo(
            f"There are more {noun}. Add --all for all of them, or --cursor {listing.cursor} for the next page.",
            err=True,
        )
