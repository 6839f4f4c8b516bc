"""The query plans of the service's statements on PostgreSQL, on tables with many rows."""

import asyncio
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from typing import NamedTuple, TypeAlias

import asyncpg
import pytest

from tests.harness.databases import Databases
from tests.harness.stores import bring_to_head
from timer_service.adapters.postgres.database import BEGIN
from timer_service.adapters.postgres.text import translate


class Statistics(Enum):
    """What the planner knows about the tables."""

    NONE = auto()
    """Their sizes only, as before the first ANALYZE."""
    FRESH = auto()
    """What ANALYZE has found."""
    OUTGROWN = auto()
    """That they have 50 times as many rows, and nothing else: so look tables that grew before the first ANALYZE."""


STATISTICS = [
    pytest.param(Statistics.NONE, id="not analyzed"),
    pytest.param(Statistics.FRESH, id="analyzed", marks=pytest.mark.slow),
    pytest.param(Statistics.OUTGROWN, id="outgrown", marks=pytest.mark.slow),
]
MODES = ["force_custom_plan", "force_generic_plan"]
"""The plan modes of a prepared statement: custom for its first five executions, later maybe generic."""

_NODE = re.compile(
    r"(?:->  )?(Index Only Scan|\w+ Scan|(?:Incremental )?Sort|Hash Join|Merge Join|LockRows|Materialize)"
    r"(?: Backward)?(?: using (\w+))?"
)


_FORGET = """
DELETE FROM pg_statistic WHERE starelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace);
UPDATE pg_class SET reltuples = 50 * reltuples WHERE relnamespace = 'public'::regnamespace AND reltuples > 0
"""
"""The planner estimates the rows from the size of the file and the rows per page, which this multiplies."""

_ARGUMENTS = {"text": "'tenant-7'", "text[]": "ARRAY['job-7', 'job-8']"}

_Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


class FilledDatabase(NamedTuple):
    """A database with many rows, a connection to it, and the runner of its event loop."""

    connection: _Connection
    runner: asyncio.Runner

    def plan(self, sql: str, mode: str) -> list[str]:
        """Return the plan nodes of a statement, as the service runs it: its scans, joins, sorts and locks."""
        return [node for node in self.runner.run(_plan(self.connection, sql, mode)) if node != "Subquery Scan"]


@contextmanager
def filled_database(
    databases: Databases, inserts: Sequence[str], size: tuple[int, Statistics]
) -> Iterator[FilledDatabase]:
    """Yield a database with many rows. The parameter of each insert is the number of rows."""
    rows, statistics = size
    with asyncio.Runner() as runner:
        opening = databases.database(bring_to_head)
        connection = runner.run(asyncpg.connect(runner.run(opening.__aenter__())))
        runner.run(_fill(connection, inserts, rows, statistics))
        yield FilledDatabase(connection, runner)
        runner.run(connection.close())
        runner.run(opening.__aexit__(None, None, None))


async def _fill(connection: _Connection, inserts: Sequence[str], rows: int, statistics: Statistics) -> None:
    for insert in inserts:
        await connection.execute(insert, rows)
    if statistics is not Statistics.NONE:
        await connection.execute("ANALYZE")
    if statistics is Statistics.OUTGROWN:
        await connection.execute(_FORGET)


async def _plan(connection: _Connection, sql: str, mode: str) -> list[str]:
    """Plan a statement. All statements share a connection, because a new one costs more than a plan."""
    text, _ = translate(sql)
    types = [each.name for each in (await connection.prepare(text)).get_parameters()]
    arguments = ", ".join(_ARGUMENTS.get(name, "500") for name in types)
    await connection.execute(f"{BEGIN}; SET LOCAL plan_cache_mode = {mode}")
    await connection.execute(f"PREPARE statement AS {text}")
    lines = await connection.fetch(f"EXPLAIN (COSTS OFF) EXECUTE statement{f'({arguments})' if arguments else ''}")
    await connection.execute("ROLLBACK; DEALLOCATE statement")
    nodes = (_NODE.match(line[0].strip()) for line in lines)
    return [" ".join(filter(None, node.groups())) for node in nodes if node]
