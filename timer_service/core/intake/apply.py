"""Applies commands in a transaction: runs the handlers of their slices, and adds dead letters of rejected ones."""

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from timer_service.core.events import outbox
from timer_service.core.intake.rejection import Rejected
from timer_service.core.intake.route import CommandResult, Route
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.turns import Turns
from timer_service.core.values.message import Command, Message, TenantPayload
from timer_service.core.values.raw_command import RawCommand

Decoded = tuple[RawCommand, Command | Rejected]
"""A command of the log, and what decoding it gave."""

_WAKE_AT = attrgetter("wake_at")
_NEVER = 2**63
_LETTER_BYTES = 16 * 1024
"""Dead letters of so many bytes are built at a time. They take 10 ms at most, also if they consist of tiny headers."""


class Applied(NamedTuple):
    """The commands of one route that were applied, in order, and how each ended.

    They are lists beside each other, because building an object for each command takes time.
    """

    route: Route
    raws: list[RawCommand]
    commands: list[Command]
    results: list[CommandResult]


class Done(NamedTuple):
    """What one transaction has done with the commands that it was given."""

    applied: Sequence[Applied] = ()
    rejected: Sequence[Rejected] = ()
    left: Sequence[RawCommand] = ()
    """The commands that were not applied, because the transaction would have taken too long. They keep their order."""


class LeftTooLateError(Exception):
    """A handler has left a command, and a later one of the same tenant was applied. The transaction must not commit."""

    def __init__(self, applied: Mapping[str, int]) -> None:
        """`applied`: how many commands were applied of each tenant of which one was left."""
        super().__init__()
        self._applied = applied

    def kept(self, decoded: Sequence[Decoded]) -> list[Decoded]:
        """Return the commands that another transaction may apply: of each tenant the first ones, as many as fitted."""
        left = dict(self._applied)
        kept: list[Decoded] = []
        for each in decoded:
            tenant = each[0].address.tenant
            if tenant in left:
                left[tenant] -= 1
            if left.get(tenant, 0) >= 0:
                kept.append(each)
        return kept


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
        """Apply commands in order, and add the dead letters and the events of those that are rejected.

        If a handler leaves a command, all later ones of its tenant are left too. `letters`: the dead letters, by the
        number of their command. Raises `LeftTooLateError` if a handler has applied one of these.
        """
        numbers: dict[Route, list[int]] = {}
        for number, (_, outcome) in enumerate(decoded):
            if outcome.__class__ is Command:
                numbers.setdefault(self._of_type[outcome.payload.type], []).append(number)
        results = {
            route: await route.handle(tx, [decoded[each][1] for each in numbers[route]], now)  # type: ignore[misc]
            for route in self._routes
            if route in numbers
        }
        ends = _first_left(decoded, numbers, results)
        if ends:
            _check_order(decoded, numbers, results, ends)
        applied = [_applied(route, decoded, numbers[route], found, ends) for route, found in results.items()]
        rejected = [
            outcome
            for number, (raw, outcome) in enumerate(decoded)
            if number in letters
            and isinstance(outcome, Rejected)
            and number < ends.get(raw.address.tenant, len(decoded))
        ]
        if rejected:
            kept = {each.raw.position for each in rejected}
            await outbox.add_dead_letters(
                tx, [letter for number, letter in letters.items() if decoded[number][0].position in kept], now
            )
            await outbox.add(tx, [event for each in rejected if (event := each.event(now)) is not None], now)
        if not ends:
            return Done(applied, rejected)
        left = [raw for number, (raw, _) in enumerate(decoded) if number >= ends.get(raw.address.tenant, len(decoded))]
        return Done(applied, rejected, left)


def _first_left(
    decoded: Sequence[Decoded],
    numbers: Mapping[Route, Sequence[int]],
    results: Mapping[Route, Sequence[CommandResult | None]],
) -> dict[str, int]:
    """Return the number of the first command of each tenant that was left."""
    ends: dict[str, int] = {}
    for route, found in results.items():
        if None not in found:
            continue
        if not any(found):
            raise AssertionError("every command was left")  # it would be left for ever
        for number, result in zip(numbers[route], found, strict=True):
            if result is None:
                tenant = decoded[number][0].address.tenant
                ends[tenant] = min(number, ends.get(tenant, number))
    return ends


def _check_order(
    decoded: Sequence[Decoded],
    numbers: Mapping[Route, Sequence[int]],
    results: Mapping[Route, Sequence[CommandResult | None]],
    ends: Mapping[str, int],
) -> None:
    """Raise `LeftTooLateError` if a command was applied behind one of its tenant that was left."""
    applied = dict.fromkeys(ends, 0)
    is_late = False
    for route, found in results.items():
        for number, result in zip(numbers[route], found, strict=True):
            tenant = decoded[number][0].address.tenant
            if result is not None and tenant in ends:
                applied[tenant] += 1
                is_late = is_late or number > ends[tenant]
    if is_late:
        raise LeftTooLateError(applied)


def _applied(
    route: Route,
    decoded: Sequence[Decoded],
    numbers: Sequence[int],
    results: Sequence[CommandResult | None],
    ends: Mapping[str, int],
) -> Applied:
    applied = Applied(route, [], [], [])
    for number, result in zip(numbers, results, strict=True):
        raw, command = decoded[number]
        if ends and number >= ends.get(raw.address.tenant, len(decoded)):
            continue
        applied.raws.append(raw)
        applied.commands.append(command)  # type: ignore[arg-type]
        applied.results.append(result)  # type: ignore[arg-type]
    return applied


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
            at = result.wake_at
            if at is None:
                continue
            if result.lane is not None:
                group.route.offer(result.lane, at)
                if result.loop is None:
                    continue
            if at < earliest.get(result.loop, _NEVER):
                earliest[result.loop] = at
        for loop, at in earliest.items():
            await group.route.wake(at, loop)
