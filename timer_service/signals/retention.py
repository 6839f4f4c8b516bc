"""What of signals is deleted once it is old: firings, evaluated events, and signals that ended with their tasks."""

from timer_service.core.database import Transaction
from timer_service.signals import firing_store, store


async def delete_settled(tx: Transaction, before: int, limit: int) -> int:
    """Delete up to `limit` of each that were settled before an instant; return how many rows, tasks not counted.

    A fired signal stays, with its task, until it is resolved.
    """
    ended = await store.delete_ended(tx, before, limit)
    await firing_store.delete_tasks(tx, ended)
    return (
        len(ended) + await firing_store.delete_settled(tx, before, limit) + await store.delete_events(tx, before, limit)
    )
