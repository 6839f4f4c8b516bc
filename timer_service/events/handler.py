"""The handler of event commands: it loads, applies and saves in the transaction of the intake."""

from collections.abc import Sequence

from timer_service.core.events import outbox
from timer_service.core.events.outbox import EventKey
from timer_service.core.intake.batch import apply_in_order
from timer_service.core.intake.route import CommandResult
from timer_service.core.limits.quotas import Quotas
from timer_service.core.ports.database import Transaction
from timer_service.core.values.address import Address, Kind
from timer_service.core.values.message import Command, Message
from timer_service.events import store
from timer_service.events.batch import Batch, key_of
from timer_service.events.store import ParkedKey

RESUBMITTED = "resubmitted"
"""The message in the address of an event that is published again to one consumer. Its topic is the consumer."""


async def handle(tx: Transaction, commands: Sequence[Command], now: int, *, quotas: Quotas) -> Sequence[CommandResult]:
    """Apply the first commands in order. See `Handle`. The bodies of their events have 2 Mi characters at most."""
    keys = set(map(key_of, commands))
    states = await outbox.lock_states(tx, [key for key in keys if isinstance(key, EventKey)])
    sizes = await store.lock_sizes(tx, [key for key in keys if isinstance(key, ParkedKey)])
    batch = Batch(states, sizes, now)
    results = await apply_in_order(commands, quotas.admission(tx, now), lambda number: batch.change(commands[number]))
    await outbox.requeue(tx, batch.requeued, now)
    await outbox.add_messages(tx, await _messages(tx, batch), now)
    await store.delete(tx, batch.deleted)
    await store.add(tx, batch.added)
    return results


async def _messages(tx: Transaction, batch: Batch) -> list[Message]:
    """Return the messages of the events that are published again."""
    stored = await store.load(tx, [each.key for each in batch.resubmissions if each.body is None])
    return [
        Message(
            Address(Kind.EVENT, each.key.tenant_id, RESUBMITTED, each.key.consumer),
            each.message_id,
            (stored[each.key].body if each.body is None else each.body).encode(),
            {},
        )
        for each in batch.resubmissions
    ]
