import re

import pytest

from tests.support.builders import schedule, scheduled
from tests.support.clock import NOW
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.database import Database
from timer_service.core.message import Position
from timer_service.timers import store as timers
from timer_service.timers.store import TIMERS

PENDING = 10_000
AVAILABLE = "timer_schedules_available"
PRIMARY = "sqlite_autoindex_timer_schedules_1"
BY_KEY = f"SEARCH timer_schedules USING INDEX {PRIMARY} (tenant_id=? AND service_call_id=?)"


@pytest.fixture(params=["analyzed", "not analyzed"])
async def database(request: pytest.FixtureRequest, sqlite: SqliteDatabase) -> Database:
    """SQLite with ten thousand timers pending, a third of them due, its planner told of that or not."""
    pending = [
        scheduled(schedule(f"call-{number}", NOW + number % 3000, Position(1, number), tenant=f"tenant-{number % 50}"))
        for number in range(PENDING)
    ]
    async with sqlite.transaction() as tx:
        await timers.put(tx, pending)
        if request.param == "analyzed":
            await tx.execute("ANALYZE")
    return sqlite


async def plan(database: Database, sql: str) -> list[str]:
    parameters = dict.fromkeys(re.findall(r":(\w+)", sql), 1)
    async with database.transaction() as tx:
        rows = await tx.fetch(f"EXPLAIN QUERY PLAN {sql}", parameters)
    return [row["detail"].replace("COVERING ", "") for row in rows]


async def test_claim(database: Database) -> None:
    """A claim walks the available rows in the order of their index, reaches each by its key, and sorts nothing."""
    assert await plan(database, TIMERS.sql("claim")) == [
        BY_KEY,
        "LIST SUBQUERY 1",
        f"SEARCH timer_schedules USING INDEX {AVAILABLE} (available_at<?)",
    ]


async def test_next_available(database: Database) -> None:
    """The next available row is one step into the index."""
    assert await plan(database, TIMERS.sql("next_available")) == [
        f"SEARCH timer_schedules USING INDEX {AVAILABLE} (available_at>?)"
    ]


@pytest.mark.parametrize("name", ["complete", "retry", "bury", "release", "extend"])
async def test_settle(database: Database, name: str) -> None:
    """Whatever becomes of a claimed row, it is reached by its key."""
    assert await plan(database, TIMERS.sql(name)) == [BY_KEY]


@pytest.mark.parametrize(
    ("name", "range_of"), [("complete_claim", "available_at=?"), ("void", "available_at>? AND available_at<?")]
)
async def test_whole_claims(database: Database, name: str, range_of: str) -> None:
    """What is done to all rows of a claim at once reaches them by when its lease ends."""
    assert await plan(database, TIMERS.sql(name)) == [f"SEARCH timer_schedules USING INDEX {AVAILABLE} ({range_of})"]


@pytest.mark.parametrize("name", ["find", "advance"])
async def test_commands(database: Database, name: str) -> None:
    """A command reaches its timer by its key."""
    assert await plan(database, timers._SQL[name]) == [BY_KEY]


async def test_put(database: Database) -> None:
    """Writing a timer searches nothing: its key tells whether it is there."""
    assert await plan(database, timers._SQL["put"]) == []
