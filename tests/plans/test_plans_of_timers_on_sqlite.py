import asyncio
import re
import shutil
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.harness.builders import scheduled
from tests.harness.clock import NOW
from tests.harness.stores import open_sqlite
from tests.harness.timers import put_timers
from timer_service.core.due.row_counts import CountedRows, overdue_sql
from timer_service.core.ports.database import Database
from timer_service.core.service.clock_repair import leased_rows
from timer_service.core.values.message import Position
from timer_service.timers import cancellations
from timer_service.timers import store as timers
from timer_service.timers.cancellations import CANCELLATIONS
from timer_service.timers.messages import State
from timer_service.timers.store import STORED_DATA, TIMERS

PENDING = 10_000
AVAILABLE = "timer_schedules_available"
SCHEDULED = "timer_schedules_scheduled"
PRIMARY = "sqlite_autoindex_timer_schedules_1"
REPAIRED = leased_rows(TIMERS, timedelta(seconds=30))
BY_PLACE = "SEARCH timer_schedules USING INTEGER PRIMARY KEY (rowid=?)"
BY_KEY = f"SEARCH timer_schedules USING INDEX {PRIMARY} (tenant_id=? AND service_call_id=?)"


@pytest.fixture(scope="module", params=["analyzed", "not analyzed"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a SQLite file with 10,000 timers to fire, with or without statistics."""
    path = tmp_path_factory.mktemp("plans") / "timers.db"
    asyncio.run(make(path, analyzed=request.param == "analyzed"))
    return path


async def make(path: Path, *, analyzed: bool) -> None:
    pending = [
        scheduled(f"call-{number}", NOW + number % 3000, Position(1, number), tenant=f"tenant-{number % 50}")
        for number in range(PENDING)
    ]
    async with open_sqlite(path) as database, database.transaction() as tx:
        await put_timers(tx, pending)
        if analyzed:
            await tx.execute("ANALYZE")


@pytest.fixture
async def database(made: Path, tmp_path: Path) -> AsyncIterator[Database]:
    """Open a copy of the file."""
    shutil.copy(made, tmp_path / "timers.db")
    async with open_sqlite(tmp_path / "timers.db") as database:
        yield database


async def plan(database: Database, sql: str, *, index_only: bool = False) -> list[str]:
    """Return the plan of a statement. `index_only`: also show whether it reads the index alone."""
    parameters = dict.fromkeys(re.findall(r":(\w+)", sql), 1)
    async with database.transaction() as tx:
        rows = await tx.fetch(f"EXPLAIN QUERY PLAN {sql}", parameters)
    return [row["detail"] if index_only else row["detail"].replace("COVERING ", "") for row in rows]


async def test_claim_alone(database: Database) -> None:
    """Without other processes, a claim reads the available rows in index order, and finds each by its row id."""
    found = await plan(database, TIMERS.sql("claim_alone"))
    assert found == [
        "SEARCH timer_schedules USING INTEGER PRIMARY KEY (rowid=?)",
        "LIST SUBQUERY 1",
        f"SEARCH timer_schedules USING INDEX {AVAILABLE} (available_at<?)",
    ]
    expected = [f"SEARCH timer_schedules USING INDEX {AVAILABLE} (available_at=?)"]
    assert await plan(database, TIMERS.sql("read_claim")) == expected


async def test_claim(database: Database) -> None:
    """A claim reads the available rows in index order, finds each by its place and sorts nothing."""
    assert await plan(database, TIMERS.sql("claim")) == [
        BY_PLACE,
        "LIST SUBQUERY 2",
        "MATERIALIZE picked",
        f"SEARCH timer_schedules USING INDEX {AVAILABLE} (available_at<?)",
        "SCAN picked",
    ]


async def test_claim_of_tenant(database: Database) -> None:
    """A claim of one tenant reads its rows to fire in the order of their due times, and sorts nothing."""
    assert await plan(database, TIMERS.sql("claim_of_tenant")) == [
        BY_PLACE,
        "LIST SUBQUERY 2",
        "MATERIALIZE picked",
        f"SEARCH timer_schedules USING INDEX {SCHEDULED} (tenant_id=? AND due_at<?)",
        "SCAN picked",
    ]


async def test_pending_tenants(database: Database) -> None:
    """Each tenant with rows to fire is found by one index lookup."""
    searches = [step for step in await plan(database, TIMERS.sql("due_tenants")) if "timer_schedules" in step]
    assert searches == [
        f"SEARCH timer_schedules USING INDEX {SCHEDULED} ({step})"
        for step in ("tenant_id>?", "tenant_id>?", "tenant_id=?")
    ]


async def test_count_available(database: Database) -> None:
    """The available rows are counted in their index alone."""
    assert await plan(database, TIMERS.sql("count_available"), index_only=True) == [
        "CO-ROUTINE counted",
        f"SEARCH timer_schedules USING COVERING INDEX {AVAILABLE} (available_at<?)",
        "SCAN counted",
    ]


async def test_next_available(database: Database) -> None:
    """The next available row is found by one index lookup."""
    assert await plan(database, TIMERS.sql("next_available")) == [
        f"SEARCH timer_schedules USING INDEX {AVAILABLE} (available_at>?)"
    ]


async def test_steps_on_a_claimed_row(database: Database) -> None:
    """Every step on a claimed row finds it by its key."""
    for name in ("complete", "retry", "bury", "release", "still_held"):
        assert await plan(database, TIMERS.sql(name)) == [BY_KEY], name


async def test_whole_claims(database: Database) -> None:
    """A statement on all rows of a claim finds them by the end of their lease."""
    for name, range_of in (("complete_claim", "available_at=?"), ("void", "available_at>? AND available_at<?")):
        found = await plan(database, TIMERS.sql(name))
        assert found == [f"SEARCH timer_schedules USING INDEX {AVAILABLE} ({range_of})"], name


async def test_clock_repair(database: Database) -> None:
    """The clock repair reads pages of the index of available rows, and corrects rows by their places."""
    assert await plan(database, REPAIRED.sql("page_end"), index_only=True) == [
        f"SEARCH timer_schedules USING COVERING INDEX {AVAILABLE} (available_at>?)"
    ]
    assert await plan(database, REPAIRED.sql("find_wrong")) == [
        f"SEARCH timer_schedules USING INDEX {AVAILABLE} (available_at>? AND available_at<?)"
    ]
    assert (await plan(database, REPAIRED.sql("repair")))[0] == BY_PLACE


async def test_commands(database: Database) -> None:
    """A command finds its timer by its key."""
    assert await plan(database, timers._SQL["find"]) == [BY_KEY, *LONG_TEXT]
    assert await plan(database, timers._SQL["move"]) == [BY_KEY]


async def test_put(database: Database) -> None:
    """Writing a timer needs no search: the upsert uses the key."""
    assert await plan(database, timers._SQL["put"]) == []


LONG_TEXT = (
    "CORRELATED SCALAR SUBQUERY 1",
    "SEARCH long_texts USING INDEX sqlite_autoindex_long_texts_1 (owner=? AND tenant_id=? AND text_id=?)",
)
"""The long text of a timer."""
LISTED_BY = {
    State.SCHEDULED: SCHEDULED,
    State.REACHED: "timer_schedules_reached",
    State.EXPIRED: "timer_schedules_expired",
    State.CANCELLED: "timer_schedules_cancelled",
    State.FAILED: "timer_schedules_failed",
}


async def test_page(database: Database) -> None:
    """A page is one range of the index of its state, and sorts nothing."""
    range_of = "tenant_id=? AND (due_at,service_call_id)>(?,?) AND due_at<?"
    for state, index in LISTED_BY.items():
        found = await plan(database, timers._SQL["page"].format(where=timers._WHERE[state]))
        assert found == [f"SEARCH timer_schedules USING INDEX {index} ({range_of})", *LONG_TEXT], state


async def test_count(database: Database) -> None:
    """Timers of a state are counted in the index of that state, which has no other timers."""
    for state, index in LISTED_BY.items():
        found = await plan(database, timers._SQL["count"].format(where=timers._WHERE[state]))
        search = f"SEARCH timer_schedules USING INDEX {index} (tenant_id=? AND due_at<?)"
        assert found == ["CO-ROUTINE counted", search, "SCAN counted"], state


async def test_count_all(database: Database) -> None:
    """Each gauge counts in the index of its state."""
    walks = {
        "available_at IS NOT NULL": f"SEARCH timer_schedules USING INDEX {AVAILABLE} (available_at>?)",
        "state = 'Reached'": "SCAN timer_schedules USING INDEX timer_schedules_reached",
        "state = 'Expired'": "SCAN timer_schedules USING INDEX timer_schedules_expired",
        "state = 'Cancelled'": "SCAN timer_schedules USING INDEX timer_schedules_cancelled",
        "state = 'Failed'": "SCAN timer_schedules USING INDEX timer_schedules_failed",
    }
    for where, walk in walks.items():
        found = await plan(database, CountedRows(TIMERS.name, "any", where).sql)
        assert found == ["CO-ROUTINE counted", walk, "SCAN counted"], where


async def test_overdue(database: Database) -> None:
    """Overdue timers are counted in the index of available rows, without a sort."""
    assert await plan(database, overdue_sql(TIMERS)) == [
        "CO-ROUTINE counted",
        f"SEARCH timer_schedules USING INDEX {AVAILABLE} (available_at<?)",
        "SCAN counted",
    ]


async def test_usage(database: Database) -> None:
    """What counts in a limit is found in the index of the tenant, and nothing is sorted."""
    for usage, step in (
        (timers.PENDING, f"{SCHEDULED} (tenant_id=? AND due_at>?)"),
        (STORED_DATA, "timer_schedules_large (tenant_id=? AND large_data>?)"),
    ):
        search = f"SEARCH timer_schedules USING INDEX {step}"
        assert await plan(database, usage.sql) == ["CO-ROUTINE counted", search, "SCAN counted"]


async def test_oldest_due(database: Database) -> None:
    """The next due time of a tenant is found by one index lookup."""
    assert await plan(database, timers._SQL["oldest_due"]) == [
        f"SEARCH timer_schedules USING INDEX {SCHEDULED} (tenant_id=?)"
    ]


async def test_delete(database: Database) -> None:
    """Retention finds old timers in its index, oldest first, and deletes them by their key."""
    assert await plan(database, timers._SQL["delete_settled"]) == [
        BY_KEY,
        "LIST SUBQUERY 2",
        "MATERIALIZE picked",
        "SEARCH timer_schedules USING INDEX timer_schedules_settled (<expr><?)",
        "SCAN picked",
    ]


CANCELLATION = "SEARCH timer_cancellations USING INDEX"
CANCELLATION_KEY = f"{CANCELLATION} sqlite_autoindex_timer_cancellations_1"
ONE_CANCELLATION = "(tenant_id=? AND position_epoch=? AND position_sequence=?)"
PAGE = "(tenant_id=? AND service_call_id>? AND service_call_id<?)"
OF_CANCELLATIONS = {
    "next_available": [f"{CANCELLATION} timer_cancellations_available"],
    "oldest_of_tenant": [
        f"{CANCELLATION_KEY} {ONE_CANCELLATION}",
        "SCALAR SUBQUERY 1",
        f"{CANCELLATION} timer_cancellations_unfinished (tenant_id=?)",
    ],
    "page": [f"SEARCH timer_schedules USING INDEX {PRIMARY} {PAGE}"],
    "cancel": [f"SEARCH timer_schedules USING INDEX {PRIMARY} {PAGE}"],
    "save": [f"{CANCELLATION_KEY} {ONE_CANCELLATION}"],
    "delete": [f"{CANCELLATION_KEY} {ONE_CANCELLATION}"],
}


async def test_cancellations(database: Database) -> None:
    """Every statement on cancellations, and on the timers of a page, uses its index and sorts nothing."""
    found = {
        name: await plan(database, cancellations._SQL[name]) for name in OF_CANCELLATIONS if name in cancellations._SQL
    }
    found |= {name: await plan(database, CANCELLATIONS.sql(name)) for name in OF_CANCELLATIONS if name not in found}
    assert found == OF_CANCELLATIONS


async def test_tenants_of_cancellations(database: Database) -> None:
    """Each tenant with cancellations is found by one index lookup."""
    steps = await plan(database, CANCELLATIONS.sql("due_tenants"))
    assert [step for step in steps if "timer_cancellations" in step] == [
        f"{CANCELLATION} timer_cancellations_unfinished ({step})"
        for step in ("tenant_id>?", "tenant_id>?", "tenant_id=?")
    ]
