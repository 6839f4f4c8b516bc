"""`timer-service timers export` and `import`: timers as lines of JSON. They use the broker only."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from timer_service.cli.connection import broker_command
from timer_service.cli.parameters import AsJson, Tenant
from timer_service.cli.progress import progress_bar
from timer_service.client import State, TimerClient
from timer_service.client.answers import read_rows

app = typer.Typer()


def read_path(text: str) -> Path:
    """Return the path of a file that can be read twice. Raises `BadParameter` if there is none."""
    path = Path(text)
    try:
        path.open("rb").close()
    except OSError as error:
        raise typer.BadParameter(f"cannot read {text!r}: {error.strerror}.") from error
    if not path.is_file():
        raise typer.BadParameter(f"{text!r} must be a file: it is read twice.")
    return path


TimersFile = Annotated[Path, typer.Argument(parser=read_path, metavar="FILE", help="A line of JSON for each timer.")]

_PAGE_ROWS = 1000
_FIELDS = ("serviceCallId", "dueAt", "expiresAt", "data", "correlationId")


@broker_command(app)
async def export(client: TimerClient, tenant: Tenant) -> None:
    """Print the Scheduled timers of a tenant, a line of JSON for each, in order of due time.

    Timers that are scheduled, cancelled or fired during the export may be in it or not.
    """
    total = (await client.count(tenant)).by_state.get(State.SCHEDULED)
    done = 0
    with progress_bar("Exporting", total) as update:
        async for views in _pages(client, tenant):
            for view in views:
                typer.echo(json.dumps({field: view[field] for field in _FIELDS if field in view}))
            done += len(views)
            update(done)


async def _pages(client: TimerClient, tenant: str) -> AsyncIterator[Sequence[Mapping[str, Any]]]:
    question: dict[str, Any] = {"state": State.SCHEDULED, "limit": _PAGE_ROWS}
    while True:
        page = await client.query(tenant, "list-timers", question)
        yield read_rows(page, "timers")
        if "cursor" not in page:
            return
        question["cursor"] = page["cursor"]


@broker_command(app, "import")
async def import_timers(client: TimerClient, tenant: Tenant, file: TimersFile, as_json: AsJson = False) -> None:
    """Schedule the timers in a file, as `export` writes it. The whole file is checked before the first is sent.

    If the import is interrupted, import the same file again: timers that are stored already are `unchanged`.
    """
    from timer_service.cli.timer_import import check_file, import_file, print_summary  # noqa: PLC0415 - needs a slice

    total = check_file(tenant, file)
    summary = await import_file(client, tenant, file, total)
    print_summary(file, summary, as_json=as_json)
    if summary.failed:
        raise typer.Exit(1)
