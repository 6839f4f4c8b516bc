"""Which handler applies which types of commands, and what it returns."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from timer_service.core.limits.quotas import Quotas
from timer_service.core.ports.database import Transaction
from timer_service.core.values.message import Command, TenantPayload

Lane = tuple[str, ...]
"""Rows that workers of users take from: the tenant, the queue and the type of workflows."""
View = Callable[[], Mapping[str, Any]]
"""Returns the fields of a reply. They are built when the reply is sent: those of a batch may have 64 MB."""


class CommandResult(NamedTuple):
    """How one command ended."""

    name: str
    wake_at: int | None = None
    """When a row it wrote becomes available."""
    view: View | None = None
    """Returns the fields of its reply in addition to the outcome, if the command asked for them."""
    loop: str | None = None
    """The loop to wake for the row; None: the loops of the slice."""
    lane: Lane | None = None
    """The lane of the row, if workers take it. Only the named loop is woken for it then."""


Handle = Callable[[Transaction, Sequence[Command], int], Awaitable[Sequence[CommandResult]]]
"""Applies the first commands in order, within the transaction, at an instant; returns one result for each of them.

It applies at least one. If all of them would be too much for one transaction, the others are left without a trace.
"""


class TooManyCommandsError(Exception):
    """A handler has applied more commands than the transaction may have. It must not commit."""

    def __init__(self, number: int) -> None:
        """`number`: how many of the first commands it may have."""
        super().__init__(number)
        self.number = number


class LimitedHandle(Protocol):
    """A `Handle` that needs the quotas of the tenants. Commands that would exceed one end as `over_quota`."""

    def __call__(
        self, tx: Transaction, commands: Sequence[Command], now: int, /, *, quotas: Quotas
    ) -> Awaitable[Sequence[CommandResult]]:
        """Apply commands in order. See `Handle`."""


def offer_nothing(_lane: Lane, _at: int) -> None:
    """Do nothing: the slice has no rows for workers."""


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """The handler for some types of commands, and what to call when rows that it wrote become available."""

    payloads: tuple[type[TenantPayload], ...]
    handle: Handle
    wake: Callable[[int, str | None], Awaitable[None]]
    """Wakes the loops of the slice at an instant, or the named one."""
    offer: Callable[[Lane, int], None] = offer_nothing
    """Says that a row of a lane becomes available to workers at an instant."""
