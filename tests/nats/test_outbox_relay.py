"""The relay of an outbox: order, repeats, refused commands, outages of the broker and the database."""

import asyncio
import contextlib
import json
import logging
import re
import sqlite3
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiosqlite
import asyncpg
import nats
import pytest
from nats.js import JetStreamContext
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

from tests.harness.databases import Databases
from tests.harness.nats_client import read_stream
from tests.harness.outbox import COUNT, running, until_sent
from tests.harness.postgres import PostgresServer
from tests.harness.processes import NatsServer
from tests.harness.user_databases import UserDatabase, postgres_database, sqlite_database
from timer_service.client import NewTimer, TimerClient, TimerServiceError
from timer_service.client.outbox import Outbox, OutboxRelay
from timer_service.client.outbox import relay as relay_module

DUE = datetime(2100, 1, 1, tzinfo=UTC)
OUTBOX = Outbox()


_REFUSE = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'kept'; END $$"
_KEEP_ROWS = {
    False: ["CREATE TRIGGER kept BEFORE DELETE ON timer_outbox BEGIN SELECT RAISE(ABORT, 'kept'); END"],
    True: [_REFUSE, "CREATE TRIGGER kept BEFORE DELETE ON timer_outbox FOR EACH ROW EXECUTE FUNCTION refuse()"],
}
"""What makes each delete of a row fail, by whether the database is PostgreSQL."""


@asynccontextmanager
async def transaction(database: UserDatabase) -> AsyncIterator[TimerClient]:
    """Yield a client that stores commands in a transaction of its own. Create the table first if it is missing."""
    if database.is_postgres:
        connection = await asyncpg.connect(database.place)
        try:
            await OUTBOX.create_table(connection)
            async with connection.transaction():
                yield OUTBOX.on(connection)
        finally:
            await connection.close()
    else:
        async with aiosqlite.connect(database.place) as file:
            await OUTBOX.create_table(file)
            yield OUTBOX.on(file)
            await file.commit()


@pytest.fixture
async def js(server: NatsServer) -> AsyncIterator[JetStreamContext]:
    """Yield a connection to a broker with a stream for the commands of the tenant acme."""
    async with await nats.connect(server.url, max_reconnect_attempts=-1, reconnect_time_wait=0.1) as connection:
        await connection.jetstream().add_stream(name="ACME", subjects=["timer.cmd.v1.acme.>"], max_msg_size=100_000)
        yield connection.jetstream()


async def sent(js: JetStreamContext, stream: str = "ACME") -> list[Any]:
    """Return the envelopes of the commands in a stream."""
    messages = await read_stream(js, stream)
    envelopes = [json.loads(message.data) for message in messages]
    assert [(message.headers or {})["Nats-Msg-Id"] for message in messages] == [each["id"] for each in envelopes]
    return envelopes


async def test_the_commands_about_one_thing_are_in_order(
    server: NatsServer, js: JetStreamContext, user_database: UserDatabase
) -> None:
    """Thousands of commands arrive once, under their ids. Those about a timer keep the order of the rows."""
    stored = []
    for start in range(0, 2_400, 800):
        async with transaction(user_database) as client:
            for number in range(start, start + 800, 8):
                many = [NewTimer("acme", f"timer-{number % 7}-{each}", DUE, number) for each in range(6)]
                ended = [
                    *await client.timers.schedule_many(many),
                    await client.timers.cancel("acme", f"timer-{number % 7}-0"),
                ]
                ended.append(await client.timers.cancel_prefix("acme", "timer-"))
                stored += [each.command_id for each in ended]  # type: ignore[union-attr]
    async with running(OutboxRelay(OUTBOX, user_database.place, server.url)):
        await until_sent(user_database)
    arrived = await sent(js)
    assert sorted(each["id"] for each in arrived) == sorted(stored)
    place = {command_id: number for number, command_id in enumerate(stored)}
    orders = defaultdict[str, list[int]](list)
    for number, envelope in enumerate(arrived):
        orders[envelope["payload"].get("serviceCallId", "")].append(place[envelope["id"]])
        if "prefix" in envelope["payload"]:
            assert place[envelope["id"]] == number  # nothing overtakes it
    assert all(each == sorted(each) for each in orders.values())
    assert len(orders) > 7


async def test_traces(server: NatsServer, js: JetStreamContext, user_database: UserDatabase) -> None:
    """A command carries the context of the span in which it was stored, and none if there was no span."""
    span = NonRecordingSpan(SpanContext(0xA, 0xB, is_remote=False, trace_flags=TraceFlags(1)))
    async with transaction(user_database) as client:
        with use_span(span):
            await client.timers.schedule("acme", "in a span", DUE)
        await client.timers.schedule("acme", "without", DUE)
    async with running(OutboxRelay(OUTBOX, user_database.place, server.url)):
        await until_sent(user_database)
    headers = [message.headers or {} for message in await read_stream(js, "ACME")]
    assert [each.get("traceparent") for each in headers] == [f"00-{0xA:032x}-{0xB:016x}-01", None]


