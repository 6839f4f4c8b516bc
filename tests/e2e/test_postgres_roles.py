"""The roles and the TLS of PostgreSQL, as docs/operations/postgresql.md describes them."""

import asyncio
import json
import os
import re
import shutil
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import asyncpg
import pytest

from tests.e2e.conftest import User
from tests.harness.cases import case
from tests.harness.cli import Cli, statuses
from tests.harness.databases import Databases
from tests.harness.postgres import PostgresServer
from tests.harness.processes import NatsServer, Service, body
from tests.harness.rotations import make_certificate
from timer_service.app.slices import SLICES
from timer_service.core.values.address import kebab

PAGE = (Path(__file__).parents[2] / "docs" / "operations" / "postgresql.md").read_text("utf-8")
DUE = "2020-01-01T00:00:00Z"
TRIGGER = {"triggerKind": "event", "triggerSpec": {"kind": "work_item.status.transition", "to": ["blocked"]}}
JOBS = [{"name": "a", "staleAfterSeconds": 1}, {"name": "b", "needs": ["a"]}]
COMMANDS: Sequence[tuple[str, Mapping[str, Any]]] = [
    ("ScheduleTimer", {"serviceCallId": "call-1", "dueAt": DUE}),
    ("CancelTimer", {"serviceCallId": "call-2"}),
    ("CancelTimers", {"prefix": "call-2"}),
    ("RetryTimer", {"serviceCallId": "call-1"}),
    ("CreateWorkItem", {"workItemId": "item-1", "status": "open"}),
    ("CreateWorkSignal", {"signalId": "signal-1", "workItemId": "item-1", **TRIGGER}),
    ("CreateWorkSignal", {"signalId": "signal-3", "workItemId": "item-1", **TRIGGER}),
    ("PauseWorkSignal", {"signalId": "signal-1"}),
    ("ActivateWorkSignal", {"signalId": "signal-1"}),
    ("TransitionWorkItem", {"workItemId": "item-1", "to": "blocked"}),
    ("CancelWorkSignal", {"signalId": "signal-2"}),
    ("ResolveWorkSignal", {"signalId": "signal-1"}),
    ("PutSchedule", {"scheduleId": "schedule-1", "every": "PT1S"}),
    ("PutSchedule", {"scheduleId": "schedule-2", "every": "PT1S", "endAt": DUE}),
    ("PauseSchedule", {"scheduleId": "schedule-2"}),
    ("ResumeSchedule", {"scheduleId": "schedule-2"}),
    ("TriggerSchedule", {"scheduleId": "schedule-2"}),
    ("BackfillSchedule", {"scheduleId": "schedule-1", "from": "2020-01-01T00:00:00Z", "to": "2020-01-01T00:00:09Z"}),
    ("DeleteSchedule", {"scheduleId": "schedule-2"}),
    ("StartRun", {"runId": "run-1", "jobs": JOBS}),
    ("StartRun", {"runId": "run-2", "jobs": JOBS}),
    ("ReportJobStatus", {"runId": "run-1", "jobName": "a", "status": "success"}),
    ("ResolveGroup", {"runId": "run-1", "groupName": "none", "jobs": []}),
    ("CancelRun", {"runId": "run-1"}),
    ("RetryRun", {"runId": "run-1"}),
    ("StartWorkflow", {"workflowId": "workflow-1", "type": "order", "deadlineAt": DUE}),
    ("StartWorkflow", {"workflowId": "workflow-2", "type": "order"}),
    ("SendToWorkflow", {"workflowId": "workflow-2", "name": "approval"}),
    ("CancelWorkflow", {"workflowId": "workflow-2"}),
    ("RetryWorkflow", {"workflowId": "workflow-2"}),
    ("RetryEvent", {"eventId": "event-1"}),
    ("ParkEvent", {"consumer": "a", "event": {"id": "1", "type": "x", "payload": {}}, "reason": "no", "attempts": 1}),
    ("ParkEvent", {"consumer": "b", "event": {"id": "1", "type": "x", "payload": {}}, "reason": "no", "attempts": 1}),
    ("ResubmitEvent", {"consumer": "a", "eventId": "1"}),
    ("DropEvent", {"consumer": "b", "eventId": "1"}),
]


class Roles(NamedTuple):
    """The URLs of a database, by role."""

    superuser: str
    owner: str
    service: str


