"""A program of a user that stores orders and their timers in its database, runs the relay, and is killed.

    python -m tests.harness.outbox_user DATABASE BROKER_URL SEED POINT

It kills itself with SIGKILL at POINT: after the insert, the schedule or the commit of some transaction, or at any
moment (`anywhere`, from a thread).
"""

import asyncio
import os
import random
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, NamedTuple

import aiosqlite
import asyncpg

from timer_service.client.outbox import Outbox, OutboxRelay

POINTS = ("inserted", "scheduled", "committed", "anywhere")
OUTBOX = Outbox()
HOUR = timedelta(hours=1)
_LONGEST_SECONDS = 0.3
_MOST_TRANSACTIONS = 60


class Database(NamedTuple):
    """The database of the user."""

    connection: Any
    transaction: Callable[[], Any]
    """Opens a transaction as an asynchronous block. An error rolls it back."""

    async def insert(self, order: str) -> None:
        await self.connection.execute(f"INSERT INTO orders (name) VALUES ('{order}')")


@asynccontextmanager
async def open_database(place: str) -> AsyncIterator[Database]:
    if place.startswith("postgresql"):
        connection = await asyncpg.connect(place)
        yield Database(connection, connection.transaction)
        await connection.close()
        return
    async with aiosqlite.connect(place) as file:

        @asynccontextmanager
        async def transaction() -> AsyncIterator[None]:
            try:
                yield
            except BaseException:
                await file.rollback()
                raise
            await file.commit()

        yield Database(file, transaction)


async def create_tables(place: str) -> None:
    """Create the tables of the user."""
    async with open_database(place) as database, database.transaction():
        await database.connection.execute("CREATE TABLE IF NOT EXISTS orders (name TEXT PRIMARY KEY)")
        await OUTBOX.create_table(database.connection)


class _ChangedMindError(Exception):
    """The program rolls the transaction back."""


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def store_orders(database: Database, relay: OutboxRelay, draw: random.Random, point: str) -> None:
    """Store orders, each with a timer, until this process is killed. Every fifth transaction is rolled back."""
    last = draw.randrange(_MOST_TRANSACTIONS)
    if point == "anywhere":
        threading.Timer(draw.uniform(0, _LONGEST_SECONDS), kill).start()
    number = 0
    while True:
        order = f"{os.getpid()}-{number}"
        reached = "" if number < last else point
        with suppress(_ChangedMindError):
            async with database.transaction():
                await database.insert(order)
                kill_at("inserted", reached)
                await OUTBOX.on(database.connection).timers.schedule("acme", order, due_in=HOUR, data={"order": order})
                kill_at("scheduled", reached)
                if draw.randrange(5) == 0:
                    raise _ChangedMindError
            if draw.random() < 0.5:
                relay.wake()
            kill_at("committed", reached)
        await asyncio.sleep(0)
        number += 1


def kill_at(point: str, reached: str) -> None:
    if point == reached:
        kill()


async def main(place: str, broker_url: str, seed: str, point: str) -> None:
    relay = OutboxRelay(OUTBOX, place, broker_url)
    async with open_database(place) as database:
        await asyncio.gather(relay.run(), store_orders(database, relay, random.Random(seed), point))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
