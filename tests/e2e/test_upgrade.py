"""An upgrade: the service starts on a database with an older schema, in which timers are pending."""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.e2e.conftest import User, check_fired
from tests.harness.processes import NatsServer, Service
from tests.harness.stores import MIGRATIONS, opened_sqlite
from timer_service.adapters.migrations import migrate, read_migrations
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.core.ports.database import Database

OLD = 2
"""The last migration of the older schema: only events and timers."""
TIMERS = 1_000
LONGEST_MS = 5_000
_INSERT = """
INSERT INTO timer_schedules (
    tenant_id, service_call_id, state, due_at, event_id, registered_at,
    position_epoch, position_sequence, available_at, lease_token, attempt
) VALUES
"""


@asynccontextmanager
async def opened(path: Path, settings: Mapping[str, str]) -> AsyncIterator[Database]:
    """Open the database of a service, without a schema."""
    if "TIMER_DATABASE_URL" not in settings:
        async with opened_sqlite(path) as sqlite:
            yield sqlite
        return
    postgres = await PostgresDatabase.open(settings["TIMER_DATABASE_URL"])
    try:
        yield postgres
    finally:
        await postgres.close()


async def write_timers(database: Database, due: Mapping[str, int]) -> None:
    """Create the older schema with pending timers. A process that has died since had claimed every tenth."""
    await migrate(database, [each for each in read_migrations(MIGRATIONS) if each.number <= OLD])
    rows = [
        f"('acme', '{call}', 'Scheduled', {at}, 'event-of-{call}', 1, 1, {number}, {at}, "
        + ("NULL, 0)" if number % 10 else "'token', 1)")
        for number, (call, at) in enumerate(due.items(), 1)
    ]
    async with database.transaction() as tx:
        await tx.execute(_INSERT + ",\n".join(rows))


@pytest.mark.slow
async def test_timers_of_an_older_schema(
    tmp_path: Path, broker: NatsServer, user: User, stored: Mapping[str, str]
) -> None:
    """Every pending timer fires once under its id, also one that falls due during the upgrade. None is early."""
    first = int(time.time() * 1000) - LONGEST_MS // 2
    due = {f"call-{number}": first + number * LONGEST_MS // TIMERS for number in range(TIMERS)}
    service = Service(tmp_path / "service", broker.url, **stored)
    async with opened(tmp_path / "service" / "timers.db", stored) as database:
        await write_timers(database, due)
    async with service:
        await user.until_stored("TIMER_EVT", TIMERS)
        fired = await user.fired()
    assert check_fired(fired, due) == 0
    assert {each.id for each in fired} == {f"event-of-{call}" for call in due}
