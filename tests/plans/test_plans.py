"""The query plan of every statement, on both engines: its indexes, no whole table, no sort.

`indexes.txt` has the indexes of each statement, by file or table.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

import timer_service
from tests.harness.databases import Databases
from tests.harness.plans import MODES, STATISTICS, FilledDatabase, Statistics, filled_database
from tests.plans.rows import PENDING_ROWS, ROWS, WAITING_SCHEDULES
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.app.slices import SLICES
from timer_service.core.due.due_rows import DueTable
from timer_service.core.due.lease import LeasedTable
from timer_service.core.due.row_counts import overdue_sql
from timer_service.core.ports.sql import load_sql
from timer_service.core.service.clock_repair import leased_rows
from timer_service.events.store import PAGES
from timer_service.runs.announcements import ANNOUNCEMENTS
from timer_service.schedules.backfill.store import BACKFILLS
from timer_service.schedules.store import SCHEDULES
from timer_service.signals.firing_store import FIRINGS
from timer_service.signals.store import UNEVALUATED
from timer_service.timers.cancellations import CANCELLATIONS
from timer_service.ui.failures import KINDS
from timer_service.ui.views import runs, schedules, search, signals, timers, workflows
from timer_service.workflows.store import KEYS, OVERDUE

NEXT = ("next_available", "due_tenants")
SELECT = (*NEXT, "count_available", "next_available_after", "due", "due_of_tenant", "due_by_key")
OLDEST = (*NEXT, "oldest_of_tenant")
DUE: dict[DueTable, Sequence[str]] = {
    CANCELLATIONS: (*OLDEST, "postpone"),
    BACKFILLS: (*OLDEST, "postpone"),
    SCHEDULES: (*SELECT, "postpone"),
    FIRINGS: (*SELECT, "postpone"),
    UNEVALUATED: (*NEXT, "due_of_tenant", "due_by_key"),
    ANNOUNCEMENTS: (*SELECT, "postpone"),
    OVERDUE: (*NEXT, "due_of_tenant", "due_by_key", "postpone"),
    KEYS: (*NEXT, "due_of_tenant", "due_by_key", "postpone"),
}
"""The tables of workers, and the statements that each of them runs."""
LEASED = (
    *load_sql("timer_service.core.due", "lease.sql"),
    *(*NEXT, "claim_of_tenant", "next_available_after", "count_available"),
)
REPAIR = load_sql("timer_service.core.service", "clock_repair.sql")
OTHERS = ("core/due/", "core/service/clock_repair", "ui/tenants", "core/intake/cursor")
"""Files whose statements are filled in with a table, or are about a table with one row."""
COLUMN = "tenant_id = tenant_id"
FILLED_IN = {"columns": "tenant_id", "short": "tenant_id", "updates": COLUMN, "advances": COLUMN, "finishes": COLUMN}
STATES = {"scheduled": "available_at IS NOT NULL"} | {
    state.lower(): f"state = '{state}'" for state in ("Reached", "Expired", "Cancelled", "Failed")
}
ENDED = "status = 'completed' AND ended_at IS NOT NULL AND type IS NOT NULL"
VARIANTS = {
    "timers/store page_of_scheduled": {
        "all": {"where": STATES["scheduled"]},
        "with a topic": {"where": "topic = :topic AND state = 'Scheduled'"},
    },
    "timers/store page_of_others": {
        **{name: {"where": where} for name, where in STATES.items() if name != "scheduled"},
        "with a topic": {"where": "topic = :topic AND state = 'Reached'"},
    },
    "timers/store count": {name: {"where": where} for name, where in STATES.items()},
    "signals/store page": {
        "of a status": {"where": "trigger_kind <> '' AND status = 'active'"},
        "of an item": {"where": "work_item_id = :work_item_id AND status = 'active'"},
    },
    "schedules/store page": {
        "active": {"where": "status = 'active'"},
        "of a topic": {"where": "topic = :topic AND status = 'active'"},
    },
    "runs/loader find_jobs": {
        "one": {"each": "/* each of many */", "which": "AND job_name = :job_name"},
        "all": {"each": "", "which": "ORDER BY job_name"},
        "open": {"each": "", "which": "AND settled_at IS NULL ORDER BY job_name"},
    },
    "runs/loader find_value": {"": {"column": "outputs"}},
    "runs/store update_jobs": {"one": {"which": "= :job_name"}, "many": {"which": "= ANY (:job_names)"}},
    "runs/retention delete_rows": {"": {"table": "run_jobs", "key": "tenant_id, run_id, job_name"}},
    "runs/retention has_no_rows": {},  # a part of `delete_run`
    "runs/retention delete_run": {
        "": {"is_last": "NOT EXISTS (SELECT 1 FROM run_jobs WHERE tenant_id = :tenant_id AND run_id = :run_id)"}
    },
    "runs/queries page": {"failed": {"where": "status = 'failed'"}, "ended": {"where": "settled_at IS NOT NULL"}},
    "workflows/queries page": {"open": {"where": "ended_at IS NULL"}, "ended": {"where": ENDED}},
    "workflows/queries page_end": {"open": {"where": "ended_at IS NULL"}, "ended": {"where": ENDED}},
    "workflows/queries count_ended": {"completed": {"status": "completed"}},
    "events/store page": PAGES,
    "core/events/outbox buried_page": {"": {"body": "body"}},
}
"""How the statements that have several forms are filled in."""


def of_files() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each statement in a file that looks for rows."""
    folder = Path(timer_service.__file__).parent
    for path in sorted(folder.rglob("*.sql")):
        file = path.relative_to(folder).with_suffix("").as_posix()
        package = ".".join(("timer_service", *file.split("/")[:-1]))
        blocks = {} if file.startswith(OTHERS) else load_sql(package, path.name)
        for block, text in blocks.items():
            if re.search(r"\)\s+VALUES \(", text) is None:
                for variant, values in VARIANTS.get(f"{file} {block}", {"": {}}).items():
                    yield f"{file} {block} {variant}".rstrip(), text.format_map(FILLED_IN | values)