async def test_rows_that_cannot_be_deleted_are_not_sent_again(
    server: NatsServer, js: JetStreamContext, user_database: UserDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """The relay deletes them as soon as the database lets it, also after the broker has forgotten their ids."""
    config = (await js.stream_info("ACME")).config
    await js.update_stream(config.evolve(duplicate_window=0.1))
    async with transaction(user_database) as client:
        await client.timers.schedule_many([NewTimer("acme", f"timer-{number}", DUE) for number in range(5)])
    for statement in _KEEP_ROWS[user_database.is_postgres]:
        await user_database.query(statement)
    async with running(OutboxRelay(OUTBOX, user_database.place, server.url)):
        await until(lambda: "commands wait in the table timer_outbox" in caplog.text)
        assert (await user_database.query(COUNT), len(await sent(js))) == ([(5,)], 5)
        await user_database.query(f"DROP TRIGGER kept {'ON timer_outbox' if user_database.is_postgres else ''}")
        await until_sent(user_database)
    assert len(await sent(js)) == 5


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_command_that_is_too_large_stops_no_other(
    tmp_path: Path, user_database: UserDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A command that the broker or the stream can never store is marked with the reason, and listed. It stays."""
    async with (
        NatsServer(tmp_path / "small", "max_payload: 200000") as server,
        await nats.connect(server.url) as connection,
    ):
        js = connection.jetstream()
        await js.add_stream(name="ACME", subjects=["timer.cmd.v1.acme.>"], max_msg_size=100_000)
        async with transaction(user_database) as client:
            await client.timers.schedule("acme", "first", DUE)
            await client.timers.schedule("acme", "above the stream", DUE, data="x" * 110_000)
            await client.timers.schedule("acme", "above the broker", DUE, data="x" * 210_000)
            await client.timers.schedule("acme", "last", DUE)
        relay = OutboxRelay(OUTBOX, user_database.place, server.url)
        async with running(relay):
            await until_sent(user_database)
        assert [each["payload"]["serviceCallId"] for each in await sent(js)] == ["first", "last"]
        refused = await relay.refused()
    assert [re.sub("210[0-9]+", "210…", each.error) for each in refused] == [
        "message size exceeds maximum allowed (10054)",
        "the command has 210… bytes, more than the broker accepts",
    ]
    assert {(each.tenant, each.message) for each in refused} == {("acme", "schedule-timer")}
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 2


@pytest.mark.parametrize(
    ("column", "value"),
    [("tenant", "a b"), ("tenant", "a\r\nPUB"), ("message", "*"), ("command_id", "x\r\ny"), ("body", b"\xff")],
)
async def test_a_row_of_another_program_stops_no_other(
    server: NatsServer, js: JetStreamContext, tmp_path: Path, column: str, value: object
) -> None:
    """A row that cannot be a command is refused, with the column in its reason."""
    async with sqlite_database(tmp_path) as database:
        async with transaction(database) as client:
            for name in ("garbled", "good"):
                await client.timers.schedule("acme", name, DUE)
        with contextlib.closing(sqlite3.connect(database.place)) as connection, connection:
            connection.execute(f"UPDATE timer_outbox SET {column} = ? WHERE id = 1", [value])
        relay = OutboxRelay(OUTBOX, database.place, server.url)
        async with running(relay):
            await until_sent(database)
        (refused,) = await relay.refused()
    assert [each["payload"]["serviceCallId"] for each in await sent(js)] == ["good"]
    assert refused.error.startswith(f"{column} must")


async def test_a_tenant_without_stream_stops_no_other(
    server: NatsServer, js: JetStreamContext, user_database: UserDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """Its commands wait, more than a page of them. Those of another tenant are sent, and its own ones later."""
    async with transaction(user_database) as client:
        await client.timers.schedule_many([NewTimer("other", f"timer-{number}", DUE) for number in range(1_100)])
        await client.timers.schedule("acme", "order-1", DUE)
    async with running(OutboxRelay(OUTBOX, user_database.place, server.url)):
        await until_sent(user_database, 1_100)
        assert [each["payload"]["serviceCallId"] for each in await sent(js)] == ["order-1"]
        assert "of the tenant other: no stream accepts commands of this tenant here" in caplog.text
        await js.add_stream(name="OTHER", subjects=["timer.cmd.v1.other.>"])
        await until_sent(user_database)
    assert len(await sent(js, "OTHER")) == 1_100


_USERS = """
authorization { users: [
  {user: all, password: all}
  {user: app, password: app, permissions: {publish: ["timer.cmd.v1.acme.>"], subscribe: "_INBOX.>"}}
] }
"""


async def test_a_tenant_without_permission_stops_no_other(
    tmp_path: Path, user_database: UserDatabase, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker does not answer about its commands. Those beside them are sent once, and the log names the tenant."""
    monkeypatch.setattr(relay_module, "LEAST_SECONDS", 0.5)
    async with (
        NatsServer(tmp_path / "fenced", _USERS) as server,
        await nats.connect(server.url, user="all", password="all") as connection,
    ):
        js = connection.jetstream()
        await js.add_stream(name="ACME", subjects=["timer.cmd.v1.acme.>"])
        async with transaction(user_database) as client:
            for number in range(3):
                await client.timers.schedule("other", f"order-{number}", DUE)
                await client.timers.schedule("acme", f"order-{number}", DUE)
        async with running(OutboxRelay(OUTBOX, user_database.place, server.url, user="app", password="app")):
            await until_sent(user_database, 3)
        assert [each["payload"]["serviceCallId"] for each in await sent(js)] == ["order-0", "order-1", "order-2"]
        assert "of the tenant other: no acknowledgement within" in caplog.text
        assert "of the tenant acme" not in caplog.text


async def test_a_transaction_that_commits_later(server: NatsServer, js: JetStreamContext, databases: Databases) -> None:
    """On PostgreSQL, a row can be committed after a row with a greater id was sent. It is sent as well."""
    async with postgres_database(databases) as database:
        async with transaction(database) as early:
            await early.timers.schedule("acme", "early", DUE)
            async with transaction(database) as late:
                await late.timers.schedule("acme", "late", DUE)
            async with running(OutboxRelay(OUTBOX, database.place, server.url)):
                await until_sent(database)
        async with running(OutboxRelay(OUTBOX, database.place, server.url)):
            await until_sent(database)
    assert [each["payload"]["serviceCallId"] for each in await sent(js)] == ["late", "early"]


@pytest.mark.slow
async def test_the_second_relay_waits(
    server: NatsServer, js: JetStreamContext, databases: Databases, caplog: pytest.LogCaptureFixture
) -> None:
    """Of two relays of a PostgreSQL table one sends. The other one takes over when it ends."""
    caplog.set_level(logging.INFO)
    async with postgres_database(databases) as database:
        async with transaction(database) as client:
            await client.timers.schedule("acme", "order-1", DUE)
        first, second = (OutboxRelay(OUTBOX, database.place, server.url) for _ in range(2))
        async with running(first):
            await until_sent(database)
            async with running(second):
                await until(lambda: "another relay sends the commands" in caplog.text)
                assert await database.query("SELECT granted FROM pg_locks WHERE locktype = 'advisory'") == [(True,)]
                async with transaction(database) as client:
                    await client.timers.schedule("acme", "order-2", DUE)
                await until_sent(database)
        async with running(second), running(first):
            async with transaction(database) as client:
                await client.timers.schedule("acme", "order-3", DUE)
            await until_sent(database)
    assert [each["payload"]["serviceCallId"] for each in await sent(js)] == ["order-1", "order-2", "order-3"]


@pytest.mark.slow
async def test_outages(server: NatsServer, js: JetStreamContext, postgres_server: PostgresServer) -> None:
    """A relay outlives the kill of the broker and of the database, and begins when neither runs. It sends each once."""
    database = UserDatabase(postgres_server.url)

    async def store(number: int) -> None:
        async with transaction(database) as client:
            await client.timers.schedule("acme", f"order-{number}", DUE)

    await store(0)
    await postgres_server.kill()
    await server.kill()
    async with running(OutboxRelay(OUTBOX, database.place, server.url)):
        await postgres_server.start()
        await store(1)
        await server.start()
        await until_sent(database)
        await server.kill()
        await store(2)
        await server.start()
        await until_sent(database)
        await postgres_server.kill()
        await postgres_server.start()
        await store(3)
        await until_sent(database)
    assert [each["payload"]["serviceCallId"] for each in await sent(js)] == [f"order-{number}" for number in range(4)]


async def test_wake(
    server: NatsServer, js: JetStreamContext, user_database: UserDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay that looks every hour sends at once what it is woken for."""
    monkeypatch.setattr(relay_module, "POLL_SECONDS", 3600)
    async with transaction(user_database) as client:
        await client.timers.schedule("acme", "order-1", DUE)
    relay = OutboxRelay(OUTBOX, user_database.place, server.url)
    async with running(relay):
        await until_sent(user_database)
        async with transaction(user_database) as client:
            await client.timers.schedule("acme", "order-2", DUE)
        relay.wake()
        await until_sent(user_database)
    assert len(await sent(js)) == 2


async def test_a_database_without_the_table(
    server: NatsServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The relay says what to do. It creates no file: with a wrong path it would wait for nothing, silently."""
    path = tmp_path / "user.db"
    async with running(OutboxRelay(OUTBOX, path, server.url)):
        await until(lambda: "unable to open database file" in caplog.text)
    assert not path.exists()
    path.touch()
    with pytest.raises(TimerServiceError, match=r"has no table timer_outbox: create it with Outbox\.create_table"):
        await OutboxRelay(OUTBOX, path, server.url).run()
