"""`timer-service dead-letters`. These commands read the stream of dead letters, as the operator."""

from collections.abc import Sequence
from typing import Annotated

import typer

from timer_service.cli.connection import broker_command
from timer_service.cli.many import send_each
from timer_service.cli.output import format_time, one_line, print_value
from timer_service.cli.parameters import AsJson, read_tenant
from timer_service.cli.resources import Page, Resource, Rows
from timer_service.client import DeadLetter, Outcome, TimerClient
from timer_service.core.values.address import UNREADABLE

app = typer.Typer(
    help="Dead letters: commands that the service rejected. Needs the login of the operator.", no_args_is_help=True
)


def read_tenant_or_all(text: str) -> str:
    """Return a tenant, `*` for all, or the name that a dead letter has if its command named no valid tenant."""
    return text if text in {"*", UNREADABLE} else read_tenant(text)


TenantOrAll = Annotated[
    str, typer.Argument(parser=read_tenant_or_all, metavar="TENANT", help="Only this tenant; * for all tenants.")
]
Tenant = Annotated[
    str,
    typer.Argument(
        parser=read_tenant_or_all,
        metavar="TENANT",
        help="The tenant, as the list shows it. It may be left out.",
    ),
]
Number = Annotated[
    int | None, typer.Argument(min=1, metavar="SEQUENCE", help="The number of the dead letter in the list.")
]
Numbers = Annotated[
    list[int] | None, typer.Argument(min=1, metavar="SEQUENCE", help="The numbers of the dead letters in the list.")
]
Before = Annotated[
    int | None, typer.Option("--cursor", min=1, metavar="CURSOR", help="Continue after the last row that was shown.")
]


async def _page(client: TimerClient, tenant: str, size: int, cursor: int | str | None) -> Page:
    """Return `size` dead letters before a cursor. One more than these is read, which shows whether there are more."""
    before = None if cursor is None else int(cursor)
    letters = await client.dead_letters.list(tenant, limit=size + 1, before=before)
    shown = letters[:size]
    return [each.document() for each in shown], str(shown[-1].sequence) if len(letters) > size else None


LETTERS = Rows(
    query="",
    field="dead letters",
    view=DeadLetter,
    head=("SEQUENCE", "CODE", "STORED", "COMMAND", "REASON"),
    row=lambda letter, _: (
        str(letter.sequence),
        letter.code,
        format_time(letter.stored_at),
        f"{letter.tenant}/{letter.message}",
        letter.reason,
    ),
    colours={"INTERNAL": "red"},
    page=_page,
)


def print_letter(letter: DeadLetter) -> None:
    """Print a dead letter: its fields, its headers, and the command."""
    print_value(letter, f"{letter.tenant}/{letter.sequence}", leave_out=["sequence", "headers", "body"])
    for name, value in letter.headers.items():
        typer.echo(one_line(f"  {name}: {value}"))
    typer.echo(one_line(letter.body or ""))


def _letters(tenant: str, sequences: Sequence[int]) -> tuple[str, Sequence[int]]:
    """Return the tenant, or `*`, and the sequences. A first word that is a number is a sequence.

    Raises ValueError if there is no sequence.
    """
    if tenant.isdecimal():
        return "*", [int(tenant), *sequences]
    if not sequences:
        raise ValueError("give the SEQUENCE of a dead letter")
    return tenant, sequences


async def _show(client: TimerClient, tenant: str, sequence: int | None = None) -> DeadLetter | None:
    if sequence is None:
        tenant, (sequence,) = _letters(tenant, [])
    return await client.dead_letters.get(tenant, sequence)


DEAD_LETTERS = Resource(app, lambda client: client.dead_letters)
DEAD_LETTERS.list(LETTERS, "List dead letters, newest first.", {"tenant": (TenantOrAll, "*"), "cursor": Before})
DEAD_LETTERS.get(
    "Show a dead letter: the reason, the headers and the command.",
    print_letter,
    {"tenant": (Tenant, "*"), "sequence": Number},
    name="show",
    call=_show,
)


@broker_command(app)
async def resubmit(
    client: TimerClient, tenant: Tenant = "*", sequences: Numbers = None, as_json: AsJson = False
) -> None:
    """Send the commands of dead letters again, as new commands. Fix the reason before. The dead letters stay.

    A new command is newer than all others: it can undo what was sent after the rejected one.

    If all words are numbers, they are sequences.
    """
    owner, numbers = _letters(tenant, sequences or [])

    async def send(sequence: int) -> Outcome:
        if (letter := await client.dead_letters.get(owner, sequence)) is None:
            raise LookupError("there is no such dead letter")
        return await client.dead_letters.resubmit(letter)

    await send_each(send, numbers, "sequence", "" if owner == "*" else f"{owner}/", as_json=as_json, at_a_time=1)
