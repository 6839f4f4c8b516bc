"""The query plans of the service's statements on PostgreSQL, on tables with many rows."""

import asyncio
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

import asyncpg
import pytest

from tests.harness.databases import Databases
from tests.harness.stores import bring_to_head
from timer_service.adapters.postgres.database import _BEGIN
from timer_service.adapters.postgres.text import translate

SIZES = [
    pytest.param((20_000, False), id="20,000 rows, not analyzed"),
    pytest.param((20_000, True), id="20,000 rows, analyzed"),
    pytest.param((1_000_000, False), id="1,000,000 rows, not analyzed", marks=pytest.mark.full),
    pytest.param((1_000_000, True), id="1,000,000 rows, analyzed", marks=pytest.mark.full),
]
"""The number of rows, and whether ANALYZE has run."""
MODES = ["force_custom_plan", "force_generic_plan"]
"""The plan modes of a prepared statement: custom for its first five executions, later maybe generic."""

_NODE = re.compile(
    r"(?:->  )?(Index Only Scan|\w+ Scan|(?:Incremental )?Sort|Hash Join|Merge Join|LockRows|Materialize)"
    r"(?: using (\w+))?"
)


_Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


class FilledDatabase(NamedTuple):
    """A database with many rows, a connection to it, and the runner of its event loop."""

    connection: _Connection
    runner: asyncio.Runner

    def plan(self, sql: str, mode: str) -> list[str]:
        """Return the plan nodes of a statement, as the service runs it: its scans, joins, sorts and locks."""
        return [node for node in self.runner.run(_plan(self.connection, sql, mode)) if node != "Subquery Scan"]


@contextmanager
def filled_database(databases: Databases, inserts: Sequence[str], size: tuple[int, bool]) -> Iterator[FilledDatabase]:
    """Yield a database with many rows. The parameter of each insert is the number of rows."""
    rows, analyzed = size
    with asyncio.Runner() as runner:
        opening = databases.database(bring_to_head)
        connection = runner.run(asyncpg.connect(runner.run(opening.__aenter__())))
        runner.run(_fill(connection, inserts, rows, analyzed=analyzed))
        yield FilledDatabase(connection, runner)
        runner.run(connection.close())
        runner.run(opening.__aexit__(None, None, None))


async def _fill(connection: _Connection, inserts: Sequence[str], rows: int, *, analyzed: bool) -> None:
    for insert in inserts:
        await connection.execute(insert, rows)
    if analyzed:
        await connection.execute("ANALYZE")


async def _plan(connection: _Connection, sql: str, mode: str) -> list[str]:
    """Plan a statement. All statements share a connection, because a new one costs more than a plan."""
    text, _ = translate(sql)
    types = [each.name for each in (await connection.prepare(text)).get_parameters()]
    arguments = ", ".join("'tenant-7'" if name == "text" else "500" for name in types)
    await connection.execute(f"{_BEGIN}; SET LOCAL plan_cache_mode = {mode}")
    await connection.execute(f"PREPARE statement AS {text}")
    lines = await connection.fetch(f"EXPLAIN (COSTS OFF) EXECUTE statement{f'({arguments})' if arguments else ''}")
    await connection.execute("ROLLBACK; DEALLOCATE statement")
    nodes = (_NODE.match(line[0].strip()) for line in lines)
    return [" ".join(filter(None, node.groups())) for node in nodes if node]
