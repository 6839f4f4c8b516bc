"""Deletes old timers and old cancellations."""

from timer_service.core.ports.database import Transaction
from timer_service.timers import cancellation_store, store


async def delete_settled(tx: Transaction, before: int, limit: int) -> int:
    """Delete timers and cancellations that were settled before the instant `before`, up to `limit` of each kind."""
    timers = await store.delete_settled(tx, before, limit)
    return timers + await cancellation_store.delete_finished(tx, before, limit)
