"""Records which workers were seen last, for list-workers. A row is written at most every 10 s."""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from pydantic_core import to_json

from timer_service.core.database import Transaction
from timer_service.core.loop import Pass
from timer_service.core.slice import Parts
from timer_service.core.sql import load_sql
from timer_service.core.transactions import in_transaction
from timer_service.workflows.protocol import PollTasks

_SQL = load_sql("timer_service.workflows", "registry.sql")

LOOP = "workflow-workers"
_SECONDS = 10
"""How often the row of a worker is written at most."""
_BATCH = 1000
_PAUSE_MS = 1000
_MOST_KNOWN = 20_000
"""How many workers are remembered. Those beyond are written more often, but at most `_BATCH` in a second."""

_Key = tuple[str, str]


class _Seen(NamedTuple):
    at: int
    poll: PollTasks | None
    """None: the worker sent another request, which does not say what it executes."""


class WorkerRegistry:
    """A worker of the service that writes what the requests of the users' workers show."""

    def __init__(self, parts: Parts, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._database = parts.database
        self._clock = parts.clock
        self._wake = parts.wake
        self._monotonic = monotonic
        self._written: OrderedDict[_Key, float] = OrderedDict()
        """When the row of a worker was written last, the longest ago first."""
        self._pending: OrderedDict[_Key, _Seen] = OrderedDict()
        self._pending_of: Counter[str] = Counter()
        """How many of them each tenant has. A tenant with ever new workers must not delay the others."""

    def record_poll(self, tenant: str, poll: PollTasks) -> None:
        """Record a poll."""
        self._record((tenant, poll.worker_id), poll)

    def record(self, tenant: str, worker_id: str) -> None:
        """Record another request."""
        self._record((tenant, worker_id), None)

    def _record(self, key: _Key, poll: PollTasks | None) -> None:
        written = self._written.get(key)
        recent = written is not None and self._monotonic() - written < _SECONDS
        if recent or key in self._pending or self._pending_of[key[0]] >= _BATCH:
            return
        now = self._clock.now()
        if not self._pending:
            self._wake(LOOP, now + _PAUSE_MS)
        self._pending[key] = _Seen(now, poll)
        self._pending_of[key[0]] += 1

    async def tick(self, now: int) -> Pass:
        """Write the rows of up to 1,000 workers that were seen."""
        batch = [self._pending.popitem(last=False) for _ in range(min(_BATCH, len(self._pending)))]
        self._pending_of = Counter(tenant for tenant, _ in self._pending)
        if batch:
            await in_transaction(self._database, lambda tx: _write(tx, batch))
            self._remember([key for key, _ in batch])
        return Pass(len(batch), now + _PAUSE_MS if self._pending else None)

    def _remember(self, keys: list[_Key]) -> None:
        for key in keys:
            self._written[key] = self._monotonic()
            self._written.move_to_end(key)
        while len(self._written) > _MOST_KNOWN:
            self._written.popitem(last=False)


async def _write(tx: Transaction, batch: list[tuple[_Key, _Seen]]) -> None:
    batch = sorted(batch, key=lambda each: each[0])
    polls = [_row(key, seen.at, seen.poll) for key, seen in batch if seen.poll is not None]
    await tx.executemany(_SQL["poll"], polls)
    others = [{"tenant_id": key[0], "worker_id": key[1], "now": seen.at} for key, seen in batch if seen.poll is None]
    await tx.executemany(_SQL["seen"], others)


def _row(key: _Key, at: int, poll: PollTasks) -> dict[str, Any]:
    return {
        "tenant_id": key[0],
        "worker_id": key[1],
        "name": poll.name,
        "queue": poll.queue,
        "types": to_json(poll.types).decode(),
        "slots": poll.slots,
        "now": at,
    }
