"""A program of a user that handles events until SIGTERM, unless it is killed.

    python -m tests.harness.handling_user BROKER_URL PLACE

PLACE is the user's database, with a seen store in it: each handler writes a row in the transaction of its mark. Or it
is a text file, to which each handler appends a line: then marks are kept in memory.
"""

import asyncio
import logging
import random
import signal
import sys
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

from tests.harness.outbox_user import Database, open_database
from timer_service.client import DueTimeReached, MemorySeen, SeenStore, TimerApp
from timer_service.client.receive.stored_seen import PostgresSeen, SqliteSeen

CONCURRENCY = 10
MOST_IN_FLIGHT = 3 * CONCURRENCY
"""How many events a process has at most that are not acknowledged: in a handler, or waiting for one."""
TEXT = ".txt"
_CONNECTIONS = 4
_LONGEST_SECONDS = 0.004


def app_of(broker_url: str, place: str) -> TimerApp:
    seen: SeenStore = MemorySeen()
    if not place.endswith(TEXT):
        seen = PostgresSeen(place) if place.startswith("postgresql") else SqliteSeen(place)
    wait = timedelta(seconds=1)
    return TimerApp(
        broker_url,
        tenant="acme",
        name="orders",
        seen=seen,
        concurrency=CONCURRENCY,
        attempts=10,
        from_start=True,
        ack_wait=wait,
    )


def create_file(folder: Path) -> str:
    """Create a text file, and return its place."""
    file = folder / f"handled{TEXT}"
    file.touch()
    return str(file)


def read_file(place: str) -> list[str]:
    """Return the timer of each line."""
    return Path(place).read_text("utf-8").split()


def write_line(place: str, event: DueTimeReached) -> None:
    with Path(place).open("a") as file:
        file.write(f"{event.timer_id}\n")


async def create_table(place: str) -> None:
    """Create the table of the user. It accepts repeats, so that they are found."""
    async with open_database(place) as database, database.transaction():
        await database.connection.execute("CREATE TABLE handled (timer_id TEXT NOT NULL)")


async def pause() -> None:
    await asyncio.sleep(random.uniform(0, _LONGEST_SECONDS))


async def main(broker_url: str, place: str) -> None:
    logging.basicConfig(level=logging.INFO)
    app = app_of(broker_url, place)
    async with AsyncExitStack() as stack:
        free: asyncio.Queue[Database] = asyncio.Queue()
        for _ in range(0 if place.endswith(TEXT) else _CONNECTIONS):
            free.put_nowait(await stack.enter_async_context(open_database(place)))

        @app.on_due()
        async def handle(event: DueTimeReached) -> None:
            await pause()
            if place.endswith(TEXT):
                write_line(place, event)
            else:
                await insert_row(event)
            await pause()

        async def insert_row(event: DueTimeReached) -> None:
            database = await free.get()
            try:
                async with database.transaction(), app.once(event, database.connection):
                    await database.connection.execute(f"INSERT INTO handled VALUES ('{event.timer_id}')")
                    await pause()
            finally:
                free.put_nowait(database)

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, app.stop)
        await app.serve()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
