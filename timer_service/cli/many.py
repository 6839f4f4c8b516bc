"""Commands about several things at once: an error of one does not stop the others."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import typer

from timer_service.cli.connection import add_command
from timer_service.cli.output import one_line
from timer_service.cli.parameters import AsJson, Tenant, identifier_option, read_identifier
from timer_service.cli.resources import Resource, rejection_text
from timer_service.client import CommandError, NoAnswerError, Outcome, TimerClient

_EveryFailed = Annotated[bool, typer.Option("--failed", help="All that have failed.")]
_Prefix = identifier_option("PREFIX", "With --failed: only those whose id begins so.")


def retry_command(
    resource: Resource,
    text: str,
    noun: str,
    field: str,
    failed_ids: Callable[[TimerClient, str], AsyncIterator[str]],
    parameters: Mapping[str, Any] = {},
    *,
    without_effect: Collection[str],
) -> None:
    """Add a command that retries things of a tenant by their ids, or all that have failed.

    `noun`: what a thing is, such as timer. `failed_ids` returns the ids of those of a tenant that have failed.
    `parameters` are those of the method of the client. The other arguments are those of `send_each`.
    """

    def check(*, ids: list[str] | None, every_failed: bool, prefix: str | None, **_: object) -> None:
        if bool(ids) == every_failed:
            raise typer.BadParameter(f"Give the ids of {noun}s, or --failed.")
        if prefix is not None and not every_failed:
            raise typer.BadParameter("Give --prefix with --failed.")

    async def run(
        client: TimerClient,
        *,
        tenant: str,
        ids: list[str] | None,
        every_failed: bool,
        prefix: str | None,
        as_json: bool,
        **values: Any,
    ) -> None:
        wanted = ids or []
        if every_failed:
            wanted = [each async for each in failed_ids(client, tenant) if each.startswith(prefix or "")]
        if not wanted and not as_json:
            typer.echo(f"no failed {noun}s", err=True)
            return
        send = partial(resource.calls(client).retry, tenant, **values)
        await send_each(send, wanted, field, f"{tenant}/", as_json=as_json, without_effect=without_effect)

    argument = typer.Argument(
        parser=read_identifier, metavar=noun.upper(), help=f"The ids of the {noun}s.", show_default=False
    )
    ids = {"ids": Annotated[list[str] | None, argument], "every_failed": _EveryFailed, "prefix": _Prefix}
    add_command(
        resource.app, "retry", text, run, {"tenant": Tenant, **ids, **parameters, "as_json": AsJson}, check=check
    )


async def send_each(
    send: Callable[[Any], Awaitable[Outcome]],
    ids: Sequence[str | int],
    field: str,
    prefix: str,
    *,
    as_json: bool,
    without_effect: Collection[str] = (),
    at_a_time: int = 20,
) -> None:
    """Send a command about each thing, and print what became of each. An error of one does not stop the others.

    `field`: the name of an id in JSON. `prefix`: the text before each id. `at_a_time`: how many commands may have no
    outcome yet; 1 if their order counts. It ends with 1 after an error, or an outcome of `without_effect`.
    """
    ended: list[Mapping[str, Any]] = []
    has_failed = False
    try:
        async for each, ending in _endings(send, ids, at_a_time):
            ended.append({field: each, **ending})
            is_failure = ending.get("outcome") in {None, *without_effect}
            has_failed = has_failed or is_failure
            if not as_json:
                error = ending.get("error")
                name, sentence = (ending["outcome"], "") if error is None else (error["code"], f": {error['message']}")
                typer.echo(one_line(f"{name}: {prefix}{each}{sentence}"), err=is_failure)
    finally:  # what was sent must be known, even if the user stops
        if as_json:
            typer.echo(json.dumps(ended))
    if has_failed:
        raise typer.Exit(1)


async def _endings(
    send: Callable[[Any], Awaitable[Outcome]], ids: Sequence[str | int], at_a_time: int
) -> AsyncIterator[tuple[str | int, Mapping[str, Any]]]:
    """Yield what became of the command about each id, in order."""
    for first in range(0, len(ids), at_a_time):
        some = ids[first : first + at_a_time]
        endings = await asyncio.gather(*(_ending(send(each)) for each in some))
        for each in zip(some, endings, strict=True):
            yield each


async def _ending(call: Awaitable[Outcome]) -> Mapping[str, Any]:
    """Return what became of a command as JSON data: its outcome, or an error."""
    try:
        return (await call).document()
    except CommandError as error:
        code, text = error.code, rejection_text(error).removeprefix(f"{error.code}: ")
    except NoAnswerError as error:
        code, text = "NO_ANSWER", str(error)
    except LookupError as error:
        code, text = "NOT_FOUND", str(error)
    except ValueError as error:
        code, text = "INVALID_PAYLOAD", str(error)
    return {"error": {"code": code, "message": text}}
