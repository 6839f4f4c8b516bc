"""How changed jobs of runs are written."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from timer_service.core.ports.database import Transaction
from timer_service.runs import store
from timer_service.runs.rules import Job, RunKey

KEY = RunKey("acme", "run-1")


class RecordingTransaction:
    """Records the statements."""

    def __init__(self) -> None:
        self.statements: list[tuple[str, int]] = []

    async def executemany(self, sql: str, many: Sequence[Mapping[str, Any]]) -> int:
        self.statements += [(sql, len(many))] if many else []
        return len(many)


@pytest.mark.parametrize(("pairs", "alike"), [(100, 1), (100, 49), (0, 50), (30, 9999)])
async def test_only_many_alike_jobs_are_written_together(pairs: int, alike: int) -> None:
    """On PostgreSQL, a statement with a list of names may read the whole run. Thousands of lists would take minutes."""
    jobs = [Job(f"pair-{number}-{each}", reason=f"reason {number}") for number in range(pairs) for each in range(2)]
    jobs += [Job(f"alike-{number}", ready_at=1) for number in range(alike)]
    tx = RecordingTransaction()
    await store._update_jobs(cast("Transaction", tx), [(KEY, job) for job in jobs])
    is_many = alike >= store.MANY_JOBS
    few = 2 * pairs + (0 if is_many else alike)
    expected = [(store._SQL["update_job"], few), (store._SQL["update_jobs"], 1 if is_many else 0)]
    assert tx.statements == [each for each in expected if each[1]]
