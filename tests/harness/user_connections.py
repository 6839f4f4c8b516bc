"""Connections to the database of a user, of every driver that the outbox and the seen stores know."""

import inspect
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple, Protocol

import aiosqlite
import asyncpg
import psycopg
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tests.harness.user_databases import UserDatabase


async def settle(result: Any) -> Any:
    """Return a result, or wait for it."""
    return await result if inspect.isawaitable(result) else result


class UserConnection(NamedTuple):
    """A connection of a user, in a transaction or about to begin one by itself."""

    connection: Any
    commit: Callable[[], Any]
    rollback: Callable[[], Any]


class Kind(Protocol):
    """A kind of connection."""

    def __call__(
        self, database: UserDatabase, *, commits_each: bool = False
    ) -> AbstractAsyncContextManager[UserConnection]:
        """Open a connection. With `commits_each`, each of its statements is a transaction."""


@asynccontextmanager
async def _sqlite3(database: UserDatabase, *, commits_each: bool = False) -> AsyncIterator[UserConnection]:
    connection = sqlite3.connect(database.place, **_sqlite_options(commits_each=commits_each))
    yield UserConnection(connection, connection.commit, connection.rollback)
    connection.close()


@asynccontextmanager
async def _aiosqlite(database: UserDatabase, *, commits_each: bool = False) -> AsyncIterator[UserConnection]:
    async with aiosqlite.connect(database.place, **_sqlite_options(commits_each=commits_each)) as connection:
        yield UserConnection(connection, connection.commit, connection.rollback)


def _sqlite_options(*, commits_each: bool) -> Any:
    return {"isolation_level": None} if commits_each else {}


@asynccontextmanager
async def _asyncpg(database: UserDatabase, *, commits_each: bool = False) -> AsyncIterator[UserConnection]:
    connection = await asyncpg.connect(database.place)
    try:
        yield await _in_block(connection, commits_each=commits_each)
    finally:
        await connection.close()


@asynccontextmanager
async def _asyncpg_pool(database: UserDatabase, *, commits_each: bool = False) -> AsyncIterator[UserConnection]:
    pool = asyncpg.create_pool(database.place, min_size=1, max_size=1)
    async with pool, pool.acquire() as connection:
        yield await _in_block(connection, commits_each=commits_each)


async def _in_block(connection: Any, *, commits_each: bool) -> UserConnection:
    """Begin a transaction of asyncpg, and another one after each end."""
    blocks = [connection.transaction()]
    if not commits_each:
        await blocks[-1].start()

    async def end(name: str) -> None:
        if not commits_each:
            await getattr(blocks.pop(), name)()
            blocks.append(connection.transaction())
            await blocks[-1].start()

    return UserConnection(connection, lambda: end("commit"), lambda: end("rollback"))


@asynccontextmanager
async def _psycopg(database: UserDatabase, *, commits_each: bool = False) -> AsyncIterator[UserConnection]:
    with psycopg.connect(database.place, autocommit=commits_each) as connection:
        yield UserConnection(connection, connection.commit, connection.rollback)


@asynccontextmanager
async def _psycopg_async(database: UserDatabase, *, commits_each: bool = False) -> AsyncIterator[UserConnection]:
    async with await psycopg.AsyncConnection.connect(database.place, autocommit=commits_each) as connection:
        yield UserConnection(connection, connection.commit, connection.rollback)


def _sqlalchemy(driver: str, *, session: bool) -> Kind:
    @asynccontextmanager
    async def opened(database: UserDatabase, *, commits_each: bool = False) -> AsyncIterator[UserConnection]:
        engine = sqlalchemy.create_engine(database.url(driver), **_sqlalchemy_options(commits_each=commits_each))
        with Session(engine) if session else engine.connect() as connection:
            yield UserConnection(connection, connection.commit, connection.rollback)
        engine.dispose()

    return opened


def _sqlalchemy_async(driver: str, *, session: bool) -> Kind:
    @asynccontextmanager
    async def opened(database: UserDatabase, *, commits_each: bool = False) -> AsyncIterator[UserConnection]:
        engine = create_async_engine(database.url(driver), **_sqlalchemy_options(commits_each=commits_each))
        async with AsyncSession(engine) if session else engine.connect() as connection:
            yield UserConnection(connection, connection.commit, connection.rollback)
        await engine.dispose()

    return opened


def _sqlalchemy_options(*, commits_each: bool) -> Any:
    return {"isolation_level": "AUTOCOMMIT"} if commits_each else {}


ON_SQLITE: dict[str, Kind] = {
    "sqlite3": _sqlite3,
    "aiosqlite": _aiosqlite,
    "SQLAlchemy Connection, sqlite3": _sqlalchemy("pysqlite", session=False),
    "SQLAlchemy Session, sqlite3": _sqlalchemy("pysqlite", session=True),
    "SQLAlchemy AsyncConnection, aiosqlite": _sqlalchemy_async("aiosqlite", session=False),
    "SQLAlchemy AsyncSession, aiosqlite": _sqlalchemy_async("aiosqlite", session=True),
}
ON_POSTGRES: dict[str, Kind] = {
    "asyncpg": _asyncpg,
    "asyncpg pool": _asyncpg_pool,
    "psycopg": _psycopg,
    "psycopg async": _psycopg_async,
    "SQLAlchemy Connection, psycopg": _sqlalchemy("psycopg", session=False),
    "SQLAlchemy Session, psycopg": _sqlalchemy("psycopg", session=True),
    "SQLAlchemy AsyncConnection, asyncpg": _sqlalchemy_async("asyncpg", session=False),
    "SQLAlchemy AsyncSession, psycopg": _sqlalchemy_async("psycopg", session=True),
}
