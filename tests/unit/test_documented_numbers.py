"""The numbers that the documentation gives are those of the code."""

from pathlib import Path

import pytest

from timer_service import http
from timer_service.adapters.nats import streams
from timer_service.adapters.postgres import database as postgres
from timer_service.adapters.sqlite import files
from timer_service.app import slices, usage
from timer_service.app.service import _UPKEEP_INTERVAL
from timer_service.cli import process
from timer_service.config import Config
from timer_service.core.due import lease, loop, row_counts
from timer_service.core.events import pace, relay
from timer_service.core.intake import backlog, cursor, trouble, waiting, waiting_rows
from timer_service.core.limits import audit, quotas
from timer_service.core.ports import clock, turns
from timer_service.core.requests import query
from timer_service.core.service import clock_repair, retention
from timer_service.core.values import delays
from timer_service.core.values.budget import DEFAULT_MEMORY_BYTES, LEAST_MEMORY_BYTES, MIB
from timer_service.workflows.tasks import registry

DOCS = Path(__file__).parents[2] / "docs"
WORDS = {1: "a", 2: "two", 3: "three", 10: "ten"}
MINUTE, HOUR = 60_000, 3_600_000


def word(number: int) -> str:
    """Return a number as the documentation writes it."""
    return WORDS.get(number, str(number))


NUMBERS = {
    "guarantees.md": [
        f"jumps by more than {clock._TOLERANCE / 1_000_000} s, forward or backward",
        f"if the process then dies {word(lease.DEATHS_ALONE)} times",
        f"Waiting commands have at most {waiting.MOST_BYTES // 1024**3} GiB in the database",
        f"It is tried once more after {word(round(delays.Delays().next(1).total_seconds()))} second",
        f"they are tried {trouble._MOST_ATTEMPTS_IF_ALL_FAIL} times",
        f"retried after 1 s to {delays.LONGEST.total_seconds():.0f} s until the lock is released",
        f"by a lease of {cursor.LEASE_MS // 1000} s in the database",
        f"for at most {backlog.LONGEST_WAIT_MS // 1000} s",
        f"reading begins `TIMER_COMMANDS_OVERLAP` ({Config().commands_overlap.total_seconds():.0f} s) earlier",
        f"after pauses that grow to {pace.LONGEST_MS // 1000} s",
        f"by what the other instances add in {word(quotas._VALID_SECONDS)} seconds",
    ],
    "performance.md": [
        f"A row has {waiting_rows.ROW_BYTES // 1024} KiB or {waiting_rows.ROW_COMMANDS:,} commands",
        f"take long to compute ends after {turns._TRANSACTION_SECONDS * 1000:.0f} ms",
        f"published in chunks of about {relay._CHUNK_CHARACTERS // MIB} MiB",
        f"A query has at most {query.MAX_QUERY_BYTES // 1024} KiB",
        f"{registry.MOST_WORKERS:,} workers in `list-workers`, with {registry._TYPES_BYTES // 1024} KiB of types each",
    ],
    "operations.md": [
        f"not before {quotas._COUNTING_SHARE} times the time that all counts",
        f"of the last second took, at most {quotas._VALID_SECONDS} s",
        f"| delete rows that were settled `TIMER_RETENTION_DAYS` ago | {slices._RETENTION_INTERVAL.seconds} s |",
        f"| samples the gauges | {slices._ROW_COUNTS_INTERVAL.seconds} s |",
        f"reads the clock of the machine on SQLite | 5 s; {clock_repair._READING_MS / 1000} s on SQLite |",
        f"[are still there](#if-the-database-file-was-deleted) | {files._LOOKING_MS // 1000} s |",
        f"after a failed write, writes until a write succeeds | {_UPKEEP_INTERVAL.seconds} s |",
        f"while the clock was ahead](#after-a-wrong-clock) | {_UPKEEP_INTERVAL.seconds} s |",
        f"A tenant has at most {audit._LINES_OF_TENANT} lines a second, and all tenants have {audit._LINES}.",
        f"Within {_UPKEEP_INTERVAL.seconds} s, `audit lines left out` then has the",
        f"by more than {clock._TOLERANCE / 1_000_000} s takes effect",
        f"takes effect when it has lasted {word(clock._PERSISTENCE // 1_000_000)} second",
        f"each jump backward of {word(clock_repair.SLACK_MS // 1000)} second or more",
        "nothing for an hour after a jump forward by more than a minute",
        f"whose pass takes {word(loop._LONGEST_PASS_SECONDS // 60)} minute longer than its interval",
        f"lasts at most {http._CONNECTION_SECONDS} s. At most {http.MOST_CONNECTIONS} are open",
        f"at most {word(query.RUNNING_OF_TENANT)} of one tenant are answered at a time",
        f"are answered at a time, and {query.WAITING:,} wait",
        f"opens up to {postgres.MOST_CONNECTIONS}: {postgres._WORK_CONNECTIONS} for its own work",
        f"own work, {postgres._QUERY_CONNECTIONS} for queries and gauges",
        f"A statement may take {postgres._STATEMENT_SECONDS} s, a statement of a migration one hour",
        f"or {streams._REFUSED_SECONDS} s after the last refusal",
        f"The process ends at most {process._CLOSE_SECONDS} s after `TIMER_SHUTDOWN_TIMEOUT`",
    ],
}


@pytest.mark.parametrize("page", NUMBERS)
def test_numbers(page: str) -> None:
    """A page has each of these sentences, with the number from the code."""
    text = " ".join((DOCS / page).read_text("utf-8").split())
    assert [each for each in NUMBERS[page] if each not in text] == []


def test_numbers_in_words() -> None:
    """An hour, a minute and so on, where the documentation has no digits."""
    assert (retention._TRUSTED_AFTER_MS, retention._TOLERANCE_MS) == (HOUR, MINUTE)
    assert postgres._MIGRATION_SECONDS * 1000 == HOUR
    assert usage._MOST_COUNTED == row_counts._LIMIT == 1_000_000
    assert (DEFAULT_MEMORY_BYTES, LEAST_MEMORY_BYTES) == (256 * MIB, 128 * MIB)
