"""Stores an order and its command in one transaction of SQLAlchemy. docs/outbox.md says more."""

import asyncio
from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from timer_service.client.outbox import Outbox

engine = create_async_engine("postgresql+asyncpg://localhost/shop")
outbox = Outbox()


async def place_order(order: str) -> None:
    """Insert an order and the command for its timer."""
    async with AsyncSession(engine) as session, session.begin():
        await session.execute(text("INSERT INTO orders (name) VALUES (:name)"), {"name": order})
        await outbox.on(session).timers.schedule("acme", order, due_in=timedelta(hours=2))


if __name__ == "__main__":
    asyncio.run(place_order("order-2"))
