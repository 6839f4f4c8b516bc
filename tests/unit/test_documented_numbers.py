"""The numbers that the documentation gives are those of the code."""

from pathlib import Path

import pytest

from timer_service.adapters.postgres import database as postgres
from timer_service.config import Config
from timer_service.core.due import lease
from timer_service.core.events import pace
from timer_service.core.intake import backlog, cursor, waiting, waiting_rows
from timer_service.core.requests import query
from timer_service.core.values import delays
from timer_service.core.values.budget import DEFAULT_MEMORY_BYTES, MIB
from timer_service.workflows.tasks import registry

DOCS = Path(__file__).parents[2] / "docs"
WORDS = {1: "a", 3: "three"}


def word(number: int) -> str:
    """Return a number as the documentation writes it."""
    return WORDS.get(number, str(number))


NUMBERS = {
    "guarantees.md": [
        f"if the process then dies {word(lease.DEATHS_ALONE)} times",
        f"It is tried once more after {word(round(delays.Delays().next(1).total_seconds()))} second",
        f"retried after 1 s to {delays.LONGEST.total_seconds():.0f} s until the lock is released",
        f"begins `TIMER_COMMANDS_OVERLAP` ({Config().commands_overlap.total_seconds():.0f} s) before the newest",
        f"after pauses that grow to {pace.LONGEST_MS // 1000} s",
    ],
    "performance.md": [
        f"With the default `TIMER_MEMORY_BUDGET` of {DEFAULT_MEMORY_BYTES // MIB} MiB",
        f"A row has {waiting_rows.ROW_BYTES // 1024} KiB or {waiting_rows.ROW_COMMANDS:,} commands",
        f"A query has at most {query.MAX_QUERY_BYTES // 1024} KiB",
        f"{registry.MOST_WORKERS:,} workers in `list-workers`",
    ],
    "operations/instances.md": [
        f"by a lease of {cursor.LEASE_MS // 1000} s in the database",
        f"for at most {backlog.LONGEST_WAIT_MS // 1000} s",
    ],
    "operations/monitor.md": [
        f"Waiting commands take at most {waiting.MOST_BYTES // 1024**3} GiB",
        f"At most {word(query.RUNNING_OF_TENANT)} queries of one tenant are answered at a time",
        f"are answered at a time, and at most {query.WAITING:,} queries of all tenants wait",
    ],
    "operations/postgresql.md": [
        f"An instance opens up to {postgres.MOST_CONNECTIONS} connections:",
    ],
}


@pytest.mark.parametrize("page", NUMBERS)
def test_numbers(page: str) -> None:
    """A page has each of these sentences, with the number from the code."""
    text = " ".join((DOCS / page).read_text("utf-8").split())
    assert [each for each in NUMBERS[page] if each not in text] == []
