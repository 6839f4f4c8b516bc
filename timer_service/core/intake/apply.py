"""Applies commands in a transaction: runs the handlers of their slices, and adds dead letters of rejected ones."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from timer_service.core.events import outbox
from timer_service.core.intake.rejection import Rejected
from timer_service.core.intake.route import CommandResult, Route, TooManyCommandsError
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.turns import Turns
from timer_service.core.values.message import Command, Message, TenantPayload
from timer_service.core.values.raw_command import RawCommand

Decoded = tuple[RawCommand, Command | Rejected]
"""A command of the log, and what decoding it gave."""

_NEVER = 2**63
_LETTER_BYTES = 16 * 1024
"""Dead letters of so many bytes are built at a time. They take 10 ms at most, also if they consist of tiny headers."""


class Applied(NamedTuple):
    """The commands of one route that were applied, in order, and how each ended.

    They are sequences beside each other, because building an object for each command takes time.
    """

    route: Route
    raws: Sequence[RawCommand]
    commands: Sequence[Command]
    results: Sequence[CommandResult]


class Done(NamedTuple):
    """What one transaction has done with the commands that it was given."""

    number: int = 0
    """How many of the first ones it has applied or rejected. The others were too much for it."""
    applied: Sequence[Applied] = ()
    rejected: Sequence[Rejected] = ()


class Handlers:
    """The handlers of all commands."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = routes  # in the same order for every batch, so that instances lock rows in the same order
        self._of_type = {payload.type: route for route in routes for payload in route.payloads}
        self.payloads: Mapping[str, type[TenantPayload]] = {
            payload.type: payload for route in routes for payload in route.payloads
        }

    def route_of(self, command: Command) -> Route:
        """Return the route of a command."""
        return self._of_type[command.payload.type]

    async def apply(
        self, tx: Transaction, decoded: Sequence[Decoded], letters: Mapping[int, Message], now: int
    ) -> Done:
        """Apply the first commands, at least one, and add the dead letters and events of those that are rejected.

        `letters`: the dead letters, by the number of their command. Raises `TooManyCommandsError` if a handler has
        applied a command behind one for which another handler had no room.
        """
        numbers = self._numbers_of_routes(decoded)
        end = len(decoded)  # the commands from this number on are left to a later transaction
        last_applied = -1
        applied: list[Applied] = []
        for route in self._routes:
            own = [number for number in numbers.get(route, ()) if number < end]
            if not own:
                continue
            commands: list[Command] = [decoded[number][1] for number in own]  # type: ignore[misc]
            try:
                results = await route.handle(tx, commands, now)
            except TooManyCommandsError as error:
                raise TooManyCommandsError(own[error.number]) from None  # the handler counts only its own commands
            count = len(results)
            assert count  # noqa: S101 - else the same commands would be tried for ever
            if count < len(own):
                end = own[count]
            last_applied = max(last_applied, own[count - 1])
            raws = [decoded[number][0] for number in own[:count]]
            applied.append(Applied(route, raws, commands[:count], results))
        if last_applied >= end:
            raise TooManyCommandsError(end)
        rejected = [each for _, each in decoded[:end] if isinstance(each, Rejected)]
        if rejected:
            await outbox.add_dead_letters(tx, [letter for number, letter in letters.items() if number < end], now)
            await outbox.add(tx, [event for each in rejected if (event := each.event(now)) is not None], now)
        return Done(end, applied, rejected)

    def _numbers_of_routes(self, decoded: Sequence[Decoded]) -> dict[Route, list[int]]:
        """Return the numbers of the commands of each route, in order, without those of rejected commands."""
        numbers: dict[Route, list[int]] = {}
        for number, (_, outcome) in enumerate(decoded):
            if outcome.__class__ is Command:
                numbers.setdefault(self._of_type[outcome.payload.type], []).append(number)
        return numbers


async def build_letters(decoded: Sequence[Decoded], max_bytes: int) -> dict[int, Message]:
    """Return the dead letters of rejected commands, by the number of the command. Other tasks run in between."""
    turns = Turns(_LETTER_BYTES)
    letters: dict[int, Message] = {}
    for number, (raw, outcome) in enumerate(decoded):
        if isinstance(outcome, Rejected):
            await turns.take(raw.size)
            letters[number] = outcome.letter(max_bytes)
    return letters


async def wake(applied: Iterable[Applied]) -> None:
    """Wake the loops of each route for the earliest row that it wrote, and offer the rows of lanes to workers."""
    for group in applied:
        earliest: dict[str | None, int] = {}
        for result in group.results:
            at, lane, loop = result.wake_at, result.lane, result.loop
            if at is None:
                continue
            if lane is not None:
                group.route.offer(lane, at)
            if (lane is None or loop is not None) and at < earliest.get(loop, _NEVER):
                earliest[loop] = at
        for loop, at in earliest.items():
            await group.route.wake(at, loop)
