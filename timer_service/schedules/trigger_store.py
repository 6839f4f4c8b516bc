"""Which TriggerSchedules and BackfillSchedules were handled: none may fire again if it is delivered again in a week."""

from collections.abc import Collection

from timer_service.core.ports.database import Transaction
from timer_service.core.ports.sql import load_sql
from timer_service.core.values.errors import ConflictError
from timer_service.core.values.message import Position

_SQL = load_sql("timer_service.schedules", "trigger_store.sql")


async def find_handled(tx: Transaction, positions: Collection[Position]) -> set[Position]:
    """Return those of the positions at which a trigger or a backfill was handled before."""
    rows = await tx.fetch_each(_SQL["find"], [position._asdict() for position in sorted(set(positions))])
    return {Position(row["position_epoch"], row["position_sequence"]) for row in rows}


async def add_handled(tx: Transaction, positions: Collection[Position], now: int) -> None:
    """Remember triggers and backfills that this transaction handles.

    Raises `ConflictError` if another instance has handled one of them since `find_handled`.
    """
    new = [{**position._asdict(), "now": now} for position in sorted(set(positions))]
    if await tx.executemany(_SQL["add"], new) < len(new):
        raise ConflictError("another instance handled some of the same triggers")


async def delete_old(tx: Transaction, before: int, limit: int) -> int:
    """Forget up to `limit` triggers and backfills that were handled before the instant `before`; return how many."""
    return await tx.execute(_SQL["delete_old"], {"before": before, "limit": limit})
