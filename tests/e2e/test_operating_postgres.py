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


async def test_doctor_beside_a_running_service(cli: Cli, databases: Databases) -> None:
    """Beside a running service all checks are ok, except for unsafe settings of the test server."""
    async with databases.database() as url:
        cli.settings["TIMER_DATABASE_URL"] = url
        async with Service(cli.folder / "service", cli.settings["TIMER_BROKER_URL"], TIMER_DATABASE_URL=url):
            found = await statuses(cli, 0)
        names = ("database", "schema", "privileges", "database connections", "clock", "permissions")
        assert [found[each] for each in names] == ["ok"] * len(names)
        assert (found["database durability"], found["autovacuum"]) == ("warn", "warn")
        assert "sqlite" not in found


async def test_doctor_creates_nothing(cli: Cli, databases: Databases) -> None:
    """Before the first start, doctor reports missing tables and does not create them."""
    async with databases.database() as url:
        cli.settings["TIMER_DATABASE_URL"] = url
        assert (await statuses(cli, 0))["schema"] == "warn"
        assert (await statuses(cli, 0))["schema"] == "warn"
        assert await tables(url) == 0
        cli.settings["TIMER_AUTO_MIGRATE"] = "false"
        assert (await statuses(cli, 1))["schema"] == "fail"


async def test_doctor_without_the_database(cli: Cli) -> None:
    """A database that cannot be used is a failure with the reason. The password is not printed."""
    done = await cli.run("doctor", TIMER_DATABASE_URL="postgresql://svc:s3cret@127.0.0.1:1/timers")
    assert done.returncode == 1
    assert "fail  database: cannot be used: " in done.stdout
    assert "ok    broker: " in done.stdout
    assert "s3cret" not in done.stdout + done.stderr


async def test_backup_names_the_tools_of_postgres(cli: Cli, databases: Databases) -> None:
    """`backup` and `restore` are for SQLite. On PostgreSQL, `backup` names the tools to use."""
    async with databases.database() as url:
        cli.settings["TIMER_DATABASE_URL"] = url
        done = await cli.run("backup", "backup.db")
    assert (done.returncode, "pg_dump" in done.stderr) == (1, True)


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


async def copy_database(url: str, copy: str) -> None:
    """Copy a database that has no sessions, as a backup and its restore do."""
    connection = await asyncpg.connect(urlsplit(url)._replace(path="/template1").geturl())
    await connection.execute(f"CREATE DATABASE {urlsplit(copy).path[1:]} TEMPLATE {urlsplit(url).path[1:]}")
    await connection.close()


async def test_migrate(cli: Cli, databases: Databases) -> None:
    """`check` and `status` list pending migrations. `up` applies them."""
    shipped = sorted(path.stem for path in MIGRATIONS.glob("*.sql"))
    async with databases.database() as url:
        cli.settings["TIMER_DATABASE_URL"] = url
        done = await cli.run("migrate", "check")
        assert (done.returncode, done.stdout.splitlines()) == (1, [f"pending  {each}" for each in shipped])
        assert await tables(url) == 0
        assert await cli.lines("migrate", "status") == [f"pending  {each}" for each in shipped]
        assert await cli.lines("migrate", "up") == [f"applied  {each}" for each in shipped]
        assert [(line["type"], line["migration"]) for line in cli.audit] == [("migration", each) for each in shipped]
        assert await cli.lines("migrate", "up") == ["nothing to apply"]
        assert cli.audit == []
        assert await cli.lines("migrate", "status") == [f"applied  {each}" for each in shipped]
        assert await cli.lines("migrate", "check") == []
