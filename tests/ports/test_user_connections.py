"""Commands and marks in the transaction of a user's connection, of every driver that is known."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest
import sqlalchemy

from tests.harness.cases import case
from tests.harness.user_connections import ON_POSTGRES, ON_SQLITE, Kind, settle
from tests.harness.user_databases import UserDatabase
from timer_service.client import NewTimer
from timer_service.client.outbox import Outbox, run_sync
from timer_service.client.receive.stored_seen import PostgresSeen, SqliteSeen

DUE = datetime(2100, 1, 1, tzinfo=UTC)
OUTBOX = Outbox()


def kinds(user_database: UserDatabase) -> Iterator[tuple[str, Kind]]:
    """Yield each kind of connection to a database, as a case."""
    for name, kind in (ON_POSTGRES if user_database.is_postgres else ON_SQLITE).items():
        with case(name):
            yield name, kind


async def calls(user_database: UserDatabase) -> list[str]:
    """Return the ids of the timers in the outbox, and empty it."""
    bodies = await user_database.query("SELECT body FROM timer_outbox ORDER BY id")
    await user_database.query("DELETE FROM timer_outbox")
    return [json.loads(body)["payload"]["serviceCallId"] for (body,) in bodies]


async def test_commands_are_part_of_the_transaction(user_database: UserDatabase) -> None:
    """After a commit the outbox has the commands in their order, and after a rollback none of them."""
    for _, kind in kinds(user_database):
        async with kind(user_database) as (connection, commit, rollback):
            for _ in range(2):  # the second time it exists
                await OUTBOX.create_table(connection)
                await settle(commit())
            client = OUTBOX.on(connection)
            assert (await client.timers.schedule("acme", "undone", DUE)).name == "stored"
            await settle(rollback())
            assert (await client.timers.schedule("acme", "first", DUE)).name == "stored"
            many = [NewTimer("acme", f"many-{number}", DUE) for number in range(3)]
            assert [each.command_id for each in await client.timers.schedule_many(many)]  # type: ignore[union-attr]
            await settle(commit())
        assert await calls(user_database) == ["first", "many-0", "many-1", "many-2"]


async def test_a_connection_without_transaction_is_refused(user_database: UserDatabase) -> None:
    """If each statement commits by itself, nothing is stored: the command could be sent without the user's rows."""
    async with next(kinds(user_database))[1](user_database) as (connection, commit, _):
        await OUTBOX.create_table(connection)
        await settle(commit())
    for _, kind in kinds(user_database):
        async with kind(user_database, commits_each=True) as (connection, *_):
            with pytest.raises(ValueError, match=r"^connection must be in a transaction"):
                await OUTBOX.on(connection).timers.schedule("acme", "order-1", DUE)
        assert await calls(user_database) == []


async def test_a_transaction_begun_by_hand(tmp_path: Path) -> None:
    """A connection that commits each statement is taken after BEGIN."""
    with closing(sqlite3.connect(tmp_path / "user.db", isolation_level=None)) as connection:
        run_sync(OUTBOX.create_table(connection))
        connection.execute("BEGIN")
        run_sync(OUTBOX.on(connection).timers.cancel("acme", "order-1"))
        connection.execute("COMMIT")
    assert await calls(UserDatabase(str(tmp_path / "user.db"))) == ["order-1"]


async def test_marks_are_part_of_the_transaction(user_database: UserDatabase) -> None:
    """An event is marked once: a second mark says so, and a rollback undoes the mark."""
    seen = PostgresSeen(user_database.place) if user_database.is_postgres else SqliteSeen(user_database.place)
    await seen.open()
    try:
        for name, kind in kinds(user_database):
            async with kind(user_database) as (connection, commit, rollback):
                assert await seen.add_in(connection, name, "event-1")
                await settle(rollback())
                assert not await seen.has(name, "event-1")
                assert await seen.add_in(connection, name, "event-1")
                assert not await seen.add_in(connection, name, "event-1")
                await settle(commit())
                assert not await seen.add_in(connection, name, "event-1")
                await settle(rollback())
            assert await seen.has(name, "event-1")
            async with kind(user_database, commits_each=True) as (connection, *_):
                with pytest.raises(ValueError, match=r"^connection must be in a transaction"):
                    await seen.add_in(connection, name, "event-2")
            assert not await seen.has(name, "event-2")
    finally:
        await seen.close()


async def test_other_objects_are_refused() -> None:
    """The error lists what is taken. A pool and an engine have a connection for each statement."""
    pool = asyncpg.create_pool("postgresql://nowhere")
    engine = sqlalchemy.create_engine("sqlite://")
    for wrong in (None, "postgresql://nowhere", pool, engine, sqlite3):
        with pytest.raises(ValueError, match=r"^connection must be a connection of sqlite3, aiosqlite, asyncpg, psyc"):
            await OUTBOX.on(wrong).timers.schedule("acme", "order-1", DUE)


def test_a_program_without_event_loop(tmp_path: Path) -> None:
    """`run_sync` returns the outcome. It refuses a call that waits for something else, and passes errors on."""
    with closing(sqlite3.connect(tmp_path / "user.db")) as connection:
        run_sync(OUTBOX.create_table(connection))
        client = OUTBOX.on(connection)
        assert run_sync(client.workflows.start("acme", "order-1", "order")).name == "stored"
        with pytest.raises(ValueError, match=r"^due_in must lie"):
            run_sync(client.timers.schedule("acme", "order-1", due_in=timedelta(-1)))
