"""The cancellations in the transaction of a batch of commands."""

from collections.abc import Collection, Sequence

from timer_service.core.intake.route import CommandResult
from timer_service.core.ports.database import Transaction
from timer_service.core.values.message import Command
from timer_service.timers import cancellation_store as store
from timer_service.timers.cancellations import Cancellation, CancellationKey, PrefixPositions, new_cancellation
from timer_service.timers.messages import CancelTimers
from timer_service.timers.rules import Key, Outcome, Timer

LOOP = "cancellations"
"""The loop of the worker that cancels the timers."""


class Cancelling:
    """The stored cancellations that concern a batch, and the new ones of the batch."""

    def __init__(
        self, stored: Collection[CancellationKey], newer: PrefixPositions, deferred: Collection[Key] = frozenset()
    ) -> None:
        """`newer`: the stored cancellations that are newer than the oldest command of the batch."""
        self._stored = stored
        self._newer = newer
        self.deferred = deferred
        """The timers whose cancellations were not read. Their commands are deferred."""
        self._new: dict[CancellationKey, Cancellation] = {}

    @classmethod
    async def load(cls, tx: Transaction, commands: Sequence[Command], timers: Collection[Key]) -> "Cancelling":
        """Read the cancellations that concern commands on timers. If there are none, this is one look into an index."""
        keys = {
            CancellationKey(each.tenant, each.position) for each in commands if isinstance(each.payload, CancelTimers)
        }
        stored = await store.find(tx, keys) if keys else set()
        others = [each.position for each in commands if not isinstance(each.payload, CancelTimers)]
        if not others:
            return cls(stored, PrefixPositions())
        oldest = min(others)
        return cls(stored, *await store.find_newer(tx, timers, oldest))

    def apply(self, command: Command, now: int) -> CommandResult:
        """Apply a CancelTimers."""
        assert isinstance(command.payload, CancelTimers)  # noqa: S101 - the handler passes no other command
        key = CancellationKey(command.tenant, command.position)
        if key in self._stored or key in self._new:
            return CommandResult(Outcome.UNCHANGED)
        self._new[key] = new_cancellation(command, command.payload, now)
        self._newer.add(key, command.payload.prefix)
        return CommandResult(Outcome.CANCELLING, wake_at=now, loop=LOOP)

    def concerns(self, key: Key, command: Command, timer: Timer | None) -> bool:
        """Return whether a newer cancellation has decided about a timer that a command would change."""
        would_change = timer is None or timer.position < command.position
        return would_change and self._newer.cancel_later(key, command.position)

    async def save(self, tx: Transaction) -> None:
        """Write the new cancellations."""
        if self._new:
            await store.add(tx, self._new.values())


NONE_NEWER = Cancelling((), PrefixPositions())
"""For a batch without CancelTimers, and without a stored cancellation that is newer. It gets no new ones."""