def sql(part: str) -> str:
    """Return the only SQL block of the page that contains `part`."""
    blocks = re.findall(r"^```sql\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (found,) = (each for each in blocks if part in each)
    return str(found)


@pytest.fixture
async def roles(databases: Databases) -> AsyncIterator[Roles]:
    """Yield a migrated database with the roles of the page. Their names are new, because a server shares its roles."""
    suffix = token_hex(4)
    names = {"timer_owner": f"timer_owner_{suffix}", "timer_service": f"timer_service_{suffix}"}
    async with databases.database() as url:
        parts = urlsplit(url)
        names["DATABASE timers"] = f"DATABASE {parts.path[1:]}"
        host = parts.netloc.rpartition("@")[2]
        owner, service = (
            parts._replace(netloc=f"{names[name]}:{password}@{host}").geturl()
            for name, password in (("timer_owner", "choose-one"), ("timer_service", "choose-another"))
        )
        superuser = await asyncpg.connect(url)
        await superuser.execute(replace(sql("CREATE ROLE"), names))
        try:
            yield Roles(url, owner, service)
        finally:
            for name in (names["timer_owner"], names["timer_service"]):
                await superuser.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")
            await superuser.execute(f"GRANT CONNECT, TEMPORARY ON {names['DATABASE timers']} TO PUBLIC")
            await superuser.close()


def replace(text: str, names: Mapping[str, str]) -> str:
    return re.sub("|".join(names), lambda found: names[found[0]], text)


async def migrate_as_owner(cli: Cli, roles: Roles) -> None:
    cli.settings["TIMER_DATABASE_URL"] = roles.owner
    await cli.lines("migrate", "up")
    owner = await asyncpg.connect(roles.owner)
    await owner.execute(sql("ON schema_migrations").replace("timer_service", urlsplit(roles.service).username or ""))
    await owner.close()


async def test_service_with_the_rights_of_the_page(
    tmp_path: Path, broker: NatsServer, user: User, roles: Roles
) -> None:
    """The service handles every type of command, and every loop works, with a role that owns nothing."""
    names = {name for name, _ in COMMANDS}
    assert names == {payload.type for each in SLICES for payload in each.commands}
    cli = Cli(tmp_path, broker.url)
    await migrate_as_owner(cli, roles)
    settings = {"TIMER_DATABASE_URL": roles.service, "TIMER_AUTO_MIGRATE": "false"}
    cli.settings |= settings
    async with Service(tmp_path / "service", broker.url, **settings) as service:
        for name, payload in COMMANDS:
            data = body(name, "acme", {"tenantId": "acme", **payload})
            await user.js.publish(f"timer.cmd.v1.acme.{kebab(name)}", data)
        await user.until_handled()
        events = (
            "due-time-reached",
            "work-signal-fired",
            "schedule-fired",
            "job-ready",
            "job-skipped",
            "run-completed",
            "workflow-failed",
            "workflow-cancelled",
        )
        for event in events:
            await until_published(user, event)
        for query in (each.name for slice_ in SLICES for each in slice_.queries):
            answer = await user.connection.request(f"timer.qry.v1.acme.{query}", b"{}", timeout=10)
            assert json.loads(answer.data).get("error", {}).get("code") != "INTERNAL", query
        _, metrics = await service.page("/metrics")
        handled = set(
            re.findall(r'timer_commands_received_total\{outcome="(?!rejected)[a-z_]+",type="(\w+)"\} [1-9]', metrics)
        )
        loops = re.findall(r'timer_loop_last_tick_timestamp_seconds\{loop="([a-z-]+)"\} (\S+)', metrics)
        found = await statuses(cli, 0)
        log = (tmp_path / "service" / "service.log").read_text()
    assert handled == names
    assert {"timers", "firings", "schedules", "outbox", "sweep", "runs-retention", "row-counts"} <= {
        loop for loop, _ in loops
    }
    assert [loop for loop, at in loops if float(at) == 0] == []
    assert found["privileges"] == "ok"
    assert "permission denied" not in log
    assert '"level": "error"' not in log


async def test_missing_rights(tmp_path: Path, broker: NatsServer, roles: Roles) -> None:
    """Doctor names the rights that the role lacks, with the statement that grants them, or a missing database."""
    cli = Cli(tmp_path, broker.url)
    await migrate_as_owner(cli, roles)
    role, owner = urlsplit(roles.service).username, await asyncpg.connect(roles.owner)
    await owner.execute(f"REVOKE SELECT ON schema_migrations FROM {role}; REVOKE INSERT ON outbox FROM {role}")
    await owner.close()
    done = await cli.run("doctor", TIMER_DATABASE_URL=roles.service)
    assert "privileges: lacks SELECT on schema_migrations; INSERT on outbox\n" in done.stdout
    assert f"GRANT SELECT ON schema_migrations TO {role}; GRANT INSERT ON outbox TO {role};\n" in done.stdout
    done = await cli.run("doctor", TIMER_DATABASE_URL=urlsplit(roles.service)._replace(path="/nothing").geturl())
    assert 'fail  database: refuses the login: database "nothing" does not exist\n' in done.stdout


async def until_published(user: User, event: str) -> None:
    async with asyncio.timeout(30):
        while not await user.read("TIMER_EVT", f"timer.evt.v1.acme.{event}"):
            await asyncio.sleep(0.05)


FORBIDDEN = [
    "DROP TABLE timer_schedules",
    "ALTER TABLE timer_schedules ADD COLUMN more TEXT",
    "TRUNCATE timer_schedules",
    "CREATE TABLE mine (number BIGINT)",
    "CREATE TEMPORARY TABLE mine (number BIGINT)",
    "CREATE FUNCTION f() RETURNS INT LANGUAGE SQL AS 'SELECT 1'",
    "CREATE SCHEMA mine",
    "CREATE ROLE mine",
    "CREATE INDEX ON timer_schedules (data)",
    "DELETE FROM schema_migrations",
]


async def test_service_cannot_change_the_schema(tmp_path: Path, broker: NatsServer, roles: Roles) -> None:
    """The role of the service cannot create, change or drop anything, or forge migrations."""
    await migrate_as_owner(Cli(tmp_path, broker.url), roles)
    connection = await asyncpg.connect(roles.service)
    try:
        for statement in FORBIDDEN:
            with case(statement):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await connection.execute(statement)
                assert await connection.fetchval("SELECT count(*) FROM schema_migrations") > 0
    finally:
        await connection.close()


@pytest.mark.slow
async def test_tls(tmp_path: Path, broker: NatsServer, postgres_server: PostgresServer) -> None:
    """With `sslmode=verify-full` the service talks only to a server with a certificate of the authority."""
    make_certificate(tmp_path)
    (other := tmp_path / "other").mkdir()
    make_certificate(other)
    await require_tls(postgres_server, tmp_path)
    cli = Cli(tmp_path, broker.url)
    url = f"{postgres_server.url}?sslmode=verify-full&sslrootcert="
    cli.settings["TIMER_DATABASE_URL"] = f"{url}{other}/cert.pem"
    done = await cli.run("migrate", "up")
    assert (done.returncode, "CERTIFICATE_VERIFY_FAILED" in done.stderr) == (1, True)
    cli.settings["TIMER_DATABASE_URL"] = f"{url}{tmp_path}/cert.pem"
    async with Service(tmp_path / "service", broker.url, TIMER_DATABASE_URL=cli.settings["TIMER_DATABASE_URL"]):
        assert (await statuses(cli, 0))["schema"] == "ok"
        connection = await asyncpg.connect(postgres_server.url, ssl="require")
        encrypted = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE client_port > 0"
        assert await connection.fetchval(encrypted) is True
        await connection.close()


async def require_tls(server: PostgresServer, folder: Path) -> None:
    """Give a running server a certificate, and let it refuse connections without TLS."""
    copy_certificate(folder, server.folder)
    connection = await asyncpg.connect(server.url)
    await connection.execute(f"ALTER SYSTEM SET ssl_cert_file = '{server.folder}/cert.pem'")
    await connection.execute(f"ALTER SYSTEM SET ssl_key_file = '{server.folder}/key.pem'")
    await connection.execute("ALTER SYSTEM SET ssl = on")
    hba = await connection.fetchval("SHOW hba_file")
    await connection.execute(f"COPY (VALUES ('hostssl all all all trust')) TO '{hba}'")
    await connection.close()
    await server.restart()
    with pytest.raises((asyncpg.InvalidAuthorizationSpecificationError, ssl.SSLError)):
        await asyncpg.connect(server.url, ssl="disable")


def copy_certificate(source: Path, folder: Path) -> None:
    """Copy a certificate and its key. Only the owner of `folder` may read them, as the server demands."""
    owner = folder.stat()
    for name in ("cert.pem", "key.pem"):
        file = Path(shutil.copy(source / name, folder / name))
        os.chown(file, owner.st_uid, owner.st_gid)
        file.chmod(0o600)