def of_tables() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each statement that is filled in with a table."""
    leased = [table for each in SLICES for table in each.leased]
    available: list[LeasedTable | DueTable] = [*leased, *(table for each in SLICES for table in each.due)]
    timed = [*(leased_rows(each, timedelta(seconds=30)) for each in leased), *(row for s in SLICES for row in s.timed)]
    yield from ((f"{table.name} {block}", table.sql(block)) for table in leased for block in LEASED)
    yield from ((f"{label(each.name, each.order[0])} {block}", each.sql(block)) for each in DUE for block in DUE[each])
    yield from ((f"{label(each.table, each.instant)} {block}", each.sql(block)) for each in timed for block in REPAIR)
    yield from ((f"{rows.table} count {rows.state}", rows.sql) for each in SLICES for rows in each.counted)
    yield from ((f"{table.name} overdue", overdue_sql(table)) for table in available)
    choices = [each.CHOICE.rows for each in (timers, signals, runs, schedules, workflows)]
    for rows in (*choices, workflows.WORKERS_CHOICE.rows, *(kind.rows for kind in KINDS)):
        yield from ((f"page of {rows.table} {rows.where} {block}", rows.sql(block)) for block in ("page", "count"))
    yield from ((f"page of {kind.rows.table} {kind.rows.where} last", kind.last) for kind in KINDS)
    yield from ((f"page of {kind.rows.table} TRUE search", kind.search) for kind in search.KINDS)


def label(table: str, instant: str) -> str:
    """Return how the statements about a table and an instant are named: a table may have two instants."""
    return f"{table} by key" if instant == "key_due_at" else table


STATEMENTS = dict([*of_files(), *of_tables()])


def read_indexes() -> dict[str, set[str]]:
    """Return the indexes of each statement."""
    found: dict[str, set[str]] = {}
    group = ""
    for line in Path(__file__).with_name("indexes.txt").read_text("utf-8").splitlines():
        if line.startswith("  "):
            indexes, _, blocks = line.strip().rpartition(": ")
            found |= {f"{group} {block}": set(indexes.split()) for block in blocks.split(", ")}
        else:
            group = line
    return found


EXPECTED = read_indexes()
SCAN = re.compile(r"^SCAN (\w+)(?: USING (?:COVERING )?INDEX (\w+))?", re.MULTILINE)
TABLES = {re.split("[ (]", rows.strip(), maxsplit=3)[2] for rows in ROWS}
WHOLE = {
    *("core/intake/waiting_rows tenants", "core/intake/waiting_rows ready_before"),  # at the start of a reader
    *("timer_cancellations count Waiting", "schedule_backfills count open", "run_announcements count waiting"),
    "parked_events count Parked",
}
"""Statements that read a whole index which has all rows."""
GROUPED = {"runs/loader count_by_status", "workflows/queries count_open", "ui/rows open_workflows"}
"""Statements that group a limited number of rows, or those of one run, by a column without an index."""
OTHER_INDEX = {
    "run_announcements": {"run_announcements_available", "run_announcements_pkey"},
    "runs/announcements": {"run_announcements_available"},
    "runs/sweep postpone_stale": {"run_jobs_stale"},
    "schedules/backfill/store count_open": {"schedule_backfills_of_schedule", "schedule_backfills_pkey"},
    "workflows/queries types_of_queue": {"workflow_workers_seen"},
    "workflows/tasks/registry forget": {"workflow_workers_seen"},
    "run_jobs repair": {"run_jobs_stale_of_tenant"},
    "page of work_signals TRUE count": {"work_signals_of_item"},
    "signals/store count_open": {"work_signals_of_item"},  # PostgreSQL 18, before the first ANALYZE
    "page of schedules TRUE count": {"schedules_by_status"},
    "events/store count": {"parked_events_pkey"},
    "page of parked_events TRUE count": {"parked_events_pkey"},
    "page of parked_events TRUE page": {"parked_events_pkey"},
    "page of workflow_workers TRUE page": {"workflow_workers_pkey", "workflow_workers_queue"},
    "page of workflow_workers TRUE count": {"workflow_workers_pkey", "workflow_workers_queue"},
}
"""Other indexes that PostgreSQL may use as well: they have the same rows in an order that serves, or few rows."""


def test_each_statement_has_its_indexes() -> None:
    """The table has all statements, and no others."""
    assert sorted(EXPECTED) == sorted(STATEMENTS)


async def test_sqlite(sqlite: SqliteDatabase) -> None:
    """Each statement uses its indexes, reads no whole table and sorts nothing, for one or for many parameter sets."""
    found = await sqlite.reader.fetch("SELECT name FROM sqlite_master WHERE type = 'index' AND sql LIKE '%WHERE%'")
    partial = {row["name"] for row in found}
    for name, sql in STATEMENTS.items():
        parameters = {each: ["1"] if f"ANY (:{each})" in sql else 1 for each in re.findall(r":(\w+)", sql)}
        async with sqlite.transaction() as tx:
            once = [row["detail"] for row in await tx.fetch(f"EXPLAIN QUERY PLAN {sql}", parameters)]
            many = [row["detail"] for row in await tx.fetch_each(f"EXPLAIN QUERY PLAN {sql}", [parameters])]
        for steps in (once, many):
            indexes = [each for step in steps for each in re.findall(r"USING (?:COVERING )?INDEX (\w+)", step)]
            assert {re.sub(r"sqlite_autoindex_(\w+)_1", r"\1_pkey", each) for each in indexes} == EXPECTED[name], name
            for scanned, index in SCAN.findall("\n".join(steps)):
                assert scanned not in TABLES or index in partial or name in WHOLE, (name, steps)
            assert name in GROUPED or "TEMP B-TREE" not in str(steps), (name, steps)
            if re.search(r"> \(?:after", sql) is not None:  # a page begins after its cursor, and not at the first row
                assert ">?" in str(steps) or ">(?" in str(steps), (name, steps)


@pytest.fixture(scope="module", params=STATISTICS)
def filled(databases: Databases, request: pytest.FixtureRequest) -> Iterator[FilledDatabase]:
    """Return a database with 20,000 rows in each table."""
    with filled_database(databases, ROWS, (20_000, request.param)) as database:
        yield database


def check(filled: FilledDatabase, name: str) -> None:
    """Check the plan of a statement on PostgreSQL."""
    for mode in MODES:
        nodes = filled.plan(STATEMENTS[name], mode)
        if set(nodes) == {"Sort"}:  # PostgreSQL 18 sees that no row has the status of the parameter, too
            continue
        indexes = {node.split()[-1] for node in nodes if node.startswith("Index")}
        allowed = EXPECTED[name] | OTHER_INDEX.get(name.split(maxsplit=1)[0], set()) | OTHER_INDEX.get(name, set())
        assert indexes == EXPECTED[name] or (indexes and indexes <= allowed != EXPECTED[name]), (name, mode, nodes)
        assert not [node for node in nodes if node in {"Sort", "Incremental Sort"} or node.startswith("Seq")], name


def test_postgres(filled: FilledDatabase) -> None:
    """Each statement uses its indexes and sorts nothing, with any statistics and any plan mode."""
    for name in STATEMENTS:
        check(filled, name)


@pytest.mark.parametrize("statistics", [Statistics.NONE, pytest.param(Statistics.OUTGROWN, marks=pytest.mark.slow)])
def test_tenants_while_nothing_has_fired(databases: Databases, statistics: Statistics) -> None:
    """The primary key is the smaller index then. It is not used, because it keeps the timers that have fired."""
    with filled_database(databases, [PENDING_ROWS], (1000, statistics)) as filled:
        check(filled, "timer_schedules due_tenants")


@pytest.mark.slow
def test_many_waiting_schedules(databases: Databases) -> None:
    """If most schedules wait for their jitter, and the statistics say so, the due ones are still found by index."""
    with filled_database(databases, [WAITING_SCHEDULES], (100_000, Statistics.FRESH)) as filled:
        for block in ("due", "due_of_tenant", "count_available", "next_available"):
            check(filled, f"schedules {block}")
