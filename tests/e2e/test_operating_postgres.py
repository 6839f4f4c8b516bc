"""`timer-service doctor` and `migrate`, and a restore, on PostgreSQL."""

import time
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from tests.e2e.conftest import User
from tests.harness.cli import Cli, statuses
from tests.harness.databases import Databases
from tests.harness.postgres import PostgresServer
from tests.harness.processes import NatsServer, Service, body
from tests.harness.stores import MIGRATIONS


async def tables(url: str) -> int:
    connection = await asyncpg.connect(url)
    count: int = await connection.fetchval("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")
    await connection.close()
    return count


@pytest.mark.slow
async def test_restore(tmp_path: Path, user: User, broker: NatsServer, postgres_server: PostgresServer) -> None:
    """A service on a restored backup reads on from its cursor, before it fires: a cancel after the backup counts."""
    settings = {"TIMER_DATABASE_URL": postgres_server.url}
    restored = urlsplit(postgres_server.url)._replace(path="/restored").geturl()
    due = dict.fromkeys(("cancelled", "kept"), int(time.time() * 1000) + 10_000)
    async with Service(tmp_path / "old", broker.url, **settings) as service:
        await user.schedule(due)
        await user.until_handled()
        assert await service.terminate() == 0
        await copy_database(postgres_server.url, restored)
        await service.start()
        cancel = body("CancelTimer", "acme", {"serviceCallId": "cancelled"})
        await user.send([("timer.cmd.v1.acme.cancel-timer", cancel)])
        await user.schedule({"later": due["kept"]})
        await user.until_handled()
        await service.kill()
    async with Service(tmp_path / "new", broker.url, TIMER_DATABASE_URL=restored):
        await user.until_stored("TIMER_EVT", 2)
    assert {each.call for each in await user.fired()} == {"kept", "later"}


async def limit_connections(url: str, most: int) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(f"ALTER DATABASE {urlsplit(url).path[1:]} CONNECTION LIMIT {most}")
    await connection.close()


async def copy_database(url: str, copy: str) -> None:
    """Copy a database that has no sessions, as a backup and its restore do."""
    connection = await asyncpg.connect(urlsplit(url)._replace(path="/template1").geturl())
    await connection.execute(f"CREATE DATABASE {urlsplit(copy).path[1:]} TEMPLATE {urlsplit(url).path[1:]}")
    await connection.close()


async def test_migrate_and_doctor(cli: Cli, broker: NatsServer, databases: Databases) -> None:
    """Before the first start, `migrate` and `doctor` list what is missing and create nothing. Afterwards all is ok."""
    shipped = sorted(path.stem for path in MIGRATIONS.glob("*.sql"))
    async with databases.database() as url:
        cli.settings["TIMER_DATABASE_URL"] = url
        done = await cli.run("migrate", "check")
        assert (done.returncode, done.stdout.splitlines()) == (1, [f"pending  {each}" for each in shipped])
        assert await cli.lines("migrate", "status") == [f"pending  {each}" for each in shipped]
        assert (await statuses(cli, 0))["schema"] == "warn"
        await limit_connections(url, 5)
        assert (await statuses(cli, 0))["database connections"] == "warn"
        await limit_connections(url, -1)
        cli.settings["TIMER_AUTO_MIGRATE"] = "false"
        assert (await statuses(cli, 1))["schema"] == "fail"
        assert await tables(url) == 0
        assert await cli.lines("migrate", "up") == [f"applied  {each}" for each in shipped]
        assert [(line["type"], line["migrations"]) for line in cli.audit] == [("migration", shipped)]
        assert await cli.lines("migrate", "up") == ["nothing to apply"]
        assert await cli.lines("migrate", "status") == [f"applied  {each}" for each in shipped]
        assert await cli.lines("migrate", "check") == []
        async with Service(cli.folder / "service", broker.url, TIMER_DATABASE_URL=url):
            found = await statuses(cli, 0)
    names = ("database", "schema", "privileges", "database connections", "clock", "permissions")
    assert [found[each] for each in names] == ["ok"] * len(names)
    assert (found["database durability"], found["autovacuum"]) == ("warn", "warn")  # of the test server
