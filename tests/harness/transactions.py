"""What each transaction of a consumer applied."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from timer_service.core.intake.route import CommandResult, Handle, Route
from timer_service.core.limits.quotas import Quotas
from timer_service.core.ports.database import Transaction
from timer_service.core.service.slice import Slice
from timer_service.core.values.message import Command, CommandPayload


def recording_route(
    slice_: Slice, wake: Callable[[int, str | None], Awaitable[None]], *, handle: Handle | None = None
) -> tuple[Route, list[list[CommandPayload]]]:
    """Return the route of a slice, and a list that gets the payloads that each call of its handler has applied."""
    applied: list[list[CommandPayload]] = []
    inner = handle or partial(slice_.handle, quotas=Quotas())

    async def record(tx: Transaction, commands: Sequence[Command], now: int) -> Sequence[CommandResult]:
        results = await inner(tx, commands, now)
        applied.append([each.payload for each in commands[: len(results)]])
        return results

    return Route(slice_.commands, record, wake), applied
